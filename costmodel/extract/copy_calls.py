"""Counts the work of copy intrinsics, accesses through pointers, and atomics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...profile.values import Space
from .accesses import AccessSite, bulk_access, bulk_shared_side, lane_access, slots
from .counting import CountingContext, Handler
from .descriptors import Descriptor
from .element_types import element_type
from .expressions import UnevaluableError, constant, evaluate, identity, variables
from .patterns import lanes_of_address
from .phase_counts import Slot
from .scope import Scope

# Wavefronts of shared memory in whose time a warp makes a round of a loop that compares and swaps. Read off
# the times of a pruning kernel by others, whose 64 to 256 threads add to one number: 7 to 13 (an H200).
SWAP_WAVEFRONTS = 12.0
SWAP_TRIPS = 2  # round trips of such a loop in device memory if it succeeds at once: a load and a swap


def tma_load(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count a bulk load.

    Its arguments are (descriptor, barrier, shared pointer, coordinates..., eviction), for an image
    (descriptor, barrier, shared pointer, coordinates..., offsets of columns, rows, ..., eviction), and
    without a descriptor (shared pointer, global pointer, barrier, bytes, ...).
    """
    _bulk(context, call, scope, write=False)


def tma_load_multicast(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count a bulk load of one block for several blocks of its cluster.

    As `tma_load` with a descriptor, and with the mask of these blocks after the shared pointer.
    """
    mask = constant(call.args[3])
    if mask is None:
        context.count_unknown(call.op.name, scope)
        return
    _bulk(context, call, scope, write=False, between=1, receivers=mask.bit_count())


def tma_store(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count a bulk store.

    Its arguments are (descriptor, shared pointer, coordinates..., reduce, eviction), and without a descriptor
    (global pointer, shared pointer, bytes, ...).
    """
    _bulk(context, call, scope, write=True)


def _bulk(
    context: CountingContext,
    call: Any,
    scope: Scope,
    *,
    write: bool,
    between: int = 0,  # arguments between the shared pointer and the coordinates
    receivers: int = 1,  # blocks whose shared memory a load fills
) -> None:
    descriptor = context.memory.descriptor(call.args[0])
    pointers = [
        (argument, site)
        for argument in call.args[:4]
        if (site := context.memory.pointer_site(argument)) is not None
    ]
    shared = next((site for _, site in pointers if site.space is Space.SHARED), None)
    if descriptor is not None:
        first = next(i for i, a in enumerate(call.args) if context.memory.pointer_site(a) is not None)
        first += 1 + between
        rank = len(descriptor.shape)
        coordinates = list(call.args[first : first + rank])
        offsets = list(call.args[first + rank : first + 2 * rank - 2]) if descriptor.window else []
        for coordinate in (*coordinates, *offsets):
            context.count_address(coordinate, scope)
        index = shared.index if shared else 0
        _fill(context, pointers, coordinates, scope, call.args[1], write=write)
        context.phase.accesses.extend(
            bulk_access(
                scope, descriptor, coordinates, index, write=write, offsets=offsets, receivers=receivers
            )
        )
        return
    distant = next(((argument, site) for argument, site in pointers if site.space is Space.GLOBAL), None)
    extent = context.memory.pointer_extent(distant[0]) if distant else None
    if distant is None or shared is None or extent is None:
        context.count_unknown(call.op.name, scope)
        return
    # a bulk copy without a descriptor moves one contiguous range of bytes
    site = distant[1]
    context.count_address(site.index, scope)
    _fill(context, pointers, [site.index], scope, call.args[2], write=write)
    line = Descriptor(site.tensor, round(site.element_bytes), (0,), (extent,))
    context.phase.accesses.extend(bulk_access(scope, line, [site.index], shared.index, write=write))


def mbarrier_key(barrier: Any) -> tuple[int, ...]:
    """Equal for expressions of the same mbarrier in one iteration of a loop."""
    from tvm.ir import structural_hash

    buffer = getattr(barrier, "buffer", None)
    if buffer is None:
        return (structural_hash(barrier),)
    return (identity(buffer.data), *map(structural_hash, barrier.indices))


def mbarrier_slot(barrier: Any) -> Slot | None:
    """The ring of mbarriers that `barrier` belongs to: where it lies if all variables are 0."""
    buffer = getattr(barrier, "buffer", None)
    if buffer is None:
        return None
    try:
        place = evaluate(barrier.indices[0], dict.fromkeys(variables(barrier.indices[0]), 0))
    except UnevaluableError:
        return None
    return identity(buffer.data), int(place)


def _fill(
    context: CountingContext,
    pointers: list[tuple[Any, AccessSite]],
    sources: list[Any],
    scope: Scope,
    barrier: Any,  # of a load
    *,
    write: bool,
) -> None:
    """Record what the shared buffer of a bulk load receives, and the mbarrier at which it completes."""
    if not write:
        context.phase.filled.add(mbarrier_key(barrier))
        context.phase.note_copy(mbarrier_slot(barrier))
        derived = frozenset().union(*(scope.depends_on(source) for source in sources))
        for argument in (a for a, site in pointers if site.space is Space.SHARED):
            context.memory.fill(argument, derived, scope)


def cp_async(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count cp.async with the arguments (shared pointer, global pointer, elements or bytes[, predicate])."""
    target, source = context.memory.pointer_site(call.args[0]), context.memory.pointer_site(call.args[1])
    count = constant(call.args[2])
    if target is None or source is None or count is None:
        context.count_unknown(call.op.name, scope)
        return
    inner = scope
    if len(call.args) > 3:
        context.count_value(call.args[3], scope)
        predicated = scope.with_condition(call.args[3])
        if predicated is None:
            return
        inner = predicated
    context.count_address(source.index, inner)
    context.memory.fill(call.args[0], scope.depends_on(source.index), scope)
    elements = max(1, count)
    for site, write, on in ((source, False, inner), (target, True, scope)):
        widened = AccessSite(site.space, site.tensor, site.index, site.element_bytes, elements)
        context.phase.accesses.append(
            lane_access(on, widened, write=write, mechanism="cp_async", asynchronous=True)
        )


def pointer_access(write: bool, bits: int, space: Space) -> Handler:
    """A handler that counts a load or store of `bits` bits per lane through a pointer into `space`."""

    def handler(context: CountingContext, call: Any, scope: Scope) -> None:
        site = context.memory.pointer_site(call.args[0])
        if site is None:
            context.count_unknown(call.op.name, scope)
            return
        context.count_address(site.index, scope)
        widened = AccessSite(
            space, site.tensor, site.index, site.element_bytes, max(1, round(bits / 8 / site.element_bytes))
        )
        context.phase.accesses.append(
            lane_access(scope, widened, write=write, mechanism="st" if write else "ld")
        )
        for argument in call.args[1:]:
            context.count_value(argument, scope)

    return handler


def atomic(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count an atomic operation.

    The compiler combines the integers of a warp for one address, and a single lane accesses memory. Shared
    memory has no addition of floats: a loop compares and swaps, and of the lanes of a warp that want one
    address, one succeeds in each round. A minimum or maximum of floats in device memory is a branch that
    loads the number, and such a loop. Read off machine code (nvcc 13.0).
    """
    position, site = next(
        ((i, p) for i, a in enumerate(call.args) if (p := context.memory.pointer_site(a)) is not None),
        (0, None),
    )
    if site is None:
        context.count_unknown(call.op.name, scope)
        return
    context.count_address(site.index, scope)
    wide = {"x2": 2, "x4": 4}
    vector = next((n for tag, n in wide.items() if tag in call.op.name), 1)
    widened = AccessSite(site.space, site.tensor, site.index, site.element_bytes, vector)
    # operands of several elements are pointers, and always to floats
    operands = [element_type(str(value.dtype)).kind for value in call.args[position + 1 :]]
    is_float = vector > 1 or "float" in operands
    swaps = is_float and not any(way in call.op.name for way in ("_load_", "_store_"))
    active = scope.condition
    try:
        addresses = scope.addresses(site.index)
    except UnevaluableError:  # data chooses the places
        addresses, active = np.arange(scope.warp_lanes)[None, :], None
    combined = not is_float and scope.warp_lanes > 1 and not np.ptp(addresses, axis=1).any()
    inside = scope.with_elected(scope.launch.warp_threads) if combined else scope
    access = replace(lane_access(inside, widened, write=True, mechanism="atomic"), is_float=is_float)
    if swaps and site.space is Space.SHARED:
        rounds = access.instructions * (lanes_of_address(addresses, active) - 1)
        access = replace(access, transactions=access.transactions + rounds * SWAP_WAVEFRONTS)
    elif swaps and any(way in call.op.name for way in ("_max_", "_min_")):
        # the other warps of the block wait for those that swap
        context.phase.counts["load_branches"] += SWAP_TRIPS * scope.warp_executions / scope.warp_share
    context.phase.accesses.append(access)
    context.add_note(
        "atomics on one address are taken to follow each other; "
        "how those of many addresses meet at the units of L2 is an estimate"
    )
    for argument in call.args[position + 1 :]:
        context.count_value(argument, scope)


def bulk_fill(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count a bulk store of a constant to shared memory."""
    site, size = (
        context.memory.pointer_site(call.args[0]),
        constant(call.args[1]) if len(call.args) > 1 else None,
    )
    if site is None or size is None:
        context.count_unknown(call.op.name, scope)
        return
    context.phase.accesses.append(
        bulk_shared_side(scope.warp_executions, size, write=True, depth=slots(scope, site.index))
    )
