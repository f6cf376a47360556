"""What every operator of several devices must do, beside what every template must."""

from __future__ import annotations

import math
import re

import pytest

from tests.support.operator_shapes import shape
from tilesight.errors import InputError, WorkloadError
from tilesight.kernels import operator, operators, templates
from tilesight.problem.group_operator import GroupOperator, argument_names
from tilesight.problem.template import RANK
from tilesight.problem.workload import MAX_DIMENSION
from tilesight.target.spec import load_target

NODE = load_target("h100x2")


def group_operator(name: str) -> GroupOperator:
    found = operator(name)
    assert isinstance(found, GroupOperator)
    return found


NAMES = [name for name in operators() if operator(name).communicates]


def test_there_are_operators_of_several_devices() -> None:
    assert "matmul_reduce_scatter" in NAMES


@pytest.mark.parametrize("name", NAMES)
class TestGroupOperator:
    def test_published_names_are_canonical_workloads_on_each_node(self, name: str) -> None:
        ours = group_operator(name)
        for node in map(load_target, ("h100x2", "h100x4", "h100x8")):
            keys = set()
            for label in ours.named:
                workload = ours.workload_on(node, label.lower())
                assert workload.name == label
                assert tuple(workload.dims) == ours.dims
                assert workload.dims["world"] == node.world
                for dim, size in ours.named[label].items():
                    assert workload.dims[dim] * (node.world if dim in ours.divided else 1) == size
                assert ours.workload(",".join(f"{k}={v}" for k, v in workload.dims.items())) == workload
                keys.add(workload.key)
            assert len(keys) == len(ours.named) >= 8
        assert all(one.name in ours.named for one in ours.default_workloads_on(NODE))

    @pytest.mark.parametrize("value", ["0", "-4", "1.5", "four", "", str(MAX_DIMENSION + 1)])
    def test_bad_dimensions_are_refused_by_name(self, name: str, value: str) -> None:
        with pytest.raises(InputError, match="n="):
            group_operator(name).workload_on(NODE, f"m=64,n={value},k=64")

    def test_tensors_beyond_32_bit_indices_are_refused(self, name: str) -> None:
        with pytest.raises(WorkloadError, match="split"):
            group_operator(name).workload_on(NODE, shape(group_operator(name), 10**6))

    def test_inputs_of_ranks_are_seeded_and_differ(self, name: str) -> None:
        import torch

        ours = group_operator(name)
        for dtype in ours.dtypes:
            workload = ours.workload_on(NODE, "m=24,n=40,k=56", dtype)
            first, second = (ours.rank_inputs(workload, rank, "cpu", 1) for rank in (0, 1))
            again, other = ours.inputs(workload, "cpu", 1), ours.inputs(workload, "cpu", 2)
            for key, tensor in first.items():
                assert tensor.is_contiguous()
                assert torch.equal(tensor, again[key])
                assert str(tensor.dtype) == f"torch.{dtype}"
                assert not torch.equal(tensor, second[key])
                assert not torch.equal(tensor, other[key])

    def test_the_reference_of_each_rank_is_that_of_its_outputs(self, name: str) -> None:
        import torch

        ours = group_operator(name)
        workload = ours.workload("m=24,n=40,k=56,world=4")
        inputs = [ours.rank_inputs(workload, rank, "cpu", 1) for rank in range(4)]
        found = ours.group_reference(workload, inputs)
        assert len(found) == 4
        for outputs in found:
            assert {key: tuple(t.shape) for key, t in outputs.items()} == ours.outputs(workload)
            assert all(t.dtype == torch.float32 and 0.7 < t.std() < 1.4 for t in outputs.values())

    def test_second_inputs_are_exact_in_any_order_of_ranks(self, name: str) -> None:
        import torch

        ours = group_operator(name)
        for dtype in ours.dtypes:
            workload = ours.workload("m=24,n=40,k=1000,world=4", dtype)
            second = [ours.rank_second_inputs(workload, rank, "cpu", 1) for rank in range(4)]
            given = [one.tensors for one in second if one is not None]
            assert len(given) == 4
            assert all(one is not None and one.is_exact for one in second)
            for outputs in ours.group_reference(workload, given):
                for tensor in outputs.values():
                    assert torch.equal(tensor, tensor.to(getattr(torch, dtype)).float())
                    assert tensor.abs().max() > 2
            # even sums of magnitudes, so that no order of summation rounds
            largest = [{key: tensor.abs() for key, tensor in tensors.items()} for tensors in given]
            most = max(float(t.max()) for o in ours.group_reference(workload, largest) for t in o.values())
            assert most <= {"bfloat16": 256, "float16": 2048}[dtype]

    def test_the_vendors_part_and_its_collective_are_the_reference(self, name: str) -> None:
        """The collective is done here, as the library does it."""
        import torch

        ours = group_operator(name)
        workload = ours.workload("m=32,n=48,k=64,world=2")
        world, collective = 2, ours.vendor_collective(workload)
        inputs = [ours.rank_inputs(workload, rank, "cpu", 1) for rank in range(world)]
        shapes = {
            **{key: (sizes, workload.dtype) for key, sizes in ours.outputs(workload).items()},
            **ours.vendor_scratch(workload),
        }
        tensors = [
            {**inputs[rank], **{n: torch.empty(s, dtype=getattr(torch, d)) for n, (s, d) in shapes.items()}}
            for rank in range(world)
        ]

        def collect() -> None:
            sources = [one[collective.source].float() for one in tensors]
            whole = torch.cat(sources) if collective.name == "all_gather" else torch.stack(sources).sum(0)
            for rank, one in enumerate(tensors):
                part = whole.chunk(world)[rank] if collective.name == "reduce_scatter" else whole
                one[collective.result].copy_(part)
            assert collective.size_bytes == whole.numel() * 2

        if collective.when == "before":
            collect()
        for one in tensors:
            ours.vendor_part(workload, one)()
        if collective.when == "after":
            collect()
        for one, expected in zip(tensors, ours.group_reference(workload, inputs), strict=True):
            for key, tensor in expected.items():
                error = (one[key].float() - tensor).norm() / tensor.norm()
                assert error < ours.max_relative_error(workload)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_take_their_arguments_in_the_stated_order(name: str) -> None:
    ours = group_operator(name)
    for template in templates(name):
        assert template.numbers == (RANK,)
        workload = ours.workload_on(NODE, "m=512,n=512,k=256")
        space = template.space(workload, NODE)
        for way in space.parameters[0].values:
            config = next(c for c in space.configs() if c["algorithm"] == way)
            shared, own = template.shared_scratch(workload, config), template.scratch(workload, config)
            wanted = [
                key if rank is None else f"{key}_{rank}"
                for key, rank in argument_names(ours, workload, shared, own)
            ]
            prim_func = template.build(workload, config)
            *tensors, number = prim_func.params
            found = [str(prim_func.buffer_map[one].name) for one in tensors]
            # the code of one device's product has names of its own for its scratch
            names = {"product": "C", "gathered": "A"}
            assert found == [names.get(one, one) for one in wanted]
            renamed = wanted
            assert (str(number.name), str(number.dtype)) == ("rank", "int32")
            sizes = {
                **ours.outputs(workload),
                **{key: of[0] for key, of in {**shared, **own}.items()},
            }
            for one, argument in zip(tensors, renamed, strict=True):
                plain = re.sub(r"_\d$", "", argument)
                if plain in sizes:
                    found_shape = tuple(map(int, prim_func.buffer_map[one].shape))
                    assert math.prod(found_shape) == math.prod(sizes[plain])
            collective = template.collective(workload, config)
            if collective is not None:
                known = {*ours.tensor_axes({}), *shared, *own}
                assert {collective.source, collective.result} <= known
