"""Finds the peak number of registers that the local buffers of a role need, from their live ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

Key = tuple[int, int]  # role, buffer


@dataclass
class LiveRanges:
    """Positions in program order at which each role uses its local buffers, and the loops around them."""

    _spans: dict[Key, tuple[int, int]] = field(default_factory=dict)
    _loops: list[tuple[int, int]] = field(default_factory=list)
    _accumulations: dict[Key, list[int]] = field(default_factory=dict)
    _kept: set[Key] = field(default_factory=set)  # accumulators that live from one iteration to the next
    _branches: int = 0  # around the current position
    _branched: set[Key] = field(default_factory=set)  # buffers that are used in a branch
    _position: int = 0
    _uses: dict[Key, list[int]] = field(default_factory=dict)
    _stores: dict[Key, list[int]] = field(default_factory=dict)
    # the buffer of which each store to a buffer converts the elements; None for other values
    _sources: dict[Key, set[int | None]] = field(default_factory=dict)

    def touch(self, role: int, buffer: int) -> None:
        """Record a use of `buffer` by `role` at the current position."""
        self._position += 1
        key = (role, buffer)
        first, _ = self._spans.get(key, (self._position, 0))
        self._spans[key] = (first, self._position)
        self._uses.setdefault(key, []).append(self._position)
        if self._branches:
            self._branched.add(key)

    def store(self, role: int, buffer: int, converted: int | None = None) -> None:
        """Record a store to `buffer`.

        If the value is an element of another local buffer, converted and not changed otherwise, that is
        `converted`.
        """
        self.touch(role, buffer)
        self._stores.setdefault((role, buffer), []).append(self._position)
        self._sources.setdefault((role, buffer), set()).add(converted)

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

    def finish(self) -> None:
        """Extend each live range over the loops that it enters or leaves.

        A buffer that is used inside a loop and also before or after it is live during the whole loop.
        """
        self._delay_conversions()
        for start, end in self._loops:
            self._hand_over(start, end)
            kept = self._kept_through(start, end)
            for key, (first, last) in self._spans.items():
                touches = first <= end and last >= start
                if touches and (first < start or last > end or key in kept):
                    self._spans[key] = (min(first, start), max(last, end))

    def _delay_conversions(self) -> None:
        """Let a buffer with converted elements of another begin when its elements are needed.

        The compiler converts an element when the other buffer is used for the last time, or changed, if no
        instruction needs it before.
        """
        for (role, buffer), sources in self._sources.items():
            source = next(iter(sources)) if len(sources) == 1 else None
            key = (role, buffer)
            if source is None or key in self._branched or (role, source) not in self._spans:
                continue
            converted = self._stores[key][-1]
            needed = [p for p in self._uses[key] if p > converted]
            if len(needed) + len(self._stores[key]) < len(self._uses[key]):
                continue  # used between two conversions, as if a loop is unrolled
            changed = [p for p in self._changes(role, source) if p > converted]
            begin = min([*needed[:1], *changed[:1], self._spans[role, source][1] + 1])
            if begin > converted and not self._changes_within_loop(role, source, converted, begin):
                self._spans[key] = (begin, self._spans[key][1])

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
        anew = [k for k in self._accumulations if self._spans[k][0] >= start and self._spans[k][1] <= end]
        alone = {role for role in {k[0] for k in anew} if sum(k[0] == role for k in anew) == 1}
        return {key for key in self._kept - self._branched if key[0] in alone}

    def _hand_over(self, start: int, end: int) -> None:
        """Let a new buffer begin where an old one ends, if a loop uses the old one last and fills the new.

        The loop then needs registers for the larger of the two, not for both.
        """
        inside = {key: span for key, span in self._spans.items() if span[0] <= end and span[1] >= start}
        dying = [key for key, (first, last) in inside.items() if first < start and last <= end]
        born = [key for key, (first, last) in inside.items() if first >= start and last > end]
        for role in {key[0] for key in dying}:
            mine = [key for key in born if key[0] == role]
            for key in mine[: sum(1 for k in dying if k[0] == role)]:
                self._spans[key] = (end + 1, self._spans[key][1])

    def peak_registers(self, role: int, buffer_bytes: Mapping[int, float]) -> float:
        """Peak number of 32-bit registers per thread that are live together.

        `buffer_bytes` are bytes per thread by buffer.
        """
        return self._peak([key for key in self._spans if key[0] == role], buffer_bytes)

    def peak_accumulators(self, role: int, buffer_bytes: Mapping[int, float]) -> float:
        """The same for the buffers in which matrix instructions accumulate."""
        return self._peak([key for key in self._accumulations if key[0] == role], buffer_bytes)

    def _peak(self, keys: Iterable[Key], buffer_bytes: Mapping[int, float]) -> float:
        events: list[tuple[int, float]] = []
        for key in keys:
            (first, last), size = self._spans[key], buffer_bytes.get(key[1], 0.0) / 4
            if size:
                events += [(first, size), (last + 1, -size)]
        peak = current = 0.0
        for _, change in sorted(events):
            current += change
            peak = max(peak, current)
        return peak
