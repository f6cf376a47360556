"""rms_norm: results of its tile programs on a CPU, and properties of the operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import _row_tiles, operator, templates
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

NORM = operator("rms_norm")
(TEMPLATE,) = templates("rms_norm")


def config(
    block_m: int, threads: int, reduce_threads: int, vector: int, keep: str, unroll: int = 1
) -> Config:
    return Config(
        {
            "block_m": block_m,
            "threads": threads,
            "reduce_threads": reduce_threads,
            "vector": vector,
            "keep": keep,
            "unroll": unroll,
        }
    )


@pytest.mark.parametrize("keep", ["registers", "shared", "global"])
@pytest.mark.parametrize(
    ("m", "n", "block_m", "threads", "reduce_threads", "vector"),
    [
        (7, 200, 4, 64, 32, 8),  # rows and columns left over, two rows a thread
        (5, 67, 1, 64, 64, 1),  # odd rows
    ],
)
def test_tile_program_is_right(
    m: int,
    n: int,
    block_m: int,
    threads: int,
    reduce_threads: int,
    vector: int,
    keep: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tilelang.language as T  # noqa: N812

    monkeypatch.setattr(T, "annotate_layout", lambda _: None)  # local arrays have none
    workload = Workload("rms_norm", {"m": m, "n": n}, "float32")
    inputs = NORM.inputs(workload, "cpu", 7)
    out = torch.full(NORM.outputs(workload)["y"], torch.nan)
    chosen = config(block_m, threads, reduce_threads, vector, keep, 2 if keep == "global" else 1)
    with on_cpu():
        run_c(TEMPLATE.build(workload, chosen), {**inputs, "y": out}, tmp_path)
    reference = NORM.reference(workload, inputs)["y"]
    assert (out - reference).norm() / reference.norm() < 1e-6


def test_reference_is_the_formula_for_any_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload("rms_norm", {"m": 50, "n": 30}, "float32")
    inputs = NORM.inputs(workload, "cpu", 1)
    x, w = inputs["x"].double(), inputs["w"].double()
    expected = x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt() * w
    for panel in (1 << 26, 210, 1):
        monkeypatch.setattr(_row_tiles, "PANEL", panel)
        torch.testing.assert_close(
            NORM.reference(workload, inputs)["y"].double(), expected, rtol=1e-5, atol=1e-6
        )


def test_norms_of_rows_differ() -> None:
    """A kernel that took the scale of another row, or of no row, would be found out."""
    inputs = NORM.inputs(NORM.workload("m=100,n=512"), "cpu", 2)
    norms = inputs["x"].float().square().mean(1).sqrt()
    assert norms.max() / norms.min() > 8
    assert inputs["w"].float().std() > 0.2


@pytest.mark.parametrize(("keep", "reads"), [("registers", 1), ("shared", 1), ("global", 2)])
def test_lowered_kernel_reads_x_once_or_twice(keep: str, reads: int) -> None:
    from tilesight.costmodel.extract import read_profiles
    from tilesight.lowering.lower import lower

    h200, workload = load_target("h200"), NORM.workload("m=512,n=4096")
    chosen = config(2, 256, 128, 8, keep)
    assert chosen in TEMPLATE.space(workload, h200)
    (profile,) = read_profiles(lower(TEMPLATE.build(workload, chosen), h200, only_read=True), h200)
    moved: dict[bool, dict[str, float]] = {False: {}, True: {}}
    for role in profile.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.space == "global":
                    assert access.vector_bytes == 16
                    tensors = moved[access.write]
                    tensors[access.tensor] = (
                        tensors.get(access.tensor, 0) + access.bytes * phase.trips.mean * profile.blocks
                    )
    assert max(moved[False].values()) == reads * 512 * 4096 * 2
    assert list(moved[True].values()) == [512 * 4096 * 2]
    assert not profile.unknown_calls


def test_costs() -> None:
    workload = NORM.workload("R0")
    assert NORM.flops(workload) == 4 * 4096 * 4096
    assert NORM.min_bytes(workload) == 2 * (2 * 4096 * 4096 + 4096)


def test_too_large_a_tensor_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"m\*n=10000000000 elements.*split the rows of x"):
        NORM.workload("m=100000,n=100000")
