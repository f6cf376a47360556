from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from tilesight.errors import UnknownNameError, WorkloadError
from tilesight.problem.operator import Operator, Tensors
from tilesight.problem.space import Value
from tilesight.problem.workload import Workload


class Scan(Operator):
    name = "scan"
    dims = ("rows", "length")
    attrs: ClassVar[Mapping[str, bool | int]] = {"reverse": False, "group": 1}
    named: ClassVar[Mapping[str, Mapping[str, bool | int]]] = {
        "S0": {"rows": 4, "length": 8},
        "S1": {"rows": 4, "length": 8, "reverse": True},
    }
    default_names = ("S0",)

    def validate(self, workload: Workload) -> None:
        if workload.dims["length"] % workload.attrs["group"]:
            raise WorkloadError("scan: group must divide length")

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, Any]:
        return {}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {}

    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, Any]:
        return {}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        return {}

    def flops(self, workload: Workload) -> int:
        return 1

    def min_bytes(self, workload: Workload) -> int:
        return 1

    def max_relative_error(self, workload: Workload) -> float:
        return 1e-3


class Layouts(Scan):
    """An operator with a text as attribute, numbers of which some are legal, and a default size."""

    name = "layouts"
    dims = ("rows", "length", "heads")
    dim_defaults: ClassVar[Mapping[str, int | str]] = {"length": "rows", "heads": 2}
    attrs: ClassVar[Mapping[str, Value]] = {"layout": "nt", "group": 1, "reverse": False}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {"layout": ("nt", "nn"), "group": (1, 2, 4)}
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {"L": {"rows": 8, "layout": "nn"}}


SCAN = Scan()
LAYOUTS = Layouts()


def test_published_names() -> None:
    workload = SCAN.workload("s1")
    assert (workload.name, workload.dtype) == ("S1", "bfloat16")
    assert dict(workload.attrs) == {"reverse": True, "group": 1}
    assert dict(SCAN.workload("S0").attrs) == {"reverse": False, "group": 1}
    assert [w.name for w in SCAN.default_workloads("fp16")] == ["S0"]


def test_texts_are_attributes_of_their_choices() -> None:
    workload = LAYOUTS.workload("rows=8,layout=NN")
    assert workload.attrs["layout"] == "nn"
    assert workload.key == "layouts(rows=8,length=8,heads=2;group=1,layout=nn,reverse=false,dtype=bfloat16)"
    assert LAYOUTS.workload("L") == workload
    assert pickle.loads(pickle.dumps(workload)) == workload
    with pytest.raises(WorkloadError, match="layouts: layout=tn must be one of: nt, nn"):
        LAYOUTS.workload("rows=8,layout=tn")
    with pytest.raises(WorkloadError, match="layouts: group=3 must be one of: 1, 2, 4"):
        LAYOUTS.workload("rows=8,group=3")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layout", 3, "layout=3 must be like layout=nt"),
        ("reverse", 1, "reverse=1 must be like reverse=False"),
        ("group", True, "group=True must be like group=1"),
        ("group", 8, "group=8 must be one of"),
    ],
)
def test_attributes_have_the_type_of_their_default(name: str, value: object, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        LAYOUTS.check_attribute(name, value)


def test_dimensions_with_a_default_may_be_left_out() -> None:
    assert dict(LAYOUTS.workload("rows=8").dims) == {"rows": 8, "length": 8, "heads": 2}
    assert dict(LAYOUTS.workload("rows=8,length=3,heads=5").dims) == {"rows": 8, "length": 3, "heads": 5}
    with pytest.raises(WorkloadError, match="lacks rows, length; it needs rows"):
        LAYOUTS.workload("heads=5")


def test_dimensions_in_any_order_make_the_same_workload() -> None:
    assert SCAN.workload("length=8,rows=4,reverse=true") == SCAN.workload("S1")
    assert SCAN.workload("length=8,rows=4").name is None


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        (
            "S9",
            UnknownNameError,
            "unknown scan shape 'S9'; did you mean S. or S.*--shape rows=...,length=...",
        ),
        ("rows=4,lenght=8", UnknownNameError, "unknown scan dimension 'lenght'; did you mean length"),
        ("rows=4", WorkloadError, "shape 'rows=4' lacks length; it needs rows, length"),
        ("rows=4,length=eight", WorkloadError, "length=eight must be a whole number"),
        ("rows=4,length=8,reverse=1", WorkloadError, "reverse=1 must be true or false"),
        ("rows=0,length=8", WorkloadError, "rows=0 must lie in 1"),
        ("rows=4,length=8,group=3", WorkloadError, "group must divide length"),
    ],
)
def test_wrong_shapes_are_refused(shape: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SCAN.workload(shape)


def test_wrong_dtype() -> None:
    with pytest.raises(WorkloadError, match="use one of: bfloat16, float16"):
        SCAN.workload("S0", "int8")


class LaterScan(Scan):
    attrs: ClassVar[Mapping[str, bool | int]] = {**Scan.attrs, "window": 0}
    later_attrs = ("window",)


def test_later_attributes_enter_the_key_only_where_they_differ_from_their_default() -> None:
    later = LaterScan()
    assert later.workload("rows=4,length=8,window=0").key == SCAN.workload("rows=4,length=8").key
    assert later.workload("rows=4,length=8").attrs == {"reverse": False, "group": 1}
    assert later.attribute(later.workload("rows=4,length=8").attrs, "window") == 0
    assert later.workload("rows=4,length=8,window=32").attrs == {"reverse": False, "group": 1, "window": 32}
