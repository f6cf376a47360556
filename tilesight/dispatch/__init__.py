"""Dispatch: which built kernel serves a shape, at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = ["register"]


def register(name: str, dispatcher: Dispatcher) -> Any:
    """`dispatcher` as an operator of torch under `namespace::name`; see `Dispatcher.register`."""
    return dispatcher.register(name)
