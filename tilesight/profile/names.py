"""What a program calls the tensors, buffers and loops of its kernels. For people: no prediction uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NamedLoop:
    """A loop that moves data from device memory, by the name of its variable.

    Attributes:
        trips: iterations in the whole run of a block, with those of the loops around it; None if they are no
            constants.
        copied: tensors that it copies to shared memory by loads and stores of its threads, which then run
            matrix instructions in the same iteration: nothing is in flight meanwhile.
    """

    variable: str
    trips: float | None
    copied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelNames:
    """The names in one kernel.

    Attributes:
        buffers: of tensors and buffers, by their label in the kernel's profile.
        registers: of each role of the profile, in its order: registers a thread of its local buffers, by
            name, where most of them are live together; the largest first.
        loops: inner ones first.
    """

    buffers: Mapping[str, str] = field(default_factory=dict)
    registers: tuple[Mapping[str, float], ...] = ()
    loops: tuple[NamedLoop, ...] = ()

    def loop(self, trips: float) -> str:
        """The variable of the only loop with that many iterations, or of the only one; "" if unclear."""
        alike = {loop.variable for loop in self.loops if loop.trips == trips}
        alike = alike or {loop.variable for loop in self.loops}
        return alike.pop() if len(alike) == 1 else ""
