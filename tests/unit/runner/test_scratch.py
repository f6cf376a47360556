"""Kernels that need memory beside their tensors.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.sample_kernels import ScaleTemplate
from tilesight.builder.build import build_kernel
from tilesight.errors import FailureKind
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.records.protocol import MeasurementProtocol
from tilesight.runner.measure import measure_kernel
from tilesight.target.spec import load_target

FAST = MeasurementProtocol(
    "default", "warm", "call", warmup_ms=0.1, min_samples=6, max_samples=6, precision=1.0, stretch_us=1.0,
    retakes=0, seed=5,
)  # fmt: skip


class InTwoSteps(ScaleTemplate):
    """y = (3 x), by way of scratch memory. With `fault=wrong` the first step is left out."""

    name = "scale_in_two_steps"

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"tripled": ((workload.dims["n"],), "float32")}

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        n, block, dtype = workload.dims["n"], config.int("block"), workload.dtype
        has_first_step = config["fault"] == "none"

        @T.prim_func
        def main(  # type: ignore[no-untyped-def]
            x: T.Tensor((n,), dtype),  # type: ignore[valid-type]
            y: T.Tensor((n,), dtype),  # type: ignore[valid-type]
            tripled: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        ):
            with T.Kernel(n // block, threads=128) as b:
                for i in T.Parallel(block):
                    if has_first_step:
                        tripled[b * block + i] = x[b * block + i] * 3.0
                    y[b * block + i] = tripled[b * block + i]

        return main


@pytest.mark.parametrize("fault", ["none", "wrong"])
def test_scratch_is_passed_after_the_outputs_and_holds_nothing(fault: str, tmp_path: Path) -> None:
    template = InTwoSteps()
    workload = template.operator.workload("n=4096")
    candidate = Candidate(workload, load_target("cpu"), template, Config({"block": 128, "fault": fault}))
    built = build_kernel(candidate, tmp_path)
    assert built.artifact, built.failure
    found = measure_kernel(built, candidate, FAST)
    if fault == "none":
        assert found.failure is None
    else:  # what the memory held before shows as NaN
        assert found.failure is not None
        assert found.failure.kind is FailureKind.WRONG_RESULT
