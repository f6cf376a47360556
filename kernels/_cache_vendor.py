"""Calls of packages for attention over a cache: FlashInfer and FlashMLA.

Neither is a dependency. Both read tables of pages: where an item has one page, its keys are taken as several
pages side by side, which is a view. Plans are made before the calls, as in serving, where all layers of a
step share one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..problem.operator import Tensors
from ..problem.workload import Workload

if TYPE_CHECKING:
    import torch

    from ._vendor_calls import Call

WORKSPACE_BYTES = 128 << 20  # that FlashInfer's documentation recommends
LATENT_PAGE = 64  # of FlashMLA


@dataclass(frozen=True)
class _Pages:
    """A cache as FlashInfer takes it.

    Attributes:
        size: keys of a page.
        ends: numbers of the items' pages, summed: (items + 1,), on the host.
        indices: the items' pages, side by side.
        lengths: keys of the items, on the host.
        queries: numbers of the items' queries, summed, on the host.
    """

    size: int
    ends: torch.Tensor
    indices: torch.Tensor
    lengths: torch.Tensor
    queries: torch.Tensor

    @property
    def last(self) -> torch.Tensor:
        """Keys of the items' last pages."""
        return (self.lengths - 1) % self.size + 1


def _pages(workload: Workload, inputs: Tensors) -> _Pages:
    import torch

    size, table = _table(workload, inputs)
    lengths = _lengths(workload, inputs).cpu()
    counts = (lengths + size - 1) // size
    rows = [row[:count] for row, count in zip(table, counts.tolist(), strict=True)]
    queries = torch.arange(len(rows) + 1, dtype=torch.int32) * workload.dims["q_len"]
    return _Pages(size, _ends(counts), torch.cat(rows).contiguous(), lengths, queries.to(torch.int32))


def _table(workload: Workload, inputs: Tensors) -> tuple[int, torch.Tensor]:
    """Keys of a page, and the table of the items' pages."""
    import torch

    if "Table" in inputs:
        return int(workload.attrs["page"]), inputs["Table"]
    batch, kv_len = workload.dims["batch"], workload.dims["kv_len"]
    size = math.gcd(kv_len, LATENT_PAGE)
    pages = torch.arange(batch * kv_len // size, dtype=torch.int32, device=inputs["Q"].device)
    return size, pages.view(batch, -1)


def _lengths(workload: Workload, inputs: Tensors) -> torch.Tensor:
    """Keys of the items."""
    import torch

    batch, kv_len = workload.dims["batch"], workload.dims["kv_len"]
    full = torch.full((batch,), kv_len, dtype=torch.int32, device=inputs["Q"].device)
    return inputs.get("Lengths", full)


def _ends(counts: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)


def flashinfer_decoding(workload: Workload, inputs: Tensors, scale: float) -> Call:
    """FlashInfer's attention over pages with tensor cores, which its decoding of shared kv heads runs too.

    Without the logarithms of sums of weights, which FlashInfer has to the base 2.
    """
    import torch
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    q, pages = inputs["Q"], _pages(workload, inputs)
    dims = workload.dims
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    wrapper.plan(
        pages.queries,
        pages.ends,
        pages.indices,
        pages.last,
        dims["heads"],
        dims["kv_heads"],
        dims["head_dim"],
        pages.size,
        causal=dims["q_len"] > 1,
        sm_scale=scale,
        q_data_type=q.dtype,
        kv_data_type=q.dtype,
    )
    cache = tuple(inputs[name].view(-1, pages.size, *inputs[name].shape[2:]) for name in ("K", "V"))
    queries, out = q.flatten(0, 1), torch.empty_like(q)

    def call() -> object:
        wrapper.run(queries, cache, out=out.flatten(0, 1))
        return out

    return call


def flashinfer_latent(workload: Workload, inputs: Tensors, scale: float) -> Call:
    """FlashInfer's attention over latent vectors; with `topk`, pages of one key, and queries are items.

    Latent parts and rotated ones are views of the same rows.
    """
    import torch
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    q, dims, topk = inputs["Q"], workload.dims, int(workload.attrs["topk"])
    pages = _chosen_keys(workload, inputs) if topk else _pages(workload, inputs)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper, dim = BatchMLAPagedAttentionWrapper(workspace), dims["dim"]
    wrapper.plan(
        pages.queries,
        pages.ends,
        pages.indices,
        pages.lengths,
        dims["heads"],
        dim,
        int(workload.attrs["rope_dim"]),
        pages.size,
        dims["q_len"] > 1 and not topk,
        scale,
        q.dtype,
        q.dtype,
    )
    queries, keys = q.flatten(0, 1), inputs["KV"].view(-1, pages.size, q.shape[-1])
    parts = [*queries.split([dim, q.shape[-1] - dim], -1), *keys.split([dim, q.shape[-1] - dim], -1)]
    out = torch.empty(*q.shape[:-1], dim, dtype=q.dtype, device=q.device)

    def call() -> object:
        wrapper.run(*parts, out=out.flatten(0, 1))
        return out

    return call


def chosen_places(workload: Workload, inputs: Tensors) -> torch.Tensor:
    """The places in the pool of the keys of `Indices`: (queries, topk); -1 stands for none."""
    import torch

    chosen = inputs["Indices"]
    items = torch.arange(chosen.shape[0], device=chosen.device)[:, None, None]
    page = int(workload.attrs["page"]) or workload.dims["kv_len"]
    at = inputs["Table"][items, chosen.clamp(min=0) // page] if "Table" in inputs else items
    places = torch.where(chosen < 0, -1, at * page + chosen % page)
    return places.flatten(0, 1).to(torch.int32)


def _chosen_keys(workload: Workload, inputs: Tensors) -> _Pages:
    """The keys of `Indices` as pages of one key."""
    import torch

    places = chosen_places(workload, inputs)
    lengths = (places >= 0).sum(-1).cpu().to(torch.int32)
    queries = torch.arange(len(lengths) + 1, dtype=torch.int32)
    return _Pages(1, _ends(lengths), places[places >= 0], lengths, queries)


def flash_mla(workload: Workload, inputs: Tensors, scale: float) -> Call:
    """FlashMLA, for 512 latent columns and 64 rotated ones: its kernel for pages of 64 keys.

    With `topk` it is the one that takes places of keys, which it has for sequences of queries.
    """
    if workload.attrs["topk"]:
        return _sparse_flash_mla(workload, inputs, scale)
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    q, (size, table), dims = inputs["Q"], _table(workload, inputs), workload.dims
    if size != LATENT_PAGE:
        raise ValueError(f"FlashMLA takes pages of {LATENT_PAGE} keys")
    keys = inputs["KV"].view(-1, size, 1, q.shape[-1])
    lengths = _lengths(workload, inputs)
    metadata, splits = get_mla_metadata(lengths, dims["q_len"] * dims["heads"], 1)
    causal = dims["q_len"] > 1
    return lambda: flash_mla_with_kvcache(
        q, keys, table, lengths, dims["dim"], metadata, splits, softmax_scale=scale, causal=causal
    )[0]


def _sparse_flash_mla(workload: Workload, inputs: Tensors, scale: float) -> Call:
    from flash_mla import flash_mla_sparse_fwd

    q, dim = inputs["Q"], workload.dims["dim"]
    queries, keys = q.flatten(0, 1), inputs["KV"].view(-1, 1, q.shape[-1])
    places = chosen_places(workload, inputs)[:, None]
    return lambda: flash_mla_sparse_fwd(queries, keys, places, scale, dim)[0].view(*q.shape[:-1], dim)
