"""chunk_scan: the outputs of Mamba-2 from the states before its chunks, and its template for GPUs.

out[b, l, h, p] = exp(dA_cumsum[l]) sum over n of C[b, l, n] prev_states[b, c, h, p, n]
                + sum over the tokens s <= l of l's chunk c of
                  cb[b, c, 0, l, s] exp(dA_cumsum[l] - dA_cumsum[s]) dt[s] x[b, s, h, p]
                + D[h] x[b, l, h, p]

cb = C B^T of each chunk is an input with its axis of groups, as in the benchmarks of TileLang and of Mamba-2;
C has one group for all heads. dt, dA_cumsum and D are float32, as in `chunk_state`: the last chunk is padded
with dt = 0. What cb holds for s > l counts nowhere.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.axes import Axes, Parts
from ..problem.operator import Tensors
from ..problem.rounding import Rounding, SecondInputs, whole_numbers
from ..problem.space import Config, SearchSpace, Value
from ..problem.workload import Workload
from ..search_spaces import chunk_scan as search_space
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
from ._resident_chunks import heads_of_a_wave, resident_scan
from ._vendor_calls import of_packages

if TYPE_CHECKING:
    import torch

MAX_STATE = 256  # a block keeps whole rows of C and of the states in shared memory
WEIGHT_BYTES = 1 << 30  # decayed weights that the reference or torch holds at once


class ChunkScan(ChunkOperator):
    name = "chunk_scan"
    # x is first: TVM reads a dynamic seq_len from the first argument that has it, and not from chunks
    axes: ClassVar[Axes] = {
        "x": ("batch", "seq_len", "nheads", "head_dim"),
        "cb": ("batch", Parts("seq_len", "chunk"), 1, "chunk", "chunk"),
        "dt": ("batch", "nheads", Parts("seq_len", "chunk"), "chunk"),
        "dA_cumsum": ("batch", "nheads", Parts("seq_len", "chunk"), "chunk"),
        "C": ("batch", "seq_len", "d_state"),
        "prev_states": ("batch", Parts("seq_len", "chunk"), "nheads", "head_dim", "d_state"),
        "D": ("nheads",),
        "out": ("batch", "seq_len", "nheads", "head_dim"),
    }
    named = published("CC")
    default_names = ("CC0", "CC2", "CC4")  # a few blocks, many, and very many

    def validate(self, workload: Workload) -> None:
        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        chunk = int(workload.attrs["chunk"])
        chunks = -(-seq_len // chunk)
        if d_state > MAX_STATE:
            raise WorkloadError(
                f"chunk_scan: d_state={d_state} exceeds {MAX_STATE}, the widest rows of C that a block can "
                "keep in shared memory"
            )
        # whole tiles extend beyond the edges: to the end of the last chunk, and of the last tile of a row
        over = search_space.overhang(head_dim)
        reach = {
            "cb": batch * chunks * chunk * chunk,
            "x": ((batch - 1) * seq_len + chunks * chunk) * nheads * head_dim + over,
            "prev_states": (batch * chunks * nheads * head_dim + over) * d_state,
        }
        self.check(workload, reach)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """x, C ~ N(0, 1) and cb ~ N(0, d_state), a sum of that many products; D ~ U(0.5, 1.5).

        The states are such that their part of the output is about as large as D x. dt and dA_cumsum are those
        of a newly initialised layer.
        """
        import torch

        batch, seq_len, nheads, _, d_state = workload.dims.values()
        generator = torch.Generator(device).manual_seed(seed)
        dt, sums = steps_and_decays(batch, seq_len, nheads, int(workload.attrs["chunk"]), generator)
        shapes, dtype = self._shapes(workload), getattr(torch, workload.dtype)

        def normal(name: str, deviation: float = 1.0) -> "torch.Tensor":
            drawn = torch.randn(*shapes[name], generator=generator, device=device, dtype=dtype)
            return drawn.mul_(deviation)

        return {
            "x": normal("x"),
            "cb": normal("cb", d_state**0.5),
            "dt": dt,
            "dA_cumsum": sums,
            "C": normal("C"),
            "prev_states": normal("prev_states", d_state**-0.5),
            "D": torch.rand(nheads, generator=generator, device=device).add_(0.5),
        }

    def _shapes(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        chunk = int(workload.attrs["chunk"])
        chunks = -(-seq_len // chunk)
        return {
            "cb": (batch, chunks, 1, chunk, chunk),
            "x": (batch, seq_len, nheads, head_dim),
            "C": (batch, seq_len, d_state),
            "prev_states": (batch, chunks, nheads, head_dim, d_state),
        }

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return dict.fromkeys(("dt", "dA_cumsum", "D"), "float32")

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"out": self._shapes(workload)["x"]}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """In float32 without TF32, by panels of chunks."""
        import torch

        out = torch.empty(self.outputs(workload)["out"], dtype=torch.float32, device=inputs["x"].device)
        with exact_products():
            _scan(workload, inputs, torch.float32, out)
        return {"out": out}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """torch in the dtype, as no vendor's library has this operator, and Mamba-2's kernel if installed."""
        import torch

        out = torch.empty(self.outputs(workload)["out"], dtype=inputs["x"].dtype, device=inputs["x"].device)

        def triton() -> Callable[[], object]:
            from mamba_ssm.ops.triton.ssd_chunk_scan import _chunk_scan_fwd

            given = [inputs[name] for name in ("cb", "x", "dt", "dA_cumsum")]
            of_group, states, d = inputs["C"][:, :, None], inputs["prev_states"], inputs["D"]
            return lambda: _chunk_scan_fwd(*given, of_group, states, D=d)[0]

        return {
            "torch (einsum)": lambda: _scan(workload, inputs, inputs["x"].dtype, out),
            **of_packages(out, {"mamba_ssm (Triton)": triton}),
        }

    def flops(self, workload: Workload) -> int:
        """Operations of both products over visible tokens. Decays and D are not counted."""
        batch, _, nheads, head_dim, d_state = workload.dims.values()
        return 2 * nheads * head_dim * (self._pairs(workload) + batch * workload.dims["seq_len"] * d_state)

    def _pairs(self, workload: Workload) -> int:
        """Pairs of a token and an earlier one of its chunk, or itself."""
        chunk = int(workload.attrs["chunk"])
        chunks, rest = divmod(workload.dims["seq_len"], chunk)
        return workload.dims["batch"] * (chunks * chunk * (chunk + 1) + rest * (rest + 1)) // 2

    def min_bytes(self, workload: Workload) -> int:
        batch, seq_len, nheads, _, _ = workload.dims.values()
        shapes = self._shapes(workload)
        elements = 2 * math.prod(shapes["x"]) + math.prod(shapes["C"]) + math.prod(shapes["prev_states"])
        decays = DTYPE_BYTES["float32"] * nheads * (2 * batch * seq_len + 1)
        return (elements + self._pairs(workload)) * self.element_bytes(workload) + decays

    def max_relative_error(self, workload: Workload) -> float:
        """About twice the error of rounding the weights and the output to the dtype.

        It is less than a tenth of the states' part of the output.
        """
        return {"bfloat16": 6e-3, "float16": 8e-4}[workload.dtype]

    def rounding(self, workload: Workload) -> Rounding:
        """cb times its decay, with D on the diagonal, is rounded to the dtype before the product with x."""
        terms = int(workload.attrs["chunk"]) + workload.dims["d_state"] + 1
        return Rounding(terms, inner=workload.dtype, cuts=True)

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        import torch

        squares = {name: inputs[name].to(torch.bfloat16).square() for name in ("cb", "x", "C", "prev_states")}
        squares |= {"dt": inputs["dt"].square(), "D": inputs["D"].square()}
        squares["dA_cumsum"] = 2 * inputs["dA_cumsum"]  # the square of a decay
        # the error of a weight below the smallest normal number is that of this number
        least = torch.finfo(inputs["x"].dtype).tiny ** 2 * int(workload.attrs["chunk"])
        return {"out": self.reference(workload, squares)["out"].add_(least).sqrt_()}

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Whole numbers -2 .. 2, dt of 1 and 2, no decay: sums are exact."""
        import torch

        batch, seq_len, nheads, _, _ = workload.dims.values()
        dtype, generator = getattr(torch, workload.dtype), torch.Generator(device).manual_seed(seed)
        dt, sums = whole_steps(batch, seq_len, nheads, int(workload.attrs["chunk"]), generator)
        whole = {
            name: whole_numbers(shape, 2, dtype, generator) for name, shape in self._shapes(workload).items()
        }
        whole["D"] = whole_numbers((nheads,), 2, torch.float32, generator)
        whole |= {"dt": dt, "dA_cumsum": sums}
        return SecondInputs({name: whole[name] for name in self.axes if name != "out"}, is_exact=True)


def _scan(workload: Workload, inputs: Tensors, dtype: "torch.dtype", out: "torch.Tensor") -> "torch.Tensor":
    """The definition with products in `dtype`, by panels of chunks; decays are in float32."""
    import torch

    batch, seq_len, nheads, _, _ = workload.dims.values()
    chunk = min(int(workload.attrs["chunk"]), seq_len)  # of a single chunk, only its tokens
    chunks = -(-seq_len // chunk)
    hidden = torch.ones(chunk, chunk, dtype=torch.bool, device=out.device).triu_(1)
    panel = max(1, WEIGHT_BYTES // (8 * nheads * chunk * chunk))
    for item in range(batch):
        for first in range(0, chunks, panel):
            last = min(first + panel, chunks)
            tokens = slice(first * chunk, min(last * chunk, seq_len))
            x, c = (whole_chunks(inputs[name][item, tokens].to(dtype), chunk) for name in ("x", "C"))
            dt, sums = (
                inputs[name][item, :, first:last, :chunk].transpose(0, 1) for name in ("dt", "dA_cumsum")
            )
            decays = sums[..., None] - sums[..., None, :]  # (chunks, heads, l, s)
            weights = decays.masked_fill_(hidden, -torch.inf).exp_().mul_(dt[..., None, :]).to(dtype)
            weights *= inputs["cb"][item, first:last, :, :chunk, :chunk].to(dtype).masked_fill(hidden, 0)
            part = torch.einsum("chls,cshp->clhp", weights, x)
            states = torch.einsum("cln,chpn->clhp", c, inputs["prev_states"][item, first:last].to(dtype))
            part += states * sums.exp().to(dtype).transpose(1, 2)[..., None]
            part += x * inputs["D"].to(dtype)[:, None]
            out[item, tokens] = part.flatten(0, 1)[: tokens.stop - tokens.start]
    return out


OPERATOR = ChunkScan()


class ChunkScanGpu(ChunkTemplate):
    """A block computes a tile of a head's outputs in one chunk.

    It starts from the state before the chunk, and loops over the tokens up to its last row. Weights are
    decayed in registers on their way to the matrix unit; D joins the weights of the diagonal.
    """

    operator = OPERATOR
    name = "chunk_scan"
    static_reasons: ClassVar[Mapping[str, str]] = {
        "head_dim": "rows of x are head_dim elements apart, and the copies need rows at whole vectors",
        "d_state": "a block keeps whole rows of C and of the states in shared memory",
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Blocks that take several heads of a chunk where one wave of them occupies the cores.

        Otherwise tiles of 64 x 64, 64 tokens at a time: small blocks, of which several share a core. Without
        TMA: with a warpgroup that only copies, just one block fits on a core, and its loop is short.
        """
        space = self.space(workload, target)
        chunk, tiles = int(workload.attrs["chunk"]), -(-workload.dims["head_dim"] // 64)
        resident = Config(
            {
                "block_m": chunk,
                "block_n": 64,
                "block_k": 64,
                "num_stages": 2,
                "threads": 2 * chunk,
                "copies": "bulk",
                "heads": heads_of_a_wave(workload, tiles, target),
            }
        )
        if resident.int("heads") and resident in space:
            return resident
        wanted = Config(
            {
                "block_m": 64,
                "block_n": 64,
                "block_k": 64,
                "num_stages": 1,
                "threads": 128,
                "copies": "threads",
            }
        )
        return space.closest(wanted)

    def build(self, workload: Workload, config: Config) -> Any:
        if config.int("heads", 0):
            return resident_scan(workload, config)
        import tilelang.language as T  # noqa: N812
        from tilelang.layout import make_swizzled_layout

        batch, seq_len, nheads, head_dim, d_state = workload.dims.values()
        chunk, dtype, accumulator = int(workload.attrs["chunk"]), workload.dtype, "float32"
        block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
        num_stages, threads = config.int("num_stages"), config.int("threads")
        by_threads = config["copies"] == "threads"

        width = -(-d_state // 16) * 16  # a matrix instruction takes 16 elements of a row at once
        chunks, tiles_n = (seq_len + chunk - 1) // chunk, -(-head_dim // block_n)
        tiles_m = -(-chunk // block_m)
        tiles = tiles_m * tiles_n
        grid, is_open = grid_of(workload, tiles)
        decay_shape = (batch, nheads, chunks, chunk)
        log2_e = math.log2(math.e)  # exp2 instead of exp
        halves = DTYPE_BYTES[dtype] == 2
        policy = T.GemmWarpPolicy.FullRow  # the weights of a row are in registers of one warp

        @T.prim_func
        def chunk_scan(  # type: ignore[no-untyped-def]
            x: T.Tensor((batch, seq_len, nheads, head_dim), dtype),  # type: ignore[valid-type]
            cb: T.Tensor((batch, chunks, 1, chunk, chunk), dtype),  # type: ignore[valid-type]
            dt: T.Tensor(decay_shape, accumulator),  # type: ignore[valid-type]
            dA_cumsum: T.Tensor(decay_shape, accumulator),  # type: ignore[valid-type]  # noqa: N803
            C: T.Tensor((batch, seq_len, d_state), dtype),  # type: ignore[valid-type]  # noqa: N803
            prev_states: T.Tensor((batch, chunks, nheads, head_dim, d_state), dtype),  # type: ignore[valid-type]
            D: T.Tensor((nheads,), accumulator),  # type: ignore[valid-type]  # noqa: N803
            out: T.Tensor((batch, seq_len, nheads, head_dim), dtype),  # type: ignore[valid-type]
        ):
            # tiles of one head run together and share x and the state, heads of one chunk share cb
            with T.Kernel(*grid, threads=threads) as (i0, i1, i2):
                tile, head = (i0 % tiles, i0 // tiles) if is_open else (i0, i1)
                item, at = (i2, i1) if is_open else (i2 // chunks, i2 % chunks)
                # the last rows of a chunk take longest and start first
                row, p = (tiles_m - 1 - tile // tiles_n) * block_m, tile % tiles_n * block_n
                first = at * chunk

                c_tile = T.alloc_shared((block_m, width), dtype)
                state = T.alloc_shared((block_n, width), dtype)
                cb_tile = T.alloc_shared((block_m, block_k), dtype)
                x_tile = T.alloc_shared((block_k, block_n), dtype)
                out_tile = T.alloc_shared((block_m, block_n), dtype)
                decays = T.alloc_shared((chunk,), accumulator)
                steps = T.alloc_shared((chunk,), accumulator)
                own = T.alloc_shared((1,), accumulator)
                weights = T.alloc_fragment((block_m, block_k), dtype)
                sums = T.alloc_fragment((block_m, block_n), accumulator)
                # warps read and write 8 rows at once, which share a few banks without a swizzle
                if halves:
                    T.annotate_layout(
                        {cb_tile: make_swizzled_layout(cb_tile), out_tile: make_swizzled_layout(out_tile)}
                    )

                # copies beyond an edge read zeros and write nothing
                T.copy(C[item, first + row : first + row + block_m, 0:width], c_tile, disable_tma=by_threads)
                T.copy(prev_states[item, at, head, p : p + block_n, 0:width], state, disable_tma=by_threads)
                for i in T.Parallel(chunk):
                    decays[i] = dA_cumsum[item, head, at, i] * log2_e
                    steps[i] = dt[item, head, at, i]
                for i in T.Parallel(1):
                    own[i] = D[head]
                T.gemm(c_tile, state, sums, transpose_B=True, policy=policy, clear_accum=True)
                for i, j in T.Parallel(block_m, block_n):
                    sums[i, j] *= T.exp2(decays[row + i])

                # a block needs no tokens after its last row
                for ko in T.Pipelined(T.ceildiv(row + block_m, block_k), num_stages=num_stages):
                    T.copy(
                        cb[item, at, 0, row : row + block_m, ko * block_k : (ko + 1) * block_k],
                        cb_tile,
                        disable_tma=by_threads,
                    )
                    T.copy(
                        x[item, first + ko * block_k : first + (ko + 1) * block_k, head, p : p + block_n],
                        x_tile,
                        disable_tma=by_threads,
                    )
                    for i, j in T.Parallel(block_m, block_k):
                        weights[i, j] = (
                            cb_tile[i, j]
                            * T.exp2(decays[row + i] - decays[ko * block_k + j])
                            * steps[ko * block_k + j]
                        )
                    # only tiles on the diagonal have later tokens; this is checked at run time
                    if (ko + 1) * block_k > row:
                        for i, j in T.Parallel(block_m, block_k):
                            late = ko * block_k + j - row - i
                            weights[i, j] = T.if_then_else(
                                late > 0, 0, weights[i, j] + T.if_then_else(late == 0, own[0], 0)
                            )
                    T.gemm(weights, x_tile, sums, policy=policy)
                T.copy(sums, out_tile)
                T.copy(out_tile, out[item, first + row : first + row + block_m, head, p : p + block_n])

        return chunk_scan


TEMPLATES = (ChunkScanGpu(),)
