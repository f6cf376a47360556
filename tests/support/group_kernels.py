"""Kernels that two ranks run together, right ones and faulty ones, for processors and GPUs.

Each rank has a vector x and gets the sum of both. Ranks pull the vectors of their peers, or push their own.
Two meetings are enough for either: memory may be written again after the last one.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from tilesight.errors import WorkloadError
from tilesight.problem.axes import Axes
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import GroupOperator
from tilesight.problem.operator import Tensors
from tilesight.problem.space import Config, Parameter, SearchSpace, Value
from tilesight.problem.template import RANK, Collective, KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target, load_target

# the first one waits, the second only raises its flag, the third waits for what nobody raises
MEETINGS: Mapping[str, int] = {"meets": 0, "only raises": 1, "waits for ever": 2}

_CPU = """
#include <sched.h>
#include <time.h>
extern "C" int32_t linger(int32_t rank, int32_t us) {
  struct timespec duration = {0, 1000L * us};
  if (rank == 1 && us > 0) nanosleep(&duration, 0);
  return 0;
}
extern "C" float peek(float *place) { return *place; }
extern "C" int32_t meet(int32_t *flags_0, int32_t *flags_1, int32_t rank, int32_t mode) {
  int32_t *flags[2] = {flags_0, flags_1}, *own = flags[rank], value = ++own[2];
  for (int peer = 0; peer < 2; ++peer) __atomic_store_n(flags[peer] + rank, value, __ATOMIC_RELEASE);
  for (int peer = 0; peer < 2 && mode != 1; ++peer)
    while (__atomic_load_n(own + peer, __ATOMIC_ACQUIRE) < value + (mode == 2 ? 1 << 30 : 0)) sched_yield();
  return 0;
}
"""
_CUDA = """
__device__ unsigned long long nanoseconds() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
__device__ int linger(int rank, int us) {
  if (rank == 1)
    for (unsigned long long begin = nanoseconds(); nanoseconds() - begin < 1000ull * us;) __nanosleep(1000);
  __syncthreads();
  return 0;
}
// What a kernel only reads is `const __restrict__`: the compiler may load it before the ranks have met.
__device__ float peek(const float *place) {
  float found;
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(found) : "l"(place) : "memory");
  return found;
}
__device__ int meet(int *flags_0, int *flags_1, int rank, int mode) {
  __syncthreads();
  if (threadIdx.x == 0) {
    int *flags[2] = {flags_0, flags_1}, *own = flags[rank], value = ++own[2];
    __threadfence_system();
    for (int peer = 0; peer < 2; ++peer)
      asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(flags[peer] + rank), "r"(value) : "memory");
    for (int peer = 0; peer < 2 && mode != 1; ++peer) {
      int found;
      do {
        asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(found) : "l"(own + peer) : "memory");
      } while (found < value + (mode == 2 ? 1 << 30 : 0));
    }
    __threadfence_system();
  }
  __syncthreads();
  return 0;
}
"""


class SumOfRanks(GroupOperator):
    name = "sum_of_ranks"
    dims = ("n", "world")
    dtypes = ("float32",)
    axes: ClassVar[Axes] = {"x": ("n",), "y": ("n",)}
    shared = ("x",)
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {"R0": {"n": 1024}}
    default_names = ("R0",)

    def validate(self, workload: Workload) -> None:
        super().validate(workload)
        if workload.dims["world"] != 2:
            raise WorkloadError(f"{self.name}: world={workload.dims['world']} must be 2")

    def rank_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator(device).manual_seed(2 * seed + rank)
        return {"x": torch.randn(workload.dims["n"], generator=generator, device=device)}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": (workload.dims["n"],)}

    def group_reference(self, workload: Workload, inputs: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
        return [
            {"y": torch.stack([other["x"].to(own["x"].device) for other in inputs]).sum(0)} for own in inputs
        ]

    def vendor_collective(self, workload: Workload) -> Collective:
        return Collective("all_reduce", "copy", "y", "after", 4 * workload.dims["n"])

    def vendor_scratch(self, workload: Workload) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"copy": ((workload.dims["n"],), "float32")}

    def vendor_part(self, workload: Workload, tensors: Tensors) -> Callable[[], object]:
        return lambda: tensors["copy"].copy_(tensors["x"])

    def flops(self, workload: Workload) -> int:
        return workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        return 8 * workload.dims["n"]

    def max_relative_error(self, workload: Workload) -> float:
        return 1e-6


OPERATOR = SumOfRanks()


class SumTemplate(KernelTemplate):
    """`way`: pull or push, or the library's collective after a copy. `factor`: of the sum; 1 is right.
    `slow_us`: how long rank 1 waits, when all have met, before it reads.
    """

    operator = OPERATOR
    name = "sum_of_ranks"
    target_kinds = ("cpu", "cuda")
    dtypes = ("float32",)
    numbers = (RANK,)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        """Of the faulty kernels only those with a wrong factor."""
        return SearchSpace(
            [
                Parameter("way", ("pull", "push", "library")),
                Parameter("code", (target.kind,)),
                Parameter("first", ("meets",)),  # before vectors are read
                Parameter("last", ("meets",)),
                Parameter("factor", (1, 2)),
                Parameter("slow_us", (0,)),
            ]
        )

    def default_config(self, workload: Workload, target: Target) -> Config:
        return config("pull", target.kind)

    def shared_scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        if config["way"] == "library":
            return {}
        box = {"box": ((2, workload.dims["n"]), "float32")} if config["way"] == "push" else {}
        return {**box, "flags": ((3,), "int32")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"copy": ((workload.dims["n"],), "float32")} if config["way"] == "library" else {}

    def collective(self, workload: Workload, config: Config) -> Collective | None:
        if config["way"] != "library":
            return None
        return Collective("all_reduce", "copy", "y", "after", 4 * workload.dims["n"])

    def build(self, workload: Workload, config: Config) -> Any:
        n, factor = workload.dims["n"], config.int("factor")
        first, last = MEETINGS[config.str("first")], MEETINGS[config.str("last")]
        slow_us = config.int("slow_us")
        prelude = _CPU if config["code"] == "cpu" else _CUDA
        if config["way"] == "library":
            return _copy(n, factor)
        return (
            _pull(n, factor, prelude, first, last, slow_us)
            if config["way"] == "pull"
            else _push(n, factor, prelude, first, last, slow_us)
        )


def _pull(n: int, factor: int, prelude: str, first: int, last: int, slow_us: int) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(  # type: ignore[no-untyped-def]
        x_0: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        x_1: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        y: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        flags_0: T.Tensor((3,), "int32"),  # type: ignore[valid-type]
        flags_1: T.Tensor((3,), "int32"),  # type: ignore[valid-type]
        rank: T.int32,
    ):
        with T.Kernel(1, threads=128, prelude=prelude):
            T.evaluate(
                T.call_extern(
                    "int32", "meet", T.address_of(flags_0[0]), T.address_of(flags_1[0]), rank, first
                )
            )
            T.evaluate(T.call_extern("int32", "linger", rank, slow_us))
            for i in T.Parallel(n):
                y[i] = (
                    T.call_extern("float32", "peek", T.address_of(x_0[i]))
                    + T.call_extern("float32", "peek", T.address_of(x_1[i]))
                ) * factor
            T.evaluate(
                T.call_extern("int32", "meet", T.address_of(flags_0[0]), T.address_of(flags_1[0]), rank, last)
            )

    return main


def _push(n: int, factor: int, prelude: str, first: int, last: int, slow_us: int) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(  # type: ignore[no-untyped-def]
        x_0: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        x_1: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        y: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        box_0: T.Tensor((2, n), "float32"),  # type: ignore[valid-type]
        box_1: T.Tensor((2, n), "float32"),  # type: ignore[valid-type]
        flags_0: T.Tensor((3,), "int32"),  # type: ignore[valid-type]
        flags_1: T.Tensor((3,), "int32"),  # type: ignore[valid-type]
        rank: T.int32,
    ):
        with T.Kernel(1, threads=128, prelude=prelude):
            for i in T.Parallel(n):
                box_0[rank, i] = T.if_then_else(rank == 0, x_0[i], x_1[i])
            for i in T.Parallel(n):
                box_1[rank, i] = T.if_then_else(rank == 0, x_0[i], x_1[i])
            T.evaluate(
                T.call_extern(
                    "int32", "meet", T.address_of(flags_0[0]), T.address_of(flags_1[0]), rank, first
                )
            )
            T.evaluate(T.call_extern("int32", "linger", rank, slow_us))
            for i in T.Parallel(n):
                y[i] = (
                    T.if_then_else(rank == 0, box_0[0, i], box_1[0, i])
                    + T.if_then_else(rank == 0, box_0[1, i], box_1[1, i])
                ) * factor
            T.evaluate(
                T.call_extern("int32", "meet", T.address_of(flags_0[0]), T.address_of(flags_1[0]), rank, last)
            )

    return main


def _copy(n: int, factor: int) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(  # type: ignore[no-untyped-def]
        x_0: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        x_1: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        y: T.Tensor((n,), "float32"),  # type: ignore[valid-type]  # noqa: ARG001
        copy: T.Tensor((n,), "float32"),  # type: ignore[valid-type]
        rank: T.int32,
    ):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(n):
                copy[i] = T.if_then_else(rank == 0, x_0[i], x_1[i]) * factor

    return main


def config(
    way: str, code: str, first: str = "meets", last: str = "meets", factor: int = 1, slow_us: int = 0
) -> Config:
    return Config(
        {"way": way, "code": code, "first": first, "last": last, "factor": factor, "slow_us": slow_us}
    )


def cpu_pair(folder: Path) -> Target:
    """A target of two ranks on this processor."""
    path = folder / "cpux2.toml"
    path.write_text(_CPU_PAIR, encoding="utf-8")
    return load_target(str(path))


def sum_candidate(target: Target, n: int = 1024, **changes: Any) -> Candidate:
    template = SumTemplate()
    workload = template.operator.workload_on(target, f"n={n}")
    chosen = config(**{"way": "pull", "code": target.kind, **changes})
    return Candidate(workload, target, template, chosen)


TEMPLATES = (SumTemplate(),)

_CPU_PAIR = """
name = "cpux2"
title = "two threads"
unit = "cpu"

[node]
topology = "switch"
link = "memory"
devices = { value = 2, provenance = "predicted" }

[node.network]
link_gb_per_s = { value = 10, provenance = "predicted" }
flag_us = { value = 1, provenance = "predicted" }
"""
