"""Finds the peak number of registers that the local buffers of a role need, from their live ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Key = tuple[int, int]  # role, buffer
Elements = NDArray[np.bool_] | None  # mask over the elements of a buffer; None: all of them
_NEVER = np.iinfo(np.int64).max // 2


@dataclass
class _Span:
    """First and last position at which each element of a buffer is live; `_NEVER` and 0 if it is not used."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @property
    def begin(self) -> int:
        return int(self.first.min())

    @property
    def end(self) -> int:
        return int(self.last.max())

    def delay(self, begin: int) -> None:
        """Let no element that is used at `begin` or later begin before it."""
        later = self.last >= begin
        self.first[later] = np.maximum(self.first[later], begin)

    def prolong(self, end: int) -> None:
        """Let all elements live until `end` at least."""
        used = self.last > 0
        self.last[used] = np.maximum(self.last[used], end)


@dataclass
class LiveRanges:
    """Positions in program order at which each role uses its local buffers, and the loops around them.

    A use may concern some elements alone. The iterations of an unrolled loop are no loop: the compiler sees
    one sequence of statements, in which each element is a register of its own.
    """

    _uses: dict[Key, list[tuple[int, Elements]]] = field(default_factory=dict)
    _spans: dict[Key, _Span] = field(default_factory=dict)
    _loops: list[tuple[int, int]] = field(default_factory=list)
    _unrolled: list[tuple[int, int]] = field(default_factory=list)
    _accumulations: dict[Key, list[int]] = field(default_factory=dict)
    _kept: set[Key] = field(default_factory=set)  # accumulators that live from one iteration to the next
    _branches: int = 0  # around the current position
    _branched: set[Key] = field(default_factory=set)  # buffers that are used in a branch
    _position: int = 0
    _stores: dict[Key, list[int]] = field(default_factory=dict)
    # the buffer whose elements each store to a buffer transforms one by one; None for other values
    _sources: dict[Key, set[int | None]] = field(default_factory=dict)
    _temporary: set[Key] = field(default_factory=set)  # buffers that need no registers of their own

    def touch(self, role: int, buffer: int, elements: Elements = None) -> None:
        """Record a use of `elements` of `buffer` by `role` at the current position."""
        self._position += 1
        key = (role, buffer)
        self._uses.setdefault(key, []).append((self._position, elements))
        if self._branches:
            self._branched.add(key)

    def store(
        self, role: int, buffer: int, transformed: int | None = None, elements: Elements = None
    ) -> None:
        """Record a store to `elements` of `buffer`.

        If the value follows from one element of another local buffer and from constants, that buffer is
        `transformed`.
        """
        self.touch(role, buffer, elements)
        self._stores.setdefault((role, buffer), []).append(self._position)
        self._sources.setdefault((role, buffer), set()).add(transformed)

    def accumulate(self, role: int, buffer: int, *, kept: bool) -> None:
        """Record that matrix instructions of `role` accumulate in `buffer`.

        The generated code passes the accumulators of warp groups through a fence, which reads the values of
        the last iteration even if the first instruction does not add to them. If one instruction fills the
        buffer (`kept`), the compiler needs room for these values, unless a branch also uses the buffer, or
        several products of the loop begin anew. Source: ptxas reports of attention kernels with and without a
        mask, with 64 to 256 rows of a warp group; live ranges in the machine code of three kernels of
        attention's backward pass, whose loops of five products enter an iteration with two of five
        accumulators and a few other registers.
        """
        self._accumulations.setdefault((role, buffer), []).append(self._position)
        if kept:
            self._kept.add((role, buffer))

    @contextmanager
    def branch(self) -> Iterator[None]:
        """A context in which all uses are inside one branch."""
        self._branches += 1
        yield
        self._branches -= 1

    @contextmanager
    def loop(self) -> Iterator[None]:
        """A context in which all uses are inside one loop."""
        self._position += 1
        start = self._position
        yield
        self._position += 1
        self._loops.append((start, self._position))

    @contextmanager
    def unrolled(self) -> Iterator[None]:
        """A context in which all uses are inside one unrolled loop."""
        self._position += 1
        start = self._position
        yield
        self._position += 1
        self._unrolled.append((start, self._position))

    def finish(self, buffer_bytes: Mapping[int, float] | None = None) -> None:
        """Extend each live range over the loops that it enters or leaves.

        An element that is used inside a loop and also before or after it is live during the whole loop.
        `buffer_bytes` are bytes per thread by buffer, as far as they are known.
        """
        self._spans = {key: _span(uses) for key, uses in self._uses.items()}
        self._delay_transformations(buffer_bytes or {})
        for start, end in self._loops:
            self._hand_over(start, end)
            kept = self._kept_through(start, end)
            for key, span in self._spans.items():
                crosses = (span.first <= end) & (span.last >= start)
                if key not in kept:
                    crosses &= (span.first < start) | (span.last > end)
                span.first[crosses] = np.minimum(span.first[crosses], start)
                span.last[crosses] = np.maximum(span.last[crosses], end)

    def _delay_transformations(self, buffer_bytes: Mapping[int, float]) -> None:
        """Let a buffer with transformed elements of another begin when its elements are needed.

        The compiler computes an element when the other buffer is used for the last time, or changed, if no
        instruction needs it before. If one unrolled loop uses all elements, each of them is computed there,
        and a register is enough. Elements that take fewer registers than what is computed from them, such as
        packed numbers, wait in place of it.
        """
        for (role, buffer), sources in self._sources.items():
            source = next(iter(sources)) if len(sources) == 1 else None
            key = (role, buffer)
            if source is None or key in self._branched or (role, source) not in self._spans:
                continue
            computed = self._stores[key][-1]
            needed = [p for p, _ in self._uses[key] if p > computed]
            if len(needed) + len(self._stores[key]) < len(self._uses[key]):
                continue  # used between two stores, as if a loop is unrolled
            changed = [p for p in self._changes(role, source) if p > computed]
            packed = 0 < buffer_bytes.get(source, 0.0) < buffer_bytes.get(buffer, 0.0)
            died = self._spans[role, source].end + 1
            begin = min([*needed[:1], *changed[:1], *([] if packed and needed else [died])])
            if begin > computed and not self._changes_within_loop(role, source, computed, begin):
                self._spans[key].delay(begin)
                if begin > died:
                    self._spans[role, source].prolong(begin)
                end = self._spans[key].end
                if any(start < begin and end < stop for start, stop in self._unrolled):
                    self._temporary.add(key)

    def _changes_within_loop(self, role: int, buffer: int, inside: int, outside: int) -> bool:
        """Whether `role` stores to `buffer` in a loop around one position that the other one is not in."""
        changes = self._changes(role, buffer)
        return any(
            start < inside < end < outside and any(start < p < end for p in changes)
            for start, end in self._loops
        )

    def _changes(self, role: int, buffer: int) -> list[int]:
        """Positions at which `role` changes the elements of `buffer`, in order."""
        key = (role, buffer)
        return sorted((*self._stores.get(key, ()), *self._accumulations.get(key, ())))

    def _kept_through(self, start: int, end: int) -> set[Key]:
        """Accumulators of which a loop needs the values of its last iteration beside all others.

        None of a role for which several products begin anew in each iteration: the compiler then lets the
        accumulators of one have the registers of another.
        """
        anew = [k for k in self._accumulations if self._spans[k].begin >= start and self._spans[k].end <= end]
        alone = {role for role in {k[0] for k in anew} if sum(k[0] == role for k in anew) == 1}
        return {key for key in self._kept - self._branched if key[0] in alone}

    def _hand_over(self, start: int, end: int) -> None:
        """Let a new buffer begin where an old one ends, if a loop uses the old one last and fills the new.

        The loop then needs registers for the larger of the two, not for both.
        """
        inside = {k: span for k, span in self._spans.items() if span.begin <= end and span.end >= start}
        dying = [key for key, span in inside.items() if span.begin < start and span.end <= end]
        born = [key for key, span in inside.items() if span.begin >= start and span.end > end]
        for role in {key[0] for key in dying}:
            mine = [key for key in born if key[0] == role]
            for key in mine[: sum(1 for k in dying if k[0] == role)]:
                self._spans[key].delay(end + 1)

    def peak_registers(self, role: int, buffer_bytes: Mapping[int, float]) -> float:
        """Peak number of 32-bit registers per thread that are live together.

        `buffer_bytes` are bytes per thread by buffer.
        """
        return self._peak([key for key in self._spans if key[0] == role], buffer_bytes)

    def peak_beside_products(self, role: int, buffer_bytes: Mapping[int, float]) -> float:
        """The same in the innermost loops with matrix instructions; in all code if there are none."""
        live = self._live([key for key in self._spans if key[0] == role], buffer_bytes)
        loops: set[tuple[int, int]] = set()
        for position in (p for key, found in self._accumulations.items() if key[0] == role for p in found):
            around = [loop for loop in self._loops if loop[0] <= position <= loop[1]]
            loops.add(min(around, key=lambda loop: loop[1] - loop[0], default=(0, len(live))))
        return max((float(live[a : b + 1].max(initial=0.0)) for a, b in loops or {(0, len(live))}))

    def peak_accumulators(self, role: int, buffer_bytes: Mapping[int, float]) -> float:
        """The same for the buffers in which matrix instructions accumulate."""
        return self._peak([key for key in self._accumulations if key[0] == role], buffer_bytes)

    def held_at_peak(self, role: int, buffer_bytes: Mapping[int, float]) -> dict[int, float]:
        """The registers of `peak_registers` by buffer."""
        keys = [key for key in self._spans if key[0] == role]
        position = int(self._live(keys, buffer_bytes).argmax())
        found: dict[int, float] = {}
        for key in keys:
            span, size = self._spans[key], buffer_bytes.get(key[1], 0.0) / 4
            here = (span.first <= position) & (span.last >= position) & (span.last > 0)
            if size and key not in self._temporary and here.any():
                found[key[1]] = size * float(here.sum()) / len(here)
        return found

    def _peak(self, keys: Iterable[Key], buffer_bytes: Mapping[int, float]) -> float:
        return float(self._live(keys, buffer_bytes).max(initial=0.0))

    def _live(self, keys: Iterable[Key], buffer_bytes: Mapping[int, float]) -> NDArray[np.float64]:
        """Registers per thread that are live at each position."""
        change = np.zeros(self._position + 3)
        for key in keys:
            span, size = self._spans[key], buffer_bytes.get(key[1], 0.0) / 4
            if size and key not in self._temporary:
                used = span.last > 0
                each = size / len(used)
                np.add.at(change, span.first[used], each)
                np.add.at(change, span.last[used] + 1, -each)
        return change.cumsum()


def _span(uses: list[tuple[int, Elements]]) -> _Span:
    """The span of each element of a buffer from its uses in order."""
    sizes = {len(elements) for _, elements in uses if elements is not None}
    count = sizes.pop() if len(sizes) == 1 else 1  # views with other elements: all elements at once
    first, last = np.full(count, _NEVER), np.zeros(count, np.int64)
    for position, elements in uses:
        some = elements if elements is not None and len(elements) == count else slice(None)
        first[some] = np.minimum(first[some], position)
        last[some] = np.maximum(last[some], position)
    return _Span(first, last)
