"""softmax: y = exp(x - max(x)) / sum(exp(x - max(x))) for each row of x[m, n]; and its template for GPUs.

A sweep finds the largest number and the sum together: each lane rescales its sum where it meets a larger one.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..problem.axes import Axes
from ..problem.operator import Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, Value
from ..problem.workload import Workload
from ._row_tiles import (
    LOG2_E,
    LOWEST,
    RowOperator,
    RowTemplate,
    RowTiles,
    by_panels,
    random_rows,
    with_compiled,
)

if TYPE_CHECKING:
    import torch


class Softmax(RowOperator):
    name = "softmax"
    axes: ClassVar[Axes] = {"x": ("m", "n"), "y": ("m", "n")}
    # n: vocab_size in the public config.json of the model, or experts, or keys of a row of attention
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "S0": {"m": 4096, "n": 128256},  # Llama 3.1, 4096 tokens
        "S1": {"m": 64, "n": 128256},  # Llama 3.1, sampling for 64 sequences
        "S2": {"m": 2048, "n": 151936},  # Qwen3, 2048 tokens
        "S3": {"m": 131072, "n": 4096},  # 32 heads, scores of 4096 queries and keys
        "S4": {"m": 16384, "n": 256},  # DeepSeek-V3, 256 experts
        "S5": {"m": 8192, "n": 32000},  # Llama 2, 8192 tokens
    }
    default_names = ("S0", "S1", "S3")  # long rows, few of them, usual ones

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """N(0, 1), each row scaled by 1/4 to 4: flat rows and such with few large results."""
        import torch

        return {"x": random_rows(workload, device, torch.Generator(device).manual_seed(seed))}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": (workload.dims["m"], workload.dims["n"])}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """torch's softmax in float32."""
        return {"y": by_panels(inputs["x"], lambda panel: panel.softmax(-1))}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch's own kernel, and the one that its compiler makes."""
        x = inputs["x"]
        return with_compiled("torch softmax", lambda: x.softmax(-1), x)

    def flops(self, workload: Workload) -> int:
        """Four operations per element: compare, subtract, add, multiply. Exponentials are not counted."""
        return 4 * workload.dims["m"] * workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        return 2 * workload.dims["m"] * workload.dims["n"] * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding y to the dtype; all else is float32."""
        return {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """Exponentials do not cancel, so errors of their sum are relative to y."""
        return Rounding(workload.dims["n"])

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """x is 32 times as large: exp(x) may exceed float32, and few elements of a row are not zero."""
        return SecondInputs({"x": self.inputs(workload, device, seed)["x"].mul_(32)})


OPERATOR = Softmax()


class SoftmaxGpu(RowTemplate):
    """`reduce_threads` neighbouring threads share a row, each with an online softmax of its own elements."""

    operator = OPERATOR
    name = "softmax"
    splits = True
    # exp2 as a single instruction
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, dtype, accumulator = workload.dims["m"], workload.dims["n"], workload.dtype, "float32"
        tiles, far = RowTiles.by_place(config, n)
        read, add, join = tiles.reader(), tiles.softmax_sums(), tiles.softmax_of_rows()
        rows, lanes, keep = tiles.rows, tiles.lanes, tiles.keep

        def writer(tiles: RowTiles) -> Any:
            """A macro (part, trip, highest, scale, y, row, first) that writes a trip of y[row, first] on."""
            step, together = tiles.step, tiles.together

            @T.macro
            def write(  # type: ignore[no-untyped-def]
                part: T.Buffer,
                trip: Any,
                highest: T.Buffer,
                scale: T.Buffer,
                y: T.Buffer,
                row: Any,
                first: Any,
            ):
                for u in T.unroll(together):
                    for i, j in T.Parallel(rows, step):
                        part[u, i, j] = T.cast(
                            T.exp2((T.cast(part[u, i, j], accumulator) - highest[i]) * LOG2_E) * scale[i],
                            dtype,
                        )
                    col = first + (trip * together + u) * step
                    T.copy(part[u, :, :], y[row : row + rows, col : col + step])

            return write

        write = writer(tiles)
        if far is not None:
            fetch, read_far, add_far, write_far = far.fetcher(), far.reader(), far.softmax_sums(), writer(far)
            chunks, first = far.chunks(), tiles.n
        kept_shape = far.kept if far else tiles.kept

        @T.prim_func
        def softmax(x: T.Tensor((m, n), dtype), y: T.Tensor((m, n), dtype)):  # type: ignore[no-untyped-def, valid-type]
            with T.Kernel(T.ceildiv(m, rows), threads=tiles.threads) as b:
                kept = T.alloc_shared(kept_shape, dtype)
                part = T.alloc_fragment(tiles.part, dtype)
                highest = T.alloc_fragment((rows, lanes), accumulator)
                before = T.alloc_fragment((rows, lanes), accumulator)
                total = T.alloc_fragment((rows, lanes), accumulator)
                row_highest = T.alloc_fragment((rows,), accumulator)
                row_scale = T.alloc_fragment((rows,), accumulator)
                T.annotate_layout(
                    {
                        part: tiles.part_layout(),
                        highest: tiles.lane_layout(),
                        before: tiles.lane_layout(),
                        total: tiles.lane_layout(),
                    }
                )
                if far is not None:
                    part_far = T.alloc_fragment(far.part, dtype)
                    T.annotate_layout({part_far: far.part_layout()})
                T.fill(highest, LOWEST)
                T.clear(total)
                if keep == "shared":
                    T.copy(x[b * rows, 0], kept)
                for trip in T.serial(tiles.trips):
                    read(x, kept, part, b * rows, trip)
                    if far is not None:  # behind the loads to registers, which are used first
                        fetch(x, kept, b * rows, first)
                    add(part, trip, highest, before, total)
                if far is not None:
                    for begin, end, later in chunks:
                        T.ptx_wait_group(later)
                        for trip in T.serial(begin, end):
                            read_far(x, kept, part_far, b * rows, trip)
                            add_far(part_far, trip, highest, before, total)
                join(highest, total, row_highest, row_scale)
                for i in T.Parallel(rows):
                    row_scale[i] = 1 / row_scale[i]
                for trip in T.serial(tiles.trips):
                    if keep != "registers":
                        read(x, kept, part, b * rows, trip)
                    write(part, trip, row_highest, row_scale, y, b * rows, 0)
                if far is not None:
                    for trip in T.serial(far.trips):
                        read_far(x, kept, part_far, b * rows, trip)
                        write_far(part_far, trip, row_highest, row_scale, y, b * rows, first)

        return softmax


TEMPLATES = (SoftmaxGpu(),)
