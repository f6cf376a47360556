"""grouped_matmul: the product of a mixture of experts, where each group of rows has a matrix of its own.

    C[i, :] = A[i, :] B[g]        for the rows i of group g

Rows of a group are neighbours: group g has the rows ends[g] .. ends[g + 1] of A, where ends[0] = 0
(`rows=contiguous`), or the first ends[g] rows of A[g] (`rows=masked`, for batches of a fixed size; other rows
of C are left as they are). Weights are B[g, j, i] (`layout=nt`, as checkpoints store them) or B[g, i, j]
(`layout=nn`). With `fuse=silu_mul` B has two matrices a group, gate and up, and C = silu(A gate) * (A up).
Sums are in float32.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Axis, Plus
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
from ._packed_items import block_count, item_finder
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
    attrs: ClassVar[Mapping[str, Value]] = {"layout": "nt", "fuse": "none", "rows": "contiguous"}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "layout": ("nt", "nn"),
        "fuse": ("none", "silu_mul"),
        "rows": ("contiguous", "masked"),
    }
    axes: ClassVar[Axes] = {
        "A": ("tokens", "k"),
        "B": ("groups", "n", "k"),
        "ends": (Plus("groups", 1),),
        "C": ("tokens", "n"),
    }
    # MX: Mixtral 8x7B, 4096 tokens for two experts each. DS: DeepSeek-V3, the 32 experts of one of 8 GPUs;
    # DS2 is a step of decoding. QW: Qwen3-30B-A3B, 512 and 4096 tokens for eight experts each.
    # MX0, DS1 and QW are gate and up as one product; DS0 fuses silu(gate) * up
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "MX0": {"tokens": 8192, "groups": 8, "n": 14336, "k": 4096},
        "DS0": {"tokens": 8192, "groups": 32, "n": 2048, "k": 7168, "fuse": "silu_mul"},
        "DS1": {"tokens": 8192, "groups": 32, "n": 4096, "k": 7168},
        "DS2": {"tokens": 128, "groups": 32, "n": 4096, "k": 7168, "rows": "masked"},
        "QW0": {"tokens": 4096, "groups": 128, "n": 1536, "k": 2048},
        "QW2": {"tokens": 32768, "groups": 128, "n": 1536, "k": 2048},
    }
    default_names = ("MX0", "DS1", "QW0")

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        masked, halves = attrs["rows"] == "masked", (2,) if attrs["fuse"] == "silu_mul" else ()
        rows: tuple[Axis, ...] = ("groups", "tokens") if masked else ("tokens",)
        weights: tuple[Axis, ...] = (*halves, "n", "k") if attrs["layout"] == "nt" else ("k", *halves, "n")
        ends: Axis = "groups" if masked else Plus("groups", 1)
        return {"A": (*rows, "k"), "B": ("groups", *weights), "ends": (ends,), "C": (*rows, "n")}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"ends": "int32"}

    def validate(self, workload: Workload) -> None:
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

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """A ~ N(0, 1) and B ~ N(0, 1/k), so that products ~ N(0, 1) for every k."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        a, b = (
            torch.randn(*shape, generator=generator, device=device, dtype=getattr(torch, workload.dtype))
            for shape in self._operands(workload)
        )
        return {"A": a, "B": b.mul_(workload.dims["k"] ** -0.5), "ends": self._ends(workload, device)}

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
        return Rounding(workload.dims["k"], cuts=True)

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """One product for each group with rows, of sizes that the host knows, and torch's grouped product."""
        import torch

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
        n, k = workload.dims["n"], workload.dims["k"]
        weights = sum(1 for _ in self._groups(workload)) * math.prod(_weights(workload)[1:])
        elements = weights + self._tokens(workload) * (n + k)
        return elements * self.element_bytes(workload) + 4 * (workload.dims["groups"] + 1)

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding C, as for matmul."""
        return {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """A and B of whole numbers -2 .. 2, with exact sums; no activation is exact."""
        import torch

        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        a, b = (whole_numbers(shape, 2, dtype, generator) for shape in self._operands(workload))
        tensors = {"A": a, "B": b, "ends": self._ends(workload, device)}
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

        a, b = inputs["A"], inputs["B"]
        out = torch.zeros(*a.shape[:-1], workload.dims["n"], device=a.device)
        fused, is_nt = workload.attrs["fuse"] == "silu_mul", workload.attrs["layout"] == "nt"
        with exact_products():
            for group, rows in self._groups(workload):
                weights = b[group].float()
                halves = weights.unbind(0 if is_nt else 1) if fused else (weights,)
                out[rows] = function(a[rows].float(), *(half.T if is_nt else half for half in halves))
        return out


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


class GroupedMatmulGpu(KernelTemplate):
    """A block finds the group of its tile in `ends` and computes the tile in a pipelined loop over k.

    With contiguous rows, the tiles of group g begin at block row ends[g] // block_m + g: there is always
    room for those of the groups before, and no block needs the sum of their numbers of tiles. A tile that
    lies within its group is written at once; of others each row is compared with the group's end.

    A few block rows, at most one a group, have no tile. Their blocks have a loop without iterations where a
    warpgroup copies: after a branch, C would need memory beside that of the operands. Elsewhere they branch,
    since TileLang 0.1.15 pipelines no loop there whose number of iterations varies.
    """

    operator = OPERATOR
    name = "grouped_matmul"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
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
        """Tiles of up to 256 x 192 on Hopper, of 64 x 128 for small groups; else the nearest legal config."""
        space = self.space(workload, target)
        tokens, groups = workload.dims["tokens"], workload.dims["groups"]
        mean = tokens if workload.attrs["rows"] == "masked" else tokens // groups
        small, hopper = mean < 96, is_hopper(target)
        if small:
            block_m, block_n, block_k = 64, 128, 64
        elif not hopper:
            block_m, block_n, block_k = 128, 128, 64
        elif mean < 768:
            block_m, block_n, block_k = 128, 256, 128
        else:
            block_m, block_n, block_k = 256, 192, 64
        wanted = Config(
            {
                "block_m": block_m,
                "block_n": block_n,
                "block_k": block_k,
                "num_stages": 1 if target.kind == "hip" else 2 if block_k == 128 else 4,
                "threads": 128 if small else 256,
                "policy": "square" if small or not hopper else "full_row",
                "swizzle": 0 if small or not hopper else 8,
                "skip": "loop",
                "persistent": 0,
            }
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        tokens, groups, n, k = workload.dims.values()
        is_nt, masked = workload.attrs["layout"] == "nt", workload.attrs["rows"] == "masked"
        fused = workload.attrs["fuse"] == "silu_mul"
        dtype, accumulator = workload.dtype, "float32"
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
        policy = warp_policy(config.str("policy"))

        tiles = (tokens + block_m - 1) // block_m  # of a group with masked rows
        block_rows = tiles * groups if masked else block_count(tokens, groups, block_m)
        find = item_finder(groups, block_m)
        tile_shape = (block_n, block_k) if is_nt else (block_k, block_n)
        a_shape, b_shape = self.operator._operands(workload)
        ends_shape = (groups,) if masked else (groups + 1,)
        depth, cols = (k + block_k - 1) // block_k, (n + block_n - 1) // block_n
        by_branch = config["skip"] == "branch"
        # a table of a block's tiles needs a number of tokens
        persistent = config.int("persistent") if isinstance(tokens, int) else 0
        grid = (persistent, 1) if persistent else (cols, block_rows)

        def runs(row: Any, end: Any) -> Any:
            return row < end if by_branch else True

        def rows_of(tensor: Any, group: Any, row: Any, col: Any) -> Any:
            return tensor[group, row, col] if masked else tensor[row, col]

        def weights_of(tensor: Any, group: Any, half: int, col: Any, first: Any) -> Any:
            columns, depths = slice(col, col + block_n), slice(first, first + block_k)
            halves = (half,) if fused else ()
            return tensor[(group, *halves, columns, depths) if is_nt else (group, depths, *halves, columns)]

        def begin_of(ends: Any, group: Any) -> Any:
            return 0 if masked else ends[group]

        def end_of(ends: Any, group: Any) -> Any:
            return ends[group] if masked else ends[group + 1]

        @T.macro
        def multiply(A, B, group, row, col, ko, a_tile, b_tiles, sums):  # type: ignore[no-untyped-def]  # noqa: N803
            # copies beyond an edge read zeros, which add nothing
            T.copy(rows_of(A, group, row, ko * block_k), a_tile)
            T.copy(weights_of(B, group, 0, col, ko * block_k), b_tiles[0])
            if fused:
                T.copy(weights_of(B, group, 1, col, ko * block_k), b_tiles[1])
            T.gemm(a_tile, b_tiles[0], sums[0], transpose_B=is_nt, policy=policy)
            if fused:
                T.gemm(a_tile, b_tiles[1], sums[1], transpose_B=is_nt, policy=policy)

        @T.macro
        def write(C, group, row, col, end, sums, c_tile):  # type: ignore[no-untyped-def]  # noqa: N803
            if fused:
                for i, j in T.Parallel(block_m, block_n):
                    sums[0][i, j] = sums[0][i, j] / (1 + T.exp(-sums[0][i, j])) * sums[1][i, j]
            T.copy(sums[0], c_tile)
            if row + block_m <= end:
                T.copy(c_tile, rows_of(C, group, row, col))
            else:
                for i, j in T.Parallel(block_m, block_n):
                    if row + i < end and col + j < n:
                        if masked:
                            C[group, row + i, col + j] = c_tile[i, j]
                        else:
                            C[row + i, col + j] = c_tile[i, j]

        @T.prim_func
        def grouped_matmul(  # type: ignore[no-untyped-def]
            A: T.Tensor(a_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            B: T.Tensor(b_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            ends: T.Tensor(ends_shape, "int32"),  # type: ignore[valid-type]
            C: T.Tensor((*a_shape[:-1], n), dtype),  # type: ignore[valid-type]  # noqa: N803
        ):
            with T.Kernel(*grid, threads=threads) as (bx, by):
                a_tile = T.alloc_shared((block_m, block_k), dtype)
                b_tile = T.alloc_shared(tile_shape, dtype)
                c_tile = T.alloc_shared((block_m, block_n), dtype)
                c_sum = T.alloc_fragment((block_m, block_n), accumulator)
                u_tile = T.alloc_shared(tile_shape, dtype) if fused else b_tile
                u_sum = T.alloc_fragment((block_m, block_n), accumulator) if fused else c_sum
                b_tiles, sums = (b_tile, u_tile), (c_sum, u_sum)
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
                        begin = begin_of(ends, group)
                        height = (end_of(ends, group) - begin + block_m - 1) // block_m
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
                                groups_of[at],
                                rows_at[at],
                                cols_at[at] * block_n,
                                end_of(ends, groups_of[at]),
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
                    start = begin_of(ends, found)
                    row = (
                        by % tiles * block_m if masked else start + (by - start // block_m - found) * block_m
                    )
                    end = end_of(ends, found)
                    if runs(row, end):
                        T.clear(c_sum)
                        if fused:
                            T.clear(u_sum)
                        for ko in T.Pipelined(
                            depth if by_branch else T.if_then_else(row < end, depth, 0), num_stages=num_stages
                        ):
                            multiply(A, B, found, row, bx * block_n, ko, a_tile, b_tiles, sums)
                        write(C, found, row, bx * block_n, end, sums, c_tile)

        return grouped_matmul


TEMPLATES = (GroupedMatmulGpu(),)
