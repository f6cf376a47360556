"""native_sparse_attention: each query attends to the blocks of keys that were selected for it.

This is the branch for selected blocks of native sparse attention. For each query and head of keys and values
`indices` lists `topk` blocks of `block` keys each, in any order and none twice; -1 stands for no block. The
`group` query heads of a head of keys share the list. A query sees no later key. Where it sees no key at all,
its output is 0. Scores are multiplied by `scale`, whose 0 stands for 1/sqrt(head_dim). Tensors have the
layout (batch, seq_len, heads, head_dim).

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Parts
from ..problem.index_values import outside
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import native_sparse_attention as search_space
from ..target.spec import Target
from ._attention_weights import masked_attention
from ._online_softmax import online_softmax
from ._softmax_scale import check_scale, softmax_scale
from ._split_kv import LOWEST, normalise
from ._vendor_calls import of_packages, usable

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

MAX_GRID_AXIS = 65535  # blocks along the second and third axis of a CUDA or HIP grid
DENSE_BYTES = 1 << 28  # torch's dense attention gets a mask of at most this size
GATHERED_KEYS = 1 << 21  # that plain torch has at once
_QUERIES = ("batch", "seq_len", "heads", "head_dim")
_KEYS = ("batch", "seq_len", Parts("heads", "group"), "head_dim")


def _named(batch: int, heads: int, seq_len: int, head_dim: int, **attrs: Value) -> dict[str, Value]:
    return {"batch": batch, "heads": heads, "seq_len": seq_len, "head_dim": head_dim, **attrs}


class NativeSparseAttention(Operator):
    name = "native_sparse_attention"
    dims = ("batch", "heads", "seq_len", "head_dim")
    attrs: ClassVar[Mapping[str, Value]] = {"group": 16, "block": 64, "topk": 16, "scale": 0.0}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "block": (16, 32, 64, 128),
        "topk": (4, 8, 16, 32, 64),
    }
    axes: ClassVar[Axes] = {
        "Q": _QUERIES,
        "K": _KEYS,
        "V": _KEYS,
        "indices": ("batch", "seq_len", Parts("heads", "group"), "topk"),
        "O": _QUERIES,
    }
    # NSA0, NSA1: the heads, blocks and lists of the paper, with keys of 128 columns; NSA2: smaller heads
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "NSA0": _named(1, 64, 8192, 128),
        "NSA1": _named(1, 64, 32768, 128),
        "NSA2": _named(4, 32, 4096, 64, block=32),
    }
    default_names = ("NSA0", "NSA1")

    def validate(self, workload: Workload) -> None:
        dims, attrs = workload.dims, workload.attrs
        group = int(attrs["group"])
        elements = math.prod(dims.values())
        if elements > MAX_DIMENSION:
            raise WorkloadError(
                f"native_sparse_attention: each tensor would have {elements} elements, and the kernels index "
                f"at most {MAX_DIMENSION}; split the batch"
            )
        if max(dims["batch"], dims["heads"]) > MAX_GRID_AXIS:
            raise WorkloadError(
                f"native_sparse_attention: batch={dims['batch']} or heads={dims['heads']} exceeds the "
                f"{MAX_GRID_AXIS} blocks of a grid axis; split it"
            )
        if dims["head_dim"] % 16 or dims["head_dim"] > 256:
            raise WorkloadError(
                f"native_sparse_attention: head_dim={dims['head_dim']} must be a multiple of 16 and at most "
                "256: a matrix instruction takes 16 elements, and a block keeps whole rows in registers"
            )
        if not 1 <= group <= 64 or dims["heads"] % group:
            raise WorkloadError(
                f"native_sparse_attention: group={group} must divide heads={dims['heads']} and lie in 1 .. "
                "64, the rows of a tile: it is the number of query heads that share a list"
            )
        check_scale("native_sparse_attention", attrs)

    def contents(self, workload: Workload) -> "Mapping[str, NDArray[Any]]":
        """The first block, the query's own and the one before, and others spread over those between."""
        batch, heads, seq_len, _ = workload.dims.values()
        group, block, topk = (int(workload.attrs[name]) for name in ("group", "block", "topk"))
        return {"indices": _selected(batch, seq_len, heads // group, block, topk).copy()}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"indices": "int32"}

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        last = (workload.dims["seq_len"] - 1) // int(workload.attrs["block"])
        return outside("indices", inputs["indices"], -1, last, "a block of keys, or -1")

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """Q, K, V ~ N(0, 1), and the lists of `contents`."""
        import torch

        generator, dtype = torch.Generator(device).manual_seed(seed), getattr(torch, workload.dtype)
        batch, seq_len, heads, head_dim = self.outputs(workload)["O"]
        keys = heads // int(workload.attrs["group"])
        tensors = {
            name: torch.randn(
                batch, seq_len, count, head_dim, generator=generator, device=device, dtype=dtype
            )
            for name, count in (("Q", heads), ("K", keys), ("V", keys))
        }
        return {**tensors, "indices": torch.from_numpy(self.contents(workload)["indices"]).to(device)}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Q is 32 times as large: few keys have nearly all weight, and exp of a score may exceed float32."""
        tensors = self.inputs(workload, device, seed)
        tensors["Q"].mul_(32)
        return SecondInputs(tensors)

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        batch, heads, seq_len, head_dim = workload.dims.values()
        return {"O": (batch, seq_len, heads, head_dim)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """Dense attention with a mask in float32 without TF32, by items and panels of queries."""
        return {"O": _attention(workload, inputs, squared=False)}

    def rounding(self, workload: Workload) -> Rounding:
        """Weights are rounded to the dtype before they multiply V; their sum is not."""
        keys = int(workload.attrs["topk"]) * int(workload.attrs["block"])
        return Rounding(min(keys, workload.dims["seq_len"]), inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"O": _attention(workload, inputs, squared=True).sqrt_()}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """PyTorch's flex_attention with the same lists, dense attention with a small mask, gathered products.

        Gathering is part of the call. flash-linear-attention if installed, with groups of 16 heads or more.
        """
        import torch

        batch, _, seq_len, head_dim = workload.dims.values()
        group, scale = int(workload.attrs["group"]), softmax_scale(workload.attrs, head_dim)
        q, k, v = (inputs[name].transpose(1, 2) for name in ("Q", "K", "V"))
        calls: dict[str, Callable[[], object]] = {}
        if q.is_cuda:
            calls["flex_attention"] = _flex(workload, inputs, q, k, v)
        if batch * q.shape[1] * seq_len**2 <= DENSE_BYTES:
            whole = slice(None)
            mask = torch.stack([~_hidden(workload, inputs, item, whole) for item in range(batch)])
            dense, options = torch.nn.functional.scaled_dot_product_attention, {"enable_gqa": True}
            calls["dense attention with a mask"] = lambda: dense(
                q, k, v, attn_mask=mask, scale=scale, **options
            ).transpose(1, 2)
        block, listed = int(workload.attrs["block"]), inputs["indices"].transpose(1, 2)
        within = torch.arange(block, device=q.device)
        heads = torch.arange(k.shape[1], device=q.device)[:, None, None]
        panel = max(1, GATHERED_KEYS // (k.shape[1] * listed.shape[-1] * block))

        def gathered() -> object:
            out = torch.empty_like(q)
            for item in range(batch):
                for start in range(0, seq_len, panel):
                    rows = slice(start, min(start + panel, seq_len))
                    chosen = listed[item, :, rows]
                    keys = (chosen[..., None] * block + within).flatten(2)
                    unseen = (keys < 0) | (keys > torch.arange(seq_len, device=q.device)[rows, None])
                    keys.clamp_(0, seq_len - 1)
                    queries = q[item, :, rows].unflatten(0, (-1, group)).transpose(1, 2)
                    scores = queries @ k[item][heads, keys].transpose(2, 3) * scale
                    weights = scores.masked_fill(unseen[:, :, None], -torch.inf).softmax(-1)
                    found = weights @ v[item][heads, keys]
                    out[item, :, rows] = found.transpose(1, 2).flatten(0, 1)
            return out.transpose(1, 2)

        def triton() -> Callable[[], object]:
            # the branch for selected blocks of its parallel_nsa, which pools all keys in each call
            from fla.ops.nsa.parallel import parallel_nsa_fwd

            given = {name.lower(): inputs[name] for name in ("Q", "K", "V")}
            lists = {"block_indices": inputs["indices"], "block_counts": inputs["indices"].shape[-1]}
            return lambda: parallel_nsa_fwd(**given, **lists, block_size=block, scale=scale)[0]

        calls["torch (gathered keys)"] = gathered
        # the compiler of flex_attention has errors of many types
        found = usable(calls, errors=(Exception,))
        return {**found, **of_packages(q, {"flash-linear-attention": triton})}

    def _pairs(self, workload: Workload) -> int:
        """Pairs of a query and a key that it sees, of one query head of each head of keys."""
        import numpy as np

        listed, block = self.contents(workload)["indices"], int(workload.attrs["block"])
        ends = np.arange(1, workload.dims["seq_len"] + 1)[:, None, None]
        return int(np.where(listed < 0, 0, (ends - listed * block).clip(0, block)).sum(dtype=np.int64))

    def flops(self, workload: Workload) -> int:
        """Two products of 2 head_dim operations for each pair of a query and a key that it sees."""
        return 4 * workload.dims["head_dim"] * int(workload.attrs["group"]) * self._pairs(workload)

    def min_bytes(self, workload: Workload) -> int:
        """Each key is read once: a query sees its own."""
        queries = math.prod(workload.dims.values())
        elements = 2 * queries + 2 * queries // int(workload.attrs["group"])
        return elements * self.element_bytes(workload) + self.contents(workload)["indices"].nbytes

    def max_relative_error(self, workload: Workload) -> float:
        """About three times the error of rounding the weights and the output to the dtype."""
        return {"bfloat16": 8e-3, "float16": 1e-3}[workload.dtype]


@lru_cache(maxsize=4)
def _selected(batch: int, seq_len: int, heads: int, block: int, topk: int) -> "NDArray[Any]":
    """The lists of `NativeSparseAttention.contents`, in rising order, with -1 at the end."""
    import numpy as np

    own = np.arange(seq_len)[:, None, None] // block
    place = np.arange(topk)
    # between the first block and the last two, one block of each of topk - 3 equal parts
    parts, draw = topk - 3, np.random.default_rng(0)
    at = (place - 1 + draw.random((batch, seq_len, heads, topk), dtype=np.float32)) / parts
    chosen = 1 + np.floor(at * (own - 2)).astype(np.int32)
    lowest, highest = (1 + np.ceil((place - 1 + more) * (own - 2) / parts) - more for more in (0, 1))
    chosen = np.where(place == 0, 0, chosen.clip(lowest, highest))
    chosen = np.where(place >= topk - 2, own - (topk - 1 - place), chosen)
    few = np.where(place <= own, place, -1)
    return np.where(own < topk, few, chosen).astype(np.int32)


def _listed(workload: Workload, indices: "torch.Tensor") -> "torch.Tensor":
    """Whether each list (..., topk) has each block of keys; the last column is of missing ones."""
    import torch

    blocks = -(-workload.dims["seq_len"] // int(workload.attrs["block"]))
    seen = torch.zeros(*indices.shape[:-1], blocks + 1, dtype=torch.bool, device=indices.device)
    return seen.scatter_(-1, torch.where(indices < 0, blocks, indices).long(), value=True)


def _hidden(workload: Workload, inputs: Tensors, item: int, rows: slice) -> "torch.Tensor":
    """Which keys the queries of these rows do not see: (heads, rows, keys)."""
    import torch

    block, seen = int(workload.attrs["block"]), _listed(workload, inputs["indices"][item, rows])
    keys = torch.arange(workload.dims["seq_len"], device=seen.device)
    hidden = ~seen.transpose(0, 1)[..., keys // block] | (keys > keys[rows, None])
    return hidden.repeat_interleave(int(workload.attrs["group"]), 0)


def _attention(workload: Workload, inputs: Tensors, squared: bool) -> "torch.Tensor":
    """The output, or the sum of the squares of its terms, in float32."""
    q, k, v = (inputs[name] for name in ("Q", "K", "V"))
    scale = softmax_scale(workload.attrs, q.shape[-1])
    return masked_attention(q, k, v, partial(_hidden, workload, inputs), scale, squared)


def _flex(workload: Workload, inputs: Tensors, q: Any, k: Any, v: Any) -> Callable[[], object]:
    """flex_attention, which looks up whether a query's list has a block, and skips tiles without any."""
    import torch
    from torch.nn.attention import flex_attention as flex

    batch, _, seq_len, head_dim = workload.dims.values()
    group, block = int(workload.attrs["group"]), int(workload.attrs["block"])
    seen = _listed(workload, inputs["indices"]).transpose(1, 2).contiguous()

    def visible(item: Any, head: Any, query: Any, key: Any) -> Any:
        return seen[item, head // group, query, key // block] & (key <= query)

    mask = flex.create_block_mask(visible, batch, q.shape[1], seq_len, seq_len, device=q.device)
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    scale = softmax_scale(workload.attrs, head_dim)
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=group > 1, scale=scale).transpose(1, 2)


OPERATOR = NativeSparseAttention()


class NativeSparseAttentionGpu(KernelTemplate):
    """A block has the heads of one query that share a list, and loops over its blocks of keys."""

    operator = OPERATOR
    name = "native_sparse_attention"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    # exp2 and the final division as single instructions; infinities remain correct
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}
    dynamic_dims = ("batch", "seq_len")
    static_reasons: ClassVar[Mapping[str, str]] = {
        "heads": "it is divided by the number of query heads that share keys",
        "head_dim": "a block keeps whole rows of head_dim elements in registers",
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Few rows, whose columns the warps divide, and copies by threads: several blocks fit on a core."""
        wanted = Config(
            {
                "block_m": 16,
                "block_n": min(64, int(workload.attrs["block"])),
                "num_stages": 1 if target.kind == "hip" else 2,
                "threads": 128,
                "weights": "shared",
                "copies": "threads",
            }
        )
        return self.space(workload, target).closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, seq_len, head_dim = workload.dims.values()
        group, block, topk = (int(workload.attrs[name]) for name in ("group", "block", "topk"))
        block_m, block_n = config.int("block_m"), config.int("block_n")
        num_stages, threads = config.int("num_stages"), config.int("threads")
        in_registers, by_threads = config["weights"] == "registers", config["copies"] == "threads"
        dtype, accumulator, parts = workload.dtype, "float32", block // block_n  # tiles of a block of keys
        scale = softmax_scale(workload.attrs, head_dim) * math.log2(math.e)  # exp2 instead of exp
        # weights in registers: each warp has whole rows; else warps divide the columns
        policy = T.GemmWarpPolicy.FullRow if in_registers else T.GemmWarpPolicy.FullCol
        update = online_softmax(block_m, block_n, scale, from_finite=True, shares_rows=not in_registers)
        divide = normalise(block_m, head_dim, scale)
        shape, kv_shape = (batch, seq_len, heads, head_dim), (batch, seq_len, heads // group, head_dim)

        @T.prim_func
        def native_sparse_attention(  # type: ignore[no-untyped-def]
            Q: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            K: T.Tensor(kv_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            V: T.Tensor(kv_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            indices: T.Tensor((batch, seq_len, heads // group, topk), "int32"),  # type: ignore[valid-type]
            O: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: E741, N803
        ):
            with T.Kernel(seq_len, heads // group, batch, threads=threads) as (query, kv_head, item):
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

                # rows of padding are those of the next heads, or zeros beyond the last one
                head = kv_head * group
                T.copy(Q[item, query, head : head + block_m, 0:head_dim], q_tile, disable_tma=by_threads)
                T.fill(o_sum, 0)
                T.fill(row_sum, 0)
                T.fill(row_max, LOWEST)
                for ko in T.Pipelined(topk * parts, num_stages=num_stages):
                    chosen = indices[item, query, kv_head, ko // parts]
                    key = T.max(chosen, 0) * block + ko % parts * block_n
                    T.copy(K[item, key : key + block_n, kv_head, 0:head_dim], k_tile, disable_tma=by_threads)
                    T.gemm(q_tile, k_tile, scores, transpose_B=True, policy=policy, clear_accum=True)
                    end = T.if_then_else(chosen < 0, 0, query + 1)  # keys from here on are not seen
                    if key + block_n > end:
                        for i, j in T.Parallel(block_m, block_n):
                            scores[i, j] = T.if_then_else(
                                key + j < end, scores[i, j], -T.infinity(accumulator)
                            )
                    update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                    T.copy(scores, weights)
                    for i, j in T.Parallel(block_m, head_dim):
                        o_sum[i, j] *= rescale[i]
                    T.copy(V[item, key : key + block_n, kv_head, 0:head_dim], v_tile, disable_tma=by_threads)
                    T.gemm(weights, v_tile, o_sum, policy=policy)

                divide(o_sum, row_max, row_sum)
                for i, j in T.Parallel(block_m, head_dim):
                    if i < group:
                        O[item, query, head + i, j] = o_sum[i, j]

        return native_sparse_attention


TEMPLATES = (NativeSparseAttentionGpu(),)
