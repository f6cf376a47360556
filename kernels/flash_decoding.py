"""flash_decoding: attention of one or a few new queries over the keys and values of a cache.

O[b, t, h] = softmax(scale Q[b, t, h] K[b, :, g]^T) V[b, :, g], where g is the kv head of head h.

The cache is that of `_kv_cache`. Keys and values that no query sees must be finite: weights of 0 multiply
them. LSE is the natural logarithm of the sum of weights.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Axis
from ..problem.operator import Tensors
from ..problem.space import Config, SearchSpace, Value
from ..problem.workload import Workload
from ..search_spaces import flash_decoding as search_space
from ..search_spaces.split_kv import SPLITS
from ..target.spec import Target
from ._cache_vendor import flashinfer_decoding
from ._exact_products import exact_products
from ._kv_cache import CacheOperator, CacheTemplate, weighted
from ._online_softmax import online_softmax
from ._optional_tensors import tensor_if
from ._softmax_scale import softmax_scale
from ._split_kv import LOWEST, combination, load_keys, normalise
from ._vendor_calls import of_packages

if TYPE_CHECKING:
    import torch


def check_heads(operator: str, heads: int, kv_heads: int, head_dim: int) -> None:
    """Raise `WorkloadError` for heads that do not share kv heads evenly, or are too wide for a block."""
    if heads % kv_heads:
        raise WorkloadError(
            f"{operator}: heads={heads} must be a multiple of kv_heads={kv_heads}; nearest legal heads: "
            f"{max(1, heads // kv_heads) * kv_heads}"
        )
    if head_dim % 16 or head_dim > 256:
        raise WorkloadError(
            f"{operator}: head_dim={head_dim} must be a multiple of 16 and at most 256: a matrix instruction "
            "takes 16 elements, and a block keeps whole rows in registers"
        )


class FlashDecoding(CacheOperator):
    name = "flash_decoding"
    columns = "head_dim"
    dims = ("batch", "heads", "kv_heads", "kv_len", "head_dim", "q_len", "pages")
    # heads of Llama 3 (8B: FD0, FD1, FD4, FD5; 70B: FD2) and gpt-oss (FD3); FD4 checks 4 drafted tokens
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "FD0": {"batch": 64, "heads": 32, "kv_heads": 8, "kv_len": 8192, "head_dim": 128},
        "FD1": {"batch": 16, "heads": 32, "kv_heads": 8, "kv_len": 32768, "head_dim": 128},
        "FD2": {"batch": 16, "heads": 64, "kv_heads": 8, "kv_len": 8192, "head_dim": 128, "lse": True},
        "FD3": {"batch": 64, "heads": 64, "kv_heads": 8, "kv_len": 8192, "head_dim": 64, "page": 64},
        "FD4": {"batch": 32, "heads": 32, "kv_heads": 8, "kv_len": 4096, "head_dim": 128, "q_len": 4},
        "FD5": {
            "batch": 64, "heads": 32, "kv_heads": 8, "kv_len": 8192, "head_dim": 128, "page": 16,
            "lengths": "mixed",
        },
    }  # fmt: skip
    default_names = ("FD0", "FD1", "FD5")

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        rows: tuple[Axis, ...] = ("batch", "q_len", "heads")
        pool: tuple[Axis, ...] = ("pages", "page" if attrs["page"] else "kv_len", "kv_heads", "head_dim")
        lse: Axes = {"LSE": rows} if attrs["lse"] else {}
        inputs = {"Q": (*rows, "head_dim"), "K": pool, "V": pool, **self.index_axes(attrs)}
        return {**inputs, "O": (*rows, "head_dim"), **lse}

    def validate(self, workload: Workload) -> None:
        batch, heads, kv_heads, _, head_dim, q_len, _ = workload.dims.values()
        check_heads(self.name, heads, kv_heads, head_dim)
        self.check_cache(workload, kv_heads * head_dim, batch * q_len * heads * head_dim)

    def attention(
        self, workload: Workload, inputs: Tensors, squared: bool
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """In float32, by items of the batch."""
        import torch

        batch, _, kv_heads, _, head_dim, q_len, _ = workload.dims.values()
        least, hidden = torch.finfo(inputs["V"].dtype).tiny, self.hidden(workload, inputs)
        q = inputs["Q"].float().view(batch, q_len, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        out = torch.empty_like(inputs["Q"], dtype=torch.float32)
        scale = softmax_scale(workload.attrs, head_dim)
        lse = torch.empty_like(out[..., 0])
        with exact_products():
            for item in range(batch):
                k, v = (
                    self.tokens(workload, inputs, name, slice(item, item + 1))[0].float().transpose(0, 1)
                    for name in ("K", "V")
                )
                scores = q[item] @ k[:, None].transpose(2, 3) * scale
                found, sums = weighted(scores, hidden[item], v[:, None], least if squared else None)
                out[item] = found.permute(2, 0, 1, 3).flatten(1, 2)
                lse[item] = sums.permute(2, 0, 1).flatten(1)
        return out, lse

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """scaled_dot_product_attention, and two batched products, of queries that share a kv head.

        Pages are gathered in the call, since neither reads a table. FlashInfer, if installed, reads tables.
        """
        import torch

        batch, heads, kv_heads, kv_len, head_dim, q_len, _ = workload.dims.values()
        group, masked = heads // kv_heads, q_len > 1 or workload.attrs["lengths"] == "mixed"
        mask = ~self.hidden(workload, inputs)[:, None] if masked else None
        queries, scale = inputs["Q"].transpose(1, 2), softmax_scale(workload.attrs, head_dim)

        def cache(name: str) -> "torch.Tensor":
            return self.tokens(workload, inputs, name, slice(None)).transpose(1, 2)

        def fused() -> object:
            attention = torch.nn.functional.scaled_dot_product_attention
            options: dict[str, Any] = {"attn_mask": mask, "enable_gqa": True, "scale": scale}
            return attention(queries, cache("K"), cache("V"), **options).transpose(1, 2)

        def products() -> object:
            packed = queries.reshape(batch, kv_heads, group * q_len, head_dim)
            scores = packed @ cache("K").transpose(2, 3) * scale
            if mask is not None:
                scores = scores.view(batch, kv_heads, group, q_len, kv_len)
                scores = scores.masked_fill(~mask[:, None], -torch.inf)
            weights = scores.softmax(-1).view(batch, kv_heads, group * q_len, kv_len)
            return (weights @ cache("V")).view(batch, heads, q_len, head_dim).transpose(1, 2)

        packages = {"FlashInfer": lambda: flashinfer_decoding(workload, inputs, scale)}
        return {
            "torch SDPA": fused,
            "torch (two products)": products,
            **of_packages(queries, packages),
        }

    def flops(self, workload: Workload) -> int:
        """Two products of 2 head_dim operations for each pair of a query and a visible key."""
        return 4 * workload.dims["heads"] * workload.dims["head_dim"] * self.visible_pairs(workload)

    def min_bytes(self, workload: Workload) -> int:
        """Keys and values within the items' lengths are read once."""
        batch, heads, kv_heads, _, head_dim, q_len, _ = workload.dims.values()
        rows = batch * q_len * heads
        elements = 2 * (rows + sum(self.lengths(workload)) * kv_heads) * head_dim
        logarithms = 4 * rows if workload.attrs["lse"] else 0
        return elements * self.element_bytes(workload) + logarithms + self.index_bytes(workload)


OPERATOR = FlashDecoding()


class FlashDecodingGpu(CacheTemplate):
    """A block has all queries of one kv head and a part of its keys; a second kernel combines the parts."""

    operator: FlashDecoding = OPERATOR
    name = "flash_decoding"
    static_reasons: ClassVar[Mapping[str, str]] = {
        "heads": "the heads of a kv head fill the rows of a tile",
        "kv_heads": "the heads of a kv head fill the rows of a tile",
        "head_dim": "a block keeps whole rows of head_dim elements in registers",
        **CacheTemplate.static_reasons,
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """64 keys a step, weights in registers, and parts enough for two blocks of each core."""
        space = self.space(workload, target)
        batch, kv_heads = workload.dims["batch"], workload.dims["kv_heads"]
        enough = 2 * target.int("core.count")
        split_k = next((s for s in SPLITS if s * batch * kv_heads >= enough), 8)
        wanted = Config(
            {
                "block_m": 64,
                "block_n": 64,
                "num_stages": {"hip": 1}.get(target.kind, 3 if target.arch.startswith("sm_90") else 2),
                "threads": 128,
                "split_k": split_k,
                "weights": "registers",
                "gather": "by_page",
            }
        )
        return space.closest(wanted)

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

        batch, heads, kv_heads, kv_len, head_dim, q_len, _ = workload.dims.values()
        dtype, accumulator = workload.dtype, "float32"
        block_m, block_n, split_k = config.int("block_m"), config.int("block_n"), config.int("split_k")
        num_stages, threads = config.int("num_stages"), config.int("threads")
        in_registers, page = config["weights"] == "registers", int(workload.attrs["page"])
        has_lengths, has_lse = self.operator.has_lengths(workload.attrs), bool(workload.attrs["lse"])

        group = heads // kv_heads
        rows = group * q_len  # of one kv head
        row_tiles = -(-rows // block_m)
        even = not has_lengths and kv_len % (block_n * split_k) == 0
        masked = q_len > 1 or not even
        scale = softmax_scale(workload.attrs, head_dim) * math.log2(math.e)  # exp2 instead of exp
        # weights in registers: each warp has whole rows; else warps divide the columns
        policy = T.GemmWarpPolicy.FullRow if in_registers else T.GemmWarpPolicy.FullCol
        update = online_softmax(block_m, block_n, scale, from_finite=True, shares_rows=not in_registers)
        divide = normalise(block_m, head_dim, scale)
        load = load_keys(block_n, head_dim, page, by_row=config["gather"] == "by_row")

        seen_end = end or (lambda length, query: length - (q_len - 1) + query)
        unit = math.log(2) if natural else 1  # of logarithms to base 2

        @T.macro
        def launch(Q, K, V, Table, Lengths, O, LSE, PartO, PartLSE):  # type: ignore[no-untyped-def]  # noqa: E741, N803
            with T.Kernel(kv_heads * row_tiles, split_k, batch, threads=threads) as (tile, split, item):
                kv_head, first_row = tile // row_tiles, tile % row_tiles * block_m
                q_tile = T.alloc_shared((block_m, head_dim), dtype)
                k_tile = T.alloc_shared((block_n, head_dim), dtype)
                v_tile = T.alloc_shared((block_n, head_dim), dtype)
                scores = T.alloc_fragment((block_m, block_n), accumulator)
                if in_registers:
                    weights = T.alloc_fragment((block_m, block_n), dtype)
                else:
                    weights = T.alloc_shared((block_m, block_n), dtype)
                o_sum = T.alloc_fragment((block_m, head_dim), accumulator)
                row_max = T.alloc_fragment((block_m,), accumulator)
                old_max = T.alloc_fragment((block_m,), accumulator)
                rescale = T.alloc_fragment((block_m,), accumulator)
                tile_sum = T.alloc_fragment((block_m,), accumulator)
                row_sum = T.alloc_fragment((block_m,), accumulator)

                for i, j in T.Parallel(block_m, head_dim):
                    row = first_row + i
                    q_tile[i, j] = T.if_then_else(
                        row < rows,
                        Q[item, row // group, kv_head * group + row % group, j],
                        T.cast(0, dtype),
                    )
                T.fill(o_sum, 0)
                T.fill(row_sum, 0)
                T.fill(row_max, LOWEST)

                length = Lengths[item] if has_lengths else kv_len
                steps = T.ceildiv(length, block_n)
                part = T.ceildiv(steps, split_k)
                # of known lengths, the last parts may have steps without keys: pipelines of cp.async need a
                # number of steps that is the same for all blocks
                trips = T.max(T.min(part, steps - split * part), 0) if has_lengths else part
                # pages of steps that a pipeline looks ahead at are clamped to those of the item
                last = T.max(T.ceildiv(length, page) - 1, 0) if page else 0
                for ko in T.Pipelined(trips, num_stages=num_stages):
                    first = (split * part + ko) * block_n
                    load(K, k_tile, Table, item, kv_head, first, last)
                    T.gemm(q_tile, k_tile, scores, transpose_B=True, policy=policy, clear_accum=True)
                    if masked:  # noqa: SIM102
                        if first + block_n > length - (q_len - 1):
                            for i, j in T.Parallel(block_m, block_n):
                                query = T.min((first_row + i) // group, q_len - 1)
                                seen = first + j < seen_end(length, query)
                                scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity(accumulator))
                    update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                    T.copy(scores, weights)
                    for i, j in T.Parallel(block_m, head_dim):
                        o_sum[i, j] *= rescale[i]
                    load(V, v_tile, Table, item, kv_head, first, last)
                    T.gemm(weights, v_tile, o_sum, policy=policy)

                divide(o_sum, row_max, row_sum)
                for i, j in T.Parallel(block_m, head_dim):
                    row = first_row + i
                    if row < rows:
                        if in_parts:
                            PartO[split, item, row // group, kv_head * group + row % group, j] = o_sum[i, j]
                        else:
                            O[item, row // group, kv_head * group + row % group, j] = o_sum[i, j]
                for i in T.Parallel(block_m):
                    row = first_row + i
                    if row < rows:
                        if in_parts:
                            PartLSE[split, item, row // group, kv_head * group + row % group] = row_max[i]
                        elif has_lse:
                            LSE[item, row // group, kv_head * group + row % group] = row_max[i] * unit

        names = ("Q", "K", "V", "Table", "Lengths", "O", "LSE", "PartO", "PartLSE")
        return lambda tensors: launch(*(tensors.get(name) for name in names))

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, kv_heads, kv_len, head_dim, q_len, pages = workload.dims.values()
        dtype, split_k, page = workload.dtype, config.int("split_k"), int(workload.attrs["page"])
        has_lengths, has_lse = self.operator.has_lengths(workload.attrs), bool(workload.attrs["lse"])
        attend = self.parts(workload, config, in_parts=split_k > 1)
        combine_parts = combination(split_k, batch, q_len, heads, head_dim)

        pool = (pages, page or kv_len, kv_heads, head_dim)

        @T.prim_func
        def flash_decoding(  # type: ignore[no-untyped-def]
            Q: T.Tensor((batch, q_len, heads, head_dim), dtype),  # type: ignore[valid-type]  # noqa: N803
            K: T.Tensor(pool, dtype),  # type: ignore[valid-type]  # noqa: N803
            V: T.Tensor(pool, dtype),  # type: ignore[valid-type]  # noqa: N803
            Table: tensor_if(page > 0, (batch, kv_len // (page or 1)), "int32"),  # type: ignore[valid-type]  # noqa: N803
            Lengths: tensor_if(has_lengths, (batch,), "int32"),  # type: ignore[valid-type]  # noqa: N803
            O: T.Tensor((batch, q_len, heads, head_dim), dtype),  # type: ignore[valid-type]  # noqa: E741, N803
            LSE: tensor_if(has_lse, (batch, q_len, heads), "float32"),  # type: ignore[valid-type]  # noqa: N803
            PartO: tensor_if(split_k > 1, (split_k, batch, q_len, heads, head_dim), "float32"),  # type: ignore[valid-type]  # noqa: N803
            PartLSE: tensor_if(split_k > 1, (split_k, batch, q_len, heads), "float32"),  # type: ignore[valid-type]  # noqa: N803
        ):
            attend(
                {
                    "Q": Q, "K": K, "V": V, "Table": Table, "Lengths": Lengths, "O": O, "LSE": LSE,
                    "PartO": PartO, "PartLSE": PartLSE,
                }
            )  # fmt: skip
            if split_k > 1:
                combine_parts(PartO, PartLSE, O, LSE if has_lse else None)

        return flash_decoding


TEMPLATES = (FlashDecodingGpu(),)
