"""Grouped products with explicit pipelines: which tiles a block has, and what generated code waits for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tests.unit.kernels import walks
from tilesight.builder.build import device_source
from tilesight.executor.tasks import Profiled, lower_and_profile
from tilesight.kernels import operator, templates
from tilesight.kernels._group_tiles import GroupTiles
from tilesight.kernels._grouped_tensors import GroupedTensors
from tilesight.kernels._promoted_sums import chain_length
from tilesight.lowering.lower import lower
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config, Value
from tilesight.target.spec import load_target

GROUPED = operator("grouped_matmul")
(TEMPLATE,) = templates("grouped_matmul")
OVERLAPPED: Mapping[str, Value] = {
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "num_stages": 4,
    "threads": 256,
    "policy": "full_row",
    "swizzle": 0,
    "skip": "loop",
    "persistent": 132,
    "schedule": "overlapped",
}


def tiles_of_blocks(ends: list[int], masked: bool, blocks: int, folder: Path) -> list[list[list[int]]]:
    """The places of the tiles of each block, in tiles of 16 x 32, where C has 80 columns."""
    groups = len(ends) if masked else len(ends) - 1
    tiles = GroupTiles(GroupedTensors(True, masked, False, "none"), groups, 16, 32, 3, 5, blocks)
    out = torch.full((blocks, walks.MOST, 4), -1, dtype=torch.int32)
    tensors = {"ends": torch.tensor(ends, dtype=torch.int32), "out": out}
    with on_cpu():
        run_c(walks.places(tiles, len(ends)), tensors, folder)
    return [[place for place in own if place[0] >= 0] for own in out.tolist()]


@pytest.mark.parametrize(
    ("ends", "masked", "blocks"),
    [
        ([0, 0, 17, 33, 33, 50], False, 4),  # no rows, one row left over, a whole tile
        ([0, 100], False, 7),
        ([20, 0, 17, 1], True, 3),
        ([0, 5, 5, 5], False, 8),  # more blocks than tiles, and groups without rows at the end
        ([0, 0, 17, 33, 33, 50], False, 24),  # a block for each tile that there may be
        ([0, 0, 0], False, 2),
    ],
)
def test_every_tile_has_one_block_and_blocks_have_as_many(
    ends: list[int], masked: bool, blocks: int, tmp_path: Path
) -> None:
    found = tiles_of_blocks(ends, masked, blocks, tmp_path)
    ranges = list(enumerate((0, end) for end in ends)) if masked else []
    ranges = ranges or list(enumerate(itertools.pairwise(ends)))
    expected = [
        [group, row, col, end]
        for group, (begin, end) in ranges
        for col in range(0, 96, 32)
        for row in range(begin, end, 16)
    ]
    # in turns
    assert [expected[block::blocks] for block in range(blocks)] == found


@cache
def source(shape: str, dtype: str = "bfloat16", **changes: Any) -> str:
    target, workload = load_target("h200"), GROUPED.workload(shape, dtype)
    config = Config({**OVERLAPPED, **changes})
    return device_source(lower(TEMPLATE.build(workload, config), target, only_read=True), target)


SMALL = "tokens=3000,groups=5,n=1032,k=192"


def test_copies_go_on_from_tile_to_tile() -> None:
    code = source(SMALL)
    # three iterations a tile in four stages: their count goes on
    assert re.search(r"free\[\(\(\(turn \* 3\) \+ depth\) & 3\)\]\.wait", code)
    assert re.search(r"full\[\(\(\(turn_1 \* 3\) \+ step\w*\) & 3\)\]\.wait", code)


def test_a_warpgroup_without_rows_only_waits_and_reports() -> None:
    """Eight warps report that a stage is free when all their lanes have seen it full, with rows or not."""
    code = source(SMALL)
    assert "free[0].init(8);" in code
    loop = code[code.index("full[(((turn_1 * 3) + step") :].split("tma_store_wait", 1)[0]
    waiting, rest = re.split(r"if \(.*threadIdx.x\) >> 7\) \* 64\) \+ \w+\) < \(end\w* \+ 64\)\) {", loop)
    branch, reporting = rest.split("tl::wait_wgmma<0>();\n", 1)
    assert ".wait(" in waiting
    assert branch.count("wgmma_ss<") == 1
    assert re.match(
        r"\s*}\s*__syncwarp\(\);\s*if \(\(\(\(int\)threadIdx.x\) % 32\) == 0\) {\s*free\[.*\.arrive\(\);",
        reporting,
    )


def test_rows_of_the_next_group_are_not_written() -> None:
    """A whole tile leaves through TMA; the rows of others are stored in vectors up to the group's end."""
    code = source(SMALL)
    assert (
        len(re.findall(r"if \(\(row\w* \+ 128\) <= end\w*\) {\s*if \(tl::tl_shuffle_elect<256>", code)) == 2
    )
    stores = re.findall(r"if \((.*)\) {\s*(?:if \(.*\) {\s*)*\*\((\w+)\*\)\(C \+", code)
    assert [vector for _, vector in stores] == ["uint4", "uint4"]
    assert all("< (end" in condition or "< end" in condition for condition, _ in stores)


def test_parts_wait_for_their_memory() -> None:
    waits = re.findall(
        r"tma_store_wait<(\d), true>\(\);\s*tl::__sync_thread_partial\(\d, 256\);", source(SMALL)
    )
    assert waits == ["0", "1"]
    assert re.search(r"tma_store_wait<0, true>\(\);\s*}\s*$", source(SMALL))


@pytest.mark.parametrize(
    ("shape", "dtype", "changes", "instruction", "count"),
    [
        # both products of a tile are one
        (f"{SMALL},fuse=silu_mul", "bfloat16", {}, "64, 256, 16", 1),
        ("tokens=300,groups=5,n=1032,k=192,rows=masked,layout=nn", "float16", {}, "64, 128, 16", 1),
        (f"{SMALL},scales=row,fuse=silu_mul", "float8_e4m3fn", {"block_k": 128}, "64, 256, 32", 1),
        # two sums in turns, in a chain of two iterations
        (f"{SMALL},scales=block128", "float8_e4m3fn", {"block_k": 128}, "64, 128, 32", 2),
        # two columns of blocks, or both products of a tile, in turns
        (f"{SMALL},scales=block128", "float8_e4m3fn", {"block_k": 128, "block_n": 256}, "64, 128, 32", 4),
        (f"{SMALL},scales=block128,fuse=silu_mul", "float8_e4m3fn", {"block_k": 128}, "64, 128, 32", 4),
    ],
)
def test_products_of_every_layout(
    shape: str, dtype: str, changes: dict[str, Any], instruction: str, count: int
) -> None:
    found = re.findall(r"wgmma_ss<\S+, \S+, \S+, (\d+, \d+, \d+)", source(shape, dtype, **changes))
    assert found == [instruction] * count


@pytest.mark.parametrize("shape", [SMALL, "tokens=700,groups=5,n=1032,k=192,rows=masked"])
def test_the_model_counts_the_tiles_of_each_block(shape: str) -> None:
    workload = GROUPED.workload(shape, "bfloat16")
    profiled = lower_and_profile(
        Candidate(workload, load_target("h200"), TEMPLATE, Config({**OVERLAPPED, "persistent": 66}))
    )
    assert isinstance(profiled, Profiled)
    (kernel,) = profiled.kernels
    assert not kernel.notes
    ends = GROUPED.contents(workload)["ends"].tolist()
    masked = workload.attrs["rows"] == "masked"
    rows = ends if masked else [end - begin for begin, end in itertools.pairwise(ends)]
    tiles = sum(-(-count // 128) for count in rows) * 9
    for role in kernel.roles:
        loops = [phase.trips.per_block for phase in role.phases if phase.is_loop]
        if loops:
            assert max(loops, key=sum) == tuple(3.0 * len(range(block, tiles, 66)) for block in range(66))


def test_a_warpgroup_without_rows_waits_for_products_with_scales_of_blocks() -> None:
    shape = f"tokens=1000,groups=7,n=2056,k={chain_length(1) * 128},scales=block128"
    code = source(shape, "float8_e4m3fn", block_k=128)
    resting = code[: code.index("tma_store_wait<0")].rsplit("} else {", 1)[1]
    assert re.search(r"full\[.*\]\.wait\(.*\);\s*__syncwarp\(\);\s*if .*\s*free\[.*\]\.arrive", resting)
    assert "wgmma" not in resting


def test_blocks_of_one_tile_are_as_many_as_there_may_be() -> None:
    """Groups of 3000 rows have at most 23 + 5 tiles of 128 below each other, and 9 side by side."""
    target, changes = load_target("h200"), {"persistent": 0}
    candidate = Candidate(
        GROUPED.workload(SMALL, "bfloat16"), target, TEMPLATE, Config({**OVERLAPPED, **changes})
    )
    found = lower_and_profile(candidate)
    assert isinstance(found, Profiled)
    assert found.kernels[0].grid == (28 * 9, 1, 1)
