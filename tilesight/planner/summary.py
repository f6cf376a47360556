"""The result of a plan from its final state."""

from __future__ import annotations

import math

import numpy as np

from ..dispatch.table.table_file import DispatchTable
from ..reports.numbers import percent
from .kernel_choice import KernelChoice
from .make_table import rounded
from .pairwise_tests import NO_DIFFERENCE, PairwiseTest
from .plan_measurements import PlanMeasurements
from .plan_options import PlanClock
from .plan_problem import PlanProblem
from .plan_state import PlanState
from .result import PlanResult
from .segments import NEGLIGIBLE_LOSS

MOST_LOSS = 0.13  # expected at any size, above which a plan proposes more kernels and does not ship


def summarize(
    problem: PlanProblem,
    state: PlanState,
    choice: KernelChoice,
    measurements: PlanMeasurements,
    table: DispatchTable,
    clock: PlanClock,
    most_kernels: int,
    messages: tuple[str, ...],
) -> PlanResult:
    """The result of a plan of at most `most_kernels` kernels.

    `messages` are followed by those on slower kernels, on too few kernels and on the budget.
    """
    times, columns = choice.expected(), choice.columns
    rows = {config: row for row, config in enumerate(state.configs)}
    sizes = columns.sizes(state.sizes)
    chosen = [rows[table.choose(size).config] for size in sizes]
    best_us = times.min(axis=0)
    chosen_us = times[chosen, np.arange(len(chosen))]
    known = np.isfinite(best_us) & np.isfinite(chosen_us)
    loss = np.where(known, chosen_us / np.where(known, best_us, 1.0) - 1, 0.0)
    loss = np.where(np.isfinite(loss), loss, 0.0)
    worst = int(loss.argmax())
    expected_worst = float(loss[worst])
    default_us = {}
    for column, size in enumerate(state.sizes):
        default = problem.default(size)
        if default in rows and math.isfinite(us := times[rows[default], len(columns.cells) + column]):
            default_us[size] = rounded(us)
    found = list(messages)
    slower = _sizes_of_faster_defaults(problem, state, measurements, table)
    if slower:
        count = len(table.kernels)
        found.append(
            f"{count} kernels do not serve all sizes as well as the default config of each does; "
            f"it is faster at {', '.join(slower)}"
        )
    if len(table.kernels) == most_kernels and expected_worst > MOST_LOSS:
        more = most_kernels + max(1, most_kernels // 2)
        found.append(
            f"{most_kernels} kernels are expected to lose up to {percent(expected_worst)} at "
            f"{table.vary}={sizes[worst]}: with --kernels {more} the same command chooses again "
            "and recalls what was measured"
        )
    is_cut = state.predictions.is_cut or measurements.is_cut or clock.is_over(PlanClock.MEASURE)
    if is_cut:
        found.append(
            "the time budget ended it early: kernels and losses are those of the configs and sizes that were "
            "examined till then; the same command goes on from here"
        )
    return PlanResult(
        label=problem.label,
        table=table,
        weights=dict(zip(state.sizes, columns.sampled_weights(state.sizes), strict=True)),
        expected_mean=float(loss @ columns.weights(state.sizes)),
        expected_worst=expected_worst,
        default_us=default_us,
        looked_at=len(state.predictions.configs),
        built=state.built_count,
        measured=measurements.measured,
        recalled=measurements.recalled,
        compared=len(measurements.tests),
        seconds=clock.seconds,
        is_cut=is_cut,
        listed={config: state.predictions.known_times(config) for config in state.configs},
        messages=tuple(found),
    )


def _sizes_of_faster_defaults(
    problem: PlanProblem, state: PlanState, measurements: PlanMeasurements, table: DispatchTable
) -> list[str]:
    """Sampled sizes at which the default was measured to be faster than the table's kernel."""
    found = []
    for piece in table.evidence:
        config, default = table.kernels[piece.kernel], problem.default(piece.size)
        default_us = None if default is None else state.measured_us(default, piece.size)
        if default is None or default_us is None or not piece.chosen_measured or state.is_excluded(default):
            continue
        test = measurements.tests.get(PairwiseTest(piece.size, config, default), "")
        slower = piece.chosen_us / default_us - 1
        if default != config and slower > NEGLIGIBLE_LOSS and not test.startswith(NO_DIFFERENCE):
            found.append(f"{problem.vary.dim}={piece.size} (by {100 * slower:.1f} %)")
    return found
