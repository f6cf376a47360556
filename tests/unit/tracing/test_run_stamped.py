"""A stamped kernel is checked, timed beside the plain one, and read: all but the device itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.sample_kernels import scale
from tests.support.stamps import SPECIALISED, specialised_program, written
from tests.unit.runner.test_measure import FAST
from tilesight.errors import FailureKind
from tilesight.records.trial import BuildResult
from tilesight.runner import bench as bench_module
from tilesight.runner import kernel_run
from tilesight.tracing import layout
from tilesight.tracing.build_stamped import StampedBuild
from tilesight.tracing.run_stamped import run_stamped
from tilesight.workers.worker import _State

STAMPED = BuildResult("stamped.so", None, "tilesight_call", {"registers": 63})
PLAIN = replace(STAMPED, artifact="plain.so", resources={"registers": 58})


@dataclass
class FakeKernel:
    """y = 3 x; the stamped one also writes stamps, if it has to."""

    artifact: str
    entry: str
    writes = True
    factor = 3.0

    def bind(
        self, tensors: Sequence[torch.Tensor], stream: int = 0, sizes: Sequence[int] = ()
    ) -> Callable[[], None]:
        x, y, *memory = tensors
        assert len(memory) == (self.artifact == "stamped.so")

        def call() -> None:
            y.copy_(self.factor * x if memory else 3 * x)
            for words in memory if self.writes else ():
                words.copy_(torch.from_numpy(WRITTEN.view(np.int32)))

        return call

    def close(self) -> None:
        """As that of a loaded kernel."""


WRITTEN = written(SPECIALISED, specialised_program)


@pytest.fixture(autouse=True)
def fake_kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    bench_module._bench.cache_clear()
    monkeypatch.setattr(_State, "retires", False)
    monkeypatch.setattr(kernel_run, "LoadedKernel", FakeKernel)


def run() -> Any:
    return run_stamped((StampedBuild(PLAIN, STAMPED, (SPECIALISED,)), scale(), FAST))


def test_a_stamped_kernel_is_right_and_its_stamps_are_read() -> None:
    trace = run()
    assert trace.failure is None
    (kernel,) = trace.kernels
    assert len(kernel.blocks) == SPECIALISED.blocks
    assert len(kernel.sampled) == len(layout.sampled(SPECIALISED))
    assert len(trace.plain_us) == len(trace.stamped_us) == FAST.max_samples
    assert (trace.plain["registers"], trace.stamped["registers"]) == (58, 63)
    assert trace.environment["device"]
    assert trace.date.startswith("20")


def test_a_stamped_kernel_with_wrong_results_is_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeKernel, "factor", 2.0)
    trace = run()
    assert trace.failure.kind is FailureKind.WRONG_RESULT
    assert not trace.kernels


def test_stamps_that_were_not_written_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeKernel, "writes", False)
    trace = run()
    assert "wrote no times" in trace.failure.message
