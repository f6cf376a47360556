"""The roofline, on numbers that are known by hand."""

from __future__ import annotations

import pytest

from tilesight.records.roofline import roofline
from tilesight.target.spec import load_target


def test_matmul_is_bound_by_the_matrix_peak() -> None:
    target = load_target("h200")
    m, n, k = 4096, 1024, 8192
    found = roofline(target, "bfloat16", 2 * m * n * k, 2 * (m * k + k * n + m * n))
    # 4096 FLOP a cycle and SM, 132 SMs
    assert found.compute_us == pytest.approx(2 * m * n * k / (4096 * 132 * target["core.clock_matrix_mhz"]))
    assert found.memory_us == pytest.approx(
        92274688 / (target["device.memory.dram.read_gb_per_s"] * 1e3)
    )  # reads are faster than a copy
    assert found.is_compute
    assert found.latency_us == found.compute_us
    assert found.share(2 * found.latency_us) == 0.5
    assert found.tflops(100.0) == pytest.approx(687.19, rel=1e-4)


def test_copy_is_bound_by_device_memory() -> None:
    target = load_target("a100")
    gb_per_s = max(target.dram_gb_per_s, target.get("device.memory.dram.read_gb_per_s"))
    found = roofline(target, "float16", 1000, 2**30)
    assert not found.is_compute
    assert found.latency_us == pytest.approx(2**30 / gb_per_s / 1e3)
    assert found.gb_per_s(found.latency_us) == pytest.approx(gb_per_s)


def test_on_a_cpu_only_what_fits_no_cache_comes_from_memory() -> None:
    target = load_target("cpu")
    caches = target["device.memory.llc.bytes"]
    small, large = (roofline(target, "float32", 0, int(size)) for size in (1024, caches + 2**30))
    assert small.latency_us == 0
    assert large.memory_us == pytest.approx(2**30 / target.dram_gb_per_s / 1e3)
