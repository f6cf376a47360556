from __future__ import annotations

import re

import pytest

from tilesight.kernels import operator
from tilesight.problem.space import Config
from tilesight.search_spaces import flash_attention
from tilesight.target.spec import load_target

BASE = {"block_m": 128, "block_n": 64, "num_stages": 1, "threads": 256, "block_order": "by_head"}


def reasons(target: str, shape: str, **changes: int | str) -> dict[str, str]:
    space = flash_attention.space(operator("flash_attention").workload(shape), load_target(target))
    return {v.constraint: v.reason for v in space.violations(Config({**BASE, **changes}))}


def test_base_is_legal_on_nvidia() -> None:
    assert reasons("h100", "FA4") == reasons("a100", "FA4") == {}


@pytest.mark.parametrize(
    ("target", "shape", "changes", "constraint", "message"),
    [
        (
            "h100",
            "FA4",
            {"block_m": 64},
            "whole rows",
            "gives none of 8 warps 16 whole rows: take at most threads=128",
        ),
        (
            "h100",
            "FA4",
            {"block_m": 256},
            "whole rows",
            "each of 2 warpgroups 128 rows.*take block_m=128, or threads=128",
        ),
        (
            "h100",
            "FA4",
            {"block_n": 256, "num_stages": 2},
            "shared memory",
            "need 295936 bytes.*232448: lower num_stages",
        ),
        ("mi300x", "FA4", {}, "shared memory", "need 67584 bytes.*65536"),
        (
            "h100",
            "FA4",
            {"block_m": 128, "block_n": 128, "threads": 128},
            "registers",
            "256 registers of each of 128 threads, which have at most 240",
        ),
        (
            "a100",
            "FA4",
            {"num_stages": 2},
            "causal pipeline",
            "num_stages=2 cannot be compiled for causal attention without TMA",
        ),
        (
            "h100",
            "batch=1,heads=32,seq_len=4096,head_dim=100,causal=true",
            {"num_stages": 2},
            "causal pipeline",
            "without TMA",
        ),
        (
            "h100",
            "FA3",
            {"block_order": "by_length"},
            "block order",
            "all blocks are equally long; take by_head",
        ),
        ("h100", "FA0", {"block_order": "by_length"}, "block order", "128 blocks run at once on 132 cores"),
        (
            "h100",
            "batch=1,heads=1,seq_len=65536,head_dim=128,causal=true",
            {"block_order": "by_length"},
            "block order",
            "one head",
        ),
        (
            "h100",
            "batch=4,heads=64,seq_len=50,head_dim=128",
            {},
            "block_m within seq_len",
            "128 is wasted on seq_len=50: 64 covers it",
        ),
        (
            "h100",
            "FA4",
            {"block_m": 256, "threads": 512, "schedule": "overlapped"},
            "groups",
            "for 1 to 3 groups of 128 threads, and threads=512 has 4",
        ),
        (
            "h100",
            "FA4",
            {"block_m": 64, "threads": 128, "schedule": "ping_pong"},
            "groups",
            "for 2 to 3 groups",
        ),
        ("h100", "FA4", {"persistent": 132}, "persistent", "needs schedule=overlapped or ping_pong"),
        (
            "h100",
            "FA0",
            {"schedule": "overlapped", "persistent": 132},
            "persistent",
            "128 blocks run at once; take 0",
        ),
        (
            "h100",
            "FA4",
            {"block_n": 256, "schedule": "overlapped"},
            "registers",
            "280 registers of each of 256 threads",
        ),
        (
            "h100",
            "batch=4,heads=64,seq_len=100,head_dim=128",
            {"num_stages": 3},
            "stages within loop",
            "exceeds the 2 iterations",
        ),
    ],
)
def test_reasons(
    target: str, shape: str, changes: dict[str, int | str], constraint: str, message: str
) -> None:
    found = reasons(target, shape, **changes)
    assert constraint in found, found
    assert re.search(message, found[constraint]), found[constraint]


def test_a_wgmma_must_fit_what_ptxas_compiles_with() -> None:
    name, tile = "registers of an instruction", {"block_n": 32, "num_stages": 2}
    wide, narrow = (f"batch=2,heads=8,seq_len=4096,head_dim={head_dim}" for head_dim in (256, 128))
    assert re.search(
        "256 columns needs 158 registers .* with 128",
        reasons("h200", wide, block_m=192, threads=384, **tile)[name],
    )
    assert name not in reasons("h200", narrow, block_m=192, threads=384, **tile)
    assert name not in reasons("h200", wide, block_m=128, threads=256, **tile)


def test_pipelines_are_legal_for_regular_loops_or_bulk_copies() -> None:
    assert reasons("a100", "FA3", num_stages=2) == {}
    assert reasons("h100", "FA4", num_stages=2) == {}


def test_longest_first_is_legal_where_it_matters() -> None:
    assert reasons("h100", "FA4", block_order="by_length") == {}


@pytest.mark.parametrize(
    ("target", "shape"), [("h100", "FA2"), ("mi300x", "batch=1,heads=8,seq_len=256,head_dim=72")]
)
def test_shared_memory_is_what_the_lowered_kernel_declares(target: str, shape: str) -> None:
    """The rule adds up the same buffers that TileLang lays out, padded rows and reductions included."""
    from tilesight.kernels import templates
    from tilesight.lowering.lower import lower

    chip = load_target(target)
    workload = operator("flash_attention").workload(shape)
    config = Config({**BASE, "block_m": 64, "block_n": 32, "threads": 128})
    (kernel,) = lower(
        templates("flash_attention")[0].build(workload, config), chip, only_read=True
    ).device.functions.values()
    declared = int(kernel.attrs["dyn_shared_memory_buf"])
    width = 128 if target == "h100" else 80
    assert declared == (64 + 2 * 32) * width * 2 + (8 * 128 if target == "mi300x" else 0)
    assert config in flash_attention.space(workload, chip)


@pytest.mark.parametrize(
    ("changes", "constraint", "message"),
    [
        ({"block_n": 160}, "", ""),
        ({"block_m": 64, "threads": 128, "block_n": 192}, "persistent", "fewer than 128 threads"),
        ({"schedule": "serial"}, "persistent", "needs schedule=overlapped"),
    ],
)
def test_blocks_that_stay_have_rules(changes: dict[str, int | str], constraint: str, message: str) -> None:
    stay: dict[str, int | str] = {"schedule": "overlapped", "persistent": 132, "block_order": "by_length"}
    found = reasons("h100", "FA4", **{**stay, **changes})
    assert set(found) == ({constraint} if constraint else set())
    assert message in found.get(constraint, "")
