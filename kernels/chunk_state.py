"""chunk_state: the state that each chunk of a Mamba-2 sequence adds to its head, and its template for GPUs.

states[b, c, h, p, n] = sum over the tokens l of chunk c of x[b, l, h, p] B[b, l, n] dt[l] exp(dA_cumsum[last]
- dA_cumsum[l])

Tensors have the layout of Mamba-2's kernels, with one group of B for all heads. x, B and states have the
workload's dtype, as in TileLang's benchmark. dt and dA_cumsum are float32, as Mamba-2's chunk_cumsum writes
them: a sum of -1000 has no digit after the point in bfloat16. The last chunk is padded with dt = 0, so that
dA_cumsum stays constant there.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..problem.axes import Axes, Parts
from ..problem.operator import Tensors
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.workload import Workload
from ..search_spaces import chunk_state as search_space
from ..target.spec import Target
from ._exact_products import exact_products
from ._mamba2 import (
    ChunkOperator,
    ChunkTemplate,
    grid_of,
    published,
    steps_and_decays,
    whole_chunks,
    whole_steps,
)
from ._resident_chunks import heads_of_a_wave, resident_state
from ._vendor_calls import of_packages
from ._warp_policy import warp_policy

if TYPE_CHECKING:
    import torch

PANEL_BYTES = 1 << 30  # the reference holds at most this much of x in float32 at once
DECAY_BYTES = 4  # dt and dA_cumsum are float32
FEWEST_HEADS = 4  # of a block that keeps B: with fewer, tiles of their own are as fast


class ChunkState(ChunkOperator):
    name = "chunk_state"
    axes: ClassVar[Axes] = {
        "x": ("batch", "seq_len", "nheads", "head_dim"),
        "B": ("batch", "seq_len", "d_state"),
        "dt": ("batch", "nheads", Parts("seq_len", "chunk"), "chunk"),
        "dA_cumsum": ("batch", "nheads", Parts("seq_len", "chunk"), "chunk"),
        "states": ("batch", Parts("seq_len", "chunk"), "nheads", "head_dim", "d_state"),
    }
    named = published("CT")
    default_names = ("CT0", "CT2", "CT4")  # a few blocks, many, and very many

    def validate(self, workload: Workload) -> None:
        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        chunk = int(workload.attrs["chunk"])
        chunks = -(-seq_len // chunk)
        # whole tiles extend beyond the edges: to the end of the last sequence's chunk, and of the last tile
        # of a row
        tokens = (batch - 1) * seq_len + chunks * chunk
        over_p, over_n = search_space.overhang(head_dim), search_space.overhang(d_state)
        reach = {
            "x": tokens * nheads * head_dim + over_p,
            "B": tokens * d_state + over_n,
            "dt": batch * nheads * chunks * chunk,
            "states": batch * chunks * nheads * head_dim * d_state + over_p * d_state + over_n,
        }
        self.check(workload, reach)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """x, B ~ N(0, 1); dt and dA_cumsum of a newly initialised layer."""
        import torch

        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        generator = torch.Generator(device).manual_seed(seed)
        dt, sums = steps_and_decays(batch, seq_len, nheads, int(workload.attrs["chunk"]), generator)
        dtype = getattr(torch, workload.dtype)
        x = torch.randn(batch, seq_len, nheads, head_dim, generator=generator, device=device, dtype=dtype)
        b = torch.randn(batch, seq_len, d_state, generator=generator, device=device, dtype=dtype)
        return {"x": x, "B": b, "dt": dt, "dA_cumsum": sums}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"dt": "float32", "dA_cumsum": "float32"}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        return {"states": (batch, -(-seq_len // int(workload.attrs["chunk"])), nheads, head_dim, d_state)}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """In float32 without TF32, by panels of chunks: one product of scaled x^T and B per chunk."""
        import torch

        x, b = inputs["x"], inputs["B"]
        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        chunk, shape = int(workload.attrs["chunk"]), self.outputs(workload)["states"]
        states = torch.empty(shape, dtype=torch.float32, device=x.device)
        panel = max(1, PANEL_BYTES // (4 * chunk * nheads * head_dim))
        with exact_products():
            for item in range(batch):
                factors = _factors(inputs["dt"][item], inputs["dA_cumsum"][item]).permute(1, 2, 0)
                for first in range(0, shape[1], panel):
                    last = min(first + panel, shape[1])
                    tokens = slice(first * chunk, min(last * chunk, seq_len))
                    scaled = whole_chunks(x[item, tokens].float(), chunk) * factors[first:last, ..., None]
                    rows = whole_chunks(b[item, tokens].float(), chunk)
                    product = scaled.flatten(2).transpose(1, 2) @ rows
                    states[item, first:last] = product.view(last - first, nheads, head_dim, d_state)
        return {"states": states}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch, as no vendor's library has this operator, and Mamba-2's kernel if installed.

        In torch x is scaled, then einsum multiplies in batches. Sequences that end within a chunk are padded
        before, not in the call that is timed.
        """
        import torch

        chunk = int(workload.attrs["chunk"])
        x, b = (torch.stack([whole_chunks(item, chunk) for item in inputs[name]]) for name in ("x", "B"))
        dt, sums = inputs["dt"], inputs["dA_cumsum"]

        def product() -> object:
            factors = _factors(dt, sums).to(x.dtype).permute(0, 2, 3, 1)
            return torch.einsum("bclhp,bcln->bchpn", x * factors[..., None], b)

        def triton() -> Callable[[], object]:
            from mamba_ssm.ops.triton.ssd_chunk_state import _chunk_state_fwd

            of_group, shape = inputs["B"][:, :, None], self.outputs(workload)["states"]
            states = torch.empty(shape, dtype=b.dtype, device=b.device)
            return lambda: _chunk_state_fwd(of_group, inputs["x"], dt, sums, states=states)

        return {"torch (einsum)": product, **of_packages(b, {"mamba_ssm (Triton)": triton})}

    def flops(self, workload: Workload) -> int:
        """Operations of the product; the decay, a few operations per token and head, is not counted."""
        return 2 * math.prod(workload.dims.values())

    def min_bytes(self, workload: Workload) -> int:
        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        tokens = batch * seq_len
        elements = tokens * (nheads * head_dim + d_state) + math.prod(self.outputs(workload)["states"])
        return elements * self.element_bytes(workload) + 2 * DECAY_BYTES * tokens * nheads

    def max_relative_error(self, workload: Workload) -> float:
        """About twice the error of rounding the scaled x and the states to the dtype (2.4e-3, 2.9e-4).

        Less than half of the contribution of the first, most decayed, 32 tokens of each chunk (1.1e-2).
        """
        return {"bfloat16": 5e-3, "float16": 7e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """x times its decay is rounded to the dtype before the product with B."""
        return Rounding(int(workload.attrs["chunk"]), inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        import torch

        squares = {name: inputs[name].to(torch.bfloat16).square() for name in ("x", "B")}
        squares["dt"] = inputs["dt"].square()
        squares["dA_cumsum"] = 2 * inputs["dA_cumsum"]  # the square of a decay
        # the error of a scaled x below the smallest normal number is that of this number
        least = (
            torch.finfo(inputs["x"].dtype).tiny ** 2
            * int(workload.attrs["chunk"])
            * float(squares["B"].mean())
        )
        return {"states": self.reference(workload, squares)["states"].add_(least).sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """x and B of whole numbers -2 .. 2, dt of 1 and 2, no decay: sums are exact."""
        import torch

        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        dt, sums = whole_steps(batch, seq_len, nheads, int(workload.attrs["chunk"]), generator)
        x = whole_numbers((batch, seq_len, nheads, head_dim), 2, dtype, generator)
        b = whole_numbers((batch, seq_len, d_state), 2, dtype, generator)
        return SecondInputs({"x": x, "B": b, "dt": dt, "dA_cumsum": sums}, is_exact=True)


def _factors(dt: "torch.Tensor", sums: "torch.Tensor") -> "torch.Tensor":
    """Factor of each token's x B: dt times its decay until the end of the chunk, in float32."""
    return (sums[..., -1:] - sums).exp_().mul_(dt)


OPERATOR = ChunkState()


class ChunkStateGpu(ChunkTemplate):
    """A block computes a tile of a head's state in one chunk, in a pipelined loop over tokens."""

    operator = OPERATOR
    name = "chunk_state"
    static_reasons: ClassVar[Mapping[str, str]] = {
        "head_dim": (
            "rows of x are head_dim elements apart, and the copies need rows that start at whole vectors"
        ),
        "d_state": (
            "rows of B are d_state elements apart, and the copies need rows that start at whole vectors"
        ),
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Blocks that take many heads of a chunk where one wave of them occupies the cores.

        Otherwise a tile of 64 x 128 that spans a head's whole state, 64 tokens at a time, as in TileLang's
        example. Without TMA: with a warpgroup that only copies, just one block fits on a core, and its loop
        is short.
        """
        space = self.space(workload, target)
        tiles = -(-workload.dims["head_dim"] // 64) * -(-workload.dims["d_state"] // 128)
        resident = Config(
            {
                "block_p": 64,
                "block_n": 128,
                "block_k": 64,
                "num_stages": 4,
                "threads": 256,
                "policy": "square",
                "scaled_x": "shared",
                "copies": "bulk",
                "heads": heads_of_a_wave(workload, tiles, target),
            }
        )
        if resident.int("heads") >= FEWEST_HEADS and resident in space:
            return resident
        wanted = Config(
            {
                "block_p": 64,
                "block_n": 128,
                "block_k": 64,
                "num_stages": 1 if target.kind == "hip" else 2,
                "threads": 256 if target.kind == "hip" else 128,
                "policy": "square",
                "scaled_x": "registers",
                "copies": "threads",
            }
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        if config.int("heads", 0):
            return resident_state(workload, config)
        import tilelang.language as T  # noqa: N812
        from tilelang.layout import make_swizzled_layout

        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        chunk, dtype, accumulator = int(workload.attrs["chunk"]), workload.dtype, "float32"
        block_p, block_n, block_k = config.int("block_p"), config.int("block_n"), config.int("block_k")
        num_stages, threads = config.int("num_stages"), config.int("threads")
        in_registers, by_threads = config["scaled_x"] == "registers", config["copies"] == "threads"
        policy = warp_policy(config.str("policy"))

        chunks, tiles_p, tiles_n = (
            (seq_len + chunk - 1) // chunk,
            -(-head_dim // block_p),
            -(-d_state // block_n),
        )
        tiles = tiles_p * tiles_n
        grid, is_open = grid_of(workload, tiles)
        decay_shape = (batch, nheads, chunks, chunk)
        log2_e = math.log2(math.e)  # exp2 instead of exp
        # warps read columns of x and write 8 rows of the state at once, which share a few banks without a
        # swizzle
        halves = DTYPE_BYTES[dtype] == 2

        @T.prim_func
        def chunk_state(  # type: ignore[no-untyped-def]
            x: T.Tensor((batch, seq_len, nheads, head_dim), dtype),  # type: ignore[valid-type]
            B: T.Tensor((batch, seq_len, d_state), dtype),  # type: ignore[valid-type]  # noqa: N803
            dt: T.Tensor(decay_shape, accumulator),  # type: ignore[valid-type]
            dA_cumsum: T.Tensor(decay_shape, accumulator),  # type: ignore[valid-type]  # noqa: N803
            states: T.Tensor((batch, chunks, nheads, head_dim, d_state), dtype),  # type: ignore[valid-type]
        ):
            # tiles of one head run together and share x, heads of one chunk share B
            with T.Kernel(*grid, threads=threads) as (i0, i1, i2):
                tile, head = (i0 % tiles, i0 // tiles) if is_open else (i0, i1)
                item, at = (i2, i1) if is_open else (i2 // chunks, i2 % chunks)
                p, n = tile // tiles_n * block_p, tile % tiles_n * block_n

                x_tile = T.alloc_shared((block_k, block_p), dtype)
                b_tile = T.alloc_shared((block_k, block_n), dtype)
                out_tile = T.alloc_shared((block_p, block_n), dtype)
                factors = T.alloc_shared((chunk,), accumulator)
                state = T.alloc_fragment((block_p, block_n), accumulator)
                if halves:
                    T.annotate_layout({out_tile: make_swizzled_layout(out_tile)})
                    if in_registers:
                        T.annotate_layout({x_tile: make_swizzled_layout(x_tile)})

                for i in T.Parallel(chunk):
                    kept = T.exp2(
                        (dA_cumsum[item, head, at, chunk - 1] - dA_cumsum[item, head, at, i]) * log2_e
                    )
                    factors[i] = kept * dt[item, head, at, i]
                T.clear(state)
                # copies beyond an edge read zeros, which add nothing, and write nothing
                if in_registers:
                    turned = T.alloc_fragment((block_p, block_k), dtype)
                    for ko in T.Pipelined(chunk // block_k, num_stages=num_stages):
                        row = at * chunk + ko * block_k
                        T.copy(
                            x[item, row : row + block_k, head, p : p + block_p],
                            x_tile,
                            disable_tma=by_threads,
                        )
                        T.copy(B[item, row : row + block_k, n : n + block_n], b_tile, disable_tma=by_threads)
                        for i, j in T.Parallel(block_p, block_k):
                            turned[i, j] = x_tile[j, i] * factors[ko * block_k + j]
                        T.gemm(turned, b_tile, state, policy=policy)
                else:
                    scaled = T.alloc_shared((block_k, block_p), dtype)
                    for ko in T.Pipelined(chunk // block_k, num_stages=num_stages):
                        row = at * chunk + ko * block_k
                        T.copy(
                            x[item, row : row + block_k, head, p : p + block_p],
                            x_tile,
                            disable_tma=by_threads,
                        )
                        T.copy(B[item, row : row + block_k, n : n + block_n], b_tile, disable_tma=by_threads)
                        for j, i in T.Parallel(block_k, block_p):
                            scaled[j, i] = x_tile[j, i] * factors[ko * block_k + j]
                        T.gemm(scaled, b_tile, state, transpose_A=True, policy=policy)
                T.copy(state, out_tile)
                T.copy(out_tile, states[item, at, head, p : p + block_p, n : n + block_n])

        return chunk_state


TEMPLATES = (ChunkStateGpu(),)
