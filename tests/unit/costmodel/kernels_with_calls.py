# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Kernels that call device functions, or that leave threads and loops early."""

from typing import Any

import tilelang.language as T

from tilesight.api.foreign_kernel import ForeignKernel, profiles_of
from tilesight.api.run_time_facts import RunTimeFacts
from tilesight.profile.values import KernelProfile
from tilesight.target.spec import load_target

ROUNDS = """
template <typename A, typename B>
__device__ void rounds(A *from, B *to, const int times = 4) {
  float value = from[0];
  #pragma unroll
  for (int i = 0; i < times; ++i) { value = fmaf(value, 3.0f, 1.0f); }
  to[0] = value;
}
"""


def imported(n: int) -> Any:
    """Each thread calls a function whose text the kernel imports, with a pointer to device memory."""

    @T.prim_func
    def kernel(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // 128, threads=128) as b:
            T.import_source(ROUNDS)
            t = T.get_thread_binding()
            kept = T.alloc_local((1,), "float32")
            T.call_extern("handle", "rounds", T.address_of(X[b * 128 + t]), T.address_of(kept[0]))
            Y[b * 128 + t] = kept[0] * 2.0

    return kernel


def external(n: int, name: str = "mystery") -> Any:
    """Each thread calls a function of which no text is given."""

    @T.prim_func
    def kernel(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // 128, threads=128) as b:
            t = T.get_thread_binding()
            Y[b * 128 + t] = T.call_extern("float32", name, X[b * 128 + t])

    return kernel


def early_return(blocks: int, used: int) -> Any:
    """Blocks from `used` on return at once."""

    @T.prim_func
    def kernel(Y: T.Tensor((blocks, 1024), "float32")):
        with T.Kernel(blocks, threads=128) as b:
            t = T.get_thread_binding()
            if b >= used:
                T.thread_return()
            for i in T.serial(8):
                Y[b, i * 128 + t] = 1.0

    return kernel


def skipping() -> Any:
    """Every other iteration stores nothing."""

    @T.prim_func
    def kernel(Y: T.Tensor((16, 128), "float32")):
        with T.Kernel(1, threads=128) as _:
            t = T.get_thread_binding()
            for i in T.serial(16):
                if i % 2 == 1:
                    continue
                Y[i, t] = 1.0

    return kernel


def breaking() -> Any:
    """A search that ends when it has found."""

    @T.prim_func
    def kernel(X: T.Tensor((16, 128), "float32"), Y: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            t = T.get_thread_binding()
            for i in T.serial(16):
                if X[i, t] > 3.0:
                    T.loop_break()
                Y[t] = X[i, t]

    return kernel


def profile(prim_func: Any, facts: RunTimeFacts, target: str = "h200") -> KernelProfile:
    """The only profile of a kernel with what a caller states of it."""
    (only,) = profiles_of(ForeignKernel("kernel", prim_func), load_target(target), facts)
    return only
