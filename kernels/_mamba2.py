"""Mamba-2: time steps and decays of a newly initialised layer, and sequences as whole chunks.

Several operators are parts of the layer: their tensors belong together.
"""

import math
from typing import TYPE_CHECKING

from ..problem.rounding import whole_numbers

if TYPE_CHECKING:
    import torch

CHUNKS = (32, 64, 128, 256, 512, 1024)
# initial values of a Mamba-2 layer: A uniform, dt log-uniform in these ranges
A_RANGE, DT_RANGE = (1.0, 16.0), (1e-3, 1e-1)


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
