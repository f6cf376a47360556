"""What an explanation is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..costmodel.headroom import Limits
from ..costmodel.hybrid import CORRECTION
from ..space import Config
from ..trial import ORDER_TERM, Prediction

ADDED = ("launch", "fill")  # terms that come before all else
BUSY = "cores and memory"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the threads of one role ask for, summed over a kernel's run. Quantities are per block, by name, with the
    unit in the name; zeros are left out."""

    kernel: int  # number of the kernel in its function
    role: str
    threads: int
    quantities: Mapping[str, float]
    matrix_instructions: Mapping[str, float]  # count per block, by instruction
    unknown_calls: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Use:
    """Predicted busy share of a resource over the kernel's time, 0 .. 1."""

    resource: str
    share: float


@dataclass(frozen=True, slots=True)
class Counted:
    """A hardware counter beside what the model expects of it. Shares are 0 .. 1, the others amounts of the whole launch."""

    name: str
    predicted: float
    counted: float
    is_share: bool


@dataclass(frozen=True, slots=True)
class View:
    """`measured_us` is None where it was not measured. `launch` has figures of the launch: grid, blocks, threads and shared
    memory per block, pipeline depth, blocks a core holds. `findings` are sentences: what holds it back, largest first;
    `doubts` say why the prediction may be wrong. `is_training_row`: the learned model was trained on what was measured."""

    config: Config | None
    prediction: Prediction
    measured_us: float | None
    launch: Mapping[str, float]
    asked: tuple[Asked, ...]
    limits: Limits
    counters: tuple[Counted, ...] = ()
    compiled: Mapping[str, float] = field(default_factory=dict)  # the compiler's own figures: registers, spill_bytes, smem_bytes
    is_training_row: bool = False
    findings: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def uses(self) -> tuple[Use, ...]:
        """Resources, most used first."""
        return tuple(Use(r, s) for r, s in sorted(self.prediction.utilization.items(), key=lambda item: -item[1]))

    @property
    def sum_us(self) -> dict[str, float]:
        """What adds up to the predicted time. The model takes cores and memory for busy side by side, so that they are one
        part here; `busy_us` has what it is made of."""
        terms, latency_us = self.prediction.terms_us, self.prediction.latency_us
        before = {name: terms[name] for name in ADDED if name in terms}
        after = {name: terms[name] for name in (CORRECTION,) if name in terms}
        return {**before, BUSY: latency_us - sum(before.values()) - sum(after.values()), **after}

    @property
    def busy_us(self) -> dict[str, float]:
        """Terms that go on side by side within the predicted time, or contain one another: they do not add up."""
        return {name: us for name, us in self.prediction.terms_us.items() if name not in (*ADDED, CORRECTION, ORDER_TERM)}

    @property
    def limit(self) -> str:
        """What costs most time: without it the kernel would gain most."""
        found = self.limits.limits
        return found[0].name if found and found[0].gain > 0 else self.prediction.limiting

    @property
    def second_limit(self) -> str | None:
        """What limits once the first is gone; where the model cannot say, the most used resource beside the first."""
        following = self.limits.next_limit
        if following is not None and following.gain > 0:
            return following.name
        return next((u.resource for u in self.uses if u.resource != self.limit and u.share > 0), None)
