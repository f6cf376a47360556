"""The model of a CPU core, on kernels of a few loops. (No `from __future__`: TileLang reads annotations.)"""

from dataclasses import replace
from typing import Any

import pytest

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.cpu_caches import LLC_KEEPS, served_bytes
from tilesight.costmodel.extract import read_profiles
from tilesight.lowering.lower import lower
from tilesight.profile.values import KernelProfile
from tilesight.records.trial import Prediction
from tilesight.target.spec import Figure, load_target

CPU = load_target("cpu")
L1, L2, LLC = (
    CPU[path] for path in ("core.memory.l1.bytes", "core.memory.l2.bytes", "device.memory.llc.bytes")
)


def profile(function: Any) -> KernelProfile:
    (found,) = read_profiles(lower(function, CPU), CPU)
    return found


def predict(function: Any) -> Prediction:
    return AnalyticalModel().predict([profile(function)], CPU)


def stream(bytes_of_both: float, block: int = 64, *, by_columns: bool = False) -> Any:
    import tilelang.language as T  # noqa: N812

    n = int(bytes_of_both) // 8
    passes = n // block

    @T.prim_func
    def kernel(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
        with T.Kernel(passes) as b:
            for i in T.serial(block):
                place = i * passes + b if by_columns else b * block + i
                Y[place] = T.float32(2) * X[place] + T.float32(1)

    return kernel


def row_sum(width: int) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def kernel(X: T.Tensor((64, 1024), "float32"), Y: T.Tensor((64,), "float32")):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
        with T.Kernel(64) as row:
            parts = T.alloc_local((width,), "float32")
            for i in T.serial(width):
                parts[i] = T.float32(0)
            for step, i in T.grid(1024 // width, width):
                parts[i] = parts[i] + X[row, step * width + i]
            Y[row] = parts[0]

    return kernel


@pytest.mark.parametrize(
    ("size", "level"), [(2 * L1, "l2"), (2 * L2, "llc"), (4 * LLC, "dram")], ids=["L2", "LLC", "memory"]
)
def test_a_stream_is_served_by_the_level_that_holds_it(size: float, level: str) -> None:
    found = served_bytes(profile(stream(size)), CPU)
    # the last level keeps a part of what is larger than it
    assert found[level] == pytest.approx(size * (1 - LLC_KEEPS / 4 if level == "dram" else 1))
    assert sum(found.values()) == pytest.approx(size)


def test_what_stays_in_the_first_level_is_not_fetched() -> None:
    # of the input sets that are used in turn, each must find room
    assert sum(served_bytes(profile(stream(L1 / 16)), CPU).values()) == 0


def test_warm_caches_are_not_charged_as_memory() -> None:
    assert predict(stream(2 * L2)).terms_us["dram"] == 0


def test_columns_that_share_cache_sets_are_fetched_again_and_again() -> None:
    rows, columns = (predict(stream(2**25, block=512, by_columns=by_columns)) for by_columns in (False, True))
    assert columns.latency_us > 5 * rows.latency_us


def test_one_sum_in_order_is_slower_than_sums_in_vectors() -> None:
    assert predict(row_sum(1)).latency_us > 3 * predict(row_sum(64)).latency_us


def test_tensors_of_several_loops_are_counted_once() -> None:
    import tilelang.language as T  # noqa: N812

    m = int(4 * LLC) // 8 // 1024

    @T.prim_func
    def twice(X: T.Tensor((m, 1024), "float32"), Y: T.Tensor((m, 1024), "float32")):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
        with T.Kernel(m) as row:
            for i in T.serial(1024):
                Y[row, i] = X[row, i] + T.float32(1)
            for i in T.serial(1024):
                Y[row, i] = Y[row, i] * X[row, i]

    assert served_bytes(profile(twice), CPU)["dram"] == pytest.approx(8 * m * 1024 * (1 - LLC_KEEPS / 4))


def test_a_partial_last_block_counts_as_it_is() -> None:
    from tilesight.kernels import template_for

    template = template_for("matmul", CPU, "float32")
    config = template.default_config(template.operator.workload("m=512,n=512,k=512", "float32"), CPU)
    assert config is not None

    def operations(m: int) -> float:
        workload = template.operator.workload(f"m={m},n=512,k=512", "float32")
        found = profile(template.build(workload, config))
        return sum(p.work.vector_ops * p.trips.mean for p in found.roles[0].phases)

    assert operations(128 + 32) / operations(128) == pytest.approx(1.25, rel=0.02)


def test_the_width_of_vectors_is_a_power_of_two_near_the_measured_rate() -> None:
    figures = dict(CPU.figures)
    times = []
    for lanes in (15.2, 16.0, 17.4):
        figures["core.unit.vector.fp32_lanes"] = Figure(lanes, "measured")
        target = replace(CPU, figures=figures)
        times.append(AnalyticalModel().predict([profile(stream(L1 / 16))], target).terms_us["l1"])
    assert times[0] == times[1] == times[2]
