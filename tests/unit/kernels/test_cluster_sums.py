"""Sums of parts of k that a cluster adds: what waits for what, in which memory, and what the model sees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import pytest

from tests.support.recorded_ir import SWITCH
from tilesight.builder.build import device_source
from tilesight.builder.launch_plan import read_plan
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.extract import read_profiles
from tilesight.kernels import operator, templates
from tilesight.lowering.lower import Lowered, lower
from tilesight.problem.space import Config, Value
from tilesight.profile.values import CLUSTER, Access, KernelProfile, Space
from tilesight.search_spaces.cluster_sums import row_elements
from tilesight.target.spec import load_target

TARGET = load_target("h200")
TEMPLATE = templates("matmul")[0]
TILE: Mapping[str, Value] = {
    "block_m": 32,
    "block_n": 64,
    "block_k": 64,
    "num_stages": 4,
    "threads": 128,
    "policy": "square",
    "epilogue": "shared",
    "swizzle": 0,
    "swapped": True,
    "split_k": 2,
}
BY_CLUSTER: Mapping[str, Value] = {"reduce": "cluster"}


@cache
def lowered(shape: str, dtype: str = "bfloat16", **changes: Value) -> Lowered:
    workload = operator("matmul").workload(shape, dtype)
    config = Config({**TILE, **changes})
    assert config in TEMPLATE.space(workload, TARGET), TEMPLATE.space(workload, TARGET).violations(config)
    return lower(TEMPLATE.build(workload, config), TARGET, only_read=True)


def source(shape: str, dtype: str = "bfloat16", **changes: Value) -> str:
    return device_source(lowered(shape, dtype, **{**BY_CLUSTER, **changes}), TARGET)


def test_the_blocks_of_all_parts_are_a_cluster_and_there_is_no_second_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, "0")  # the plan names the function's own tensors, which recorded IR has not
    found = lowered("m=32,n=1024,k=2048", split_k=4, **BY_CLUSTER)
    (launch,) = read_plan(found).launches
    assert (launch.grid, launch.cluster) == ((16, 1, 4), (1, 1, 4))
    workload = operator("matmul").workload("m=32,n=1024,k=2048", "bfloat16")
    assert not TEMPLATE.scratch(workload, Config({**TILE, **BY_CLUSTER}))
    assert TEMPLATE.scratch(workload, Config(TILE))


@pytest.mark.parametrize("shape", ["m=32,n=1024,k=2048", "m=32,n=1001,k=2047"])
def test_sums_are_written_where_stages_were_and_read_when_all_are_there(shape: str) -> None:
    code = source(shape)
    wait = r"(?:__syncthreads\(\)|tl::__sync_thread_partial\(\d, 128\));"
    order = (
        wait,  # all warps of the block have used their stages
        r"\(\(float\*\)own\)\[[^;]* = c_sum\[",
        wait + r"\s*tl::cluster_sync\(\);",
        r"add_parts\(\(&\(sums",
        r"__syncwarp\(\);\s*tl::cluster_arrive\(\);",
        r"(?:\*\(uint2\*\)\(C \+|C\[)",
        r"__syncwarp\(\);\s*tl::cluster_wait\(\);[\s}]*$",
    )
    body = code[code.rindex("__launch_bounds__") :]
    body = body[body.index("{") :]
    assert re.search(".*?".join(order), body, re.DOTALL)
    assert [body.count(name) for name in ("cluster_sync", "cluster_arrive", "cluster_wait")] == [1, 1, 1]
    # not beside the stages: the larger ones of them begin there
    assert re.search(r"void\* own = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ 0\)\);", code)


def test_parts_are_added_in_the_order_of_k_from_every_block() -> None:
    code = source("m=32,n=1024,k=2048", split_k=4)
    assert re.search(r"for \(int rank = 0; rank < 4; \+\+rank\) \{\s*asm volatile", code)
    assert "ld.shared::cluster.v4.f32" in code
    integers = source("m=32,n=1024,k=2048", "int8", block_k=128, num_stages=3)
    assert "ld.shared::cluster.v4.s32" in integers
    assert "int4 found[2];" in integers


@pytest.mark.parametrize("columns", [16, 32, 64, 128, 192, 256])
@pytest.mark.parametrize("swapped", [False, True])
def test_the_lanes_of_a_warp_write_their_sums_to_different_banks(columns: int, swapped: bool) -> None:
    stride = row_elements(columns, swapped)
    assert stride * 4 % 16 == 0  # of rows, from which 16 bytes are read together
    if swapped:  # a lane has a column of C in each of two rows
        banks = [(lane % 4 * 2 * stride + lane // 4) % 32 for lane in range(32)]
        assert len(set(banks)) == 32
    else:  # two neighbours, which half of the lanes store at once
        pairs = [(lane // 4 * stride + lane % 4 * 2) % 32 for lane in range(16)]
        assert len({bank for pair in pairs for bank in (pair, pair + 1)}) == 32


def accesses(profile: KernelProfile, space: Space) -> list[Access]:
    phases = [phase for role in profile.roles for phase in role.phases]
    return [access for phase in phases for access in phase.work.accesses if access.space is space]


@pytest.mark.parametrize("parts", [2, 4])
def test_the_model_sees_the_sums_of_all_parts_pass_through_shared_memory(parts: int) -> None:
    (profile,) = read_profiles(lowered("m=32,n=1024,k=2048", split_k=parts, **BY_CLUSTER), TARGET)
    assert profile.cluster == parts
    assert not profile.unknown_calls
    tile = 32 * 64 * 4
    assert profile.rasterization.depth == parts
    stored, loaded = (
        sum(a.bytes for a in accesses(profile, Space.SHARED) if a.mechanism == mechanism)
        for mechanism in ("st", "ld" + CLUSTER)
    )
    assert stored == tile
    assert loaded == tile  # a share of the rows, of every part
    written = [a for a in accesses(profile, Space.GLOBAL) if a.write]
    assert sum(a.bytes for a in written) == 32 * 64 * 2 / parts


def test_a_cluster_is_predicted_to_save_the_time_of_the_second_kernel() -> None:
    # the learned part was trained without such kernels
    shape, model = "m=32,n=8192,k=8192", AnalyticalModel()
    later, together = (
        model.predict(read_profiles(lowered(shape, block_n=128, **changes), TARGET), TARGET).latency_us
        for changes in ({}, BY_CLUSTER)
    )
    assert 0.85 * later < together < later
