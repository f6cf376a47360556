"""Items of a batch of different lengths: what operators share whose tensors have room for the longest one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..problem.index_values import outside
from ..problem.operator import Operator, Tensors
from ..problem.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray


def length_contents(operator: Operator, workload: Workload) -> dict[str, NDArray[Any]]:
    """`length` with `lengths=mixed`: all of seq_len, then three, two and one quarters of it, and so on."""
    import numpy as np

    if operator.attribute(workload.attrs, "lengths") == "full":
        return {}
    quarters = 4 - np.arange(workload.dims["batch"]) % 4
    return {"length": np.maximum(1, workload.dims["seq_len"] * quarters // 4).astype(np.int32)}


def lengths_of(operator: Operator, workload: Workload) -> list[int]:
    """Positions of each item."""
    known = length_contents(operator, workload)
    if known:
        return [int(length) for length in known["length"]]
    return [workload.dims["seq_len"]] * workload.dims["batch"]


def length_fault(workload: Workload, inputs: Tensors) -> str | None:
    """What is wrong with `length`, as `Operator.index_fault` has it."""
    if "length" not in inputs:
        return None
    return outside("length", inputs["length"], 0, workload.dims["seq_len"], "positions of an item")
