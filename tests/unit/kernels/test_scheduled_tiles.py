"""Tiles with explicit pipelines: who computes what, and what the generated code waits for."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.support.operator_shapes import MATMUL_TILE
from tilesight.builder.build import device_source
from tilesight.kernels import operator, templates
from tilesight.kernels._promoted_sums import chain_length
from tilesight.kernels._scheduled_tiles import RANGES, SharedTiles
from tilesight.lowering.lower import lower
from tilesight.problem.space import Config, Value
from tilesight.target.spec import load_target


@pytest.mark.parametrize(
    ("tiles", "depths", "blocks"), [(20, 16, 12), (7, 5, 4), (3, 50, 8), (12, 4, 6), (5, 1, 4)]
)
def test_every_iteration_has_one_block_and_every_sum_a_slot(tiles: int, depths: int, blocks: int) -> None:
    shared = SharedTiles(tiles, depths, blocks)
    done: dict[tuple[int, int], tuple[int, int]] = {}  # (tile, iteration): (block, number)
    for block in range(blocks):
        for number in range(RANGES):
            tile, first, count = (int(value) for value in shared.part(block, number))
            for depth in range(first, first + count):
                assert (tile, depth) not in done
                done[tile, depth] = (block, number)
    whole = shared.turns * blocks
    assert set(done) == {(whole + tile, depth) for tile in range(shared.rest) for depth in range(depths)}
    for tile in range(shared.rest):
        block, count, number = (int(value) for value in shared.slots(tile))
        found = {done[whole + tile, depth] for depth in range(depths)}
        assert found == {(block, number)} | {(block + other, 0) for other in range(1, count)}


def source(shape: str, changes: Mapping[str, Value], dtype: str = "bfloat16") -> str:
    target, workload = load_target("h100"), operator("matmul").workload(shape, dtype)
    template = templates("matmul")[0]
    config = Config({**MATMUL_TILE, **changes})
    return device_source(lower(template.build(workload, config), target, only_read=True), target)


def test_a_shared_stage_is_free_when_both_blocks_of_a_cluster_have_used_it() -> None:
    code = source("m=1024,n=1000,k=512", {"cluster_n": 2})
    # barriers exist before the other block uses them, and as long as it does
    assert re.search(r"fence_barrier_init\(\);\s*tl::cluster_sync\(\);", code)
    assert re.search(r"tl::cluster_sync\(\);\s*}\s*$", code)
    # eight warps of each of two blocks report to both
    assert "free[0].init(16);" in code
    assert len(re.findall(r"free\[[^;]*\]\.arrive\(0u\);\s*free\[[^;]*\]\.arrive\(1u\);", code)) == 1
    assert re.search(r"tma_load_multicast\(A_desc", code)
    assert not re.search(r"tma_load_multicast\(B_desc", code)


def test_shared_iterations_are_added_by_a_second_kernel_in_a_fixed_order() -> None:
    code = source("m=1280,n=1536,k=1024,fuse=bias", {"stream_k": 66})
    assert "matmul_kernel_1" in code
    assert "atomic" not in code.lower().split("extern", 1)[1]
    assert "cluster_sync" not in code


def test_rows_of_two_tiles_have_one_sum() -> None:
    """Sums of parts of k are rounded in another order, and which tile is written last is by chance."""
    last = ", 1122)"
    assert last in source("m=1250,n=1536,k=1024", {"policy": "full_row"})
    assert last not in source("m=1250,n=1536,k=1024", {"stream_k": 66})


STAY: Mapping[str, Value] = {"persistent": 66, "num_stages": 4}


def waits_of_parts(code: str) -> list[str]:
    """How many copies of parts may still read when a part is written; a barrier follows for all threads."""
    return re.findall(r"tma_store_wait<(\d), true>\(\);\s*tl::__sync_thread_partial\(\d, 256\);", code)


def test_copies_go_on_from_tile_to_tile_and_parts_wait_for_their_memory() -> None:
    code = source("m=1280,n=1536,k=192", {**STAY, "schedule": "overlapped", "policy": "full_row"})
    # three iterations a tile in four stages: their count goes on
    assert re.search(r"free\[\(\(\(turn \* 3\) \+ depth\) & 3\)\]\.wait", code)
    assert re.search(r"full\[\(\(\(turn_1 \* 3\) \+ step\) & 3\)\]\.wait", code)
    # all threads wait until the copy before the last one has read its part, for all of a tile before the
    # first part of the next one, and a block for all of them
    assert waits_of_parts(code) == ["0", "1"]
    assert re.search(r"tma_store_wait<0, true>\(\);\s*}\s*$", code)
    offsets = re.findall(r"tma_store\(C_desc, \(&\(\(\(bfloat16_t\*\)\w+\)\[(\d+)\]", code)
    assert offsets == ["0", "8192"]


def test_the_first_of_an_odd_number_of_parts_waits_for_the_last_one_of_the_tile_before() -> None:
    """Both have the same memory."""
    wide = {**STAY, "schedule": "overlapped", "policy": "full_row", "block_n": 192}
    code = source("m=1280,n=1536,k=192", wide)
    offsets = re.findall(r"tma_store\(C_desc, \(&\(\(\(bfloat16_t\*\)\w+\)\[(\d+)\]", code)
    assert offsets == ["0", "8192", "0"]
    assert waits_of_parts(code) == ["0", "1", "1"]


def test_a_residual_is_read_by_rows_when_the_part_before_the_last_one_has_left() -> None:
    code = source(
        "m=1280,n=1536,k=192,fuse=residual",
        {"num_stages": 4, "policy": "full_row", "epilogue": "parts"},
    )
    assert waits_of_parts(code) == ["0", "1"]
    body = code.split(") {", 1)[1]
    reads = re.findall(r"\*\((\w+)\*\)\(residual", body)
    assert reads == ["uint4"] * 2


CHAIN = chain_length(1)


def test_scales_of_blocks_are_loaded_for_a_chain_of_products_while_the_one_before_is_computed() -> None:
    config = {**STAY, "schedule": "overlapped", "policy": "full_row", "block_k": 128, "block_n": 128}
    shape = f"m=1280,n=1536,k={(CHAIN + 4) * 128},scales=block128"
    code = source(shape, config, "float8_e4m3fn")
    # every product is awaited and added: warpgroups take turns by themselves
    assert re.findall(r"wait_wgmma<(\d)>", code) == ["0"] * (CHAIN + 4)
    assert code.count("tl::wgmma_ss<") == CHAIN + 4
    # before the first product, and after that of the chain's first iteration; four iterations together
    for load in (r"\(float4\*\)\(A_scale", r"= B_scale\["):
        assert len(re.findall(load, code)) == 2
    before, between, after = code.split("(float4*)(A_scale")
    assert before.count("tl::wgmma_ss<") == 0
    assert between.count("tl::wgmma_ss<") == 1
    assert after.count("wait_wgmma<0>") == CHAIN + 4


def test_columns_with_two_scales_are_multiplied_in_parts() -> None:
    chain = chain_length(2)
    config = {**STAY, "schedule": "overlapped", "policy": "full_row", "block_k": 128, "block_n": 256}
    code = source(f"m=1280,n=1536,k={(chain + 2) * 128},scales=block128", config, "float8_e4m3fn")
    instructions = re.findall(r"wgmma_ss<\S+, \S+, \S+, (\d+, \d+, \d+)", code)
    assert instructions == ["64, 128, 32"] * 2 * (chain + 2)
    assert re.findall(r"wait_wgmma<(\d)>", code) == ["0"] * 2 * (chain + 2)
    # the stage of an iteration is free after both parts: one report of a warp for each iteration
    assert len(re.findall(r"free\[.*\]\.arrive\(", code)) == chain + 2
    before, between, after = code.split("(float2*)(A_scale")
    assert [part.count("tl::wgmma_ss<") for part in (before, between, after)] == [0, 1, 2 * chain + 3]
    assert len(re.findall(r"= B_scale\[", code)) == 2


def test_scales_of_an_uneven_number_of_blocks_are_loaded_one_by_one() -> None:
    config = {**STAY, "schedule": "overlapped", "policy": "full_row", "block_k": 128, "block_n": 128}
    code = source(f"m=1280,n=1536,k={(CHAIN + 3) * 128},scales=block128", config, "float8_e4m3fn")
    assert not re.search(r"\(float4\*\)\(A_scale", code)
    assert len(re.findall(r"= A_scale\[", code)) == 2
