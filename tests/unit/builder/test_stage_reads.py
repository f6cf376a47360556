"""The pass over consumers: what threads read of a stage is complete before the stage is reported as empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.operator_shapes import MATMUL_TILE
from tilesight.builder.build import device_source
from tilesight.builder.stage_reads import _filled_by_tma, with_complete_reads
from tilesight.kernels import operator, template_for
from tilesight.lowering.dynamic import lower_candidate
from tilesight.lowering.lower import Lowered
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

FENCE = "tl::fence_proxy_async();"
SMALL_GROUPS = "tokens=64,groups=8,n=14336,k=4096"
# both gave wrong results on an H200, in as many elements as a few warps have
RACED = (
    {"block_m": 16, "num_stages": 3, "persistent": 0, "policy": "square", "swizzle": 8, "threads": 512},
    {"block_m": 32, "num_stages": 1, "persistent": 132, "policy": "full_col", "swizzle": 0, "threads": 256},
)


def lowered(name: str, shape: str, values: Mapping[str, Any]) -> Lowered:
    target = load_target("h200")
    template, workload = template_for(name, target, "bfloat16"), operator(name).workload(shape, "bfloat16")
    return lower_candidate(Candidate(workload, target, template, Config(values)), only_read=True)


def releases(source: str) -> list[tuple[str, str]]:
    """Each arrival of all consumers in CUDA source, with the line before it."""
    lines = [line.strip() for line in source.splitlines()]
    return [(lines[at - 1], line) for at, line in enumerate(lines) if line.endswith("].arrive();")]


@pytest.mark.parametrize("values", RACED)
def test_a_stage_that_threads_read_is_empty_after_a_fence(values: Mapping[str, Any]) -> None:
    config = {**values, "block_k": 32, "block_n": 256, "skip": "loop"}
    source = device_source(lowered("grouped_matmul", SMALL_GROUPS, config), load_target("h200"))
    ((before, _),) = releases(source)
    assert before == FENCE
    assert source.index("tl::ptx_ldmatrix_x4(") < source.index(FENCE) < source.index("].arrive();")


def test_wgmma_needs_no_fence() -> None:
    kernels = lowered("matmul", "m=1024,n=1024,k=2048", MATMUL_TILE).device
    assert "ptx_wgmma" in kernels.script()
    assert with_complete_reads(kernels).script() == kernels.script()


def test_a_fence_that_is_there_is_enough() -> None:
    config = {**RACED[0], "block_k": 32, "block_n": 256, "skip": "loop"}
    once = with_complete_reads(lowered("grouped_matmul", SMALL_GROUPS, config).device)
    assert with_complete_reads(once).script() == once.script()


def test_kernels_without_producers_are_not_changed() -> None:
    values = template_for("rms_norm", load_target("h200"), "bfloat16").default_config(
        operator("rms_norm").workload("m=64,n=2880", "bfloat16"), load_target("h200")
    )
    assert values is not None
    kernels = lowered("rms_norm", "m=64,n=2880", values).device
    assert with_complete_reads(kernels).script() == kernels.script()


def test_stages_of_images_are_filled_by_tma_as_well() -> None:
    config = {
        "block_m": 64,
        "block_n": 64,
        "block_k": 64,
        "num_stages": 2,
        "threads": 128,
        "policy": "square",
        "swizzle": 0,
        "persistent": 0,
        "copies": "bulk",
    }
    shape = "batch=1,height=56,width=56,channels=64,filters=64"
    kernels = lowered("conv2d", shape, config).device
    (function,) = kernels.functions.values()
    assert "tma_load_im2col" in kernels.script()
    assert {data.name for data in _filled_by_tma(function.body)} == {"x_tile", "w_tile"}
