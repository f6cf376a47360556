"""mla_decode: results of its tile program on a CPU, and properties of the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.builder.build import device_source
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.lowering.lower import lower
from tilesight.problem.space import Config, Value
from tilesight.problem.workload import Workload
from tilesight.runner.vendors import vendor_fault
from tilesight.target.spec import load_target

MLA = operator("mla_decode")
(TEMPLATE,) = templates("mla_decode")


@pytest.mark.parametrize(
    ("shape", "split_k"),
    [
        pytest.param("batch=2,heads=10,kv_len=128,q_len=2,page=64,lengths=mixed", 1, marks=pytest.mark.full),
        # 16 steps in three parts, and more indices than keys
        pytest.param("batch=2,heads=20,kv_len=500,q_len=2,topk=512,lse=true", 3, marks=pytest.mark.full),
        ("batch=2,heads=20,kv_len=448,q_len=2,topk=512,page=64,lse=true", 3),
    ],
)
def test_tile_program_is_right(shape: str, split_k: int, tmp_path: Path) -> None:
    workload = MLA.workload(f"{shape},dim=64,rope_dim=32")
    workload = Workload(workload.operator, workload.dims, "float32", workload.attrs)
    inputs = MLA.inputs(workload, "cpu", 5)
    config = Config(
        {"block_m": 16, "block_n": 32, "num_stages": 1, "threads": 32, "split_k": split_k,
         "policy": "full_row", "gather": "by_page"}
    )  # fmt: skip
    nothing = {
        name: torch.full(size, torch.nan)
        for name, size in [
            *MLA.outputs(workload).items(),
            *((name, size) for name, (size, _) in TEMPLATE.scratch(workload, config).items()),
        ]
    }
    with on_cpu():
        run_c(TEMPLATE.build(workload, config), {**inputs, **nothing}, tmp_path)
    for name, expected in MLA.reference(workload, inputs).items():
        torch.testing.assert_close(nothing[name], expected, rtol=1e-4, atol=1e-5)


def test_all_keys_as_indices_are_dense_attention() -> None:
    dense, sparse = (
        MLA.workload(f"batch=2,heads=4,kv_len=512,dim=64,topk={topk}", "float16") for topk in (0, 512)
    )
    inputs, known = MLA.inputs(dense, "cpu", 1), MLA.inputs(sparse, "cpu", 1)
    assert torch.equal(inputs["KV"], known["KV"])
    known["Indices"] = torch.stack([torch.randperm(512) for _ in range(2)]).view(2, 1, 512).int()
    torch.testing.assert_close(MLA.reference(sparse, known), MLA.reference(dense, inputs))


def test_selected_keys_are_found_in_pages() -> None:
    shape = "batch=2,heads=4,kv_len=640,dim=64,q_len=2,topk=512"
    alone, paged = (MLA.workload(f"{shape}{more}", "float16") for more in ("", ",page=64"))
    inputs = MLA.inputs(paged, "cpu", 1)
    assert list(inputs) == ["Q", "KV", "Table", "Indices"]
    assert not torch.equal(inputs["Table"].flatten(), torch.arange(20))
    keys = inputs["KV"][inputs["Table"]].view(2, 640, 1, 128)
    gathered = {"Q": inputs["Q"], "KV": keys, "Indices": inputs["Indices"]}
    reference = MLA.reference(paged, inputs)
    torch.testing.assert_close(reference, MLA.reference(alone, gathered))
    for call in MLA.vendor(paged, inputs).values():
        assert not vendor_fault(MLA, paged, call(), reference)
    assert MLA.flops(paged) == MLA.flops(alone)
    assert MLA.min_bytes(paged) == MLA.min_bytes(alone) + 4 * 20  # the table


def test_costs_count_selected_keys_once() -> None:
    workload = MLA.workload("batch=1,heads=4,kv_len=600,dim=64,q_len=2,topk=512")
    indices = MLA.contents(workload)["Indices"]
    assert (indices[0, 0] == -1).sum() == 64
    assert MLA.flops(workload) == 2 * 4 * (2 * 64 + 64) * (512 + 512 - 64)
    union = len(set(indices.ravel().tolist()) - {-1})
    assert MLA.min_bytes(workload) == 2 * (8 * (128 + 64) + union * 128) + 4 * 1024


def test_two_warpgroups_divide_the_columns_of_the_output() -> None:
    """64 rows of 512 sums are 256 registers of each of 128 threads, and 128 of each of 256."""
    space = TEMPLATE.space(MLA.workload("MLA3"), load_target("h200"))
    plan = Config(
        {"block_m": 64, "block_n": 64, "num_stages": 2, "threads": 256, "split_k": 1, "policy": "full_row",
         "gather": "by_page"}
    )  # fmt: skip
    assert plan in space
    reasons = " ".join(one.reason for one in space.violations(Config({**plan, "threads": 128})))
    assert "the accumulators take 288 registers" in reasons


ROLES = Config(
    {"block_m": 64, "block_n": 64, "num_stages": 2, "threads": 384, "split_k": 1, "policy": "full_row",
     "gather": "by_page", "schedule": "overlapped"}
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"schedule": "paired"}, "leaves one of 3 blocks with the same keys alone: take overlapped"),
        ({"schedule": "serial"}, "threads=384 have roles that schedule=serial has not: take threads=256"),
        ({"threads": 256}, "threads=256 is another division: take threads=384"),
    ],
)
def test_roles_have_tiles_of_their_own(change: dict[str, Value], reason: str) -> None:
    space = TEMPLATE.space(MLA.workload("batch=8,heads=192,kv_len=4096,page=64"), load_target("h200"))
    reasons = " ".join(one.reason for one in space.violations(Config({**ROLES, **change})))
    assert reason in reasons
    assert bool(reason) == bool(reasons)


@pytest.mark.parametrize(
    "shape",
    ["MLA0", "batch=8,heads=128,kv_len=4096,dim=256,topk=2048", "batch=8,heads=128,kv_len=4096,page=32"],
)
def test_roles_need_many_heads_and_whole_tiles(shape: str) -> None:
    """Small pages are not one copy of a tile, and half of a short key not one of a warp; 16 heads do not
    fill a tile."""
    space = TEMPLATE.space(MLA.workload(shape), load_target("h200"))
    assert "schedule" not in {parameter.name for parameter in space.parameters}


@pytest.mark.parametrize("shape", ["MLA5", "MLA6", "batch=8,heads=128,kv_len=4096,page=16,topk=2048"])
def test_roles_copy_selected_keys_from_pages_of_any_size(shape: str) -> None:
    default = TEMPLATE.default_config(MLA.workload(shape), load_target("h200"))
    assert default is not None
    assert (default["schedule"], default["gather"]) == ("overlapped", "by_row")


@pytest.mark.full
def test_weights_reach_products_that_other_threads_issue() -> None:
    """Threads that write weights make them visible to wgmma before they report them; a cluster meets at both
    ends, since its blocks report to each other."""
    workload = MLA.workload("batch=2,heads=128,kv_len=192,dim=128,page=64")
    target = load_target("h200")
    prim_func = TEMPLATE.build(workload, Config({**ROLES, "schedule": "paired"}))
    code = device_source(lower(prim_func, target, only_read=True), target).split('extern "C"')[-1]
    assert code.count("fence_proxy_async") == 3  # of queries, and of both halves of the weights
    assert code.count("cluster_sync") == 2
    assert code.count("tma_load_multicast") == 6  # two halves, and rotated keys; before the loop and in it


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,heads=16,kv_len=64,dim=576", "dim=576 must be a multiple of 64 and at most 512"),
        ("batch=1,heads=16,kv_len=64,lengths=mixed,topk=512", "lengths=mixed must be full where topk=512"),
        ("batch=1,heads=16,kv_len=100,page=64,topk=512", "kv_len=100.*must be a multiple of page=64"),
        ("batch=128,heads=128,kv_len=32768", "split the batch"),
        ("batch=1,heads=16,kv_len=64,topk=100", "topk=100 must be one of"),
    ],
)
def test_impossible_workloads_have_a_reason(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        MLA.workload(shape)
