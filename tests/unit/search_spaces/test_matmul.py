from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.operator_shapes import MATMUL_TILE
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.search_spaces import matmul
from tilesight.target.spec import load_target

BASE = MATMUL_TILE


SCALED_BLOCKS = "m=4096,n=8192,k=8192,scales=block128"
FUSED = "m=4096,n=8192,k=8192,fuse=gelu"
SPLIT = {"split_k": 2, "reduce": "cluster"}
STAY = {"persistent": 132, "schedule": "overlapped", "policy": "full_row"}


def reasons(target: str, shape: str, **changes: int | str) -> dict[str, str]:
    dtype = "float32" if target == "cpu" else "bfloat16"
    space = matmul.space(operator("matmul").workload(shape, dtype), load_target(target))
    base = (
        BASE
        if target != "cpu"
        else {"block_m": 128, "block_n": 128, "block_k": 128, "tile_m": 4, "tile_n": 32, "unroll": 4}
    )
    return {v.constraint: v.reason for v in space.violations(Config({**base, **changes}))}


def test_base_is_legal_on_nvidia() -> None:
    assert reasons("h200", "M1") == reasons("a100", "M1") == {}


@pytest.mark.parametrize(
    ("target", "shape", "changes", "constraint", "message"),
    [
        (
            "h200",
            "M1",
            {"num_stages": 5, "block_k": 128},
            "shared memory",
            "need 328704 bytes.*one block on h200 has 232448: lower num_stages",
        ),
        ("a100", "M1", {"num_stages": 5, "block_m": 256}, "shared memory", "245760 bytes.*a100 has 166912"),
        (
            "mi300x",
            "M1",
            {"num_stages": 1, "block_m": 256, "block_n": 256, "threads": 512},
            "shared memory",
            "131072 bytes.*mi300x has 65536",
        ),
        (
            "h200",
            "M1",
            {"block_m": 256, "block_n": 256},
            "registers",
            "256 registers of each of 256 threads, which have at most 240",
        ),
        (
            "h200",
            "M1",
            {"threads": 64},
            "whole matrix instructions",
            "threads=64 is no whole warpgroup.*take threads=128",
        ),
        (
            "h200",
            "S512",
            {"block_n": 16, "block_m": 64},
            "whole matrix instructions",
            "2 warpgroups side by side 8 columns of block_n=16",
        ),
        (
            "h200",
            "M1",
            {"threads": 384},
            "whole matrix instructions",
            "128x128 cannot be divided evenly over 12 warps",
        ),
        (
            "h200",
            "M1",
            {"policy": "full_row", "block_m": 64, "threads": 128},
            "whole matrix instructions",
            "as policy=square does: take square",
        ),
        ("h200", "M1", {"block_m": 32, "threads": 128}, "tile not too small", "8192 blocks for 132 cores"),
        (
            "h200",
            "M0",
            {"block_m": 256, "swizzle": 8, "num_stages": 2},
            "swizzle",
            "128 blocks that run at once on 132 cores",
        ),
        ("h200", "m=512,n=65536,k=512", {"swizzle": 8}, "swizzle", "all 4 block rows as swizzle=4 does"),
        ("h200", "m=100,n=65536,k=512", {"swizzle": 8}, "swizzle", "makes no panels of 1x512 blocks"),
        ("h200", "m=40,n=65536,k=512", {}, "block_m within m", "block_m=128 is wasted on m=40: 64 covers it"),
        ("h200", "m=4096,n=4096,k=80", {}, "stages within loop", "num_stages=3 exceeds the 2 iterations"),
        (
            "h200",
            "M1",
            {"stream_k": 132, "cluster_m": 2},
            "one schedule",
            "stream_k=132, cluster_m=2 and cluster_n=1 are schedules of their own: take one",
        ),
        ("h200", "M1", {"cluster_n": 2, "persistent": 132}, "one schedule", "take persistent=0"),
        (
            "h200",
            "M1",
            {"block_n": 160, "block_m": 64},
            "uneven columns",
            "128 rows or more.*take block_n=128",
        ),
        (
            "h200",
            "M1",
            {"block_n": 160, "block_m": 256},
            "uneven columns",
            "over 2 warpgroups side by side.*take policy=full_row",
        ),
        ("h200", "M1", {"persistent": 132}, "schedule", "ends its copies with each tile: take schedule="),
        ("h200", "M1", {"schedule": "overlapped"}, "schedule", "not of persistent=0: take schedule=serial"),
        ("h200", FUSED, {**STAY, "epilogue": "parts"}, "schedule", "2 parts in any epilogue: take epilogue="),
        ("h200", "M1", {**STAY, "block_n": 64}, "schedule", "8192 elements, 64 deep.*take tiles of 128x128"),
        ("h200", "M1", {**STAY, "threads": 128}, "schedule", "is 1 warpgroup, .* take threads=256"),
        ("h200", "M1", {**STAY, "num_stages": 2}, "persistent blocks", "copies too late: take num_stages=3"),
        (
            "h200",
            "M1",
            {**STAY, "policy": "square"},
            "parts",
            "2 warpgroups side by side.*take policy=full_row",
        ),
        ("h200", FUSED, {"epilogue": "parts", "block_n": 64}, "parts", "128x64 has no 2 parts of 64 columns"),
        ("h200", "M1", {"stream_k": 132, "block_m": 32}, "one schedule", "take block_m=64 or more"),
        (
            "h200",
            "M1",
            {"stream_k": 132},
            "shared iterations",
            "2048 tiles, which leave 3 % of 16 waves idle",
        ),
        ("h200", "S1024", {"stream_k": 132}, "shared iterations", "64 tiles for 132 cores: take split_k=2"),
        (
            "h200",
            "m=2560,n=2048,k=192",
            {"stream_k": 132, "block_n": 256},
            "shared iterations",
            "gives each block 1 iterations: take stream_k=0",
        ),
        (
            "h200",
            "M1",
            {"cluster_m": 2, "block_m": 256},
            "clusters",
            "shares tiles of 128 .* take cluster_m=1 and cluster_n=2",
        ),
        ("h200", "m=4224,n=4096,k=4096", {"cluster_m": 2}, "clusters", "leaves one of 33 blocks without"),
        ("h200", "M1", {"cluster_m": 2, "num_stages": 2}, "clusters", "take num_stages=3"),
        (
            "h200",
            "D128",
            {**SPLIT, "split_k": 1},
            "cluster of parts",
            "split_k=1 has none: take reduce=kernel",
        ),
        (
            "h200",
            "m=16,n=1024,k=8192",
            {**SPLIT, "split_k": 16, "block_m": 16, "block_n": 256, "threads": 128},
            "cluster of parts",
            "clusters of 16 blocks, and h200 has clusters of at most 8: take split_k=8",
        ),
        (
            "h200",
            "D128",
            {**SPLIT, "split_k": 3},
            "cluster of parts",
            "divides block_m=128 among 3 blocks, which is not even: take another split_k",
        ),
        (
            "h200",
            "D256",
            {**SPLIT, "block_m": 256, "block_n": 256, "threads": 512, "block_k": 32},
            "shared memory",
            "need 271360 bytes.*one block on h200 has 232448",
        ),
        ("h200", "S512", {**SPLIT, "cluster_m": 2}, "one schedule", "beside split_k=2: take split_k=1"),
        ("a100", "S512", SPLIT, "reduce", "kernel"),
        (
            "a100",
            "m=2000000,n=64,k=64",
            {"block_m": 16, "block_n": 64, "num_stages": 1, "threads": 64},
            "grid",
            "125000 block rows.*at most 65535",
        ),
        (
            "cpu",
            "S512",
            {"tile_m": 12},
            "tile_m divides block_m",
            "tile_m=12 must divide block_m=128; nearest legal block_m: 96, 192",
        ),
        ("cpu", "S512", {"tile_m": 12, "block_m": 192, "tile_n": 64}, "registers", "12x64 keeps 768 values"),
        ("cpu", "S512", {"block_m": 512, "block_n": 512, "block_k": 512}, "cache", "2097152 bytes.*1048576"),
    ],
)
def test_reasons(
    target: str, shape: str, changes: dict[str, int | str], constraint: str, message: str
) -> None:
    found = reasons(target, shape, **changes)
    assert constraint in found, found
    assert re.search(message, found[constraint]), found[constraint]


def test_a_wgmma_must_fit_what_ptxas_compiles_with() -> None:
    """Measured: 46 kernels of 192x256 tiles do not compile with 512 threads; 192x192 and 256x192 do."""
    name, tile = (
        "registers of an instruction",
        {"block_k": 64, "num_stages": 2, "policy": "square", "swizzle": 0},
    )
    shape = "m=4096,n=4096,k=4096"
    found = reasons("h200", shape, block_m=192, block_n=256, threads=384, **tile)
    assert re.search("256 columns needs 154 registers .* compiles 512 launched threads with 128", found[name])
    assert name not in reasons("h200", shape, block_m=192, block_n=192, threads=384, **tile)
    assert name not in reasons(
        "h200", shape, block_m=256, block_n=192, threads=384, **{**tile, "policy": "full_col"}
    )
    assert name not in reasons("h200", shape, block_m=128, block_n=256, threads=256, **tile)
    # no warpgroup that only copies, so more registers for the others: these compile
    assert name not in reasons("h200", "m=4097,n=4097,k=4097", block_m=192, block_n=256, threads=384, **tile)


def test_schedules_of_their_own_are_few() -> None:
    """Of hopper alone, by TMA, without a scale for each block of k, and a small part of the space."""
    assert reasons("h200", "m=2560,n=2048,k=8192", stream_k=132, block_n=256) == {}
    assert reasons("h200", "M1", cluster_m=2) == reasons("h200", "M1", cluster_n=2) == {}
    names = ("stream_k", "cluster_m", "cluster_n")
    for target, shape in (("a100", "M1"), ("h200", "m=4001,n=4001,k=4001"), ("mi300x", "M1")):
        plain = matmul.space(operator("matmul").workload(shape, "bfloat16"), load_target(target))
        assert not any(name in config for name in names for config in plain.sample(200))
    space = matmul.space(operator("matmul").workload("M0", "bfloat16"), load_target("h200"))
    scheduled = sum(any(name in config for name in names) for config in space.configs())
    assert 0 < scheduled < 0.4 * (len(space.configs()) - scheduled)


def test_blocks_stay_only_where_their_copies_and_their_parts_can() -> None:
    assert reasons("h200", "M1", **STAY) == {}


def test_products_with_a_scale_for_each_block_of_k_have_two_sums() -> None:
    """Those of a block of k, and those of the tile."""
    space = matmul.space(operator("matmul").workload(SCALED_BLOCKS, "float8_e4m3fn"), load_target("h200"))
    tile = Config({**BASE, **STAY, "block_k": 128, "num_stages": 5})
    assert tile in space
    assert not any(config.int("stream_k", 0) for config in space.sample(300))
    wide = Config({**tile, "block_n": 256, "num_stages": 4})
    assert wide in space
    in_turn = space.violations(Config({**wide, "persistent": 0, "schedule": "serial"}))
    assert "whole blocks of scales" in {v.constraint for v in in_turn}
    one_group = Config({**tile, "threads": 128})
    assert {"registers", "rows of scales"} <= {v.constraint for v in space.violations(one_group)}
    side_by_side = space.violations(Config({**tile, "policy": "square"}))
    assert any("take block_m=128 with warpgroups below each other" in v.reason for v in side_by_side)


def test_clusters_add_parts_of_k_on_hopper() -> None:
    assert reasons("h200", "D128", **SPLIT) == reasons("h100", "D128", **SPLIT) == {}
    assert reasons("h200", "m=512,n=509,k=513", **SPLIT) == {}  # without TMA
    for target in ("a100", "mi300x"):
        space = matmul.space(operator("matmul").workload("D128", "bfloat16"), load_target(target))
        assert not any("reduce" in config for config in space.sample(200))
    # a target without clusters
    h200 = load_target("h200")
    alone = replace(h200, figures={k: v for k, v in h200.figures.items() if k != "cluster.max_blocks"})
    space = matmul.space(operator("matmul").workload("D128", "bfloat16"), alone)
    assert not any("reduce" in config for config in space.sample(200))


def test_one_pipeline_depth_on_amd() -> None:
    found = reasons("mi300x", "M1", num_stages=3)
    assert "same kernel on mi300x as 1" in found["pipeline"]


def test_large_results_are_written_directly_with_a_small_lds() -> None:
    tile = {"block_m": 256, "block_n": 256, "threads": 512, "num_stages": 1}
    assert "shared memory" in reasons("mi300x", "M1", **tile)
    assert reasons("mi300x", "M1", **tile, epilogue="direct") == {}
    assert "epilogue" in reasons("h200", "M1", epilogue="direct")


def test_unaligned_rows_have_no_producer_warpgroup() -> None:
    """Without TMA all registers belong to the threads that compute."""
    tile = {"block_m": 256, "block_n": 192, "threads": 512, "num_stages": 2, "block_k": 32}
    assert "registers" in reasons("h200", "m=4096,n=4096,k=4096", **tile)
    assert reasons("h200", "m=4096,n=4095,k=4095", **tile) == {}


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ("m=2500,n=2008,k=4000,layout=nt,fuse=bias_gelu", (256, 160)),  # 130 tiles for 132 cores
        ("m=4096,n=8192,k=8192,fuse=gelu", (128, 256)),
    ],
)
def test_by_default_large_tiles_are_finished_by_parts(shape: str, tile: tuple[int, int]) -> None:
    """A tile of 256x128, finished at once, spilled 516 bytes: 112.5 us, by parts 61.2 (first shape, H200)."""
    target, workload = load_target("h200"), operator("matmul").workload(shape, "float16")
    config = templates("matmul")[0].default_config(workload, target)
    assert config is not None
    assert (config["block_m"], config["block_n"], config["epilogue"]) == (*tile, "parts")
