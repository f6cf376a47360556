from __future__ import annotations

import re

import pytest

from tilesight.kernels import operator
from tilesight.problem.space import Config
from tilesight.search_spaces import dequant_matmul
from tilesight.target.spec import load_target

BASE = {
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "num_stages": 3,
    "threads": 256,
    "weights": "shared",
    "decode": "bits",
    "policy": "square",
    "swizzle": 0,
}


def reasons(target: str, shape: str, **changes: int | str) -> dict[str, str]:
    space = dequant_matmul.space(operator("dequant_matmul").workload(shape), load_target(target))
    return {v.constraint: v.reason for v in space.violations(Config({**BASE, **changes}))}


def test_base_is_legal_on_nvidia() -> None:
    assert reasons("h200", "D9") == reasons("a100", "D9") == {}


@pytest.mark.parametrize(
    ("target", "shape", "changes", "constraint", "message"),
    [
        (
            "h200",
            "D9",
            {"block_k": 256, "num_stages": 4, "threads": 512},
            "shared memory",
            "396288 bytes.*232448: lower num_stages",
        ),
        ("mi300x", "D9", {"num_stages": 1, "block_k": 256}, "shared memory", "bytes.*mi300x has 65536"),
        (
            "h200",
            "D9",
            {"block_n": 256, "block_m": 256},
            "registers",
            "256 registers of each of 256 threads, which have at most 240",
        ),
        (
            "h200",
            "D17",
            {"block_m": 16, "block_n": 64, "threads": 512, "weights": "shared_wide"},
            "whole runs",
            "4096 weights.*runs of 32",
        ),
        (
            "h200",
            "D9",
            {"threads": 64},
            "whole matrix instructions",
            "threads=64 is no whole warpgroup.*take threads=128",
        ),
        (
            "h200",
            "D9",
            {"block_m": 64, "block_n": 64, "policy": "full_col"},
            "whole matrix instructions",
            "as policy=square does: take square",
        ),
        ("h200", "D0", {"block_m": 64}, "block_m within m", "block_m=64 is wasted on m=1: 16 covers it"),
        (
            "h200",
            "D9",
            {"block_m": 32},
            "tile not too small",
            "tiles of 64x64 already make 8192 blocks for 132 cores; take at least block_m=64",
        ),
        (
            "h200",
            "D17",
            {"block_m": 64, "block_n": 16},
            "tile not too small",
            "tiles of 64x32 already make 288 blocks.*block_n=32",
        ),
        ("h200", "D8", {"swizzle": 8, "block_m": 256}, "swizzle", "128 blocks that run at once on 132 cores"),
        (
            "h200",
            "D17",
            {"swizzle": 8, "block_m": 64, "block_n": 32},
            "swizzle",
            "makes no panels of 1x288 blocks",
        ),
        ("h200", "m=512,n=512,k=100", {}, "stages within loop", "num_stages=3 exceeds the 2 iterations"),
        ("mi300x", "D9", {}, "pipeline", "same kernel on mi300x as 1"),
        (
            "h200",
            "D17",
            {"block_m": 64, "block_n": 256, "weights": "registers", "policy": "full_row"},
            "rows of weights in registers",
            "2 warpgroups along block_n=256 have 128 rows each.*take block_n=128, policy=full_row with "
            "threads=512, or weights=shared",
        ),
        (
            "h200",
            "m=8,n=1000,k=4096,group=-1",
            {"block_m": 16, "block_n": 32, "threads": 64},
            "aligned scales",
            "stages of 64 bytes of scales.*n=1000.*a multiple of 128: take a larger block_n, or num_stages=1",
        ),
        (
            "h200",
            "D9",
            {
                "overlapped": True,
                "weights": "registers",
                "decode": "words",
                "policy": "full_row",
                "threads": 512,
            },
            "overlapped products",
            "with block_n=128 has no threads=512: take threads=256",
        ),
        (
            "h200",
            "m=128,n=1024,k=4096",
            {
                "overlapped": True,
                "weights": "registers",
                "decode": "words",
                "policy": "full_row",
                "block_m": 64,
                "block_n": 32,
                "threads": 64,
            },
            "overlapped products",
            "64 rows of weights, more than block_n=32: take block_n=64",
        ),
        (
            "h200",
            "D9",
            {"overlapped": True, "weights": "registers", "policy": "full_row"},
            "overlapped products",
            "has no decode=bits: take decode=words",
        ),
        (
            "h200",
            "D9",
            {
                "overlapped": True,
                "weights": "registers",
                "decode": "words",
                "policy": "full_row",
                "num_stages": 1,
            },
            "overlapped products",
            "num_stages=1 unpacks nothing ahead: take num_stages=2",
        ),
        (
            "h200",
            "D9",
            {"overlapped": True, "weights": "registers", "decode": "words"},
            "overlapped products",
            "policy=square does so 2 times: take policy=full_row",
        ),
        ("h200", "D9", {"block_m": 192}, "overlapped products", "is for overlapped=true: take block_m=128"),
    ],
)
def test_reasons(
    target: str, shape: str, changes: dict[str, int | str], constraint: str, message: str
) -> None:
    found = reasons(target, shape, **changes)
    assert constraint in found, found
    assert re.search(message, found[constraint]), found[constraint]


def test_copies_of_weights_in_registers_are_counted() -> None:
    """512 threads of 128 x 256 weights: legal if each warp has other rows, too much if four have the same."""
    tile: dict[str, int | str] = {
        "block_m": 64,
        "block_n": 256,
        "block_k": 128,
        "threads": 512,
        "weights": "registers",
        "num_stages": 2,
    }
    assert "registers" not in reasons("h200", "D17", **tile, policy="full_row")
    assert "registers" in reasons("h200", "D17", **tile, policy="full_col")


@pytest.mark.parametrize(
    ("target", "changes", "legal"),
    [
        ("h200", {"threads": 256, "policy": "full_row"}, False),  # two warpgroups of 128 rows
        ("h200", {"threads": 512, "policy": "full_row"}, True),  # four of 64
        (
            "h200",
            {"threads": 512, "policy": "square", "block_m": 16, "block_k": 128},
            False,
        ),  # two by two, of 128 rows
        ("h200", {"threads": 128}, True),  # one, of 256 rows
        ("h200", {"threads": 256, "weights": "shared"}, True),
        (
            "a100",
            {"threads": 256, "policy": "full_row"},
            True,
        ),  # mma: each warp holds its own rows throughout
    ],
)
def test_weights_in_registers_are_refused_for_wrong_rows(
    target: str, changes: dict[str, int | str], legal: bool
) -> None:
    """On an H200, every row of the first dataset that broke this rule was wrong, all others were right."""
    tile: dict[str, int | str] = {"block_m": 64, "block_n": 256, "weights": "registers", "num_stages": 2}
    assert ("rows of weights in registers" not in reasons(target, "D17", **{**tile, **changes})) == legal


def test_blocks_stay_for_overlapped_tiles_of_float8_alone() -> None:
    workload = operator("dequant_matmul").workload("m=4096,n=8192,k=8192,group=-1", "float8_e4m3fn")
    space = dequant_matmul.space(workload, load_target("h200"))
    changes: dict[str, int | str] = {"decode": "words", "persistent": 132}
    found = {v.constraint: v.reason for v in space.violations(Config({**BASE, **changes}))}
    assert found["persistent blocks"].endswith("is a schedule of overlapped=true: take persistent=0")
    overlapped: dict[str, int | str] = {
        **BASE,
        **changes,
        "block_m": 192,
        "block_k": 128,
        "num_stages": 4,
        "weights": "registers",
        "policy": "full_row",
        "overlapped": True,
    }
    assert Config(overlapped) in space
    [values] = [
        parameter.values
        for parameter in dequant_matmul.space(
            operator("dequant_matmul").workload("D9"), load_target("h200")
        ).parameters
        if parameter.name == "persistent"
    ]
    assert values == (0,)


@pytest.mark.parametrize(("shape", "legal"), [("D9", True), ("m=4096,n=8192,k=8200", False), ("T9", False)])
def test_weights_are_unpacked_during_products_where_tma_copies_all_of_them(shape: str, legal: bool) -> None:
    space = dequant_matmul.space(operator("dequant_matmul").workload(shape), load_target("h200"))
    [values] = [parameter.values for parameter in space.parameters if parameter.name == "overlapped"]
    assert (True in values) == legal


def test_a_kernel_for_one_row_has_hundreds_of_configs() -> None:
    workload = operator("dequant_matmul").workload("D0")
    assert dequant_matmul.space(workload, load_target("h200")).census().legal > 500


@pytest.mark.parametrize(
    ("block_k", "group", "rows"), [(64, 128, 1), (128, 128, 1), (256, 128, 2), (256, 32, 8), (256, -1, 1)]
)
def test_scales_of_an_iteration(block_k: int, group: int, rows: int) -> None:
    assert dequant_matmul.scale_rows(block_k, group) == rows


@pytest.mark.parametrize(
    ("target", "shape", "changes"),
    [
        ("h200", "m=8,n=1024,k=4096,group=-1", {}),  # no tile reaches beyond n: one row is copied
        ("h200", "m=8,n=1001,k=4096,group=-1", {}),  # rows of scales that bulk copies cannot take
        ("h200", "m=8,n=1000,k=4096,group=-1", {"num_stages": 1}),
        ("h200", "m=8,n=1000,k=4096,group=32", {"block_k": 64}),  # two rows of scales a stage
        ("a100", "m=8,n=1000,k=4096,group=-1", {}),
    ],
)
def test_scales_that_are_aligned(target: str, shape: str, changes: dict[str, int | str]) -> None:
    assert "aligned scales" not in reasons(
        target, shape, **{"block_m": 16, "block_n": 32, "threads": 64, **changes}
    )


STREAMED: dict[str, int | str] = {
    "block_m": 8,
    "block_n": 32,
    "block_k": 128,
    "num_stages": 6,
    "decode": "words",
    "weights": "registers",
    "reduce_warps": 8,
    "persistent": 132,
}


@pytest.mark.parametrize(
    ("target", "shape", "changes"),
    [
        ("h200", "D0", {}),
        ("h100", "D0", {"block_k": 256, "block_n": 16}),
        ("h200", "D0", {"block_n": 16, "num_stages": 4, "persistent": 264}),
        ("h200", "Z5", {}),
        ("h200", "T0", {"block_k": 256}),
        ("h200", "MX0", {}),
        ("h200", "NF0", {"decode": "table"}),
        ("h200", "m=8,n=14336,k=14336", {"block_n": 64, "reduce_warps": 4}),
        ("h200", "m=1,n=1001,k=8192,format=int2,group=-1", {"block_k": 256}),  # scales are not copied
        ("h200", "m=1,n=1000,k=8192", {}),  # fewer tiles than cores
    ],
)
def test_weights_stream_on_hopper(target: str, shape: str, changes: dict[str, int | str]) -> None:
    assert reasons(target, shape, **{**STREAMED, **changes}) == {}


@pytest.mark.parametrize(
    ("target", "shape", "changes", "constraint", "message"),
    [
        ("a100", "D0", {}, "persistent", "persistent=132 is not one of"),
        ("h200", "m=1,n=1001,k=8192", {}, "persistent", "persistent=132 is not one of"),
        ("h200", "m=17,n=1024,k=8192", {}, "persistent", "persistent=132 is not one of"),
        ("h200", "D0", {"block_k": 64}, "streamed stages", "has no block_k=64: take block_k=128"),
        ("h200", "D0", {"num_stages": 1}, "streamed stages", "num_stages=1 copies nothing ahead"),
        (
            "h200",
            "D0",
            {"threads": 64, "reduce_warps": 1},
            "streamed stages",
            "stages of 128 weights of a row, fewer than the 256 of 128 bytes: take reduce_warps=2",
        ),
        ("h200", "D0", {"persistent": 0}, "few stages", "num_stages=6 is for weights that stream"),
        (
            "h200",
            "D0",
            {"persistent": 264},
            "blocks together",
            "needs 2 times on a core the registers of 288 threads, and 137216 bytes.* take persistent=132",
        ),
        ("h200", "m=1,n=1000,k=8192", {"persistent": 264}, "blocks together", "has only 32 tiles"),
        ("h200", "m=1,n=8192,k=512", {}, "parts within row", "needs 8 steps of a row, which has 4"),
        ("h200", "D0", {"block_n": 64, "num_stages": 8}, "shared memory", "take fewer reduce_warps"),
        ("h200", "D0", {"decode": "bits"}, "direct weights", "decodes words of 32 bits"),
    ],
)
def test_reasons_against_streams(
    target: str, shape: str, changes: dict[str, int | str], constraint: str, message: str
) -> None:
    found = reasons(target, shape, **{**STREAMED, **changes})
    assert constraint in found, found
    assert re.search(message, found[constraint]), found[constraint]


@pytest.mark.parametrize(("m", "block_m", "kept"), [(1, 8, True), (4, 8, True), (8, 8, False), (9, 8, False)])
def test_a_is_kept_where_it_is_small_and_a_block_has_all_of_it(m: int, block_m: int, kept: bool) -> None:
    assert dequant_matmul.keeps_a(m, 9216, 2, block_m) == kept
