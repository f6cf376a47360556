"""flash_attention: forward attention without the score matrix in memory, and its template for GPUs.

Tensors have the layout (batch, seq_len, heads, head_dim), as in TileLang's examples. For a query at position
i of a head, O = sum_j w_j V_j / (sum_j w_j + exp(sink)), with w_j = exp(s_j) over the keys j that it sees,
and s_j = scale Q_i K_j. Attributes change what it sees and how much that counts:

causal    keys j <= i only
window    of these the last `window` keys, i - window < j
group     query heads that share one head of K and V
softcap   scores become softcap tanh(s_j / softcap)
sinks     each head has a logit `sink` that takes part of the weight; without it the term exp(sink) is 0
lse       the second output LSE is the logarithm of the denominator
lengths   "mixed": item b of the batch has length[b] positions; the outputs beyond them are 0
scale     0 stands for 1 / sqrt(head_dim)

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Axis, Parts, shape
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import flash_attention as search_space
from ..search_spaces.matrix_unit import is_hopper
from ..target.spec import Target
from ._attention_tiles import AttentionTiles
from ._attention_weights import item_attention
from ._item_lengths import length_contents, length_fault, lengths_of
from ._scheduled_attention import scheduled_attention, tiles_of_queries
from ._softmax_scale import check_scale, softmax_scale
from ._vendor_calls import usable

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

MAX_GRID_AXIS = 65535  # blocks along the second and third axis of a CUDA or HIP grid


class FlashAttention(Operator):
    name = "flash_attention"
    dims = ("batch", "heads", "seq_len", "head_dim")
    attrs: ClassVar[Mapping[str, Value]] = {
        "causal": False,
        "group": 1,
        "window": 0,
        "softcap": 0,
        "sinks": False,
        "lse": False,
        "lengths": "full",
        "scale": 0.0,
    }
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {"lengths": ("full", "mixed")}
    later_attrs = ("group", "window", "softcap", "sinks", "lse", "lengths", "scale")
    axes: ClassVar[Axes] = dict.fromkeys(("Q", "K", "V", "O"), ("batch", "seq_len", "heads", "head_dim"))
    # FA0 .. FA4: TileLang paper, appendix A; then long sequences, other widths of heads, and layers of
    # Llama 3 8B, of gpt-oss-120b (with sliding window) and of Gemma 2 9B
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "FA0": {"batch": 1, "heads": 32, "seq_len": 512, "head_dim": 128, "causal": True},
        "FA1": {"batch": 1, "heads": 32, "seq_len": 512, "head_dim": 128, "causal": False},
        "FA2": {"batch": 1, "heads": 32, "seq_len": 1024, "head_dim": 128, "causal": True},
        "FA3": {"batch": 1, "heads": 32, "seq_len": 1024, "head_dim": 128, "causal": False},
        "FA4": {"batch": 1, "heads": 32, "seq_len": 4096, "head_dim": 128, "causal": True},
        "FA8K": {"batch": 4, "heads": 32, "seq_len": 8192, "head_dim": 128, "causal": True},
        "HD64": {"batch": 4, "heads": 32, "seq_len": 2048, "head_dim": 64, "causal": True},
        "HD96": {"batch": 4, "heads": 32, "seq_len": 2048, "head_dim": 96, "causal": True},
        "HD192": {"batch": 2, "heads": 16, "seq_len": 4096, "head_dim": 192, "causal": True},
        "HD256": {"batch": 2, "heads": 16, "seq_len": 4096, "head_dim": 256, "causal": True},
        "LLAMA": {"batch": 1, "heads": 32, "seq_len": 8192, "head_dim": 128, "causal": True, "group": 4},
        "GPTOSS": {
            "batch": 1,
            "heads": 64,
            "seq_len": 4096,
            "head_dim": 64,
            "causal": True,
            "group": 8,
            "window": 128,
            "sinks": True,
        },
        "GEMMA": {
            "batch": 1,
            "heads": 16,
            "seq_len": 8192,
            "head_dim": 256,
            "causal": True,
            "group": 2,
            "window": 4096,
            "softcap": 50,
        },
    }
    default_names = ("FA0", "FA1", "FA4")  # short and long, causal and not: 253 candidates on Hopper

    def validate(self, workload: Workload) -> None:
        dims = workload.dims
        elements = math.prod(dims.values())
        if elements > MAX_DIMENSION:
            raise WorkloadError(
                f"flash_attention: each tensor would have {elements} elements, and the kernels index at most "
                f"{MAX_DIMENSION}; "
                "split the batch"
            )
        for dim in ("batch", "heads"):
            if dims[dim] > MAX_GRID_AXIS:
                raise WorkloadError(
                    f"flash_attention: {dim}={dims[dim]} exceeds the {MAX_GRID_AXIS} blocks of a grid axis; "
                    "split it"
                )
        if dims["head_dim"] > 256:
            raise WorkloadError(
                f"flash_attention: head_dim={dims['head_dim']} exceeds 256, the widest row whose output a "
                "block can keep in registers"
            )
        group, window, softcap = (int(self.attribute(workload.attrs, n)) for n in self.later_attrs[:3])
        if group < 1 or dims["heads"] % group:
            raise WorkloadError(
                f"flash_attention: group={group} must be at least 1 and divide heads={dims['heads']}, since "
                "that many query heads share a head of K and V"
            )
        if window < 0 or softcap < 0:
            raise WorkloadError(
                f"flash_attention: window={window} and softcap={softcap} must not be negative; 0 means none"
            )
        if window and not workload.attrs["causal"]:
            raise WorkloadError(
                f"flash_attention: window={window} needs causal=true, since a window ends at its query"
            )

        check_scale("flash_attention", workload.attrs)

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        group, query = int(self.attribute(attrs, "group")), self.axes["Q"]
        keys = query if group == 1 else ("batch", "seq_len", Parts("heads", group), "head_dim")
        found: dict[str, tuple[Axis, ...]] = {"Q": query, "K": keys, "V": keys}
        if self.attribute(attrs, "sinks"):
            found["sink"] = ("heads",)
        if self.attribute(attrs, "lengths") == "mixed":
            found["length"] = ("batch",)
        found["O"] = query
        if self.attribute(attrs, "lse"):
            found["LSE"] = ("batch", "heads", "seq_len")
        return found

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"sink": "float32", "length": "int32", "LSE": "float32"}

    def contents(self, workload: Workload) -> "Mapping[str, NDArray[Any]]":
        return length_contents(self, workload)

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        return length_fault(workload, inputs)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """All ~ N(0, 1): scores have unit variance after scaling by 1/sqrt(head_dim)."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        known = self.contents(workload)
        return {
            name: torch.from_numpy(known[name]).to(device)
            if name in known
            else torch.randn(
                *extents,
                generator=generator,
                device=device,
                dtype=getattr(torch, self.dtype_of(name, workload)),
            )
            for name, extents in self._shapes(workload).items()
            if name not in ("O", "LSE")
        }

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {name: size for name, size in self._shapes(workload).items() if name in ("O", "LSE")}

    def _shapes(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        axes = self.tensor_axes(workload.attrs)
        return {name: shape(axes[name], workload.dims, workload.attrs) for name in axes}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """Softmax attention in float32 without TF32, by items of the batch and panels of queries."""
        out, logarithms = _attention(workload, inputs, squared=False)
        return {"O": out, "LSE": logarithms} if self.attribute(workload.attrs, "lse") else {"O": out}

    def rounding(self, workload: Workload) -> Rounding:
        """Probabilities are rounded to the dtype before they weight V; their sum is not."""
        return Rounding(workload.dims["seq_len"], inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"O": _attention(workload, inputs, squared=True)[0]}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Q is 32 times as large: few keys have nearly all weight, and exp of a score may exceed float32."""
        tensors = self.inputs(workload, device, seed)
        tensors["Q"].mul_(32)
        return SecondInputs(tensors)

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """The attention of torch and its libraries that takes this workload, each called directly.

        Without a window, a cap, sinks or lengths these are the backends that
        `torch.nn.functional.scaled_dot_product_attention` dispatches to. Its dispatch takes several
        microseconds per call, which would distort times of short sequences. The inputs are transposed views.
        Else these are FlashAttention-2 with a window, to whose output sinks are applied, and FlexAttention.
        """
        import torch

        window, softcap, sinks, lengths = (
            self.attribute(workload.attrs, name) for name in ("window", "softcap", "sinks", "lengths")
        )
        q, k, v = (inputs[name].transpose(1, 2) for name in ("Q", "K", "V"))
        group, causal = int(self.attribute(workload.attrs, "group")), bool(workload.attrs["causal"])
        scale = softmax_scale(workload.attrs, q.shape[-1])
        calls: dict[str, Callable[[], object]] = {}
        if not (window or softcap or sinks or lengths == "mixed"):
            backends: dict[str, tuple[str, tuple[object, ...]]] = {
                "FlashAttention-2": ("_scaled_dot_product_flash_attention", (0.0, causal)),
                "cuDNN attention": ("_scaled_dot_product_cudnn_attention", (None, False, 0.0, causal)),
                "memory-efficient attention": (
                    "_scaled_dot_product_efficient_attention",
                    (None, False, 0.0, causal),
                ),
                "torch attention on the CPU": ("_scaled_dot_product_flash_attention_for_cpu", (0.0, causal)),
            }
            wide = (k, v) if group == 1 else (t.repeat_interleave(group, 1) for t in (k, v))
            wide_k, wide_v = wide
            for name, (operator, arguments) in backends.items():
                found = getattr(torch.ops.aten, operator, None)
                # FlashAttention-2 shares heads of keys itself; the others get copies
                own = (k, v) if name == "FlashAttention-2" else (wide_k, wide_v)
                calls[name] = _bind(found, q, *own, arguments, scale)
        else:
            if not (softcap or lengths == "mixed"):
                calls["FlashAttention-2"] = _windowed(workload, inputs)
            if q.is_cuda and not sinks:
                calls["FlexAttention"] = _flex(workload, q, k, v, inputs.get("length"))
            calls["torch"] = lambda: _attention(workload, inputs, squared=False)[0].to(inputs["Q"].dtype)
        return usable(calls)

    def flops(self, workload: Workload) -> int:
        """Two products of 2 head_dim operations for each pair of a query and a visible key.

        A query at position i sees all keys of its item; i + 1 of them if causal, and at most `window`. The
        softmax is not counted.
        """
        most = int(self.attribute(workload.attrs, "window")) or workload.dims["seq_len"]

        def pairs(length: int) -> int:
            if not workload.attrs["causal"]:
                return length**2
            first = min(most, length)  # queries that see all keys before them
            return first * (first + 1) // 2 + (length - first) * most

        total = sum(map(pairs, lengths_of(self, workload)))
        return 4 * workload.dims["heads"] * total * workload.dims["head_dim"]

    def min_bytes(self, workload: Workload) -> int:
        """Positions beyond the length of an item are not read, and their outputs are written."""
        batch, heads, seq_len, head_dim = workload.dims.values()
        read = 2 * heads // int(self.attribute(workload.attrs, "group")) + heads
        elements = (read * sum(lengths_of(self, workload)) + heads * batch * seq_len) * head_dim
        more = heads * bool(self.attribute(workload.attrs, "sinks"))
        more += batch * heads * seq_len * bool(self.attribute(workload.attrs, "lse"))
        return elements * self.element_bytes(workload) + 4 * more

    def max_relative_error(self, workload: Workload) -> float:
        """About three times the error of rounding the probabilities and the output to the dtype."""
        return {"bfloat16": 8e-3, "float16": 1e-3}[workload.dtype]


def _attention(workload: Workload, inputs: Tensors, squared: bool) -> "tuple[torch.Tensor, torch.Tensor]":
    """The output, or the root of the sum of its squared terms (weight times value), and LSE, in float32."""
    import torch

    q, k, v = (inputs[name] for name in ("Q", "K", "V"))
    out = torch.zeros_like(q, dtype=torch.float32)
    logarithms = torch.zeros(q.shape[0], *q.shape[2:0:-1], device=q.device)
    for item in range(q.shape[0]):
        length = int(inputs["length"][item]) if "length" in inputs else q.shape[1]
        found, lse = item_attention(
            q[item, :length],
            k[item, :length],
            v[item, :length],
            workload.attrs,
            inputs.get("sink"),
            squared,
        )
        out[item, :length], logarithms[item, :, :length] = found, lse
    return out, logarithms


def _bind(
    operator: Any, q: Any, k: Any, v: Any, arguments: tuple[object, ...], scale: float
) -> Callable[[], object]:
    def call() -> object:
        if operator is None:
            raise NotImplementedError
        return operator(q, k, v, *arguments, scale=scale)

    return call


def _windowed(workload: Workload, inputs: Tensors) -> Callable[[], object]:
    """FlashAttention-2 with a window; a sink takes the share 1 - sigmoid(LSE - sink) of the weight."""
    import torch

    q, k, v = (inputs[name] for name in ("Q", "K", "V"))
    most = (int(OPERATOR.attribute(workload.attrs, "window")) or q.shape[1]) - 1
    sink, scale = inputs.get("sink"), softmax_scale(workload.attrs, q.shape[-1])

    def call() -> object:
        lengths = (q.shape[1], k.shape[1])
        out, logarithms, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, *lengths, 0.0, bool(workload.attrs["causal"]), False,
            window_size_left=most, window_size_right=0 if workload.attrs["causal"] else -1,
            scale=scale,
        )  # fmt: skip
        if sink is None:
            return out
        share = (logarithms - sink[:, None]).sigmoid()
        return out * share.transpose(1, 2)[..., None].to(out.dtype)

    return call


def _flex(workload: Workload, q: Any, k: Any, v: Any, lengths: Any) -> Callable[[], object]:
    """FlexAttention as torch.compile makes it, with the mask of blocks made before."""
    import torch
    from torch.nn.attention import flex_attention as flex

    group, window, softcap = (int(OPERATOR.attribute(workload.attrs, n)) for n in OPERATOR.later_attrs[:3])
    seq_len, scale = q.shape[2], softmax_scale(workload.attrs, q.shape[3])

    def seen(item: Any, _head: Any, query: Any, key: Any) -> Any:
        found = key <= query if workload.attrs["causal"] else key < seq_len
        found = found & (query - key < window) if window else found
        return found if lengths is None else found & (key < lengths[item])

    def capped(score: Any, _item: Any, _head: Any, _query: Any, _key: Any) -> Any:
        return softcap * torch.tanh(score / softcap)

    items = None if lengths is None else q.shape[0]
    mask = flex.create_block_mask(seen, items, None, seq_len, seq_len, device=q.device)
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    change = capped if softcap else None

    def call() -> object:
        return compiled(q, k, v, score_mod=change, block_mask=mask, enable_gqa=group > 1, scale=scale)

    return call


OPERATOR = FlashAttention()


class FlashAttentionGpu(KernelTemplate):
    """A block has a tile of queries and loops over tiles of keys and values, with an online softmax."""

    operator = OPERATOR
    name = "flash_attention"
    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    # exp2 and the final division as single instructions; infinities remain correct
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}
    scales: ClassVar[Mapping[str, Scale]] = {
        "batch": Scale(),
        "heads": Scale(),
        "seq_len": Scale(("block_m", "block_n"), search_space.TILES),
    }
    dynamic_dims = ("batch", "heads", "seq_len")
    static_reasons: ClassVar[Mapping[str, str]] = {
        "head_dim": "a block keeps whole rows of head_dim elements in registers"
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Tiles of 128 queries and keys (64 with little shared memory), single-buffered keys and values.

        Three warpgroups on Hopper where heads of up to 96 leave room.
        """
        space = self.space(workload, target)
        large = target.int("core.memory.shared.block_bytes") > 128 * 1024
        rows, keys = (128, 128) if large else (64, 64)
        threads = 256
        if is_hopper(target) and workload.dims["head_dim"] <= 96 and workload.dims["seq_len"] >= 1024:
            rows, threads = 192, 384
        order = "by_length" if workload.attrs["causal"] else "by_head"
        wanted = Config(
            {"block_m": rows, "block_n": keys, "num_stages": 1, "threads": threads, "block_order": order}
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, seq_len, head_dim = workload.dims.values()
        causal, dtype = bool(workload.attrs["causal"]), workload.dtype
        group, window, softcap = (
            int(OPERATOR.attribute(workload.attrs, n)) for n in OPERATOR.later_attrs[:3]
        )
        sinks, lse = (bool(OPERATOR.attribute(workload.attrs, name)) for name in ("sinks", "lse"))
        mixed = OPERATOR.attribute(workload.attrs, "lengths") == "mixed"
        block_m, block_n = config.int("block_m"), config.int("block_n")

        shape = (batch, seq_len, heads, head_dim)
        key_shape = shape if group == 1 else (batch, seq_len, heads // group, head_dim)
        grid, place = tiles_of_queries((batch, heads, seq_len), group, config, causal)
        axes = OPERATOR.tensor_axes(workload.attrs)
        scale = softmax_scale(workload.attrs, head_dim)
        tiles = AttentionTiles(block_m, block_n, seq_len, head_dim, causal, window, softcap, dtype, scale)

        known = all(isinstance(size, int) for size in (batch, heads, seq_len))
        attention = scheduled_attention(tiles, config, known)

        @T.prim_func
        def flash_attention(  # type: ignore[no-untyped-def]
            Q: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            K: T.Tensor(key_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            V: T.Tensor(key_shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            # a parameter without a tensor is none of the kernel
            sink: T.Tensor((heads,), "float32") if sinks else None,  # type: ignore[valid-type]
            length: T.Tensor((batch,), "int32") if mixed else None,  # type: ignore[valid-type]
            O: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: E741, N803
            LSE: T.Tensor((batch, heads, seq_len), "float32") if lse else None,  # type: ignore[valid-type]  # noqa: N803
        ):
            tensors = {"Q": Q, "K": K, "V": V, "sink": sink, "length": length, "O": O, "LSE": LSE}
            attention({name: tensors[name] if name in axes else None for name in tensors}, grid, place)

        return flash_attention


TEMPLATES = (FlashAttentionGpu(),)
