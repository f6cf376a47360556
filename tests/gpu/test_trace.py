"""Traces on a real GPU: stamps are in order, and what has them computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilesight import kernel_timeline
from tilesight.api.timelines import file_timeline
from tilesight.kernels import operator, template_for
from tilesight.machine.devices import Device, device_for, find_devices
from tilesight.problem.candidate import Candidate
from tilesight.records.timeline import View
from tilesight.target.spec import Target
from tilesight.tracing.iterations import loop_times, roles_of
from tilesight.tracing.trace_kernel import trace_candidate
from tilesight.tracing.values import KernelTrace

pytestmark = pytest.mark.gpu

CASES = {
    "matmul": ("m=2048,n=1024,k=4096", "bfloat16"),
    "flash_attention": ("batch=1,heads=32,seq_len=2048,head_dim=128,causal=true", "bfloat16"),
    "rms_norm": ("m=1024,n=16384", "bfloat16"),
}
KERNEL = """
import tilelang.language as T


@T.prim_func
def scale(x: T.Tensor((1 << 20,), "float32"), y: T.Tensor((1 << 20,), "float32")):
    with T.Kernel(256, threads=128) as b:
        for step in T.serial(32):
            for i in T.Parallel(128):
                y[b * 4096 + step * 128 + i] = 3.0 * x[b * 4096 + step * 128 + i]
"""


def candidate(target: Target, kernel: str) -> Candidate:
    shape, dtype = CASES[kernel]
    template = template_for(kernel, target, dtype)
    workload = operator(kernel).workload(shape, dtype)
    config = template.default_config(workload, target)
    assert config is not None
    return Candidate(workload, target, template, config)


def check(trace: KernelTrace) -> None:
    kernel = trace.kernel
    assert len(trace.blocks) == kernel.blocks
    assert [block.block for block in trace.blocks] == list(range(kernel.blocks))
    assert 300 < trace.clock_mhz < 4000
    for block in trace.blocks:
        assert block.start_us >= 0
        assert block.end_us > block.start_us
    assert trace.sampled
    assert roles_of(trace) or not kernel.loops  # the source may unroll them
    for found in trace.sampled:
        for warp in found.warps:
            for run in warp.runs:
                assert run.starts == tuple(sorted(run.starts))
                assert run.starts[0] >= found.time.start_us - 1e-6
                assert run.end_us is not None
                assert run.starts[-1] <= run.end_us <= warp.end_us
                assert sum(end - start for start, end in run.spans) <= found.time.us + 1e-6
            assert warp.end_us <= found.time.end_us + 1e-6


@pytest.mark.parametrize("kernel", CASES)
def test_stamps_are_in_order(gpu_target: Target, kernel: str, tmp_path: Path) -> None:
    if gpu_target.kind != "cuda":
        pytest.skip("stamps are written into CUDA code")
    device = device_for(gpu_target, find_devices())
    assert isinstance(device, Device)
    trace = trace_candidate(candidate(gpu_target, kernel), device, tmp_path)
    assert trace.failure is None  # results with stamps are those of the reference
    for found in trace.kernels:
        check(found)
    times = [timed for found in trace.kernels for timed in loop_times(found)]
    print(kernel, times, trace.plain_us[:3], trace.stamped_us[:3])
    assert times or kernel == "rms_norm"  # whose loops the source unrolls
    assert all(0 < timed.steady_us < 1000 for timed in times)


def test_a_timeline_has_a_traced_launch(gpu_target: Target) -> None:
    if gpu_target.kind != "cuda":
        pytest.skip("stamps are written into CUDA code")
    config = candidate(gpu_target, "matmul").config
    found = kernel_timeline("matmul", gpu_target, CASES["matmul"][0], config=str(config), trace=True)
    assert found.traced
    print(*found.facts, sep="\n")
    assert any(name.startswith("steady iteration") for name, _ in found.facts)
    for view in (View.KERNEL, View.BLOCK, View.ITERATION):
        (part,) = found.of(view)
        assert any(row.name.startswith("traced: ") for row in part.lanes)


def test_a_kernel_of_a_file_is_traced(gpu_target: Target, tmp_path: Path) -> None:
    if gpu_target.kind != "cuda":
        pytest.skip("stamps are written into CUDA code")
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL, encoding="utf-8")
    found = file_timeline(f"{file}:scale", gpu_target, trace=True)
    print(*found.facts, sep="\n")
    assert found.traced
    assert any("inputs were drawn" in note.text for note in found.notes)
    assert not any("with and without stamps differ" in note.text for note in found.notes)
