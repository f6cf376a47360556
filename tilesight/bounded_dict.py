"""A dictionary with a bounded number of entries, for caches in memory."""

from __future__ import annotations

from itertools import islice
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dictionary that drops the older half of its entries before an insertion exceeds `capacity`.

    Entries are inserted by `table[key] = value` only. Reading costs no more than from a plain dictionary.
    Threads may share it."""

    __slots__ = ("_capacity",)

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def __reduce__(self) -> tuple[Any, ...]:  # the default sets the entries before the capacity
        return type(self), (self._capacity,), None, None, iter(self.items())

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._capacity and key not in self:
            for oldest in list(islice(self, (len(self) + 1) // 2)):
                self.pop(oldest, None)
        super().__setitem__(key, value)
