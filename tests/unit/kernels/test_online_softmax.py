"""The online softmax of tiles, computed on the CPU."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cpu_programs import built_c, on_cpu
from tilesight.kernels import operator, template_for
from tilesight.kernels._online_softmax import online_softmax
from tilesight.target.spec import load_target

ROWS, KEYS, TILES, SCALE = 4, 32, 3, 0.25 * math.log2(math.e)


def tiles_of_rows() -> Any:
    """A program that takes the tiles of S one after the other and leaves weights, row_max and row_sum."""
    import tilelang.language as T  # noqa: N812

    update = online_softmax(ROWS, KEYS, SCALE)

    @T.prim_func
    def program(  # type: ignore[no-untyped-def]
        S: T.Tensor((TILES, ROWS, KEYS), "float32"),  # type: ignore[valid-type]  # noqa: N803
        W: T.Tensor((TILES, ROWS, KEYS), "float32"),  # type: ignore[valid-type]  # noqa: N803
        state: T.Tensor((2, ROWS), "float32"),  # type: ignore[valid-type]
    ):
        with T.Kernel(1, threads=32):
            scores = T.alloc_fragment((ROWS, KEYS), "float32")
            row_max = T.alloc_fragment((ROWS,), "float32")
            old_max = T.alloc_fragment((ROWS,), "float32")
            rescale = T.alloc_fragment((ROWS,), "float32")
            tile_sum = T.alloc_fragment((ROWS,), "float32")
            row_sum = T.alloc_fragment((ROWS,), "float32")
            T.fill(row_max, -T.infinity("float32"))
            T.fill(row_sum, 0)
            for tile in T.serial(TILES):
                T.copy(S[tile, 0:ROWS, 0:KEYS], scores)
                update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                T.copy(scores, W[tile, 0:ROWS, 0:KEYS])
            T.copy(row_max, state[0, 0:ROWS])
            T.copy(row_sum, state[1, 0:ROWS])

    return program


def test_weights_and_sums_of_tiles(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    scores = 4 * torch.randn(TILES, ROWS, KEYS, generator=draw)
    scores[0, 1, 5:] = -torch.inf
    scores[1, 2] = -torch.inf
    scores[2, 3, 7] = 500.0
    weights, state = torch.empty_like(scores), torch.empty(2, ROWS)
    with on_cpu():
        call = built_c(tiles_of_rows(), tmp_path)
    call({"S": scores, "W": weights, "state": state})
    exponents = scores.double() * SCALE
    total = torch.exp2(exponents - state[0].double()[:, None] * SCALE).sum((0, 2))
    torch.testing.assert_close(state[1].double(), total, rtol=1e-5, atol=0)
    assert torch.equal(state[0], scores.amax((0, 2)))
    last = torch.exp2(exponents[-1] - state[0].double()[:, None] * SCALE)
    torch.testing.assert_close(weights[-1].double(), last, rtol=1e-6, atol=1e-37)
    assert not weights[1, 2].any()


@pytest.mark.parametrize(
    ("kernel", "shape", "from_finite"),
    [
        ("flash_attention", "FA0", False),
        ("flash_attention", "GPTOSS", True),  # a window
        ("flash_attention_varlen", "VL0", True),
        ("flash_decoding", "FD0", True),
        ("mla_decode", "MLA0", True),
        ("native_sparse_attention", "NSA2", True),
    ],
)
def test_rows_that_start_with_a_finite_number_are_rescaled_by_a_difference(
    kernel: str, shape: str, from_finite: bool
) -> None:
    """Two products of a large number differ where one is rounded: 2 to that power may be infinite."""
    target, found = load_target("h100"), operator(kernel)
    workload = found.workload(shape)
    template = template_for(kernel, target, workload.dtype)
    config = template.default_config(workload, target)
    assert config is not None
    program = template.build(workload, config).script()
    assert bool(re.search(r"exp2\(\(old_max\[\w+\] - row_max\[\w+\]\) \*", program)) == from_finite
    assert bool(re.search(r"old_max\[\w+\] \*", program)) != from_finite


@pytest.mark.parametrize("kernel", ["flash_decoding", "native_sparse_attention"])
def test_warps_that_share_rows_wait_before_they_write_weights(kernel: str) -> None:
    target, found = load_target("h100"), operator(kernel)
    workload = found.default_workloads()[0]
    template = template_for(kernel, target, workload.dtype)
    for weights in ("shared", "registers"):
        legal = (c for c in template.space(workload, target).configs() if c["weights"] == weights)
        program = template.build(workload, next(legal)).script()
        assert program.count("tvm_storage_sync") == (weights == "shared")
