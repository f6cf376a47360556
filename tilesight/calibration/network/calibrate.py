"""Calibrates the network of a target of several devices: runs the steps on all of them, makes the target."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from ...builder.build import build_kernel
from ...errors import InputError, ToolchainError
from ...kernels import template_for
from ...machine.devices import Device
from ...problem.candidate import Candidate
from ...settings import load_settings
from ...target.network import MECHANISMS
from ...target.spec import Target
from ...workers import Done, WorkerPool
from ..calibration import (
    Calibration,
    Progress,
    alone_on_device,
    calibration_of,
    check_kind,
    check_name,
    compile_probes,
)
from ..readings import Reading
from .device import MOST_RANKS, RankSetup, time_steps
from .figures import Rows, findings, unsettled_steps
from .ranks import Collected, RankLimits, run_ranks
from .steps import Kind, NetworkStep, Times, joined, plan

PRODUCT = "m=8192,n=8192,k=4096"
TOTAL_S, BUILD_S = 110.0, 60.0  # of building and measuring together; of building
REPEATS, MORE_SAMPLES, REPEAT_S = 2, 4, 30.0  # rounds; further samples for each; the least time for a round
Row = tuple[Times, ...]
Observer = Callable[[NetworkStep, Row], None]
# runs steps, and hands on a row when all ranks have started, and one for each step
Runner = Callable[[tuple[NetworkStep, ...], RankLimits, Callable[[Row], None]], Collected]


@dataclass(frozen=True, slots=True)
class Measured:
    """What the steps gave.

    Attributes:
        rows: The times of all ranks, by step.
        notes: Faults, and what was not measured because of them.
        library: Name and version of the vendor's library.
    """

    rows: dict[NetworkStep, Row]
    notes: tuple[str, ...]
    library: str = ""


def check_network(base: Target) -> None:
    """Raise `InputError` for a target whose network cannot be calibrated."""
    check_kind(base.device_target)
    if len(base.levels) != 1:
        inner = "; describe and calibrate its hosts by themselves" if base.levels else ""
        raise InputError(f"target {base.name} is not the devices of one host{inner}")
    if not 2 <= base.world <= MOST_RANKS:
        raise InputError(f"target {base.name} has {base.world} devices; 2 to {MOST_RANKS} can be calibrated")


def calibrate_network(
    base: Target,
    devices: Sequence[Device],
    name: str,
    progress: Progress | None = None,
    observe: Observer | None = None,
    runner: Runner | None = None,
) -> Calibration:
    """Measure the network between `devices`, in less than two minutes, with their locks held.

    Steps whose samples do not settle a figure are repeated with more samples, by new processes, as long as
    there is time. What they do not settle then is left out, and a note says so.

    Args:
        base: The target to calibrate: several devices of one host.
        devices: As many of its devices.
        name: Name of the new target.
        progress: Receives the title of each step.
        observe: Receives the times of each step as soon as all ranks have sent them.
        runner: Runs steps; by default a process on each device.

    Raises:
        InputError: The name is taken, or the target is not of that kind.
        ToolchainError: The compiler, torch or the driver is missing or fails, or nothing could be measured.
    """
    check_name(name)
    check_network(base)
    report_step = progress or (lambda _: None)
    chip = base.device_target
    steps = plan(chip.int("core.count"), base.world, chip.arch.startswith("sm_9"))
    notes: list[str] = []
    left_s = TOTAL_S
    with ExitStack() as locks:
        if runner is None:
            begin = time.monotonic()
            report_step("building the probes")
            code = compile_probes(chip, __package__, "network_probes.cu")
            product = _build_product(chip)
            if isinstance(product, str):
                notes.append(f"a product beside pushes: not measured, {product}")
                steps = [step for step in steps if step.kind is not Kind.PRODUCT]
            left_s -= time.monotonic() - begin  # waiting for other users of the devices does not count
            for device in sorted(devices, key=lambda one: one.uuid):  # the same order in all processes
                locks.enter_context(alone_on_device(device.uuid, report_step))
            kernel = None if isinstance(product, str) else product
            runner = partial(_run, tuple(devices), code, kernel)
        observer = observe or (lambda *_: None)
        deadline = time.monotonic() + left_s
        level = base.levels[0].name
        measured = measure(steps, runner, report_step, observer, left_s)
        measured = repeated(
            measured,
            lambda rows: unsettled_steps(findings(rows, level)),
            partial(measure, runner=runner, report_step=report_step, observe=observer),
            deadline,
        )
    found = findings(measured.rows, level, measured.library)
    notes += [*measured.notes, *(one.refusal for one in found if one.refusal)]
    settled = _with_partner([one.reading for one in found if not one.refusal], base)
    if not settled:
        raise ToolchainError(f"calibration of {base.name}: nothing was measured; {'; '.join(notes)}")
    result = calibration_of(base, devices[0], name, settled, notes)
    return replace(result, superseded=superseded(base, [r.path for r in result.readings]))


def measure(
    steps: Sequence[NetworkStep],
    runner: Runner,
    report_step: Progress,
    observe: Observer,
    total_s: float,
) -> Measured:
    """The times of all steps.

    A fault costs the rest of the steps with the title of the step that failed; the others continue with new
    processes.
    """
    rows: dict[NetworkStep, Row] = {}
    notes: list[str] = []
    left = tuple(steps)
    deadline = time.monotonic() + total_s
    library = ""
    titles: list[str] = []

    def begun(title: str) -> None:
        if title not in titles:
            titles.append(title)
            report_step(title)

    while left:
        now = left
        received: list[Row] = []

        def take(row: Row, now: tuple[NetworkStep, ...] = now, received: list[Row] = received) -> None:
            received.append(row)
            done = len(received) - 1  # the first row says that all ranks have started
            if done:
                rows[now[done - 1]] = row
                observe(now[done - 1], row)
            if done < len(now):
                begun(now[done].title)

        report_step("starting a process on each device")
        collected = runner(now, RankLimits(total_s=max(1.0, deadline - time.monotonic())), take)
        left = now[max(0, len(received) - 1) :]
        if not received:
            notes.append(collected.fault)
            break
        library = received[0][0].library
        if not left:
            break
        failed = left[0].title
        notes.append(f"{failed}: not all was measured: {collected.fault}")
        left = tuple(step for step in left if step.title != failed)
        if left and time.monotonic() >= deadline - 5:
            rest = dict.fromkeys(step.title for step in left)
            notes.append(f"not measured for lack of time: {', '.join(rest)}")
            break
    return Measured(rows, tuple(notes), library)


def repeated(
    measured: Measured,
    unsettled: Callable[[Rows], list[NetworkStep]],
    again: Callable[..., Measured],
    deadline: float,
) -> Measured:
    """`measured` with further samples of steps that do not settle a figure.

    Args:
        measured: The first samples.
        unsettled: Finds those steps.
        again: Measures steps: `measure`, but for `steps` and `total_s`.
        deadline: Of all rounds, on the monotonic clock.
    """
    rows, notes = dict(measured.rows), list(measured.notes)
    for _ in range(REPEATS):
        left_s = deadline - time.monotonic()
        wanted = unsettled(rows)
        if not wanted or left_s < REPEAT_S:
            break
        more = {
            replace(step, title=f"more of {step.title}", samples=MORE_SAMPLES * len(rows[step][0].us)): step
            for step in wanted
        }
        found = again(tuple(more), total_s=left_s)
        for step, row in found.rows.items():
            rows[more[step]] = joined(rows[more[step]], row)
        notes += found.notes
    return Measured(rows, tuple(notes), measured.library)


def _with_partner(found: Sequence[Reading], base: Target) -> list[Reading]:
    """`found` without figures that no file may have: those of a mechanism whose bandwidth nobody knows."""
    known = {*base.figures, *(one.path for one in found)}
    mechanisms = tuple(f"{base.levels[0].name}.network.{name}." for name in MECHANISMS)
    return [
        one
        for one in found
        if not one.path.startswith(mechanisms) or f"{one.path.rpartition('.')[0]}.gb_per_s" in known
    ]


def superseded(base: Target, measured: Sequence[str]) -> frozenset[str]:
    """Figures of `base` that contradict a measured one: another way to state the times of a collective."""
    curves = {path.rpartition(".us.")[0] for path in measured if ".us." in path}
    return frozenset(
        path
        for path in base.figures
        if path not in measured and any(path.startswith(f"{curve}.") for curve in curves)
    )


def _run(
    devices: tuple[Device, ...],
    code: bytes,
    product: tuple[Candidate, str, str] | None,
    steps: tuple[NetworkStep, ...],
    limits: RankLimits,
    on_row: Callable[[Row], None],
) -> Collected:
    setup = RankSetup(devices, code, _free_port(), steps, product)
    return run_ranks(time_steps, len(devices), setup, len(steps) + 1, limits, on_row)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def product_candidate(chip: Target) -> Candidate:
    """The product whose slowdown is measured.

    Its blocks do not stay, so that they spread over the cores that are free.
    """
    template = template_for("matmul", chip, "bfloat16")
    workload = template.operator.workload(PRODUCT, "bfloat16")
    config = template.default_config(workload, chip)
    space = template.space(workload, chip)
    values = {key: value for key, value in (config or {}).items() if key not in ("persistent", "schedule")}
    return Candidate(workload, chip, template, next(iter(space.nearest(space.config(values), 1))))


def _build_product(chip: Target) -> tuple[Candidate, str, str] | str:
    """The product with its library and entry, or why it could not be built."""
    candidate = product_candidate(chip)
    with WorkerPool(1, timeout_s=BUILD_S) as pool:
        ((_, outcome),) = pool.run(partial(build_kernel, cache_dir=load_settings().cache_dir), [candidate])
    if not isinstance(outcome, Done):
        return f"its build {type(outcome).__name__.lower()}"
    if outcome.value.artifact is None:
        return outcome.value.failure.message if outcome.value.failure else "it was not built"
    return candidate, outcome.value.artifact, outcome.value.entry
