"""rms_norm: y = x / sqrt(mean(x^2) + EPS) * w for each row of x[m, n], in float32; and its template for GPUs.

With `residual` the rows are those of h = x + r, rounded to the dtype, which is a second output.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import rms_norm as search_space
from ..target.spec import Target
from ._row_tiles import (
    RowTiles,
    by_panels,
    has_residual,
    random_rows,
    residual_adder,
    rows_and_sums,
    with_compiled,
)

if TYPE_CHECKING:
    import torch

EPS = 1e-6


class RmsNorm(Operator):
    name = "rms_norm"
    dims = ("m", "n")
    attrs: ClassVar[Mapping[str, Value]] = {"residual": False}
    later_attrs = ("residual",)
    axes: ClassVar[Axes] = {"x": ("m", "n"), "w": ("n",), "y": ("m", "n")}
    # n: hidden_size (or head_dim) in the public config.json of the model; m: tokens, or tokens times heads
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "R0": {"m": 4096, "n": 4096},  # Llama 3.1 8B, 4096 tokens
        "R1": {"m": 8192, "n": 8192},  # Llama 3.1 70B, 8192 tokens
        "R2": {"m": 4096, "n": 16384},  # Llama 3.1 405B, 4096 tokens
        "R3": {"m": 16384, "n": 7168},  # DeepSeek-V3, 16384 tokens
        "R4": {"m": 131072, "n": 128},  # Qwen3 8B, 32 query heads of 4096 tokens
        "R5": {"m": 4096, "n": 5120},  # Llama 2 13B, 4096 tokens
        "R6": {"m": 64, "n": 8192},  # Llama 3.1 70B, decoding 64 sequences
        "R7": {"m": 1, "n": 4096},  # Llama 3.1 8B, decoding one
        "R8": {"m": 3001, "n": 2880},  # gpt-oss, 3001 tokens
        "R9": {"m": 8192, "n": 3584},  # Qwen2.5 7B, 8192 tokens
        "R10": {"m": 4096, "n": 8192, "residual": True},  # Llama 3.1 70B, 4096 tokens, between two layers
        "R11": {"m": 64, "n": 8192, "residual": True},  # the same, decoding 64 sequences
    }
    default_names = ("R0", "R2", "R6")  # usual, long rows, few rows

    def validate(self, workload: Workload) -> None:
        m, n = (workload.dims[d] for d in self.dims)
        if m * n > MAX_DIMENSION:
            raise WorkloadError(
                f"rms_norm: x would have m*n={m * n} elements, and the kernels index at most "
                f"{MAX_DIMENSION}; split the rows of x"
            )

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        if not self.attribute(attrs, "residual"):
            return self.axes
        rows = ("m", "n")
        return {"x": rows, "r": rows, "w": ("n",), "y": rows, "h": rows}

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """x ~ N(0, 1), each row scaled by 1/4 to 4, so that norms of rows differ; r alike; w ~ N(1, 1/16)."""
        import torch

        m, n = (workload.dims[d] for d in self.dims)
        dtype = getattr(torch, workload.dtype)
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(m, n, generator=generator, device=device, dtype=dtype)
        x.mul_(torch.rand(m, 1, generator=generator, device=device).mul_(4).sub_(2).exp2_().to(dtype))
        w = torch.randn(n, generator=generator, device=device).mul_(0.25).add_(1).to(dtype)
        if not has_residual(workload):
            return {"x": x, "w": w}
        return {"x": x, "r": random_rows(workload, device, generator), "w": w}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        shape = (workload.dims["m"], workload.dims["n"])
        return {"y": shape, "h": shape} if has_residual(workload) else {"y": shape}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """torch's rms_norm in float32."""
        import torch

        (rows, sums), shape, w = rows_and_sums(inputs), (workload.dims["n"],), inputs["w"].float()
        y = by_panels(rows, lambda panel: torch.nn.functional.rms_norm(panel, shape, w, EPS))
        return {"y": y, **sums}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch's own kernel, one launch on a GPU; with a residual also the one that its compiler makes."""
        import torch

        x, w = inputs["x"], inputs["w"]
        shape = (workload.dims["n"],)
        if has_residual(workload):
            r = inputs["r"]

            def added() -> object:
                h = x + r
                return torch.nn.functional.rms_norm(h, shape, w, EPS), h

            return with_compiled("torch add, rms_norm", added, x)

        def normalised() -> object:
            return torch.nn.functional.rms_norm(x, shape, w, EPS)

        return {"torch rms_norm": normalised}

    def flops(self, workload: Workload) -> int:
        """Four operations per element: square, add, two multiplications. The root of a row is not counted.

        A residual adds one.
        """
        return (4 + has_residual(workload)) * workload.dims["m"] * workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        m, n = (workload.dims[d] for d in self.dims)
        return ((4 if has_residual(workload) else 2) * m * n + n) * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding y to the dtype; all else is float32."""
        return {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """Squares do not cancel, so errors of their sum are relative to y."""
        return Rounding(workload.dims["n"])

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Rows of x are scaled by 2^-10, where EPS counts, to 2^8, whose squares float16 cannot hold."""
        import torch

        tensors = self.inputs(workload, device, seed)
        generator = torch.Generator(device).manual_seed(seed)
        powers = torch.randint(-8, 7, (workload.dims["m"], 1), generator=generator, device=device)
        for name in tensors.keys() & {"x", "r"}:
            tensors[name].mul_(powers.float().exp2_().to(tensors[name].dtype))
        return SecondInputs(tensors)


OPERATOR = RmsNorm()


class RmsNormGpu(KernelTemplate):
    """`reduce_threads` neighbouring threads add the squares of a row and then scale it.

    In between the row is in registers, in shared memory, or in device memory (read twice, the second time
    from L2 if it is still there).
    """

    operator = OPERATOR
    name = "rms_norm"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    # n changes the code, since a whole row is in registers or shared memory
    scales: ClassVar[Mapping[str, Scale]] = {"m": Scale(("block_m",), search_space.ROWS)}
    dynamic_dims = ("m",)
    static_reasons: ClassVar[Mapping[str, str]] = {
        "n": "registers or shared memory hold a whole row of n elements"
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Rows in registers, 256 threads per long row, 32 or 16 per short one; else the nearest config."""
        space, n = self.space(workload, target), workload.dims["n"]
        lanes = 256 if n >= 2048 else 32 if n > 128 else 16
        wanted = Config(
            {
                "block_m": 256 // lanes,
                "threads": 256,
                "reduce_threads": lanes,
                "vector": 8,
                "keep": "registers",
                "unroll": 1,
            }
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        if has_residual(workload):
            return _with_residual(workload, config)
        return {"registers": _in_registers, "shared": _in_shared, "global": _read_twice}[config.str("keep")](
            workload, config
        )


# The `_place` functions are layouts of fragments: (thread, register) of each element. Neighbouring lanes have
# neighbouring vectors of a row; threads beyond the lanes of a row have other rows.


def _in_registers(workload: Workload, config: Config) -> Any:
    import tilelang.language as T  # noqa: N812

    m, n, dtype, accumulator = workload.dims["m"], workload.dims["n"], workload.dtype, "float32"
    block_m, threads, lanes, vector = (
        config.int("block_m"),
        config.int("threads"),
        config.int("reduce_threads"),
        config.int("vector"),
    )
    groups, step = threads // lanes, lanes * vector
    rows, parts = block_m // groups, -(-n // step)

    def x_place(c: Any, i: Any, j: Any) -> tuple[Any, Any]:
        return i % groups * lanes + j // vector, (c * rows + i // groups) * vector + j % vector

    def sum_place(i: Any, j: Any) -> tuple[Any, Any]:
        return i % groups * lanes + j // vector, i // groups * vector + j % vector

    def w_place(j: Any, group: Any = 0) -> tuple[Any, Any]:
        return group * lanes + j // vector, j % vector

    @T.prim_func
    def rms_norm(x: T.Tensor((m, n), dtype), w: T.Tensor((n,), dtype), y: T.Tensor((m, n), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(T.ceildiv(m, block_m), threads=threads) as b:
            row = T.alloc_fragment((parts, block_m, step), dtype)
            weight = T.alloc_fragment((step,), dtype)
            squares = T.alloc_fragment((block_m, step), accumulator)
            scale = T.alloc_fragment((block_m,), accumulator)
            T.annotate_layout(
                {
                    row: T.Fragment((parts, block_m, step), forward_fn=x_place),
                    weight: T.Fragment((step,), forward_fn=w_place, replicate=groups),
                    squares: T.Fragment((block_m, step), forward_fn=sum_place),
                }
            )
            T.clear(squares)
            # elements beyond an edge are read as zeros, which add nothing, and are not written
            for c in T.unroll(parts):
                T.copy(x[b * block_m : b * block_m + block_m, c * step : c * step + step], row[c, :, :])
            for c in T.unroll(parts):
                for i, j in T.Parallel(block_m, step):
                    squares[i, j] += T.cast(row[c, i, j], accumulator) * T.cast(row[c, i, j], accumulator)
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(block_m):
                scale[i] = T.rsqrt(scale[i] * (1.0 / n) + EPS)
            for c in T.unroll(parts):
                T.copy(w[c * step : c * step + step], weight)
                for i, j in T.Parallel(block_m, step):
                    row[c, i, j] = T.cast(
                        T.cast(row[c, i, j], accumulator) * scale[i] * T.cast(weight[j], accumulator), dtype
                    )
                T.copy(row[c, :, :], y[b * block_m : b * block_m + block_m, c * step : c * step + step])

    return rms_norm


def _in_shared(workload: Workload, config: Config) -> Any:
    import tilelang.language as T  # noqa: N812

    m, n, dtype, accumulator = workload.dims["m"], workload.dims["n"], workload.dtype, "float32"
    block_m, threads, lanes, vector = (
        config.int("block_m"),
        config.int("threads"),
        config.int("reduce_threads"),
        config.int("vector"),
    )
    groups, step = threads // lanes, lanes * vector
    parts = -(-n // step)

    def place(i: Any, j: Any) -> tuple[Any, Any]:
        return i % groups * lanes + j // vector, i // groups * vector + j % vector

    def w_place(j: Any, group: Any = 0) -> tuple[Any, Any]:
        return group * lanes + j // vector, j % vector

    @T.prim_func
    def rms_norm(x: T.Tensor((m, n), dtype), w: T.Tensor((n,), dtype), y: T.Tensor((m, n), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(T.ceildiv(m, block_m), threads=threads) as b:
            x_tile = T.alloc_shared((block_m, parts * step), dtype)
            part = T.alloc_fragment((block_m, step), dtype)
            weight = T.alloc_fragment((step,), dtype)
            squares = T.alloc_fragment((block_m, step), accumulator)
            scale = T.alloc_fragment((block_m,), accumulator)
            T.annotate_layout(
                {
                    part: T.Fragment((block_m, step), forward_fn=place),
                    weight: T.Fragment((step,), forward_fn=w_place, replicate=groups),
                    squares: T.Fragment((block_m, step), forward_fn=place),
                }
            )
            T.clear(squares)
            T.copy(x[b * block_m, 0], x_tile)
            for c in T.serial(parts):
                T.copy(x_tile[:, c * step : c * step + step], part)
                for i, j in T.Parallel(block_m, step):
                    squares[i, j] += T.cast(part[i, j], accumulator) * T.cast(part[i, j], accumulator)
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(block_m):
                scale[i] = T.rsqrt(scale[i] * (1.0 / n) + EPS)
            for c in T.serial(parts):
                T.copy(x_tile[:, c * step : c * step + step], part)
                T.copy(w[c * step : c * step + step], weight)
                for i, j in T.Parallel(block_m, step):
                    part[i, j] = T.cast(
                        T.cast(part[i, j], accumulator) * scale[i] * T.cast(weight[j], accumulator), dtype
                    )
                T.copy(part, y[b * block_m : b * block_m + block_m, c * step : c * step + step])

    return rms_norm


def _read_twice(workload: Workload, config: Config) -> Any:
    import tilelang.language as T  # noqa: N812

    m, n, dtype, accumulator = workload.dims["m"], workload.dims["n"], workload.dtype, "float32"
    block_m, threads, lanes, vector = (
        config.int("block_m"),
        config.int("threads"),
        config.int("reduce_threads"),
        config.int("vector"),
    )
    groups, step, unroll = threads // lanes, lanes * vector, config.int("unroll")
    rows = block_m // groups

    def x_place(u: Any, i: Any, j: Any) -> tuple[Any, Any]:
        return i % groups * lanes + j // vector, (u * rows + i // groups) * vector + j % vector

    def sum_place(i: Any, j: Any) -> tuple[Any, Any]:
        return i % groups * lanes + j // vector, i // groups * vector + j % vector

    def w_place(u: Any, j: Any, group: Any = 0) -> tuple[Any, Any]:
        return group * lanes + j // vector, u * vector + j % vector

    @T.prim_func
    def rms_norm(x: T.Tensor((m, n), dtype), w: T.Tensor((n,), dtype), y: T.Tensor((m, n), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(T.ceildiv(m, block_m), threads=threads) as b:
            part = T.alloc_fragment((unroll, block_m, step), dtype)
            weight = T.alloc_fragment((unroll, step), dtype)
            squares = T.alloc_fragment((block_m, step), accumulator)
            scale = T.alloc_fragment((block_m,), accumulator)
            T.annotate_layout(
                {
                    part: T.Fragment((unroll, block_m, step), forward_fn=x_place),
                    weight: T.Fragment((unroll, step), forward_fn=w_place, replicate=groups),
                    squares: T.Fragment((block_m, step), forward_fn=sum_place),
                }
            )
            T.clear(squares)
            for co in T.serial(T.ceildiv(n, step * unroll)):
                # all loads precede their first use, so that they are in flight together
                for u in T.unroll(unroll):
                    col = (co * unroll + u) * step
                    T.copy(x[b * block_m : b * block_m + block_m, col : col + step], part[u, :, :])
                for u in T.unroll(unroll):
                    for i, j in T.Parallel(block_m, step):
                        squares[i, j] += T.cast(part[u, i, j], accumulator) * T.cast(
                            part[u, i, j], accumulator
                        )
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(block_m):
                scale[i] = T.rsqrt(scale[i] * (1.0 / n) + EPS)
            for co in T.serial(T.ceildiv(n, step * unroll)):
                for u in T.unroll(unroll):
                    col = (co * unroll + u) * step
                    T.copy(x[b * block_m : b * block_m + block_m, col : col + step], part[u, :, :])
                    T.copy(w[col : col + step], weight[u, :])
                for u in T.unroll(unroll):
                    col = (co * unroll + u) * step
                    for i, j in T.Parallel(block_m, step):
                        part[u, i, j] = T.cast(
                            T.cast(part[u, i, j], accumulator) * scale[i] * T.cast(weight[u, j], accumulator),
                            dtype,
                        )
                    T.copy(part[u, :, :], y[b * block_m : b * block_m + block_m, col : col + step])

    return rms_norm


def _with_residual(workload: Workload, config: Config) -> Any:
    import tilelang.language as T  # noqa: N812

    m, n, dtype, accumulator = workload.dims["m"], workload.dims["n"], workload.dtype, "float32"
    tiles = RowTiles(config, n)
    load, read, add_residual = tiles.loader(), tiles.reader(), residual_adder(tiles)
    rows, lanes, step, together, keep = tiles.rows, tiles.lanes, tiles.step, tiles.together, tiles.keep

    @T.prim_func
    def rms_norm_residual(  # type: ignore[no-untyped-def]
        x: T.Tensor((m, n), dtype),  # type: ignore[valid-type]
        r: T.Tensor((m, n), dtype),  # type: ignore[valid-type]
        w: T.Tensor((n,), dtype),  # type: ignore[valid-type]
        y: T.Tensor((m, n), dtype),  # type: ignore[valid-type]
        h: T.Tensor((m, n), dtype),  # type: ignore[valid-type]
    ):
        with T.Kernel(T.ceildiv(m, rows), threads=tiles.threads) as b:
            kept = T.alloc_shared(tiles.kept, dtype)
            part = T.alloc_fragment(tiles.part, dtype)
            added = T.alloc_fragment(tiles.part, dtype)
            weight = T.alloc_fragment((together, step), dtype)
            squares = T.alloc_fragment((rows, lanes), accumulator)
            scale = T.alloc_fragment((rows,), accumulator)
            T.annotate_layout(
                {
                    part: tiles.part_layout(),
                    added: tiles.part_layout(),
                    weight: tiles.weight_layout(),
                    squares: tiles.lane_layout(),
                }
            )
            T.clear(squares)
            for trip in T.serial(tiles.trips):
                load(x, part, b * rows, trip)
                load(r, added, b * rows, trip)
                for u in T.unroll(together):
                    add_residual(part, added, h, kept, b * rows, trip, u)
                    for i, lane in T.Parallel(rows, lanes):
                        for v in T.unroll(tiles.vector):
                            squares[i, lane] += T.cast(
                                part[u, i, lane * tiles.vector + v], accumulator
                            ) * T.cast(part[u, i, lane * tiles.vector + v], accumulator)
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(rows):
                scale[i] = T.rsqrt(scale[i] * (1.0 / n) + EPS)
            for trip in T.serial(tiles.trips):
                if keep != "registers":
                    # each thread reads what it has written itself
                    read(h, kept, part, b * rows, trip)
                for u in T.unroll(together):
                    col = (trip * together + u) * step
                    T.copy(w[col : col + step], weight[u, :])
                    for i, j in T.Parallel(rows, step):
                        part[u, i, j] = T.cast(
                            T.cast(part[u, i, j], accumulator) * scale[i] * T.cast(weight[u, j], accumulator),
                            dtype,
                        )
                    T.copy(part[u, :, :], y[b * rows : b * rows + rows, col : col + step])

    return rms_norm_residual


TEMPLATES = (RmsNormGpu(),)
