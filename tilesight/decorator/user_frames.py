"""Tracebacks of a user's errors: from the user's call to the user's function, without the frames between."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from ..errors import TileSightError
from .content import is_library

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGE = f"{Path(__file__).resolve().parents[1]}/"


def without_own_frames(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator: what the user's code raises, or TileSight on purpose, is raised without inner frames.

    An error of TileSight itself keeps its traceback.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            for part in _chain(error):
                part.__traceback__ = _shortened(part)
            raise

    return call


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _shortened(error: BaseException) -> TracebackType | None:
    frames = list(_frames(error.__traceback__))
    if not isinstance(error, TileSightError) and not any(map(_is_users, frames)):
        return error.__traceback__
    kept: TracebackType | None = None
    for frame in reversed([frame for frame in frames if not _is_own(frame)]):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _frames(found: TracebackType | None) -> Iterator[TracebackType]:
    while found is not None:
        yield found
        found = found.tb_next


def _is_own(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _is_users(frame: TracebackType) -> bool:
    code, module = frame.tb_frame.f_code, frame.tb_frame.f_globals.get("__name__")
    return not _is_own(frame) and not is_library(module, code.co_filename)
