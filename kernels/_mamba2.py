"""Mamba-2: operators and templates of its chunks, and time steps and decays of a newly initialised layer.

Several operators are parts of the layer: their tensors belong together.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.operator import Operator
from ..problem.rounding import whole_numbers
from ..problem.space import Value
from ..problem.template import KernelTemplate, Scale
from ..problem.workload import Workload

if TYPE_CHECKING:
    import torch

CHUNKS = (32, 64, 128, 256, 512, 1024)
MAX_ELEMENTS = 2**31  # the last index is the largest signed 32-bit integer
MAX_GRID_AXIS = 65535  # blocks along the second and third axis of a CUDA or HIP grid
# initial values of a Mamba-2 layer: A uniform, dt log-uniform in these ranges
A_RANGE, DT_RANGE = (1.0, 16.0), (1e-3, 1e-1)


def published(prefix: str) -> Mapping[str, Mapping[str, Value]]:
    """Shapes of the TileLang paper, appendix A, with names of that prefix."""
    layer = {"nheads": 64, "head_dim": 64, "d_state": 128, "chunk": 256}
    sizes = [(batch, seq_len) for batch in (1, 64) for seq_len in (1024, 2048, 8192)]
    return {f"{prefix}{i}": {"batch": b, "seq_len": s, **layer} for i, (b, s) in enumerate(sizes)}


class ChunkOperator(Operator):
    """An operator that takes a sequence in chunks, the last of which may be a part."""

    dims = ("batch", "seq_len", "nheads", "head_dim", "d_state")
    attrs: ClassVar[Mapping[str, Value]] = {"chunk": 256}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {"chunk": CHUNKS}

    def check(self, workload: Workload, reach: Mapping[str, int]) -> None:
        """Raise `WorkloadError` for too many blocks, or for tiles that reach over too many elements."""
        batch, seq_len, nheads, _, _ = workload.dims.values()
        chunks = -(-seq_len // int(workload.attrs["chunk"]))
        for extents, blocks in (("nheads", nheads), ("batch * chunks", batch * chunks)):
            if blocks > MAX_GRID_AXIS:
                raise WorkloadError(
                    f"{self.name}: {extents}={blocks} exceeds the {MAX_GRID_AXIS} blocks of a grid axis; "
                    "split it"
                )
        for name, elements in reach.items():
            if elements > MAX_ELEMENTS:
                raise WorkloadError(
                    f"{self.name}: tiles of {name} would reach over {elements} elements, and 32-bit indices "
                    f"over {MAX_ELEMENTS}; split the batch"
                )


class ChunkTemplate(KernelTemplate):
    """Blocks take whole chunks or parts of them, so that a sequence changes only the number of blocks."""

    target_kinds = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    scales: ClassVar[Mapping[str, Scale]] = {
        "batch": Scale(),
        "seq_len": Scale((), CHUNKS),
        "nheads": Scale(),
    }
    dynamic_dims = ("batch", "seq_len", "nheads")
    # exp2 as a single instruction
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}


def grid_of(workload: Workload, tiles: int) -> tuple[tuple[Any, Any, Any], bool]:
    """The grid for `tiles` tiles of each head's chunk, and whether some of its extents are open.

    Both grids have one order of blocks; block numbers are divided by static extents only.
    """
    batch, seq_len, nheads, _, _ = workload.dims.values()
    chunk = int(workload.attrs["chunk"])
    chunks = (seq_len + chunk - 1) // chunk
    is_open = not all(isinstance(extent, int) for extent in (batch, seq_len, nheads))
    return ((tiles * nheads, chunks, batch) if is_open else (tiles, nheads, batch * chunks)), is_open


def steps_and_decays(
    batch: int, seq_len: int, nheads: int, chunk: int, generator: "torch.Generator"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """dt, and the sums of dt A in a chunk: (batch, nheads, chunks, chunk). The last chunk has dt = 0."""
    chunks = -(-seq_len // chunk)
    dt = time_steps(batch, nheads, chunks * chunk, generator)
    dt[..., seq_len:] = 0
    sums = (-_uniform(nheads, A_RANGE, generator) * dt).view(batch, nheads, chunks, chunk).cumsum(-1)
    return dt.view(batch, nheads, chunks, chunk), sums


def log_decays(batch: int, seq_len: int, nheads: int, generator: "torch.Generator") -> "torch.Tensor":
    """The logarithm of each token's decay, dt A: (batch, seq_len, nheads)."""
    dt = time_steps(batch, nheads, seq_len, generator)
    return (-_uniform(nheads, A_RANGE, generator) * dt).transpose(1, 2).contiguous()


def time_steps(batch: int, nheads: int, tokens: int, generator: "torch.Generator") -> "torch.Tensor":
    """softplus(head's bias + N(0, 1)): (batch, nheads, tokens).

    Heads differ as in a newly initialised layer of Mamba-2: some forget within ten tokens, others keep
    everything.
    """
    import torch

    usual = _uniform(nheads, (math.log(DT_RANGE[0]), math.log(DT_RANGE[1])), generator).exp_()
    bias = usual.expm1().log_()  # softplus gives `usual` back
    noise = torch.randn(batch, nheads, tokens, generator=generator, device=generator.device)
    return torch.nn.functional.softplus(noise.add_(bias))


def _uniform(nheads: int, limits: tuple[float, float], generator: "torch.Generator") -> "torch.Tensor":
    import torch

    low, high = limits
    return torch.rand(nheads, 1, generator=generator, device=generator.device).mul_(high - low).add_(low)


def whole_steps(
    batch: int, seq_len: int, nheads: int, chunk: int, generator: "torch.Generator"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """dt of 1 and 2 without decay: products with whole numbers are exact."""
    import torch

    chunks = -(-seq_len // chunk)
    dt = whole_numbers((batch, nheads, chunks * chunk), 1, torch.float32, generator).abs_().add_(1)
    dt[..., seq_len:] = 0
    dt = dt.view(batch, nheads, chunks, chunk)
    return dt, torch.zeros_like(dt)


def whole_chunks(tokens: "torch.Tensor", chunk: int) -> "torch.Tensor":
    """(seq_len, ...) as (chunks, chunk, ...), padded with zeros; a view if all chunks are whole."""
    import torch

    missing = -tokens.shape[0] % chunk
    if missing:
        tokens = torch.cat([tokens, tokens.new_zeros(missing, *tokens.shape[1:])])
    return tokens.view(-1, chunk, *tokens.shape[1:])
