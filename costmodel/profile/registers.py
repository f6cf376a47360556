"""Registers that a role's local buffers need at their peak, from where each is first and last touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

Key = tuple[int, int]  # role, buffer


@dataclass
class LiveRanges:
    """Positions in program order at which each role touches local buffers, and the loops around them."""

    _spans: dict[Key, tuple[int, int]] = field(default_factory=dict)
    _loops: list[tuple[int, int]] = field(default_factory=list)
    _position: int = 0

    def touch(self, role: int, buffer: int) -> None:
        self._position += 1
        first, _ = self._spans.get((role, buffer), (self._position, 0))
        self._spans[role, buffer] = (first, self._position)

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Everything touched inside is touched in a loop."""
        self._position += 1
        start = self._position
        yield
        self._position += 1
        self._loops.append((start, self._position))

    def finish(self) -> None:
        """Stretch each span over the loops that it enters or leaves: what lives before or after a loop and inside it
        must survive the whole loop."""
        for start, end in self._loops:
            self._hand_over(start, end)
            for key, (first, last) in self._spans.items():
                touches = first <= end and last >= start
                if touches and (first < start or last > end):
                    self._spans[key] = (min(first, start), max(last, end))

    def _hand_over(self, start: int, end: int) -> None:
        """A loop in which one buffer dies while another is filled from it needs the larger of them, not both: let the
        new one begin where the old one ends."""
        inside = {key: span for key, span in self._spans.items() if span[0] <= end and span[1] >= start}
        dying = [key for key, (first, last) in inside.items() if first < start and last <= end]
        born = [key for key, (first, last) in inside.items() if first >= start and last > end]
        for role in {key[0] for key in dying}:
            mine = [key for key in born if key[0] == role]
            for key in mine[: sum(1 for k in dying if k[0] == role)]:
                self._spans[key] = (end + 1, self._spans[key][1])

    def peak_registers(self, role: int, buffer_bytes: Mapping[int, float]) -> float:
        """Most 32-bit registers per thread that are live together; `buffer_bytes` are per thread."""
        events: list[tuple[int, float]] = []
        for (owner, buffer), (first, last) in self._spans.items():
            if owner == role:
                size = buffer_bytes.get(buffer, 0.0) / 4
                events += [(first, size), (last + 1, -size)]
        peak = current = 0.0
        for _, change in sorted(events):
            current += change
            peak = max(peak, current)
        return peak
