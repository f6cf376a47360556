"""Explanations as data: what a candidate's IR asks of the hardware, what limits it, and why it loses to a better one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .profile import KernelProfile, Role, Space
from .space import Config, Value
from .target import Target
from .trial import Prediction
from .workload import Workload

SAME = 0.02  # quantities that differ by less than this share are not worth a line


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
class View:
    """One candidate as the model sees it. `measured_us` is None where it was not measured. `launch` has figures of the
    launch: grid, blocks, threads and shared memory per block, pipeline depth, blocks a core holds."""

    config: Config | None
    prediction: Prediction
    measured_us: float | None
    launch: Mapping[str, float]
    asked: tuple[Asked, ...]

    @property
    def uses(self) -> tuple[Use, ...]:
        """Resources, most used first."""
        return tuple(Use(r, s) for r, s in sorted(self.prediction.utilization.items(), key=lambda item: -item[1]))

    @property
    def second_limit(self) -> str | None:
        """The most used resource beside the limiting one."""
        return next((u.resource for u in self.uses if u.resource != self.prediction.limiting and u.share > 0), None)


@dataclass(frozen=True, slots=True)
class Difference:
    """The same quantity of two candidates; `kind` is parameter, term (microseconds), launch or quantity (whole grid)."""

    kind: str
    name: str
    this: Value | float | None
    best: Value | float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """`best` is None where the candidate is itself the best that is known. `differences` go by kind, largest first."""

    workload: Workload
    target: Target
    this: View
    best: View | None
    differences: tuple[Difference, ...]


def view(
    kernels: Sequence[KernelProfile], prediction: Prediction, target: Target, config: Config | None = None, measured_us: float | None = None
) -> View:
    asked = tuple(_asked(number, role) for number, kernel in enumerate(kernels) for role in kernel.roles)
    return View(config, prediction, measured_us, _facts(kernels, target), asked)


def explain(workload: Workload, target: Target, this: View, best: View | None) -> Explanation:
    """`this`, and what sets it apart from `best`."""
    if best is None or best.config == this.config:
        return Explanation(workload, target, this, None, ())
    return Explanation(workload, target, this, best, tuple(_differences(this, best)))


def _differences(this: View, best: View) -> list[Difference]:
    a, b = dict(this.config or {}), dict(best.config or {})
    found = [Difference("parameter", name, a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)]
    tables = (
        ("term", this.prediction.terms_us, best.prediction.terms_us),
        ("launch", this.launch, best.launch),
        ("quantity", _whole(this), _whole(best)),
    )
    for kind, of_this, of_best in tables:
        pairs = [(name, of_this.get(name, 0.0), of_best.get(name, 0.0)) for name in {**of_this, **of_best}]
        if kind == "term":
            pairs.sort(key=lambda pair: -abs(pair[1] - pair[2]))  # microseconds weigh by their amount
        else:
            pairs.sort(key=lambda pair: -abs(pair[1] - pair[2]) / max(pair[1], pair[2], 1e-9))
        found += [Difference(kind, name, x, y) for name, x, y in pairs if abs(x - y) > SAME * max(abs(x), abs(y))]
    return found


def _whole(side: View) -> dict[str, float]:
    """Quantities of all roles over the whole grid: blocks of different size become comparable."""
    total: dict[str, float] = defaultdict(float)
    for asked in side.asked:
        for name, amount in asked.quantities.items():
            total[name] += amount * side.launch["blocks"]
    return total


def _facts(kernels: Sequence[KernelProfile], target: Target) -> dict[str, float]:
    facts: dict[str, float] = {"kernels": len(kernels)}
    largest = max(kernels, key=lambda kernel: kernel.blocks)
    facts |= {"blocks": largest.blocks, "threads_per_block": largest.block_threads, "shared_bytes_per_block": largest.shared_bytes}
    facts["pipeline_depth"] = max((p.pipeline_depth for r in largest.roles for p in r.phases if p.is_loop), default=1)
    if target.is_gpu:
        from .costmodel.occupancy import occupancy

        found = occupancy(largest, target)
        facts["registers_per_thread"] = found.registers
        facts["blocks_per_core"] = found.blocks
        facts["waves"] = -(-largest.blocks // max(1, found.blocks * target.int("core.count")))
    return facts


def _asked(number: int, role: Role) -> Asked:
    total: dict[str, float] = defaultdict(float)
    instructions: dict[str, float] = defaultdict(float)
    unknown: dict[str, float] = defaultdict(float)
    for phase in role.phases:
        trips, work = phase.trips.mean, phase.work
        for matrix in work.matrix:
            instructions[matrix.instruction] += trips * matrix.count
            total["matrix_flops"] += trips * matrix.count * matrix.flops
            total["matrix_shared_bytes"] += trips * matrix.count * matrix.shared_bytes
        for access in work.accesses:
            way = "write" if access.write else "read"
            total[f"{access.space.value}_{way}_bytes"] += trips * access.bytes
            unit = {Space.GLOBAL: "global_sectors", Space.SHARED: "shared_wavefronts"}.get(access.space)
            if unit:
                total[unit] += trips * access.transactions
        for name in ("vector_ops", "integer_ops", "convert_ops", "special_ops", "shuffles", "block_syncs", "barrier_waits", "matrix_waits"):
            total[name] += trips * getattr(work, name)
        for name, count in work.unknown.items():
            unknown[name] += trips * count
    return Asked(number, role.name, role.threads, {n: float(v) for n, v in total.items() if v}, dict(instructions), dict(unknown))
