"""flash_attention_bwd: gradients of attention without the score matrix in memory, and a template for GPUs.

With the factor s of the scores (`scale`; 0 stands for 1 / sqrt(head_dim)), all sums over the keys that a
query sees:

    P = exp(s Q K^T - LSE), delta = rowsum(O dO), dS = P (dO V^T - delta)
    dQ = s dS K, dK = s dS^T Q, dV = P^T dO

LSE is the natural logarithm of the sum of exp(s Q K^T), in float32, as torch's backends return it. Tensors
have the layout (batch, seq_len, heads, head_dim). Attributes change what a query sees and how much it counts:

group     query heads that share one head of keys and values, whose gradients are sums over them
window    keys that a query sees, itself included; 0: all
softcap   c > 0: the scores in P are c tanh(s Q K^T / c), and dS has their slope, 1 - tanh^2, as a factor
sinks     each head has a logit `sink` whose exponential is part of the sum in LSE; its gradient is
          dsink = -sum exp(sink - LSE) delta over batch and queries
lengths   "mixed": item b of the batch has length[b] positions; the tensors but LSE must be finite beyond
          them, and the gradients are 0 there

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Parts
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import flash_attention_bwd as search_space
from ..target.spec import Target
from ._attention_weights import heads_of, panels
from ._item_lengths import length_contents, length_fault, lengths_of
from ._softmax_scale import check_scale, softmax_scale

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

MAX_GRID_AXIS = 65535  # blocks along the second and third axis of a CUDA or HIP grid
SINK_THREADS = 128  # of the block that adds the shares of a sink
_QUERIES = ("batch", "seq_len", "heads", "head_dim")
_KEYS = ("batch", "seq_len", Parts("heads", "group"), "head_dim")


def _named(batch: int, heads: int, seq_len: int, head_dim: int, **attrs: Value) -> dict[str, Value]:
    return {"batch": batch, "heads": heads, "seq_len": seq_len, "head_dim": head_dim, **attrs}


class FlashAttentionBwd(Operator):
    name = "flash_attention_bwd"
    dims = ("batch", "heads", "seq_len", "head_dim")
    attrs: ClassVar[Mapping[str, Value]] = {
        "causal": False,
        "group": 1,
        "window": 0,
        "scale": 0.0,
        "softcap": 0,
        "sinks": False,
        "lengths": "full",
    }
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {"lengths": ("full", "mixed")}
    later_attrs = ("scale", "softcap", "sinks", "lengths")
    axes: ClassVar[Axes] = {
        "Q": _QUERIES,
        "K": _KEYS,
        "V": _KEYS,
        "O": _QUERIES,
        "dO": _QUERIES,
        "LSE": ("batch", "heads", "seq_len"),
        "dQ": _QUERIES,
        "dK": _KEYS,
        "dV": _KEYS,
    }
    # FB0, FB1: flash_attention's FA4 and without a mask; FB2: a batch of long sequences; FB3: Llama 3 8B;
    # FB4: GPT-2 medium; FB5: Mistral 7B; FB6: gpt-oss-120b, a layer with a window; FB7: Gemma 2 27B;
    # FB8: Gemma 2 9B, a layer with a window; FB9: Nemotron-4 340B
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "FB0": _named(1, 32, 4096, 128, causal=True),
        "FB1": _named(1, 32, 4096, 128),
        "FB2": _named(4, 32, 8192, 128, causal=True),
        "FB3": _named(1, 32, 8192, 128, causal=True, group=4),
        "FB4": _named(8, 16, 2048, 64, causal=True),
        "FB5": _named(1, 32, 8192, 128, causal=True, group=4, window=4096),
        "FB6": _named(1, 64, 4096, 64, causal=True, group=8, window=128, sinks=True),
        "FB7": _named(1, 32, 8192, 128, causal=True, group=2, window=4096, softcap=50),
        "FB8": _named(1, 16, 8192, 256, causal=True, group=2, window=4096, softcap=50),
        "FB9": _named(1, 96, 4096, 192, causal=True, group=12),
    }
    default_names = ("FB0", "FB3", "FB4")

    def validate(self, workload: Workload) -> None:
        dims, group, window = workload.dims, int(workload.attrs["group"]), int(workload.attrs["window"])
        elements = math.prod(dims.values())
        if elements > MAX_DIMENSION - search_space.overhang(dims):
            raise WorkloadError(
                f"flash_attention_bwd: tiles of each tensor reach over {elements} elements and more, and the "
                f"kernels index at most {MAX_DIMENSION}; split the batch"
            )
        for dim in ("batch", "heads"):
            if dims[dim] > MAX_GRID_AXIS:
                raise WorkloadError(
                    f"flash_attention_bwd: {dim}={dims[dim]} exceeds the {MAX_GRID_AXIS} blocks of a grid "
                    "axis; split it"
                )
        if dims["head_dim"] > 256 or dims["head_dim"] % 8:
            raise WorkloadError(
                f"flash_attention_bwd: head_dim={dims['head_dim']} must be a multiple of 8, so that rows "
                "start at multiples of 16 bytes, and at most 256, since a block keeps two sums of that many "
                "columns in registers, and four tiles of that many in shared memory"
            )
        if group < 1 or dims["heads"] % group:
            raise WorkloadError(
                f"flash_attention_bwd: group={group} must divide heads={dims['heads']}: it is the number of "
                "query heads that share a head of keys and values"
            )
        if window < 0 or (window and not workload.attrs["causal"]):
            raise WorkloadError(
                f"flash_attention_bwd: window={window} must be 0, or a number of keys before and at a query "
                "of causal attention; take causal=true"
            )
        if (softcap := int(self.attribute(workload.attrs, "softcap"))) < 0:
            raise WorkloadError(f"flash_attention_bwd: softcap={softcap} must not be negative; 0 means none")
        check_scale("flash_attention_bwd", workload.attrs)

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        names, sinks = list(self.axes), bool(self.attribute(attrs, "sinks"))
        inputs, outputs = ({name: self.axes[name] for name in part} for part in (names[:-3], names[-3:]))
        length: Axes = {"length": ("batch",)} if self.attribute(attrs, "lengths") == "mixed" else {}
        of_heads: Axes = {"sink": ("heads",)} if sinks else {}
        return {**inputs, **of_heads, **length, **outputs, **({"dsink": ("heads",)} if sinks else {})}

    def contents(self, workload: Workload) -> "Mapping[str, NDArray[Any]]":
        return length_contents(self, workload)

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        return length_fault(workload, inputs)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """Q, K, V, dO ~ N(0, 1); O and LSE are what the forward pass makes of them."""
        return self._inputs(workload, device, seed, 1.0)

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Q is 8 times as large: few keys have nearly all weight, and LSE is large."""
        return SecondInputs(self._inputs(workload, device, seed, 8.0))

    def _inputs(self, workload: Workload, device: str, seed: int, factor: float) -> "dict[str, torch.Tensor]":
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        dtype, shapes = getattr(torch, workload.dtype), self.outputs(workload)
        q, k, v, grad = (
            torch.randn(*shapes[name], generator=generator, device=device, dtype=dtype)
            for name in ("dQ", "dK", "dV", "dQ")
        )
        q.mul_(factor)
        out, lse = torch.empty_like(q), torch.empty(q.shape[0], *q.shape[2:0:-1], device=device)
        sinks = {}
        if self.attribute(workload.attrs, "sinks"):
            sinks["sink"] = torch.randn(q.shape[2], generator=generator, device=device)
        more = {
            **sinks,
            **{name: torch.from_numpy(of).to(device) for name, of in self.contents(workload).items()},
        }
        for item, rows, weights, _ in _weights(workload, {"Q": q, "K": k, **more}, lse, is_known=False):
            values = heads_of(v[item], int(workload.attrs["group"]))
            # queries beyond an item see no key
            out[item, rows] = (weights.nan_to_num_() @ values).transpose(0, 1).to(dtype)
        if "length" in more:
            beyond = torch.arange(q.shape[1], device=device) >= more["length"][:, None]
            lse.masked_fill_(beyond[:, None], 0)
        return {"Q": q, "K": k, "V": v, "O": out, "dO": grad, "LSE": lse, **more}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {**dict.fromkeys(("LSE", "sink", "dsink"), "float32"), "length": "int32"}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        batch, heads, seq_len, head_dim = workload.dims.values()
        keys = (batch, seq_len, heads // int(workload.attrs["group"]), head_dim)
        sinks = {"dsink": (heads,)} if self.attribute(workload.attrs, "sinks") else {}
        return {"dQ": (batch, seq_len, heads, head_dim), "dK": keys, "dV": keys, **sinks}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """The formulas in float32 without TF32, by items of the batch and panels of queries."""
        return self._gradients(workload, inputs, squared=False)

    def rounding(self, workload: Workload) -> Rounding:
        """P and dS are rounded to the dtype before they multiply dO, Q and K."""
        terms = workload.dims["seq_len"] * int(workload.attrs["group"]) + 2 * workload.dims["head_dim"]
        return Rounding(terms, inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """dS itself counts as a sum of products: where it cancels to zero, its own error is left."""
        found = self._gradients(workload, inputs, squared=True)
        return {name: squares.sqrt_() for name, squares in found.items()}

    def _gradients(self, workload: Workload, inputs: Tensors, squared: bool) -> "dict[str, torch.Tensor]":
        """The gradients, or the sums of the squares of their terms.

        Squared weights are at least the smallest normal number of the dtype: the rounding errors of smaller
        ones are those of that number.
        """
        import torch

        factor = softmax_scale(workload.attrs, workload.dims["head_dim"])
        sign, scale = (1, factor**2) if squared else (-1, factor)
        least = torch.finfo(inputs["Q"].dtype).tiny
        device, group = inputs["Q"].device, int(workload.attrs["group"])
        found = {name: torch.zeros(size, device=device) for name, size in self.outputs(workload).items()}
        for item, rows, weights, slopes in _weights(workload, inputs, inputs["LSE"]):
            q, grad, out = (
                _power(inputs[name][item, rows].float(), squared).transpose(0, 1) for name in ("Q", "dO", "O")
            )
            k, v = (_power(heads_of(inputs[name][item], group), squared) for name in ("K", "V"))
            weights.nan_to_num_()  # of queries beyond an item, whose logarithms may be -infinity
            p = weights.clamp_(min=least).square_() if squared else weights
            d_scores, delta = grad @ v.transpose(1, 2), (out * grad).sum(-1, keepdim=True)
            d_scores.add_(delta, alpha=sign).mul_(p).mul_(scale)
            if slopes is not None:
                d_scores.mul_(_power(slopes, squared))
            if "sink" in inputs:
                shares = (inputs["sink"][:, None] - inputs["LSE"][item, :, rows]).exp()
                if "length" in inputs:  # the logarithms beyond an item may be anything
                    place = torch.arange(rows.start, rows.stop, device=device)
                    shares.masked_fill_(place >= inputs["length"][item], 0)
                found["dsink"].add_((_power(shares, squared) * delta[..., 0]).sum(-1), alpha=sign)
            found["dQ"][item, rows] = (d_scores @ k).transpose(0, 1)
            for name, left, right in (("dK", d_scores, q), ("dV", p, grad)):
                product = left.transpose(1, 2) @ right
                found[name][item] += product.unflatten(0, (-1, group)).sum(1).transpose(0, 1)
        return found

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """The backward operators of torch's attention backends, each called directly after its forward one.

        cuDNN's and the CPU's take transposed views. Only FlashAttention-2 has windows. None has a softcap,
        sinks or lengths: with these it is the formulas in float32.
        """
        import torch

        aten, seq_len = torch.ops.aten, workload.dims["seq_len"]
        causal, window = bool(workload.attrs["causal"]), int(workload.attrs["window"])
        sides = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
        q, k, v, grad = (inputs[name] for name in ("Q", "K", "V", "dO"))
        factor = {"scale": softmax_scale(workload.attrs, q.shape[-1])}
        turned = [tensor.transpose(1, 2) for tensor in (q, k, v)]

        def flash() -> Callable[[], object]:
            options = (None, None, seq_len, seq_len, 0.0, causal)
            out, lse, *state, _ = aten._flash_attention_forward(q, k, v, *options, False, **sides, **factor)
            backward, more = aten._flash_attention_backward, {**sides, **factor}
            return lambda: backward(grad, q, k, v, out, lse, *options, *state, **more)

        def cudnn() -> Callable[[], object]:
            made = aten._scaled_dot_product_cudnn_attention(*turned, None, True, 0.0, causal, **factor)
            out, lse, *lengths, seed, offset, _ = made
            state = (out, lse, seed, offset, None, *lengths, 0.0, causal)
            backward = aten._scaled_dot_product_cudnn_attention_backward
            return lambda: backward(grad.transpose(1, 2), *turned, *state, **factor)

        def cpu() -> Callable[[], object]:
            made = aten._scaled_dot_product_flash_attention_for_cpu(*turned, 0.0, causal, **factor)
            backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
            return lambda: backward(grad.transpose(1, 2), *turned, *made, 0.0, causal, **factor)

        usable: dict[str, Callable[[], object]] = {}
        if {"softcap", "sinks", "lengths"} & workload.attrs.keys():
            return {"torch": lambda: tuple(self._gradients(workload, inputs, squared=False).values())}
        makers = {"FlashAttention-2": flash, "cuDNN attention": cudnn, "torch attention on the CPU": cpu}
        for name, maker in makers.items():
            if window and maker is not flash:
                continue
            try:
                call = maker()
                call()
            except (RuntimeError, NotImplementedError, TypeError, AttributeError):
                continue  # not in this build of torch, or not for this device, dtype or number of heads
            usable[name] = call
        return usable

    def flops(self, workload: Workload) -> int:
        """Five products of 2 head_dim operations for each pair of a query and a key that it sees."""
        _, heads, seq_len, head_dim = workload.dims.values()

        def pairs(length: int) -> int:
            if not workload.attrs["causal"]:
                return length**2
            seen = min(int(workload.attrs["window"]) or seq_len, length)
            return seen * (seen + 1) // 2 + (length - seen) * seen

        return 10 * heads * sum(map(pairs, lengths_of(self, workload))) * head_dim

    def min_bytes(self, workload: Workload) -> int:
        written = sum(math.prod(self.outputs(workload)[name]) for name in ("dQ", "dK", "dV"))
        # Q, O and dO of the queries, K and V of the keys that the items have
        _, heads, _, head_dim = workload.dims.values()
        rows = heads * sum(lengths_of(self, workload))
        read = (3 * rows + 2 * rows // int(workload.attrs["group"])) * head_dim
        sinks = 2 * heads * bool(self.attribute(workload.attrs, "sinks"))
        return (written + read) * self.element_bytes(workload) + 4 * (rows + sinks)

    def max_relative_error(self, workload: Workload) -> float:
        """About three times the error of rounding P or dS and the gradients to the dtype."""
        return {"bfloat16": 8e-3, "float16": 1e-3}[workload.dtype]


def _weights(workload: Workload, tensors: Tensors, lse: "torch.Tensor", is_known: bool = True) -> Any:
    """The weights P of each panel of queries with their slopes, its item and its rows; see `panels`."""
    import torch

    seq_len, window = workload.dims["seq_len"], int(workload.attrs["window"])
    keys = torch.arange(seq_len, device=lse.device)

    def hidden(item: int, rows: slice) -> "torch.Tensor | None":
        ago, unseen = keys[rows, None] - keys, None
        if workload.attrs["causal"]:
            unseen = (ago < 0) | (ago >= (window or seq_len))
        if "length" in tensors:
            beyond = keys >= tensors["length"][item]
            outer = beyond | beyond[rows, None]
            unseen = outer if unseen is None else unseen | outer
        return unseen

    scale = softmax_scale(workload.attrs, workload.dims["head_dim"])
    softcap = int(OPERATOR.attribute(workload.attrs, "softcap"))
    return panels(
        tensors["Q"], tensors["K"], hidden, lse, is_known, scale, softcap=softcap, sink=tensors.get("sink")
    )


def _power(tensor: "torch.Tensor", squared: bool) -> "torch.Tensor":
    return tensor.square() if squared else tensor


OPERATOR = FlashAttentionBwd()


class FlashAttentionBwdGpu(KernelTemplate):
    """Three kernels: delta of each query; a block for each tile of keys; the last step of dQ.

    The block has a tile of keys and loops over tiles of queries. It computes transposed scores, so that P^T
    and dS^T are left operands in the registers in which they were computed. Each tile's share of dQ is added
    to a sum in memory, or the third kernel loops over the keys again (`dq=separate`).

    With head_dim above 128, the warps may divide the columns of dK and dV (`split=columns`), so that two
    warpgroups have room for the sums of 64 keys. Then each of them needs the P^T and dS^T of the other one,
    which go through shared memory.
    """

    operator = OPERATOR
    name = "flash_attention_bwd"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    deterministic = False
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}
    scales: ClassVar[Mapping[str, Scale]] = {"batch": Scale()}
    dynamic_dims = ("batch", "seq_len")
    static_reasons: ClassVar[Mapping[str, str]] = {
        "heads": "it is divided by the number of query heads that share keys",
        "head_dim": "a block keeps whole rows of head_dim elements in registers",
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """On Hopper 128 keys, 64 for each of two warpgroups, and 64 queries (128 of short rows).

        Two warpgroups share 64 keys of wide rows. For these and for a softcap a third kernel computes dQ.
        Sums in memory are faster for other long sequences.
        """
        space = self.space(workload, target)
        hopper = "bulk_add" in next(p.values for p in space.parameters if p.name == "dq")
        wide = search_space.is_wide(workload)
        capped = bool(self.operator.attribute(workload.attrs, "softcap"))
        wanted = Config(
            {
                "block_m": 128 if hopper and not wide else 64,
                "block_n": (128 if workload.dims["head_dim"] <= 64 else 64) if hopper else 32,
                "num_stages": 2 if hopper else 1,
                "threads": 256 if hopper or wide else 128,
                "dq": "add" if not hopper else "separate" if wide or capped else "bulk_add",
                "overlap": hopper,
                "block_order": "by_length" if workload.attrs["causal"] else "by_head",
                **({"split": "columns"} if wide else {}),
            }
        )
        return space.closest(wanted)

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """LSE (base 2) and delta of each tile of queries, and the sums of dQ, both padded to whole tiles.

        With sinks also each tile's share of dsink.
        """
        batch, heads, seq_len, head_dim = workload.dims.values()
        block_n, width = config.int("block_n"), _padded(head_dim)
        tiles = (seq_len + block_n - 1) // block_n
        rows = 1 if config["dq"] == "separate" else tiles * block_n
        has_sinks = self.operator.attribute(workload.attrs, "sinks")
        return {
            "stats": ((batch, heads, tiles, 2, block_n), "float32"),
            "dq_sum": ((batch, heads, rows, width), "float32"),
            **({"sink_sums": ((heads, batch, tiles), "float32")} if has_sinks else {}),
        }

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, seq_len, head_dim = workload.dims.values()
        causal, window = bool(workload.attrs["causal"]), int(workload.attrs["window"])
        group, dtype, accumulator = int(workload.attrs["group"]), workload.dtype, "float32"
        block_m, block_n = config.int("block_m"), config.int("block_n")
        num_stages, threads = config.int("num_stages"), config.int("threads")
        by_length, separate = config["block_order"] == "by_length", config["dq"] == "separate"
        overlap, bulk = bool(config["overlap"]), config["dq"] == "bulk_add"
        by_columns = config.str("split", "keys") == "columns"

        kv_heads, width = heads // group, _padded(head_dim)
        wide = 1 << (width - 1).bit_length()  # threads can share the sum of a row of that many elements
        shape, kv_shape = (batch, seq_len, heads, head_dim), (batch, seq_len, kv_heads, head_dim)
        tiles, key_tiles = (seq_len + block_n - 1) // block_n, (seq_len + block_n - 1) // block_n
        blocks = (seq_len + block_m - 1) // block_m
        sizes = {name: size for name, (size, _) in self.scratch(workload, config).items()}
        stats_shape, sum_shape = sizes["stats"], sizes["dq_sum"]
        softcap = int(self.operator.attribute(workload.attrs, "softcap"))
        mixed = self.operator.attribute(workload.attrs, "lengths") == "mixed"
        has_sinks = "sink_sums" in sizes

        def of_heads() -> Any:
            # an annotation, one for each parameter; the type of None makes no parameter of the kernel
            return T.Tensor((heads,), "float32") if has_sinks else type(None)

        sink_sums_tensor: Any = T.Tensor(sizes["sink_sums"], "float32") if has_sinks else type(None)
        # blocks of the first keys and of the last queries take longest in causal attention
        grid = (kv_heads, batch, blocks) if by_length else (blocks, kv_heads, batch)
        query_grid = (heads, batch, blocks) if by_length else (blocks, heads, batch)
        keys_end = not causal and (not isinstance(seq_len, int) or seq_len % block_m != 0)
        queries_end = not causal and (not isinstance(seq_len, int) or seq_len % block_n != 0)
        log2_e, norm = math.log2(math.e), softmax_scale(workload.attrs, head_dim)
        scale = norm * log2_e  # exp2 instead of exp
        double, cap = 2 * scale / max(1, softcap), softcap * log2_e
        # P and dS of a key stay within one warp, or go through shared memory to all that have columns
        policy = T.GemmWarpPolicy.FullCol if by_columns else T.GemmWarpPolicy.FullRow
        alloc_weights = T.alloc_shared if by_columns else T.alloc_fragment
        row_threads = 128 if width <= 128 else 256  # of kernels whose threads have whole rows of a tile
        early = T.wgmma_gemm if overlap else T.gemm  # waits for the product, or not

        def tiles_of(length: Any) -> Any:
            # tiles of block_n positions that an item has
            return tiles if length is None else (length + block_n - 1) // block_n

        def count(first: Any, last: Any) -> Any:
            # a block beyond its item has one tile, of which nothing is seen
            return T.max(1, last - first) if mixed else last - first

        @T.macro
        def hide(  # type: ignore[no-untyped-def]
            p: T.Buffer, key: Any, query: Any, rows: int, cols: int, transposed: bool, length: Any
        ):
            """Weights of keys that their queries do not see become zero; most tiles have none."""
            keys, queries = (rows, cols) if transposed else (cols, rows)
            if causal:  # noqa: SIM102
                if key + keys - 1 > query:
                    for i, j in T.Parallel(rows, cols):
                        ago = query - key + (j - i if transposed else i - j)
                        p[i, j] = T.if_then_else(ago >= 0, p[i, j], 0)
            if window:  # noqa: SIM102
                if query + queries - key > window:
                    for i, j in T.Parallel(rows, cols):
                        ago = query - key + (j - i if transposed else i - j)
                        p[i, j] = T.if_then_else(ago < window, p[i, j], 0)
            if keys_end if transposed else queries_end:  # noqa: SIM102
                if key + keys > seq_len:
                    for i, j in T.Parallel(rows, cols):
                        p[i, j] = T.if_then_else(key + (i if transposed else j) < seq_len, p[i, j], 0)
            if mixed:  # noqa: SIM102
                if T.max(key + keys, query + queries) > length:
                    for i, j in T.Parallel(rows, cols):
                        last = T.max(key + (i if transposed else j), query + (j if transposed else i))
                        p[i, j] = T.if_then_else(last < length, p[i, j], 0)

        @T.macro
        def weigh(p: T.Buffer, rest: Any, lse2: Any, rows: int, cols: int):  # type: ignore[no-untyped-def]
            """Turn scores into weights. `rest`: 1 - tanh, from which the slope of a capped score follows."""
            if softcap:
                # as accurate as exp2, which the instruction tanh.approx is not
                for i, j in T.Parallel(rows, cols):
                    rest[i, j] = 2 / (T.exp2(p[i, j] * double) + 1)
                for i, j in T.Parallel(rows, cols):
                    p[i, j] = T.exp2((1 - rest[i, j]) * cap - lse2(i, j))
            else:
                for i, j in T.Parallel(rows, cols):
                    p[i, j] = T.exp2(p[i, j] * scale - lse2(i, j))

        @T.macro
        def derive(p: T.Buffer, rest: Any, dp: T.Buffer, delta: Any, rows: int, cols: int):  # type: ignore[no-untyped-def]
            """Turn gradients of weights into those of scores."""
            for i, j in T.Parallel(rows, cols):
                dp[i, j] = p[i, j] * (dp[i, j] - delta(i, j))
            if softcap:  # the slope is (1 - tanh) (1 + tanh)
                for i, j in T.Parallel(rows, cols):
                    dp[i, j] *= rest[i, j] * (2 - rest[i, j])

        @T.macro
        def sink_share(sink: T.Buffer, sums: T.Buffer, LSE: T.Buffer, delta: T.Buffer, place: Any):  # type: ignore[no-untyped-def]  # noqa: N803
            """A tile's share of dsink."""
            head, item, tile, ends = place
            shares = T.alloc_fragment((block_n,), accumulator)
            total = T.alloc_fragment((1,), accumulator)
            for i in T.Parallel(block_n):
                row = tile * block_n + i
                shares[i] = T.if_then_else(
                    row < ends, -delta[i] * T.exp2((sink[head] - LSE[item, head, row]) * log2_e), 0
                )
            T.reduce_sum(shares, total, dim=0)
            T.copy(total, sums[head, item, tile : tile + 1])

        @T.prim_func
        def flash_attention_bwd(  # type: ignore[no-untyped-def]
            Q: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            K: T.Tensor(kv_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            V: T.Tensor(kv_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            O: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: E741, N803
            dO: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            LSE: T.Tensor((batch, heads, seq_len), accumulator),  # type: ignore[valid-type]  # noqa: N803
            sink: of_heads(),  # type: ignore[valid-type]
            length: T.Tensor((batch,), "int32") if mixed else type(None),  # type: ignore[valid-type]
            dQ: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            dK: T.Tensor(kv_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            dV: T.Tensor(kv_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            dsink: of_heads(),  # type: ignore[valid-type]
            stats: T.Tensor(stats_shape, accumulator),  # type: ignore[valid-type]
            dq_sum: T.Tensor(sum_shape, accumulator),  # type: ignore[valid-type]
            sink_sums: sink_sums_tensor,
        ):
            with T.Kernel(tiles, heads, batch, threads=row_threads) as (at, of, part):
                o_rows = T.alloc_fragment((block_n, wide), dtype)
                g_rows = T.alloc_fragment((block_n, wide), dtype)
                products = T.alloc_fragment((block_n, wide), accumulator)
                delta = T.alloc_fragment((block_n,), accumulator)
                # copies beyond an edge read zeros and write nothing
                T.copy(O[part, at * block_n : (at + 1) * block_n, of, 0:wide], o_rows)
                T.copy(dO[part, at * block_n : (at + 1) * block_n, of, 0:wide], g_rows)
                for i, j in T.Parallel(block_n, wide):
                    products[i, j] = T.Cast(accumulator, o_rows[i, j]) * T.Cast(accumulator, g_rows[i, j])
                T.reduce_sum(products, delta, dim=1)
                for i in T.Parallel(block_n):
                    stats[part, of, at, 0, i] = T.if_then_else(
                        at * block_n + i < seq_len, LSE[part, of, at * block_n + i] * log2_e, 0
                    )
                    stats[part, of, at, 1, i] = delta[i]
                if has_sinks:
                    sink_share(
                        sink, sink_sums, LSE, delta, (of, part, at, length[part] if mixed else seq_len)
                    )
                if not separate:
                    for i, j in T.Parallel(block_n, width):
                        dq_sum[part, of, at * block_n + i, j] = 0

            with T.Kernel(*grid, threads=threads) as (i0, i1, i2):
                kv_head, item = (i0, i1) if by_length else (i1, i2)
                col = (i2 if by_length else i0) * block_m

                k_tile = T.alloc_shared((block_m, width), dtype)
                v_tile = T.alloc_shared((block_m, width), dtype)
                q_tile = T.alloc_shared((block_n, width), dtype)
                g_tile = T.alloc_shared((block_n, width), dtype)
                stat = T.alloc_shared((2, block_n), accumulator)
                out_tile = T.alloc_shared((block_m, width), dtype)
                p = T.alloc_fragment((block_m, block_n), accumulator)
                dp = T.alloc_fragment((block_m, block_n), accumulator)
                rest = T.alloc_fragment((block_m, block_n), accumulator) if softcap else None
                p_cast = alloc_weights((block_m, block_n), dtype)
                ds_cast = alloc_weights((block_m, block_n), dtype)
                dk_acc = T.alloc_fragment((block_m, width), accumulator)
                dv_acc = T.alloc_fragment((block_m, width), accumulator)
                if not separate:
                    ds_tile = ds_cast if by_columns else T.alloc_shared((block_m, block_n), dtype)
                    dq_part = T.alloc_fragment((block_n, width), accumulator)
                if bulk:
                    dq_tile = T.alloc_shared((block_n, width), accumulator)

                T.copy(K[item, col : col + block_m, kv_head, 0:width], k_tile)
                T.copy(V[item, col : col + block_m, kv_head, 0:width], v_tile)
                T.fill(dk_acc, 0)
                T.fill(dv_acc, 0)
                first = col // block_n if causal else 0
                size = length[item] if mixed else None
                last = (
                    T.min(tiles_of(size), T.ceildiv(col + block_m + window - 1, block_n))
                    if window
                    else tiles_of(size)
                )
                trips = count(first, last)
                for step in T.Pipelined(trips * group, num_stages=num_stages):
                    head = kv_head if group == 1 else kv_head * group + step // trips
                    tile = first + (step if group == 1 else step % trips)
                    row = tile * block_n
                    T.copy(Q[item, row : row + block_n, head, 0:width], q_tile)
                    T.copy(stats[item, head, tile, 0:2, 0:block_n], stat)
                    early(k_tile, q_tile, p, transpose_B=True, policy=policy, clear_accum=True)
                    T.copy(dO[item, row : row + block_n, head, 0:width], g_tile)
                    early(v_tile, g_tile, dp, transpose_B=True, policy=policy, clear_accum=True)
                    if overlap:
                        T.wait_wgmma(1)
                    weigh(p, rest, lambda _, j: stat[0, j], block_m, block_n)
                    hide(p, col, row, block_m, block_n, True, size)
                    T.copy(p, p_cast)
                    if overlap:
                        T.wait_wgmma(0)
                    derive(p, rest, dp, lambda _, j: stat[1, j], block_m, block_n)
                    T.copy(dp, ds_cast)
                    T.gemm(p_cast, g_tile, dv_acc, policy=policy)
                    if not separate:
                        if not by_columns:
                            T.copy(ds_cast, ds_tile)
                        early(ds_tile, k_tile, dq_part, transpose_A=True, clear_accum=True)
                    T.gemm(ds_cast, q_tile, dk_acc, policy=policy)  # waits for all products
                    if bulk:
                        T.copy(dq_part, dq_tile)
                        T.atomic_add(dq_sum[item, head, row : row + block_n, 0:width], dq_tile, use_tma=True)
                    elif not separate:
                        T.atomic_add(dq_sum[item, head, row : row + block_n, 0:width], dq_part)

                for i, j in T.Parallel(block_m, width):
                    dk_acc[i, j] *= norm
                T.copy(dv_acc, out_tile)
                T.copy(out_tile, dV[item, col : col + block_m, kv_head, 0:width])
                T.copy(dk_acc, out_tile)
                T.copy(out_tile, dK[item, col : col + block_m, kv_head, 0:width])

            if separate:
                with T.Kernel(*query_grid, threads=threads) as (j0, j1, j2):
                    head2, item2 = (j0, j1) if by_length else (j1, j2)
                    in_order = j2 if by_length else j0
                    start = (blocks - 1 - in_order if causal else in_order) * block_m

                    q_rows = T.alloc_shared((block_m, width), dtype)
                    grads = T.alloc_shared((block_m, width), dtype)
                    keys = T.alloc_shared((block_n, width), dtype)
                    values = T.alloc_shared((block_n, width), dtype)
                    dq_out = T.alloc_shared((block_m, width), dtype)
                    weights = T.alloc_fragment((block_m, block_n), accumulator)
                    d_weights = T.alloc_fragment((block_m, block_n), accumulator)
                    rests = T.alloc_fragment((block_m, block_n), accumulator) if softcap else None
                    d_scores = alloc_weights((block_m, block_n), dtype)
                    dq_acc = T.alloc_fragment((block_m, width), accumulator)
                    lse2 = T.alloc_fragment((block_m,), accumulator)
                    deltas = T.alloc_fragment((block_m,), accumulator)

                    T.copy(Q[item2, start : start + block_m, head2, 0:width], q_rows)
                    T.copy(dO[item2, start : start + block_m, head2, 0:width], grads)
                    for i in T.Parallel(block_m):
                        at2 = T.min(start + i, seq_len - 1)
                        lse2[i] = stats[item2, head2, at2 // block_n, 0, at2 % block_n]
                        deltas[i] = stats[item2, head2, at2 // block_n, 1, at2 % block_n]
                    T.fill(dq_acc, 0)
                    begin = T.max(0, start - window + 1) // block_n if window else 0
                    size2 = length[item2] if mixed else None
                    key_end = tiles_of(size2) if mixed else key_tiles
                    end = T.min(key_end, T.ceildiv(start + block_m, block_n)) if causal else key_end
                    for ko in T.Pipelined(count(begin, end), num_stages=num_stages):
                        key = (begin + ko) * block_n
                        T.copy(K[item2, key : key + block_n, head2 // group, 0:width], keys)
                        T.gemm(q_rows, keys, weights, transpose_B=True, policy=policy, clear_accum=True)
                        T.copy(V[item2, key : key + block_n, head2 // group, 0:width], values)
                        T.gemm(grads, values, d_weights, transpose_B=True, policy=policy, clear_accum=True)
                        weigh(weights, rests, lambda i, _: lse2[i], block_m, block_n)
                        hide(weights, key, start, block_m, block_n, False, size2)
                        derive(weights, rests, d_weights, lambda i, _: deltas[i], block_m, block_n)
                        T.copy(d_weights, d_scores)
                        T.gemm(d_scores, keys, dq_acc, policy=policy)
                    for i, j in T.Parallel(block_m, width):
                        dq_acc[i, j] *= norm
                    T.copy(dq_acc, dq_out)
                    T.copy(dq_out, dQ[item2, start : start + block_m, head2, 0:width])
            else:
                with T.Kernel(tiles, heads, batch, threads=row_threads) as (tile3, head3, item3):
                    sums = T.alloc_fragment((block_n, width), accumulator)
                    T.copy(dq_sum[item3, head3, tile3 * block_n : (tile3 + 1) * block_n, 0:width], sums)
                    for i, j in T.Parallel(block_n, width):
                        sums[i, j] *= norm
                    T.copy(sums, dQ[item3, tile3 * block_n : (tile3 + 1) * block_n, head3, 0:width])

            if has_sinks:
                with T.Kernel(heads, threads=SINK_THREADS) as head4:
                    lanes = T.alloc_fragment((SINK_THREADS,), accumulator)
                    all_lanes = T.alloc_fragment((1,), accumulator)
                    T.clear(lanes)
                    for item4 in T.serial(batch):
                        for turn in T.serial(T.ceildiv(tiles, SINK_THREADS)):
                            for i in T.Parallel(SINK_THREADS):
                                at4 = turn * SINK_THREADS + i
                                lanes[i] += T.if_then_else(
                                    at4 < tiles, sink_sums[head4, item4, T.min(at4, tiles - 1)], 0
                                )
                    T.reduce_sum(lanes, all_lanes, dim=0)
                    T.copy(all_lanes, dsink[head4 : head4 + 1])

        return flash_attention_bwd


def _padded(head_dim: int) -> int:
    """Elements of a row in a tile, of which two warpgroups have halves of whole instructions.

    TileLang 0.1.15 has no common layout for a tile of 80 columns that is used in both directions.
    """
    return -(-head_dim // 32) * 32


TEMPLATES = (FlashAttentionBwdGpu(),)
