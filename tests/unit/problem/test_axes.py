"""Axes of the operators: shapes from dimensions and back, and what they refuse."""

from __future__ import annotations

import pytest

from tilesight import kernels
from tilesight.errors import WorkloadError
from tilesight.problem.axes import Parts, extent, read_dims, shape
from tilesight.problem.workload import Workload

SMALL = {
    "matmul": {"m": 5, "n": 7, "k": 9},
    "gemv": {"n": 7, "k": 9},
    "rms_norm": {"m": 5, "n": 7},
    "flash_attention": {"batch": 2, "heads": 3, "seq_len": 5, "head_dim": 8},
    "dequant_matmul": {"m": 3, "n": 5, "k": 301},
    "chunk_state": {"batch": 2, "seq_len": 300, "nheads": 3, "head_dim": 4, "d_state": 5},
}


def workloads(name: str) -> list[Workload]:
    operator = kernels.operator(name)
    found = [Workload(name, SMALL[name], operator.dtypes[0], operator.attrs)]
    if name == "dequant_matmul":
        found.append(Workload(name, SMALL[name], operator.dtypes[0], {"group": -1}))
    return found


@pytest.mark.parametrize("name", kernels.operators())
def test_tensors_agree_with_the_axes(name: str) -> None:
    operator = kernels.operator(name)
    for workload in workloads(name):
        inputs = operator.inputs(workload, "cpu", 1)
        outputs = operator.outputs(workload)
        assert list(operator.axes) == [*inputs, *outputs]
        for tensor, found in [*((n, tuple(t.shape)) for n, t in inputs.items()), *outputs.items()]:
            assert shape(operator.axes[tensor], workload.dims, workload.attrs) == found, tensor
        for tensor, value in inputs.items():
            assert str(value.dtype) == f"torch.{operator.dtype_of(tensor, workload)}"
        read = read_dims(name, operator.axes, {n: t.shape for n, t in inputs.items()}, workload.attrs)
        assert read == dict(workload.dims)


def test_every_dimension_is_read_from_the_inputs() -> None:
    for name in kernels.operators():
        operator = kernels.operator(name)
        workload = workloads(name)[0]
        inputs = [axes for tensor, axes in operator.axes.items() if tensor not in operator.outputs(workload)]
        assert set(operator.dims) <= {axis for axes in inputs for axis in axes}


def test_parts_round_up_and_take_all_for_minus_one() -> None:
    assert extent(Parts("k", 2), {"k": 7}, {}) == 4
    assert extent(Parts("k", "group"), {"k": 300}, {"group": 128}) == 3
    assert extent(Parts("k", "group"), {"k": 300}, {"group": -1}) == 1


@pytest.mark.parametrize(
    ("shapes", "fixed", "message"),
    [
        ({"A": (4, 8), "B": (9, 2)}, {}, r"B.shape\[0\]=9 must be k=8, from A.shape\[1\]; B is \(k, n\)"),
        ({"A": (4, 8), "B": (8, 2)}, {"n": 3}, r"B.shape\[1\]=2 must be n=3, as fixed"),
        ({"A": (4, 8, 1), "B": (8, 2)}, {}, r"A has 3 axes, \(4, 8, 1\), and must have 2: \(m, k\)"),
        ({"A": (), "B": (8, 2)}, {}, r"A has 0 axes"),
    ],
)
def test_shapes_that_contradict_are_refused_by_name(
    shapes: dict[str, tuple[int, ...]], fixed: dict[str, int], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        read_dims("matmul", kernels.operator("matmul").axes, shapes, {}, fixed)


def test_parts_and_attributes_are_checked_too() -> None:
    operator = kernels.operator("chunk_state")
    shapes = {"x": (1, 300, 2, 4), "B": (1, 300, 5), "dt": (1, 2, 2, 256), "dA_cumsum": (1, 2, 2, 256)}
    assert read_dims("chunk_state", operator.axes, shapes, {"chunk": 256})["seq_len"] == 300
    with pytest.raises(WorkloadError, match=r"dt.shape\[2\]=3 must be ceil\(seq_len/chunk\)=2"):
        read_dims("chunk_state", operator.axes, {**shapes, "dt": (1, 2, 3, 256)}, {"chunk": 256})
    with pytest.raises(WorkloadError, match=r"dA_cumsum.shape\[3\]=128 must be chunk=256"):
        read_dims("chunk_state", operator.axes, {**shapes, "dA_cumsum": (1, 2, 2, 128)}, {"chunk": 256})
