"""Registration of a dispatcher with torch, without importing torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dispatcher import Dispatcher


def register(name: str, dispatcher: Dispatcher) -> Any:
    """`dispatcher` as an operator of torch under `namespace::name`; see `Dispatcher.register`."""
    return dispatcher.register(name)
