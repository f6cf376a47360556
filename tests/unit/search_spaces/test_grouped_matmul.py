"""The search space of grouped_matmul: which schedules are legal, and why others are not."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tilesight.kernels import operator, template_for
from tilesight.problem.space import Config, SearchSpace, Value
from tilesight.target.spec import load_target

GROUPED = operator("grouped_matmul")
TILE: Mapping[str, Value] = {
    "block_m": 128,
    "block_n": 256,
    "block_k": 64,
    "num_stages": 4,
    "threads": 256,
    "policy": "full_row",
    "swizzle": 0,
    "skip": "loop",
    "persistent": 132,
    "schedule": "overlapped",
}
FLOAT8 = {"block_k": 128, "block_n": 128}


def space(shape: str, dtype: str = "bfloat16", target: str = "h200") -> SearchSpace:
    chosen = load_target(target)
    return template_for("grouped_matmul", chosen, dtype).space(GROUPED.workload(shape, dtype), chosen)


@pytest.mark.parametrize(
    ("shape", "dtype", "changes"),
    [
        ("MX0", "bfloat16", {}),
        ("MX0", "bfloat16", {"persistent": 0}),
        ("DS0", "bfloat16", {"block_n": 128}),
        ("QW0", "bfloat16", {"block_m": 64, "block_n": 128, "threads": 128, "policy": "square"}),
        ("tokens=256,groups=16,n=4096,k=7168,rows=masked", "float16", {}),
        ("tokens=8192,groups=32,n=4096,k=7168,scales=row", "float8_e4m3fn", {**FLOAT8, "block_n": 256}),
        ("tokens=8192,groups=32,n=4096,k=7168,scales=block128", "float8_e4m3fn", FLOAT8),
        ("tokens=8192,groups=32,n=4096,k=7168,scales=block128", "float8_e4m3fn", {**FLOAT8, "block_n": 256}),
        ("tokens=8192,groups=32,n=2048,k=7168,fuse=silu_mul,scales=block128", "float8_e4m3fn", FLOAT8),
    ],
)
def test_overlapped_tiles_are_legal(shape: str, dtype: str, changes: Mapping[str, Value]) -> None:
    assert space(shape, dtype).violations(Config({**TILE, **changes})) == []


@pytest.mark.parametrize(
    ("shape", "changes", "constraint", "reason"),
    [
        ("MX0", {"persistent": 0, "swizzle": 8}, "schedule", "an order of its own, not swizzle=8: take swiz"),
        ("MX0", {"block_m": 32}, "schedule", "multiplies by wgmma: take block_m=64 or more"),
        ("DS0", {}, "schedule", "multiplies 2 tiles of 256 columns at once.*take a smaller block_n"),
        ("MX0", {"policy": "square"}, "schedule", "side by side.*take policy=full_row, or block_m=128"),
        ("MX0", {"num_stages": 2}, "explicit pipeline", "copies too late: take num_stages=3"),
        ("MX0", {"block_k": 32}, "explicit pipeline", "waits for few bytes: take block_k=64"),
        (
            "MX0",
            {"block_n": 128, "threads": 128, "policy": "square"},
            "explicit pipeline",
            "1 warpgroup, .*groups have 1024 rows: take threads=256",
        ),
        ("MX0", {"num_stages": 5}, "shared memory", "lower num_stages"),
        ("MX0", {"swizzle": 8}, "many tiles", "in an order without swizzle=8: take swizzle=0"),
    ],
)
def test_other_tiles_have_a_reason(
    shape: str, changes: Mapping[str, Value], constraint: str, reason: str
) -> None:
    found = {v.constraint: v.reason for v in space(shape).violations(Config({**TILE, **changes}))}
    assert constraint in found
    assert re.search(reason, found[constraint])


@pytest.mark.parametrize(
    ("shape", "dtype", "target"),
    [
        ("MX0", "bfloat16", "a100"),
        ("tokens=1000,groups=7,n=516,k=264", "bfloat16", "h200"),  # rows of C do not begin at whole 16 bytes
        ("tokens=1000,groups=7,n=520,k=260", "bfloat16", "h200"),
    ],
)
def test_schedules_need_bulk_copies(shape: str, dtype: str, target: str) -> None:
    (schedule,) = (p for p in space(shape, dtype, target).parameters if p.name == "schedule")
    assert schedule.values == ("serial",)


def test_the_table_of_tiles_is_of_the_serial_schedule_alone() -> None:
    """Groups of many tiles have no table in local memory where the schedule is an explicit one."""
    shape = "tokens=131072,groups=8,n=14336,k=256"
    tiles = {**TILE, "block_n": 64, "block_m": 64, "num_stages": 3}
    found = {v.constraint for v in space(shape).violations(Config({**tiles, "schedule": "serial"}))}
    assert "table of tiles" in found
    assert "table of tiles" not in {v.constraint for v in space(shape).violations(Config(tiles))}


def test_configs_leave_out_the_serial_schedule() -> None:
    found = space("tokens=4096,groups=8,n=4096,k=4096").sample(100, seed=1)
    schedules = {config.get("schedule") for config in found}
    assert schedules == {None, "overlapped"}


SCALED = "tokens=8192,groups=32,n=4096,k=7168,scales=block128"


@pytest.mark.parametrize(
    ("shape", "dtype", "changes", "constraint", "message"),
    [
        # TileLang's pipeline across tiles would leave out all scales
        (SCALED, "float8_e4m3fn", {"persistent": 132, "schedule": "serial"}, "scales of blocks",
         "does not scale blocks of k: take schedule=overlapped, or persistent=0"),
        # a thread would have sums of more rows than it has scales
        (SCALED, "float8_e4m3fn", {"block_m": 256, "block_n": 64, "threads": 512}, "schedule",
         "threads=512 are 4 warpgroups, .* moves no registers.*take threads=256"),
        (SCALED, "float8_e4m3fn", {"block_m": 256, "block_n": 64}, "schedule",
         "does not give each warpgroup 64 rows and all columns.*take block_m=128"),
        (SCALED, "float8_e4m3fn", {"persistent": 0, "schedule": "serial", "block_n": 256},
         "whole blocks of scales", "block_n=256 cover other blocks .* where schedule=overlapped is possible"),
        ("tokens=4096,groups=8,n=128,k=1024,fuse=silu_mul,layout=nn", "bfloat16",
         {"block_k": 64, "block_n": 32}, "halves of a tile", "halves of 64 bytes.*take block_n=64"),
        ("tokens=4096,groups=8,n=128,k=1024,fuse=silu_mul", "bfloat16", {"block_n": 64}, "halves of a tile",
         "block_k=128 .* has rows of 256 bytes, and halves .* rows of 128 alone: take block_k=64"),
        (SCALED, "float8_e4m3fn", {"persistent": 131, "schedule": "serial"}, "heights of groups",
         "is for schedule=overlapped: take persistent=132"),
    ],
)  # fmt: skip
def test_what_pipelines_of_groups_cannot_do(
    shape: str, dtype: str, changes: dict[str, Value], constraint: str, message: str
) -> None:
    found = space(shape, dtype).violations(Config({**TILE, **FLOAT8, **changes}))
    assert re.search(message, {v.constraint: v.reason for v in found}[constraint])
