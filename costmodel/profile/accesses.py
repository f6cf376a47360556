"""From an address expression to an `Access`: width after merging, sectors or wavefronts, distinct bytes, buffer slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...profile import Access, Space
from .descriptors import Descriptor
from .expressions import UnevaluableError
from .images import inside_image, taps
from .numbering import PLAIN, number_tiles
from .patterns import WIDEST_ACCESS_BYTES, sectors, wavefronts
from .scenarios import Loop
from .scope import Scope

COPY_ROW_BYTES = 128  # a bulk copy moves rows of at most this many bytes (the widest swizzle)


@dataclass(frozen=True)
class Place:
    """A location that a statement touches: `index` counts elements from the start of the tensor."""

    space: Space
    tensor: str
    index: Any
    element_bytes: float
    vector: int = 1  # elements per lane
    repeatable: bool = False  # the compiler knows that a load gives the same again while nothing synchronises


def lane_access(scope: Scope, place: Place, *, write: bool, mechanism: str, asynchronous: bool = False) -> Access:
    """Every lane of the warp accesses `place.vector` elements at its own address."""
    width = max(1, round(place.element_bytes * place.vector))
    again = 1.0 if write or not place.repeatable else _unmoved(scope, place.index)
    asked = scope.executions * place.element_bytes * place.vector / again
    try:
        narrow = scope.addresses(place.index)
    except UnevaluableError:
        return _scattered(scope, place, width, asked, write=write, mechanism=mechanism, asynchronous=asynchronous)
    merged, seen = _merged(scope, place, width) if place.space is Space.SHARED and scope.condition is None else (1, scope)
    addresses = (narrow if merged == 1 else seen.addresses(place.index)) * place.element_bytes
    addresses = addresses.astype(np.int64)
    instructions = scope.warp_executions / merged / again
    count = wavefronts if place.space is Space.SHARED else sectors
    if scope.elected:
        addresses = addresses[:, :1]
    each = count(addresses, width * merged, None if scope.elected else scope.condition)
    tiles = number_tiles(scope, [place.index]) if place.space is Space.GLOBAL else PLAIN
    return Access(
        space=place.space,
        tensor=place.tensor,
        write=write,
        mechanism=mechanism,
        bytes=asked,
        transactions=each * instructions,
        instructions=instructions,
        vector_bytes=width * merged,
        asynchronous=asynchronous,
        slots=slots(scope, place.index) if place.space is Space.SHARED else 1,
        axes=scope.block_axes(place.index),
        loop_dependent=scope.moves_with_phase(place.index),
        footprint_bytes=asked * min(1.0, _distinct_share(scope, place.index) * again),
        tile_digits=tiles.digits,
        tile_ids=tiles.ids,
        turns=tiles.turns,
    )


def matrix_access(scope: Scope, place: Place, *, matrices: int, write: bool, mechanism: str) -> Access:
    """ldmatrix and stmatrix: each group of 8 lanes gives the rows (16 bytes each) of one 8x8 matrix."""
    rows = scope.warp_executions * matrices * 8
    try:
        addresses = (scope.addresses(place.index) * place.element_bytes).astype(np.int64)[:, : matrices * 8]
        each = wavefronts(addresses, 16)
    except UnevaluableError:
        each = float(matrices)
    return Access(
        space=Space.SHARED,
        tensor=place.tensor,
        write=write,
        mechanism=mechanism,
        bytes=rows * 16,
        transactions=each * scope.warp_executions,
        instructions=scope.warp_executions,
        vector_bytes=16,
        footprint_bytes=rows * 16,
    )


def bulk_access(
    scope: Scope, descriptor: Descriptor, coordinates: list[Any], shared_index: Any, *, write: bool, offsets: Sequence[Any] = ()
) -> tuple[Access, Access]:
    """One TMA copy, as seen by global memory (what lies inside the tensor) and by shared memory (the whole box). `offsets`:
    the filter's tap that an im2col copy is for."""
    copies, window = scope.warp_executions, descriptor.window
    if window is None:
        inside, least = _inside_share(scope, descriptor, coordinates)
    else:
        inside, least = inside_image(scope, descriptor, window, coordinates, list(offsets))
    moved = copies * descriptor.box_bytes * inside
    axes: frozenset[str] = frozenset().union(*(scope.block_axes(c) for c in coordinates))
    depth = slots(scope, shared_index)
    tiles = number_tiles(scope, coordinates)
    # coordinates that an inner loop does not move fetch the same box again
    repeats = math.prod(loop.extent for loop in scope.loops if not any(loop.variable in scope.depends_on(c) for c in coordinates))
    moves = any(scope.moves_with_phase(c) for c in coordinates)
    if moves and window is not None:
        repeats *= taps(scope, coordinates)
    outer = Access(
        space=Space.GLOBAL,
        tensor=descriptor.tensor,
        write=write,
        mechanism="tma",
        bytes=moved,
        transactions=moved / 32,
        instructions=copies,
        vector_bytes=min(COPY_ROW_BYTES, descriptor.box[0] * descriptor.element_bytes),
        asynchronous=True,
        slots=depth,
        box_bytes=descriptor.box_bytes,
        least_inside=least,
        axes=axes,
        loop_dependent=moves,
        footprint_bytes=moved / max(1.0, repeats),
        tile_digits=tiles.digits,
        tile_ids=tiles.ids,
        turns=tiles.turns,
    )
    return outer, bulk_shared_side(copies, descriptor.box_bytes, write=not write, depth=depth)


def bulk_shared_side(copies: float, box_bytes: float, *, write: bool, depth: int) -> Access:
    """What a bulk copy does to shared memory: whole 128-byte rows, free of conflicts."""
    total = copies * box_bytes
    return Access(
        space=Space.SHARED,
        tensor="",
        write=write,
        mechanism="tma",
        bytes=total,
        transactions=total / 128,
        instructions=copies,
        vector_bytes=16,
        asynchronous=True,
        slots=depth,
        box_bytes=box_bytes,
    )


def slots(scope: Scope, index: Any) -> int:
    """How many different buffers an address cycles through over the iterations of the phase's loop."""
    try:
        return len(np.unique(scope.over_phase(index))) if scope.phase_loop is not None else 1
    except UnevaluableError:
        return 1


def _merged(scope: Scope, place: Place, width: int) -> tuple[int, Scope]:
    """How many accesses of enclosing unrolled loops the compiler joins into one (up to 16 bytes a lane), and the
    scope in which the first of them stands. It joins what is contiguous and aligned, in shared memory, whose
    alignment it knows."""
    factor = 1
    for loop in reversed(scope.loops):
        along = 1
        while loop.unrolled and along * 2 <= loop.extent and width * factor * 2 <= WIDEST_ACCESS_BYTES:
            first = _stepped(scope, loop, along * 2)
            second = scope.shifted(loop, first.pattern[loop.variable] + along)
            a = first.addresses(place.index) * place.element_bytes
            b = second.addresses(place.index) * place.element_bytes
            joined = width * factor
            if not (np.all(b - a == joined) and np.all(a % (joined * 2) == 0)):
                break
            factor, along, scope = factor * 2, along * 2, first
    return factor, scope


def _stepped(scope: Scope, loop: Loop, step: int) -> Scope:
    value = np.asarray(scope.pattern[loop.variable])
    return scope.shifted(loop, value // step * step)


def _unmoved(scope: Scope, index: Any) -> float:
    """Executions in unrolled loops that do not move an address: the compiler loads once for all of them."""
    reads = scope.depends_on(index)
    return math.prod((loop.extent for loop in scope.loops if loop.unrolled and loop.variable not in reads), start=1.0)


def _distinct_share(scope: Scope, index: Any) -> float:
    """Share of different bytes among those that the block's threads ask for in an iteration of the phase."""
    if scope.elected:
        return 1.0
    try:
        addresses = scope.over_block(index)
    except UnevaluableError:
        return 1.0
    share = len(np.unique(addresses)) / max(1, addresses.size)
    reads = scope.depends_on(index)
    for loop in scope.loops:
        if loop.variable not in reads and loop.extent > 1:
            share /= loop.extent
    return share


def _inside_share(scope: Scope, descriptor: Descriptor, coordinates: list[Any]) -> tuple[float, float]:
    """Share of a box that lies inside its tensor: on average, and where it is least."""
    share: Any = 1.0
    for coordinate, extent, box in zip(coordinates, descriptor.shape, descriptor.box, strict=False):
        if not extent:
            continue
        try:
            start = np.asarray(scope.over_chance(coordinate), dtype=np.float64)
        except UnevaluableError:
            continue
        share = share * np.clip((extent - start) / box, 0.0, 1.0)
    return float(np.mean(share)), float(np.min(share))


def _scattered(scope: Scope, place: Place, width: int, asked: float, *, write: bool, mechanism: str, asynchronous: bool) -> Access:
    """An address that depends on data: every lane is taken to touch a place of its own."""
    lanes = min(scope.launch.warp_threads, scope.threads)
    return Access(
        space=place.space,
        tensor=place.tensor,
        write=write,
        mechanism=mechanism,
        bytes=asked,
        transactions=scope.warp_executions * lanes * (1 if place.space is Space.GLOBAL else 0.25),
        instructions=scope.warp_executions,
        vector_bytes=width,
        asynchronous=asynchronous,
        axes=frozenset(scope.launch.block),
        loop_dependent=True,
        footprint_bytes=asked,
    )
