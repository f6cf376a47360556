"""layer_norm: y = (x - mean(x)) / sqrt(var(x) + EPS) * w + b for each row of x[m, n], in float32.

The variance is that of all n elements, with mean 0 or not: each lane keeps the mean of its elements and the
sum of their squared distances from it. These join those of a next trip, and at the end those of other lanes,
by the formulas of Chan, Golub and LeVeque, which cancel nothing. With `residual` the rows are those of
h = x + r, rounded to the dtype, which is a second output.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..problem.axes import Axes
from ..problem.operator import Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, Value
from ..problem.workload import Workload
from ._optional_tensors import tensor_if
from ._row_tiles import (
    RowOperator,
    RowTemplate,
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

EPS = 1e-5


class LayerNorm(RowOperator):
    name = "layer_norm"
    attrs: ClassVar[Mapping[str, Value]] = {"residual": False}
    later_attrs = ("residual",)
    axes: ClassVar[Axes] = {"x": ("m", "n"), "w": ("n",), "b": ("n",), "y": ("m", "n")}
    # n: hidden_size in the public config.json of the model; m: tokens
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "L0": {"m": 4096, "n": 8192},  # Falcon 40B, 4096 tokens
        "L1": {"m": 16384, "n": 4096},  # Command R7B, 16384 tokens
        "L2": {"m": 4096, "n": 12288},  # GPT-3 175B, 4096 tokens
        "L3": {"m": 50432, "n": 768},  # ViT-B/16, 256 images of 197 tokens
        "L4": {"m": 48000, "n": 1280},  # Whisper large, 32 clips of 1500 frames
        "L5": {"m": 64, "n": 8192},  # Falcon 40B, decoding 64 sequences
        "L6": {"m": 16384, "n": 3072},  # DiT-like width of FLUX.1, 16384 tokens
        "L7": {"m": 4096, "n": 12288, "residual": True},  # GPT-3 175B, 4096 tokens, between two layers
        "L8": {"m": 64, "n": 12288, "residual": True},  # the same, decoding 64 sequences
    }
    default_names = ("L0", "L3", "L5")  # long rows, short ones, few rows

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        if not self.attribute(attrs, "residual"):
            return self.axes
        rows = ("m", "n")
        return {"x": rows, "r": rows, "w": ("n",), "b": ("n",), "y": rows, "h": rows}

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """x: rows of different norms with means of up to half of it; r alike, of mean 0; w ~ N(1, 1/16),
        b ~ N(0, 1/16).
        """
        return self._inputs(workload, device, seed, 0.5)

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        shape = (workload.dims["m"], workload.dims["n"])
        return {"y": shape, "h": shape} if has_residual(workload) else {"y": shape}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """torch's layer_norm in float32."""
        import torch

        (rows, sums), shape = rows_and_sums(inputs), (workload.dims["n"],)
        w, b = inputs["w"].float(), inputs["b"].float()
        y = by_panels(rows, lambda panel: torch.nn.functional.layer_norm(panel, shape, w, b, EPS))
        return {"y": y, **sums}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch's own kernel, and the one that its compiler makes."""
        import torch

        x, w, b = (inputs[name] for name in ("x", "w", "b"))
        shape = (workload.dims["n"],)
        if has_residual(workload):
            r = inputs["r"]

            def added() -> object:
                h = x + r
                return torch.nn.functional.layer_norm(h, shape, w, b, EPS), h

            return with_compiled("torch add, layer_norm", added, x)
        return with_compiled(
            "torch layer_norm", lambda: torch.nn.functional.layer_norm(x, shape, w, b, EPS), x
        )

    def flops(self, workload: Workload) -> int:
        """Seven operations per element: two sums, a square, and four to scale and shift twice.

        A residual adds one.
        """
        return (7 + has_residual(workload)) * workload.dims["m"] * workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        m, n = workload.dims["m"], workload.dims["n"]
        return ((4 if has_residual(workload) else 2) * m * n + 2 * n) * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding y to the dtype; all else is float32."""
        return {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """y is a sum of x, n terms of the mean, and b; errors of the variance are relative to y."""
        return Rounding(workload.dims["n"] + 2)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        import torch

        w2, b2 = inputs["w"].float().square(), inputs["b"].float().square()

        def root(x: torch.Tensor) -> torch.Tensor:
            mean, squares = x.mean(1, keepdim=True), x.square()
            inverse = 1 / (x.var(1, correction=0, keepdim=True) + EPS)
            of_mean = squares.mean(1, keepdim=True) / workload.dims["n"] + mean.square()
            return ((squares + of_mean) * inverse * w2 + b2).sqrt_()

        return {"y": by_panels(rows_and_sums(inputs)[0], root)}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Means are up to 32 times as large as what is left without them: squares of x lose its variance."""
        return SecondInputs(self._inputs(workload, device, seed, 32.0))

    def _inputs(self, workload: Workload, device: str, seed: int, mean: float) -> "dict[str, torch.Tensor]":
        import torch

        m, n = workload.dims["m"], workload.dims["n"]
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        x = random_rows(workload, device, generator)
        shift = torch.rand(m, 1, generator=generator, device=device).mul_(2 * mean).sub_(mean)
        # the scale of a row times its share
        x.add_((x.abs().amax(1, keepdim=True).float() / 4 * shift).to(dtype))
        w = torch.randn(n, generator=generator, device=device).mul_(0.25).add_(1).to(dtype)
        b = torch.randn(n, generator=generator, device=device).mul_(0.25).to(dtype)
        added = {"r": random_rows(workload, device, generator)} if has_residual(workload) else {}
        return {"x": x, **added, "w": w, "b": b}


OPERATOR = LayerNorm()


class LayerNormGpu(RowTemplate):
    """`reduce_threads` neighbouring threads find the mean and the variance of a row, and then scale it."""

    operator = OPERATOR
    name = "layer_norm"
    weights = 2

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, dtype, accumulator = workload.dims["m"], workload.dims["n"], workload.dtype, "float32"
        tiles = RowTiles(config, n)
        adds = has_residual(workload)
        load, read, add_residual = tiles.loader(), tiles.reader(), residual_adder(tiles)
        vectors, vector = tiles.vectors, tiles.vector
        rows, lanes, step, together, keep = tiles.rows, tiles.lanes, tiles.step, tiles.together, tiles.keep

        def distance(part: Any, u: Any, i: Any, j: Any, trip: Any, mean: Any) -> Any:
            """From the mean, and none beyond the row."""
            inside = (trip * together + u) * step + j < n
            value = T.cast(part[u, i, j], accumulator) - mean
            return value if tiles.is_whole else T.if_then_else(inside, value, T.cast(0.0, accumulator))

        @T.prim_func
        def layer_norm(  # type: ignore[no-untyped-def]
            x: T.Tensor((m, n), dtype),  # type: ignore[valid-type]
            r: tensor_if(adds, (m, n), dtype),  # type: ignore[valid-type]
            w: T.Tensor((n,), dtype),  # type: ignore[valid-type]
            b: T.Tensor((n,), dtype),  # type: ignore[valid-type]
            y: T.Tensor((m, n), dtype),  # type: ignore[valid-type]
            h: tensor_if(adds, (m, n), dtype),  # type: ignore[valid-type]
        ):
            with T.Kernel(T.ceildiv(m, rows), threads=tiles.threads) as block:
                kept = T.alloc_shared(tiles.kept, dtype)
                part = T.alloc_fragment(tiles.part, dtype)
                if adds:
                    added = T.alloc_fragment(tiles.part, dtype)
                    T.annotate_layout({added: tiles.part_layout()})
                weight = T.alloc_fragment((together, step), dtype)
                bias = T.alloc_fragment((together, step), dtype)
                mean = T.alloc_fragment((rows, lanes), accumulator)
                squares = T.alloc_fragment((rows, lanes), accumulator)
                new_mean = T.alloc_fragment((rows, lanes), accumulator)
                new_squares = T.alloc_fragment((rows, lanes), accumulator)
                row_mean = T.alloc_fragment((rows,), accumulator)
                row_scale = T.alloc_fragment((rows,), accumulator)
                T.annotate_layout(
                    {
                        part: tiles.part_layout(),
                        weight: tiles.weight_layout(),
                        bias: tiles.weight_layout(),
                        mean: tiles.lane_layout(),
                        squares: tiles.lane_layout(),
                        new_mean: tiles.lane_layout(),
                        new_squares: tiles.lane_layout(),
                    }
                )
                T.clear(mean)
                T.clear(squares)
                if keep == "shared" and not adds:
                    T.copy(x[block * rows, 0], kept)
                for trip in T.serial(tiles.trips):
                    if adds:
                        load(x, part, block * rows, trip)
                        load(r, added, block * rows, trip)
                        for u in T.unroll(together):
                            add_residual(part, added, h, kept, block * rows, trip, u)
                    else:
                        read(x, kept, part, block * rows, trip)
                    T.clear(new_mean)
                    T.clear(new_squares)
                    # elements beyond the row are zeros, which add nothing
                    for u in T.unroll(together):
                        for i, lane in T.Parallel(rows, lanes):
                            for v in T.unroll(vector):
                                new_mean[i, lane] += T.cast(part[u, i, lane * vector + v], accumulator)
                    for i, lane in T.Parallel(rows, lanes):
                        new_mean[i, lane] /= T.max(
                            (vectors(lane, trip + 1) - vectors(lane, trip)) * vector, 1.0
                        )
                    for u in T.unroll(together):
                        for i, lane in T.Parallel(rows, lanes):
                            for v in T.unroll(vector):
                                new_squares[i, lane] += distance(
                                    part, u, i, lane * vector + v, trip, new_mean[i, lane]
                                ) * distance(part, u, i, lane * vector + v, trip, new_mean[i, lane])
                    for i, lane in T.Parallel(rows, lanes):
                        # the share of this trip in all elements so far
                        share = 1 - vectors(lane, trip) / T.max(vectors(lane, trip + 1), 1.0)
                        apart = new_mean[i, lane] - mean[i, lane]
                        squares[i, lane] += (
                            new_squares[i, lane] + apart * apart * vectors(lane, trip) * vector * share
                        )
                        mean[i, lane] += apart * share
                for i, lane in T.Parallel(rows, lanes):
                    new_mean[i, lane] = mean[i, lane] * vectors(lane, tiles.trips)
                T.reduce_sum(new_mean, row_mean, dim=1)
                for i in T.Parallel(rows):
                    row_mean[i] = row_mean[i] * (vector / n)
                for i, lane in T.Parallel(rows, lanes):
                    apart = mean[i, lane] - row_mean[i]
                    squares[i, lane] += apart * apart * vectors(lane, tiles.trips) * vector
                T.reduce_sum(squares, row_scale, dim=1)
                for i in T.Parallel(rows):
                    row_scale[i] = T.rsqrt(row_scale[i] * (1.0 / n) + EPS)
                for trip in T.serial(tiles.trips):
                    if keep != "registers":
                        # of sums each thread reads what it has written itself
                        read(h if adds else x, kept, part, block * rows, trip)
                    for u in T.unroll(together):
                        col = (trip * together + u) * step
                        T.copy(w[col : col + step], weight[u, :])
                        T.copy(b[col : col + step], bias[u, :])
                        for i, j in T.Parallel(rows, step):
                            part[u, i, j] = T.cast(
                                (T.cast(part[u, i, j], accumulator) - row_mean[i])
                                * row_scale[i]
                                * T.cast(weight[u, j], accumulator)
                                + T.cast(bias[u, j], accumulator),
                                dtype,
                            )
                        T.copy(part[u, :, :], y[block * rows : block * rows + rows, col : col + step])

        return layer_norm


TEMPLATES = (LayerNormGpu(),)
