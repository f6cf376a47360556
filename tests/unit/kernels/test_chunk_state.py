"""chunk_state: results of its tile program on a CPU, and properties of the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import chunk_state as module
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

CHUNK_STATE = operator("chunk_state")
(TEMPLATE,) = templates("chunk_state")
SMALL = "batch=2,seq_len=100,nheads=3,head_dim=20,d_state=24,chunk=32"


def fp32(batch: int, seq_len: int, nheads: int, head_dim: int, d_state: int, chunk: int) -> Workload:
    dims = {"batch": batch, "seq_len": seq_len, "nheads": nheads, "head_dim": head_dim, "d_state": d_state}
    return Workload("chunk_state", dims, "float32", {"chunk": chunk})


def config(block_p: int, block_n: int, block_k: int, scaled_x: str) -> Config:
    tiles = {"block_p": block_p, "block_n": block_n, "block_k": block_k}
    return Config(
        {
            **tiles,
            "num_stages": 1,
            "threads": 32,
            "policy": "square",
            "scaled_x": scaled_x,
            "copies": "threads",
        }
    )


@pytest.mark.parametrize("scaled_x", ["registers", "shared"])
@pytest.mark.parametrize(
    ("dims", "tile"),
    [
        pytest.param((1, 128, 2, 32, 32, 64), (32, 32, 32), marks=pytest.mark.full),  # whole tiles
        ((2, 128, 2, 64, 64, 32), (32, 32, 32)),  # several tiles of a state, several sequences and chunks
        ((2, 70, 3, 40, 20, 32), (32, 32, 32)),  # padded rows, columns and tokens
        ((1, 1, 1, 7, 1, 32), (32, 32, 32)),  # less than a tile
    ],
)
def test_tile_program_is_right(
    dims: tuple[int, int, int, int, int, int], tile: tuple[int, int, int], scaled_x: str, tmp_path: Path
) -> None:
    workload = fp32(*dims)
    inputs = CHUNK_STATE.inputs(workload, "cpu", 5)
    out = torch.full(CHUNK_STATE.outputs(workload)["states"], torch.nan)
    with on_cpu():
        run_c(TEMPLATE.build(workload, config(*tile, scaled_x)), {**inputs, "states": out}, tmp_path)
    reference = CHUNK_STATE.reference(workload, inputs)["states"]
    assert (out - reference).norm() / reference.norm() < 1e-5


def test_reference_is_the_sum_over_tokens_for_any_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = fp32(2, 75, 3, 5, 4, 32)
    inputs = CHUNK_STATE.inputs(workload, "cpu", 1)
    x, b, dt, sums = (inputs[name].double() for name in ("x", "B", "dt", "dA_cumsum"))
    expected = torch.zeros(CHUNK_STATE.outputs(workload)["states"], dtype=torch.float64)
    for item in range(2):
        for token in range(75):
            chunk, place = divmod(token, 32)
            kept = (
                torch.exp(sums[item, :, chunk, -1] - sums[item, :, chunk, place]) * dt[item, :, chunk, place]
            )
            expected[item, chunk] += torch.einsum("h,hp,n->hpn", kept, x[item, token], b[item, token])
    for panel_bytes in (1 << 30, 2 * 4 * 32 * 3 * 5, 1):
        monkeypatch.setattr(module, "PANEL_BYTES", panel_bytes)
        torch.testing.assert_close(
            CHUNK_STATE.reference(workload, inputs)["states"].double(), expected, rtol=1e-5, atol=1e-7
        )


def test_inputs_are_like_those_of_a_new_layer() -> None:
    workload = CHUNK_STATE.workload("batch=2,seq_len=600,nheads=64,head_dim=4,d_state=4")
    inputs = CHUNK_STATE.inputs(workload, "cpu", 3)
    dt, sums = inputs["dt"], inputs["dA_cumsum"]
    assert dt.dtype == sums.dtype == torch.float32
    assert dt.shape == sums.shape == (2, 64, 3, 256)
    tokens = dt.flatten(2)
    assert (tokens[..., :600] > 0).all()
    assert (tokens[..., 600:] == 0).all(), "the last chunk is padded with tokens that take no time"
    assert (sums.diff(dim=-1) <= 0).all()
    assert (sums < 0).all()
    assert 1e-3 < tokens[..., :600].median() < 0.1
    steps = -sums[:, :, 0, 0] / dt[:, :, 0, 0]
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-3, atol=0)  # A belongs to the head
    assert 1 <= steps.min() < 4
    assert 13 < steps.max() <= 16.01
    kept = torch.exp(sums[:, :, 0, -1] - sums[:, :, 0, 0]).mean(0)
    assert kept.min() < 1e-6, "some heads forget a chunk's first token"
    assert kept.max() > 0.3, "and some keep it"


@pytest.mark.parametrize("part", ["first tokens", "last token", "one element"])
def test_omitted_terms_exceed_the_limit(part: str) -> None:
    workload = CHUNK_STATE.workload("batch=1,seq_len=1024,nheads=64,head_dim=16,d_state=16")
    inputs = CHUNK_STATE.inputs(workload, "cpu", 2)
    dt = inputs["dt"].clone()
    x = inputs["x"].clone()
    if part == "first tokens":
        dt[..., :64] = 0
    elif part == "last token":
        dt[..., -1] = 0
    else:
        x[..., 3] = 0
    reference = CHUNK_STATE.reference(workload, inputs)["states"]
    wrong = CHUNK_STATE.reference(workload, {**inputs, "dt": dt, "x": x})["states"]
    assert (wrong - reference).norm() / reference.norm() > 2 * CHUNK_STATE.max_relative_error(workload)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_stays_well_within_the_limit(dtype: str) -> None:
    """The roundings of the kernel: scaled x to the dtype, states to the dtype."""
    workload = CHUNK_STATE.workload("batch=1,seq_len=1024,nheads=32,head_dim=16,d_state=16", dtype)
    inputs = CHUNK_STATE.inputs(workload, "cpu", 4)
    kept = torch.exp(inputs["dA_cumsum"][..., -1:] - inputs["dA_cumsum"]) * inputs["dt"]
    x = inputs["x"].float().view(1, 4, 256, 32, 16) * kept.permute(0, 2, 3, 1)[..., None]
    x, b = x.to(inputs["x"].dtype).float(), inputs["B"].float().view(1, 4, 256, 16)
    out = torch.einsum("bclhp,bcln->bchpn", x, b).to(inputs["x"].dtype).float()
    reference = CHUNK_STATE.reference(workload, inputs)["states"]
    error, limit = (
        float((out - reference).norm() / reference.norm()),
        CHUNK_STATE.max_relative_error(workload),
    )
    assert limit / 5 < error < limit / 2, "neither loose nor tight"


def test_vendor_pads_ragged_sequences() -> None:
    workload = CHUNK_STATE.workload(SMALL)
    inputs = CHUNK_STATE.inputs(workload, "cpu", 0)
    ((name, call),) = CHUNK_STATE.vendor(workload, inputs).items()
    assert name == "torch (einsum)"
    out, reference = call(), CHUNK_STATE.reference(workload, inputs)["states"]
    assert isinstance(out, torch.Tensor)
    assert out.dtype == torch.bfloat16
    assert (out.float() - reference).norm() / reference.norm() < 2 * CHUNK_STATE.max_relative_error(workload)


def test_costs_count_tokens_not_padding() -> None:
    whole, ragged = (
        CHUNK_STATE.workload("CT0"),
        CHUNK_STATE.workload("batch=1,seq_len=1000,nheads=64,head_dim=64,d_state=128"),
    )
    assert CHUNK_STATE.flops(whole) == 2 * 1024 * 64 * 64 * 128
    states = 4 * 64 * 64 * 128 * 2
    for workload, tokens in ((whole, 1024), (ragged, 1000)):
        assert CHUNK_STATE.min_bytes(workload) == tokens * (64 * 64 * 2 + 128 * 2 + 64 * 8) + states
    assert CHUNK_STATE.flops(ragged) < CHUNK_STATE.flops(whole)


def test_no_shape_larger_than_the_largest_published_one_is_accepted() -> None:
    assert CHUNK_STATE.workload("CT5").dims["batch"] * 8192 * 64 * 64 == 2**31
    for shape in (
        "batch=64,seq_len=8192,nheads=64,head_dim=65,d_state=128",  # x itself
        # the end of the last chunk: fewer than 2^31 elements are stored
        "batch=1,seq_len=523265,nheads=41,head_dim=100,d_state=8,chunk=1024",
        "batch=64,seq_len=8192,nheads=64,head_dim=64,d_state=257",  # states
    ):
        with pytest.raises(WorkloadError, match="split the batch"):
            CHUNK_STATE.workload(shape)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            "batch=1,seq_len=1024,nheads=8,head_dim=64,d_state=128,chunk=100",
            "chunk=100 must be one of: 32, 64",
        ),
        ("batch=1,seq_len=1024,nheads=70000,head_dim=8,d_state=8", "nheads=70000 exceeds the 65535 blocks"),
        (
            "batch=300,seq_len=65536,nheads=1,head_dim=8,d_state=8",
            r"batch \* chunks=76800 exceeds the 65535 blocks",
        ),
    ],
)
def test_impossible_workloads_have_a_reason(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        CHUNK_STATE.workload(shape)


def test_config_of_published_example_is_legal() -> None:
    space = TEMPLATE.space(CHUNK_STATE.workload("CT3", "float16"), load_target("h100"))
    tiles = {"block_p": 64, "block_n": 128, "block_k": 64, "num_stages": 4, "threads": 128}
    assert Config({**tiles, "policy": "square", "scaled_x": "registers", "copies": "bulk"}) in space
