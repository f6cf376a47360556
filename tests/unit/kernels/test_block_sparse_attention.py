"""block_sparse_attention: results of its tile program on a CPU, and properties of the operator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload

SPARSE = operator("block_sparse_attention")
(TEMPLATE,) = templates("block_sparse_attention")


def workload(seq_len: int, dtype: str = "float32", **attrs: int) -> Workload:
    return Workload(
        "block_sparse_attention",
        {"batch": 2, "heads": 4, "seq_len": seq_len, "head_dim": 16},
        dtype,
        {"causal": False, "block": 64, "percent": 40, "group": 1, **attrs},
    )


@pytest.mark.parametrize(
    "asked",
    [workload(256, group=2), pytest.param(workload(300, causal=True), marks=pytest.mark.full), workload(300)],
)
def test_tile_program_is_right(asked: Workload, tmp_path: Path) -> None:
    config = Config(
        {"block_m": 64, "block_n": 32, "num_stages": 1, "threads": 32}
        | {"block_order": "by_length", "copies": "threads"}
    )
    inputs = SPARSE.inputs(asked, "cpu", 5)
    out = torch.full(SPARSE.outputs(asked)["O"], torch.nan)
    with on_cpu():
        run_c(TEMPLATE.build(asked, config), {**inputs, "O": out}, tmp_path)
    reference = SPARSE.reference(asked, inputs)["O"]
    assert (out - reference).norm() / reference.norm() < 1e-5


@pytest.mark.parametrize("causal", [False, True])
def test_lists_rise_and_have_the_own_block(causal: bool) -> None:
    counts, indices = SPARSE.contents(workload(1000, causal=causal)).values()
    assert counts.shape == (2, 4, 16)
    for at in range(16):
        few = counts[1, 2, at]
        chosen = indices[1, 2, at, :few]
        assert few == max(1, round((at + 1 if causal else 16) * 0.4))
        assert (np.diff(chosen) > 0).all()
        assert at in chosen
        assert not causal or chosen.max() <= at
        assert few < 4 or 0 in chosen


@pytest.mark.parametrize("causal", [False, True])
def test_all_blocks_are_dense_attention(causal: bool) -> None:
    asked = workload(150, causal=causal, percent=100, group=2)
    inputs = SPARSE.inputs(asked, "cpu", 1)
    q, k, v = (inputs[name].double().transpose(1, 2) for name in "QKV")
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    found = SPARSE.reference(asked, inputs)["O"]
    torch.testing.assert_close(found.double().transpose(1, 2), expected, rtol=1e-4, atol=1e-5)
    pairs = 150 * 151 // 2 if causal else 150**2
    assert SPARSE.flops(asked) == 4 * 2 * 4 * pairs * 16


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("block=32", "block=32 must be one of: 64, 128"),
        ("percent=0", "percent=0 of the blocks must be 1 to 100"),
        ("group=3", "group=3 must divide heads=8"),
    ],
)
def test_refusals_say_what_to_do(more: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        SPARSE.workload(f"batch=1,heads=8,seq_len=64,head_dim=64,{more}")
