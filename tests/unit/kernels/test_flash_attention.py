"""flash_attention: results of its tile program on a CPU, and properties of the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tests.support.rounded import right_outputs
from tilesight.errors import WorkloadError
from tilesight.kernels import flash_attention as module
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.runner.verify import check_outputs
from tilesight.target.spec import load_target

ATTENTION = operator("flash_attention")
(TEMPLATE,) = templates("flash_attention")


def fp32(seq_len: int, head_dim: int, causal: bool) -> Workload:
    return Workload(
        "flash_attention",
        {"batch": 2, "heads": 3, "seq_len": seq_len, "head_dim": head_dim},
        "float32",
        {"causal": causal},
    )


def config(block_m: int, block_n: int, order: str) -> Config:
    return Config(
        {"block_m": block_m, "block_n": block_n, "num_stages": 1, "threads": 32, "block_order": order}
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("seq_len", "head_dim", "block_m", "block_n", "order"),
    [
        pytest.param(64, 16, 32, 32, "by_head", marks=pytest.mark.ci),  # whole tiles
        pytest.param(
            64, 16, 16, 32, "by_length", marks=pytest.mark.ci
        ),  # several queries' blocks share a diagonal tile
        (70, 16, 32, 16, "by_length"),  # padded queries and keys
        pytest.param(37, 20, 16, 32, "by_head", marks=pytest.mark.ci),  # and padded rows
        (1, 8, 16, 16, "by_length"),  # less than a tile
    ],
)
def test_tile_program_is_right(
    seq_len: int, head_dim: int, block_m: int, block_n: int, order: str, causal: bool, tmp_path: Path
) -> None:
    workload = fp32(seq_len, head_dim, causal)
    inputs = ATTENTION.inputs(workload, "cpu", 5)
    out = torch.full(ATTENTION.outputs(workload)["O"], torch.nan)
    with on_cpu():
        run_c(TEMPLATE.build(workload, config(block_m, block_n, order)), {**inputs, "O": out}, tmp_path)
    reference = ATTENTION.reference(workload, inputs)["O"]
    assert (out - reference).norm() / reference.norm() < 1e-5


@pytest.mark.parametrize("causal", [False, True])
def test_reference_is_softmax_attention_for_any_panels(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = fp32(50, 16, causal)
    inputs = ATTENTION.inputs(workload, "cpu", 1)
    q, k, v = (inputs[name].double().transpose(1, 2) for name in ("Q", "K", "V"))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
    for score_bytes in (1 << 30, 4 * 3 * 50 * 7):
        monkeypatch.setattr(module, "SCORE_BYTES", score_bytes)
        torch.testing.assert_close(
            ATTENTION.reference(workload, inputs)["O"].double(), expected, rtol=1e-5, atol=1e-6
        )


def test_causal_costs_count_visible_pairs() -> None:
    full, causal = ATTENTION.workload("FA3"), ATTENTION.workload("FA2")
    assert ATTENTION.flops(full) == 4 * 32 * 1024**2 * 128
    assert ATTENTION.flops(causal) == 4 * 32 * (1024 * 1025 // 2) * 128
    assert ATTENTION.min_bytes(full) == ATTENTION.min_bytes(causal) == 4 * 32 * 1024 * 128 * 2


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,heads=8,seq_len=1024,head_dim=512", "head_dim=512 exceeds 256"),
        ("batch=70000,heads=1,seq_len=16,head_dim=16", "batch=70000 exceeds the 65535 blocks of a grid axis"),
        ("batch=64,heads=64,seq_len=65536,head_dim=128", "split the batch"),
        ("batch=1,heads=8,seq_len=1024,head_dim=64,causal=2", "causal=2 must be true or false"),
    ],
)
def test_impossible_workloads_have_a_reason(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        ATTENTION.workload(shape)


def test_vendor_backends_that_are_missing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = ATTENTION.workload("batch=1,heads=2,seq_len=32,head_dim=16")
    calls = ATTENTION.vendor(workload, ATTENTION.inputs(workload, "cpu", 0))
    assert list(calls) == ["torch attention on the CPU"]
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    assert ATTENTION.vendor(workload, ATTENTION.inputs(workload, "cpu", 0)) == {}


def test_published_winner_of_the_h200_is_legal() -> None:
    space = TEMPLATE.space(ATTENTION.workload("FA4"), load_target("h200"))
    winner = Config(
        {"block_m": 128, "block_n": 256, "num_stages": 1, "threads": 256, "block_order": "by_head"}
    )
    assert winner in space


def test_weights_below_the_normal_numbers_of_float16_are_within_the_bound() -> None:
    """Their rounding errors are not relative to them; they show where the values of other keys are small."""
    workload = ATTENTION.workload("batch=1,heads=4,seq_len=512,head_dim=64", "float16")
    second = ATTENTION.second_inputs(workload, "cpu", 1)
    assert second is not None
    inputs = dict(second.tensors)
    inputs["V"][:, ::2] *= 2.0**-20
    reference, magnitude = ATTENTION.reference(workload, inputs), ATTENTION.magnitude(workload, inputs)
    found = check_outputs(ATTENTION, workload, right_outputs(workload, inputs), reference, magnitude)
    assert found.failure is None
    assert found.element_ratio is not None
    assert found.element_ratio < 0.8
