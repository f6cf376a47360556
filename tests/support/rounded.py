"""Results of the shipped operators as right kernels round them, computed in torch.

Sums are in float32 in another order than the reference's, intermediates have the kernels' dtypes, exp2 has
the error of a GPU's instruction, and matrix units may cut digits off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tilesight.kernels import dequant_matmul, operator
from tilesight.problem.workload import Workload

Tensors = Mapping[str, torch.Tensor]
ROUNDED = ("chunk_state", "dequant_matmul", "flash_attention", "gemv", "matmul", "rms_norm")  # operators
_STEP = 64  # terms that are added at once; blocks of a kernel
_KEYS = 64  # keys of a tile of attention
_EXP2_ERROR = 2.0**-22  # of a GPU's ex2.approx, relative


def right_outputs(
    workload: Workload, inputs: Tensors, seed: int = 0, cut: int = 0
) -> dict[str, torch.Tensor]:
    """The outputs of a right kernel.

    Args:
        workload: of an operator of `ROUNDED`.
        inputs: its inputs.
        seed: of the order of sums, and of the errors of exp2.
        cut: number of terms after which matrix units cut the sum off; 0 if every addition rounds.
    """
    unit = _Unit(torch.Generator().manual_seed(seed), cut)
    vector = _Unit(unit.generator, 0)
    if workload.operator == "matmul":
        found = {"C": _matmul(unit, workload, inputs)}
    elif workload.operator == "gemv":
        found = {"y": vector.product(inputs["W"], inputs["x"][:, None])[:, 0]}
    elif workload.operator == "dequant_matmul":
        weights = dequant_matmul.dequantised(workload, inputs, slice(None)).to(inputs["A"].dtype)
        found = {"C": unit.product(inputs["A"], weights.T)}
    elif workload.operator == "flash_attention":
        found = {"O": _attention(unit, inputs, bool(workload.attrs["causal"]))}
    elif workload.operator == "rms_norm":
        found = {"y": _rms_norm(vector, inputs)}
    else:
        found = {"states": _states(unit, inputs)}
    dtypes = {name: operator(workload.operator).dtype_of(name, workload) for name in found}
    return {name: out.to(getattr(torch, dtypes[name])) for name, out in found.items()}


@dataclass(frozen=True)
class _Unit:
    """Adds in float32, in random order of blocks; cuts off after each `cut` terms, or rounds if that is 0."""

    generator: torch.Generator
    cut: int

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        step = self.cut or _STEP
        starts = range(0, a.shape[-1], step)
        total = torch.zeros(*a.shape[:-1], b.shape[-1])
        for index in torch.randperm(len(starts), generator=self.generator).tolist():
            part = slice(starts[index], starts[index] + step)
            if self.cut:
                total = _cut_off(total.double() + a[..., part].double() @ b[..., part, :].double())
            else:
                total += a[..., part].float() @ b[..., part, :].float()
        return total

    def exp2(self, exponents: torch.Tensor) -> torch.Tensor:
        exact = exponents.exp2()
        return torch.where(exponents == 0, exact, exact * self.near_one(exact.shape))

    def near_one(self, shape: torch.Size) -> torch.Tensor:
        return 1 + _EXP2_ERROR * (2 * torch.rand(shape, generator=self.generator) - 1)


def _cut_off(exact: torch.Tensor) -> torch.Tensor:
    """float64 to float32, towards zero."""
    near = exact.float()
    is_larger = near.double().abs() > exact.abs()
    return torch.where(is_larger, torch.nextafter(near, torch.zeros_like(near)), near)


def _matmul(unit: _Unit, workload: Workload, inputs: Tensors) -> torch.Tensor:
    layout = str(workload.attrs.get("layout", "nn"))
    a, b = (inputs[name].T if axes == "t" else inputs[name] for name, axes in zip("AB", layout, strict=True))
    return unit.product(a, b)


def _states(unit: _Unit, inputs: Tensors) -> torch.Tensor:
    x, b, dt, sums = (inputs[name] for name in ("x", "B", "dt", "dA_cumsum"))
    batch, seq_len, nheads, head_dim = x.shape
    chunks, chunk = dt.shape[2:]
    missing = chunks * chunk - seq_len
    x = torch.cat([x, x.new_zeros(batch, missing, nheads, head_dim)], 1)
    b = torch.cat([b, b.new_zeros(batch, missing, b.shape[-1])], 1)
    factors = unit.exp2((sums[..., -1:] - sums) * math.log2(math.e)) * dt
    tokens = x.view(batch, chunks, chunk, nheads, head_dim).permute(0, 1, 3, 4, 2)
    scaled = (tokens.float() * factors.permute(0, 2, 1, 3)[:, :, :, None]).to(x.dtype)
    return unit.product(scaled, b.view(batch, chunks, 1, chunk, -1))


def _rms_norm(unit: _Unit, inputs: Tensors) -> torch.Tensor:
    x = inputs["x"].float()
    squares = unit.product(x.square(), torch.ones(x.shape[-1], 1))
    scale = (squares * (1 / x.shape[-1]) + 1e-6).rsqrt()
    return x * (scale * unit.near_one(scale.shape)) * inputs["w"].float()


def _attention(unit: _Unit, inputs: Tensors, causal: bool) -> torch.Tensor:
    q, k, v = (inputs[name].transpose(1, 2) for name in ("Q", "K", "V"))
    seq_len, head_dim = q.shape[-2:]
    scale = head_dim**-0.5 * math.log2(math.e)
    positions = torch.arange(seq_len)
    highest = torch.full((*q.shape[:-1], 1), -torch.inf)
    total, out = torch.zeros_like(highest), torch.zeros(q.shape)
    for start in range(0, seq_len, _KEYS):
        keys = slice(start, min(start + _KEYS, seq_len))
        scores = unit.product(q, k[:, :, keys].transpose(-1, -2))
        if causal:
            scores.masked_fill_(positions[None, keys] > positions[:, None], -torch.inf)
        before, highest = highest, highest.maximum(scores.amax(-1, keepdim=True))
        weights = unit.exp2(scores * scale - highest * scale)
        rescale = unit.exp2(before * scale - highest * scale)
        total = total * rescale + weights.sum(-1, keepdim=True)
        out = out * rescale + unit.product(weights.to(v.dtype), v[:, :, keys])
    return (out * (1 / total)).transpose(1, 2).contiguous()
