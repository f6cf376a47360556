"""gemv: what its tile programs compute, with a CPU in place of the GPU, and what the operator promises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

GEMV = operator("gemv")
(TEMPLATE,) = templates("gemv")


def config(
    block_n: int, threads: int, reduce_threads: int, vector: int, unroll: int, num_stages: int
) -> Config:
    return Config(
        {
            "block_n": block_n,
            "threads": threads,
            "reduce_threads": reduce_threads,
            "vector": vector,
            "unroll": unroll,
            "num_stages": num_stages,
        }
    )


@pytest.mark.parametrize(
    ("n", "k", "chosen"),
    [
        (37, 200, config(8, 64, 16, 4, 2, 0)),  # rows and columns left over, two rows a thread
        (37, 200, config(16, 64, 8, 8, 4, 2)),
        (5, 67, config(1, 64, 64, 1, 2, 0)),  # odd rows, one a block
        (1, 1, config(8, 64, 8, 1, 1, 0)),  # less than a tile
    ],
)
def test_tile_program_is_right(
    n: int, k: int, chosen: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tilelang.language as T  # noqa: N812

    monkeypatch.setattr(T, "annotate_layout", lambda _: None)  # local arrays have none
    workload = Workload("gemv", {"n": n, "k": k}, "float32")
    inputs = GEMV.inputs(workload, "cpu", 7)
    out = torch.full(GEMV.outputs(workload)["y"], torch.nan)
    with on_cpu():
        run_c(TEMPLATE.build(workload, chosen), {**inputs, "y": out}, tmp_path)
    reference = GEMV.reference(workload, inputs)["y"]
    assert (out - reference).norm() / reference.norm() < 1e-6


@pytest.mark.parametrize("num_stages", [0, 2])
def test_lowered_kernel_reads_w_once_in_whole_vectors(num_stages: int) -> None:
    from tilesight.costmodel.extract import read_profiles
    from tilesight.lowering.lower import lower

    h200, workload = load_target("h200"), GEMV.workload("n=1024,k=4096")
    chosen = config(8, 128, 32, 8, 2, num_stages)
    assert chosen in TEMPLATE.space(workload, h200)
    (profile,) = read_profiles(lower(TEMPLATE.build(workload, chosen), h200, only_read=True), h200)
    read: dict[str, float] = {}
    for role in profile.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.space == "global" and not access.write:
                    assert access.vector_bytes >= 16
                    read[access.tensor] = (
                        read.get(access.tensor, 0) + access.bytes * phase.trips.mean * profile.blocks
                    )
    assert max(read.values()) == 1024 * 4096 * 2
    assert not profile.unknown_calls


def test_tiles_in_shared_memory_reach_every_row_of_a_warp_specialised_block() -> None:
    """With annotated layouts TileLang 0.1.15 leaves out the rows of as many threads as only copy."""
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import device_codegen_without_compile
    from tvm.target import Target as TvmTarget

    from tilesight.lowering.lower import lower

    h200, workload = load_target("h200"), GEMV.workload("n=1024,k=4096")
    lowered = lower(TEMPLATE.build(workload, config(8, 128, 32, 8, 2, 2)), h200)
    tvm_target = TvmTarget(h200.tvm_target())
    with tvm_target:
        source = device_codegen_without_compile(
            lowered.device, create_backend_context(tvm_target)
        ).inspect_source()
    (store,) = [line.strip() for line in source.splitlines() if line.strip().startswith("y[")]
    # the block's rows of y, by thread (128 .. 255 compute) and by its two rows
    expression = (
        store[store.index("[") + 1 : store.index("] =")]
        .replace("((int)threadIdx.x)", "thread")
        .replace("((int)blockIdx.x)", "0")
    )
    written = {
        eval(expression, {"thread": thread, "i_4": i, "i_5": i})
        for thread in range(128, 256, 32)
        for i in range(2)
    }
    assert written == set(range(8))


def test_costs() -> None:
    workload = GEMV.workload("V4")
    assert GEMV.flops(workload) == 2 * 14336 * 57344
    assert GEMV.min_bytes(workload) == 2 * (14336 * 57344 + 57344 + 14336)


def test_a_missing_load_exceeds_the_limit() -> None:
    """The accepted error detects one missing 16-byte load of 57344 terms in bfloat16."""
    workload = GEMV.workload("n=256,k=57344")
    inputs = GEMV.inputs(workload, "cpu", 0)
    reference = GEMV.reference(workload, inputs)["y"]
    rounded = reference.to(torch.bfloat16).float()
    without = reference - inputs["W"][:, :8].float() @ inputs["x"][:8].float()
    limit = GEMV.max_relative_error(workload)
    assert (rounded - reference).norm() / reference.norm() < 0.7 * limit
    assert (without - reference).norm() / reference.norm() > limit


def test_too_large_a_matrix_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"n\*k=10000000000 elements.*split the rows of W"):
        GEMV.workload("n=100000,k=100000")
