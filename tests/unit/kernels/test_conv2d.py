"""conv2d: what its tile program computes, with a CPU in place of the GPU, and what the operator promises."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.problem.axes import window
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

CONV = operator("conv2d")
(TEMPLATE,) = templates("conv2d")


def fp32(*sizes: int, **attrs: int) -> Workload:
    return Workload("conv2d", dict(zip(CONV.dims, sizes, strict=True)), "float32", {**CONV.attrs, **attrs})


def by_torch(workload: Workload, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    x, w = inputs["X"].double().permute(0, 3, 1, 2), inputs["W"].double().permute(3, 2, 0, 1)
    _, stride, padding, dilation = window(workload.attrs)
    y = torch.nn.functional.conv2d(x, w, stride=stride, padding=padding, dilation=dilation)
    return y.permute(0, 2, 3, 1)


CASES = (
    fp32(2, 5, 7, 40, 33),
    fp32(1, 9, 8, 36, 20, kernel=2, stride=2, padding=0),
    fp32(2, 6, 5, 3, 16, kernel=3, padding=2, dilation=2),
    fp32(3, 4, 4, 32, 40, kernel=1, padding=0),
)


@pytest.mark.parametrize("workload", CASES, ids=lambda case: str(case.key))
def test_reference_is_a_convolution(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = CONV.inputs(workload, "cpu", 2)
    expected = by_torch(workload, inputs)
    for item_bytes in (1 << 28, 1):
        monkeypatch.setattr(sys.modules[type(CONV).__module__], "ITEM_BYTES", item_bytes)
        found = CONV.reference(workload, inputs)["Y"].double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_attributes_may_come_in_any_order() -> None:
    """A shape class names them by the alphabet."""
    config = TEMPLATE.default_config(CASES[1], load_target("h200"))
    assert config is not None
    sorted_attrs = Workload("conv2d", CASES[1].dims, "float32", dict(sorted(CASES[1].attrs.items())))
    assert list(sorted_attrs.attrs) != list(CASES[1].attrs)
    one, other = (TEMPLATE.build(workload, config).script() for workload in (CASES[1], sorted_attrs))
    assert one == other


@pytest.mark.parametrize(
    ("workload", "persistent"),
    [
        (CASES[0], 3),
        *(pytest.param(case, 0, marks=pytest.mark.full) for case in CASES),
        pytest.param(CASES[1], 2, marks=pytest.mark.full),
    ],
    ids=lambda given: str(getattr(given, "key", given)),
)
def test_tile_program_is_right(workload: Workload, persistent: int, tmp_path: Path) -> None:
    config = Config(
        {
            "block_m": 16,
            "block_n": 32,
            "block_k": 32,
            "num_stages": 2,
            "threads": 128,
            "policy": "square",
            "copies": "threads",
            "swizzle": 0,
            "persistent": persistent,
        }
    )
    inputs = CONV.inputs(workload, "cpu", 4)
    out = torch.full(CONV.outputs(workload)["Y"], torch.nan)
    with on_cpu():
        # the parameter of Y has the name of its view as a matrix
        run_c(TEMPLATE.build(workload, config), {**inputs, "y_rows": out}, tmp_path)
    torch.testing.assert_close(out.double(), by_torch(workload, inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "copies"),
    [
        ("RN1", "bulk"),
        ("RN3", "bulk"),
        ("batch=8,height=20,width=20,channels=64,filters=64,padding=0", "threads"),  # not half of the reach
        ("batch=8,height=20,width=20,channels=40,filters=64", "threads"),  # no whole part of 32 channels
        ("batch=8,height=20,width=20,channels=64,filters=65", "threads"),
    ],
)
def test_windows_that_tma_can_copy(shape: str, copies: str) -> None:
    configs = TEMPLATE.space(CONV.workload(shape), load_target("h100")).configs()
    assert {config["copies"] for config in configs} == {copies}
    for config in configs:
        assert copies == "threads" or CONV.workload(shape).dims["channels"] % config.int("block_k") == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,height=8,width=8,channels=4,filters=4,padding=3", "padding=3 exceeds .* = 2.*at most 2"),
        ("batch=1,height=8,width=2,channels=4,filters=4,kernel=7", "width=2 .* has 4 pixels.*window spans 7"),
        ("batch=1,height=8,width=8,channels=4,filters=4,stride=0", "stride=0 must be at least 1"),
        ("batch=4096,height=512,width=512,channels=64,filters=64", "X would have .*split the batch"),
    ],
)
def test_impossible_workloads_have_a_reason(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        CONV.workload(shape)
