from __future__ import annotations

import re

import pytest

from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.search_spaces import gemv
from tilesight.target.spec import load_target

BASE = {"block_n": 8, "threads": 128, "reduce_threads": 32, "vector": 8, "unroll": 2, "num_stages": 0}


def reasons(target: str, shape: str, **changes: int) -> dict[str, str]:
    space = gemv.space(operator("gemv").workload(shape), load_target(target))
    return {v.constraint: v.reason for v in space.violations(Config({**BASE, **changes}))}


def test_base_is_legal_everywhere() -> None:
    assert reasons("h200", "V0") == reasons("a100", "V0") == reasons("mi300x", "V0") == {}


@pytest.mark.parametrize(
    ("target", "shape", "changes", "constraint", "message"),
    [
        ("h200", "n=100,k=1003", {}, "vector width", "vector=8 must divide k=1003; nearest legal values: 1$"),
        (
            "h200",
            "n=100,k=1002",
            {"vector": 1},
            "vector width",
            "moves 2 bytes at a time, and k=1002 allows 4; nearest legal values: 2$",
        ),
        (
            "h200",
            "V0",
            {"vector": 2},
            "vector width",
            "moves 4 bytes at a time, and k=16384 allows 16; nearest legal values: 4, 8",
        ),
        ("h200", "V0", {"reduce_threads": 256}, "whole rows", "reduce_threads=256 exceeds threads=128"),
        (
            "h200",
            "V0",
            {"block_n": 2},
            "whole rows",
            "not a multiple of the 4 rows .* at a time, 32 per row: take block_n=4, 8, 16",
        ),
        ("h200", "V0", {"block_n": 32}, "whole rows", "more than 4 times the 4 rows"),
        (
            "h200",
            "n=100,k=128",
            {},
            "idle threads",
            "reduce_threads=32 is wasted on k=128: take reduce_threads=16",
        ),
        (
            "h200",
            "n=2,k=4096",
            {},
            "idle threads",
            "threads=128 is wasted on n=2 with reduce_threads=32: take threads=64",
        ),
        ("h200", "n=4,k=4096", {}, "idle threads", "block_n=8 is wasted on n=4: take block_n=4"),
        (
            "h200",
            "n=100,k=256",
            {},
            "unroll within row",
            "unroll=2 is wasted on k=256, which is 1 steps of 256: take unroll=1",
        ),
        (
            "mi300x",
            "V0",
            {"num_stages": 2},
            "through shared memory",
            "TileLang 0.1.15 has no pipelines there: take 0",
        ),
        (
            "a100",
            "n=100,k=1004",
            {"num_stages": 2, "vector": 4},
            "through shared memory",
            "k=1004 is no multiple of 8: take 0",
        ),
        (
            "h200",
            "V0",
            {"num_stages": 2, "vector": 4},
            "through shared memory",
            "8 elements at a time: take 8",
        ),
        ("h200", "n=100,k=512", {"num_stages": 2}, "stages within loop", "exceeds the 1 iterations"),
        (
            "a100",
            "V0",
            {"block_n": 32, "threads": 256, "unroll": 4, "num_stages": 4},
            "shared memory",
            "need 270336 bytes",
        ),
        (
            "a100",
            "V0",
            {"block_n": 64, "threads": 512, "unroll": 4},
            "registers",
            "keeps 144 values, and has 128 registers",
        ),
    ],
)
def test_reasons(target: str, shape: str, changes: dict[str, int], constraint: str, message: str) -> None:
    found = reasons(target, shape, **changes)
    assert constraint in found, found
    assert re.search(message, found[constraint]), found[constraint]


@pytest.mark.parametrize("shape", ["n=1,k=1", "n=3,k=5", "n=100000,k=2", "n=1,k=100000", "V3"])
def test_every_shape_has_a_space(shape: str) -> None:
    for target in ("h200", "a100", "mi300x"):
        assert gemv.space(operator("gemv").workload(shape), load_target(target)).configs()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_stages": 2},
        {"num_stages": 4, "unroll": 1, "block_n": 16, "threads": 256},
        {"block_n": 2, "reduce_threads": 64},
        {"num_stages": 2, "block_n": 2, "reduce_threads": 128},
    ],
)
def test_shared_memory_is_at_least_what_the_lowered_kernel_declares(changes: dict[str, int]) -> None:
    """The rule counts a bulk copy's barriers, which stand beside the declared buffer, and sums across warps
    that may take the place of the tiles; it must not be more than that from the truth."""
    from tilesight.lowering.lower import lower

    h200, workload, config = (
        load_target("h200"),
        operator("gemv").workload("n=512,k=4096"),
        Config({**BASE, **changes}),
    )
    space = gemv.space(workload, h200)
    assert config in space
    (kernel,) = lower(
        templates("gemv")[0].build(workload, config), h200, only_read=True
    ).device.functions.values()
    declared = int(kernel.attrs["dyn_shared_memory_buf"])
    stages, block_k = config.int("num_stages"), config.int("reduce_threads") * 8 * config.int("unroll")
    tiles = stages * (config.int("block_n") + 1) * block_k * 2
    across_warps = 4 * config.int("threads") if config.int("reduce_threads") > 32 else 0
    assert tiles <= declared <= tiles + across_warps
