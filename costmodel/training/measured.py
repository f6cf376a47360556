"""Measured candidates, on which models are trained and evaluated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...profile.values import KernelProfile
from ...records.dataset import Dataset, profiles_of
from ...target.spec import Target, load_target

SPLITS = ("shape", "operator", "dtype")


@dataclass(frozen=True)
class MeasuredRow:
    """One verified candidate. A case consists of all candidates of one workload on one target."""

    case: str
    operator: str
    shape: str  # published name or dimensions, for reports
    problem: (
        str  # operator, dimensions and attributes without the dtype: the group that split "shape" holds out
    )
    dtype: str
    dims: Mapping[str, float]
    config: Mapping[str, Any]
    kernels: tuple[KernelProfile, ...]
    target: Target
    measured_us: float
    floor_us: float  # least time by the figures of the target

    def group(self, split: str) -> str:
        """The group that is held out together: all dtypes of a shape, an operator, or a dtype.

        Raises `InputError`.
        """
        if split == "shape":
            return self.problem
        if split == "operator":
            return self.operator
        if split == "dtype":
            return self.dtype
        raise InputError(f"split '{split}' is unknown; use one of {', '.join(SPLITS)}")


def measured_rows(dataset: Dataset, targets: Callable[[str], Target] = load_target) -> list[MeasuredRow]:
    """The rows of GPU targets with a verified time and a profile. Raises `InputError` if there are none."""
    frame = dataset.verified().frame
    known: dict[str, Target] = {}
    found: list[MeasuredRow] = []
    for row in frame.to_dict("records"):
        name = row["target"]
        if name not in known:
            known[name] = targets(name)
        target = known[name]
        if not target.is_gpu:
            continue
        dims = json.loads(row["dims"])
        found.append(
            MeasuredRow(
                case=f"{row['workload']} on {name}",
                operator=row["operator"],
                shape=row["shape"],
                problem=json.dumps([row["operator"], dims, json.loads(row["attrs"])], sort_keys=True),
                dtype=row["dtype"],
                dims={d: float(v) for d, v in dims.items()},
                config=json.loads(row["config"]),
                kernels=profiles_of(row["profile"]),
                target=target,
                measured_us=float(row["measured_us"]),
                floor_us=_floor_us(float(row["flops"]), float(row["min_bytes"]), row["dtype"], target),
            )
        )
    if not found:
        raise InputError(
            "the datasets hold no verified row of a GPU target with a profile; "
            "`tilesight collect` writes such rows"
        )
    return found


def _floor_us(flops: float, min_bytes: float, dtype: str, target: Target) -> float:
    """Time of the roofline model, at least that of a launch."""
    try:
        compute = flops / (target.matrix_tflops(dtype) * 1e6)
    except (KeyError, ZeroDivisionError):
        compute = flops / (target.matrix_tflops("float16") * 1e6)
    return max(compute, min_bytes / (target.dram_gb_per_s * 1e3), target["device.launch_us"])


def codes(labels: Iterable[str]) -> NDArray[np.int64]:
    """An integer for each label, in the sorted order of the labels."""
    return np.asarray(
        np.unique(np.array(list(labels), dtype=object).astype(str), return_inverse=True)[1], dtype=np.int64
    )


def measured_log(rows: Sequence[MeasuredRow]) -> NDArray[np.float64]:
    """Log of the measured microseconds, shape (n,)."""
    return np.log([row.measured_us for row in rows])
