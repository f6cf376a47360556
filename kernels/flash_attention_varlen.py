"""flash_attention_varlen: flash_attention of items of different lengths, packed along one axis.

Item b has the queries cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1, and likewise keys and values, as in
FlashAttention's functions for variable lengths. Tensors have the layout (tokens, heads, head_dim).
The last query of an item is at the position of its last key, so that an item may have keys from before.
Attributes are those of flash_attention. Where a query sees no key, its output is 0 and its LSE -infinity.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Axis, Parts, Plus, shape
from ..problem.index_values import not_rising
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import flash_attention_varlen as search_space
from ..search_spaces.matrix_unit import is_hopper
from ..target.spec import Target
from ._attention_tiles import AttentionTiles
from ._attention_weights import item_attention
from ._packed_items import block_count, item_finder
from ._scheduled_attention import scheduled_attention
from ._softmax_scale import check_scale, softmax_scale
from ._vendor_calls import usable

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

MAX_GRID_AXIS = 65535  # blocks along the second and third axis of a CUDA or HIP grid
LEAST_ROWS = 32  # of a tile of queries
_QUERIES = ("tokens", "heads", "head_dim")


def _named(batch: int, tokens: int, heads: int, head_dim: int, **attrs: Value) -> dict[str, Value]:
    return {"batch": batch, "heads": heads, "tokens": tokens, "head_dim": head_dim, "causal": True, **attrs}


class FlashAttentionVarlen(Operator):
    name = "flash_attention_varlen"
    dims = ("batch", "heads", "tokens", "head_dim", "tokens_kv")
    dim_defaults: ClassVar[Mapping[str, int | str]] = {"tokens_kv": "tokens"}
    attrs: ClassVar[Mapping[str, Value]] = {
        "causal": False,
        "group": 1,
        "window": 0,
        "softcap": 0,
        "sinks": False,
        "lse": False,
        "scale": 0.0,
    }
    axes: ClassVar[Axes] = {"Q": _QUERIES, "O": _QUERIES}
    # prefill with the heads of Llama 3 70B (long and short prompts, and a part of each after earlier tokens),
    # of gpt-oss-120b, and of a text encoder of ModernBERT's size
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "VL0": _named(8, 16384, 64, 128, group=8),
        "VL1": _named(64, 32768, 64, 128, group=8),
        "VL2": _named(16, 8192, 64, 128, group=8, tokens_kv=65536),
        "VL3": _named(16, 16384, 64, 64, group=8, window=128, sinks=True),
        "VL4": _named(64, 16384, 12, 64, causal=False),
    }
    default_names = ("VL0", "VL1")

    def validate(self, workload: Workload) -> None:
        batch, heads, tokens, head_dim, tokens_kv = workload.dims.values()
        group, window, softcap = (int(workload.attrs[n]) for n in ("group", "window", "softcap"))
        elements = max(tokens, tokens_kv) * heads * head_dim
        if elements > MAX_DIMENSION:
            raise WorkloadError(
                f"flash_attention_varlen: a tensor would have {elements} elements, and the kernels index at "
                f"most {MAX_DIMENSION}; split the batch"
            )
        for what, count in (("heads", heads), ("tiles of queries", block_count(tokens, batch, LEAST_ROWS))):
            if count > MAX_GRID_AXIS:
                raise WorkloadError(
                    f"flash_attention_varlen: the number of {what}, {count}, exceeds the {MAX_GRID_AXIS} "
                    "blocks of a grid axis; split the batch"
                )
        if head_dim > 256:
            raise WorkloadError(
                f"flash_attention_varlen: head_dim={head_dim} exceeds 256, the widest row whose output a "
                "block can keep in registers"
            )
        if group < 1 or heads % group:
            raise WorkloadError(
                f"flash_attention_varlen: group={group} must be at least 1 and divide heads={heads}, since "
                "that many query heads share a head of K and V"
            )
        if window < 0 or softcap < 0:
            raise WorkloadError(
                f"flash_attention_varlen: window={window} and softcap={softcap} must not be negative; 0 "
                "means none"
            )
        if window and not workload.attrs["causal"]:
            raise WorkloadError(
                f"flash_attention_varlen: window={window} needs causal=true, since a window ends at its query"
            )
        check_scale("flash_attention_varlen", workload.attrs)

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        keys: tuple[Axis, ...] = ("tokens_kv", Parts("heads", int(attrs["group"])), "head_dim")
        ends: tuple[Axis, ...] = (Plus("batch", 1),)
        sink: Axes = {"sink": ("heads",)} if attrs["sinks"] else {}
        lse: Axes = {"LSE": ("heads", "tokens")} if attrs["lse"] else {}
        inputs = {"Q": _QUERIES, "K": keys, "V": keys, "cu_seqlens_q": ends, "cu_seqlens_k": ends, **sink}
        return {**inputs, "O": _QUERIES, **lse}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        floats = dict.fromkeys(("sink", "LSE"), "float32")
        return {**floats, "cu_seqlens_q": "int32", "cu_seqlens_k": "int32"}

    def contents(self, workload: Workload) -> "Mapping[str, NDArray[Any]]":
        """Shares of the tokens that differ by a factor of up to 8; keys from before have the same shares."""
        import numpy as np

        batch, _, tokens, _, tokens_kv = workload.dims.values()
        shares = np.cumsum(np.random.default_rng(11).uniform(1, 8, batch))

        def ends(rows: int) -> "NDArray[Any]":
            return np.concatenate([[0], np.rint(shares / shares[-1] * rows)]).astype(np.int32)

        more = tokens_kv - tokens
        keys = ends(tokens) + ends(more) if more >= 0 else ends(tokens_kv)
        return {"cu_seqlens_q": ends(tokens), "cu_seqlens_k": keys}

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        dims, of = workload.dims, "queries or keys of the items"
        sizes = (("cu_seqlens_q", dims["tokens"]), ("cu_seqlens_k", dims["tokens_kv"]))
        return next(filter(None, (not_rising(name, inputs[name], rows, of) for name, rows in sizes)), None)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """All ~ N(0, 1): scores have unit variance after scaling by 1/sqrt(head_dim)."""
        import torch

        generator, known = torch.Generator(device).manual_seed(seed), self.contents(workload)
        return {
            name: torch.from_numpy(known[name]).to(device)
            if name in known
            else torch.randn(
                size, generator=generator, device=device, dtype=getattr(torch, self.dtype_of(name, workload))
            )
            for name, size in self._shapes(workload).items()
            if name not in ("O", "LSE")
        }

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Q is 32 times as large: few keys have nearly all weight, and exp of a score may exceed float32."""
        tensors = self.inputs(workload, device, seed)
        tensors["Q"].mul_(32)
        return SecondInputs(tensors)

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {name: size for name, size in self._shapes(workload).items() if name in ("O", "LSE")}

    def _shapes(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        axes = self.tensor_axes(workload.attrs)
        return {name: shape(axes[name], workload.dims, workload.attrs) for name in axes}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """Softmax attention in float32 without TF32, by items and panels of queries."""
        out, lse = self._attention(workload, inputs, squared=False)
        return {"O": out, "LSE": lse} if workload.attrs["lse"] else {"O": out}

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"O": self._attention(workload, inputs, squared=True)[0]}

    def _attention(
        self, workload: Workload, inputs: Tensors, squared: bool
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        import torch

        out = torch.zeros_like(inputs["Q"], dtype=torch.float32)
        lse = torch.zeros(*out.shape[1::-1], device=out.device)
        for rows, keys in _items(inputs):
            q, k, v = inputs["Q"][rows], inputs["K"][keys], inputs["V"][keys]
            out[rows], lse[:, rows] = item_attention(q, k, v, workload.attrs, inputs.get("sink"), squared)
        return out, lse

    def rounding(self, workload: Workload) -> Rounding:
        """Probabilities are rounded to the dtype before they weight V; their sum is not."""
        longest = int(self._lengths(workload, "cu_seqlens_k").max())
        return Rounding(max(1, longest), inner=workload.dtype, cuts=True)

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch's FlashAttention-2 for cumulative lengths; its attention of each item, and of padded ones.

        Padding and its removal are part of the call; a sink takes the share 1 - sigmoid(LSE - sink) of the
        weight. With a cap there is plain torch alone.
        """
        import torch

        attrs, scale = workload.attrs, softmax_scale(workload.attrs, workload.dims["head_dim"])
        causal, window, group = bool(attrs["causal"]), int(attrs["window"]), int(attrs["group"])
        q, k, v, ends_q, ends_k = (inputs[n] for n in ("Q", "K", "V", "cu_seqlens_q", "cu_seqlens_k"))
        longest = [int(self._lengths(workload, name).max()) for name in ("cu_seqlens_q", "cu_seqlens_k")]
        sides = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
        attention, sink = torch.nn.functional.scaled_dot_product_attention, inputs.get("sink")

        def flash() -> object:
            out, lse, *_ = torch.ops.aten._flash_attention_forward(
                q, k, v, ends_q, ends_k, *longest, 0.0, causal, False, scale=scale, **sides
            )
            if sink is None:
                return out
            return out * (lse - sink[:, None]).sigmoid().T[..., None].to(out.dtype)

        def single() -> object:
            out = torch.zeros_like(q)
            for rows, keys in _items(inputs):
                item = [t.transpose(0, 1)[None] for t in (q[rows], k[keys], v[keys])]
                ago = item[0].shape[2] - item[1].shape[2]
                mask = torch.ones(item[0].shape[2], item[1].shape[2], dtype=torch.bool, device=q.device)
                mask = mask.tril(-ago) if ago else None  # torch's causal mask begins at the first key
                options: dict[str, Any] = {"scale": scale, "enable_gqa": True}
                options |= {"attn_mask": mask} if causal and ago else {"is_causal": causal}
                out[rows] = attention(*item, **options)[0].transpose(0, 1)
            return out

        rows = torch.arange(longest[0], device=q.device)
        places = ends_q[:-1, None] + rows
        within = places < ends_q[1:, None]
        places = places.clamp(max=q.shape[0] - 1)

        def padded() -> object:  # keys of the padding come after all queries
            wide = [t[places].transpose(1, 2) for t in (q, k, v)]
            out = attention(*wide, is_causal=True, scale=scale, enable_gqa=group > 1)
            return out.transpose(1, 2)[within]

        calls: dict[str, Callable[[], object]] = {}
        if q.is_cuda and not attrs["softcap"]:
            calls["FlashAttention-2"] = flash
        if not (attrs["softcap"] or attrs["sinks"] or window):
            calls["torch SDPA of each item"] = single
            if causal and torch.equal(ends_q, ends_k):
                calls["torch SDPA of padded items"] = padded
        if not calls:
            calls["torch"] = lambda: self._attention(workload, inputs, squared=False)[0].to(q.dtype)
        return usable(calls)

    def _lengths(self, workload: Workload, name: str) -> "NDArray[Any]":
        import numpy as np

        return np.diff(self.contents(workload)[name])

    def flops(self, workload: Workload) -> int:
        """Two products of 2 head_dim operations for each pair of a query and a visible key."""
        import numpy as np

        pairs, window = 0, int(workload.attrs["window"])
        lengths = (self._lengths(workload, name).tolist() for name in ("cu_seqlens_q", "cu_seqlens_k"))
        for queries, keys in zip(*lengths, strict=True):
            seen = np.full(queries, keys)
            if workload.attrs["causal"]:
                seen = np.arange(keys - queries + 1, keys + 1).clip(0, window or None)
            pairs += int(seen.sum(dtype=np.int64))
        return 4 * workload.dims["heads"] * workload.dims["head_dim"] * pairs

    def min_bytes(self, workload: Workload) -> int:
        sizes = {name: math.prod(size) for name, size in self._shapes(workload).items()}
        wide = sum(sizes.pop(name) for name in ("Q", "K", "V", "O"))
        return wide * self.element_bytes(workload) + 4 * sum(sizes.values())

    def max_relative_error(self, workload: Workload) -> float:
        """About three times the error of rounding the probabilities and the output to the dtype."""
        return {"bfloat16": 8e-3, "float16": 1e-3}[workload.dtype]


def _items(inputs: Tensors) -> list[tuple[slice, slice]]:
    """The rows of the queries and of the keys of each item."""
    ends = (inputs[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k"))
    rows, keys = ([slice(a, b) for a, b in itertools.pairwise(e)] for e in ends)
    return list(zip(rows, keys, strict=True))


OPERATOR = FlashAttentionVarlen()


class FlashAttentionVarlenGpu(KernelTemplate):
    """The kernels of flash_attention, whose blocks find their item by its cumulative lengths."""

    operator = OPERATOR
    name = "flash_attention_varlen"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    # exp2 and the final division as single instructions; infinities remain correct
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}
    dynamic_dims = ("batch", "tokens", "tokens_kv")
    static_reasons: ClassVar[Mapping[str, str]] = {
        "heads": "it is divided by the number of query heads that share keys",
        "head_dim": "a block keeps whole rows of head_dim elements in registers",
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Tiles of 128 queries and keys, which two groups of threads on Hopper compute in turns."""
        space, hopper = self.space(workload, target), is_hopper(target)
        wanted = {
            "block_m": 128 if hopper else 64,
            "block_n": 128 if hopper else 64,
            "num_stages": 2 if hopper else 1,
            "threads": 256 if hopper else 128,
            "block_order": "by_length" if workload.attrs["causal"] else "by_head",
        }
        if "schedule" in {p.name for p in space.parameters}:
            wanted |= {"schedule": "ping_pong", "persistent": 0}
        return space.closest(Config(wanted))

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, tokens, head_dim, tokens_kv = workload.dims.values()
        attrs, dtype, block_m = workload.attrs, workload.dtype, config.int("block_m")
        causal, sinks, lse = (bool(attrs[n]) for n in ("causal", "sinks", "lse"))
        group, window, softcap = (int(attrs[n]) for n in ("group", "window", "softcap"))
        by_length = config["block_order"] == "by_length"
        shape, key_shape = (tokens, heads, head_dim), (tokens_kv, heads // group, head_dim)
        blocks = block_count(tokens, batch, block_m)
        # the last axis is slowest; causal blocks of the last queries take longest and must not start last
        grid = (heads, 1, blocks) if by_length else (blocks, heads, 1)
        tiles = AttentionTiles(
            block_m,
            config.int("block_n"),
            tokens_kv,
            head_dim,
            causal,
            window,
            softcap,
            dtype,
            softmax_scale(attrs, head_dim),
            packed=True,
        )
        axes, find = OPERATOR.tensor_axes(attrs), item_finder(batch, block_m)
        known = all(isinstance(size, int) for size in workload.dims.values())
        attention = scheduled_attention(tiles, config, known)

        @T.macro
        def place(tensors, i0, i1, i2):  # type: ignore[no-untyped-def]
            head, in_order = (i0, i2) if by_length else (i1, i0)
            index = blocks - 1 - in_order if causal else in_order
            found = T.alloc_var("int32")
            found = 0
            find(tensors["cu_seqlens_q"], index, found)
            item = found
            first, first_key = tensors["cu_seqlens_q"][item], tensors["cu_seqlens_k"][item]
            length = tensors["cu_seqlens_k"][item + 1] - first_key
            before = length - (tensors["cu_seqlens_q"][item + 1] - first)  # position of the first query
            row = before + (index - first // block_m - item) * block_m
            return row, head, head // group, (first - before, first_key), length

        @T.prim_func
        def flash_attention_varlen(  # type: ignore[no-untyped-def]
            Q: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            K: T.Tensor(key_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            V: T.Tensor(key_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            cu_seqlens_q: T.Tensor((batch + 1,), "int32"),  # type: ignore[valid-type]
            cu_seqlens_k: T.Tensor((batch + 1,), "int32"),  # type: ignore[valid-type]
            # a parameter without a tensor is none of the kernel
            sink: T.Tensor((heads,), "float32") if sinks else None,  # type: ignore[valid-type]
            O: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: E741, N803
            LSE: T.Tensor((heads, tokens), "float32") if lse else None,  # type: ignore[valid-type]  # noqa: N803
        ):
            given = {"Q": Q, "K": K, "V": V, "sink": sink, "O": O, "LSE": LSE}
            tensors = {name: given[name] if name in axes else None for name in given}
            ends = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
            attention({**tensors, **ends}, grid, place)

        return flash_attention_varlen


TEMPLATES = (FlashAttentionVarlenGpu(),)
