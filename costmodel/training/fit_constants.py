"""Fits the constants of the analytical model to measured kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analytical.analytical_model import AnalyticalModel
from ..analytical.constants import DEFAULT, Constants
from .measured import MeasuredRow, codes

# range of each constant, within which it keeps its meaning
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "overlap_norm": (3.0, 16.0),
        "memory_norm": (2.0, 10.0),
        "streaming_norm": (
            4.5,
            10.0,
        ),  # lower values fit times slightly better, but order memory-bound kernels worse
        "arithmetic_norm": (1.2, 8.0),
        "barrier_wait_cycles": (20.0, 150.0),
        "matrix_drain_cycles": (10.0, 250.0),
        "contention": (0.2, 1.6),
        "shuffle_cycles": (1.0, 40.0),
        "rewrite_cycles": (20.0, 250.0),
        # experiments/copy_latency: 75 for a thread that only waits, 1.2 to 1.5 times what a load's miss adds
        "copy_start_cycles": (50.0, 300.0),
        "copy_miss_factor": (1.0, 2.0),
        "warp_issue_share": (0.25, 1.0),
        "bulk_copy_share": (0.1, 1.1),
        "copy_row_cycles": (0.5, 3.0),
        "outside_row_cycles": (0.05, 8.0),
        "operand_share": (0.3, 1.1),
        "block_cycles": (50.0, 1500.0),
        "dispatch_cycles": (0.5, 2.5),
        "dram_ramp": (0.3, 6.0),
        "load_cycles": (2.0, 60.0),
        "core_l2_bytes_per_cycle": (40.0, 122.0),
        "kept_share": (0.05, 1.0),
        "modified_share": (0.1, 0.9),
        "drift_share": (0.01, 2.0),
    }
)
# Round figures of the right magnitude, which depend on no measured kernel: a fit is drawn towards them, and
# held-out kernels are judged with them, since the shipped constants may have been fitted to these.
ROUGH = Constants(
    overlap_norm=8.0,
    memory_norm=4.0,
    streaming_norm=5.0,
    arithmetic_norm=3.0,
    barrier_wait_cycles=60.0,
    matrix_drain_cycles=100.0,
    contention=0.9,
    shuffle_cycles=5.0,
    rewrite_cycles=60.0,
    copy_start_cycles=150.0,
    copy_miss_factor=1.4,  # experiments/copy_latency: 530 cycles of a copy's miss, 378 of a load's
    warp_issue_share=0.7,
    bulk_copy_share=0.5,
    copy_row_cycles=1.5,
    outside_row_cycles=1.0,
    operand_share=0.8,
    block_cycles=300.0,
    dispatch_cycles=1.0,
    dram_ramp=3.0,
    load_cycles=20.0,
    core_l2_bytes_per_cycle=64.0,
    kept_share=0.5,
    modified_share=0.5,
    drift_share=0.3,
)
MOST_ROWS = 1500  # more rows do not change the constants
FEWEST_OF_CASE = 4  # rows of a case in the sample of a fit
# Root mean square log error that a constant e times its round figure costs. Kernels of few operators say
# little about some constants: a fit without this predicts kernels of other operators worse than the round
# figures do. Chosen for held-out operators.
PRIOR_WEIGHT = 0.1
STEP = 0.05  # of the logarithm of a constant, for finite differences: predictions are not smooth
EVALUATIONS = 8
REFUSED = 2.0  # log error of a row that the model refuses
KNEE = 0.3  # log error beyond which errors count less: a few kernels have errors that no constant explains
FAST_MATTERS = 0.35  # the weight of a row is (fastest time of its case / its time) to this power


def fit(
    rows: Sequence[MeasuredRow],
    *,
    evaluations: int = EVALUATIONS,
    most_rows: int = MOST_ROWS,
    map_like: Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]] = map,
) -> Constants:
    """Fit the constants by least squares of weighted log errors of the predicted times, near `ROUGH`.

    Args:
        rows: measured kernels. An even sample over the times of each case is used, of equal size for all
            cases; see `sample_rows`.
        evaluations: limit of the solver's function evaluations, without those for the slopes.
        most_rows: size of the sample.
        map_like: evaluates slopes, like `map`; it may use several processes.
    """
    from scipy.optimize import least_squares

    sample = sample_rows(rows, most_rows)
    chosen = [rows[i] for i in sample]
    names = [f.name for f in fields(Constants) if f.name in BOUNDS]
    low, high = (np.log([BOUNDS[n][side] for n in names]) for side in (0, 1))
    begin = np.clip(np.log([getattr(DEFAULT, n) for n in names]), low + 1e-6, high - 1e-6)
    found = least_squares(
        partial(_residuals, rows=chosen, names=names, weights=_weights(rows)[sample]),
        begin,
        bounds=(low, high),
        diff_step=STEP,
        loss="soft_l1",
        f_scale=KNEE,
        max_nfev=evaluations,
        workers=map_like,
    )
    return _constants(found.x, names)


def _constants(logs: NDArray[np.float64], names: Sequence[str]) -> Constants:
    # rounded, so that the shipped constants are exactly the evaluated ones
    return replace(
        DEFAULT, **{name: float(f"{value:.3g}") for name, value in zip(names, np.exp(logs), strict=True)}
    )


def _residuals(
    logs: NDArray[np.float64],
    *,
    rows: Sequence[MeasuredRow],
    names: Sequence[str],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Errors of the rows, and distances of the constants from the round figures."""
    model = AnalyticalModel(replace(DEFAULT, **dict(zip(names, map(float, np.exp(logs)), strict=True))))
    rough = np.log([getattr(ROUGH, name) for name in names])
    return np.concatenate(
        [_errors(model, rows) * weights, PRIOR_WEIGHT * math.sqrt(len(rows)) * (logs - rough)]
    )


def _errors(model: AnalyticalModel, rows: Sequence[MeasuredRow]) -> NDArray[np.float64]:
    """Logarithms of predicted over measured times; `REFUSED` for rows that the model refuses."""
    errors = np.full(len(rows), REFUSED)
    for number, row in enumerate(rows):
        try:
            errors[number] = np.log(model.predict(row.kernels, row.target).latency_us / row.measured_us)
        except ValueError:
            continue
    return errors


def sample_rows(rows: Sequence[MeasuredRow], most: int) -> NDArray[np.int64]:
    """Indices of rows of cases, evenly over the times of each, with its fastest row.

    Of more cases than `most` allows with `FEWEST_OF_CASE` rows each, an even share of each operator's.
    """
    numbers = codes(row.case for row in rows)
    times = np.array([row.measured_us for row in rows])
    operator_of = dict(zip(numbers.tolist(), (row.operator for row in rows), strict=True))
    cases = np.array(sorted(operator_of, key=lambda case: (operator_of[case], case)))
    allowed = max(1, most // FEWEST_OF_CASE)
    if len(cases) > allowed:
        cases = cases[np.linspace(0, len(cases) - 1, allowed).astype(int)]
    each = max(FEWEST_OF_CASE, most // len(cases))
    picked = []
    for case in cases:
        own = np.flatnonzero(numbers == case)
        ordered = own[np.argsort(times[own], kind="stable")]
        picked.append(
            ordered[np.unique(np.linspace(0, len(ordered) - 1, min(each, len(ordered))).astype(int))]
        )
    found: NDArray[np.int64] = np.concatenate(picked)
    return found


def _weights(rows: Sequence[MeasuredRow]) -> NDArray[np.float64]:
    numbers = codes(row.case for row in rows)
    times = np.array([row.measured_us for row in rows])
    best = np.array([times[numbers == case].min() for case in range(int(numbers.max()) + 1)])
    weights: NDArray[np.float64] = (best[numbers] / times) ** FAST_MATTERS
    return weights
