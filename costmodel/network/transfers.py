"""The time in which a device sends bytes to its peers, on one level of a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ...errors import InputError
from ...target.fields import Figure
from ...target.network import ALL_MECHANISMS, PUT, WITHOUT_CORES, Level


@dataclass
class LevelNetwork:
    """The network of a level, seen from a kernel or the library. Notes each figure that is read.

    Attributes:
        level: The level.
        target_name: Name of its target, for messages.
        used: The figures that were read, by path.
    """

    level: Level
    target_name: str
    used: dict[str, Figure] = field(default_factory=dict)

    def figure(self, path: str) -> float | None:
        """The value of the figure at `path`; None if the target lacks it."""
        found = self.level.figures.get(path)
        if found is None:
            return None
        self.used[f"{self.level.name}.{path}"] = found
        return found.value

    def required(self, path: str, way_out: str) -> float:
        """The value of the figure at `path`.

        Raises:
            InputError: The target lacks it.
        """
        value = self.figure(path)
        if value is None:
            raise InputError(
                f"target {self.target_name}: figure '{self.level.name}.{path}' is missing; {way_out}"
            )
        return value

    @property
    def flag_us(self) -> float:
        """From the store of a flag until a peer sees it."""
        return self.required("network.flag_us", "every level has it")

    @property
    def barrier_us(self) -> float:
        """A barrier of all parts. Without a figure one flag, since all flags travel at the same time."""
        given = self.figure("network.barrier_us")
        return self.flag_us if given is None else given

    def way_of(self, mechanism: str) -> str:
        """How a kernel that moves data by `mechanism` does it here: by `put` where that is all there is."""
        has_own = f"network.{mechanism}.gb_per_s" in self.level.figures
        has_put = f"network.{PUT}.gb_per_s" in self.level.figures
        return PUT if has_put and not has_own else mechanism

    def library_us(self, collective: str, sent_bytes: float, ranks: int) -> tuple[float, float] | None:
        """The time of a library's collective on a curve of points: that of next to no bytes, and the rest.

        Between points it is a line; below the first one it is constant; above the last one the bytes cost
        what they cost before it.

        Args:
            collective: One of `COLLECTIVES`.
            sent_bytes: Bytes that each of `ranks` devices sends. The curve is read at the size at which each
                of all devices would send as many.
            ranks: Devices that take part.

        Returns:
            None if the level has no curve.
        """
        paths = self.level.curve(collective)
        if not paths:
            return None
        points = [(size, self.required(path, "")) for size, path in paths.items()]
        if ranks != self.level.devices:
            self._mark_derived(paths.values())
        size = sent_bytes / sent_share(collective, self.level.devices)
        whole = on_curve(points, size)
        fixed = min(points[0][1], whole)
        return fixed, whole - fixed

    def _mark_derived(self, paths: Iterable[str]) -> None:
        for path in (f"{self.level.name}.{path}" for path in paths):
            if self.used[path].provenance == "measured":
                self.used[path] = replace(self.used[path], provenance="derived")

    def gb_per_s(self, mechanism: str, cores: int | None = None, *, one_peer: bool = False) -> float:
        """The bandwidth at which one device sends or fetches long transfers.

        Args:
            mechanism: A key of `ALL_MECHANISMS`.
            cores: Cores that move data; None: all cores of the device.
            one_peer: All bytes go to one peer, or come from it; else to all peers at once.

        Raises:
            InputError: There is no such mechanism, or the target lacks its figures.
        """
        if mechanism not in ALL_MECHANISMS:
            raise InputError(f"unknown mechanism '{mechanism}'; known: {', '.join(ALL_MECHANISMS)}")
        known = [name for name in ALL_MECHANISMS if f"network.{name}.gb_per_s" in self.level.figures]
        other = f"choose another mechanism ({', '.join(known) or 'this level has none'})"
        total = self.required(f"network.{mechanism}.gb_per_s", other)
        if one_peer:
            total = self.figure(f"network.{mechanism}.peer_gb_per_s") or total
        if cores is None:
            return total
        if cores < 1:
            raise InputError(f"cores={cores} must be at least 1")
        if mechanism == PUT:
            return total  # a core starts it, and the card moves the bytes
        if mechanism in WITHOUT_CORES:
            raise InputError(f"mechanism '{mechanism}' uses no cores: leave the number of cores out")
        return min(total, cores * self.required(f"network.{mechanism}.core_gb_per_s", "or use all cores"))

    def transfer_us(
        self, size_bytes: float, mechanism: str, cores: int | None = None, *, one_peer: bool = False
    ) -> float:
        """The time of one transfer: its bytes, and those that the link could move while it starts and ends.

        Without a figure for the size at half bandwidth, a transfer starts and ends in the time of a flag.
        `mechanism`, `cores` and `one_peer` are those of `gb_per_s`.
        """
        rate = self.gb_per_s(mechanism, cores, one_peer=one_peer) * 1e3  # bytes/us
        half = self.figure(f"network.{mechanism}.half_bytes")
        return size_bytes / rate + (self.flag_us if half is None else half / rate)


def sent_share(collective: str, ranks: int) -> float:
    """Bytes that each of `ranks` devices sends in a ring, over those of the whole tensor."""
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def on_curve(points: Sequence[tuple[float, float]], size: float) -> float:
    """The time at `size` between `points` of (size, time)."""
    if size <= points[0][0]:
        return points[0][1]
    (before, low), (after, high) = next(
        (pair for pair in pairwise(points) if size <= pair[1][0]), (points[-2], points[-1])
    )
    slope = (high - low) / (after - before)
    if size > after:
        slope = max(slope, 0.0)  # noise must not make more bytes faster
        return high + slope * (size - after)
    return low + slope * (size - before)


def hops(topology: str, ranks: int) -> float:
    """The mean number of links between two of `ranks` parts.

    Bytes of exchanges between all parts use so many links each, and so much of the bandwidth of all parts.
    """
    if topology in ("switch", "rails") or ranks <= 2:
        return 1.0
    if topology == "ring":
        return sum(min(step, ranks - step) for step in range(1, ranks)) / (ranks - 1)
    side = math.sqrt(ranks)  # of a mesh; two random columns are (side^2 - 1) / (3 side) apart, rows as well
    return max(1.0, 2 * (side * side - 1) / (3 * side) * ranks / (ranks - 1))
