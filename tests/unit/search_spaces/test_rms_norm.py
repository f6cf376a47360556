from __future__ import annotations

import re

import pytest

from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.search_spaces import rms_norm
from tilesight.target.spec import load_target

BASE = {"block_m": 1, "threads": 256, "reduce_threads": 256, "vector": 8, "keep": "registers", "unroll": 1}


def reasons(target: str, shape: str, **changes: int | str) -> dict[str, str]:
    space = rms_norm.space(operator("rms_norm").workload(shape), load_target(target))
    return {v.constraint: v.reason for v in space.violations(Config({**BASE, **changes}))}


def test_base_is_legal_everywhere() -> None:
    assert reasons("h200", "R0") == reasons("a100", "R0") == reasons("mi300x", "R0") == {}


@pytest.mark.parametrize(
    ("target", "shape", "changes", "constraint", "message"),
    [
        ("h200", "m=100,n=2881", {}, "vector width", "vector=8 must divide n=2881; nearest legal values: 1$"),
        (
            "h200",
            "R0",
            {"reduce_threads": 1024},
            "whole rows",
            "reduce_threads=1024 exceeds threads=256: take at most",
        ),
        ("h200", "R0", {"block_m": 8}, "whole rows", "block_m=8 is more than 4 times the 1 rows"),
        ("h200", "R4", {}, "idle threads", "reduce_threads=256 is wasted on n=128: take reduce_threads=128"),
        (
            "h200",
            "R7",
            {"reduce_threads": 64, "block_m": 4},
            "idle threads",
            "threads=256 is wasted on m=1 with reduce_threads=64",
        ),
        ("h200", "R7", {"block_m": 2}, "idle threads", "block_m=2 is wasted on m=1: take block_m=1"),
        ("h200", "R0", {"unroll": 2}, "unroll", "unroll=2 changes nothing with keep=registers"),
        (
            "h200",
            "R0",
            {"unroll": 4, "keep": "global"},
            "unroll within row",
            "n=4096, which is 2 steps of 2048: take unroll=2",
        ),
        (
            "h200",
            "R2",
            {"reduce_threads": 16, "block_m": 16},
            "registers",
            "keeps 556 values, and has 255 registers",
        ),
        (
            "mi300x",
            "R2",
            {"keep": "shared", "block_m": 2},
            "shared memory",
            "need 66560 bytes.*65536: lower block_m",
        ),
    ],
)
def test_reasons(
    target: str, shape: str, changes: dict[str, int | str], constraint: str, message: str
) -> None:
    found = reasons(target, shape, **changes)
    assert constraint in found, found
    assert re.search(message, found[constraint]), found[constraint]


@pytest.mark.parametrize("shape", ["m=1,n=1", "m=3,n=5", "m=100000,n=2", "m=1,n=100000", "R3"])
def test_every_shape_has_a_space(shape: str) -> None:
    for target in ("h200", "a100", "mi300x"):
        assert rms_norm.space(operator("rms_norm").workload(shape), load_target(target)).configs()


@pytest.mark.parametrize(
    "changes", [{"keep": "shared"}, {"keep": "shared", "block_m": 8, "reduce_threads": 32}, {}]
)
def test_shared_memory_is_what_the_lowered_kernel_declares(changes: dict[str, int | str]) -> None:
    """n is no multiple of the step, so the rule counts padding. Sums across warps may replace the rows."""
    from tilesight.lowering.lower import lower

    h200, workload, config = (
        load_target("h200"),
        operator("rms_norm").workload("m=256,n=2880"),
        Config({**BASE, **changes}),
    )
    assert config in rms_norm.space(workload, h200)
    (kernel,) = lower(
        templates("rms_norm")[0].build(workload, config), h200, only_read=True
    ).device.functions.values()
    declared = int(kernel.attrs["dyn_shared_memory_buf"])
    step = config.int("reduce_threads") * 8
    rows = config.int("block_m") * -(-2880 // step) * step * 2 if config["keep"] == "shared" else 0
    across_warps = 4 * config.int("threads") if config.int("reduce_threads") > 32 else 0
    assert max(rows, across_warps) <= declared <= rows + across_warps
