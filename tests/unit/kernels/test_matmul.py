"""matmul: what its kernels compute, with a CPU in place of the GPU for the GPU template's tile program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

MATMUL = operator("matmul")
GPU, CPU = templates("matmul")


def fp32(m: int, n: int, k: int) -> Workload:
    return Workload("matmul", {"m": m, "n": n, "k": k}, "float32")


def relative_error(workload: Workload, function: object, folder: Path) -> float:
    inputs = MATMUL.inputs(workload, "cpu", 11)
    out = torch.full(MATMUL.outputs(workload)["C"], torch.nan)
    run_c(function, {**inputs, "C": out}, folder)
    reference = MATMUL.reference(workload, inputs)["C"]
    return float((out - reference).norm() / reference.norm())


@pytest.mark.parametrize(
    ("seed", "shape"),
    [*enumerate([(96, 128, 128), (1, 1, 1), (3, 130, 67), (97, 63, 129), (130, 257, 300)])],
    ids=str,
)
def test_cpu_kernel_is_right_for_any_shape(seed: int, shape: tuple[int, int, int], tmp_path: Path) -> None:
    workload = fp32(*shape)
    (config,) = CPU.space(workload, load_target("cpu")).sample(1, seed)
    assert relative_error(workload, CPU.build(workload, config), tmp_path) <= MATMUL.max_relative_error(
        workload
    )


def test_cpu_kernel_is_right_for_partial_blocks(tmp_path: Path) -> None:
    """No extent is a multiple of block or tile, and the last micro-kernel step is a part of `unroll`."""
    workload = fp32(101, 203, 305)
    config = Config({"block_m": 96, "block_n": 64, "block_k": 128, "tile_m": 12, "tile_n": 32, "unroll": 8})
    assert config in CPU.space(workload, load_target("cpu"))
    assert relative_error(workload, CPU.build(workload, config), tmp_path) <= MATMUL.max_relative_error(
        workload
    )


@pytest.mark.parametrize(
    ("shape", "epilogue"),
    [
        pytest.param((64, 64, 64), "shared", marks=pytest.mark.ci),
        ((1, 1, 1), "direct"),
        ((100, 90, 70), "direct"),
        ((33, 17, 65), "shared"),
    ],
    ids=str,
)
def test_gpu_tile_program_is_right_for_any_shape(
    shape: tuple[int, int, int], epilogue: str, tmp_path: Path
) -> None:
    workload = fp32(*shape)
    config = Config(
        {
            "block_m": 32,
            "block_n": 32,
            "block_k": 32,
            "num_stages": 2,
            "threads": 32,
            "policy": "square",
            "epilogue": epilogue,
            "swizzle": 0,
        }
    )
    with on_cpu():
        assert relative_error(workload, GPU.build(workload, config), tmp_path) < 1e-6


def test_costs() -> None:
    workload = MATMUL.workload("M0")
    assert MATMUL.flops(workload) == 2 * 4096 * 1024 * 8192
    assert MATMUL.min_bytes(workload) == 2 * (4096 * 8192 + 8192 * 1024 + 4096 * 1024)


def test_a_missing_term_exceeds_the_limit() -> None:
    """The accepted error is tight enough that leaving out one of 28672 terms fails in bfloat16."""
    workload = MATMUL.workload("m=64,n=64,k=28672")
    inputs = MATMUL.inputs(workload, "cpu", 0)
    reference = MATMUL.reference(workload, inputs)["C"]
    rounded = reference.to(torch.bfloat16).float()
    without_one = reference - inputs["A"][:, :1].float() @ inputs["B"][:1].float()
    limit = MATMUL.max_relative_error(workload)
    assert (rounded - reference).norm() / reference.norm() < 0.7 * limit
    assert (without_one - reference).norm() / reference.norm() > limit


def test_default_shapes_of_the_cpu_take_seconds() -> None:
    assert [w.name for w in MATMUL.default_workloads("float32")] == ["S512", "S1024"]
    assert all(MATMUL.flops(w) < 1e10 for w in MATMUL.default_workloads("float32"))
    assert [w.name for w in MATMUL.default_workloads()] == list(MATMUL.default_names)


def test_vendor_on_a_cpu_names_library_and_threads() -> None:
    workload = fp32(8, 8, 8)
    names = list(MATMUL.vendor(workload, MATMUL.inputs(workload, "cpu", 0)))
    assert "1 thread" in names[0]
    before = torch.get_num_threads()
    for call in MATMUL.vendor(workload, MATMUL.inputs(workload, "cpu", 0)).values():
        call()
    assert torch.get_num_threads() == before


def test_published_winner_of_the_h200_is_legal() -> None:
    config = Config(
        {
            "block_m": 256,
            "block_n": 128,
            "block_k": 64,
            "num_stages": 4,
            "threads": 256,
            "policy": "square",
            "epilogue": "shared",
            "swizzle": 0,
        }
    )
    for name in ("M0", "M7"):
        assert config in GPU.space(MATMUL.workload(name), load_target("h200"))
