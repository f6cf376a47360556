"""Turns address expressions into `Access`es: widths, sectors or wavefronts, distinct bytes, buffer slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...profile.values import Access, Space
from .descriptors import Descriptor
from .expressions import UnevaluableError, loads, variables
from .images import inside_image, taps
from .joined_loads import widest_joined
from .launch_geometry import AXES
from .numbering import PLAIN, number_tiles
from .patterns import (
    SECTOR_BYTES,
    WIDEST_ACCESS_BYTES,
    alone_share,
    contiguous_bytes,
    lines,
    sector_bytes_of,
    sectors,
    wavefronts,
)
from .scenarios import Loop
from .scope import MOST_ACCESSES, Scope

WORD_BYTES = 4  # of a register
JOINED_BYTES = 8  # least width of accesses in turn whose sectors are moved once
OWN_RUN_BYTES = 256  # of a block alone, which take no longer than longer ones (experiments/stripes)
BANKS_BYTES = 128  # a word in each bank of shared memory
# of each lane that accesses shared memory at a place of its own: of 32 lanes that choose a bank by chance,
# 3.5 meet in the fullest one
SCATTERED_WAVEFRONTS = 0.11
COPY_ROW_BYTES = 128  # the longest row of a bulk copy: the width of the widest swizzle


@dataclass(frozen=True)
class AccessSite:
    """The memory location that a statement accesses."""

    space: Space
    tensor: str
    index: Any  # TIR expression: elements from the start of the tensor
    element_bytes: float
    vector: int = 1  # elements that one lane accesses
    repeatable: bool = False  # the compiler may load once for several reads between two synchronizations
    array_bytes: float = 0.0  # of one thread's array in local memory, or of a buffer in shared memory
    dtype: str = ""  # of one element; "" if it is not known


def lane_access(
    scope: Scope, site: AccessSite, *, write: bool, mechanism: str, asynchronous: bool = False
) -> Access:
    """Return the access in which every lane of a warp touches `site.vector` elements at its own address.

    Args:
        scope: the threads, blocks and iterations that execute the statement.
        site: the accessed location.
        write: whether the lanes store.
        mechanism: the name of the instruction, such as `ld`, `st` or `cp_async`.
        asynchronous: whether the access completes on a barrier or a wait group.
    """
    if site.space is Space.LOCAL:
        return _local_access(scope, site, write=write, mechanism=mechanism)
    width = max(1, round(site.element_bytes * site.vector))
    repeats = 1.0
    if not write and site.repeatable:
        around = _apart_where_rewritten(scope) if site.space is Space.SHARED else scope
        repeats = repeats_of_load(around, site.index)
    requested = scope.executions * site.element_bytes * site.vector / repeats
    try:
        narrow = scope.addresses(site.index)
    except UnevaluableError:
        if site.space is Space.GLOBAL and not scope.arbitrary_data and scope.is_chosen_by_data(site.index):
            scope = scope.with_arbitrary_data()
            chosen = lane_access(scope, site, write=write, mechanism=mechanism, asynchronous=asynchronous)
            row_bytes, distinct = _places(scope, site, width)
            return replace(chosen, row_bytes=row_bytes, footprint_bytes=min(requested, distinct))
        return _scattered(
            scope, site, width, requested, write=write, mechanism=mechanism, asynchronous=asynchronous
        )
    joins = site.space is Space.SHARED and scope.condition is None and not (write and width < WORD_BYTES)
    merged, merged_scope = _merged(scope, site, width, write=write) if joins else (1, scope)
    addresses = (narrow if merged == 1 else merged_scope.addresses(site.index)) * site.element_bytes
    addresses = addresses.astype(np.int64)
    instructions = scope.warp_executions / merged / repeats
    count = wavefronts if site.space is Space.SHARED else sectors
    if scope.elected:
        addresses = addresses[:, :1]
    active = None if scope.elected else scope.condition
    each = count(addresses, width * merged, active)
    tiles = number_tiles(scope, [site.index]) if site.space is Space.GLOBAL else PLAIN
    places = _places_together(scope, site, width) if site.space is Space.GLOBAL else _Places()
    # stores of several lanes to one sector are parts of a row, which the next instruction continues, unless
    # the block has just one sector of it
    apart = (
        not write
        or mechanism == "atomic"
        or requested <= each * instructions * width * 1.01
        or places.at_once == SECTOR_BYTES
    )
    return Access(
        space=site.space,
        tensor=site.tensor,
        write=write,
        mechanism=mechanism,
        bytes=requested,
        transactions=each * instructions,
        instructions=instructions,
        vector_bytes=width * merged,
        asynchronous=asynchronous,
        slots=slots(scope, site.index) if site.space is Space.SHARED else 1,
        axes=scope.block_axes(site.index),
        loop_dependent=scope.moves_with_phase(site.index),
        footprint_bytes=requested * min(1.0, _distinct_share(scope, site.index) * repeats),
        tile_digits=tiles.digits,
        tile_ids=tiles.ids,
        turns=tiles.turns,
        alone_share=alone_share(addresses, width, active) if site.space is Space.GLOBAL and apart else 0.0,
        run_bytes=places.run_bytes,
        own_run_bytes=places.own if places.own < min(places.run_bytes, OWN_RUN_BYTES) else 0.0,
        sector_bytes=places.sector_bytes if _continues(scope, site, width, write=write) else 0.0,
        step_bytes=0.0 if write or site.space is not Space.GLOBAL else _step_within_sector(scope, site),
        warp_share=scope.warp_share if site.space is Space.GLOBAL else 1.0,
        lines=lines(addresses, width, active) * instructions
        if write and mechanism == "st" and site.space is Space.GLOBAL
        else 0.0,
        in_row=max(1.0, _in_row(scope) / merged / repeats) if site.space is Space.SHARED else 1.0,
    )


def _local_access(scope: Scope, site: AccessSite, *, write: bool, mechanism: str) -> Access:
    """Return the access to an array of each thread in local memory.

    The words of the threads of a warp lie side by side, so every access is contiguous.
    """
    width = site.element_bytes * site.vector
    fresh = _fresh_share(scope, site.index)
    return Access(
        space=Space.LOCAL,
        tensor=site.tensor,
        write=write,
        mechanism=mechanism,
        bytes=scope.executions * width,
        transactions=scope.warp_executions * max(1.0, width / WORD_BYTES),
        instructions=scope.warp_executions,
        vector_bytes=max(1, round(width)),
        footprint_bytes=site.array_bytes * scope.threads,
        sector_bytes=scope.executions * width * fresh if fresh < 1 else 0.0,
    )


def _fresh_share(scope: Scope, index: Any) -> float:
    """Share of the accesses to a local array that the iterations just before did not make to its element.

    The innermost loop that changes the element tells; each iteration of the loops around it begins anew.
    """
    reads, share = scope.depends_on(index), 1.0
    for loop in reversed(scope.loops):
        if loop.variable in reads:
            try:
                elements = scope.over_loops(index, [loop])
            except UnevaluableError:
                return share
            return share * len(np.unique(elements)) / elements.size
        share /= max(1.0, loop.extent)
    return share


def matrix_access(scope: Scope, site: AccessSite, *, matrices: int, write: bool, mechanism: str) -> Access:
    """Return the access of ldmatrix or stmatrix.

    Each group of 8 lanes holds the row addresses of an 8x8 matrix, with 16 bytes a row.
    """
    rows = scope.warp_executions * matrices * 8
    try:
        addresses = (scope.addresses(site.index) * site.element_bytes).astype(np.int64)[:, : matrices * 8]
        each = wavefronts(addresses, 16)
    except UnevaluableError:
        each = float(matrices)
    return Access(
        space=Space.SHARED,
        tensor=site.tensor,
        write=write,
        mechanism=mechanism,
        bytes=rows * 16,
        transactions=each * scope.warp_executions,
        instructions=scope.warp_executions,
        vector_bytes=16,
        footprint_bytes=rows * 16,
    )


def bulk_access(
    scope: Scope,
    descriptor: Descriptor,
    coordinates: list[Any],
    shared_index: Any,
    *,
    write: bool,
    offsets: Sequence[Any] = (),
    receivers: int = 1,
) -> tuple[Access, Access]:
    """Return the global and the shared access of a TMA copy: the part inside the tensor, and the whole box.

    Args:
        scope: the threads, blocks and iterations that execute the copy.
        descriptor: the tensor map of the copy.
        coordinates: the start of the box, fastest dimension first (TIR expressions).
        shared_index: the element in shared memory at which the box begins.
        write: whether the copy stores to global memory.
        offsets: for an im2col copy, the position within the filter that the copy fetches for.
        receivers: blocks of a cluster whose shared memory the copy fills. One of them reads L2: the mean
            block reads a part of what it receives.
    """
    copies, window = scope.warp_executions, descriptor.window
    chosen = _is_chosen_by_data(scope, coordinates)
    if window is None:
        inside, least = _inside_share(scope, descriptor, coordinates)
    else:
        inside, least = inside_image(scope, descriptor, window, coordinates, list(offsets))
    moved = copies * descriptor.box_bytes * inside
    axes: frozenset[str] = frozenset().union(*(scope.block_axes(c) for c in coordinates))
    depth = slots(scope, shared_index)
    tiles = number_tiles(scope.with_arbitrary_data() if chosen else scope, coordinates)
    # an inner loop that does not change the coordinates fetches the same box again
    repeats = math.prod(
        loop.extent
        for loop in scope.loops
        if not any(loop.variable in scope.depends_on(c) for c in coordinates)
    )
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
        footprint_bytes=moved / max(1.0, repeats) * receivers,
        row_bytes=float(descriptor.box[0] * descriptor.element_bytes) if chosen else 0.0,
        tile_digits=tiles.digits,
        tile_ids=tiles.ids,
        turns=tiles.turns,
    )
    return outer, bulk_shared_side(copies * receivers, descriptor.box_bytes, write=not write, depth=depth)


def bulk_shared_side(copies: float, box_bytes: float, *, write: bool, depth: int) -> Access:
    """Return the shared-memory access of a bulk copy: whole rows of 128 bytes, without bank conflicts."""
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
    """Number of different buffers that an address cycles through over the iterations of the phase's loop.

    A number that was counted before the loop only shifts the cycle, so that any value serves.
    """
    try:
        anywhere = scope.with_arbitrary_data()
        return len(np.unique(anywhere.over_phase(index))) if scope.phase_loop is not None else 1
    except UnevaluableError:
        return 1


def without_repeated_indices(accesses: list[Access]) -> list[Access]:
    """The accesses of one statement, without repeated loads of the indices by which data chooses its places.

    A bounds check and an address load the same index; the compiler loads it once.
    """
    if not any(access.row_bytes for access in accesses):
        return accesses
    return [
        access
        for position, access in enumerate(accesses)
        if access.write or access.row_bytes or access.mechanism != "ld" or access not in accesses[:position]
    ]


def _merged(scope: Scope, site: AccessSite, width: int, *, write: bool) -> tuple[int, Scope]:
    """How many accesses of the enclosing unrolled loops the compiler joins, and the scope of the first one.

    The compiler joins contiguous, aligned accesses up to 16 bytes a lane. It does this in shared memory only,
    where it knows the alignment. It does not pack values of less than a word to store them together, and
    joins fewer loads of some types (`widest_joined`).
    """
    factor, widest = 1, WIDEST_ACCESS_BYTES
    outer = () if scope.phase_loop is None else (scope.phase_loop,)
    for loop in reversed((*outer, *scope.loops)):
        if not write and site.vector == 1:
            widest = min(widest, widest_joined(site.dtype, loop.functions))
        along = 1
        copies = loop.extent if loop.unrolled else loop.copies
        while along * 2 <= copies and width * factor * 2 <= widest:
            first = _stepped(scope, loop, along * 2)
            second = scope.shifted(loop, first.pattern[loop.variable] + along)
            a = first.addresses(site.index) * site.element_bytes
            b = second.addresses(site.index) * site.element_bytes
            joined = width * factor
            if not (np.all(b - a == joined) and np.all(a % (joined * 2) == 0)):
                break
            factor, along, scope = factor * 2, along * 2, first
    return factor, scope


def _stepped(scope: Scope, loop: Loop, step: int) -> Scope:
    value = np.asarray(scope.pattern[loop.variable])
    return scope.shifted(loop, value // step * step)


def repeats_of_load(scope: Scope, index: Any) -> float:
    """Mean number of times that a thread loads each of its addresses in unrolled loops.

    The compiler loads once for all: for the iterations of a loop that does not change the address, and for
    those that return to it, as where a row of a fragment has one scale. Iterations under conditions that
    exclude each other, and those of loops around one that stays a loop, do not share a load.
    """
    reads = scope.depends_on(index)
    unrolled = _unrolled_together(scope, reads)
    repeats = math.prod((loop.extent for loop in unrolled if loop.variable not in reads), start=1.0)
    repeats *= _repeats_in_copies(scope, index, reads)
    changing = [loop for loop in unrolled if loop.variable in reads]
    if not changing or scope.reads_tables(index):  # the compiler does not know the caller's integers
        return repeats
    try:
        addresses = scope.over_loops(index, changing)
        held = _held(scope, changing, addresses.shape)
    except UnevaluableError:
        return repeats
    loaded, different = int(held.sum()), len(np.unique(addresses[held]))
    if different < loaded <= MOST_ACCESSES:
        with suppress(UnevaluableError):
            different = np.unique(scope.over_loops_anywhere(index, changing)[:, held], axis=1).shape[1]
    return repeats * loaded / different if different else repeats


def _repeats_in_copies(scope: Scope, index: Any, reads: frozenset[int]) -> float:
    """How often the copies of an iteration load each of their addresses, in the mean.

    The innermost loop is unrolled in part, and its iterations load the two halves of a byte, for example, or
    the scale of several elements.
    """
    loop = scope.loops[-1] if scope.loops else None
    if loop is None or loop.unrolled or loop.copies <= 1 or loop.variable not in reads:
        return 1.0
    if scope.reads_tables(index):  # the compiler does not know the caller's integers
        return 1.0
    try:
        addresses = scope.over_loops(index, [loop])
    except UnevaluableError:
        return 1.0
    groups = addresses[: len(addresses) // loop.copies * loop.copies].reshape(-1, loop.copies)
    different = int((np.diff(np.sort(groups, axis=1), axis=1) != 0).sum()) + len(groups)
    return groups.size / different if groups.size else 1.0


def _apart_where_rewritten(scope: Scope) -> Scope:
    """The scope in which unrolled iterations that store to shared memory load from there each on its own.

    All buffers are parts of one array for the compiler, and a store may change what is loaded. This is known
    of sums of products in shared memory, whose unrolled loop stands in one that stays a loop.
    """
    around = any(not loop.unrolled and loop.extent > 1 for loop in scope.loops)
    if not around or not any(loop.rewrites and loop.unrolled for loop in scope.loops):
        return scope
    return replace(
        scope,
        loops=tuple(replace(loop, unrolled=loop.unrolled and not loop.rewrites) for loop in scope.loops),
    )


def _held(scope: Scope, loops: list[Loop], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """For which iterations of `loops` the conditions hold that depend on them, as a mask of that shape."""
    steps = {loop.variable for loop in loops}
    held = np.ones(shape, bool)
    for condition in scope.conditions:
        if steps & scope.depends_on(condition):
            held &= scope.over_loops(condition, loops).astype(bool)
    return held


def _unrolled_together(scope: Scope, reads: frozenset[int]) -> list[Loop]:
    """The unrolled loops around a statement, up to a loop that stays one and that changes what it `reads`.

    The copies of such a loop run one after another.
    """
    found: list[Loop] = []
    for position, loop in reversed(list(enumerate(scope.loops))):
        if position < scope.around and scope.phase_loop is not None and scope.phase_loop.variable in reads:
            break
        if loop.unrolled:
            found.insert(0, loop)
        elif loop.extent > 1 and loop.variable in reads:
            break
    return found


def _in_row(scope: Scope) -> float:
    """Executions of a statement before its thread may change its direction in shared memory."""
    in_row = 1.0
    for loop in reversed(scope.loops):
        if loop.rewrites:
            break
        in_row *= loop.extent
    return in_row


def _distinct_share(scope: Scope, index: Any) -> float:
    """Share of distinct bytes among those that a block requests in one iteration of the phase."""
    if scope.elected:
        return 1.0
    try:
        addresses = scope.over_block(index)
    except UnevaluableError:
        return 1.0
    if scope.held is not None:
        addresses = addresses[scope.held]
    share = len(np.unique(addresses)) / max(1, addresses.size)
    reads = scope.depends_on(index)
    for loop in scope.loops:
        if loop.variable not in reads and loop.extent > 1:
            share /= loop.extent
    return share


@dataclass(frozen=True, slots=True)
class _Places:
    """Contiguous bytes that a statement accesses in device memory; all 0 if they are not known.

    Attributes:
        at_once: by one block in one iteration.
        own: by one block, in the iterations whose loads are in flight together.
        run_bytes: with the blocks that start next; those further apart are out of step.
        sector_bytes: as `Access.sector_bytes`.
    """

    at_once: float = 0.0
    own: float = 0.0
    run_bytes: float = 0.0
    sector_bytes: float = 0.0


def _places_together(scope: Scope, site: AccessSite, width: int) -> _Places:
    try:
        elements, share = scope.over_statement(site.index)
        addresses = (elements * site.element_bytes).astype(np.int64)
        run, together = contiguous_bytes(addresses, width), sector_bytes_of(addresses, width) / share
        own = _in_iterations(scope, site, run)
        return _Places(run, own, _with_neighbours(scope, site, own), together)
    except UnevaluableError:
        return _Places()


def reach(scope: Scope, site: AccessSite, run: float) -> float:
    """Bytes to which the run of one block grows with the next iterations and the blocks that start next.

    Raises:
        UnevaluableError: the distance of the next ones cannot be evaluated.
    """
    return _with_neighbours(scope, site, _in_iterations(scope, site, run))


def _in_iterations(scope: Scope, site: AccessSite, run: float) -> float:
    """Bytes of a run with those of the iterations whose loads are in flight together."""
    loop = scope.phase_loop
    if loop is not None and 0 < _step_bytes(scope, site, loop.variable, loop.start) <= run:
        run *= loop.together
    return run


def _with_neighbours(scope: Scope, site: AccessSite, run: float) -> float:
    """Bytes of a run with those of the blocks that start next."""
    for variable, extent in (scope.launch.block[axis] for axis in AXES if axis in scope.launch.block):
        step = _step_bytes(scope, site, variable, 0) if extent > 1 else 0.0
        if step:
            return run * extent if step <= run else run
    return run


def _continues(scope: Scope, site: AccessSite, width: int, *, write: bool) -> bool:
    """Whether each lane's next instruction continues the bytes of this one, in an unrolled loop.

    Narrow accesses, of which a sector takes many, are too far apart (serial products of a row a thread),
    but for loads of a loop that ends within the sector. The first-level cache does not join stores.
    """
    return any(
        loop.extent > 1
        and (width >= JOINED_BYTES or (not write and _ends_within_sector(scope, site, width, loop)))
        and _step_bytes(scope, site, loop.variable, loop.start) == width
        for loop in scope.loops
        if loop.unrolled
    )


def _ends_within_sector(scope: Scope, site: AccessSite, width: int, loop: Loop) -> bool:
    """Whether the iterations of a loop fit into a sector, and no data chooses the place of each."""
    if loop.extent * width > SECTOR_BYTES:
        return False
    return loop.variable not in _choosing(scope, site)


def _choosing(scope: Scope, site: AccessSite) -> frozenset[int]:
    """The variables with which the index changes that is loaded to choose a place."""
    values = (site.index, *(scope.derived[v] for v in variables(site.index) if v in scope.derived))
    chosen = (index for value in values for load in loads(value) for index in load.indices)
    return frozenset().union(*map(scope.depends_on, chosen))


def _step_within_sector(scope: Scope, site: AccessSite) -> float:
    """As `Access.step_bytes`: of a thread that walks over a row element by element, for example.

    A walk of a few steps, after which data chooses another place, comes to a sector of its own.
    """
    reads = scope.depends_on(site.index)
    around = (*((scope.phase_loop,) if scope.phase_loop is not None else ()), *scope.loops)
    loop = next((x for x in reversed(around) if x.extent > 1 and x.variable in reads), None)
    if loop is None:
        return 0.0
    try:
        step = _step_bytes(scope, site, loop.variable, loop.start)
    except UnevaluableError:
        return 0.0
    before = around[: around.index(loop)]
    if step and _choosing(scope, site) & {each.variable for each in before}:
        step = max(step, SECTOR_BYTES / loop.extent)
    return step if step < SECTOR_BYTES else 0.0


def _step_bytes(scope: Scope, site: AccessSite, variable: int, start: int) -> float:
    """Distance of the addresses of two successive values of a launch or loop variable."""
    first, second = (scope.at(site.index, {variable: start + step}) for step in (0, 1))
    return abs(float(second) - float(first)) * site.element_bytes


def _is_chosen_by_data(scope: Scope, coordinates: list[Any]) -> bool:
    """Whether loaded data chooses the place of a copy."""
    for coordinate in coordinates:
        try:
            scope.addresses(coordinate)
        except UnevaluableError:
            if scope.is_chosen_by_data(coordinate):
                return True
    return False


def _places(scope: Scope, site: AccessSite, width: int) -> tuple[float, float]:
    """The places that data chooses for a block, in one iteration of the phase.

    Returns:
        (mean number of contiguous bytes at each place, distinct bytes of all places).
    """
    try:
        addresses, share = scope.over_statement(site.index)
    except UnevaluableError:
        return float(width), math.inf
    addresses = addresses * site.element_bytes
    return contiguous_bytes(addresses, width), len(np.unique(addresses)) * width / share


def _inside_share(scope: Scope, descriptor: Descriptor, coordinates: list[Any]) -> tuple[float, float]:
    """Share of a box that lies inside its tensor: mean and minimum over the sampled blocks and iterations."""
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


def _scattered(
    scope: Scope,
    site: AccessSite,
    width: int,
    requested: float,
    *,
    write: bool,
    mechanism: str,
    asynchronous: bool,
) -> Access:
    """Return the access of an address that cannot be evaluated: of data, or of an unknown counter.

    Each lane is assumed to touch another location, unless the address derives from nothing that differs
    between lanes, or the buffer is too small for that.
    """
    lanes = min(scope.launch.warp_threads, scope.threads)
    if not scope.depends_on(site.index) & scope.launch.thread_variables:
        lanes = 1
    return Access(
        space=site.space,
        tensor=site.tensor,
        write=write,
        mechanism=mechanism,
        bytes=requested,
        transactions=scope.warp_executions
        * (lanes if site.space is Space.GLOBAL else _conflicts(scope, site, width, lanes, write)),
        instructions=scope.warp_executions,
        vector_bytes=width,
        asynchronous=asynchronous,
        axes=frozenset(scope.launch.block),
        loop_dependent=True,
        footprint_bytes=requested,
    )


def _conflicts(scope: Scope, site: AccessSite, width: int, lanes: int, write: bool) -> float:
    """Wavefronts of lanes that access places of a buffer in shared memory that data chooses.

    The places follow from arbitrary data: an address often has parts that data does not choose, such as the
    copy of a table that a lane reads. Lanes that read the same word share it, so a bank is busy for at most
    as many words as the buffer has in it: the table of 16 values of a format of four bits has no conflicts.
    """
    words_in_bank = math.ceil(site.array_bytes / BANKS_BYTES)
    most = float(lanes) if write or not words_in_bank else min(float(lanes), float(words_in_bank))
    elements = round(site.array_bytes / site.element_bytes)
    each = lanes * SCATTERED_WAVEFRONTS
    if elements:
        with suppress(UnevaluableError):
            places = scope.with_arbitrary_data().addresses(site.index) % elements
            each = wavefronts((places * site.element_bytes).astype(np.int64)[:, :lanes], width)
    return min(most, each)
