"""Simpler models for comparison: boosting on plain counts, and boosting on config values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...profile.values import KernelProfile
from ..learned.estimator import LatencyCorrection
from ..learned.totals import totals
from .measured import MeasuredRow, codes, measured_log

YARDSTICK_MEMBERS = 2  # ensemble size without a need for calibrated uncertainty


def plain_counts(kernels: Sequence[KernelProfile]) -> dict[str, float]:
    """Logarithms of the counts of a launch, without anything from the analytical model."""
    found: dict[str, float] = {}
    for kernel in kernels:
        counted = {k: float(v) for k, v in asdict(totals(kernel)).items() if k != "matrix_dtype"}
        launch = {
            "blocks": kernel.blocks,
            "block_threads": kernel.block_threads,
            "shared_bytes": kernel.shared_bytes,
            "roles": len(kernel.roles),
            "local_registers": max((r.local_registers for r in kernel.roles), default=0.0),
            "depth": max((p.pipeline_depth for r in kernel.roles for p in r.phases), default=1),
            "trips": max((p.trips.mean for r in kernel.roles for p in r.phases), default=1.0),
            "tensor_bytes": sum(t.bytes for t in kernel.tensors),
            "swizzle": kernel.rasterization.factor,
        }
        grid = {f"grid_{k}": v * kernel.blocks for k, v in counted.items()}
        for name, value in (*counted.items(), *launch.items(), *grid.items()):
            found[name] = found.get(name, 0.0) + float(value)
    return {name: math.log1p(value) for name, value in found.items()}


def count_features(rows: Sequence[MeasuredRow]) -> NDArray[np.float32]:
    """The plain counts of all rows, shape (n, c)."""
    return _table([plain_counts(row.kernels) for row in rows])


def config_features(rows: Sequence[MeasuredRow]) -> NDArray[np.float32]:
    """Config values and log2 of the dimensions, shape (n, c).

    Each value that is not a number has a column.
    """
    return _table(
        [
            {**_config(row.config), **{f"dim {d}": math.log2(max(1.0, v)) for d, v in row.dims.items()}}
            for row in rows
        ]
    )


def learned_alone(
    rows: Sequence[MeasuredRow],
    table: NDArray[np.float32],
    train: NDArray[np.bool_],
    test: NDArray[np.bool_],
    **parameters: Any,
) -> NDArray[np.float64]:
    """Log microseconds of the test rows, by boosting of log(measured) on plain counts."""
    model = _fit(rows, table, train, np.zeros(len(rows)), parameters)
    return np.asarray(model.predict(table[test]))


def on_configs(
    rows: Sequence[MeasuredRow], held_out: NDArray[np.bool_], problems: NDArray[np.int64], **parameters: Any
) -> NDArray[np.float64]:
    """Log microseconds of the held-out rows, by boosting on config values of other cases of the operator.

    It is trained on log(measured / roofline), an advantage, since the sizes of the shapes need not be
    learned. If a whole operator is held out, each of its problems is predicted from its other problems. An
    operator with a single problem gets no prediction (NaN).
    """
    log_floor = np.log([row.floor_us for row in rows])
    operators = codes(row.operator for row in rows)
    found = np.full(len(rows), np.nan)
    for operator in np.unique(operators[held_out]):
        own = operators == operator
        own_rows = np.flatnonzero(own)
        inner = [row for row, mine in zip(rows, own, strict=True) if mine]
        table = config_features(inner)
        others = (own & ~held_out).any()
        parts = (
            [held_out[own_rows]]
            if others
            else [problems[own_rows] == p for p in np.unique(problems[own_rows])]
        )
        for test in parts:
            if test.all():
                continue
            model = _fit(inner, table, ~test, log_floor[own_rows], parameters)
            found[own_rows[test]] = log_floor[own_rows[test]] + model.predict(table[test])
    return found[held_out]


def _fit(
    rows: Sequence[MeasuredRow],
    table: NDArray[np.float32],
    train: NDArray[np.bool_],
    offset: NDArray[np.float64],
    parameters: Any,
) -> Any:
    kept = [row for row, keep in zip(rows, train, strict=True) if keep]
    model = LatencyCorrection(
        **{"gated": False, "order_share": 0.0, "members": YARDSTICK_MEMBERS, **parameters}
    )
    return model.fit(
        table[train],
        measured_log(kept) - offset[train],
        groups=codes(r.case for r in kept),
        offset=offset[train],
    )


def _config(config: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in config.items():
        if isinstance(value, str):
            found[f"{name}={value}"] = 1.0
        elif value is not None:
            found[name] = float(value)
    return found


def _table(rows: Sequence[Mapping[str, float]]) -> NDArray[np.float32]:
    names = sorted(set().union(*rows))
    return np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=np.float32)
