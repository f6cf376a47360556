"""Registers that a role's local buffers need at their peak, from where each is first and last touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class LiveRanges:
    """Positions in program order at which local buffers are touched, and the loops around them."""

    _spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    _loops: list[tuple[int, int]] = field(default_factory=list)
    _position: int = 0

    def touch(self, buffer: int) -> None:
        self._position += 1
        first, _ = self._spans.get(buffer, (self._position, 0))
        self._spans[buffer] = (first, self._position)

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
            for buffer, (first, last) in self._spans.items():
                touches = first <= end and last >= start
                if touches and (first < start or last > end):
                    self._spans[buffer] = (min(first, start), max(last, end))

    def _hand_over(self, start: int, end: int) -> None:
        """A loop in which one buffer dies while another is filled from it needs the larger of them, not both: let the
        new one begin where the old one ends."""
        inside = {b: span for b, span in self._spans.items() if span[0] <= end and span[1] >= start}
        dying = [b for b, (first, last) in inside.items() if first < start and last <= end]
        born = [b for b, (first, last) in inside.items() if first >= start and last > end]
        for buffer in born[: len(dying)]:
            self._spans[buffer] = (end + 1, self._spans[buffer][1])

    def peak_registers(self, buffer_bytes: Mapping[int, float]) -> float:
        """Most 32-bit registers per thread that are live together; `buffer_bytes` are per thread."""
        events: list[tuple[int, float]] = []
        for buffer, (first, last) in self._spans.items():
            size = buffer_bytes.get(buffer, 0.0) / 4
            events += [(first, size), (last + 1, -size)]
        peak = current = 0.0
        for _, change in sorted(events):
            current += change
            peak = max(peak, current)
        return peak
