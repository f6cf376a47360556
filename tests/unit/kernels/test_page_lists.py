"""Operators over lists of pages: results of their tile programs on a CPU, and properties of the lists."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import tilelang.language as T  # noqa: N812
import torch

from tests.support.cpu_programs import built_c, on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.lowering.dynamic import DynamicWorkload
from tilesight.problem.operator import Tensors
from tilesight.problem.space import Config, Value
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

SMALL = {
    "flash_decoding_paged": "batch=4,heads=8,kv_heads=2,head_dim=16",
    "mla_decode_paged": "batch=4,heads=20,dim=64,rope_dim=32",
}
TILE: Mapping[str, Value] = {"block_m": 16, "block_n": 32, "num_stages": 1, "threads": 32}
OWN: Mapping[str, Mapping[str, Value]] = {
    "flash_decoding_paged": {"weights": "registers"},
    "mla_decode_paged": {"policy": "full_row"},
}
NAMES = list(SMALL)


def small(name: str, shape: str, dtype: str = "float32") -> Workload:
    """A workload, also in float32, which programs on a CPU have."""
    found = operator(name).workload(f"{SMALL[name]},{shape}")
    return Workload(found.operator, found.dims, dtype, found.attrs)


def with_items(inputs: dict[str, torch.Tensor], pages: list[int], last: list[int]) -> None:
    """Give the items these numbers of pages and keys of last pages; entries that none has are wrong."""
    ends = [0, *itertools.accumulate(pages)]
    inputs["kv_indptr"] = torch.tensor(ends, dtype=torch.int32)
    inputs["kv_indices"][ends[-1] :] = 10**6
    if "kv_last_page_len" in inputs:
        inputs["kv_last_page_len"] = torch.tensor(last, dtype=torch.int32)


def places_of(workload: Workload, config: Config) -> dict[str, torch.Tensor]:
    """Outputs and scratch memory of a call, with NaN in each element."""
    (template,) = templates(workload.operator)
    scratch = {name: size for name, (size, _) in template.scratch(workload, config).items()}
    sizes = {**operator(workload.operator).outputs(workload), **scratch}
    return {name: torch.full(size, torch.nan) for name, size in sizes.items()}


def check(workload: Workload, inputs: Tensors, places: Tensors) -> None:
    """The results of a call are those of the reference."""
    for name, expected in operator(workload.operator).reference(workload, inputs).items():
        torch.testing.assert_close(places[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ("page=1,indices=150,lengths=mixed", {"split_k": 2, "gather": "by_row"}),
        pytest.param(
            "page=64,indices=5,pages=7,lengths=mixed", {"split_k": 1, "gather": "by_page"},
            marks=pytest.mark.full,
        ),
        pytest.param(
            "page=16,indices=12,scale=0.5", {"split_k": 1, "gather": "by_row"}, marks=pytest.mark.full
        ),
    ],
)  # fmt: skip
def test_tile_program_is_right(name: str, shape: str, given: Mapping[str, Value], tmp_path: Path) -> None:
    workload = small(name, shape)
    inputs, (template,) = operator(name).inputs(workload, "cpu", 5), templates(name)
    config = Config({**TILE, **OWN[name], **given})
    places = places_of(workload, config)
    with on_cpu():
        run_c(template.build(workload, config), {**inputs, **places}, tmp_path)
    check(workload, inputs, places)


@pytest.mark.parametrize("name", NAMES)
def test_one_program_takes_any_lists(name: str, tmp_path: Path) -> None:
    """Batch, entries of the list and pages are sizes of a call; items may have no page, and entries none."""
    ours, (template,) = operator(name), templates(name)
    first = small(name, "page=16,indices=12,pages=20,lengths=mixed")
    config = Config({**TILE, **OWN[name], "gather": "by_page", "split_k": 2})
    with on_cpu():
        free = {dim: T.dynamic(dim) for dim in template.dynamic_dims}
        anyone = DynamicWorkload(first.operator, {**first.dims, **free}, first.dtype, first.attrs)
        call = built_c(template.build(anyone, config), tmp_path)
    for indices, pages, counts, last in (
        (12, 20, [1, 4, 2, 5], [16, 1, 7, 15]),
        (9, 11, [0, 5, 3, 0], [-7, 16, 1, 99]),
        (3, 70, [0, 0], [0, 0]),
        (40, 40, [40], [3]),
    ):
        sizes = {"batch": len(counts), "indices": indices, "pages": pages}
        workload = replace(first, dims={**first.dims, **sizes})
        inputs = ours.inputs(workload, "cpu", 5)
        with_items(inputs, counts, last)
        assert ours.index_fault(workload, inputs) is None
        places = places_of(workload, config)
        call({**inputs, **places, **sizes})
        check(workload, inputs, places)
        for item, count in enumerate(counts):
            assert bool((places["output"][item] == 0).all()) == (count == 0)
            assert bool((places["lse"][item] == -math.inf).all()) == (count == 0)


def test_reference_is_torch_attention() -> None:
    workload = small("flash_decoding_paged", "page=16,indices=12,lengths=mixed", "float16")
    ours = operator("flash_decoding_paged")
    inputs = ours.inputs(workload, "cpu", 1)
    with_items(inputs, [5, 0, 3, 3], [2, 1, 16, 1])
    found = ours.reference(workload, inputs)
    for item, (begin, end) in enumerate(itertools.pairwise(inputs["kv_indptr"].tolist())):
        if begin == end:
            continue
        pages = inputs["kv_indices"][begin:end].long()
        count = 16 * (end - begin - 1) + int(inputs["kv_last_page_len"][item])
        k, v = (
            inputs[name][pages].flatten(0, 1)[:count].transpose(0, 1).double()
            for name in ("k_cache", "v_cache")
        )
        q = inputs["q"][item, :, None].double()
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        torch.testing.assert_close(found["output"][item], wanted[:, 0].float(), rtol=1e-5, atol=1e-5)
        scores = q[:, 0].view(2, 4, 16) @ k.transpose(1, 2) / 4
        sums = (scores * math.log2(math.e)).exp2().sum(-1).log2().flatten()
        torch.testing.assert_close(found["lse"][item], sums.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_costs_count_the_keys_of_the_lists(name: str) -> None:
    ours = operator(name)
    full, mixed = (
        ours.workload(f"{SMALL[name]},page=16,indices=64,lengths={kind}") for kind in ("full", "mixed")
    )
    lengths = ours.lengths(mixed)
    assert ours.lengths(full) == [256] * 4
    last = ours.contents(mixed)["kv_last_page_len"]
    assert sum(lengths) == 16 * (64 - 4) + last.sum()
    assert len(set(lengths)) > 1
    assert ours.flops(full) / ours.flops(mixed) == pytest.approx(1024 / sum(lengths))
    columns = (ours.min_bytes(full) - ours.min_bytes(mixed)) / (2 * (1024 - sum(lengths)))
    inputs = ours.inputs(full, "cpu", 1)
    assert columns == sum(inputs[pool][0, 0].numel() for pool in ours.pools)
    assert sorted(ours.contents(mixed)["kv_indices"]) == list(range(64)), "every page once"
    assert "kv_last_page_len" not in ours.inputs(small(name, "page=1,indices=9"), "cpu", 1)


@pytest.mark.parametrize("name", NAMES)
def test_the_room_of_the_longest_item_bounds_the_parts(name: str) -> None:
    """An item of two tiles of keys cannot be divided among more blocks."""
    (template,) = templates(name)
    workload = operator(name).workload(f"{SMALL[name]},page=64,indices=8")
    for target in ("h100", "a100", "mi300x"):
        configs = list(template.space(workload, load_target(target)).configs())
        assert configs
        assert max(config.int("split_k") * config.int("block_n") for config in configs) <= 128


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            "batch=1,heads=6,kv_heads=4,head_dim=64,indices=2",
            "flash_decoding_paged: heads=6 must be a multiple of kv_heads=4",
        ),
        ("batch=1,heads=4,kv_heads=4,head_dim=40,indices=2", "head_dim=40 must be a multiple of 16"),
        ("batch=70000,heads=4,kv_heads=4,head_dim=64,indices=2", "batch=70000 exceeds the 65535 blocks"),
        ("batch=1,heads=4,kv_heads=4,head_dim=64,indices=2,page=48", "page=48 must be one of"),
        ("batch=1,heads=4,kv_heads=4,head_dim=64,indices=2,scale=-1", "scale=-1.0 must be a number above 0"),
        (
            "batch=1,heads=8,kv_heads=8,head_dim=128,indices=40000",
            "flash_decoding_paged: a tensor would have",
        ),
    ],
)
def test_impossible_workloads_have_a_reason(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        operator("flash_decoding_paged").workload(shape)
