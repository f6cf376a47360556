"""mla_decode: attention of new queries over a cache of latent vectors, the multi-head latent attention of
DeepSeek after its projections are absorbed.

O[b, t, h] = softmax(scale Q[b, t, h] KV[b]^T) KV[b, :, :dim]. All heads share the keys, and
values are the first `dim` columns of keys; the others are the rotated part. The default
of `scale` is 1/sqrt(dim + rope_dim); models take 1/sqrt(192) and other factors.

The cache is that of `_kv_cache`, with one kv head. With `topk` each query has its own keys: `Indices` are
positions in its item, -1 for none. With pages, `Table` has the page of each position. Lengths are full then.
Latent vectors that no query sees must be finite: weights of 0 multiply them.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Axis, Plus
from ..problem.index_values import outside
from ..problem.operator import Tensors
from ..problem.space import Config, SearchSpace, Value
from ..problem.workload import Workload
from ..search_spaces import mla_decode as search_space
from ..search_spaces.split_kv import SPLITS
from ..target.spec import Target
from ._cache_vendor import chosen_places, flash_mla, flashinfer_latent
from ._exact_products import exact_products
from ._kv_cache import CacheOperator, CacheTemplate, page_fault, weighted
from ._latent_roles import LatentRoles
from ._online_softmax import online_softmax
from ._optional_tensors import tensor_if
from ._softmax_scale import softmax_scale
from ._split_kv import LOWEST, combination, load_keys, normalise
from ._vendor_calls import of_packages

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


def check_columns(operator: str, dim: int) -> None:
    """Raise `WorkloadError` for a number of columns whose sums a block cannot keep."""
    if dim % 64 or dim > 512:
        raise WorkloadError(
            f"{operator}: dim={dim} must be a multiple of 64 and at most 512, the columns whose sums a block "
            "keeps in registers"
        )


class MlaDecode(CacheOperator):
    name = "mla_decode"
    columns = "dim"
    dims = ("batch", "heads", "kv_len", "dim", "q_len", "pages")
    dim_defaults: ClassVar[Mapping[str, int | str]] = {"dim": 512, **CacheOperator.dim_defaults}
    attrs: ClassVar[Mapping[str, Value]] = {"rope_dim": 64, "topk": 0, **CacheOperator.attrs}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "rope_dim": (32, 64, 128),
        "topk": (0, 512, 1024, 2048),
        **CacheOperator.choices,
    }
    # DeepSeek V3: 128 heads, of which 16 on each of 8 GPUs (MLA0, MLA1); V3.2 selects 2048 keys (MLA5),
    # which serving engines keep in pages of 64 (MLA6)
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "MLA0": {"batch": 64, "heads": 16, "kv_len": 4096},
        "MLA1": {"batch": 128, "heads": 16, "kv_len": 8192, "page": 64, "lengths": "mixed"},
        "MLA2": {"batch": 128, "heads": 128, "kv_len": 1024},
        "MLA3": {"batch": 128, "heads": 128, "kv_len": 8192, "page": 64},
        "MLA4": {"batch": 64, "heads": 128, "kv_len": 32768},
        "MLA5": {"batch": 64, "heads": 128, "kv_len": 32768, "topk": 2048},
        "MLA6": {"batch": 64, "heads": 128, "kv_len": 32768, "topk": 2048, "page": 64},
    }
    default_names = ("MLA0", "MLA3", "MLA5")

    def has_lengths(self, attrs: Mapping[str, Value]) -> bool:
        return not self.attribute(attrs, "topk") and super().has_lengths(attrs)

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        width, rows = Plus("dim", int(attrs["rope_dim"])), ("batch", "q_len", "heads")
        pool: tuple[Axis, ...] = ("pages", "page" if attrs["page"] else "kv_len", 1, width)
        indices: Axes = {"Indices": ("batch", "q_len", "topk")} if attrs["topk"] else {}
        lse: Axes = {"LSE": rows} if attrs["lse"] else {}
        inputs = {"Q": (*rows, width), "KV": pool, **self.index_axes(attrs), **indices}
        return {**inputs, "O": (*rows, "dim"), **lse}

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        """Also positions of selected keys that an item does not have, and the pages of selected keys only."""
        import torch

        if "Indices" not in inputs:
            return super().index_fault(workload, inputs)
        chosen, last = inputs["Indices"], workload.dims["kv_len"] - 1
        fault = outside("Indices", chosen, -1, last, "a position of a key in its item, or -1")
        if fault or "Table" not in inputs:
            return fault
        table, page = inputs["Table"], int(workload.attrs["page"])
        batch, pages = table.shape
        # a further column stands for no key
        chosen_pages = torch.where(chosen < 0, pages, chosen // page).flatten(1).long()
        used = torch.zeros(batch, pages + 1, dtype=torch.bool, device=table.device)
        return page_fault(workload, table, used.scatter_(1, chosen_pages, True)[:, :-1])

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {**super().tensor_dtypes(dtype, attrs), "Indices": "int32"}

    def validate(self, workload: Workload) -> None:
        batch, heads, _, dim, q_len, _ = workload.dims.values()
        topk, width = int(workload.attrs["topk"]), dim + int(workload.attrs["rope_dim"])
        check_columns(self.name, dim)
        if topk and workload.attrs["lengths"] != "full":
            raise WorkloadError(
                f"mla_decode: lengths={workload.attrs['lengths']} must be full where topk={topk}: give -1 as "
                "the index of a missing key"
            )
        self.check_cache(workload, width, batch * q_len * max(heads * width, topk))

    def contents(self, workload: Workload) -> "Mapping[str, NDArray[Any]]":
        """Also indices: distinct keys in random order; the last eighth of the first query's are missing."""
        import numpy as np

        batch, _, kv_len, _, q_len, _ = workload.dims.values()
        topk, draw = int(workload.attrs["topk"]), np.random.default_rng(8)
        known = super().contents(workload)
        if not topk:
            return known
        indices = np.full((batch, q_len, topk), -1, np.int32)
        for query in indices.reshape(-1, topk):
            chosen = draw.permutation(kv_len)[:topk]
            query[: len(chosen)] = chosen
        indices[0, 0, topk - topk // 8 :] = -1
        return {**known, "Indices": indices}

    def attention(
        self, workload: Workload, inputs: Tensors, squared: bool
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """In float32, query by query."""
        import torch

        batch, heads, _, dim, q_len, _ = workload.dims.values()
        q, least = inputs["Q"], torch.finfo(inputs["KV"].dtype).tiny
        out = torch.empty(batch, q_len, heads, dim, device=q.device)
        lse, hidden = torch.empty_like(out[..., 0]), self.hidden(workload, inputs)
        scale = softmax_scale(workload.attrs, q.shape[-1])
        with exact_products():
            for item in range(batch):
                kv = self.tokens(workload, inputs, "KV", slice(item, item + 1))[0, :, 0].float()
                for t in range(q_len):
                    keys, unseen = kv, hidden[item, t]
                    if workload.attrs["topk"]:
                        chosen = inputs["Indices"][item, t]
                        keys, unseen = kv[chosen.clamp(min=0)], chosen < 0
                    scores = q[item, t].float() @ keys.T * scale
                    out[item, t], lse[item, t] = weighted(
                        scores, unseen, keys[:, :dim], least if squared else None
                    )
        return out, lse

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """scaled_dot_product_attention, and two batched products, of an item's heads as queries of one head.

        Pages, and the keys of `Indices`, are gathered in the call; their places are computed before it.
        FlashInfer and FlashMLA, if installed, read tables.
        """
        import torch

        batch, heads, _, dim, q_len, _ = workload.dims.values()
        topk, scale = int(workload.attrs["topk"]), softmax_scale(workload.attrs, inputs["Q"].shape[-1])
        if topk:  # each query has its own keys
            queries, unseen = inputs["Q"].flatten(0, 1), (inputs["Indices"] < 0).view(-1, 1, topk)
            places = chosen_places(workload, inputs).clamp(min=0)
        else:
            queries = inputs["Q"].flatten(1, 2)
            unseen = self.hidden(workload, inputs).repeat_interleave(heads, 1)
        mask = ~unseen if bool(unseen.any()) else None

        def keys() -> "torch.Tensor":
            if topk:
                return inputs["KV"].flatten(0, 2)[places]
            return self.tokens(workload, inputs, "KV", slice(None))[:, :, 0]

        def fused() -> object:
            kv = keys()[:, None]
            attention = torch.nn.functional.scaled_dot_product_attention
            wide = None if mask is None else mask[:, None]
            out = attention(queries[:, None], kv, kv[..., :dim], attn_mask=wide, scale=scale)
            return out.view(batch, q_len, heads, dim)

        def products() -> object:
            kv = keys()
            scores = queries @ kv.transpose(1, 2) * scale
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            return (scores.softmax(-1) @ kv[..., :dim]).view(batch, q_len, heads, dim)

        packages = {
            "FlashInfer": lambda: flashinfer_latent(workload, inputs, scale),
            "FlashMLA": lambda: flash_mla(workload, inputs, scale),
        }
        return {
            "torch SDPA": fused,
            "torch (two products)": products,
            **of_packages(queries, packages),
        }

    def visible_pairs(self, workload: Workload) -> int:
        if not workload.attrs["topk"]:
            return super().visible_pairs(workload)
        return int((self.contents(workload)["Indices"] >= 0).sum())

    def flops(self, workload: Workload) -> int:
        """A product over dim + rope_dim columns and one over dim, for each head, query and visible key."""
        heads, dim = workload.dims["heads"], workload.dims["dim"]
        return 2 * heads * (2 * dim + int(workload.attrs["rope_dim"])) * self.visible_pairs(workload)

    def min_bytes(self, workload: Workload) -> int:
        """Keys within the items' lengths, or those that a query of the item selects, are read once."""
        import numpy as np

        batch, heads, _, dim, q_len, _ = workload.dims.values()
        rows, width = batch * q_len * heads, dim + int(workload.attrs["rope_dim"])
        keys = sum(self.lengths(workload))
        if workload.attrs["topk"]:
            chosen = self.contents(workload)["Indices"]
            keys = sum(len(np.unique(item[item >= 0])) for item in chosen)
        logarithms = 4 * rows if workload.attrs["lse"] else 0
        elements = rows * (width + dim) + keys * width
        return elements * self.element_bytes(workload) + logarithms + self.index_bytes(workload)


OPERATOR = MlaDecode()


class MlaDecodeGpu(CacheTemplate):
    """A block has rows of heads and a part of their keys, in tiles that serve as keys and as values.

    Scores are computed once, by all warps, and weights pass through shared memory, so that warps may divide
    the columns of the output: 64 rows of 512 sums fill the registers of two warpgroups. Other schedules give
    groups of warps roles of their own (`_latent_roles`).

    Attributes:
        rotated_apart: whether the rotated columns of queries and keys are in tensors of their own, which
            `parts` takes as QRope and KRope.
    """

    operator: MlaDecode = OPERATOR
    name = "mla_decode"
    rotated_apart: ClassVar[bool] = False
    static_reasons: ClassVar[Mapping[str, str]] = {
        "heads": "the heads fill the rows of a tile",
        "dim": "a block keeps whole rows of dim elements in registers",
        **CacheTemplate.static_reasons,
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """64 rows of two warpgroups (16 for few heads), and parts enough for two blocks of each core.

        Where there is a schedule with roles, three warpgroups, and parts enough for most cores.
        """
        space = self.space(workload, target)
        few = workload.dims["heads"] <= 32 or target.kind == "hip"
        rows = workload.dims["heads"] * (1 if workload.attrs["topk"] else workload.dims["q_len"])
        items = workload.dims["batch"] * (workload.dims["q_len"] if workload.attrs["topk"] else 1)
        blocks = items * -(-rows // 64)
        cores = target.int("core.count")

        def parts(enough: float) -> int:
            return next((s for s in SPLITS if s * blocks >= enough), 8)

        wanted = Config(
            {
                "block_m": 16 if few else 64,
                "block_n": 32 if target.kind == "hip" else 64,
                "num_stages": 1 if target.kind == "hip" else 2,
                "threads": 128 if few else 256,
                "split_k": parts(2 * cores),
                "policy": "full_row",
                "gather": "by_row" if workload.attrs["topk"] else "by_page",
            }
        )
        roles = {**search_space.ROLES, "split_k": parts(0.9 * cores), "schedule": "overlapped"}
        overlapped = Config({**wanted, **roles})
        return overlapped if overlapped in space else space.closest(wanted)

    def parts(
        self,
        workload: Workload,
        config: Config,
        *,
        in_parts: bool,
        end: Callable[[Any, Any], Any] | None = None,
        natural: bool = True,
    ) -> Callable[[Mapping[str, Any]], Any]:
        import tilelang.language as T  # noqa: N812

        batch, heads, kv_len, dim, q_len, _ = workload.dims.values()
        dtype, accumulator, rope_dim = workload.dtype, "float32", int(workload.attrs["rope_dim"])
        block_m, block_n, split_k = config.int("block_m"), config.int("block_n"), config.int("split_k")
        num_stages, threads = config.int("num_stages"), config.int("threads")
        topk, page = int(workload.attrs["topk"]), int(workload.attrs["page"])
        has_lengths, has_lse = self.operator.has_lengths(workload.attrs), bool(workload.attrs["lse"])

        width = dim + rope_dim
        # a block has heads of all queries of an item, which share the keys, or of one query with its own
        alone, sharing = (q_len, 1) if topk else (1, q_len)
        rows = sharing * heads
        row_tiles = -(-rows // block_m)
        keys = topk or kv_len
        even = not has_lengths and keys % (block_n * split_k) == 0
        masked = not even or (q_len > 1 and not topk)
        scale = softmax_scale(workload.attrs, width) * math.log2(math.e)  # exp2 instead of exp
        policy = {"full_row": T.GemmWarpPolicy.FullRow, "full_col": T.GemmWarpPolicy.FullCol}[
            config.str("policy")
        ]
        shares_rows = config["policy"] == "full_col" or threads // 32 * 16 > block_m
        update = online_softmax(block_m, block_n, scale, from_finite=True, shares_rows=shares_rows)
        divide = normalise(block_m, dim, scale)
        by_row = config["gather"] == "by_row"
        load_latent = load_keys(block_n, dim, page, by_row)
        rotated_first = 0 if self.rotated_apart else dim
        load_rope = load_keys(block_n, rope_dim, page, by_row, first_column=rotated_first)
        seen_end = end or (lambda length, query: length - (sharing - 1) + query)
        unit = math.log(2) if natural else 1  # of logarithms to base 2

        schedule = config.str("schedule", "serial")

        def within(position: Any) -> Any:  # the last steps of an uneven division have no indices
            return position if even else T.min(position, topk - 1)

        def selected_key(tensors: Any, item: Any, query: Any, position: Any, column: Any) -> Any:
            key = T.max(tensors["Indices"][item, query, within(position)], 0)
            at, row = (tensors["Table"][item, key // page], key % page) if page else (item, key)
            return tensors["KV"][at, row, 0, column]

        @T.macro
        def hide(scores, indices, item, query, first_row, length, first):  # type: ignore[no-untyped-def]
            if topk:
                for i, j in T.Parallel(block_m, block_n):
                    seen = indices[item, query, within(first + j)] >= 0
                    scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity(accumulator))
            if masked:  # noqa: SIM102
                if first + block_n > length - (sharing - 1):
                    for i, j in T.Parallel(block_m, block_n):
                        token = T.min((first_row + i) // heads, sharing - 1)
                        seen = first + j < seen_end(length, token)
                        scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity(accumulator))

        @T.macro
        def write(o_sum, parts, out, split, item, query, first_row, first, columns):  # type: ignore[no-untyped-def]
            for i, j in T.Parallel(block_m, columns):
                row = first_row + i
                if row < rows:
                    if in_parts:
                        parts[split, item, query + row // heads, row % heads, first + j] = o_sum[i, j]
                    else:
                        out[item, query + row // heads, row % heads, first + j] = o_sum[i, j]

        @T.macro
        def keep(row_max, part_lse, lse, split, item, query, first_row):  # type: ignore[no-untyped-def]
            for i in T.Parallel(block_m):
                row = first_row + i
                if row < rows:
                    if in_parts:
                        part_lse[split, item, query + row // heads, row % heads] = row_max[i]
                    elif has_lse:
                        lse[item, query + row // heads, row % heads] = row_max[i] * unit

        def element(queries: Any, where: Any, i: Any, j: Any) -> Any:
            item, query, first_row = where[:3]
            row = first_row + i
            return T.if_then_else(
                row < rows, queries[item, query + row // heads, row % heads, j], T.cast(0, dtype)
            )

        @T.macro
        def serial(tensors, tile, split, item):  # type: ignore[no-untyped-def]
            query, first_row = tile // row_tiles, tile % row_tiles * block_m
            q_tile = T.alloc_shared((block_m, dim), dtype)
            q_rope = T.alloc_shared((block_m, rope_dim), dtype)
            kv_tile = T.alloc_shared((block_n, dim), dtype)
            k_rope = T.alloc_shared((block_n, rope_dim), dtype)
            weights = T.alloc_shared((block_m, block_n), dtype)
            scores = T.alloc_fragment((block_m, block_n), accumulator)
            o_sum = T.alloc_fragment((block_m, dim), accumulator)
            row_max = T.alloc_fragment((block_m,), accumulator)
            old_max = T.alloc_fragment((block_m,), accumulator)
            rescale = T.alloc_fragment((block_m,), accumulator)
            tile_sum = T.alloc_fragment((block_m,), accumulator)
            row_sum = T.alloc_fragment((block_m,), accumulator)

            for i, j in T.Parallel(block_m, dim):
                q_tile[i, j] = element(tensors["Q"], (item, query, first_row), i, j)
            for i, j in T.Parallel(block_m, rope_dim):
                q_rope[i, j] = element(tensors["QRope"], (item, query, first_row), i, rotated_first + j)
            T.fill(o_sum, 0)
            T.fill(row_sum, 0)
            T.fill(row_max, LOWEST)

            length = tensors["Lengths"][item] if has_lengths else keys
            steps = T.ceildiv(length, block_n)
            part = T.ceildiv(steps, split_k)
            # of known lengths, the last parts may have steps without keys: pipelines of cp.async need a
            # number of steps that is the same for all blocks
            trips = T.max(T.min(part, steps - split * part), 0) if has_lengths else part
            # pages of steps that a pipeline looks ahead at are clamped to those of the item
            last = T.max(T.ceildiv(length, page) - 1, 0) if page and not topk else 0
            for ko in T.Pipelined(trips, num_stages=num_stages):
                first = (split * part + ko) * block_n
                if topk:
                    for i, j in T.Parallel(block_n, dim):
                        kv_tile[i, j] = selected_key(tensors, item, query, first + i, j)
                    for i, j in T.Parallel(block_n, rope_dim):
                        k_rope[i, j] = selected_key(tensors, item, query, first + i, dim + j)
                else:
                    load_latent(tensors["KV"], kv_tile, tensors["Table"], item, 0, first, last)
                    load_rope(tensors["KRope"], k_rope, tensors["Table"], item, 0, first, last)
                T.gemm(q_tile, kv_tile, scores, transpose_B=True, policy=policy, clear_accum=True)
                T.gemm(q_rope, k_rope, scores, transpose_B=True, policy=policy)
                hide(scores, tensors["Indices"], item, query, first_row, length, first)
                update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                T.copy(scores, weights)
                for i, j in T.Parallel(block_m, dim):
                    o_sum[i, j] *= rescale[i]
                T.gemm(weights, kv_tile, o_sum, policy=policy)

            divide(o_sum, row_max, row_sum)
            write(o_sum, tensors["PartO"], tensors["O"], split, item, query, first_row, 0, dim)
            keep(row_max, tensors["PartLSE"], tensors["LSE"], split, item, query, first_row)

        def selected(tensors: Any, where: Any, position: Any) -> Any:
            # roles look ahead, also beyond the last key
            return T.max(tensors["Indices"][where[0], where[1], T.min(position, topk - 1)], 0)

        def hidden(tensors: Any, where: Any, scores: Any, first: Any) -> Any:
            item, query, first_row, _, length = where
            return hide(scores, tensors["Indices"], item, query, first_row, length, first)

        def written(tensors: Any, where: Any, o_sum: Any, first: int, columns: int) -> Any:
            item, query, first_row, split, _ = where
            return write(o_sum, tensors["PartO"], tensors["O"], split, item, query, first_row, first, columns)

        def kept(tensors: Any, where: Any, row_max: Any) -> Any:
            item, query, first_row, split, _ = where
            return keep(row_max, tensors["PartLSE"], tensors["LSE"], split, item, query, first_row)

        roles = LatentRoles(dim, dtype, page, scale, schedule == "paired", topk > 0, rotated_first)
        attention: Any = (
            None if schedule == "serial" else roles.macro(element, selected, hidden, written, kept)
        )

        @T.macro
        def with_roles(tensors, tile, split, item):  # type: ignore[no-untyped-def]
            query, first_row = tile // row_tiles, tile % row_tiles * block_m
            length = tensors["Lengths"][item] if has_lengths else keys
            steps = T.ceildiv(length, block_n)
            part = T.ceildiv(steps, split_k)
            trips = T.max(T.min(part, steps - split * part), 0)
            last = T.max(T.ceildiv(length, page) - 1, 0) if page and not topk else 0
            where = (item, query, first_row, split, length)
            attention(tensors, where, split * part * block_n, trips, last)

        run = serial if schedule == "serial" else with_roles

        @T.macro
        def launch(tensors):  # type: ignore[no-untyped-def]
            with T.Kernel(
                alone * row_tiles,
                split_k,
                batch,
                threads=threads,
                cluster_dims=2 if schedule == "paired" else None,
            ) as (tile, split, item):
                run(tensors, tile, split, item)

        names = (
            "Q", "QRope", "KV", "KRope", "Table", "Lengths", "Indices", "O", "LSE", "PartO", "PartLSE",
        )  # fmt: skip

        def run_on(tensors: Mapping[str, Any]) -> Any:
            found = {"QRope": tensors["Q"], "KRope": tensors["KV"], **tensors}
            return launch({name: found.get(name) for name in names})

        return run_on

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, kv_len, dim, q_len, pages = workload.dims.values()
        dtype, accumulator, split_k = workload.dtype, "float32", config.int("split_k")
        topk, page = int(workload.attrs["topk"]), int(workload.attrs["page"])
        has_lengths, has_lse = self.operator.has_lengths(workload.attrs), bool(workload.attrs["lse"])
        width = dim + int(workload.attrs["rope_dim"])
        attend = self.parts(workload, config, in_parts=split_k > 1)
        combine_parts = combination(split_k, batch, q_len, heads, dim)

        @T.prim_func
        def mla_decode(  # type: ignore[no-untyped-def]
            Q: T.Tensor((batch, q_len, heads, width), dtype),  # type: ignore[valid-type]  # noqa: N803
            KV: T.Tensor((pages, page or kv_len, 1, width), dtype),  # type: ignore[valid-type]  # noqa: N803
            Table: tensor_if(page > 0, (batch, kv_len // (page or 1)), "int32"),  # type: ignore[valid-type]  # noqa: N803
            Lengths: tensor_if(has_lengths, (batch,), "int32"),  # type: ignore[valid-type]  # noqa: N803
            Indices: tensor_if(topk > 0, (batch, q_len, topk), "int32"),  # type: ignore[valid-type]  # noqa: N803
            O: T.Tensor((batch, q_len, heads, dim), dtype),  # type: ignore[valid-type]  # noqa: E741, N803
            LSE: tensor_if(has_lse, (batch, q_len, heads), accumulator),  # type: ignore[valid-type]  # noqa: N803
            PartO: tensor_if(split_k > 1, (split_k, batch, q_len, heads, dim), accumulator),  # type: ignore[valid-type]  # noqa: N803
            PartLSE: tensor_if(split_k > 1, (split_k, batch, q_len, heads), accumulator),  # type: ignore[valid-type]  # noqa: N803
        ):
            tensors = {
                "Q": Q, "KV": KV, "Table": Table, "Lengths": Lengths, "Indices": Indices, "O": O, "LSE": LSE,
                "PartO": PartO, "PartLSE": PartLSE,
            }  # fmt: skip
            attend(tensors)
            if split_k > 1:
                combine_parts(PartO, PartLSE, O, LSE if has_lse else None)

        return mla_decode


TEMPLATES = (MlaDecodeGpu(),)
