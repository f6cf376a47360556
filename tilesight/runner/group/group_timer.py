"""Times calls of several GPUs: the ranks begin together, and the slowest one counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..timers import Call, Stretch, Timer, turn_order
from .ranks import GpuRanks


class GroupTimer(Timer):
    """Single launches on all GPUs of a group, with a cold cache.

    Each sample begins behind a barrier on the devices, which opens when the host has launched the call on all
    of them. A rank's time is that between two events around its part of the call.
    """

    def __init__(self, ranks: GpuRanks, flush_bytes: int, burst_ms: float = 0.0, rest: float = 0.0) -> None:
        """Make a timer.

        Args:
            ranks: The GPUs.
            flush_bytes: Written on each before each sample, at least twice the size of the last-level cache.
            burst_ms: Work after which the devices rest.
            rest: Duration of a rest, relative to the work before it; 0: they never rest.
        """
        import torch

        self._torch: Any = torch
        self._ranks = ranks
        self._burst_ms, self._rest, self._busy_ms = burst_ms, rest, 0.0
        self._flushed = [
            torch.empty(flush_bytes, dtype=torch.int8, device=device) for device in ranks.devices
        ]

    def synchronize(self) -> None:
        self._ranks.synchronize()

    def stretch(self, call: Call) -> Stretch:
        return Stretch(call)

    def turns(
        self, stretches: Sequence[Stretch], count: int, meanwhile: Call | None = None
    ) -> list[tuple[float, ...]]:
        rows = [[self._events() for _ in stretches] for _ in range(count)]
        for turn, row in enumerate(rows):
            for index in turn_order(len(stretches), turn):
                if self._rest and self._busy_ms >= self._burst_ms:
                    self.synchronize()
                    self.rest(self._busy_ms)
                self._sample(stretches[index], row[index])
        if meanwhile is not None:
            meanwhile()
        self.synchronize()
        return [
            tuple(
                max(begin.elapsed_time(end) for begin, end in events) * 1e3 / stretch.launches
                for events, stretch in zip(row, stretches, strict=True)
            )
            for row in rows
        ]

    def rest(self, busy_ms: float) -> None:
        if self._rest:
            time.sleep(self._rest * busy_ms / 1e3)
            self._busy_ms = 0.0

    def _sample(self, stretch: Stretch, events: Sequence[tuple[Any, Any]]) -> None:
        streams = [self._torch.cuda.current_stream(device) for device in self._ranks.devices]
        for flushed in self._flushed:
            flushed.zero_()
        self._ranks.begin_start()
        try:
            for stream, (begin, _) in zip(streams, events, strict=True):
                begin.record(stream)
            stretch.run()
            for stream, (_, end) in zip(streams, events, strict=True):
                end.record(stream)
        finally:
            self._ranks.end_start()
        self._busy_ms += stretch.busy_ms

    def _events(self) -> list[tuple[Any, Any]]:
        event = self._torch.cuda.Event
        return [(event(enable_timing=True), event(enable_timing=True)) for _ in self._ranks.devices]
