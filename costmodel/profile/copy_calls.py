"""Copies, accesses through pointers, and atomics."""

from __future__ import annotations

from typing import Any

from ...profile import Space
from .accesses import Place, bulk_access, bulk_shared_side, lane_access, slots
from .book import Book, Handler
from .descriptors import Descriptor
from .expressions import constant
from .scope import Scope


def tma_load(book: Book, call: Any, scope: Scope) -> None:
    # (descriptor, barrier, shared pointer, coordinates..., eviction) or (shared pointer, global pointer, barrier, bytes, ...);
    # of an image: (descriptor, barrier, shared pointer, coordinates..., offsets of columns, rows, ..., eviction)
    _bulk(book, call, scope, write=False)


def tma_store(book: Book, call: Any, scope: Scope) -> None:
    # (descriptor, shared pointer, coordinates..., reduce, eviction) or (global pointer, shared pointer, bytes, ...)
    _bulk(book, call, scope, write=True)


def _bulk(book: Book, call: Any, scope: Scope, *, write: bool) -> None:
    descriptor = book.memory.descriptor(call.args[0])
    pointers = [(argument, place) for argument in call.args[:4] if (place := book.memory.pointer(argument)) is not None]
    shared = next((place for _, place in pointers if place.space is Space.SHARED), None)
    if descriptor is not None:
        first = next(i for i, a in enumerate(call.args) if book.memory.pointer(a) is not None) + 1
        rank = len(descriptor.shape)
        coordinates = list(call.args[first : first + rank])
        offsets = list(call.args[first + rank : first + 2 * rank - 2]) if descriptor.window else []
        for coordinate in (*coordinates, *offsets):
            book.address(coordinate, scope)
        index = shared.index if shared else 0
        book.ledger.accesses.extend(bulk_access(scope, descriptor, coordinates, index, write=write, offsets=offsets))
        return
    distant = next(((argument, place) for argument, place in pointers if place.space is Space.GLOBAL), None)
    extent = book.memory.pointer_extent(distant[0]) if distant else None
    if distant is None or shared is None or extent is None:
        book.unknown(call.op.name, scope)
        return
    # a bulk copy without a descriptor: one stretch of contiguous bytes
    place = distant[1]
    book.address(place.index, scope)
    line = Descriptor(place.tensor, round(place.element_bytes), (0,), (extent,))
    book.ledger.accesses.extend(bulk_access(scope, line, [place.index], shared.index, write=write))


def cp_async(book: Book, call: Any, scope: Scope) -> None:
    # (shared pointer, global pointer, elements or bytes[, predicate])
    target, source = book.memory.pointer(call.args[0]), book.memory.pointer(call.args[1])
    count = constant(call.args[2])
    if target is None or source is None or count is None:
        book.unknown(call.op.name, scope)
        return
    inner = scope
    if len(call.args) > 3:
        book.value(call.args[3], scope)
        predicated = scope.with_condition(call.args[3])
        if predicated is None:
            return
        inner = predicated
    book.address(source.index, inner)
    elements = max(1, count)
    for place, write, on in ((source, False, inner), (target, True, scope)):
        spot = Place(place.space, place.tensor, place.index, place.element_bytes, elements)
        book.ledger.accesses.append(lane_access(on, spot, write=write, mechanism="cp_async", asynchronous=True))


def pointer_access(write: bool, bits: int, space: Space) -> Handler:
    def handler(book: Book, call: Any, scope: Scope) -> None:
        place = book.memory.pointer(call.args[0])
        if place is None:
            book.unknown(call.op.name, scope)
            return
        book.address(place.index, scope)
        spot = Place(space, place.tensor, place.index, place.element_bytes, max(1, round(bits / 8 / place.element_bytes)))
        book.ledger.accesses.append(lane_access(scope, spot, write=write, mechanism="st" if write else "ld"))
        for argument in call.args[1:]:
            book.value(argument, scope)

    return handler


def atomic(book: Book, call: Any, scope: Scope) -> None:
    position, place = next(((i, p) for i, a in enumerate(call.args) if (p := book.memory.pointer(a)) is not None), (0, None))
    if place is None:
        book.unknown(call.op.name, scope)
        return
    book.address(place.index, scope)
    wide = {"x2": 2, "x4": 4}
    vector = next((n for tag, n in wide.items() if tag in call.op.name), 1)
    spot = Place(place.space, place.tensor, place.index, place.element_bytes, vector)
    book.ledger.accesses.append(lane_access(scope, spot, write=True, mechanism="atomic"))
    book.note("atomics on one address are taken to follow each other a cycle apart; what contention costs beyond is not known")
    for argument in call.args[position + 1 :]:
        book.value(argument, scope)


def bulk_fill(book: Book, call: Any, scope: Scope) -> None:
    place, size = book.memory.pointer(call.args[0]), constant(call.args[1]) if len(call.args) > 1 else None
    if place is None or size is None:
        book.unknown(call.op.name, scope)
        return
    book.ledger.accesses.append(bulk_shared_side(scope.warp_executions, size, write=True, depth=slots(scope, place.index)))
