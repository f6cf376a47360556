"""retention: results of its tile program on a CPU, and properties of the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.kernels import retention as module
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload

RETENTION = operator("retention")
(TEMPLATE,) = templates("retention")


def fp32(shape: str) -> Workload:
    return Workload("retention", RETENTION.workload(shape).dims, "float32", {})


@pytest.mark.full
@pytest.mark.parametrize("epilogue", ["shared", "direct"])
def test_tile_program_is_right(epilogue: str, tmp_path: Path) -> None:
    workload = fp32("batch=2,seq_len=40,heads=2,head_k=24,head_v=20")
    inputs = RETENTION.inputs(workload, "cpu", 5)
    o = torch.full(RETENTION.outputs(workload)["o"], torch.nan)
    tiles = {"chunk": 16, "block_v": 16, "num_stages": 1, "threads": 64}
    with on_cpu():
        run_c(TEMPLATE.build(workload, Config({**tiles, "epilogue": epilogue})), {**inputs, "o": o}, tmp_path)
    reference = RETENTION.reference(workload, inputs)["o"]
    assert (o - reference).norm() / reference.norm() < 2e-6


def test_reference_is_the_recurrence_for_any_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = fp32("batch=2,seq_len=45,heads=3,head_k=8,head_v=5")
    inputs = RETENTION.inputs(workload, "cpu", 1)
    q, k, v = (inputs[name].double() for name in ("q", "k", "v"))
    gamma = 1 - 2.0 ** (-5 - torch.arange(3, dtype=torch.float64))
    state, expected = torch.zeros(2, 3, 8, 5, dtype=torch.float64), torch.empty(2, 45, 3, 5)
    for t in range(45):
        state = gamma[:, None, None] * state + k[:, t, :, :, None] * v[:, t, :, None]
        expected[:, t] = (torch.einsum("bhk,bhkv->bhv", q[:, t], state) * 8**-0.5).float()
    for score_bytes in (1 << 28, 1):
        monkeypatch.setattr(module, "SCORE_BYTES", score_bytes)
        found = RETENTION.reference(workload, inputs)["o"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_wrong_decays_exceed_the_limit() -> None:
    workload = RETENTION.workload("batch=1,seq_len=256,heads=4,head_k=32,head_v=16")
    inputs = RETENTION.inputs(workload, "cpu", 2)
    right = RETENTION.reference(workload, inputs)["o"]
    turned = {name: tensor.roll(1, 2) for name, tensor in inputs.items()}
    wrong = RETENTION.reference(workload, turned)["o"].roll(-1, 2)
    assert (wrong - right).norm() / right.norm() > 5 * RETENTION.max_relative_error(workload)


def test_wide_heads_are_refused() -> None:
    with pytest.raises(WorkloadError, match="retention: head_k=512 exceeds 256"):
        RETENTION.workload("batch=1,seq_len=64,heads=2,head_k=512,head_v=16")
