from __future__ import annotations

import re

import pytest

from tilesight.kernels import operator
from tilesight.problem.space import Config
from tilesight.search_spaces import chunk_state
from tilesight.target.spec import load_target

BASE = {
    "block_p": 64,
    "block_n": 128,
    "block_k": 64,
    "num_stages": 2,
    "threads": 128,
    "policy": "square",
    "scaled_x": "registers",
    "copies": "threads",
}
RAGGED = "batch=3,seq_len=1000,nheads=5,head_dim=100,d_state=60"
WIDE = "batch=2,seq_len=1024,nheads=8,head_dim=128,d_state=256"


def reasons(target: str, shape: str, **changes: int | str) -> dict[str, str]:
    space = chunk_state.space(operator("chunk_state").workload(shape), load_target(target))
    return {v.constraint: v.reason for v in space.violations(Config({**BASE, **changes}))}


def test_base_is_legal_on_nvidia() -> None:
    assert reasons("h200", "CT5") == reasons("a100", "CT5") == reasons("h100", "CT0", copies="bulk") == {}


@pytest.mark.parametrize(
    ("target", "shape", "changes", "constraint", "message"),
    [
        (
            "h200",
            "CT2",
            {"block_p": 128},
            "block_p within head_dim",
            "128 is wasted on head_dim=64: 64 covers it",
        ),
        (
            "h200",
            "CT2",
            {"block_n": 256},
            "block_n within d_state",
            "256 is wasted on d_state=128: 128 covers it",
        ),
        ("h200", f"{WIDE},chunk=32", {}, "block_k within chunk", "64 is wasted on chunk=32: 32 covers it"),
        (
            "h200",
            "CT2",
            {"block_k": 256},
            "stages within loop",
            "num_stages=2 exceeds the 1 iterations of the loop over tokens",
        ),
        (
            "h200",
            "CT2",
            {"threads": 64},
            "whole matrix instructions",
            "threads=64 is no whole warpgroup.*take threads=128",
        ),
        (
            "h200",
            "CT2",
            {"block_p": 32, "block_n": 32, "threads": 384},
            "whole matrix instructions",
            "32x32 cannot be divided evenly",
        ),
        (
            "h200",
            "CT2",
            {"policy": "full_row"},
            "whole matrix instructions",
            "as policy=square does: take square",
        ),
        ("mi300x", "CT2", {}, "pipeline", "num_stages=2 makes the same kernel on mi300x as 1"),
        (
            "mi300x",
            "CT2",
            {"num_stages": 1, "block_k": 256},
            "shared memory",
            "need 99328 bytes.*65536: lower num_stages, block_k",
        ),
        (
            "h200",
            WIDE,
            {"block_p": 128, "block_n": 256},
            "registers",
            "288 registers of each of 128 threads, which have at most 255",
        ),
        (
            "h200",
            WIDE,
            {"block_p": 128, "block_n": 256, "copies": "bulk"},
            "registers",
            "which have at most 240",
        ),
        ("h200", RAGGED, {"block_n": 64, "copies": "bulk"}, "copies", "copies=bulk is not one of threads"),
        ("a100", "CT2", {"copies": "bulk"}, "copies", "copies=bulk is not one of threads"),
    ],
)
def test_reasons(
    target: str, shape: str, changes: dict[str, int | str], constraint: str, message: str
) -> None:
    found = reasons(target, shape, **changes)
    assert constraint in found, found
    assert re.search(message, found[constraint]), found[constraint]


@pytest.mark.parametrize(("extent", "over"), [(64, 0), (128, 0), (100, 28), (1, 31), (300, 212)])
def test_overhang_is_that_of_the_widest_legal_tile(extent: int, over: int) -> None:
    assert chunk_state.overhang(extent) == over


@pytest.mark.parametrize(
    ("target", "shape", "changes", "declared"),
    [
        (
            "h100",
            "CT2",
            {"copies": "bulk", "scaled_x": "shared"},
            2 * (64 + 128) * 64 * 2 + 64 * 64 * 2 + 256 * 4,
        ),
        ("h100", RAGGED, {"block_n": 64}, 2 * (64 + 64) * 64 * 2 + 256 * 4),
        ("mi300x", "CT2", {"num_stages": 1, "threads": 256}, (64 + 128) * 64 * 2 + 256 * 4),
    ],
)
def test_shared_memory_is_what_the_lowered_kernel_declares(
    target: str, shape: str, changes: dict[str, int | str], declared: int
) -> None:
    """The rule adds up the same buffers that TileLang lays out."""
    from tilesight.kernels import templates
    from tilesight.lowering.lower import lower

    chip = load_target(target)
    workload, config = operator("chunk_state").workload(shape), Config({**BASE, **changes})
    (kernel,) = lower(
        templates("chunk_state")[0].build(workload, config), chip, only_read=True
    ).device.functions.values()
    assert int(kernel.attrs["dyn_shared_memory_buf"]) == declared
    assert config in chunk_state.space(workload, chip)
