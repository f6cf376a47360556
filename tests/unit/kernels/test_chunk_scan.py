"""chunk_scan: results of its tile program on a CPU, and properties of the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import chunk_scan as module
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

CHUNK_SCAN = operator("chunk_scan")
(TEMPLATE,) = templates("chunk_scan")


def fp32(batch: int, seq_len: int, nheads: int, head_dim: int, d_state: int, chunk: int) -> Workload:
    dims = {"batch": batch, "seq_len": seq_len, "nheads": nheads, "head_dim": head_dim, "d_state": d_state}
    return Workload("chunk_scan", dims, "float32", {"chunk": chunk})


@pytest.mark.parametrize(
    ("dims", "tile"),
    [
        pytest.param((2, 70, 3, 40, 20, 64), (32, 32, 32), marks=pytest.mark.full),  # padded everywhere
        ((1, 64, 1, 32, 16, 64), (64, 32, 32)),  # two tiles on a diagonal
        ((1, 64, 1, 32, 16, 64), (32, 32, 64)),  # a diagonal within a tile
    ],
)
def test_tile_program_is_right(
    dims: tuple[int, int, int, int, int, int], tile: tuple[int, int, int], tmp_path: Path
) -> None:
    workload = fp32(*dims)
    inputs = CHUNK_SCAN.inputs(workload, "cpu", 5)
    out = torch.full(CHUNK_SCAN.outputs(workload)["out"], torch.nan)
    config = Config(
        {
            **dict(zip(("block_m", "block_n", "block_k"), tile, strict=True)),
            "num_stages": 1,
            "threads": 32,
            "copies": "threads",
        }
    )
    with on_cpu():
        run_c(TEMPLATE.build(workload, config), {**inputs, "out": out}, tmp_path)
    reference = CHUNK_SCAN.reference(workload, inputs)["out"]
    assert (out - reference).norm() / reference.norm() < 1e-5


def test_reference_is_the_recurrence_of_mamba_for_any_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """With cb = C B^T and the true states, chunks do not matter: it is one recurrence over all tokens."""
    workload = fp32(2, 75, 3, 5, 4, 32)
    inputs = CHUNK_SCAN.inputs(workload, "cpu", 1)
    x, c, dt, sums, d = (inputs[name].double() for name in ("x", "C", "dt", "dA_cumsum", "D"))
    b = torch.randn(2, 96, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(c, (0, 0, 0, 21)).view(2, 3, 32, 4)
    inputs["cb"] = torch.einsum("zcln,zcsn->zcls", padded, b.view(2, 3, 32, 4))[:, :, None].float()
    state = torch.zeros(2, 3, 5, 4, dtype=torch.float64)
    expected = torch.zeros(2, 75, 3, 5, dtype=torch.float64)
    for token in range(75):
        chunk, place = divmod(token, 32)
        if place == 0:
            inputs["prev_states"][:, chunk] = state.float()
        step = sums[:, :, chunk, place] - (sums[:, :, chunk, place - 1] if place else 0)
        added = torch.einsum("zh,zhp,zn->zhpn", dt[:, :, chunk, place], x[:, token], b[:, token])
        state = state * step.exp()[..., None, None] + added
        expected[:, token] = torch.einsum("zn,zhpn->zhp", c[:, token], state) + d[:, None] * x[:, token]
    for weight_bytes in (1 << 30, 1):
        monkeypatch.setattr(module, "WEIGHT_BYTES", weight_bytes)
        found = CHUNK_SCAN.reference(workload, inputs)["out"]
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("part", ["states", "diagonal", "later tokens", "D"])
def test_wrong_terms_exceed_the_limit(part: str) -> None:
    workload = CHUNK_SCAN.workload("batch=1,seq_len=512,nheads=16,head_dim=16,d_state=32")
    inputs = CHUNK_SCAN.inputs(workload, "cpu", 2)
    right = CHUNK_SCAN.reference(workload, inputs)["out"]
    if part == "states":
        inputs["prev_states"] = inputs["prev_states"].roll(1, 1)
    elif part == "diagonal":
        inputs["cb"].diagonal(dim1=-2, dim2=-1).zero_()
    elif part == "later tokens":
        inputs["cb"] = inputs["cb"].transpose(-1, -2)
    else:
        inputs["D"] = inputs["D"].roll(1)
    wrong = CHUNK_SCAN.reference(workload, inputs)["out"]
    assert (wrong - right).norm() / right.norm() > 2 * CHUNK_SCAN.max_relative_error(workload)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_stays_well_within_the_limit(dtype: str) -> None:
    """torch rounds the weights, the parts of the sum and the output; a kernel rounds less."""
    workload = CHUNK_SCAN.workload("batch=1,seq_len=512,nheads=16,head_dim=16,d_state=32", dtype)
    inputs = CHUNK_SCAN.inputs(workload, "cpu", 4)
    reference = CHUNK_SCAN.reference(workload, inputs)["out"]
    out = CHUNK_SCAN.vendor(workload, inputs)["torch (einsum)"]()
    assert isinstance(out, torch.Tensor)
    error = float((out.float() - reference).norm() / reference.norm())
    assert CHUNK_SCAN.max_relative_error(workload) / 5 < error < CHUNK_SCAN.max_relative_error(workload)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,seq_len=64,nheads=2,head_dim=16,d_state=300", "d_state=300 exceeds 256"),
        ("batch=1,seq_len=64,nheads=70000,head_dim=1,d_state=1", "nheads=70000 exceeds the 65535 blocks"),
        (
            "batch=64,seq_len=65536,nheads=64,head_dim=64,d_state=16",
            "tiles of x would reach.*split the batch",
        ),
        ("batch=1,seq_len=64,nheads=2,head_dim=16,d_state=16,chunk=100", "chunk=100 must be one of: 32"),
    ],
)
def test_bad_workloads_are_refused(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        CHUNK_SCAN.workload(shape)


def test_costs_count_visible_pairs() -> None:
    whole = CHUNK_SCAN.workload("batch=1,seq_len=512,nheads=2,head_dim=4,d_state=8")
    pairs = 2 * 256 * 257 // 2
    assert CHUNK_SCAN.flops(whole) == 2 * 2 * 4 * (pairs + 512 * 8)


@pytest.mark.parametrize(
    ("shape", "heads"),
    [
        ("CC0", 2),  # 128 blocks on 132 cores
        ("CC2", 16),
        ("CC5", 64),  # all: more blocks than cores
        ("batch=16,seq_len=8192,nheads=80,head_dim=64,d_state=128", 64),  # as many as a block may take
        ("batch=2,seq_len=1000,nheads=5,head_dim=72,d_state=128", 0),  # 80 blocks
        ("batch=1,seq_len=1024,nheads=64,head_dim=64,d_state=128,chunk=512", 0),  # no room for such a chunk
    ],
)
def test_default_blocks_take_as_many_heads_as_leave_a_block_for_each_core(shape: str, heads: int) -> None:
    config = TEMPLATE.default_config(CHUNK_SCAN.workload(shape, "bfloat16"), load_target("h200"))
    assert config is not None
    assert config.int("heads", 0) == heads
