from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from tilesight.errors import UnknownNameError, WorkloadError
from tilesight.kernels import template_for
from tilesight.problem.axes import Axes
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import GroupOperator, argument_names, of_ranks
from tilesight.problem.operator import Operator, Tensors
from tilesight.problem.space import Config, SearchSpace, Value
from tilesight.problem.template import RANK, Collective, KernelTemplate, RunTimeNumber
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target, load_target


class Sum(GroupOperator):
    name = "sum_of_ranks"
    dims = ("m", "k", "world")
    axes: ClassVar[Axes] = {"a": ("m", "k"), "c": ("m",)}
    shared = ("c",)
    divided = ("k",)
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {"S0": {"m": 8, "k": 12}}
    default_names = ("S0",)

    def rank_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> dict[str, Any]:
        return {"a": rank}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"c": (workload.dims["m"],)}

    def group_reference(self, workload: Workload, inputs: Sequence[Tensors]) -> list[dict[str, Any]]:
        return [{} for _ in inputs]

    def vendor_collective(self, workload: Workload) -> Collective:
        return Collective("all_reduce", "c", "c", "after", 16)

    def vendor_part(self, workload: Workload, tensors: Tensors) -> Callable[[], object]:
        return lambda: None

    def flops(self, workload: Workload) -> int:
        return 1

    def min_bytes(self, workload: Workload) -> int:
        return 1

    def max_relative_error(self, workload: Workload) -> float:
        return 1e-3


class Template(KernelTemplate):
    operator = Sum()
    name = "sum_of_ranks"
    target_kinds = ("cuda",)
    dtypes = ("bfloat16",)
    numbers = (RunTimeNumber("scale", "float32", 1.0), RANK)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        raise NotImplementedError

    def build(self, workload: Workload, config: Config) -> Any:
        raise NotImplementedError


class WithFlags(Template):
    def shared_scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"flags": ((workload.dims["world"],), "int32")}


NODE = load_target("h100x4")
SUM = Sum()


def test_the_world_comes_from_the_target() -> None:
    workload = SUM.workload_on(NODE, "m=8,k=2")
    assert workload.key == "sum_of_ranks(m=8,k=2,world=4;dtype=bfloat16)"
    assert workload == SUM.workload_on(NODE, "m=8,k=2,world=4") == SUM.workload("m=8,k=2,world=4")
    assert SUM.communicates
    assert not Operator.communicates


def test_a_published_shape_is_a_whole_layer_of_which_each_rank_has_its_part() -> None:
    (workload,) = SUM.default_workloads_on(NODE)
    assert workload.dims == {"m": 8, "k": 3, "world": 4}
    assert workload.name == "S0"
    assert SUM.workload_on(load_target("h100x2"), "s0").dims["k"] == 6
    with pytest.raises(WorkloadError, match="whole k=12 cannot be divided among 8 devices"):
        SUM.workload_on(load_target("h100x8"), "S0")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SUM.workload("m=8,k=2"), "name a target of several, like h100x2, or state the world"),
        (lambda: SUM.workload("S0"), "name a target of several"),
        (lambda: SUM.workload("m=8,k=2,world=1"), "world=1 must be at least 2"),
        (lambda: SUM.workload_on(load_target("h100"), "S0"), "target h100 is one"),
        (lambda: SUM.workload_on(NODE, "m=8,k=2,world=2"), "states world=2, and target h100x4 has 4 devices"),
        (lambda: SUM.workload_on(NODE, "m=8"), "lacks k"),
    ],
)
def test_a_world_that_is_missing_or_another_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        call()


def test_an_unknown_published_shape_is_refused_by_its_name() -> None:
    with pytest.raises(UnknownNameError, match="S1") as caught:
        SUM.workload_on(NODE, "S1")
    assert str(caught.value).endswith("--shape m=...,k=...")


def test_a_kernel_takes_shared_tensors_of_all_ranks() -> None:
    workload = SUM.workload("m=8,k=2,world=2")
    assert argument_names(SUM, workload, ["flags"], ["whole"]) == (
        ("a", None),
        ("c", 0),
        ("c", 1),
        ("flags", 0),
        ("flags", 1),
        ("whole", None),
    )
    assert of_ranks("c", 2) == ("c_0", "c_1")


def test_tensors_of_peers_are_shared_ones_of_other_ranks() -> None:
    workload, config = SUM.workload_on(NODE, "m=8,k=2"), Config({})
    found = Candidate(workload, NODE, WithFlags(), config).peer_tensors
    assert found == {f"{name}_{rank}" for name in ("c", "flags") for rank in (1, 2, 3)}
    matmul = template_for("matmul", NODE, "bfloat16")
    alone = Candidate(matmul.operator.workload("m=64,n=64,k=64"), NODE, matmul, config)
    assert alone.peer_tensors == frozenset()


def test_inputs_are_those_of_rank_0_and_there_is_no_reference_of_one_rank() -> None:
    workload = SUM.workload("m=8,k=2,world=2")
    assert SUM.inputs(workload, "cpu", 0) == {"a": 0}
    second = SUM.second_inputs(workload, "cpu", 0)
    assert second is not None
    assert second.tensors == {"a": 0}
    assert SUM.vendor(workload, {}) == {}
    with pytest.raises(NotImplementedError, match="group_reference"):
        SUM.reference(workload, {})


def test_each_rank_has_its_own_number_and_the_others_are_kept() -> None:
    candidate = Candidate(SUM.workload("m=8,k=2,world=2"), NODE, Template(), Config({}))
    one = RunTimeNumber("scale", "float32", 1.0).slot
    assert candidate.run_time_slots == candidate.slots_of_rank(0) == (one, 0)
    assert candidate.slots_of_rank(1) == (one, 1)


def test_templates_have_no_shared_memory_and_no_collective_unless_they_say_so() -> None:
    workload = SUM.workload("m=8,k=2,world=2")
    assert Template().shared_scratch(workload, Config({})) == {}
    assert Template().collective(workload, Config({})) is None
