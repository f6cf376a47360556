"""gated_delta_rule: linear attention that replaces what a key's place in the state holds; template for GPUs.

For each token t of a head, with its key k, value v, query q, logarithm of its decay g, and share beta:

    S = exp(g) S
    S = S + k (beta (v - S^T k))^T
    o = head_k^-0.5 S^T q

It is the layer of Qwen3-Next and of Gated DeltaNet. S is (head_k, head_v), starts with zeros, and is returned
after the last token: decoding continues with it. g and beta are float32.

The template works on chunks. With G the sums of g in a chunk, and
A[i, j] = beta[i] exp(G[i] - G[j]) (k[i] . k[j]) for j < i, the tokens of a chunk write values U that solve

    (I + A) U = beta (V - exp(G) K S)

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.axes import Axes
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import gated_delta_rule as search_space
from ..target.spec import Target
from ._mamba2 import log_decays
from ._vendor_calls import of_packages

if TYPE_CHECKING:
    import torch

MAX_GRID_AXIS = 65535  # blocks along the second and third axis of a CUDA or HIP grid
MAX_KEY = 256  # a block keeps head_k rows of the state in registers
TORCH_CHUNK = 64
SCORE_BYTES = 1 << 30  # weights of tokens that are held at once, for the bounds of errors


class GatedDeltaRule(Operator):
    name = "gated_delta_rule"
    dims = ("batch", "seq_len", "heads", "head_k", "head_v")
    axes: ClassVar[Axes] = {
        "q": ("batch", "seq_len", "heads", "head_k"),
        "k": ("batch", "seq_len", "heads", "head_k"),
        "v": ("batch", "seq_len", "heads", "head_v"),
        "g": ("batch", "seq_len", "heads"),
        "beta": ("batch", "seq_len", "heads"),
        "o": ("batch", "seq_len", "heads", "head_v"),
        "state": ("batch", "heads", "head_k", "head_v"),
    }
    # the layers of Qwen3-Next-80B-A3B (32 heads of values)
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "QN2K": {"batch": 1, "seq_len": 2048, "heads": 32, "head_k": 128, "head_v": 128},
        "QN8K": {"batch": 1, "seq_len": 8192, "heads": 32, "head_k": 128, "head_v": 128},
        "QN8x4K": {"batch": 8, "seq_len": 4096, "heads": 32, "head_k": 128, "head_v": 128},
    }
    default_names = ("QN2K", "QN8x4K")  # few blocks, and many

    def validate(self, workload: Workload) -> None:
        check_heads(self.name, workload)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """q, k of length 1, v ~ N(0, 1), beta = sigmoid(N(0, 1)), decays of a newly initialised layer."""
        import torch

        batch, seq_len, heads, _, _ = workload.dims.values()
        generator = torch.Generator(device).manual_seed(seed)

        def normal(last: str) -> "torch.Tensor":
            shape = (batch, seq_len, heads, workload.dims[last])
            return torch.randn(*shape, generator=generator, device=device)

        dtype = getattr(torch, workload.dtype)
        q, k = (torch.nn.functional.normalize(normal("head_k"), dim=-1).to(dtype) for _ in range(2))
        v = normal("head_v").to(dtype)
        beta = torch.randn(batch, seq_len, heads, generator=generator, device=device).sigmoid_()
        g = log_decays(batch, seq_len, heads, generator)
        return {"q": q, "k": k, "v": v, "g": g, "beta": beta}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return dict.fromkeys(("g", "beta", "state"), "float32")

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        batch, seq_len, heads, head_k, head_v = workload.dims.values()
        return {"o": (batch, seq_len, heads, head_v), "state": (batch, heads, head_k, head_v)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """The recurrence token by token, in float32."""
        import torch

        shapes = self.outputs(workload)
        state = torch.zeros(shapes["state"], device=inputs["q"].device)
        o = torch.empty(shapes["o"], device=state.device)
        for t in range(workload.dims["seq_len"]):
            q, k, v, g, beta = _token(inputs, t)
            o[:, t], state, _ = one_token(q, k, v, g, beta, state)
        return {"o": o, "state": state}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Chunks in torch, as no vendor's library has this operator; flash-linear-attention if installed."""
        q, k, v, g, beta = (inputs[name] for name in ("q", "k", "v", "g", "beta"))

        def triton() -> Callable[[], object]:
            from fla.ops.gated_delta_rule import chunk_gated_delta_rule

            return lambda: chunk_gated_delta_rule(q=q, k=k, v=v, g=g, beta=beta, output_final_state=True)

        return {
            "torch (chunks)": lambda: _by_chunks(q, k, v, g, beta),
            **of_packages(q, {"flash-linear-attention": triton}),
        }

    def flops(self, workload: Workload) -> int:
        """Three products with the state for each token: with its key, with its query, and the update."""
        return 6 * math.prod(workload.dims.values())

    def min_bytes(self, workload: Workload) -> int:
        batch, seq_len, heads, head_k, head_v = workload.dims.values()
        tokens = batch * seq_len * heads
        floats = DTYPE_BYTES["float32"] * (2 * tokens + batch * heads * head_k * head_v)
        return 2 * tokens * (head_k + head_v) * self.element_bytes(workload) + floats

    def max_relative_error(self, workload: Workload) -> float:
        """About three times the error of rounding the state, the written values and weights to the dtype."""
        return {"bfloat16": 1.2e-2, "float16": 1.5e-3}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """Written values and weights are rounded to the dtype, and so is the state before each product."""
        terms = workload.dims["seq_len"] + workload.dims["head_k"]
        return Rounding(terms, inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """Of what tokens add to the last state, and of the larger one of two sums that outputs are.

        A written value is a difference: its errors are those of its terms.
        Kernels round the state, of whose products with q an output is the sum, and the weights of all written
        values: where q and a key are alike, the second sum has larger terms.
        """
        import torch

        shapes = self.outputs(workload)
        state = torch.zeros(shapes["state"], device=inputs["q"].device)
        squares, values = torch.zeros_like(state), torch.empty(shapes["o"], device=state.device)
        o = torch.empty_like(values)
        for t in range(workload.dims["seq_len"]):
            q, k, v, g, beta = _token(inputs, t)
            recalled = (state * (g.exp()[..., None] * k)[..., None]).square_().sum(-2)
            _, state, _ = one_token(q, k, v, g, beta, state)
            values[:, t] = beta.square()[..., None] * (v.square() + recalled)
            o[:, t] = (state * q[..., None]).square_().sum(-2)
            squares *= (2 * g).exp_()[..., None, None]
            squares += k.square()[..., None] * values[:, t, :, None, :]
        for item, of_item in enumerate(o):
            q, k, g = (inputs[name][item].transpose(0, 1).float() for name in ("q", "k", "g"))
            sums, squared_values = g.double().cumsum(-1), values[item].transpose(0, 1)
            panel = max(1, SCORE_BYTES // (16 * g.numel()))
            for first in range(0, len(of_item), panel):
                last = min(first + panel, len(of_item))
                decays = (sums[:, first:last, None] - sums[:, None, :last]).float()
                weights = (q[:, first:last] @ k[:, :last].transpose(1, 2)) * decays.clamp_(max=0).exp_()
                terms = weights.tril_(first).square_() @ squared_values[:, :last]
                of_item[first:last] = of_item[first:last].maximum(terms.transpose(0, 1))
        return {"o": o.sqrt_().mul_(workload.dims["head_k"] ** -0.5), "state": squares.sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Keys that are unit vectors, with beta = 1 and no decay: a memory of whole numbers, overwritten."""
        import torch

        batch, seq_len, heads, head_k, head_v = workload.dims.values()
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        tokens = (batch, seq_len, heads)
        places = torch.randint(head_k, tokens, generator=generator, device=device)
        ones = torch.ones(tokens, device=device)
        return SecondInputs(
            {
                "q": whole_numbers((*tokens, head_k), 2, dtype, generator),
                "k": torch.nn.functional.one_hot(places, head_k).to(dtype),
                "v": whole_numbers((*tokens, head_v), 2, dtype, generator),
                "g": torch.zeros_like(ones),
                "beta": ones,
            },
            is_exact=True,
        )


def check_heads(name: str, workload: Workload) -> None:
    """Raise `WorkloadError` for heads that are too wide for a block, or tensors that are too large."""
    dims = workload.dims
    for dim in ("batch", "heads"):
        if dims[dim] > MAX_GRID_AXIS:
            raise WorkloadError(
                f"{name}: {dim}={dims[dim]} exceeds the {MAX_GRID_AXIS} blocks of a grid axis; split it"
            )
    if dims["head_k"] > MAX_KEY:
        raise WorkloadError(
            f"{name}: head_k={dims['head_k']} exceeds {MAX_KEY}, the most rows of the state that a block can "
            "keep in registers"
        )
    rows = dims["batch"] * dims["heads"]
    for width in ("head_k", "head_v"):
        elements = rows * max(dims.get("seq_len", 1) * dims[width], dims["head_k"] * dims["head_v"])
        if elements > MAX_DIMENSION:
            raise WorkloadError(
                f"{name}: a tensor of {width} would have {elements} elements, and the kernels index at most "
                f"{MAX_DIMENSION}; split the batch"
            )


def _token(inputs: Tensors, t: int) -> "tuple[torch.Tensor, ...]":
    """q, k, v, g and beta of token t, in float32."""
    return tuple(inputs[name][:, t].float() for name in ("q", "k", "v", "g", "beta"))


def one_token(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    g: "torch.Tensor",
    beta: "torch.Tensor",
    state: "torch.Tensor",
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Outputs, new states and written values of one token of each head: the definition, without products."""
    kept = state * g.exp()[..., None, None]
    written = beta[..., None] * (v - (kept * k[..., None]).sum(-2))
    kept.addcmul_(k[..., None], written[..., None, :])
    return (kept * q[..., None]).sum(-2) * q.shape[-1] ** -0.5, kept, written


def _by_chunks(
    q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor", g: "torch.Tensor", beta: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Chunks in torch: products in the dtype, systems of equations in float32, a loop over chunks."""
    import torch

    seq_len, dtype, chunk = q.shape[1], q.dtype, min(TORCH_CHUNK, q.shape[1])
    missing = -seq_len % chunk

    def chunks(tensor: "torch.Tensor") -> "torch.Tensor":  # (batch, heads, chunks, chunk, ...)
        pad = (0, 0) * (tensor.dim() - 2) + (0, missing)
        whole = torch.nn.functional.pad(tensor, pad).transpose(1, 2)
        return whole.unflatten(2, (-1, chunk))

    q, k, v, g, beta = (chunks(tensor) for tensor in (q, k, v, g, beta))
    sums = g.cumsum(-1)
    seen = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril_()
    decays = (sums[..., None] - sums[..., None, :]).masked_fill_(~seen, -torch.inf).exp_()
    system = (k @ k.transpose(-1, -2)).float() * decays * beta[..., None]
    system = system.tril(-1) + torch.eye(chunk, device=q.device)
    grown = beta * sums.exp()
    right = torch.cat([beta[..., None] * v, grown[..., None] * k], -1).float()
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True).to(dtype)
    u, w = solved.split([v.shape[-1], k.shape[-1]], -1)
    weights = (q @ k.transpose(-1, -2) * decays).to(dtype)
    grown_q = (q * sums.exp()[..., None]).to(dtype)
    faded_k = (k * (sums[..., -1:] - sums).exp()[..., None]).to(dtype).transpose(-1, -2)
    state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], device=q.device)
    out = torch.empty_like(v)
    for c in range(q.shape[2]):
        rounded = state.to(dtype)
        written = u[:, :, c] - w[:, :, c] @ rounded
        out[:, :, c] = (grown_q[:, :, c] @ rounded + weights[:, :, c] @ written) * q.shape[-1] ** -0.5
        state = state * sums[:, :, c, -1, None, None].exp() + (faded_k[:, :, c] @ written).float()
    return out.flatten(2, 3)[:, :, :seq_len].transpose(1, 2), state


OPERATOR = GatedDeltaRule()


def scales_of(chunks: tuple[int, ...]) -> Mapping[str, Scale]:
    """What a template scales that loops over a sequence in one of `chunks`."""
    return {"batch": Scale(), "seq_len": Scale(("chunk",), chunks), "heads": Scale()}


class StateTemplate(KernelTemplate):
    """A block has some columns of a head's state in registers, and loops over the chunks of its sequence."""

    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    dynamic_dims = ("batch", "heads")
    static_reasons: ClassVar[Mapping[str, str]] = {
        "seq_len": "TileLang 0.1.15 cannot compile a pipeline of cp.async copies of unknown length",
        "head_k": "a block keeps whole columns of the state in registers",
        "head_v": "rows of v are head_v elements apart, and the copies need rows at whole vectors",
    }


class GatedDeltaRuleGpu(StateTemplate):
    """A block has some columns of a head's state in registers, and loops over the chunks of its sequence.

    Threads invert the blocks of sub_block rows on the diagonal of I + A by substitution, a column each;
    products with the inverse and with what is below it solve the system. Powers of A would be cheaper to
    compute, but with similar keys they are larger than the solution by many orders of magnitude.
    """

    operator = OPERATOR
    name = "gated_delta_rule"
    scales = scales_of(search_space.CHUNKS)
    # exp2 as a single instruction
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Chunks of 32 tokens and 32 columns of the state: enough blocks for the heads of one sequence."""
        space = self.space(workload, target)
        wanted = Config({"chunk": 32, "sub_block": 16, "block_v": 32, "num_stages": 1, "threads": 256})
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, seq_len, heads, head_k, head_v = workload.dims.values()
        dtype, accumulator = workload.dtype, "float32"
        chunk, block_v = config.int("chunk"), config.int("block_v")
        num_stages, threads = config.int("num_stages"), config.int("threads")

        width = -(-head_k // 16) * 16  # a matrix instruction takes 16 elements of a row at once
        sub = config.int("sub_block")
        has_lower = chunk > sub
        log2_e = math.log2(math.e)  # exp2 instead of exp
        scale = head_k**-0.5

        # a thread has a column of the inverse of a block; columns of all blocks lie side by side
        def column(r: Any, c: Any) -> tuple[Any, Any]:
            return c, r

        def row(c: Any) -> tuple[Any, Any]:
            return c, 0

        @T.prim_func
        def gated_delta_rule(  # type: ignore[no-untyped-def]
            q: T.Tensor((batch, seq_len, heads, head_k), dtype),  # type: ignore[valid-type]
            k: T.Tensor((batch, seq_len, heads, head_k), dtype),  # type: ignore[valid-type]
            v: T.Tensor((batch, seq_len, heads, head_v), dtype),  # type: ignore[valid-type]
            g: T.Tensor((batch, seq_len, heads), accumulator),  # type: ignore[valid-type]
            beta: T.Tensor((batch, seq_len, heads), accumulator),  # type: ignore[valid-type]
            o: T.Tensor((batch, seq_len, heads, head_v), dtype),  # type: ignore[valid-type]
            state: T.Tensor((batch, heads, head_k, head_v), accumulator),  # type: ignore[valid-type]
        ):
            with T.Kernel(T.ceildiv(head_v, block_v), heads, batch, threads=threads) as (bv, head, item):
                q_tile = T.alloc_shared((chunk, width), dtype)
                k_tile = T.alloc_shared((chunk, width), dtype)
                v_tile = T.alloc_shared((chunk, block_v), dtype)
                g_tile = T.alloc_shared((chunk,), accumulator)
                beta_tile = T.alloc_shared((chunk,), accumulator)
                decays = T.alloc_shared((chunk,), accumulator)
                a_tile = T.alloc_shared((chunk, chunk + 4), accumulator)  # no two lanes write to one bank
                lower = T.alloc_shared((chunk, chunk), dtype)
                inverse = T.alloc_shared((chunk, chunk), dtype)
                weights = T.alloc_shared((chunk, chunk), dtype)
                right = T.alloc_shared((chunk, block_v), dtype)
                written = T.alloc_shared((chunk, block_v), dtype)
                faded = T.alloc_shared((chunk, block_v), dtype)
                s_tile = T.alloc_shared((width, block_v), dtype)
                o_tile = T.alloc_shared((chunk, block_v), dtype)
                scores = T.alloc_fragment((chunk, chunk), accumulator)
                total = T.alloc_fragment((chunk,), accumulator)
                x = T.alloc_fragment((sub, chunk), accumulator)
                pivot = T.alloc_fragment((chunk,), accumulator)
                rest = T.alloc_fragment((chunk, block_v), accumulator)
                solved = T.alloc_fragment((chunk, block_v), accumulator)
                out = T.alloc_fragment((chunk, block_v), accumulator)
                s = T.alloc_fragment((width, block_v), accumulator)
                T.annotate_layout(
                    {
                        x: T.Fragment((sub, chunk), forward_fn=column),
                        pivot: T.Fragment((chunk,), forward_fn=row),
                    }
                )

                T.clear(s)
                T.clear(s_tile)
                T.clear(inverse)
                # tokens beyond the end are read as zeros: they change nothing
                for c in T.Pipelined(T.ceildiv(seq_len, chunk), num_stages=num_stages):
                    t = c * chunk
                    T.copy(k[item, t : t + chunk, head, 0:width], k_tile, disable_tma=True)
                    T.copy(q[item, t : t + chunk, head, 0:width], q_tile, disable_tma=True)
                    T.copy(
                        v[item, t : t + chunk, head, bv * block_v : (bv + 1) * block_v],
                        v_tile,
                        disable_tma=True,
                    )
                    T.copy(g[item, t : t + chunk, head], g_tile, disable_tma=True)
                    T.copy(beta[item, t : t + chunk, head], beta_tile, disable_tma=True)

                    for i, j in T.Parallel(chunk, chunk):
                        scores[i, j] = T.if_then_else(j <= i, g_tile[j] * log2_e, 0)
                    T.reduce_sum(scores, total, dim=1)
                    T.copy(total, decays)

                    # A: its blocks on the diagonal, and what is below them with the sign changed
                    T.gemm(k_tile, k_tile, scores, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(chunk, chunk):
                        scores[i, j] = T.if_then_else(
                            j < i, scores[i, j] * beta_tile[i] * T.exp2(decays[i] - decays[j]), 0
                        )
                    for i, j in T.Parallel(chunk, chunk):
                        a_tile[j, i] = scores[i, j]  # turned, for loads of several rows at once
                    if has_lower:
                        for i, j in T.Parallel(chunk, chunk):
                            lower[i, j] = T.if_then_else(j // sub < i // sub, -scores[i, j], 0)
                    for r in T.unroll(sub):
                        for i in T.Parallel(chunk):
                            x[r, i] = T.if_then_else(i % sub == r, 1, 0)
                    for j in T.unroll(sub):
                        for i in T.Parallel(chunk):
                            pivot[i] = x[j, i]
                        for r in T.unroll(j + 1, sub):
                            for i in T.Parallel(chunk):
                                x[r, i] -= a_tile[i // sub * sub + j, i // sub * sub + r] * pivot[i]
                    for r in T.unroll(sub):
                        for i in T.Parallel(chunk):
                            inverse[i // sub * sub + r, i] = x[r, i]

                    # the right side, and the values that solve the system
                    T.gemm(k_tile, s_tile, rest, clear_accum=True)
                    for i, j in T.Parallel(chunk, block_v):
                        rest[i, j] = beta_tile[i] * (v_tile[i, j] - T.exp2(decays[i]) * rest[i, j])
                    T.copy(rest, right)
                    T.gemm(inverse, right, solved, clear_accum=True)
                    if has_lower:
                        T.copy(solved, written)
                        T.gemm(lower, written, rest)
                        T.copy(rest, right)
                        T.gemm(inverse, right, solved, clear_accum=True)
                    T.copy(solved, written)

                    # outputs from the state before the chunk, and from the chunk
                    T.gemm(q_tile, s_tile, out, clear_accum=True)
                    for i, j in T.Parallel(chunk, block_v):
                        out[i, j] *= T.exp2(decays[i])
                    T.gemm(q_tile, k_tile, scores, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(chunk, chunk):
                        weights[i, j] = T.if_then_else(
                            j <= i, scores[i, j] * T.exp2(decays[i] - decays[j]), 0
                        )
                    T.gemm(weights, written, out)
                    for i, j in T.Parallel(chunk, block_v):
                        out[i, j] *= scale
                    T.copy(out, o_tile)
                    T.copy(
                        o_tile,
                        o[item, t : t + chunk, head, bv * block_v : (bv + 1) * block_v],
                        disable_tma=True,
                    )

                    # the state after the chunk
                    for i, j in T.Parallel(chunk, block_v):
                        faded[i, j] = solved[i, j] * T.exp2(decays[chunk - 1] - decays[i])
                    for i, j in T.Parallel(width, block_v):
                        s[i, j] *= T.exp2(decays[chunk - 1])
                    T.gemm(k_tile, faded, s, transpose_A=True)
                    T.copy(s, s_tile)
                T.copy(s, state[item, head, 0:width, bv * block_v : (bv + 1) * block_v], disable_tma=True)

        return gated_delta_rule


TEMPLATES = (GatedDeltaRuleGpu(),)
