"""flash_attention: forward attention without the score matrix in memory, and its template for GPUs.

Tensors have the layout (batch, seq_len, heads, head_dim), as in TileLang's examples.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import flash_attention as search_space
from ..target.spec import Target
from ._online_softmax import online_softmax

if TYPE_CHECKING:
    import torch

MAX_GRID_AXIS = 65535  # blocks along the second and third axis of a CUDA or HIP grid
SCORE_BYTES = 1 << 30  # the reference holds at most this much of the score matrix at once


class FlashAttention(Operator):
    name = "flash_attention"
    dims = ("batch", "heads", "seq_len", "head_dim")
    attrs: ClassVar[Mapping[str, Value]] = {"causal": False}
    axes: ClassVar[Axes] = dict.fromkeys(("Q", "K", "V", "O"), ("batch", "seq_len", "heads", "head_dim"))
    # TileLang paper, appendix A
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "FA0": {"batch": 1, "heads": 32, "seq_len": 512, "head_dim": 128, "causal": True},
        "FA1": {"batch": 1, "heads": 32, "seq_len": 512, "head_dim": 128, "causal": False},
        "FA2": {"batch": 1, "heads": 32, "seq_len": 1024, "head_dim": 128, "causal": True},
        "FA3": {"batch": 1, "heads": 32, "seq_len": 1024, "head_dim": 128, "causal": False},
        "FA4": {"batch": 1, "heads": 32, "seq_len": 4096, "head_dim": 128, "causal": True},
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

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """Q, K, V ~ N(0, 1): scores have unit variance after scaling by 1/sqrt(head_dim)."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        dtype = getattr(torch, workload.dtype)
        return {
            name: torch.randn(*_shape(workload), generator=generator, device=device, dtype=dtype)
            for name in ("Q", "K", "V")
        }

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"O": _shape(workload)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """Softmax attention in float32 without TF32, by items of the batch and panels of queries."""
        return {"O": _attention(workload, inputs, squared=False)}

    def rounding(self, workload: Workload) -> Rounding:
        """Probabilities are rounded to the dtype before they weight V; their sum is not."""
        return Rounding(workload.dims["seq_len"], inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"O": _attention(workload, inputs, squared=True).sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Q is 32 times as large: few keys have nearly all weight, and exp of a score may exceed float32."""
        tensors = self.inputs(workload, device, seed)
        tensors["Q"].mul_(32)
        return SecondInputs(tensors)

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """The backends of scaled_dot_product_attention that take this workload, each called directly.

        They are the operators that `torch.nn.functional.scaled_dot_product_attention` dispatches to. Its
        dispatch takes several microseconds per call, which would distort times of short sequences. The inputs
        are transposed views.
        """
        import torch

        q, k, v = (inputs[name].transpose(1, 2) for name in ("Q", "K", "V"))
        causal = bool(workload.attrs["causal"])
        backends: dict[str, tuple[str, tuple[object, ...]]] = {
            "FlashAttention-2": ("_scaled_dot_product_flash_attention", (0.0, causal)),
            "cuDNN attention": ("_scaled_dot_product_cudnn_attention", (None, False, 0.0, causal)),
            "memory-efficient attention": (
                "_scaled_dot_product_efficient_attention",
                (None, False, 0.0, causal),
            ),
            "torch attention on the CPU": ("_scaled_dot_product_flash_attention_for_cpu", (0.0, causal)),
        }
        usable: dict[str, Callable[[], object]] = {}
        for name, (operator, arguments) in backends.items():
            call = _bind(getattr(torch.ops.aten, operator, None), q, k, v, arguments)
            try:
                call()
            except (RuntimeError, NotImplementedError, TypeError):
                continue  # not in this build of torch, or not for this device, dtype or head_dim
            usable[name] = call
        return usable

    def flops(self, workload: Workload) -> int:
        """Two products of 2 head_dim operations for each pair of a query and a visible key.

        A head has seq_len^2 pairs, or seq_len (seq_len + 1) / 2 if causal. The softmax is not counted.
        """
        batch, heads, seq_len, head_dim = workload.dims.values()
        pairs = seq_len * (seq_len + 1) // 2 if workload.attrs["causal"] else seq_len**2
        return 4 * batch * heads * pairs * head_dim

    def min_bytes(self, workload: Workload) -> int:
        return 4 * math.prod(workload.dims.values()) * self.element_bytes(workload)

    def max_relative_error(self, workload: Workload) -> float:
        """About three times the error of rounding the probabilities and the output to the dtype."""
        return {"bfloat16": 8e-3, "float16": 1e-3}[workload.dtype]


def _attention(workload: Workload, inputs: Tensors, squared: bool) -> "torch.Tensor":
    """The output, or the sum of the squares of its terms (weight times value), in float32.

    Squared weights are at least the smallest normal number of the dtype: the rounding errors of smaller ones
    are those of that number.
    """
    import torch

    q, k, v = (inputs[name].float().permute(0, 2, 1, 3) for name in ("Q", "K", "V"))
    v = v.square() if squared else v
    least = torch.finfo(inputs["V"].dtype).tiny
    batch, heads, seq_len, head_dim = q.shape
    out = torch.empty_like(inputs["Q"], dtype=torch.float32)
    keys = torch.arange(seq_len, device=q.device)
    panel = max(1, SCORE_BYTES // (4 * heads * seq_len))
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        for b in range(batch):
            for start in range(0, seq_len, panel):
                queries = slice(start, min(start + panel, seq_len))
                scores = q[b, :, queries] @ k[b].transpose(1, 2) * head_dim**-0.5
                if workload.attrs["causal"]:
                    scores.masked_fill_(keys[None, :] > keys[queries, None], -torch.inf)
                weights = scores.softmax(-1)
                if squared:
                    weights.clamp_(min=least).square_()
                out[b, queries] = (weights @ v[b]).transpose(0, 1)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return out


def _shape(workload: Workload) -> tuple[int, ...]:
    return tuple(workload.dims[d] for d in ("batch", "seq_len", "heads", "head_dim"))


def _bind(operator: Any, q: Any, k: Any, v: Any, arguments: tuple[object, ...]) -> Callable[[], object]:
    def call() -> object:
        if operator is None:
            raise NotImplementedError
        return operator(q, k, v, *arguments)

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
        """Tiles of 128 queries and keys (64 with little shared memory), single-buffered keys and values."""
        space = self.space(workload, target)
        large = target.int("core.memory.shared.block_bytes") > 128 * 1024
        rows, keys = (128, 128) if large else (64, 64)
        order = "by_length" if workload.attrs["causal"] else "by_head"
        wanted = Config(
            {"block_m": rows, "block_n": keys, "num_stages": 1, "threads": 256, "block_order": order}
        )
        return wanted if wanted in space else next(iter(space.nearest(wanted, 1)), None)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, seq_len, head_dim = workload.dims.values()
        causal, dtype, accumulator = bool(workload.attrs["causal"]), workload.dtype, "float32"
        block_m, block_n = config.int("block_m"), config.int("block_n")
        num_stages, threads = config.int("num_stages"), config.int("threads")
        by_length = config["block_order"] == "by_length"

        shape = (batch, seq_len, heads, head_dim)
        width = -(-head_dim // 16) * 16  # a matrix instruction takes 16 elements of a row at once
        query_blocks, key_blocks = (seq_len + block_m - 1) // block_m, (seq_len + block_n - 1) // block_n
        # the last axis is slowest; causal blocks of the last queries take longest and must not start last
        grid = (heads, batch, query_blocks) if by_length else (query_blocks, heads, batch)
        masked = causal or not isinstance(seq_len, int) or seq_len % block_n != 0
        scale = head_dim**-0.5 * math.log2(math.e)  # exp2 instead of exp
        policy = T.GemmWarpPolicy.FullRow  # the softmax of a row is computed within one warp
        update = online_softmax(block_m, block_n, scale)

        @T.prim_func
        def flash_attention(  # type: ignore[no-untyped-def]
            Q: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            K: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            V: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: N803
            O: T.Tensor(shape, dtype),  # type: ignore[valid-type]  # noqa: E741, N803
        ):
            with T.Kernel(*grid, threads=threads) as (i0, i1, i2):
                head, item = (i0, i1) if by_length else (i1, i2)
                in_order = i2 if by_length else i0
                row = (query_blocks - 1 - in_order if causal else in_order) * block_m

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
                T.copy(Q[item, row : row + block_m, head, 0:width], q_tile)
                T.fill(o_sum, 0)
                T.fill(row_sum, 0)
                T.fill(row_max, -T.infinity(accumulator))

                # a causal block needs no keys after its last query
                trips = T.min(key_blocks, T.ceildiv(row + block_m, block_n)) if causal else key_blocks
                for ko in T.Pipelined(trips, num_stages=num_stages):
                    T.copy(K[item, ko * block_n : (ko + 1) * block_n, head, 0:width], k_tile)
                    T.gemm(q_tile, k_tile, scores, transpose_B=True, policy=policy, clear_accum=True)
                    # only tiles on the diagonal or at the end have masked keys; this is checked at run time
                    if masked:  # noqa: SIM102
                        if (ko + 1) * block_n > (row + 1 if causal else seq_len):
                            for i, j in T.Parallel(block_m, block_n):
                                seen = ko * block_n + j < (row + i + 1 if causal else seq_len)
                                scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity(accumulator))

                    update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                    T.copy(scores, weights)
                    for i, j in T.Parallel(block_m, width):
                        o_sum[i, j] *= rescale[i]

                    T.copy(V[item, ko * block_n : (ko + 1) * block_n, head, 0:width], v_tile)
                    T.gemm(weights, v_tile, o_sum, policy=policy)

                for i in T.Parallel(block_m):
                    row_sum[i] = 1 / row_sum[i]
                for i, j in T.Parallel(block_m, width):
                    o_sum[i, j] *= row_sum[i]
                T.copy(o_sum, o_tile)
                T.copy(o_tile, O[item, row : row + block_m, head, 0:width])

        return flash_attention


TEMPLATES = (FlashAttentionGpu(),)
