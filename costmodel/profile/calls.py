"""What TileLang's intrinsics ask of the hardware. An intrinsic that is missing here is reported and charged dearly.

Source: TileLang 0.1.15, the comments of its builtin headers and the device code that it generates from each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...profile import MatrixWork, Space
from .accesses import Place, bulk_access, bulk_shared_side, lane_access, matrix_access, slots
from .book import Book, book_math
from .descriptors import Descriptor
from .dtypes import MATRIX_TYPES, element_type
from .expressions import constant
from .scope import Scope

Handler = Callable[[Book, Any, Scope], None]

# no work worth a term: fences, hints, set-up done once, values of the launch
FREE = frozenset(
    [
        "tirx.tvm_tuple",
        "tirx.type_annotation",
        "tirx.tvm_access_ptr",
        "tirx.handle_add_byte_offset",
        "tirx.address_of",
        "tirx.reinterpret",
        "tirx.likely",
        "tirx.ptx_init_barrier_thread_count",
        "tirx.ptx_commit_group",
        "tirx.tvm_warp_activemask",
        "tirx.tvm_stack_alloca",
        "tirx.assume",
        "tl.prefetch_tma_descriptor",
        "tl.ptx_fence_barrier_init",
        "tl.initialize_wgmma_descriptor",
        "tl.increase_descriptor_offset",
        "tl.infinity",
        "tl.warpgroup_fence_operand",
        "tl.warpgroup_arrive",
        "tl.warpgroup_commit_batch",
        "tl.fence_proxy_async",
        "tl.tma_store_arrive",
        "tl.tl_shuffle_elect",
        "tl.mbarrier_expect_tx",
        "tl.set_max_nreg",
        "tl.no_set_max_nreg",
        "tl.annotate_producer_reg_dealloc",
        "tl.annotate_consumer_reg_alloc",
        "tl.pdl_sync",
        "tl.pdl_trigger",
        "tl.get_lane_idx",
        "tl.get_warp_idx",
        "tl.get_warp_idx_sync",
        "tl.get_warp_group_idx",
        "tl.block_rank_in_cluster",
        "tl.activemask",
        "tl.device_assert",
        "tl.device_assert_with_msg",
        "tl.cluster_arrive",
        "tl.cluster_arrive_relaxed",
        "tl.access_ptr",
        "tl.loop_break",
        "tirx.ret",
        "tirx.tvm_thread_invariant",
        "tirx.undef",
    ]
)


def handle(book: Book, call: Any, scope: Scope) -> bool:
    """Book `call`; False where it is not known."""
    name = getattr(call.op, "name", "")
    if name in FREE:
        return True
    handler = HANDLERS.get(name)
    if handler is None:
        return False
    handler(book, call, scope)
    return True


def _text(argument: Any) -> str:
    return str(getattr(argument, "value", argument))


def _count(key: str, per_thread: float = 1.0) -> Handler:
    """Books `per_thread` lane operations of a kind, and the arguments' own arithmetic."""

    def handler(book: Book, call: Any, scope: Scope) -> None:
        book.ledger.counts[key] += scope.executions * per_thread
        for argument in call.args:
            book.value(argument, scope)

    return handler


def _event(key: str) -> Handler:
    """Books one event for each time that the block's threads come by together."""

    def handler(book: Book, _call: Any, scope: Scope) -> None:
        book.ledger.counts[key] += scope.times * scope.warps

    return handler


# --- matrix instructions ---------------------------------------------------------------------------------------------


def _wgmma(book: Book, call: Any, scope: Scope) -> None:
    from_registers = call.op.name.endswith("_rs")
    sparse = "_sp_" in call.op.name
    shape = _text(call.args[0])
    m, n, k = (int(v) for v in re.findall(r"\d+", shape))
    offset = 2 if from_registers else 3
    dtype = MATRIX_TYPES.get(_text(call.args[offset]), "bfloat16")
    size = element_type(dtype).bytes or 2
    book.ledger.matrix.append(
        MatrixWork(
            instruction=f"wgmma.{shape}",
            count=scope.executions / 128,
            flops=2.0 * m * n * k,
            shared_bytes=n * k * size + (0 if from_registers else m * k * size * (0.5 if sparse else 1)),
            warps=4,
            dtype=dtype,
        )
    )


def _mma(book: Book, call: Any, scope: Scope) -> None:
    shape = next(t for t in map(_text, call.args) if re.fullmatch(r"m\d+n\d+k\d+", t))
    m, n, k = (int(v) for v in re.findall(r"\d+", shape))
    types = [MATRIX_TYPES[t] for t in map(_text, call.args) if t in MATRIX_TYPES and not t.startswith("m")]
    book.ledger.matrix.append(
        MatrixWork(
            f"mma.{shape}",
            scope.executions / scope.launch.warp_threads,
            2.0 * m * n * k,
            0.0,
            1,
            types[1] if len(types) > 1 else "bfloat16",
        )
    )


def _mfma(book: Book, call: Any, scope: Scope) -> None:
    name = _text(call.args[0])  # e.g. f32_16x16x16bf16_1k
    match = re.search(r"(\d+)x(\d+)x(\d+)_?([a-z]+\d+)", name)
    if match is None:
        book.unknown(f"mfma {name}", scope)
        return
    m, n, k = (int(match[i]) for i in (1, 2, 3))
    dtype = {"bf16": "bfloat16", "f16": "float16", "fp8": "float8", "i8": "int8", "f32": "float32"}.get(match[4], "bfloat16")
    book.ledger.matrix.append(MatrixWork(f"mfma.{m}x{n}x{k}", scope.executions / scope.launch.warp_threads, 2.0 * m * n * k, 0.0, 1, dtype))


def _ldmatrix(book: Book, call: Any, scope: Scope) -> None:
    # ldmatrix(transposed, matrices, shared pointer, destination...)
    place = book.memory.pointer(call.args[2])
    matrices = constant(call.args[1]) or 4
    if place is not None:
        book.ledger.accesses.append(matrix_access(scope, place, matrices=matrices, write=False, mechanism="ldmatrix"))


def _stmatrix(book: Book, call: Any, scope: Scope) -> None:
    place = book.memory.pointer(call.args[2])
    matrices = constant(call.args[1]) or 4
    if place is not None:
        book.ledger.accesses.append(matrix_access(scope, place, matrices=matrices, write=True, mechanism="stmatrix"))
    for argument in call.args[3:]:
        book.value(argument, scope)


# --- copies ----------------------------------------------------------------------------------------------------------


def _tma_load(book: Book, call: Any, scope: Scope) -> None:
    # (descriptor, barrier, shared pointer, coordinates..., eviction) or (shared pointer, global pointer, barrier, bytes, ...)
    _bulk(book, call, scope, write=False)


def _tma_store(book: Book, call: Any, scope: Scope) -> None:
    # (descriptor, shared pointer, coordinates..., reduce, eviction) or (global pointer, shared pointer, bytes, ...)
    _bulk(book, call, scope, write=True)


def _bulk(book: Book, call: Any, scope: Scope, *, write: bool) -> None:
    descriptor = book.memory.descriptor(call.args[0])
    pointers = [(argument, place) for argument in call.args[:4] if (place := book.memory.pointer(argument)) is not None]
    shared = next((place for _, place in pointers if place.space is Space.SHARED), None)
    if descriptor is not None:
        first = next(i for i, a in enumerate(call.args) if book.memory.pointer(a) is not None) + 1
        coordinates = list(call.args[first : first + len(descriptor.box)])
        index = shared.index if shared else 0
        book.ledger.accesses.extend(bulk_access(scope, descriptor, coordinates, index, write=write))
        return
    distant = next(((argument, place) for argument, place in pointers if place.space is Space.GLOBAL), None)
    extent = book.memory.pointer_extent(distant[0]) if distant else None
    if distant is None or shared is None or extent is None:
        book.unknown(call.op.name, scope)
        return
    # a bulk copy without a descriptor: one stretch of contiguous bytes
    place = distant[1]
    line = Descriptor(place.tensor, round(place.element_bytes), (0,), (extent,))
    book.ledger.accesses.extend(bulk_access(scope, line, [place.index], shared.index, write=write))


def _cp_async(book: Book, call: Any, scope: Scope) -> None:
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
    elements = max(1, count)
    for place, write, on in ((source, False, inner), (target, True, scope)):
        spot = Place(place.space, place.tensor, place.index, place.element_bytes, elements)
        book.ledger.accesses.append(lane_access(on, spot, write=write, mechanism="cp_async", asynchronous=True))


def _pointer_access(write: bool, bits: int, space: Space) -> Handler:
    def handler(book: Book, call: Any, scope: Scope) -> None:
        place = book.memory.pointer(call.args[0])
        if place is None:
            book.unknown(call.op.name, scope)
            return
        spot = Place(space, place.tensor, place.index, place.element_bytes, max(1, round(bits / 8 / place.element_bytes)))
        book.ledger.accesses.append(lane_access(scope, spot, write=write, mechanism="st" if write else "ld"))
        for argument in call.args[1:]:
            book.value(argument, scope)

    return handler


def _atomic(book: Book, call: Any, scope: Scope) -> None:
    place = next((p for p in (book.memory.pointer(a) for a in call.args) if p is not None), None)
    if place is None:
        book.unknown(call.op.name, scope)
        return
    wide = {"x2": 2, "x4": 4}
    vector = next((n for tag, n in wide.items() if tag in call.op.name), 1)
    spot = Place(place.space, place.tensor, place.index, place.element_bytes, vector)
    book.ledger.accesses.append(lane_access(scope, spot, write=True, mechanism="atomic"))
    book.note("atomics on one address are taken to follow each other a cycle apart; what contention costs beyond is not known")
    for argument in call.args[1:]:
        if book.memory.pointer(argument) is None:
            book.value(argument, scope)


def _bulk_fill(book: Book, call: Any, scope: Scope) -> None:
    place, size = book.memory.pointer(call.args[0]), constant(call.args[1]) if len(call.args) > 1 else None
    if place is None or size is None:
        book.unknown(call.op.name, scope)
        return
    book.ledger.accesses.append(bulk_shared_side(scope.warp_executions, size, write=True, depth=slots(scope, place.index)))


# --- synchronisation -------------------------------------------------------------------------------------------------


def _storage_sync(book: Book, call: Any, scope: Scope) -> None:
    if _text(call.args[0]) == "warp":
        return
    book.ledger.counts["block_syncs"] += scope.times * scope.warps


def _wait_group(book: Book, call: Any, scope: Scope) -> None:
    book.ledger.counts["barrier_waits"] += scope.times * scope.warps
    left = constant(call.args[0]) if call.args else 0
    book.ledger.wait_groups.append(left or 0)


def _extern(book: Book, call: Any, scope: Scope) -> None:
    name = _text(call.args[0])
    reduction = re.match(r"tl::(?:AllReduce|allreduce)\w*<\s*([\w:]+)[^,]*,\s*(\d+)\s*,\s*(\d+)", name)
    if reduction:
        batch = re.search(r",\s*(\d+),\s*\d+>::run_batch$", name)
        _all_reduce(book, scope, int(reduction[2]), int(reduction[3]), int(batch[1]) if batch else 1)
    elif not book_math(book, name.rsplit("::", 1)[-1], call, scope):
        book.unknown(name, scope)
    for argument in call.args[1:]:
        book.value(argument, scope)


def _all_reduce(book: Book, scope: Scope, threads: int, scale: int, batch: int) -> None:
    """tl::AllReduce<Op, threads, scale>: a butterfly over `threads / scale` lanes for each of `batch` values; steps wider
    than a warp go through shared memory with a barrier on each side."""
    step, counts = threads // 2, book.ledger.counts
    while step >= max(1, scale):
        counts["vector_ops"] += scope.executions * batch
        if step >= scope.launch.warp_threads:
            counts["block_syncs"] += 2 * scope.times * scope.warps
            for write in (True, False) * batch:
                book.shared_words(scope, write=write)
        else:
            counts["shuffles"] += scope.executions * batch
        step //= 2


HANDLERS: Mapping[str, Handler] = {
    **{f"tl.ptx_wgmma_{kind}": _wgmma for kind in ("ss", "rs", "sp_ss", "sp_rs")},
    **dict.fromkeys(("tirx.ptx_mma", "tirx.ptx_mma_sp", "tl.ptx_mma_sm70", "tl.ptx_mma_block_scale"), _mma),
    "tl.tvm_mfma": _mfma,
    "tl.ptx_ldmatrix": _ldmatrix,
    "tirx.ptx_ldmatrix": _ldmatrix,
    "tl.ptx_stmatrix": _stmatrix,
    **{f"tl.{name}": _tma_load for name in ("tma_load", "tma_load_multicast", "tma_load_im2col")},
    **{f"tl.{name}": _tma_store for name in ("tma_store", "tma_store_cluster")},
    "tl.ptx_cp_async": _cp_async,
    "tirx.ptx_cp_async": _cp_async,
    "tl.ptx_st_bulk_shared": _bulk_fill,
    **{f"tl.ldg{bits}": _pointer_access(False, bits, Space.GLOBAL) for bits in (32, 64, 128, 256)},
    **{f"tl.stg{bits}": _pointer_access(True, bits, Space.GLOBAL) for bits in (32, 64, 128, 256)},
    **{f"tl.lds{bits}": _pointer_access(False, bits, Space.SHARED) for bits in (32, 64, 128)},
    **{f"tl.sts{bits}": _pointer_access(True, bits, Space.SHARED) for bits in (32, 64, 128)},
    **{
        f"tl.atomic_{op}_elem_op": _atomic
        for op in ("add", "add_ret", "addx2", "addx2_ret", "addx4", "addx4_ret", "max", "max_ret", "min", "min_ret", "or", "load", "store")
    },
    "tirx.tvm_storage_sync": _storage_sync,
    "tl.mbarrier_wait_parity": _event("barrier_waits"),
    "tirx.ptx_wait_barrier": _event("barrier_waits"),
    "tl.tma_store_wait": _event("barrier_waits"),
    "tirx.ptx_wait_group": _wait_group,
    "tl.warpgroup_wait": _event("matrix_waits"),
    "tl.wait_wgmma": _event("matrix_waits"),
    **{
        name: _count("integer_ops")
        for name in (
            "tirx.ptx_arrive_barrier", "tirx.ptx_arrive_barrier_expect_tx", "tl.ptx_arrive_cluster_barrier", "tl.named_barrier_arrive",
            "tl.ptx_cp_async_barrier_noinc", "tirx.ptx_cp_async_barrier", "tl.sync_warp", "tirx.bitwise_and", "tirx.bitwise_or",
            "tirx.bitwise_xor", "tirx.bitwise_not", "tirx.shift_left", "tirx.shift_right", "tl.any_sync", "tl.all_sync", "tl.ballot",
            "tl.ballot_sync", "tl.all_of", "tl.any_of", "tl.mvb_stage_index",
        )
    },
    **{
        f"tl.{name}": _event("block_syncs")
        for name in ("syncthreads_and", "syncthreads_or", "syncthreads_count", "cluster_sync", "cluster_wait", "sync_grid")
    },
    **{f"tl.warp_reduce_{op}": _count("shuffles", 5) for op in ("sum", "max", "min", "bitand", "bitor")},
    **{f"tl.shfl_{kind}_sync": _count("shuffles") for kind in ("up", "down", "xor")},
    "tl.shfl_sync": _count("shuffles"),
    **{f"tirx.tvm_warp_shuffle{suffix}": _count("shuffles") for suffix in ("", "_up", "_down", "_xor")},
    **{f"tl.match_{kind}_sync": _count("shuffles") for kind in ("all", "any")},
    # two conversions meet in one packing instruction; the packing itself is part of the conversion
    "tl.pack_b16": _count("integer_ops", 0.0),
    "tl.pack_b8x4": _count("integer_ops", 1.0),
    "tirx.call_extern": _extern,
    "tirx.call_pure_extern": _extern,
}  # fmt: skip
