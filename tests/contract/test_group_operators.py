"""What every operator of several devices must do, beside what every template must."""

from __future__ import annotations

import math
import re

import pytest

from tests.support.operator_shapes import shape
from tilesight.errors import InputError, WorkloadError
from tilesight.kernels import operator, operators, templates
from tilesight.kernels._rank_products import RankProduct
from tilesight.problem.group_operator import GroupOperator, argument_names
from tilesight.problem.template import LAUNCHES, RANK, Collective
from tilesight.problem.workload import MAX_DIMENSION
from tilesight.target.spec import load_target

NODE = load_target("h100x2")


def group_operator(name: str) -> GroupOperator:
    found = operator(name)
    assert isinstance(found, GroupOperator)
    return found


NAMES = [name for name in operators() if operator(name).communicates]
PRODUCTS = [name for name in NAMES if isinstance(operator(name), RankProduct)]


def small(name: str) -> str:
    """A small shape of any number of ranks up to eight."""
    return "m=24,n=40,k=56" if name in PRODUCTS else shape(group_operator(name), 2, 8, 56)


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
                    if dim in ours.attrs:
                        assert workload.attrs[dim] == size
                        continue
                    assert workload.dims[dim] * (node.world if dim in ours.divided else 1) == size
                sizes = {**workload.dims, **workload.attrs}
                assert ours.workload(",".join(f"{k}={v}" for k, v in sizes.items())) == workload
                keys.add(workload.key)
            assert len(keys) == len(ours.named) >= 8
        assert all(one.name in ours.named for one in ours.default_workloads_on(NODE))

    @pytest.mark.parametrize("value", ["0", "-4", "1.5", "four", "", str(MAX_DIMENSION + 1)])
    def test_bad_dimensions_are_refused_by_name(self, name: str, value: str) -> None:
        sizes = dict(part.split("=") for part in small(name).split(","))
        dim = list(sizes)[1]
        text = ",".join(f"{key}={value if key == dim else size}" for key, size in sizes.items())
        with pytest.raises(InputError, match=f"{dim}="):
            group_operator(name).workload_on(NODE, text)

    def test_tensors_beyond_32_bit_indices_are_refused(self, name: str) -> None:
        with pytest.raises(WorkloadError, match="split"):
            group_operator(name).workload_on(NODE, shape(group_operator(name), 10**6))

    def test_inputs_of_ranks_are_seeded_and_differ(self, name: str) -> None:
        import torch

        ours = group_operator(name)
        for dtype in ours.dtypes:
            workload = ours.workload_on(NODE, small(name), dtype)
            first, second = (ours.rank_inputs(workload, rank, "cpu", 1) for rank in (0, 1))
            again, other = ours.inputs(workload, "cpu", 1), ours.inputs(workload, "cpu", 2)
            for key, tensor in first.items():
                assert tensor.is_contiguous()
                assert torch.equal(tensor, again[key])
                assert str(tensor.dtype) == f"torch.{ours.dtype_of(key, workload)}"
                # a few queries over a cache are those of all ranks
                assert torch.equal(tensor, second[key]) == (key == "Q" and "q_len" in ours.dims)
                # what decides how much work there is does not depend on the seed
                assert torch.equal(tensor, other[key]) == (key in ours.contents(workload))

    def test_the_reference_of_each_rank_is_that_of_its_outputs(self, name: str) -> None:
        import torch

        ours = group_operator(name)
        workload = ours.workload(f"{small(name)},world=4")
        inputs = [ours.rank_inputs(workload, rank, "cpu", 1) for rank in range(4)]
        found = ours.group_reference(workload, inputs)
        assert len(found) == 4
        for outputs in found:
            assert {key: tuple(t.shape) for key, t in outputs.items()} == ours.outputs(workload)
            assert all(t.dtype == torch.float32 and t.isfinite().all() for t in outputs.values())
            if name in PRODUCTS:
                assert all(0.7 < t.std() < 1.4 for t in outputs.values())

    def test_the_vendors_part_and_its_collective_are_the_reference(self, name: str) -> None:
        """The collective is done here, as the library does it."""
        import torch

        ours = group_operator(name)
        workload = ours.workload("m=32,n=48,k=64,world=2" if name in PRODUCTS else f"{small(name)},world=2")
        world, first = 2, ours.vendor_collective(workload)
        inputs = [ours.rank_inputs(workload, rank, "cpu", 1) for rank in range(world)]
        shapes = {
            **{key: (sizes, workload.dtype) for key, sizes in ours.outputs(workload).items()},
            **ours.vendor_scratch(workload),
        }
        tensors = [
            {**inputs[rank], **{n: torch.empty(s, dtype=getattr(torch, d)) for n, (s, d) in shapes.items()}}
            for rank in range(world)
        ]

        def collect(collective: Collective) -> None:
            sources = [one[collective.source].float() for one in tensors]
            whole = torch.cat(sources) if collective.name == "all_gather" else torch.stack(sources).sum(0)
            for rank, one in enumerate(tensors):
                part = whole.chunk(world)[rank] if collective.name == "reduce_scatter" else whole
                one[collective.result].copy_(part.view_as(one[collective.result]))
            assert collective.size_bytes == whole.numel() * tensors[0][collective.source].element_size()

        for one in first.at("before"):
            collect(one)
        for rank, own in enumerate(tensors):
            ours.vendor_of_rank(workload, rank, own)()
        for one in first.at("between", "after"):
            collect(one)
        finishes = [ours.vendor_finish(workload, rank, own) for rank, own in enumerate(tensors)]
        assert all((finish is not None) == bool(first.at("between")) for finish in finishes)
        for finish in finishes:
            if finish is not None:
                finish()
        for own, expected in zip(tensors, ours.group_reference(workload, inputs), strict=True):
            for key, tensor in expected.items():
                error = (own[key].float() - tensor).norm() / tensor.norm()
                assert error < ours.max_relative_error(workload)


@pytest.mark.parametrize("name", PRODUCTS)
def test_second_inputs_are_exact_in_any_order_of_ranks(name: str) -> None:
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


@pytest.mark.parametrize("name", NAMES)
def test_kernels_take_their_arguments_in_the_stated_order(name: str) -> None:
    ours = group_operator(name)
    for template in templates(name):
        assert template.numbers[0] == RANK
        workload = ours.workload_on(NODE, "m=512,n=512,k=256" if name in PRODUCTS else small(name))
        space = template.space(workload, NODE)
        for way in space.parameters[0].values:
            config = next(c for c in space.configs() if c["algorithm"] == way)
            shared, own = template.shared_scratch(workload, config), template.scratch(workload, config)
            wanted = [
                key if rank is None else f"{key}_{rank}"
                for key, rank in argument_names(ours, workload, shared, own)
            ]
            prim_func = template.build(workload, config)
            tensors = prim_func.params[: -len(template.numbers)]
            numbers = prim_func.params[-len(template.numbers) :]
            found = [str(prim_func.buffer_map[one].name) for one in tensors]
            # the code of one device's product has names of its own for its scratch
            names = {"product": "C", "gathered": "A"} if name in PRODUCTS else {}
            assert found == [names.get(one, one) for one in wanted]
            renamed = wanted
            assert [(str(one.name), str(one.dtype)) for one in numbers] == [
                (one.name, one.dtype) for one in template.numbers
            ]
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
                known = {*ours.tensor_axes(workload.attrs), *shared, *own}
                for each in (collective, *collective.others):
                    assert {each.source, each.result} <= known
                assert (collective.when == "between") == (LAUNCHES in template.numbers)
                assert (collective.launches > 0) == (collective.when == "between")
