"""Counts the sectors and wavefronts that the memory system needs for the addresses of one warp."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SECTOR_BYTES = (
    32  # granularity of L2 and DRAM traffic on NVIDIA GPUs; AMD's half lines of 64 bytes are treated alike
)
LINE_BYTES = 128  # of the caches
BANKS = 32
BANK_BYTES = 4
WIDEST_ACCESS_BYTES = 16  # by one lane in one instruction


def sectors(addresses: NDArray[Any], width: int, active: NDArray[Any] | None = None) -> float:
    """Mean number of 32-byte sectors that one warp instruction touches.

    Args:
        addresses: byte addresses, shape (scenarios, lanes).
        width: bytes that each lane accesses.
        active: mask of the active lanes, broadcast to the shape of `addresses`; None if all are active.
    """
    counts = []
    for row, mask in _rows(addresses, active):
        counts.append(len(touched_sectors(row[mask], width)))
    return float(np.mean(counts)) if counts else 0.0


def lines(addresses: NDArray[Any], width: int, active: NDArray[Any] | None = None) -> float:
    """Mean number of 128-byte lines that one warp instruction touches. The arguments are as above."""
    each = LINE_BYTES // SECTOR_BYTES
    counts = [
        len(np.unique(touched_sectors(row[mask], width) // each)) for row, mask in _rows(addresses, active)
    ]
    return float(np.mean(counts)) if counts else 0.0


def alone_share(addresses: NDArray[Any], width: int, active: NDArray[Any] | None = None) -> float:
    """Share of the sectors that one warp instruction touches without the other half of their 64 bytes.

    0 if most sectors have their other half: then these are the ends of a range, which a neighbour continues.
    The arguments are those of `sectors`.
    """
    alone = total = 0
    for row, mask in _rows(addresses, active):
        touched = touched_sectors(row[mask], width)
        pairs = len(np.unique(touched // 2))
        alone, total = alone + 2 * pairs - len(touched), total + len(touched)
    scattered = total > len(addresses) and 2 * alone > total  # more than one sector an instruction
    return alone / total if scattered else 0.0


def contiguous_bytes(addresses: NDArray[Any], width: float) -> float:
    """Mean length in bytes of the contiguous ranges that accesses of `width` bytes at `addresses` cover."""
    ordered = np.unique(addresses)
    return float(len(ordered) * width / (1 + np.count_nonzero(np.diff(ordered) != width)))


def sector_bytes_of(addresses: NDArray[Any], width: int) -> float:
    """Bytes of the different sectors that accesses of `width` bytes at `addresses` touch."""
    return float(len(touched_sectors(addresses, width)) * SECTOR_BYTES)


def wavefronts(addresses: NDArray[Any], width: int, active: NDArray[Any] | None = None) -> float:
    """Mean number of passes over the 32 banks that one warp instruction on shared memory needs.

    Lanes are served in groups that together request 128 bytes (for example 8 lanes of 16 bytes). Within a
    group, each different word of the same bank costs one pass; lanes that read the same word share it.

    Source: CUDA C++ Best Practices Guide, "Shared Memory and Memory Banks". The grouping by width is public
    knowledge from microbenchmarks and was checked against counters.

    Args:
        addresses: byte addresses, shape (scenarios, lanes).
        width: bytes that each lane accesses.
        active: mask of the active lanes, broadcast to the shape of `addresses`; None if all are active.
    """
    group = max(1, (BANKS * BANK_BYTES) // max(width, BANK_BYTES))
    counts = []
    for row, mask in _rows(addresses, active):
        passes = 0
        for start in range(0, len(row), group):
            chosen = row[start : start + group][mask[start : start + group]]
            if not len(chosen):
                continue
            words = np.unique(
                np.concatenate(
                    [(chosen + offset) // BANK_BYTES for offset in range(0, max(width, 1), BANK_BYTES)]
                )
            )
            passes += int(np.bincount(words % BANKS).max())
        counts.append(passes)
    return float(np.mean(counts)) if counts else 0.0


def lanes_of_address(addresses: NDArray[Any], active: NDArray[Any] | None = None) -> float:
    """Mean number of lanes that access the address which most lanes access. The arguments are as above."""
    counts = [
        int(np.unique(row[mask], return_counts=True)[1].max()) for row, mask in _rows(addresses, active)
    ]
    return float(np.mean(counts)) if counts else 1.0


def touched_sectors(addresses: NDArray[Any], width: int) -> NDArray[Any]:
    """The different sectors that accesses of `width` bytes touch."""
    first = addresses // SECTOR_BYTES
    last = (addresses + width - 1) // SECTOR_BYTES
    if np.array_equal(first, last):
        return np.unique(first)
    return np.unique(np.concatenate([first + k for k in range(int((last - first).max(initial=0)) + 1)]))


def _rows(addresses: NDArray[Any], active: NDArray[Any] | None) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    masks = (
        np.ones(addresses.shape, dtype=bool) if active is None else np.broadcast_to(active, addresses.shape)
    )
    return [(row, mask) for row, mask in zip(addresses, masks, strict=True) if mask.any()]
