"""Axes of the operators: shapes from dimensions and back, and what they refuse."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.operator_shapes import shape as shape_of
from tilesight import kernels
from tilesight.errors import WorkloadError
from tilesight.problem.axes import Axes, Parts, Plus, Windows, extent, read_dims, shape
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target


def workloads(name: str) -> list[Workload]:
    """Small workloads of an operator: with its default attributes, and with each other value of one."""
    operator = kernels.operator(name)
    if operator.communicates:
        return [operator.workload_on(load_target("h100x2"), shape_of(operator, 6, 7, 9))]
    small = shape_of(operator, 5, 7, 9, 4, 6)
    found = [operator.workload(small)]
    for attribute, default in operator.attrs.items():
        others: tuple[object, ...] = operator.choices.get(attribute, ())
        if isinstance(default, bool):
            others = (not default,)
        for value in others:
            text = str(value).lower() if isinstance(value, bool) else value
            with suppress(WorkloadError):  # a value that is not legal together with the other defaults
                found.append(operator.workload(f"{small},{attribute}={text}"))
    return found


@pytest.mark.parametrize("name", kernels.operators())
def test_tensors_agree_with_the_axes(name: str) -> None:
    operator = kernels.operator(name)
    for workload in workloads(name):
        inputs = operator.inputs(workload, "cpu", 1)
        outputs = operator.outputs(workload)
        axes = operator.tensor_axes(workload.attrs)
        assert list(axes) == [*inputs, *outputs]
        for tensor, found in [*((n, tuple(t.shape)) for n, t in inputs.items()), *outputs.items()]:
            assert shape(axes[tensor], workload.dims, workload.attrs) == found, tensor
        for tensor, value in inputs.items():
            assert str(value.dtype) == f"torch.{operator.dtype_of(tensor, workload)}"
        if not operator.communicates:  # no tensor tells the number of ranks
            read = read_dims(name, axes, {n: t.shape for n, t in inputs.items()}, workload.attrs)
            assert read == dict(workload.dims)


def test_every_dimension_is_read_from_the_inputs() -> None:
    for name in kernels.operators():
        operator = kernels.operator(name)
        for workload in workloads(name) if not operator.communicates else []:
            known = operator.tensor_axes(workload.attrs)
            inputs = [axes for tensor, axes in known.items() if tensor not in operator.outputs(workload)]
            assert set(operator.dims) <= {getattr(axis, "dim", axis) for axes in inputs for axis in axes}


def test_an_axis_may_be_longer_than_its_dimension() -> None:
    axes: Axes = {"q": ("tokens", 4), "ends": (Plus("batch", 1),)}
    assert extent(Plus("batch", 1), {"batch": 3}, {}) == 4
    assert read_dims("varlen", axes, {"q": (9, 4), "ends": (4,)}, {}) == {"tokens": 9, "batch": 3}
    with pytest.raises(WorkloadError, match=r"ends.shape\[0\]=4 must be batch\+1=3, as fixed"):
        read_dims("varlen", axes, {"q": (9, 4), "ends": (4,)}, {}, {"batch": 2})
    with pytest.raises(WorkloadError, match=r"q.shape\[1\]=5 must be 4; q is"):
        read_dims("varlen", axes, {"q": (9, 5), "ends": (4,)}, {})


def test_parts_round_up_and_take_all_for_minus_one() -> None:
    assert extent(Parts("k", 2), {"k": 7}, {}) == 4
    assert extent(Parts("k", "group"), {"k": 300}, {"group": 128}) == 3
    assert extent(Parts("k", "group"), {"k": 300}, {"group": -1}) == 1


def test_windows_are_as_many_as_of_a_convolution() -> None:
    attrs = {"kernel": 3, "stride": 2, "padding": 1, "dilation": 2}
    axes: Axes = {"X": ("width",), "Y": (Windows("width"),)}
    assert extent(Windows("width"), {"width": 9}, attrs) == 4
    assert read_dims("conv", axes, {"X": (9,), "Y": (4,)}, attrs) == {"width": 9}
    with pytest.raises(WorkloadError, match=r"Y.shape\[0\]=5 must be windows\(width\)=4"):
        read_dims("conv", axes, {"X": (9,), "Y": (5,)}, attrs)


def test_a_dimension_that_stands_only_in_parts_has_whole_parts() -> None:
    axes: Axes = {"table": ("batch", Parts("kv_len", "page"))}
    assert read_dims("paged", axes, {"table": (2, 5)}, {"page": 16}) == {"batch": 2, "kv_len": 80}
    with pytest.raises(WorkloadError, match=r"table.shape\[1\]=5 must be ceil\(kv_len/page\)=4"):
        read_dims("paged", axes, {"table": (2, 5)}, {"page": 16}, {"kv_len": 64})


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


def test_an_axis_may_be_a_part_that_another_dimension_says() -> None:
    assert shape((Parts("m", "world"), "n"), {"m": 12, "n": 5, "world": 4}, {}) == (3, 5)
