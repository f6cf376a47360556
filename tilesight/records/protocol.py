"""Measurement protocols: the conditions under which times are measured, and the effort for their precision.

The conditions (`MeasurementProtocol.key`) are part of a measurement's identity: times under different
conditions are never compared. The effort (number of samples, precision) is recorded with a measurement and is
no part of its identity.

Clocks are not locked, since few users have the rights for that. On an H200 that is busy with matrix products,
the power limit lowers the clock after some 30 ms, in steps, and a product then takes 7 to 12 % longer. Times
around such a step depend on chance, so each protocol stays on one side of it. The clock is recorded beside
the samples (`conditions.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from ..errors import InputError, UnknownNameError
from ..target.spec import Target

VERSION = 2  # of the conditions: raise it when their meaning changes, so that older times are not compared

# protocols by name, with their descriptions
PROTOCOLS: Mapping[str, str] = {
    "default": (
        "single launches with a cold cache, at the clock of a chip that rests in between: the last-level "
        "cache is "
        "overwritten before each sample, as other kernels do between two calls of this one; fast to measure, "
        "and "
        "reproducible from day to day"
    ),
    "serving": (
        "launches back to back in a CUDA graph with a warm cache, at the clock that the power limit allows a "
        "chip that "
        "is always busy, as in a serving engine: launch overhead overlaps, and inputs that fit the cache "
        "stay there"
    ),
}

# legal pairs of cache state and launch mode, with how a sample is taken
_SAMPLES: Mapping[tuple[str, str], str] = {
    ("cold", "eager"): (
        "GPU: one launch between two events; before it at least twice the last-level cache is written"
    ),
    (
        "warm",
        "graph",
    ): "GPU: one replay of a graph of launches, long enough to be measured, after another replay",
    ("warm", "call"): (
        "processor: wall time of enough calls from one thread to be measured; a processor has no graphs"
    ),
}


@dataclass(frozen=True, slots=True)
class MeasurementProtocol:
    """Conditions and effort of measurements. Without arguments it is the default protocol of GPUs."""

    name: str = "default"  # for people; `key` identifies the conditions
    # the conditions
    l2: str = "cold"  # cold | warm
    launch: str = "eager"  # eager | graph | call
    burst_ms: float = 15.0  # GPU: the device rests after this much work
    rest: float = 3.0  # length of a rest in bursts; 0: the device is kept busy
    inputs: str = "random"  # drawn by `Operator.inputs`, from a seed of the session
    # Up to this many sets of inputs take turns, if all fit half of the cache together. Only small problems
    # depend on their addresses or values, and large ones would not stay warm. The other half is for outputs
    # and other data.
    input_sets: int = 4
    version: int = VERSION
    # the effort
    warmup_ms: float = 5.0
    min_samples: int = 20
    max_samples: int = 100
    max_ms: float = 300.0  # for the samples of one kernel
    precision: float = 0.006  # sampling stops when half of the median's 95 % interval is this small, relative
    stretch_us: float = 0.0  # least length of a sample: launches are repeated within it
    retakes: int = 8  # disturbed turns of a call that are repeated; on a processor also repeats of one sample
    checks: int = 2  # further runs whose outputs are compared with those of the first bit by bit
    seed: int = 0  # of the inputs; 0: each measuring process draws one and records it with what it observed

    def __post_init__(self) -> None:
        if (self.l2, self.launch) not in _SAMPLES:
            known = ", ".join(f"l2={l2} with launch={launch}" for l2, launch in _SAMPLES)
            raise InputError(
                f"protocol {self.name}: l2={self.l2} with launch={self.launch} cannot be measured; known: "
                f"{known}"
            )
        if self.input_sets < 1 or self.min_samples < 1 or self.max_samples < self.min_samples:
            raise InputError(
                f"protocol {self.name}: input_sets={self.input_sets}, min_samples={self.min_samples} and "
                f"max_samples={self.max_samples} must be at least 1, the last not below the one before it"
            )

    @staticmethod
    def named(name: str, target: Target) -> MeasurementProtocol:
        """The protocol of that name on a kind of target, with the effort for ranking candidates.

        On a processor both names have the same conditions and one key: warm cache and no graphs.

        Raises:
            UnknownNameError: no protocol has that name.
            InputError: the protocol measures no kernels of several devices.
        """
        if name not in PROTOCOLS:
            raise UnknownNameError("protocol", name, PROTOCOLS)
        if not target.is_gpu:
            held = MeasurementProtocol(name, "warm", "call", burst_ms=0.0, rest=0.0, warmup_ms=10.0)
            return replace(held, min_samples=6, max_samples=50, precision=0.01, stretch_us=1000.0)
        if name == "serving":
            # warm up until the power limit acts; samples so long that the host's part of a replay is
            # negligible
            held = MeasurementProtocol(name, "warm", "graph", burst_ms=0.0, rest=0.0, warmup_ms=100.0)
            held.check_for(target)
            return replace(held, min_samples=12, max_samples=60, stretch_us=400.0)
        return MeasurementProtocol(name)

    def check_for(self, target: Target) -> None:
        """Raises `InputError` if kernels for the target cannot be measured in this way."""
        if self.launch == "graph" and target.levels:
            raise InputError(
                f"protocol {self.name} replays graphs, each on one device, and target {target.name} is "
                f"{target.world}: kernels of several devices are measured with protocol default"
            )

    def careful(self) -> MeasurementProtocol:
        """The same conditions with the effort for finalists and reported times."""
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
        """The conditions as text; measurements of equal keys are comparable."""
        load = f"{self.burst_ms:g} ms rest x{self.rest:g}" if self.rest else "held"
        return f"v{self.version} {self.l2} {self.launch} {load} {self.inputs} x{self.input_sets}"

    @property
    def sample(self) -> str:
        """How one sample is taken, as a sentence."""
        return _SAMPLES[self.l2, self.launch]

    def record(self) -> dict[str, str | int | float | bool]:
        return asdict(self)
