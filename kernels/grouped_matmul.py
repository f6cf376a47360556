"""grouped_matmul: the product of a mixture of experts, where each group of rows has a matrix of its own.

    C[i, :] = A[i, :] B[g]        for the rows i of group g

Rows of a group are neighbours: group g has the rows ends[g] .. ends[g + 1] of A, where ends[0] = 0
(`rows=contiguous`), or the first ends[g] rows of A[g] (`rows=masked`, for batches of a fixed size; other rows
of C are left as they are). Weights are B[g, j, i] (`layout=nt`, as checkpoints store them) or B[g, i, j]
(`layout=nn`). With `fuse=silu_mul` B has two matrices a group, gate and up, and C = silu(A gate) * (A up).
Sums are in float32.

Operands of float8 are nt, and C is of bfloat16. `scales` in float32 belong to them: one for A and one for
each matrix (`tensor`), one for each `row` of A and column of C, or one for 128 elements of a row of A and for
128 x 128 elements of a matrix, along n and k (`block128`).

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.axes import Axes, Axis, Parts, Plus
from ..problem.axes import shape as extents
from ..problem.index_values import not_rising, outside
from ..problem.operator import Operator, Tensors
from ..problem.rasterization import Rasterization
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import grouped_matmul as search_space
from ..search_spaces.matrix_unit import is_hopper
from ..target.spec import Target
from ._exact_products import exact_products
from ._float8 import (
    BLOCK,
    FLOAT8,
    FLOAT8_SUM_DIGITS,
    FLOAT8_TERMS,
    LARGEST_FLOAT8,
    OUTPUTS,
    largest,
    short_sums,
    spread,
)
from ._grouped_tensors import GroupedTensors
from ._packed_items import block_count, item_finder
from ._scheduled_groups import overlapped_groups
from ._vendor_calls import usable, without_result
from ._warp_policy import warp_policy

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

IDLE_GROUP = 16  # of so many groups, the last one has no rows
GOLDEN_RATIO = 0.618034


class GroupedMatmul(Operator):
    name = "grouped_matmul"
    # tokens: rows of all groups together, or with rows=masked the most rows of a group
    dims = ("tokens", "groups", "n", "k")
    dtypes = ("bfloat16", "float16", FLOAT8)
    attrs: ClassVar[Mapping[str, Value]] = {
        "layout": "nt",
        "fuse": "none",
        "rows": "contiguous",
        "scales": "none",
    }
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "layout": ("nt", "nn"),
        "fuse": ("none", "silu_mul"),
        "rows": ("contiguous", "masked"),
        "scales": ("none", "tensor", "row", "block128"),
    }
    later_attrs = ("scales",)
    axes: ClassVar[Axes] = {
        "A": ("tokens", "k"),
        "B": ("groups", "n", "k"),
        "ends": (Plus("groups", 1),),
        "C": ("tokens", "n"),
    }
    # MX: Mixtral 8x7B, 4096 tokens for two experts each. DS: DeepSeek-V3, the 32 experts of one of 8 GPUs;
    # DS2 is a step of decoding. QW: Qwen3-30B-A3B, 512 and 4096 tokens for eight experts each.
    # MX0, DS1 and QW are gate and up as one product; DS0 fuses silu(gate) * up; DS3 is the product after them
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "MX0": {"tokens": 8192, "groups": 8, "n": 14336, "k": 4096},
        "DS0": {"tokens": 8192, "groups": 32, "n": 2048, "k": 7168, "fuse": "silu_mul"},
        "DS1": {"tokens": 8192, "groups": 32, "n": 4096, "k": 7168},
        "DS2": {"tokens": 128, "groups": 32, "n": 4096, "k": 7168, "rows": "masked"},
        "DS3": {"tokens": 8192, "groups": 32, "n": 7168, "k": 2048},
        "QW0": {"tokens": 4096, "groups": 128, "n": 1536, "k": 2048},
        "QW2": {"tokens": 32768, "groups": 128, "n": 1536, "k": 2048},
    }
    default_names = ("MX0", "DS1", "QW0")

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        masked, halves = attrs["rows"] == "masked", (2,) if attrs["fuse"] == "silu_mul" else ()
        rows: tuple[Axis, ...] = ("groups", "tokens") if masked else ("tokens",)
        weights: tuple[Axis, ...] = (*halves, "n", "k") if attrs["layout"] == "nt" else ("k", *halves, "n")
        ends: Axis = "groups" if masked else Plus("groups", 1)
        scaled: Axes = {
            "tensor": {"A_scale": (1,), "B_scale": ("groups", *halves)},
            "row": {"A_scale": rows, "B_scale": ("groups", *halves, "n")},
            "block128": {
                "A_scale": (*rows, Parts("k", BLOCK)),
                "B_scale": ("groups", *halves, Parts("n", BLOCK), Parts("k", BLOCK)),
            },
        }.get(self.scales_of(attrs), {})
        return {"A": (*rows, "k"), "B": ("groups", *weights), **scaled, "ends": (ends,), "C": (*rows, "n")}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        output = OUTPUTS.get(dtype, dtype)
        return {"ends": "int32", "A_scale": "float32", "B_scale": "float32", "C": output}

    def scales_of(self, attrs: Mapping[str, Value]) -> str:
        """The attribute `scales`."""
        return str(self.attribute(attrs, "scales"))

    def validate(self, workload: Workload) -> None:
        scales, layout = self.scales_of(workload.attrs), workload.attrs["layout"]
        if workload.dtype == FLOAT8 and layout != "nt":
            raise WorkloadError(
                f"grouped_matmul: layout={layout} has weights of 1 byte that are not contiguous along k, as "
                "matrix units need them; take layout=nt"
            )
        if workload.dtype != FLOAT8 and scales != "none":
            raise WorkloadError(
                f"grouped_matmul: scales={scales} needs dtype {FLOAT8}, and this workload has "
                f"{workload.dtype}; take scales=none"
            )
        for name, elements in (("A", math.prod(_rows(workload)) * workload.dims["k"]), *_sizes(workload)):
            if elements > MAX_DIMENSION:
                raise WorkloadError(
                    f"grouped_matmul: {name} would have {elements} elements, and the kernels index at most "
                    f"{MAX_DIMENSION}; split the groups over several calls"
                )

    def contents(self, workload: Workload) -> "Mapping[str, NDArray[Any]]":
        """Uneven sizes: the largest group has more than twice the mean, and one of 16 groups has no rows."""
        import numpy as np

        tokens, groups = workload.dims["tokens"], workload.dims["groups"]
        at = np.arange(groups)
        shares = 1 / (0.3 + (at + 1) * GOLDEN_RATIO % 1) * (at % IDLE_GROUP != IDLE_GROUP - 1)
        if workload.attrs["rows"] == "masked":
            return {"ends": np.ceil(tokens * shares / shares.max()).astype(np.int32)}
        ends = np.rint(tokens * shares.cumsum() / shares.sum())
        return {"ends": np.concatenate([[0], ends]).astype(np.int32)}

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        ends, tokens = inputs["ends"], workload.dims["tokens"]
        if workload.attrs["rows"] == "masked":
            return outside("ends", ends, 0, tokens, "rows of a group")
        return not_rising("ends", ends, tokens, "groups")

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """A ~ N(0, 1) and B ~ N(0, 1/k), so that products ~ N(0, 1) for every k.

        Float8 operands are quantised by the largest magnitude of what shares a scale; without scales they are
        those of N(0, 1).
        """
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        if workload.dtype == FLOAT8:
            return {**self._quantised(workload, generator), "ends": self._ends(workload, device)}
        a, b = (
            torch.randn(*shape, generator=generator, device=device, dtype=getattr(torch, workload.dtype))
            for shape in self._operands(workload)
        )
        return {"A": a, "B": b.mul_(workload.dims["k"] ** -0.5), "ends": self._ends(workload, device)}

    def _quantised(self, workload: Workload, generator: "torch.Generator") -> "dict[str, torch.Tensor]":
        """Operands of float8 and their scales, made matrix by matrix so that wide copies stay small."""
        import torch

        scales, k = self.scales_of(workload.attrs), workload.dims["k"]
        axes, operands, factors = self.tensor_axes(workload.attrs), {}, {}
        for name, shape in zip(("A", "B"), self._operands(workload), strict=True):
            operands[name] = torch.empty(shape, dtype=torch.float8_e4m3fn, device=generator.device)
            found = []
            # with a scale for the tensor A is one matrix
            whole = name == "A" and (scales == "tensor" or len(shape) == 2)
            for part in [operands[name].view(-1, k)] if whole else operands[name].flatten(0, -3):
                values = torch.randn(part.shape, generator=generator, device=generator.device)
                if scales != "none":
                    block = _block(scales, name, part.shape)
                    found.append(largest(values, block).div_(LARGEST_FLOAT8))
                    values /= spread(found[-1], block, slice(0, len(part)), k)
                    if name == "B":
                        found[-1] *= k**-0.5
                part.copy_(values)
            if found:
                factors[f"{name}_scale"] = torch.stack(found).view(
                    extents(axes[f"{name}_scale"], workload.dims, {})
                )
        return {**operands, **factors}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"C": (*_rows(workload), workload.dims["n"])}

    def preset(self, workload: Workload, outputs: Tensors) -> bool:
        """Zeros in the rows that no group has."""
        if masked := workload.attrs["rows"] == "masked":
            outputs["C"].zero_()
        return masked

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """In float32 without TF32, group by group."""
        return {"C": self._by_groups(workload, inputs, _product)}

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"C": self._by_groups(workload, inputs, _magnitude)}

    def rounding(self, workload: Workload) -> Rounding:
        k = workload.dims["k"]
        if workload.dtype != FLOAT8:
            return Rounding(k, cuts=True)
        # scales of blocks: each block has a sum of its own, and float32 adds the blocks
        by_blocks = self.scales_of(workload.attrs) == "block128"
        return Rounding(k, cuts=True, short_sums=short_sums(min(k, BLOCK) if by_blocks else k))

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """One product for each group with rows, of sizes that the host knows, and torch's grouped product."""
        import torch

        if workload.dtype == FLOAT8:
            return _float8_vendor(self, workload, inputs)
        a, b, n = inputs["A"], inputs["B"], workload.dims["n"]
        fused, masked = workload.attrs["fuse"] == "silu_mul", workload.attrs["rows"] == "masked"
        # (groups, k, n) or (groups, k, 2n), as views
        is_nt = workload.attrs["layout"] == "nt"
        weights = b.flatten(1, -2).transpose(1, 2) if is_nt else b.flatten(2)
        out = torch.zeros(*a.shape[:-1], weights.shape[-1], dtype=a.dtype, device=a.device)
        parts = [(a[rows], weights[group], out[rows]) for group, rows in self._groups(workload)]

        def activated(product: "torch.Tensor") -> "torch.Tensor":
            gate, up = product[..., :n], product[..., n:]
            return torch.nn.functional.silu(gate).mul_(up) if fused else product

        def by_groups() -> object:
            for left, right, result in parts:
                torch.matmul(left, right, out=result)
            return activated(out)

        library = "torch" if a.device.type == "cpu" else "hipBLAS" if torch.version.hip else "cuBLAS"
        calls: dict[str, Callable[[], object]] = {f"{library} (one call a group)": by_groups}
        grouped = getattr(torch, "_grouped_mm", None)
        if grouped is None or masked or a.device.type == "cpu":
            return calls
        ends = inputs["ends"][1:].contiguous()

        def together() -> object:
            return activated(grouped(a, weights, offs=ends))

        try:
            together()
        except (RuntimeError, NotImplementedError, TypeError):
            return calls  # not for this device, dtype or shape
        return {**calls, "torch._grouped_mm": together}

    def flops(self, workload: Workload) -> int:
        """Operations of the products; an activation is not counted."""
        products = 2 if workload.attrs["fuse"] == "silu_mul" else 1
        return 2 * products * self._tokens(workload) * workload.dims["n"] * workload.dims["k"]

    def min_bytes(self, workload: Workload) -> int:
        """Rows of groups, and weights of the groups that have rows."""
        n, k, tokens = workload.dims["n"], workload.dims["k"], self._tokens(workload)
        groups = sum(1 for _ in self._groups(workload))
        of_c = DTYPE_BYTES[self.dtype_of("C", workload)]
        operands = groups * math.prod(_weights(workload)[1:]) + tokens * k
        axes = self.tensor_axes(workload.attrs)
        factors = 0
        if "A_scale" in axes:
            of_a, of_b = (extents(axes[f"{name}_scale"], workload.dims, {}) for name in ("A", "B"))
            rows = math.prod(_rows(workload))
            factors = groups * math.prod(of_b[1:]) + max(1, math.prod(of_a) * tokens // rows)
        return (
            operands * self.element_bytes(workload)
            + tokens * n * of_c
            + 4 * factors
            + 4 * (workload.dims["groups"] + 1)
        )

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding C, and that of sums of float8, as for matmul."""
        limit = {"bfloat16": 4e-3, "float16": 6e-4}[self.dtype_of("C", workload)]
        if workload.dtype == FLOAT8:
            return limit + 2.0**-FLOAT8_SUM_DIGITS * math.sqrt(workload.dims["k"] / FLOAT8_TERMS)
        return limit

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """A and B of whole numbers -2 .. 2, with exact sums; no activation is exact."""
        import torch

        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        a, b = (whole_numbers(shape, 2, dtype, generator) for shape in self._operands(workload))
        axes = self.tensor_axes(workload.attrs)
        factors = {
            name: whole_numbers(extents(axes[name], workload.dims, {}), 1, torch.float32, generator).exp2_()
            for name in ("A_scale", "B_scale")
            if name in axes
        }
        tensors = {"A": a, "B": b, **factors, "ends": self._ends(workload, device)}
        return SecondInputs(tensors, is_exact=workload.attrs["fuse"] == "none")

    def _operands(self, workload: Workload) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (*_rows(workload), workload.dims["k"]), _weights(workload)

    def _ends(self, workload: Workload, device: str) -> "torch.Tensor":
        import torch

        return torch.from_numpy(self.contents(workload)["ends"]).to(device)

    def _groups(self, workload: Workload) -> Iterator[tuple[int, Any]]:
        """Groups that have rows, with the index of their rows in A and C."""
        ends = self.contents(workload)["ends"]
        for group in range(workload.dims["groups"]):
            if workload.attrs["rows"] == "masked":
                rows: Any = (group, slice(0, int(ends[group])))
                count = int(ends[group])
            else:
                rows = slice(int(ends[group]), int(ends[group + 1]))
                count = rows.stop - rows.start
            if count:
                yield group, rows

    def _tokens(self, workload: Workload) -> int:
        """Rows of all groups."""
        if workload.attrs["rows"] == "masked":
            return int(self.contents(workload)["ends"].sum())
        return workload.dims["tokens"]

    def _by_groups(self, workload: Workload, inputs: Tensors, function: Callable[..., Any]) -> "torch.Tensor":
        import torch

        a, b, (n, k) = inputs["A"], inputs["B"], (workload.dims[d] for d in ("n", "k"))
        out = torch.zeros(*a.shape[:-1], n, device=a.device)
        fused, is_nt = workload.attrs["fuse"] == "silu_mul", workload.attrs["layout"] == "nt"
        scales = self.scales_of(workload.attrs)
        with exact_products():
            for group, rows in self._groups(workload):
                tokens, weights = a[rows].float(), b[group].float()
                if scales != "none":
                    of_a = inputs["A_scale"][0 if scales == "tensor" else rows]
                    tokens = tokens * _factors(scales, of_a, 1, k)
                    weights = weights * _factors(scales, inputs["B_scale"][group], n, k)
                halves = weights.unbind(0 if is_nt else 1) if fused else (weights,)
                out[rows] = function(tokens, *(half.T if is_nt else half for half in halves))
        return out


def _float8_vendor(
    operator: GroupedMatmul, workload: Workload, inputs: Tensors
) -> dict[str, Callable[[], object]]:
    """Scaled products, one for each group with rows, and torch's grouped one for scales of rows."""
    import torch

    n, scales = workload.dims["n"], operator.scales_of(workload.attrs)
    fused, masked = workload.attrs["fuse"] == "silu_mul", workload.attrs["rows"] == "masked"
    a, weights = inputs["A"], inputs["B"].flatten(1, -2)
    if a.device.type == "cpu":
        return {
            "torch in float32": lambda: operator._by_groups(workload, inputs, _product).to(torch.bfloat16)
        }
    wide = torch.bfloat16
    out = torch.zeros(*a.shape[:-1], weights.shape[1], dtype=wide, device=a.device)
    ones = torch.ones(1, device=a.device)

    def of_rows(rows: Any) -> torch.Tensor:
        scale = inputs["A_scale"]
        # the library reads neighbours along the rows together
        return scale[rows][:, None] if scales == "row" else scale[rows].T.contiguous().T

    def of_columns(group: int) -> torch.Tensor:
        scale = inputs["B_scale"][group]
        return scale.view(1, -1) if scales == "row" else scale.reshape(-1, scale.shape[-1]).T

    halves = 2 if fused and scales == "tensor" else 1  # with scales of their own
    parts = []
    for group, rows in operator._groups(workload):
        for half, columns in enumerate(weights[group].chunk(halves)):
            to = slice(half * len(columns), (half + 1) * len(columns))
            if scales == "none":
                factors = ones, ones
            elif scales == "tensor":
                factors = inputs["A_scale"], inputs["B_scale"][group].view(-1)[half : half + 1]
            else:
                factors = of_rows(rows), of_columns(group)
            parts.append((a[rows], columns.T, factors, out[rows][:, to]))

    def activated(product: "torch.Tensor") -> "torch.Tensor":
        gate, up = product[..., :n], product[..., n:]
        return torch.nn.functional.silu(gate).mul_(up) if fused else product

    def by_groups(fast: bool) -> Callable[[], object]:
        def product() -> object:
            for left, right, (of_a, of_b), result in parts:
                found = torch._scaled_mm(left, right, of_a, of_b, out_dtype=wide, use_fast_accum=fast)
                result.copy_(found)
            return activated(out)

        return product

    library = "hipBLAS" if torch.version.hip else "cuBLAS"
    calls: dict[str, Callable[[], object]] = {
        f"{library} (one call a group, {'fast sums' if fast else 'sums in float32'})": by_groups(fast)
        for fast in ((False,) if scales == "block128" else (True, False))
    }
    if scales == "row" and not masked:
        ends, of_b = inputs["ends"][1:].contiguous(), inputs["B_scale"].flatten(1)
        calls["torch._scaled_grouped_mm"] = lambda: activated(
            torch._scaled_grouped_mm(
                a, weights.transpose(1, 2), inputs["A_scale"], of_b,
                offs=ends, out_dtype=wide, use_fast_accum=True,
            )
        )  # fmt: skip
    if found := usable(calls):
        return found
    wide_parts = [(left.to(wide), right.to(wide), result) for left, right, _, result in parts]

    def unscaled() -> object:
        for left, right, result in wide_parts:
            result.copy_(left @ right)
        return activated(out)

    return {f"{library} (products of bfloat16, without scales)": without_result(unscaled)}


def _block(scales: str, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a matrix of A or B that share a scale."""
    if scales == "block128":
        return (1, BLOCK) if name == "A" else (BLOCK, BLOCK)
    return (1 if scales == "row" else shape[-2], shape[-1])


def _factors(scales: str, scale: "torch.Tensor", rows: int, cols: int) -> "torch.Tensor":
    """Scales that a matrix is multiplied by; `rows` is 1 for A, whose rows have blocks of their own."""
    if scales != "block128":
        return scale[..., None] if scales == "row" else scale[..., None, None]
    scale = scale.repeat_interleave(BLOCK, -1)[..., :cols]
    return scale if rows == 1 else scale.repeat_interleave(BLOCK, -2)[..., :rows, :]


def _rows(workload: Workload) -> tuple[int, ...]:
    """Shape of the rows of A and C."""
    tokens = workload.dims["tokens"]
    return (workload.dims["groups"], tokens) if workload.attrs["rows"] == "masked" else (tokens,)


def _weights(workload: Workload) -> tuple[int, ...]:
    """Shape of B."""
    _, groups, n, k = workload.dims.values()
    halves = (2,) if workload.attrs["fuse"] == "silu_mul" else ()
    return (groups, *halves, n, k) if workload.attrs["layout"] == "nt" else (groups, k, *halves, n)


def _sizes(workload: Workload) -> tuple[tuple[str, int], ...]:
    return ("B", math.prod(_weights(workload))), ("C", math.prod(_rows(workload)) * workload.dims["n"])


def _product(a: "torch.Tensor", b: "torch.Tensor", up: "torch.Tensor | None" = None) -> "torch.Tensor":
    """Rows of C."""
    import torch

    return a @ b if up is None else torch.nn.functional.silu(a @ b) * (a @ up)


def _magnitude(a: "torch.Tensor", b: "torch.Tensor", up: "torch.Tensor | None" = None) -> "torch.Tensor":
    """Root of the sum of squares of a product's terms; of both products, times their factors in C."""
    import torch

    squares, terms = a.square(), (a.square() @ b.square()).sqrt_()
    if up is None:
        return terms
    gate, other = a @ b, a @ up
    silu, half = torch.nn.functional.silu(gate), gate.sigmoid()
    slope = half * (1 + gate * (1 - half))
    return torch.hypot(slope * other * terms, silu * (squares @ up.square()).sqrt_())


OPERATOR = GroupedMatmul()


FEW_ROWS = 64  # of a group, for which a tile of one warpgroup is enough


class GroupedMatmulGpu(KernelTemplate):
    """A block finds the group of its tile in `ends` and computes the tile in a pipelined loop over k.

    With contiguous rows, the tiles of group g begin at block row ends[g] // block_m + g: there is always
    room for those of the groups before, and no block needs the sum of their numbers of tiles. A tile that
    lies within its group is written at once; of others each row is compared with the group's end.

    A few block rows, at most one a group, have no tile. Their blocks have a loop without iterations where a
    warpgroup copies: after a branch, C would need memory beside that of the operands. Elsewhere they branch,
    since TileLang 0.1.15 pipelines no loop there whose number of iterations varies.

    On Hopper blocks may stay and walk over the tiles. With a pipeline of their own (`_scheduled_groups`) they
    may do so, or have one tile each.
    """

    operator = OPERATOR
    name = "grouped_matmul"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16", FLOAT8)
    dynamic_dims = ("tokens",)
    static_reasons: ClassVar[Mapping[str, str]] = {
        "groups": "the search for a tile's group has a fixed number of steps",
        "n": "rows of C are n elements apart, and the copies need rows that start at whole 16 bytes",
        "k": "rows of A are k elements apart, and the copies need rows that start at whole 16 bytes",
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def reordered(self, config: Config) -> tuple[Config, Rasterization] | None:
        panel = config.int("swizzle")
        return (Config({**config, "swizzle": 0}), Rasterization("row", panel)) if panel else None

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """The nearest legal config to tiles of 128 x 256 on Hopper, of 128 x 128 elsewhere and for two
        products, of 64 x 128 for small groups.

        On Hopper with explicit pipelines. Blocks stay for small groups and for float8; others have one tile
        each, which the chip hands out as blocks end.
        """
        space = self.space(workload, target)
        tokens, groups = workload.dims["tokens"], workload.dims["groups"]
        mean = tokens if workload.attrs["rows"] == "masked" else tokens // groups
        small, hopper, wide = mean <= FEW_ROWS, is_hopper(target), workload.dtype != FLOAT8
        fused = workload.attrs["fuse"] == "silu_mul"
        block_n = 128 if small or fused or not hopper else 256
        deep = not wide or (hopper and fused and not small)
        common: dict[str, Value] = {
            "block_m": 64 if small else 128,
            "block_n": block_n,
            "block_k": 128 if deep else 64,
            "threads": 128 if small else 256,
            "policy": "square" if small or not hopper else "full_row",
            "skip": "loop",
        }
        overlapped = Config(
            {
                **common,
                "num_stages": 5 if small else 4,
                "swizzle": 0,
                "persistent": target.int("core.count") if small or not wide else 0,
                "schedule": "overlapped",
            }
        )
        if overlapped in space:
            return overlapped
        wanted = Config(
            {
                **common,
                "num_stages": 1 if target.kind == "hip" else 2 if deep and wide else 4,
                "swizzle": 0 if small or not hopper else 8,
                "persistent": 0,
            }
        )
        return space.closest(wanted)

    def program(self, workload: Workload, config: Config) -> Any:
        """A macro of A, B, A_scale, B_scale (types of None without scales), ends and C: the launch."""
        import tilelang.language as T  # noqa: N812

        tokens, groups, n, k = workload.dims.values()
        is_nt, masked = workload.attrs["layout"] == "nt", workload.attrs["rows"] == "masked"
        fused = workload.attrs["fuse"] == "silu_mul"
        dtype, output, accumulator = workload.dtype, self.operator.dtype_of("C", workload), "float32"
        scales = self.operator.scales_of(workload.attrs)
        by_blocks, by_sums = scales == "block128", scales in ("tensor", "row")
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
        policy = warp_policy(config.str("policy"))

        tiles = (tokens + block_m - 1) // block_m  # of a group with masked rows
        block_rows = tiles * groups if masked else block_count(tokens, groups, block_m)
        find = item_finder(groups, block_m)
        tile_shape = (block_n, block_k) if is_nt else (block_k, block_n)
        depth, cols = (k + block_k - 1) // block_k, (n + block_n - 1) // block_n
        by_branch = config["skip"] == "branch"
        overlapped = config.get("schedule", "serial") == "overlapped"
        # a table of a block's tiles needs a number of tokens
        persistent = config.int("persistent") if isinstance(tokens, int) else 0
        grid = (persistent, 1) if persistent else (cols, block_rows)

        of = GroupedTensors(is_nt, masked, fused, scales)

        def runs(row: Any, end: Any) -> Any:
            return row < end if by_branch else True

        def weights_of(tensor: Any, group: Any, half: int, col: Any, ko: Any) -> Any:
            first = ko * block_k
            return of.weights_of(
                tensor, group, half, slice(col, col + block_n), slice(first, first + block_k)
            )

        @T.macro
        def multiply(A, B, group, row, col, ko, a_tile, b_tiles, sums):  # type: ignore[no-untyped-def]  # noqa: N803
            # copies beyond an edge read zeros, which add nothing
            T.copy(of.rows_of(A, group, row, ko * block_k), a_tile)
            T.copy(weights_of(B, group, 0, col, ko), b_tiles[0])
            if fused:
                T.copy(weights_of(B, group, 1, col, ko), b_tiles[1])
            T.gemm(a_tile, b_tiles[0], sums[0], transpose_B=is_nt, policy=policy, clear_accum=by_blocks)
            if fused:
                T.gemm(a_tile, b_tiles[1], sums[1], transpose_B=is_nt, policy=policy, clear_accum=by_blocks)

        @T.macro
        def load_factors(A_scale, B_scale, group, row, col, ko, of_rows, of_columns):  # type: ignore[no-untyped-def]  # noqa: N803
            for i in T.Parallel(block_m):
                of_rows[i] = of.rows_of(A_scale, group, row + i, ko)
            of_columns[0] = of.block_of_columns(B_scale, group, 0, col, ko)
            if fused:
                of_columns[1] = of.block_of_columns(B_scale, group, 1, col, ko)

        @T.macro
        def add_blocks(sums, parts, of_rows, of_columns):  # type: ignore[no-untyped-def]
            for i, j in T.Parallel(block_m, block_n):
                sums[0][i, j] += parts[0][i, j] * (of_rows[i] * of_columns[0])
            if fused:
                for i, j in T.Parallel(block_m, block_n):
                    sums[1][i, j] += parts[1][i, j] * (of_rows[i] * of_columns[1])

        @T.macro
        def write(C, A_scale, B_scale, group, row, col, end, sums, c_tile):  # type: ignore[no-untyped-def]  # noqa: N803
            if by_sums:
                for i, j in T.Parallel(block_m, block_n):
                    sums[0][i, j] *= of.factor_of(A_scale, B_scale, group, 0, row + i, col + j)
                if fused:
                    for i, j in T.Parallel(block_m, block_n):
                        sums[1][i, j] *= of.factor_of(A_scale, B_scale, group, 1, row + i, col + j)
            if fused:
                for i, j in T.Parallel(block_m, block_n):
                    sums[0][i, j] = sums[0][i, j] / (1 + T.exp(-sums[0][i, j])) * sums[1][i, j]
            T.copy(sums[0], c_tile)
            if row + block_m <= end:
                T.copy(c_tile, of.rows_of(C, group, row, col))
            else:
                for i, j in T.Parallel(block_m, block_n):
                    if row + i < end and col + j < n:
                        if masked:
                            C[group, row + i, col + j] = c_tile[i, j]
                        else:
                            C[row + i, col + j] = c_tile[i, j]

        @T.macro
        def in_turn(A, B, A_scale, B_scale, ends, C):  # type: ignore[no-untyped-def]  # noqa: N803
            with T.Kernel(*grid, threads=threads) as (bx, by):
                a_tile = T.alloc_shared((block_m, block_k), dtype)
                b_tile = T.alloc_shared(tile_shape, dtype)
                c_tile = T.alloc_shared((block_m, block_n), output)
                c_sum = T.alloc_fragment((block_m, block_n), accumulator)
                u_tile = T.alloc_shared(tile_shape, dtype) if fused else b_tile
                u_sum = T.alloc_fragment((block_m, block_n), accumulator) if fused else c_sum
                b_tiles, sums = (b_tile, u_tile), (c_sum, u_sum)
                if by_blocks:
                    c_part = T.alloc_fragment((block_m, block_n), accumulator)
                    u_part = T.alloc_fragment((block_m, block_n), accumulator) if fused else c_part
                    of_rows = T.alloc_fragment((block_m,), "float32")
                    of_columns = T.alloc_local((2,), "float32")
                T.use_swizzle(swizzle, enable=swizzle > 0)

                if persistent:
                    waves = (block_rows * cols + persistent - 1) // persistent
                    groups_of = T.alloc_local((waves,), "int32")
                    rows_at = T.alloc_local((waves,), "int32")
                    cols_at = T.alloc_local((waves,), "int32")
                    mine, before = T.alloc_var("int32"), T.alloc_var("int32")
                    mine = 0
                    before = 0  # tiles of the groups before
                    for group in T.serial(groups):
                        begin = of.begin_of(ends, group)
                        height = (of.end_of(ends, group) - begin + block_m - 1) // block_m
                        after = before + height * cols
                        until = (after - bx + persistent - 1) // persistent
                        for later in T.serial(until - mine):
                            at = mine + later
                            tile = at * persistent + bx - before
                            groups_of[at] = group
                            rows_at[at] = begin + tile % height * block_m
                            cols_at[at] = tile // height
                        mine = until
                        before = after
                    T.clear(c_sum)
                    if fused:
                        T.clear(u_sum)
                    for step in T.Pipelined(mine * depth, num_stages=num_stages):
                        at, ko = step // depth, step % depth
                        multiply(
                            A, B, groups_of[at], rows_at[at], cols_at[at] * block_n, ko, a_tile, b_tiles, sums
                        )
                        # the warpgroup that copies goes on with the next tile meanwhile
                        if ko == depth - 1:
                            write(
                                C,
                                A_scale,
                                B_scale,
                                groups_of[at],
                                rows_at[at],
                                cols_at[at] * block_n,
                                of.end_of(ends, groups_of[at]),
                                sums,
                                c_tile,
                            )
                            T.clear(c_sum)
                            if fused:
                                T.clear(u_sum)
                else:
                    found = T.alloc_var("int32")
                    found = by // tiles if masked else 0
                    if not masked:
                        find(ends, by, found)
                    start = of.begin_of(ends, found)
                    row = (
                        by % tiles * block_m if masked else start + (by - start // block_m - found) * block_m
                    )
                    end = of.end_of(ends, found)
                    if runs(row, end):
                        T.clear(c_sum)
                        if fused:
                            T.clear(u_sum)
                        if by_blocks:
                            load_factors(A_scale, B_scale, found, row, bx * block_n, 0, of_rows, of_columns)
                        for ko in T.Pipelined(
                            depth if by_branch else T.if_then_else(row < end, depth, 0), num_stages=num_stages
                        ):
                            if by_blocks:
                                parts = (c_part, u_part)
                                multiply(A, B, found, row, bx * block_n, ko, a_tile, b_tiles, parts)
                                add_blocks(sums, parts, of_rows, of_columns)
                                # the scales of the next iteration, which arrive during its product
                                load_factors(
                                    A_scale, B_scale, found, row, bx * block_n, ko + 1, of_rows, of_columns
                                )
                            else:
                                multiply(A, B, found, row, bx * block_n, ko, a_tile, b_tiles, sums)
                        write(C, A_scale, B_scale, found, row, bx * block_n, end, sums, c_tile)

        if overlapped:
            blocks = config.int("persistent") or cols * block_rows
            return overlapped_groups(of, (tokens, groups, n, k), dtype, output, config, blocks)
        return in_turn

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        tokens, groups, n, k = workload.dims.values()
        masked, dtype = workload.attrs["rows"] == "masked", workload.dtype
        output = self.operator.dtype_of("C", workload)
        a_shape, b_shape = self.operator._operands(workload)
        ends_shape = (groups,) if masked else (groups + 1,)
        dims = {"tokens": tokens, "groups": groups, "n": n, "k": k}
        axes = self.operator.tensor_axes(workload.attrs)
        program = self.program(workload, config)

        def tensor(name: str) -> Any:
            # its annotation; the type of None makes no parameter of the kernel
            return T.Tensor(extents(axes[name], dims, {}), "float32") if name in axes else type(None)

        @T.prim_func
        def grouped_matmul(  # type: ignore[no-untyped-def]
            A: T.Tensor(a_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            B: T.Tensor(b_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            A_scale: tensor("A_scale"),  # type: ignore[valid-type]  # noqa: N803
            B_scale: tensor("B_scale"),  # type: ignore[valid-type]  # noqa: N803
            ends: T.Tensor(ends_shape, "int32"),  # type: ignore[valid-type]
            C: T.Tensor((*a_shape[:-1], n), output),  # type: ignore[valid-type]  # noqa: N803
        ):
            program(A, B, A_scale, B_scale, ends, C)

        return grouped_matmul


TEMPLATES = (GroupedMatmulGpu(),)
