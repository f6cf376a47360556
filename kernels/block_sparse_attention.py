"""block_sparse_attention: attention to some blocks of keys, listed for each block of queries.

A block of queries, `block` long, sees the keys of `counts` blocks, whose numbers are the first ones of its
list in `indices`, in rising order. These are the `kv_num_blocks` and `kv_indices` of PyTorch's BlockMask.
With `causal`, no query sees a later key, and no list has a block beyond the diagonal. `percent` of the blocks
that may be seen are listed, at least one. `group` query heads share a head of keys and values. Scores are
multiplied by `scale`, whose 0 stands for 1/sqrt(head_dim). Tensors have the layout (batch, seq_len, heads,
head_dim).

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
from ..search_spaces import block_sparse_attention as search_space
from ..target.spec import Target
from ._attention_weights import masked_attention
from ._online_softmax import online_softmax
from ._softmax_scale import check_scale, softmax_scale
from ._vendor_calls import usable

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

MAX_GRID_AXIS = 65535  # blocks along the second and third axis of a CUDA or HIP grid
DENSE_BYTES = 1 << 28  # torch's dense attention gets a mask of at most this size
_QUERIES = ("batch", "seq_len", "heads", "head_dim")
_KEYS = ("batch", "seq_len", Parts("heads", "group"), "head_dim")


def _named(heads: int, seq_len: int, head_dim: int, **attrs: Value) -> dict[str, Value]:
    return {"batch": 1, "heads": heads, "seq_len": seq_len, "head_dim": head_dim, **attrs}


class BlockSparseAttention(Operator):
    name = "block_sparse_attention"
    dims = ("batch", "heads", "seq_len", "head_dim")
    attrs: ClassVar[Mapping[str, Value]] = {
        "causal": False,
        "block": 64,
        "percent": 12,
        "group": 1,
        "scale": 0.0,
    }
    later_attrs = ("scale",)
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {"block": (64, 128)}
    axes: ClassVar[Axes] = {
        "Q": _QUERIES,
        "K": _KEYS,
        "V": _KEYS,
        "counts": ("batch", "heads", Parts("seq_len", "block")),
        "indices": ("batch", "heads", Parts("seq_len", "block"), Parts("seq_len", "block")),
        "O": _QUERIES,
    }
    # BS0: the size of Llama 2 7B; BS1: prefill of Llama 3 8B; BS2: a video of Wan 2.1 1.3B
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "BS0": _named(32, 8192, 128, causal=True),
        "BS1": _named(32, 16384, 128, causal=True, block=128, percent=10, group=4),
        "BS2": _named(12, 32760, 128, block=128, percent=10),
    }
    default_names = ("BS0", "BS2")

    def validate(self, workload: Workload) -> None:
        dims, attrs = workload.dims, workload.attrs
        blocks = -(-dims["seq_len"] // int(attrs["block"]))
        listed = dims["batch"] * dims["heads"] * blocks**2
        for what, size in (("each tensor", math.prod(dims.values())), ("the lists of blocks", listed)):
            if size > MAX_DIMENSION:
                raise WorkloadError(
                    f"block_sparse_attention: {what} would have {size} elements, and the kernels index at "
                    f"most {MAX_DIMENSION}; split the batch"
                )
        for dim in ("batch", "heads"):
            if dims[dim] > MAX_GRID_AXIS:
                raise WorkloadError(
                    f"block_sparse_attention: {dim}={dims[dim]} exceeds the {MAX_GRID_AXIS} blocks of a "
                    "grid axis; split it"
                )
        if dims["head_dim"] > 256:
            raise WorkloadError(
                f"block_sparse_attention: head_dim={dims['head_dim']} exceeds 256, the widest row whose "
                "output a block can keep in registers"
            )
        if int(attrs["group"]) < 1 or dims["heads"] % int(attrs["group"]):
            raise WorkloadError(
                f"block_sparse_attention: group={attrs['group']} must divide heads={dims['heads']}: it is "
                "the number of query heads that share a head of keys and values"
            )
        if not 1 <= int(attrs["percent"]) <= 100:
            raise WorkloadError(
                f"block_sparse_attention: percent={attrs['percent']} of the blocks must be 1 to 100"
            )
        check_scale("block_sparse_attention", workload.attrs)

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        import torch

        counts, indices = inputs["counts"], inputs["indices"]
        blocks = indices.shape[-1]
        fault = outside("counts", counts, 0, blocks, "blocks of keys that a block of queries sees")
        listed = torch.arange(blocks, device=indices.device) < counts[..., None]
        return fault or outside("indices", indices, 0, blocks - 1, "a block of keys", where=listed)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """Q, K, V ~ N(0, 1), and the lists of `contents`."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        dtype, (batch, seq_len, heads, head_dim) = (
            getattr(torch, workload.dtype),
            self.outputs(workload)["O"],
        )
        tensors = {
            name: torch.randn(
                batch, seq_len, count, head_dim, generator=generator, device=device, dtype=dtype
            )
            for name, count in zip("QKV", (heads, *[heads // int(workload.attrs["group"])] * 2), strict=True)
        }
        lists = {name: torch.from_numpy(list_).to(device) for name, list_ in self.contents(workload).items()}
        return {**tensors, **lists}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Q is 32 times as large: few keys have nearly all weight, and exp of a score may exceed float32."""
        tensors = self.inputs(workload, device, seed)
        tensors["Q"].mul_(32)
        return SecondInputs(tensors)

    def contents(self, workload: Workload) -> "Mapping[str, NDArray[Any]]":
        """Lists of the first block, a band of two at the diagonal, and random others."""
        batch, heads, seq_len, _ = workload.dims.values()
        blocks = -(-seq_len // int(workload.attrs["block"]))
        counts, indices = _lists(
            batch, heads, blocks, bool(workload.attrs["causal"]), int(workload.attrs["percent"])
        )
        return {"counts": counts.copy(), "indices": indices.copy()}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"counts": "int32", "indices": "int32"}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        batch, heads, seq_len, head_dim = workload.dims.values()
        return {"O": (batch, seq_len, heads, head_dim)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """Dense attention with a mask in float32 without TF32, by items and panels of queries."""
        return {"O": _attention(workload, inputs, squared=False)}

    def rounding(self, workload: Workload) -> Rounding:
        """Weights are rounded to the dtype before they multiply V; their sum is not."""
        longest = int(self.contents(workload)["counts"].max()) * int(workload.attrs["block"])
        return Rounding(min(longest, workload.dims["seq_len"]), inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"O": _attention(workload, inputs, squared=True).sqrt_()}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """PyTorch's flex_attention with the same blocks, compiled; its dense attention with a small mask."""
        import torch

        q, k, v = (inputs[name].transpose(1, 2) for name in ("Q", "K", "V"))
        scale = softmax_scale(workload.attrs, q.shape[-1])
        calls: dict[str, Callable[[], object]] = {}
        if q.is_cuda:
            flex = _flex(workload, inputs)
            calls["flex_attention"] = lambda: flex(q, k, v)
        if workload.dims["batch"] * workload.dims["heads"] * workload.dims["seq_len"] ** 2 <= DENSE_BYTES:
            items = range(workload.dims["batch"])
            mask = torch.stack([~_hidden(workload, inputs, item, slice(None)) for item in items])
            dense = torch.nn.functional.scaled_dot_product_attention
            calls["dense attention with a mask"] = lambda: dense(
                q, k, v, attn_mask=mask, enable_gqa=True, scale=scale
            )
        # the compiler of flex_attention has errors of many types
        return usable(calls, errors=(Exception,))

    def flops(self, workload: Workload) -> int:
        """Two products of 2 head_dim operations for each pair of a query and a key that it sees."""
        import numpy as np

        seq_len, block = workload.dims["seq_len"], int(workload.attrs["block"])
        counts, indices = self.contents(workload).values()
        rows = np.full(counts.shape[-1], block)
        rows[-1] = seq_len - block * (len(rows) - 1)
        listed = np.arange(indices.shape[-1]) < counts[..., None]
        pairs = (listed * rows[indices] * rows[:, None]).sum(dtype=np.int64)
        if workload.attrs["causal"]:  # the keys of the diagonal's blocks that are later than the query
            diagonal = listed & (indices == np.arange(len(rows))[:, None])
            pairs -= (diagonal * (rows * (rows - 1) // 2)[:, None]).sum(dtype=np.int64)
        return int(4 * workload.dims["head_dim"] * pairs)

    def min_bytes(self, workload: Workload) -> int:
        """Each key is in a list, that of its own block; only listed numbers of blocks are read."""
        counts = self.contents(workload)["counts"]
        queries = math.prod(workload.dims.values())
        elements = 2 * queries + 2 * queries // int(workload.attrs["group"])
        return elements * self.element_bytes(workload) + 4 * (counts.size + int(counts.sum()))

    def max_relative_error(self, workload: Workload) -> float:
        """About three times the error of rounding the weights and the output to the dtype."""
        return {"bfloat16": 8e-3, "float16": 1e-3}[workload.dtype]


@lru_cache(maxsize=4)
def _lists(
    batch: int, heads: int, blocks: int, causal: bool, percent: int
) -> "tuple[NDArray[Any], NDArray[Any]]":
    """The numbers of listed blocks and their lists, padded with zeros."""
    import numpy as np

    at = np.arange(blocks)
    ago = at[:, None] - at
    visible = np.where(causal, at + 1, blocks)
    few = np.maximum(1, np.rint(visible * percent / 100)).astype(np.int32)
    rank = np.random.default_rng(0).random((batch, heads, blocks, blocks), dtype=np.float32)
    rank[..., at == 0] += 1  # the first block, the one before and the own one come before the others
    rank[..., (ago == 1) | (ago == -1)] += 2
    rank[..., ago == 0] += 4
    rank[..., (ago < 0) & causal] = -1
    chosen = np.argsort(-rank, axis=-1)
    order = np.where(at < few[:, None], chosen, blocks)
    order.sort(axis=-1)
    indices = np.where(order < blocks, order, 0).astype(np.int32)
    return np.broadcast_to(few, (batch, heads, blocks)).copy(), indices


def _hidden(workload: Workload, inputs: Tensors, item: int, rows: slice) -> "torch.Tensor":
    """Which keys the queries of these rows do not see: (heads, rows, keys)."""
    import torch

    block, counts, indices = int(workload.attrs["block"]), inputs["counts"][item], inputs["indices"][item]
    keys = torch.arange(workload.dims["seq_len"], device=counts.device)
    listed = torch.arange(indices.shape[-1], device=counts.device) < counts[..., None]
    seen = torch.zeros_like(listed, dtype=torch.int32)
    seen.scatter_add_(-1, indices.long(), listed.int())
    hidden = (seen == 0)[:, keys[rows] // block][..., keys // block]
    return hidden | (keys > keys[rows, None]) if workload.attrs["causal"] else hidden


def _attention(workload: Workload, inputs: Tensors, squared: bool) -> "torch.Tensor":
    """The output, or the sum of the squares of its terms, in float32."""
    q, k, v = (inputs[name] for name in ("Q", "K", "V"))
    scale = softmax_scale(workload.attrs, q.shape[-1])
    return masked_attention(q, k, v, partial(_hidden, workload, inputs), scale, squared)


def _flex(workload: Workload, inputs: Tensors) -> Callable[..., object]:
    """flex_attention with the lists; blocks on the diagonal are masked, and others are not."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    counts, indices = inputs["counts"], inputs["indices"]
    causal, block = bool(workload.attrs["causal"]), int(workload.attrs["block"])
    own = torch.arange(counts.shape[-1], dtype=torch.int32, device=counts.device).expand(counts.shape)
    masked = torch.ones_like(counts) if causal else torch.zeros_like(counts)
    on_diagonal = torch.zeros_like(indices)
    on_diagonal[..., 0] = own
    mask = BlockMask.from_kv_blocks(
        masked,
        on_diagonal,
        counts - masked,  # the diagonal's block is the last one of its list
        indices,
        BLOCK_SIZE=block,
        mask_mod=(lambda _batch, _head, i, j: i >= j) if causal else None,
        seq_lengths=(workload.dims["seq_len"],) * 2,
    )
    compiled = torch.compile(flex_attention)
    options = {
        "enable_gqa": int(workload.attrs["group"]) > 1,
        "scale": softmax_scale(workload.attrs, workload.dims["head_dim"]),
        # Triton's tiles must divide the blocks of the mask
        "kernel_options": {"BLOCK_M": block, "BLOCK_N": 64},
    }
    return lambda q, k, v: compiled(q, k, v, block_mask=mask, **options)


OPERATOR = BlockSparseAttention()


class BlockSparseAttentionGpu(KernelTemplate):
    """A block of threads has a tile of queries and loops over the listed keys, with an online softmax."""

    operator = OPERATOR
    name = "block_sparse_attention"
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
        """Tiles as large as the blocks of the mask; small ones without a warpgroup that only copies.

        With that warpgroup, one block of threads fits on a core of a Hopper chip, and without it three do.
        """
        space, block = self.space(workload, target), int(workload.attrs["block"])
        large = target.int("core.memory.shared.block_bytes") > 128 * 1024
        tile = block if large else 64
        wanted = Config(
            {
                "block_m": tile,
                "block_n": tile,
                "num_stages": 2 if tile == 128 else 1,
                "threads": 2 * tile,
                "block_order": "by_length" if workload.attrs["causal"] else "by_head",
                "copies": "bulk" if tile == 128 else "threads",
            }
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, seq_len, head_dim = workload.dims.values()
        causal, block = bool(workload.attrs["causal"]), int(workload.attrs["block"])
        group, dtype, accumulator = int(workload.attrs["group"]), workload.dtype, "float32"
        block_m, block_n = config.int("block_m"), config.int("block_n")
        num_stages, threads = config.int("num_stages"), config.int("threads")
        by_length, by_threads = config["block_order"] == "by_length", config["copies"] == "threads"

        shape, kv_shape = (batch, seq_len, heads, head_dim), (batch, seq_len, heads // group, head_dim)
        width = -(-head_dim // 16) * 16  # a matrix instruction takes 16 elements of a row at once
        blocks, tiles = (seq_len + block - 1) // block, (seq_len + block_m - 1) // block_m
        parts = block // block_n  # tiles of a block of keys
        # the last axis is slowest; causal blocks of the last queries take longest and must not start last
        grid = (heads, batch, tiles) if by_length else (tiles, heads, batch)
        masked = causal or not isinstance(seq_len, int) or seq_len % block_n != 0
        scale = softmax_scale(workload.attrs, head_dim) * math.log2(math.e)  # exp2 instead of exp
        policy = T.GemmWarpPolicy.FullRow  # the softmax of a row is computed within one warp
        update = online_softmax(block_m, block_n, scale)

        @T.prim_func
        def block_sparse_attention(  # type: ignore[no-untyped-def]
            Q: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            K: T.Tensor(kv_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            V: T.Tensor(kv_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            counts: T.Tensor((batch, heads, blocks), "int32"),  # type: ignore[valid-type]
            indices: T.Tensor((batch, heads, blocks, blocks), "int32"),  # type: ignore[valid-type]
            O: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: E741, N803
        ):
            with T.Kernel(*grid, threads=threads) as (i0, i1, i2):
                head, item = (i0, i1) if by_length else (i1, i2)
                in_order = i2 if by_length else i0
                row = (tiles - 1 - in_order if causal else in_order) * block_m
                at = row // block

                q_tile = T.alloc_shared((block_m, width), dtype)
                k_tile = T.alloc_shared((block_n, width), dtype)
                v_tile = T.alloc_shared((block_n, width), dtype)
                o_tile = T.alloc_shared((block_m, width), dtype)
                scores = T.alloc_fragment((block_m, block_n), accumulator)
                weights = T.alloc_fragment((block_m, block_n), dtype)
                o_sum = T.alloc_fragment((block_m, width), accumulator)
                row_max = T.alloc_fragment((block_m,), accumulator)
                old_max = T.alloc_fragment((block_m,), accumulator)
                rescale = T.alloc_fragment((block_m,), accumulator)
                tile_sum = T.alloc_fragment((block_m,), accumulator)
                row_sum = T.alloc_fragment((block_m,), accumulator)

                # copies beyond an edge read zeros and write nothing
                T.copy(Q[item, row : row + block_m, head, 0:width], q_tile, disable_tma=by_threads)
                T.fill(o_sum, 0)
                T.fill(row_sum, 0)
                T.fill(row_max, -T.infinity(accumulator))

                for ko in T.Pipelined(counts[item, head, at] * parts, num_stages=num_stages):
                    key = indices[item, head, at, ko // parts] * block + ko % parts * block_n
                    T.copy(
                        K[item, key : key + block_n, head // group, 0:width], k_tile, disable_tma=by_threads
                    )
                    T.gemm(q_tile, k_tile, scores, transpose_B=True, policy=policy, clear_accum=True)
                    # only tiles on the diagonal or at the end have masked keys; this is checked at run time
                    if masked:  # noqa: SIM102
                        if key + block_n > (row + 1 if causal else seq_len):
                            for i, j in T.Parallel(block_m, block_n):
                                seen = key + j < (row + i + 1 if causal else seq_len)
                                scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity(accumulator))
                    update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                    T.copy(scores, weights)
                    for i, j in T.Parallel(block_m, width):
                        o_sum[i, j] *= rescale[i]
                    T.copy(
                        V[item, key : key + block_n, head // group, 0:width], v_tile, disable_tma=by_threads
                    )
                    T.gemm(weights, v_tile, o_sum, policy=policy)

                for i in T.Parallel(block_m):
                    row_sum[i] = 1 / row_sum[i]
                for i, j in T.Parallel(block_m, width):
                    o_sum[i, j] *= row_sum[i]
                T.copy(o_sum, o_tile)
                T.copy(o_tile, O[item, row : row + block_m, head, 0:width])

        return block_sparse_attention


TEMPLATES = (BlockSparseAttentionGpu(),)
