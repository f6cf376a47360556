"""The time in which a device sends bytes to its peers, on one level of a target."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...errors import InputError
from ...target.fields import Figure
from ...target.network import MECHANISMS, Level


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

    def gb_per_s(self, mechanism: str, cores: int | None = None) -> float:
        """The bandwidth at which one device sends or fetches long transfers.

        Args:
            mechanism: A key of `MECHANISMS`.
            cores: Cores that move data; None: all cores of the device.

        Raises:
            InputError: There is no such mechanism, or the target lacks its figures.
        """
        if mechanism not in MECHANISMS:
            raise InputError(f"unknown mechanism '{mechanism}'; known: {', '.join(MECHANISMS)}")
        known = [name for name in MECHANISMS if f"network.{name}.gb_per_s" in self.level.figures]
        other = f"choose another mechanism ({', '.join(known) or 'this level has none'})"
        total = self.required(f"network.{mechanism}.gb_per_s", other)
        if cores is None:
            return total
        if cores < 1:
            raise InputError(f"cores={cores} must be at least 1")
        if mechanism == "copy_engine":
            raise InputError("mechanism 'copy_engine' uses no cores: leave the number of cores out")
        return min(total, cores * self.required(f"network.{mechanism}.core_gb_per_s", "or use all cores"))

    def transfer_us(self, size_bytes: float, mechanism: str, cores: int | None = None) -> float:
        """The time of one transfer: its bytes, and those that the link could move while it starts and ends.

        Without a figure for the size at half bandwidth, a transfer starts and ends in the time of a flag.
        """
        rate = self.gb_per_s(mechanism, cores) * 1e3  # bytes/us
        half = self.figure(f"network.{mechanism}.half_bytes")
        return size_bytes / rate + (self.flag_us if half is None else half / rate)


def hops(topology: str, ranks: int) -> float:
    """The mean number of links between two of `ranks` parts.

    Bytes of exchanges between all parts use so many links each, and so much of the bandwidth of all parts.
    """
    if topology == "switch" or ranks <= 2:
        return 1.0
    if topology == "ring":
        return sum(min(step, ranks - step) for step in range(1, ranks)) / (ranks - 1)
    side = math.sqrt(ranks)  # of a mesh; two random columns are (side^2 - 1) / (3 side) apart, rows as well
    return max(1.0, 2 * (side * side - 1) / (3 * side) * ranks / (ranks - 1))
