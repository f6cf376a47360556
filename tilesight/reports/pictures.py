"""Pictures drawn with matplotlib: checks before long work, and files that are written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from ..extras import missing_extra
from ..files import replacing

SUFFIXES = (".png", ".svg")


def check_picture(path: Path, what: str) -> None:
    """Raise `InputError` for a wrong path of a picture, `ToolchainError` if matplotlib is missing.

    Args:
        path: the file to write.
        what: the picture, for messages.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"--plot {path} must end in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder '{path.parent}'; make it, or name another file")
    if path.is_dir():
        raise InputError(f"--plot {path} is a folder; name a file in it")
    new_figure(what)


def new_figure(what: str, **options: Any) -> Any:
    """A figure of matplotlib. Raises `ToolchainError` if it is missing; `what` needs it."""
    try:
        from matplotlib import figure
    except ImportError as error:
        raise missing_extra("plots", what) from error
    return figure.Figure(**options)


def save_figure(path: Path, figure: Any) -> None:
    """Write a figure, the same bytes for the same figure. Raises `InputError`."""
    with replacing(path, f"picture '{path}' cannot be written") as partial_path:
        figure.savefig(
            partial_path,
            format=path.suffix[1:],
            dpi=110,
            metadata={"Date": None} if path.suffix == ".svg" else None,
        )
