"""Small operators and kernel templates for the tests of what builds, runs and measures.

`scale` (y = 3 x) runs on every kind of target, and its configs can make every fault that a kernel can have.
`product` (c = a b) takes the tensor-core path of a GPU: TMA descriptors, warp specialisation, dynamic shared
memory.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from tilesight.problem.candidate import Candidate
from tilesight.problem.operator import Operator, Tensors
from tilesight.problem.space import Config, Parameter, SearchSpace
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target, load_target

FAULTS = (
    *(
        "none",
        "wrong",
        "unwritten",
        "infinite",
        "unlowerable",
        "uncompilable",
        "stack overflow",
        "trap",
        "too much shared",
    ),
    *(
        "not a number",
        "endless",
        "illegal address",
        "writes input",
        "race",
        "atomics",
        "random",
        "large local",
    ),
)


class Scale(Operator):
    name = "scale"
    dims = ("n",)
    dtypes = ("float32", "bfloat16")
    named: ClassVar[Mapping[str, Mapping[str, bool | int]]] = {"S0": {"n": 4096}}
    default_names = ("S0",)

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        dtype = getattr(torch, workload.dtype)
        return {"x": torch.randn(workload.dims["n"], generator=generator, device=device).to(dtype)}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": (workload.dims["n"],)}

    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        return {"y": inputs["x"].float() * 3}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        def broken() -> None:
            raise RuntimeError("no such backend here")

        return {"torch": lambda: inputs["x"] * 3, "broken": broken}

    def flops(self, workload: Workload) -> int:
        return workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        return 2 * workload.dims["n"] * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        return 1e-6 if workload.dtype == "float32" else 5e-3


class ScaleTemplate(KernelTemplate):
    operator = Scale()
    name = "scale"
    target_kinds = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return SearchSpace([Parameter("block", (128, 256)), Parameter("fault", FAULTS)])

    def build(self, workload: Workload, config: Config) -> Any:
        fault, n, block, dtype = config.str("fault"), workload.dims["n"], config.int("block"), workload.dtype
        if fault == "unlowerable":
            raise ValueError("Layout infer conflict")
        if fault in ("trap", "uncompilable"):
            return _calling("__trap" if fault == "trap" else "no_such_function", n, block, dtype)
        if fault == "stack overflow":
            return _large_local(n, block, dtype)
        if fault == "too much shared":
            return _shared(n, block, dtype)
        if fault == "large local":
            return _spread_local(n, block, dtype)
        if fault in _ODD:
            return _ODD[fault](n, block, dtype)
        factor = {"wrong": 3.5, "infinite": 3e38, "not a number": float("nan")}.get(fault, 3.0)
        return _scaled(n, block, dtype, factor, blocks=n // block - (fault == "unwritten"))


def _scaled(n: int, block: int, dtype: str, factor: float, blocks: int) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(blocks, threads=128) as b:
            for i in T.Parallel(block):
                y[b * block + i] = x[b * block + i] * factor

    return main


def _calling(function: str, n: int, block: int, dtype: str) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            for i in T.Parallel(block):
                y[b * block + i] = x[b * block + i]
            T.evaluate(T.call_extern("int32", function))

    return main


def _large_local(n: int, block: int, dtype: str) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            kept = T.alloc_local((2**30,), dtype)
            for i in T.serial(block):
                kept[i * 4096] = x[b * block + i]
            for i in T.serial(block):
                y[b * block + i] = kept[(block - 1 - i) * 4096]

    return main


def _shared(n: int, block: int, dtype: str) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            kept = T.alloc_shared((512, block), dtype)
            for r in T.serial(512):
                T.copy(x[b * block : b * block + block], kept[r, :])
            for i in T.Parallel(block):
                y[b * block + i] = kept[i, i] * 3

    return main


def _spread_local(n: int, block: int, dtype: str) -> Any:
    """400 KB of local memory per thread, which a GPU reserves at launch for all threads that fit on it."""
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            kept = T.alloc_local((100_000,), dtype)
            for i in T.serial(block):
                kept[(i * 700 + b * 997) % 100_000] = x[b * block + i]
            for i in T.serial(block):
                y[b * block + i] = kept[(i * 700 + b * 997) % 100_000] * 3

    return main


def _endless(n: int, block: int, dtype: str) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            for i in T.Parallel(block):
                y[b * block + i] = x[b * block + i]
            for _ in T.serial(2**30):
                for _ in T.serial(2**30):
                    y[b * block] = y[b * block] * 0.5 + x[b * block]

    return main


def _illegal_address(n: int, block: int, dtype: str) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            for i in T.Parallel(block):
                y[b * block + i] = x[b * block + i] * 3
            far = T.Tensor((2**43,), dtype, y.data)
            far[T.int64(2**42) + b] = 1.0  # 16 TiB beyond y

    return main


def _writes_input(n: int, block: int, dtype: str) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            for i in T.Parallel(block):
                y[b * block + i] = x[b * block + i] * 3
            if b == 0:
                x[0] = x[0] + 1

    return main


def _race(n: int, block: int, dtype: str) -> Any:
    """Each block also writes its neighbour's elements, off by a bit: the last write is read."""
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            for i in T.Parallel(block):
                y[b * block + i] = x[b * block + i] * 3
            for i in T.Parallel(block):
                y[(b + 1) % (n // block) * block + i] = x[(b + 1) % (n // block) * block + i] * 3.0000002

    return main


def _atomics(n: int, block: int, dtype: str) -> Any:
    """y as a sum of sixteen unequal parts, each added by another block, in any order."""
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            for i in T.Parallel(block):
                y[b * block + i] = 0
        with T.Kernel(16, n // block, threads=128) as (
            part,
            b,
        ):  # neighbours add to the same sums concurrently
            for i in T.Parallel(block):
                T.atomic_add(y[b * block + i], x[b * block + i] * T.Cast(dtype, part + 1) * (3 / 136))

    return main


def _random(n: int, block: int, dtype: str) -> Any:
    """For processors: the last bits are random numbers of the C library."""
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((n,), dtype), y: T.Tensor((n,), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(n // block, threads=128) as b:
            for i in T.serial(block):
                y[b * block + i] = (
                    x[b * block + i] * 3 + T.Cast(dtype, T.call_extern("int32", "rand")) * 1e-17
                )

    return main


_ODD: Mapping[str, Callable[[int, int, str], Any]] = {
    "endless": _endless,
    "illegal address": _illegal_address,
    "writes input": _writes_input,
    "race": _race,
    "atomics": _atomics,
    "random": _random,
}


class AtomicScaleTemplate(ScaleTemplate):
    """Declares that its kernels add in changing order."""

    name = "scale_atomics"
    deterministic = False


class Product(Operator):
    name = "product"
    dims = ("m", "n", "k")
    dtypes = ("bfloat16", "float32")
    named: ClassVar[Mapping[str, Mapping[str, bool | int]]] = {"P0": {"m": 512, "n": 512, "k": 512}}
    default_names = ("P0",)

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        generator, d, dtype = (
            torch.Generator(device).manual_seed(seed),
            workload.dims,
            getattr(torch, workload.dtype),
        )
        shapes = {"a": (d["m"], d["k"]), "b": (d["k"], d["n"])}
        return {
            name: torch.randn(shape, generator=generator, device=device).to(dtype)
            for name, shape in shapes.items()
        }

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"c": (workload.dims["m"], workload.dims["n"])}

    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        return {"c": inputs["a"].double() @ inputs["b"].double()}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        return {"torch": lambda: inputs["a"] @ inputs["b"]}

    def flops(self, workload: Workload) -> int:
        return 2 * workload.dims["m"] * workload.dims["n"] * workload.dims["k"]

    def min_bytes(self, workload: Workload) -> int:
        d = workload.dims
        return (d["m"] * d["k"] + d["k"] * d["n"] + d["m"] * d["n"]) * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        return 1e-5 if workload.dtype == "float32" else 5e-3


class ProductTemplate(KernelTemplate):
    """Uses shared memory and tensor cores on a GPU, and local tiles on a processor, as the C backend
    requires.
    """

    operator = Product()
    name = "product"
    target_kinds = ("cpu", "cuda", "hip")
    dtypes = ("bfloat16", "float32")

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return SearchSpace([Parameter("tile", (32, 64, 128)), Parameter("stages", (1, 2, 3))])

    def build(self, workload: Workload, config: Config) -> Any:
        d, tile = workload.dims, config.int("tile")
        if workload.dtype == "float32":
            return _local_product(d["m"], d["n"], d["k"], tile)
        return _tensor_core_product(d["m"], d["n"], d["k"], tile, config.int("stages"), workload.dtype)


def _local_product(m: int, n: int, k: int, tile: int) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(
        a: T.Tensor((m, k), "float32"),  # type: ignore[valid-type]
        b: T.Tensor((k, n), "float32"),  # type: ignore[valid-type]
        c: T.Tensor((m, n), "float32"),  # type: ignore[valid-type]
    ):  # type: ignore[no-untyped-def]
        with T.Kernel(n // tile, m // tile, threads=1) as (bx, by):
            a_tile = T.alloc_local((tile, tile), "float32")
            b_tile = T.alloc_local((tile, tile), "float32")
            c_tile = T.alloc_local((tile, tile), "float32")
            T.clear(c_tile)
            for kb in T.serial(k // tile):
                T.copy(a[by * tile, kb * tile], a_tile)
                T.copy(b[kb * tile, bx * tile], b_tile)
                for i, kk, j in T.grid(tile, tile, tile):
                    c_tile[i, j] += a_tile[i, kk] * b_tile[kk, j]
            T.copy(c_tile, c[by * tile, bx * tile])

    return main


def _tensor_core_product(m: int, n: int, k: int, tile: int, stages: int, dtype: str) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(
        a: T.Tensor((m, k), dtype),  # type: ignore[valid-type]
        b: T.Tensor((k, n), dtype),  # type: ignore[valid-type]
        c: T.Tensor((m, n), dtype),  # type: ignore[valid-type]
    ):  # type: ignore[no-untyped-def]
        with T.Kernel(T.ceildiv(n, tile), T.ceildiv(m, tile), threads=128) as (bx, by):
            a_tile = T.alloc_shared((tile, 64), dtype)
            b_tile = T.alloc_shared((64, tile), dtype)
            c_tile = T.alloc_fragment((tile, tile), "float32")
            T.clear(c_tile)
            for kb in T.Pipelined(T.ceildiv(k, 64), num_stages=stages):
                T.copy(a[by * tile, kb * 64], a_tile)
                T.copy(b[kb * 64, bx * tile], b_tile)
                T.gemm(a_tile, b_tile, c_tile)
            T.copy(c_tile, c[by * tile, bx * tile])

    return main


def scale(
    target: str = "cpu", fault: str = "none", block: int = 128, dtype: str = "float32", n: int = 4096
) -> Candidate:
    template = ScaleTemplate()
    return Candidate(
        template.operator.workload(f"n={n}", dtype),
        load_target(target),
        template,
        Config({"block": block, "fault": fault}),
    )


def added(target: str = "cpu", fault: str = "atomics", n: int = 4096) -> Candidate:
    """`scale` by a template that declares that its outputs may differ in their last bits."""
    template = AtomicScaleTemplate()
    config = Config({"block": 128, "fault": fault})
    return Candidate(template.operator.workload(f"n={n}", "float32"), load_target(target), template, config)


def product(target: str = "cpu", tile: int = 64, stages: int = 2, shape: str = "P0") -> Candidate:
    template = ProductTemplate()
    found = load_target(target)
    workload = template.operator.workload(shape, "float32" if found.kind == "cpu" else "bfloat16")
    return Candidate(workload, found, template, Config({"tile": tile, "stages": stages}))


def two_kernels() -> Any:
    """One function, z = x + 1 in a kernel and y = 2 z in the next."""
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(
        x: T.Tensor((1024,), "float32"), y: T.Tensor((1024,), "float32"), z: T.Tensor((1024,), "float32")
    ):  # type: ignore
        with T.Kernel(8, threads=128) as b:
            for i in T.Parallel(128):
                z[b * 128 + i] = x[b * 128 + i] + 1.0
        with T.Kernel(4, threads=256) as b:
            for i in T.Parallel(256):
                y[b * 256 + i] = z[b * 256 + i] * 2.0

    return main
