"""Stamps lie at the right places of CUDA source, and what has them compiles.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tilesight.builder.build import device_source
from tilesight.builder.cuda import build_cuda, cuda_flags
from tilesight.builder.launch_plan import Argument, KernelLaunch, LaunchPlan, read_plan
from tilesight.errors import LaunchError
from tilesight.kernels import operator, template_for
from tilesight.lowering.dynamic import lower_candidate
from tilesight.lowering.lower import lower
from tilesight.machine.toolchain import find_cxx, find_nvcc
from tilesight.problem.candidate import Candidate
from tilesight.target.spec import load_target
from tilesight.tracing import layout
from tilesight.tracing.grids import fixed_grids, grids_at
from tilesight.tracing.source_places import find_places
from tilesight.tracing.stamp_source import with_stamps
from tilesight.tracing.values import StampedKernel

H200 = load_target("h200")
SPECIALISED = (
    "matmul", "m=512,n=512,k=1024",
    "block_k=64,block_m=128,block_n=128,epilogue=shared,num_stages=3,policy=full_row,swizzle=0,threads=256",
)  # fmt: skip
PERSISTENT = (
    "matmul", "m=4096,n=8192,k=2048",
    "block_k=64,block_m=128,block_n=256,epilogue=shared,num_stages=4,persistent=132,policy=full_row,"
    "schedule=overlapped,swizzle=16,threads=256",
)  # fmt: skip
CAUSAL = (
    "flash_attention", "FA0",
    "block_m=128,block_n=128,block_order=by_head,num_stages=2,schedule=serial,threads=256",
)  # fmt: skip
GEMV = (
    "gemv", "n=1024,k=16384",
    "block_n=2,num_stages=0,reduce_threads=128,threads=128,unroll=2,vector=8",
)  # fmt: skip
ROWS = (
    "rms_norm", "m=512,n=16384",
    "block_m=1,keep=global,reduce_threads=512,threads=512,unroll=2,vector=8",
)  # fmt: skip


def stamped(case: tuple[str, str, str]) -> tuple[str, str, LaunchPlan, tuple[StampedKernel, ...]]:
    """The source of a config without and with stamps, and the plan with stamps."""
    kernel, shape, given = case
    template = template_for(kernel, H200, "bfloat16")
    workload = operator(kernel).workload(shape, "bfloat16")
    candidate = Candidate(workload, H200, template, template.space(workload, H200).read(given))
    lowered = lower_candidate(candidate)
    source, plan = device_source(lowered, H200), read_plan(lowered)
    return source, *with_stamps(source, plan, fixed_grids(lowered, plan))


def lines_with(source: str, code: int) -> list[str]:
    """The lines of the kernel with a stamp of this code."""
    return [line for line in source.splitlines() if f"tilesight_place, {code}u);" in line]


def check_places(source: str, kernels: tuple[StampedKernel, ...]) -> None:
    """Each loop is stamped at its begin and after its end, and nothing else is; the text parses as before."""
    for kernel in kernels:
        places = find_places(source.encode(), kernel.function)
        assert tuple(place.loop for place in places.loops) == kernel.loops
        for place in places.loops:
            begin, end = (code(place.loop.number) for code in (layout.begin_code, layout.end_code))
            text = source.encode()
            stamps = [
                f"tilesight_stamp(tilesight_trace, tilesight_place, {c}u);".encode() for c in (begin, end)
            ]
            assert text[place.end :].startswith(b" " + stamps[1])
            if place.loop.overlaps:
                assert text[: place.before].endswith(stamps[0] + b" ")
                assert text[place.body :].startswith(f" ++tilesight_count_{place.loop.number};".encode())
            else:
                assert text[place.body :].startswith(b" " + stamps[0])
    count = sum(2 * len(kernel.loops) for kernel in kernels)
    assert len(re.findall(r"tilesight_stamp\(tilesight_trace, tilesight_place, \d+u\);", source)) == count
    assert source.count("= tilesight_begin<") == source.count("tilesight_end<") == len(kernels)


def built(source: str, plan: LaunchPlan, folder: Path) -> dict[str, int]:
    nvcc, cxx = find_nvcc(), find_cxx()
    if nvcc is None or cxx is None:
        pytest.skip("needs nvcc")
    files, resources = build_cuda(folder, source, plan, cuda_flags(H200.arch, ()), nvcc, cxx)
    assert files[0].read_bytes().startswith(b"\x7fELF")
    return resources


def test_a_kernel_of_producer_and_consumers(tmp_path: Path) -> None:
    plain, source, plan, kernels = stamped(SPECIALISED)
    check_places(source, kernels)
    (kernel,) = kernels
    producer, consumer = kernel.loops
    assert (producer.loads, producer.computes, consumer.loads, consumer.computes) == (
        True,
        False,
        False,
        True,
    )
    assert (kernel.grid, kernel.threads) == ((4, 4, 1), 384)
    (begin,) = lines_with(source, layout.begin_code(0))
    assert begin in source.split("#pragma unroll 1\n")[1]
    assert plan.launches[0].arguments[-1] == Argument("tensor", 3)
    assert plan.tensors == 4
    assert source.count("unsigned *tilesight_trace)") == plain.count("matmul_kernel(") == 2
    # 24 registers are enough for a producer with stamps
    assert built(source, plan, tmp_path)["spill_bytes"] == 0


def test_a_kernel_without_roles_has_a_loop() -> None:
    _, source, _, kernels = stamped(GEMV)
    check_places(source, kernels)
    (loop,) = kernels[0].loops
    assert loop.overlaps
    assert source.count("tilesight_count_0 = 0;") == 2


def test_a_persistent_kernel_has_nested_loops() -> None:
    _, source, _, kernels = stamped(PERSISTENT)
    check_places(source, kernels)
    assert [loop.outer for loop in kernels[0].loops] == [None, 0, None, 2]
    assert kernels[0].grid == (132, 1, 1)


def test_attention_has_a_loop_in_each_role() -> None:
    """Its loops over the parts of a product and over registers are unrolled, and have no stamps."""
    plain, source, _, kernels = stamped(CAUSAL)
    check_places(source, kernels)
    assert plain.count("for (") > 10
    assert len(kernels[0].loops) == 2


def test_a_kernel_of_rows_has_two_loops() -> None:
    _, source, _, kernels = stamped(ROWS)
    check_places(source, kernels)
    assert [(loop.outer, loop.overlaps) for loop in kernels[0].loops] == [(None, True), (None, True)]


TEXT = """
#include <cuda.h>
__device__ int helper(int x) { for (int i = 0; i < x; ++i) { x += i; } return x; }
extern "C" __global__ void first();
extern "C" __global__ void __launch_bounds__(64, 1) first() {
  auto twice = [](int x) { return 2 * x; };
  if (threadIdx.x == 77) return;
  while (1) {
    if (!(twice(1) < 3)) { break; }
    __syncthreads();
  }
  #pragma unroll
  for (int i = 0; i < 4; ++i) { __syncthreads(); }
  if (threadIdx.x < 32)
    for (int i = 0; i < 9; ++i)
      for (int j = 0; j < 9; ++j)
        __syncthreads();
}
extern "C" __global__ void __launch_bounds__(48, 1) second(float* __restrict__ y) {
  for (int i = 0; i < 9; ++i) {
    for (int j = 0; j < 9; ++j) { y[j] = i; }
  }
}
"""


def two_launches(numbers: tuple[str, ...] = ()) -> LaunchPlan:
    more = (Argument("number", 1, "float32"),) if numbers else ()
    first = KernelLaunch("first", (), (3, 1, 1), (64, 1, 1))
    second = KernelLaunch("second", (Argument("tensor", 0), *more), (5, 1, 1), (48, 1, 1))
    return LaunchPlan(1, (), (first, second), numbers=numbers)


def test_returns_other_loops_and_several_kernels() -> None:
    source, plan, kernels = with_stamps(TEXT, two_launches(), [(3, 1, 1), (5, 1, 1)])
    first, second = kernels
    # `while`, and two `for` without braces; that over i in `second` alone, since the other one only stores
    assert [loop.outer for loop in first.loops] == [None, None, 1]
    assert [loop.outer for loop in second.loops] == [None]
    assert [launch.arguments[-1] for launch in plan.launches] == [
        Argument("tensor", 1),
        Argument("tensor", 2),
    ]
    assert "{ tilesight_end<3u, 2u>(tilesight_trace, tilesight_place); return; }" in source
    assert "return 2 * x; };" in source
    assert "return x; }" in source
    assert "void first(unsigned *tilesight_trace);" in source
    assert "second(float* __restrict__ y, unsigned *tilesight_trace) {" in source
    (leaves, *_) = lines_with(source, layout.begin_code(0))
    assert "{ break; } tilesight_stamp(" in leaves
    # threads that are no whole warps cannot elect one
    assert "tilesight_begin<5u, 2u, false," in source
    assert "tilesight_begin<3u, 2u, true," in source


def test_what_is_returned_and_looped_over_compiles(tmp_path: Path) -> None:
    source, plan, _ = with_stamps(TEXT, two_launches(), [(3, 1, 1), (5, 1, 1)])
    assert built(source, plan, tmp_path)["registers"] > 0


def test_numbers_of_the_caller_follow_all_tensors() -> None:
    _, plan, _ = with_stamps(TEXT, two_launches(("scale",)), [(3, 1, 1), (5, 1, 1)])
    assert plan.launches[1].arguments[1:] == (Argument("number", 3, "float32"), Argument("tensor", 2))


def test_a_kernel_that_is_not_there_or_launched_twice_is_refused() -> None:
    plan = two_launches()
    with pytest.raises(LaunchError, match="no kernel 'third'"):
        find_places(TEXT.encode(), "third")
    again = LaunchPlan(1, (), (plan.launches[1], plan.launches[1]))
    with pytest.raises(LaunchError, match="several times"):
        with_stamps(TEXT, again, [(5, 1, 1), (5, 1, 1)])


def test_grids_of_dynamic_kernels_are_those_of_their_sizes() -> None:
    import tilelang.language as T  # noqa: N812

    n = T.dynamic("n")

    @T.prim_func
    def main(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32"), a: T.float32):  # type: ignore
        with T.Kernel(T.ceildiv(n, 1024), threads=128) as b:
            for i in T.Parallel(1024):
                y[b * 1024 + i] = a * x[b * 1024 + i]

    lowered = replace(lower(main, H200), sizes=(n,))
    plan = read_plan(lowered)
    with pytest.raises(LaunchError, match="dynamic dimensions"):
        fixed_grids(lowered, plan)
    assert grids_at({"n": 5000, "a": 1.0})(lowered, plan) == [(5, 1, 1)]
