"""dequant_matmul: quantised inputs, and what its template computes, with a CPU in place of the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.builder.build import build_kernel, device_source
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.kernels._packed import UNITS
from tilesight.kernels.dequant_matmul import RUNS, dequantised
from tilesight.lowering.lower import lower
from tilesight.machine.toolchain import missing_compiler
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.search_spaces import dequant_matmul as search_space
from tilesight.target.spec import load_target

DEQUANT = operator("dequant_matmul")
(TEMPLATE,) = templates("dequant_matmul")
WHOLE = slice(None)


def config(weights: str, decode: str) -> Config:
    return Config(
        {
            "block_m": 16,
            "block_n": 32,
            "block_k": 64,
            "num_stages": 2,
            "threads": 1,
            "weights": weights,
            "decode": decode,
            "policy": "square",
            "swizzle": 0,
        }
    )


@pytest.mark.parametrize(
    ("m", "n", "k", "group", "weights", "decode"),
    [
        pytest.param(64, 64, 128, 32, "registers_linear", "bits", marks=pytest.mark.ci),  # whole tiles
        (33, 40, 77, 32, "shared", "bits"),
        (17, 50, 130, 64, "shared_wide", "convert"),
        (20, 70, 300, -1, "registers_linear", "convert"),
        (1, 1, 1, 128, "shared", "bits"),
    ],
)
def test_tile_program_is_right_for_any_shape(
    m: int,
    n: int,
    k: int,
    group: int,
    weights: str,
    decode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tilelang.language as T  # noqa: N812

    workload = Workload("dequant_matmul", {"m": m, "n": n, "k": k}, "float32", {"group": group})
    inputs = DEQUANT.inputs(workload, "cpu", 7)
    out = torch.full((m, n), torch.nan)
    monkeypatch.setattr(T, "get_thread_binding", lambda *_: 0)  # the C backend runs one thread
    with on_cpu():
        run_c(TEMPLATE.build(workload, config(weights, decode)), {**inputs, "C": out}, tmp_path)
    reference = DEQUANT.reference(workload, inputs)["C"]
    assert (out - reference).norm() / reference.norm() < 1e-6


@pytest.mark.parametrize(
    ("attrs", "weights", "decode"),
    [
        pytest.param({"format": "fp4", "group": 64}, "shared", "bits", marks=pytest.mark.ci),
        ({"format": "fp4", "group": 64}, "registers_linear", "table"),
        ({"format": "mxfp4", "group": 32}, "registers_linear", "bits"),
        pytest.param({"format": "mxfp4", "group": 32}, "shared_wide", "table", marks=pytest.mark.ci),
        pytest.param({"format": "nf4", "group": 32}, "registers_linear", "table", marks=pytest.mark.ci),
        pytest.param({"zeros": True, "group": 32}, "registers_linear", "bits", marks=pytest.mark.ci),
        ({"zeros": True, "group": -1}, "shared", "convert"),
        pytest.param({"format": "int2", "group": -1}, "shared", "convert", marks=pytest.mark.ci),
        ({"format": "int2", "group": -1}, "registers_linear", "convert"),
    ],
)
def test_tile_program_is_right_for_each_format(
    attrs: dict[str, int | str | bool],
    weights: str,
    decode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tilelang.language as T  # noqa: N812

    workload = Workload("dequant_matmul", {"m": 17, "n": 37, "k": 133}, "float32", attrs)
    inputs = DEQUANT.inputs(workload, "cpu", 7)
    out = torch.full((17, 37), torch.nan)
    monkeypatch.setattr(T, "get_thread_binding", lambda *_: 0)  # the C backend runs one thread
    with on_cpu():
        run_c(TEMPLATE.build(workload, config(weights, decode)), {**inputs, "C": out}, tmp_path)
    reference = DEQUANT.reference(workload, inputs)["C"]
    assert (out - reference).norm() / reference.norm() < 1e-6


@pytest.mark.ci
def test_gathered_bfloat16_scales_build(tmp_path: Path) -> None:
    """For several groups in an iteration, TileLang packs two scales by a function that its headers lack."""
    target = load_target("h200")
    if missing := missing_compiler(target):
        pytest.skip(missing)
    workload = DEQUANT.workload("m=64,n=64,k=512", "bfloat16")
    tile: dict[str, int | str] = {"block_m": 64, "block_k": 256, "threads": 64}
    chosen = Config({**config("registers", "convert"), **tile})
    assert not TEMPLATE.space(workload, target).violations(chosen)
    assert "__pack_bfloat162" in device_source(lower(TEMPLATE.build(workload, chosen), target), target), (
        "else the test tests nothing"
    )
    assert build_kernel(Candidate(workload, target, TEMPLATE, chosen), tmp_path).failure is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_bits_of_a_power_of_two_and_four_more_are_their_sum(dtype: str) -> None:
    power, bits = UNITS[dtype]
    kind = getattr(torch, dtype)
    q = torch.arange(16)
    written = (q | bits).to(torch.int32 if dtype == "float32" else torch.int16).view(kind)
    assert torch.equal(written.double(), q.double() + power)
    assert torch.equal((written - torch.tensor(power + 8, dtype=kind)).double(), q.double() - 8)


@pytest.mark.parametrize(
    "shape", ["m=2,n=48,k=300", "m=2,n=48,k=77,group=32", "m=2,n=48,k=512,group=-1", "m=2,n=48,k=1"]
)
def test_weights_are_packed_as_documented(shape: str) -> None:
    workload = DEQUANT.workload(shape)
    n, k, group = workload.dims["n"], workload.dims["k"], int(workload.attrs["group"])
    inputs = DEQUANT.inputs(workload, "cpu", 0)
    weights = dequantised(workload, inputs, WHOLE)
    assert weights.shape == (n, k)
    for row, column in [(0, 0), (n - 1, k - 1), (n // 2, k // 3)]:
        byte = int(inputs["B"][row, column // 2])
        q = byte >> 4 if column % 2 else byte & 15
        scale = float(inputs["S"][0 if group == -1 else column // group, row])
        assert float(weights[row, column]) == (q - 8) * scale
    if k > 1:
        assert 0.8 < weights.std() < 1.2, "what was quantised has unit variance"
        assert {int(inputs["B"].min() & 15), int(inputs["B"].max() >> 4)} <= set(range(16))


def test_the_accepted_error_is_above_rounding_and_below_a_missing_term() -> None:
    workload = DEQUANT.workload("m=32,n=64,k=28672", "bfloat16")
    inputs = DEQUANT.inputs(workload, "cpu", 0)
    reference = DEQUANT.reference(workload, inputs)["C"]
    weights = dequantised(workload, inputs, WHOLE)
    rounded = (inputs["A"].float() @ weights.bfloat16().float().T).bfloat16().float()
    without_one = reference - inputs["A"][:, :1].float() @ weights[:, :1].T
    limit = DEQUANT.max_relative_error(workload)
    assert (rounded - reference).norm() / reference.norm() < 0.5 * limit
    assert (without_one - reference).norm() / reference.norm() > limit


def test_wrong_halves_and_groups_exceed_the_limit() -> None:
    workload = DEQUANT.workload("m=8,n=64,k=1024")
    inputs = DEQUANT.inputs(workload, "cpu", 0)
    reference = DEQUANT.reference(workload, inputs)["C"]
    packed = inputs["B"]
    for wrong in (
        {"B": packed >> 4 | packed << 4},
        {"S": inputs["S"].roll(1, 0)},
        {"S": inputs["S"].roll(1, 1)},
    ):
        other = DEQUANT.reference(workload, {**inputs, **wrong})["C"]
        assert (other - reference).norm() / reference.norm() > 20 * DEQUANT.max_relative_error(workload)


def test_costs() -> None:
    workload = DEQUANT.workload("D0")
    k = n = 16384
    assert DEQUANT.flops(workload) == 2 * n * k
    assert DEQUANT.min_bytes(workload) == n * k // 2 + 2 * n * (k // 128) + 2 * (k + n)
    odd = DEQUANT.workload("m=3,n=5,k=7,group=-1")
    assert DEQUANT.min_bytes(odd) == 2 * (3 * 7 + 5 + 3 * 5) + 5 * 4


@pytest.mark.parametrize("group", [0, -2, 48, 16])
def test_other_groups_are_refused(group: int) -> None:
    with pytest.raises(
        WorkloadError, match=rf"group={group} is not supported; take 32.*or -1 for one scale a row"
    ):
        DEQUANT.workload(f"m=1,n=64,k=64,group={group}")


def test_runs_are_those_of_the_search_space() -> None:
    assert RUNS == search_space.RUNS


def test_the_vendor_s_name_mentions_the_dequantisation() -> None:
    workload = DEQUANT.workload("m=4,n=16,k=128", "fp16")
    assert list(DEQUANT.vendor(workload, DEQUANT.inputs(workload, "cpu", 0))) == [
        "torch fp16 (weights dequantised beforehand)"
    ]


def test_published_shapes_are_those_of_the_paper() -> None:
    matmul = operator("matmul")
    for index in range(8):
        assert dict(DEQUANT.workload(f"D{index + 8}").dims) == dict(matmul.workload(f"M{index}").dims)
        assert DEQUANT.workload(f"D{index}").dims["m"] == 1
