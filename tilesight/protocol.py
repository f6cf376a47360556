"""Measuring protocols: under which conditions a time is taken, and how much is spent on knowing it well.

The conditions (`Protocol.key`) are part of a measurement's identity: times that were taken under other ones are never
compared. The effort (how many samples, how precise) is recorded with a measurement and is no part of it.

Clocks are not locked: that needs rights which users rarely have. On an H200 that is kept busy with matrix products the power
limit lowers the clock after some 30 ms, in steps, and a product then takes 7 to 12 % longer; what is measured around that step
depends on chance. So a protocol says on which side of it it stays. What the clock was is seen beside the samples
(`conditions.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from .errors import InputError, UnknownNameError
from .target import Target

VERSION = 2  # of what the conditions mean: raise it, and times measured before are not taken for today's

# What a user can ask for, and why there are two.
PROTOCOLS: Mapping[str, str] = {
    "default": (
        "each launch alone, with a cold cache and at the clock of a chip that rests in between: the last-level cache is overwritten "
        "before each sample, as other kernels do between two calls of this one; what is measured in a moment and again the next day"
    ),
    "serving": (
        "launches back to back in a CUDA graph, with a warm cache and at the clock that the power limit leaves to a chip that is always "
        "busy, as in a serving engine: launch overhead overlaps, and inputs that fit the cache stay there"
    ),
}

# How launches and caches may go together: with each pair stands how a sample is taken.
_SAMPLES: Mapping[tuple[str, str], str] = {
    ("cold", "eager"): "GPU: one launch between two events; before it at least twice the last-level cache is written",
    ("warm", "graph"): "GPU: one replay of a graph of launches, long enough to be measured, after another replay",
    ("warm", "call"): "processor: wall time of calls from one thread, as many as make a measurable stretch; there is no graph",
}


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a kernel is measured. Without arguments it is the default of GPUs."""

    name: str = "default"  # for people; what counts is the key
    # the conditions
    l2: str = "cold"  # cold | warm
    launch: str = "eager"  # eager | graph | call
    burst_ms: float = 15.0  # GPU: after so much work the device rests
    rest: float = 3.0  # for so many times as long; 0: it is kept busy
    inputs: str = "random"  # drawn by `Operator.inputs` as in real use, from a seed of the session's own
    # Up to so many sets of inputs take turns, where they all fit half of the cache together: only small problems can be
    # lucky with their addresses or values, and larger ones would no longer be warm. The half is for what else goes through.
    input_sets: int = 4
    version: int = VERSION
    # the effort
    warmup_ms: float = 5.0
    min_samples: int = 20
    max_samples: int = 100
    max_ms: float = 300.0  # spent on the samples of one kernel
    precision: float = 0.006  # of the median: half of its 95 % interval, relative, at which sampling stops
    stretch_us: float = 0.0  # launches are repeated within a sample until it is that long
    retakes: int = 8  # turns of a call that are taken again where they were disturbed; on a processor also of one sample
    checks: int = 2  # runs beside the first whose outputs are compared with it bit by bit
    seed: int = 0  # of the inputs; 0: drawn anew by each measuring process, and recorded with what it observed

    def __post_init__(self) -> None:
        if (self.l2, self.launch) not in _SAMPLES:
            known = ", ".join(f"l2={l2} with launch={launch}" for l2, launch in _SAMPLES)
            raise InputError(f"protocol {self.name}: l2={self.l2} with launch={self.launch} cannot be measured; known: {known}")
        if self.input_sets < 1 or self.min_samples < 1 or self.max_samples < self.min_samples:
            raise InputError(
                f"protocol {self.name}: input_sets={self.input_sets}, min_samples={self.min_samples} and "
                f"max_samples={self.max_samples} must be at least 1, the last not below the one before it"
            )

    @staticmethod
    def named(name: str, target: Target) -> Protocol:
        """The protocol of that name for a kind of target, with the effort that ranks candidates. On a processor both names
        mean one thing, with one key: it has no graphs, and its cache is warm. Raises `UnknownNameError`."""
        if name not in PROTOCOLS:
            raise UnknownNameError("protocol", name, PROTOCOLS)
        if not target.is_gpu:
            held = Protocol(name, "warm", "call", burst_ms=0.0, rest=0.0, warmup_ms=10.0)
            return replace(held, min_samples=6, max_samples=50, precision=0.01, stretch_us=1000.0)
        if name == "serving":
            # until the power limit has acted, and samples long enough that the host's part in a replay does not show
            held = Protocol(name, "warm", "graph", burst_ms=0.0, rest=0.0, warmup_ms=100.0)
            return replace(held, min_samples=12, max_samples=60, stretch_us=400.0)
        return Protocol(name)

    def careful(self) -> Protocol:
        """The same conditions with the effort for finalists, and for figures that are reported."""
        return replace(
            self,
            min_samples=2 * self.min_samples,
            max_samples=4 * self.max_samples,
            max_ms=500.0,
            precision=min(self.precision, 0.003),
            checks=8,
        )

    @property
    def key(self) -> str:
        """The conditions in words: measurements are comparable where it is equal."""
        load = f"{self.burst_ms:g} ms rest x{self.rest:g}" if self.rest else "held"
        return f"v{self.version} {self.l2} {self.launch} {load} {self.inputs} x{self.input_sets}"

    @property
    def sample(self) -> str:
        """How one sample is taken, in a sentence."""
        return _SAMPLES[self.l2, self.launch]

    def record(self) -> dict[str, str | int | float | bool]:
        return asdict(self)
