"""The traffic of gathers and scatters, whose places in a tensor are chosen by loaded data.

The places are not known when a kernel is read. They are taken as spread evenly over the tensor: what is read
for the first time comes from the next memory, and what is read again is in the cache as far as it fits.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...profile.values import Access, KernelProfile, Phase, Space

SECTOR_BYTES = 32  # what a GPU fetches at least
LINE_BYTES = 64  # the same of a CPU
STEPS = 60  # of the bisection in `hit_share`


def fetched_bytes(row_bytes: float, unit_bytes: float) -> float:
    """Bytes fetched for each byte of a row of `row_bytes` contiguous bytes: whole sectors or lines."""
    return math.ceil(row_bytes / unit_bytes) * unit_bytes / row_bytes


def first_share(read: float, tensor_bytes: float, row_bytes: float, unit_bytes: float) -> float:
    """Share of the bytes `read` that are read for the first time; the rest is read again.

    Rows of whole units are taken as different until all of the tensor was read, like the pages of a cache of
    keys and values or the tokens of a permutation. Parts of a unit fall on units by chance: of N units, R
    accesses touch N (1 - (1 - 1/N)^R).

    Args:
        read: bytes in whole units.
        tensor_bytes: size of the tensor; 0 if unknown, which counts as unlimited.
        row_bytes: contiguous bytes at each place.
        unit_bytes: bytes of a sector or line.
    """
    if not tensor_bytes or not read:
        return 1.0
    if row_bytes >= unit_bytes:
        return min(1.0, tensor_bytes / read)
    units = max(1.0, tensor_bytes / unit_bytes)
    if units == 1.0:
        return min(1.0, unit_bytes / read)
    return min(1.0, -math.expm1(read / unit_bytes * math.log1p(-1 / units)) * units * unit_bytes / read)


def hit_share(read: float, touched: float, streamed: float, capacity: float) -> float:
    """Share of repeated reads that find their data in a cache that evicts the least recently used data first.

    Data stays in the cache for a time during which the cache is filled once: by data that streams through it,
    and by the different data of the gather that is read in this time.

    Source: Che, Tung and Wang, "Hierarchical Web Caching Systems: Modeling, Design and Experimental Results",
    2002, for places that are chosen with equal chance.

    Args:
        read: bytes that the gather reads.
        touched: different bytes among them.
        streamed: bytes of other data that pass through the cache meanwhile.
        capacity: bytes of the cache.
    """
    if touched <= 0 or read <= 0:
        return 0.0
    if touched + streamed <= capacity:
        return 1.0
    low, high = 0.0, capacity / max(streamed, 1e-12 * capacity)  # the time, as a share of the whole
    for _ in range(STEPS):
        time = (low + high) / 2
        filled = streamed * time - touched * math.expm1(-read * time / touched)
        low, high = (time, high) if filled < capacity else (low, time)
    return -math.expm1(-read * low / touched)


def with_stores_once(profile: KernelProfile) -> KernelProfile:
    """The profile in which stores to places that loaded data chooses write a tensor at most once.

    Such a store often stands under a condition on data, which counts as passed: a selection of a few elements
    would write all of them. What a kernel keeps fits into its tensor.
    """
    sizes = {tensor.label: tensor.bytes for tensor in profile.tensors}

    def places(phase: Phase) -> dict[str, float]:
        found: dict[str, float] = {}
        for access in filter(_is_scattered_store, phase.work.accesses):
            found[access.tensor] = found.get(access.tensor, 0.0) + access.bytes * phase.trips.mean
        return found

    written: dict[str, float] = {}
    for phase in (phase for role in profile.roles for phase in role.phases):
        for tensor, each in places(phase).items():
            written[tensor] = written.get(tensor, 0.0) + each * profile.blocks
    shares = {t: sizes[t] / moved for t, moved in written.items() if 0 < sizes.get(t, 0) < moved}
    if not shares:
        return profile

    def fewer(access: Access) -> Access:
        if not _is_scattered_store(access) or access.tensor not in shares:
            return access
        share = shares[access.tensor]
        return replace(
            access,
            bytes=access.bytes * share,
            transactions=access.transactions * share,
            instructions=access.instructions * share,
            footprint_bytes=access.footprint_bytes * share,
            sector_bytes=access.sector_bytes * share,
            lines=access.lines * share,
        )

    return profile.with_phases(lambda phase: phase.with_accesses(fewer))


def _is_scattered_store(access: Access) -> bool:
    return access.space is Space.GLOBAL and access.mechanism == "st" and access.row_bytes > 0
