"""Values of an explanation: a candidate's requested work, resource use, counters and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..costmodel.analytical.headroom import Limits
from ..costmodel.learned.hybrid import CORRECTION
from ..problem.space import Config
from ..records.trial import ORDER_TERM, Prediction

SEQUENTIAL_TERMS = ("launch", "fill")  # terms that precede all others
BUSY = "cores and memory"


@dataclass(frozen=True, slots=True)
class RequestedWork:
    """Work of the threads of one role, summed over a kernel's run.

    Attributes:
        kernel: number of the kernel in its function.
        quantities: amounts per block by name, with the unit in the name; zeros are left out.
        matrix_instructions: number per block, by instruction.
        unknown_calls: number per block of the calls that the profile reader does not know.
        registers: per thread, of its local buffers by name where most of them are live, the largest first;
            empty if the names are not known.
    """

    kernel: int
    role: str
    threads: int
    quantities: Mapping[str, float]
    matrix_instructions: Mapping[str, float]
    unknown_calls: Mapping[str, float]
    registers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BufferWork:
    """What one kernel reads of a tensor or shared buffer, or what it writes to it, in a whole launch.

    Attributes:
        kernel: number of the kernel in its function.
        name: in the program; "" if it is not known.
        space: global | shared | local.
        is_write: it is written.
        transactions: 32-byte sectors in global memory, wavefronts in shared memory, by loads and stores of
            threads.
        least_transactions: those that its bytes need at least.
        l2_bytes: between the cores and L2; 0 for a shared buffer.
        dram_bytes: between L2 and device memory.
        distinct_bytes: of the part that is accessed, each byte once.
    """

    kernel: int
    name: str
    space: str
    is_write: bool
    transactions: float = 0.0
    least_transactions: float = 0.0
    l2_bytes: float = 0.0
    dram_bytes: float = 0.0
    distinct_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Predicted busy share of a resource over the kernel's time, 0 .. 1."""

    resource: str
    share: float


@dataclass(frozen=True, slots=True)
class CounterComparison:
    """A hardware counter and its predicted value: shares 0 .. 1, or amounts of the whole launch."""

    name: str
    predicted: float
    counted: float
    is_share: bool


@dataclass(frozen=True, slots=True)
class CandidateView:
    """A candidate as the model sees it.

    Attributes:
        measured_us: None if it was not measured.
        launch: figures of the launch: grid, blocks, threads and shared memory per block, pipeline depth,
            blocks per core.
        requested: work of each role of each kernel.
        limits: predicted times without each limit.
        counters: hardware counters with their predicted values.
        compiled: the compiler's figures: registers, spill_bytes, smem_bytes.
        is_training_row: the learned model was trained on the measured row.
        buffers: what it reads and writes, by tensor and shared buffer.
        findings: sentences on what costs time, the largest first.
        caveats: sentences on why the prediction may be wrong.
    """

    config: Config | None
    prediction: Prediction
    measured_us: float | None
    launch: Mapping[str, float]
    requested: tuple[RequestedWork, ...]
    limits: Limits
    counters: tuple[CounterComparison, ...] = ()
    compiled: Mapping[str, float] = field(default_factory=dict)
    is_training_row: bool = False
    buffers: tuple[BufferWork, ...] = ()
    findings: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def uses(self) -> tuple[ResourceUse, ...]:
        """Resources, most used first."""
        return tuple(
            ResourceUse(r, s)
            for r, s in sorted(self.prediction.utilization.items(), key=lambda item: -item[1])
        )

    @property
    def sum_us(self) -> dict[str, float]:
        """Terms whose sum is the predicted time.

        Cores and memory are busy at the same time, so they are one term here; `busy_us` has its parts.
        """
        terms, latency_us = self.prediction.terms_us, self.prediction.latency_us
        before = {name: terms[name] for name in SEQUENTIAL_TERMS if name in terms}
        after = {name: terms[name] for name in (CORRECTION,) if name in terms}
        return {**before, BUSY: latency_us - sum(before.values()) - sum(after.values()), **after}

    @property
    def busy_us(self) -> dict[str, float]:
        """Terms that overlap or contain one another within the predicted time, so they do not add up."""
        return {
            name: us
            for name, us in self.prediction.terms_us.items()
            if name not in (*SEQUENTIAL_TERMS, CORRECTION, ORDER_TERM)
        }

    @property
    def largest_cost(self) -> str:
        """The resource without whose cost the kernel would gain most; it need not be the one that limits it.

        `Prediction.limiting` is the resource that sets the pace: it is busy longest.
        """
        found = self.limits.limits
        return found[0].name if found and found[0].gain > 0 else self.prediction.limiting

    @property
    def second_cost(self) -> str | None:
        """The largest cost once the first is gone; if unknown, the most used resource beside the first."""
        following = self.limits.next_limit
        if following is not None and following.gain > 0:
            return following.name
        return next((u.resource for u in self.uses if u.resource != self.largest_cost and u.share > 0), None)
