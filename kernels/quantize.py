"""quantize: q = x / s in float8 e4m3, with scales s = max|x| / 448 of rows or of groups of a row of x[m, n].

The largest magnitude counts as at least 1e-4, so that no scale is zero. 448 is the largest number of e4m3.
With `residual` the rows are those of h = x + r, rounded to the dtype, which is a third output.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..problem.axes import Axes, Parts
from ..problem.operator import Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, Value
from ..problem.workload import Workload
from ._optional_tensors import tensor_if
from ._row_tiles import (
    RowOperator,
    RowTemplate,
    RowTiles,
    has_residual,
    random_rows,
    residual_adder,
    rows_and_sums,
    with_compiled,
)

if TYPE_CHECKING:
    import torch

NARROW = "float8_e4m3fn"
MOST = 448.0  # the largest number of e4m3
LEAST = 1e-4  # that max|x| counts as


class Quantize(RowOperator):
    name = "quantize"
    # group: elements of a row that share a scale; -1: the whole row (a scale for each token)
    attrs: ClassVar[Mapping[str, Value]] = {"group": -1, "residual": False}
    later_attrs = ("residual",)
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {"group": (-1, 128)}
    axes: ClassVar[Axes] = {"x": ("m", "n"), "q": ("m", "n"), "s": ("m", Parts("n", "group"))}
    # n: the k of a product in the public config.json of the model; m: tokens
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "Q0": {"m": 4096, "n": 8192, "group": -1},  # Llama 3.1 70B, hidden state of 4096 tokens
        "Q1": {"m": 4096, "n": 28672, "group": -1},  # the same, of its MLP
        "Q2": {"m": 4096, "n": 7168, "group": 128},  # DeepSeek-V3, hidden state of 4096 tokens
        "Q3": {"m": 32768, "n": 2048, "group": 128},  # the same, of its experts: 8 for each token
        "Q4": {"m": 64, "n": 7168, "group": 128},  # the same, decoding 64 sequences
        "Q5": {"m": 64, "n": 14336, "group": -1},  # Llama 3.1 8B, decoding 64 sequences
        "Q6": {"m": 4096, "n": 8192, "group": -1, "residual": True},  # as Q0, after attention or an MLP
        "Q7": {"m": 64, "n": 7168, "group": 128, "residual": True},  # as Q4, likewise
    }
    default_names = ("Q0", "Q2", "Q5")  # rows, groups, few rows

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        if not self.attribute(attrs, "residual"):
            return self.axes
        return {"x": ("m", "n"), "r": ("m", "n"), "q": self.axes["q"], "s": self.axes["s"], "h": ("m", "n")}

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """x: rows of different norms, from 2 to 32; r alike."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        names = ("x", "r") if has_residual(workload) else ("x",)
        return {name: random_rows(workload, device, generator).mul_(8) for name in names}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"q": NARROW, "s": "float32"}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        m, n = workload.dims["m"], workload.dims["n"]
        sums = {"h": (m, n)} if has_residual(workload) else {}
        return {"q": (m, n), "s": (m, -(-n // group_of(workload))), **sums}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """The quotients in float32, before they are rounded to e4m3."""
        rows, sums = rows_and_sums(inputs)
        q, s = _quantised(rows, group_of(workload))
        return {"q": q, "s": s, **sums}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Kernels of torch, and the one that its compiler makes."""
        import torch

        x, group = inputs["x"], group_of(workload)

        def narrow(rows: torch.Tensor = x) -> tuple[torch.Tensor, torch.Tensor]:
            q, s = _quantised(rows, group)
            return q.to(torch.float8_e4m3fn), s

        if has_residual(workload):
            r = inputs["r"]

            def added() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
                h = x + r
                return *narrow(h), h

            return with_compiled("torch add, amax, div, to", added, x)
        return with_compiled("torch amax, div, to", narrow, x)

    def flops(self, workload: Workload) -> int:
        """Two operations per element: compare and multiply. A residual adds one."""
        return (2 + has_residual(workload)) * workload.dims["m"] * workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        m, n = workload.dims["m"], workload.dims["n"]
        tensors = 3 if has_residual(workload) else 1  # beside q and s
        return m * n * (tensors * self.element_bytes(workload) + 1) + 4 * m * -(-n // group_of(workload))

    def max_relative_error(self, workload: Workload) -> float:
        """Twice the error of rounding q to e4m3, whose 3 bits of a significand are off by 1/16 at most."""
        return 0.05

    def rounding(self, workload: Workload) -> Rounding:
        """A quotient is no sum."""
        return Rounding(1)

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Other numbers, of 2^-9 of the size; the first row is zero, whose scale has its least value."""
        tensors = self.inputs(workload, device, seed + 1)
        for rows in tensors.values():
            rows.mul_(2.0**-9)[0] = 0
        return SecondInputs(tensors)


def group_of(workload: Workload) -> int:
    """Number of elements of a row that share a scale."""
    group, n = int(workload.attrs["group"]), workload.dims["n"]
    return n if group == -1 else min(group, n)


def _quantised(x: "torch.Tensor", group: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """q and s, both in float32."""
    import torch

    m, n = x.shape
    padded = torch.nn.functional.pad(x, (0, -n % group)).view(m, -1, group).float()
    s = padded.abs().amax(-1).clamp(min=LEAST) / MOST
    return (padded / s[..., None]).view(m, -1)[:, :n].contiguous(), s


OPERATOR = Quantize()


class QuantizeGpu(RowTemplate):
    """`reduce_threads` neighbouring threads find the scale of a row or group, and then divide by it."""

    operator = OPERATOR
    name = "quantize"
    target_kinds = ("cuda",)
    kind_reasons: ClassVar[Mapping[str, str]] = {
        "hip": "its results are float8_e4m3fn, and CDNA 3 has another format of 8 bits, e4m3fnuz"
    }

    def reduced(self, workload: Workload) -> int:
        return group_of(workload)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, dtype, accumulator = workload.dims["m"], workload.dims["n"], workload.dtype, "float32"
        group = group_of(workload)
        groups = -(-n // group)
        tiles = RowTiles(config, group)
        adds = has_residual(workload)
        load, read, add_residual = tiles.loader(), tiles.reader(), residual_adder(tiles)
        rows, lanes, step, together, keep = tiles.rows, tiles.lanes, tiles.step, tiles.together, tiles.keep

        @T.prim_func
        def quantize(  # type: ignore[no-untyped-def]
            x: T.Tensor((m, n), dtype),  # type: ignore[valid-type]
            r: tensor_if(adds, (m, n), dtype),  # type: ignore[valid-type]
            q: T.Tensor((m, n), NARROW),  # type: ignore[valid-type]
            s: T.Tensor((m, groups), accumulator),  # type: ignore[valid-type]
            h: tensor_if(adds, (m, n), dtype),  # type: ignore[valid-type]
        ):
            # neighbouring blocks have neighbouring groups of the same rows
            with T.Kernel(groups * T.ceildiv(m, rows), threads=tiles.threads) as b:
                kept = T.alloc_shared(tiles.kept, dtype)
                part = T.alloc_fragment(tiles.part, dtype)
                if adds:
                    added = T.alloc_fragment(tiles.part, dtype)
                    T.annotate_layout({added: tiles.part_layout()})
                narrow = T.alloc_fragment(tiles.part, NARROW)
                highest = T.alloc_fragment((rows, lanes), accumulator)
                scale = T.alloc_fragment((rows,), accumulator)
                T.annotate_layout(
                    {
                        part: tiles.part_layout(),
                        narrow: tiles.part_layout(),
                        highest: tiles.lane_layout(),
                    }
                )
                row, first = b // groups * rows, b % groups * group
                T.fill(highest, LEAST)
                if keep == "shared" and not adds:
                    T.copy(x[row, first], kept)
                for trip in T.serial(tiles.trips):
                    if adds:
                        load(x, part, row, trip, first)
                        load(r, added, row, trip, first)
                        for u in T.unroll(together):
                            add_residual(part, added, h, kept, row, trip, u, first)
                    else:
                        read(x, kept, part, row, trip, first)
                    for u in T.unroll(together):
                        for i, lane in T.Parallel(rows, lanes):
                            for v in T.unroll(tiles.vector):
                                highest[i, lane] = T.max(
                                    highest[i, lane],
                                    T.abs(tiles.number(part, u, i, lane * tiles.vector + v, trip, 0.0)),
                                )
                T.reduce_max(highest, scale, dim=1)
                for i in T.Parallel(rows):
                    s[row + i, b % groups] = scale[i] / MOST
                for i in T.Parallel(rows):
                    scale[i] = MOST / scale[i]
                for trip in T.serial(tiles.trips):
                    if keep != "registers":
                        # of sums each thread reads what it has written itself
                        read(h if adds else x, kept, part, row, trip, first)
                    for u in T.unroll(together):
                        for i, j in T.Parallel(rows, step):
                            narrow[u, i, j] = T.cast(T.cast(part[u, i, j], accumulator) * scale[i], NARROW)
                        col = first + (trip * together + u) * step
                        T.copy(narrow[u, :, :], q[row : row + rows, col : col + step])

        return quantize


TEMPLATES = (QuantizeGpu(),)
