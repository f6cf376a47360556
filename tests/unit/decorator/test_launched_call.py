"""Calls through the measured library, here on the processor, in place of a `JITKernel`'s own function."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.decorator import user_kernels
from tilesight.builder.build import build_kernel
from tilesight.decorator import autotune, kernel_of_choice
from tilesight.decorator.kernel_of_choice import _candidate, _launched
from tilesight.decorator.launched_call import LaunchedCall
from tilesight.decorator.tuned import Tuned, TunedSource
from tilesight.errors import Failure, FailureKind
from tilesight.problem.space import Config
from tilesight.records.trial import BuildResult, Status
from tilesight.target.spec import load_target

pytestmark = pytest.mark.usefixtures("places")

VALUES = {"block": 16}
TUNED = Tuned(Config(VALUES), VALUES, TunedSource.DATABASE, Status.VERIFIED, latency_us=1.0)


def call_of(made: Any, *args: Any) -> tuple[Any, ...]:
    return made._function, made._options, made._call(args, {}), TUNED, VALUES


def launched(folder: Path, factory: Any, *args: Any, **options: Any) -> tuple[LaunchedCall, list[Any]]:
    """The call of a kernel, and the arguments of the calls that went to the `JITKernel`'s own function."""
    made = autotune(configs=[VALUES], target="cpu", **options)(factory)
    candidate, interface = _candidate(*call_of(made, *args), load_target("cpu"))
    built = build_kernel(candidate, folder)
    assert built.failure is None, built.failure
    others: list[Any] = []
    return LaunchedCall(interface, built, lambda *given, **_: others.append(given)), others


def test_results_are_those_of_the_library(tmp_path: Path) -> None:
    add, others = launched(tmp_path, user_kernels.add_factory, 64, out_idx=-1)
    a, b = torch.randn(64), torch.randn(64)
    torch.testing.assert_close(add(a, b), a + b)
    first = add(a, b)
    assert add(b, b) is not first
    torch.testing.assert_close(first, a + b)
    update, _ = launched(tmp_path, user_kernels.accumulate_factory, 64)
    y, x = torch.arange(64, dtype=torch.int32), torch.ones(64, dtype=torch.int8)
    assert update(y, x) is None
    assert torch.equal(y, torch.arange(64, dtype=torch.int32) + 3)
    assert others == []


def test_sizes_and_numbers_of_run_time(tmp_path: Path) -> None:
    rows, others = launched(tmp_path, user_kernels.rows_factory, 16, out_idx=-1)
    for m, s, offset in ((3, 2.0, 1), (40, -0.5, -7), (3, 1.5, 2**31 - 1)):
        a = torch.randn(m, 16)
        torch.testing.assert_close(rows(a, s, offset), a * s + offset)
    assert others == []
    rows(torch.randn(3, 8), 1.0, 1)
    rows(torch.randn(3, 16), torch.ones(1), 1)
    rows(torch.randn(3, 16), 1.0, 2**31)
    assert len(others) == 3


def test_other_arguments_go_to_tilelang(tmp_path: Path) -> None:
    add, others = launched(tmp_path, user_kernels.add_factory, 64, out_idx=-1)
    a = torch.randn(64)
    strided = torch.randn(128)[::2]
    for given in [(a,), (a, a.double()), (a, torch.randn(65)), (a, 3), (a, torch.empty(64, device="meta"))]:
        add(*given)
    torch.testing.assert_close(add(a, a), 2 * a)
    add(a, strided)
    add(a, B=a)
    assert len(others) == 7
    assert others[5][1] is strided


def test_only_measured_kernels_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = autotune(configs=[VALUES], target="cpu", out_idx=-1)(user_kernels.add_factory)
    function, options, call, _, values = call_of(made, 64)
    kernel = SimpleNamespace(torch_function=lambda *_: "TileLang's", name="add")
    found = _launched(kernel, function, options, call, TUNED, values)
    assert isinstance(found.torch_function, LaunchedCall)
    assert kernel.torch_function() == "TileLang's", "TileLang's own kernel is left as it is"
    assert found.torch_function(1, 2) == "TileLang's"
    predicted = Tuned(Config(VALUES), VALUES, TunedSource.MODEL, Status.PREDICTED)
    assert _launched(kernel, function, options, call, predicted, values) is kernel
    gone = BuildResult(None, Failure(FailureKind.BUILD_ERROR, "no compiler"))
    monkeypatch.setattr("tilesight.builder.build.build_kernel", lambda *_: gone)
    assert kernel_of_choice._launched(kernel, function, options, call, TUNED, values) is kernel
