"""Counts the work of TileLang's intrinsics. Missing ones are reported and charged as long functions.

Source: TileLang 0.1.15, the comments of its builtin headers and the device code that it generates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...problem.run_time_data import function_name
from ...profile.values import CLUSTER, Space
from .accesses import AccessSite, lane_access
from .branches import VOTES
from .copy_calls import (
    atomic,
    bulk_fill,
    cp_async,
    mbarrier_key,
    mbarrier_slot,
    pointer_access,
    tma_load,
    tma_load_multicast,
    tma_store,
)
from .counting import CountingContext, Handler, count_math, text
from .exchange_calls import count_exchange
from .expressions import call_name, constant, function_of
from .imported_source import work_of_call
from .matrix_calls import ldmatrix, mfma, mma, stmatrix, wgmma
from .scope import Scope
from .source_instructions import work_of_intrinsic

ONE_INSTRUCTION = frozenset(["DP4A"])  # device functions of one integer instruction per lane

# intrinsics without a noticeable cost: fences, hints, one-time set-up, values of the launch
FREE = frozenset(
    [
        "tirx.tvm_tuple",
        "tirx.type_annotation",
        "tirx.tvm_access_ptr",
        "tirx.handle_add_byte_offset",
        "tirx.address_of",
        "tirx.ptx_init_barrier_thread_count",
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
        "tirx.continue_loop",
        "tirx.break_loop",
        "tl.loop_break",
        "tirx.thread_return",
        "tirx.ret",
        "tirx.tvm_thread_invariant",
        "tirx.undef",
    ]
)


def count_call(context: CountingContext, call: Any, scope: Scope) -> bool:
    """Count the work of `call`. Returns False if its intrinsic is unknown."""
    name = call_name(call)
    if name in FREE:
        return True
    handler = HANDLERS.get(name)
    if handler is None:
        return False
    handler(context, call, scope)
    return True


# A shuffle among the active lanes of a branch: a vote, its result in a uniform register, and a branch for the
# case that lanes are missing, one after another and before the next shuffle. Read off the machine code of
# sums over warps in branches (nvcc 13.0); an H200 takes some 60 cycles a step.
DIVERGENT_INSTRUCTIONS, DIVERGENT_STEPS = 3.0, 2.6


def _shuffle(context: CountingContext, call: Any, scope: Scope) -> None:
    _count("shuffles")(context, call, scope)
    mask = call_name(call.args[0])
    if scope.is_divergent and mask == "tirx.tvm_warp_activemask":
        counts = context.phase.counts
        counts["integer_ops"] += DIVERGENT_INSTRUCTIONS * scope.issued_lanes
        # the other warps of the block wait for those that exchange
        counts["exchange_steps"] += DIVERGENT_STEPS * scope.times * scope.warps / scope.warp_share


def _count_arguments(context: CountingContext, call: Any, scope: Scope) -> None:
    for argument in call.args:
        context.count_value(argument, scope)


def _count(key: str, per_thread: float = 1.0) -> Handler:
    """A handler that counts `per_thread` lane operations under `key`, and the arithmetic of the arguments."""

    def handler(context: CountingContext, call: Any, scope: Scope) -> None:
        context.phase.counts[key] += scope.issued_lanes * per_thread
        _count_arguments(context, call, scope)

    return handler


def _event(key: str) -> Handler:
    """A handler that counts one event under `key` each time that the threads execute the call together."""

    def handler(context: CountingContext, _call: Any, scope: Scope) -> None:
        context.phase.counts[key] += scope.times * scope.warps

    return handler


# --- synchronisation ----------------------------------------------------------------------------------------


def _storage_sync(context: CountingContext, call: Any, scope: Scope) -> None:
    if text(call.args[0]) == "warp":
        return
    events = scope.times * scope.warps
    context.phase.counts["block_syncs"] += events
    if len(call.args) > 1:
        context.phase.named_syncs += events
    else:
        context.phase.order.block_syncs += events


def _vote(context: CountingContext, call: Any, scope: Scope) -> None:
    """A barrier that tells all threads of a block what they say together."""
    _event("block_syncs")(context, call, scope)
    _count_arguments(context, call, scope)


def _named_arrival(context: CountingContext, call: Any, scope: Scope) -> None:
    context.phase.counts["integer_ops"] += scope.issued_lanes
    context.phase.named_arrivals += scope.times * scope.warps
    _count_arguments(context, call, scope)


def _wait_at_mbarrier(context: CountingContext, call: Any, scope: Scope) -> None:
    context.phase.counts["barrier_waits"] += scope.times * scope.warps
    context.phase.order.awaited.add(mbarrier_key(call.args[0]))
    context.phase.note_wait(mbarrier_slot(call.args[0]))


def _arrive_at_mbarrier(context: CountingContext, call: Any, scope: Scope) -> None:
    context.phase.note_arrival(mbarrier_slot(call.args[0]))
    _count("integer_ops")(context, call, scope)


def _commit_matrix(context: CountingContext, _call: Any, _scope: Scope) -> None:
    context.phase.commit_matrix()


def _wait_matrix(context: CountingContext, call: Any, scope: Scope) -> None:
    """Wait until at most the stated number of groups of matrix instructions are in flight."""
    context.phase.counts["matrix_waits"] += scope.times * scope.warps
    context.phase.leave_in_flight(int(constant(call.args[0]) or 0) if call.args else 0)


def _wait_group(context: CountingContext, call: Any, scope: Scope) -> None:
    context.phase.counts["barrier_waits"] += scope.times * scope.warps
    left = (constant(call.args[0]) if call.args else 0) or 0
    context.phase.wait_groups.append(left)
    context.phase.order.wait_for_copies(left)
    context.phase.order.is_certain &= _once(scope)


def _commit_copies(context: CountingContext, _call: Any, scope: Scope) -> None:
    context.phase.order.commit_copies()
    context.phase.order.is_certain &= _once(scope)


def _once(scope: Scope) -> bool:
    """Whether code is executed once in each iteration of the loop that is a phase."""
    return scope.times == 1 and not scope.apart


def _extern(context: CountingContext, call: Any, scope: Scope) -> None:
    name = text(call.args[0])
    stated = context.stated_work(name)
    if stated is not None:
        context.phase.counts["vector_ops"] += scope.issued_lanes * stated
    elif function_of(call) in VOTES:
        _event("block_syncs")(context, call, scope)
    elif name in ONE_INSTRUCTION:
        context.phase.counts["integer_ops"] += scope.issued_lanes
    elif (
        not count_exchange(context, name, call, scope)
        and not count_math(context, name.rsplit("::", 1)[-1], call, scope)
        and not _imported(context, name, call, scope)
        and not _of_header(context, name, scope)
    ):
        context.count_unknown(name, scope)
    for argument in call.args[1:]:
        context.count_value(argument, scope)


def _of_header(context: CountingContext, name: str, scope: Scope) -> bool:
    """Count a call of a function of CUDA's headers. Returns False if it is none that is known."""
    work = work_of_intrinsic(name)
    for key, count in (work or {}).items():
        context.phase.counts[key] += scope.issued_lanes * count
    return work is not None


def _imported(context: CountingContext, name: str, call: Any, scope: Scope) -> bool:
    """Count a call of a function whose text the kernel imports. Returns False if no text defines it."""
    values = tuple(None if (value := constant(a)) is None else float(value) for a in call.args[1:])
    plain = function_name(name)
    work = next(
        (found for source in context.imported if (found := work_of_call(source, plain, values)) is not None),
        None,
    )
    if work is None:
        return False
    for key, count in work.counts.items():
        context.phase.counts[key] += scope.issued_lanes * count
    for use in work.uses:
        site = context.memory.pointer_site(call.args[1 + use.argument])
        if site is None:
            continue  # registers
        vector = max(1, round(use.bytes / site.element_bytes))
        widened = AccessSite(site.space, site.tensor, site.index, site.element_bytes, vector)
        repeated = replace(scope, times=scope.times * use.times)
        mechanism = ("st" if use.write else "ld") + (CLUSTER if use.cluster else "")
        context.phase.accesses.append(lane_access(repeated, widened, write=use.write, mechanism=mechanism))
    for assumption in work.assumed:
        context.add_note(f"{name}: {assumption}")
    if work.unread:
        context.count_unknown(f"{', '.join(work.unread)} in {name}", scope)
    return True


HANDLERS: Mapping[str, Handler] = {
    **{f"tl.ptx_wgmma_{kind}": wgmma for kind in ("ss", "rs", "sp_ss", "sp_rs")},
    **dict.fromkeys(("tirx.ptx_mma", "tirx.ptx_mma_sp", "tl.ptx_mma_sm70", "tl.ptx_mma_block_scale"), mma),
    "tl.tvm_mfma": mfma,
    "tl.ptx_ldmatrix": ldmatrix,
    "tirx.ptx_ldmatrix": ldmatrix,
    "tl.ptx_stmatrix": stmatrix,
    **{f"tl.{name}": tma_load for name in ("tma_load", "tma_load_im2col")},
    "tl.tma_load_multicast": tma_load_multicast,
    **{f"tl.{name}": tma_store for name in ("tma_store", "tma_store_cluster")},
    "tl.ptx_cp_async": cp_async,
    "tirx.ptx_cp_async": cp_async,
    "tl.ptx_st_bulk_shared": bulk_fill,
    **{f"tl.ldg{bits}": pointer_access(False, bits, Space.GLOBAL) for bits in (32, 64, 128, 256)},
    **{f"tl.stg{bits}": pointer_access(True, bits, Space.GLOBAL) for bits in (32, 64, 128, 256)},
    **{f"tl.lds{bits}": pointer_access(False, bits, Space.SHARED) for bits in (32, 64, 128)},
    **{f"tl.sts{bits}": pointer_access(True, bits, Space.SHARED) for bits in (32, 64, 128)},
    **{
        f"tl.atomic_{op}_elem_op": atomic
        for op in (
            "add", "add_ret", "addx2", "addx2_ret", "addx4", "addx4_ret", "max", "max_ret", "min", "min_ret",
            "or", "load", "store",
        )
    },
    "tirx.tvm_storage_sync": _storage_sync,
    "tl.named_barrier_arrive": _named_arrival,
    "tl.mbarrier_wait_parity": _wait_at_mbarrier,
    "tirx.ptx_arrive_barrier": _arrive_at_mbarrier,
    "tirx.ptx_wait_barrier": _event("barrier_waits"),
    "tl.tma_store_wait": _event("barrier_waits"),
    "tirx.ptx_wait_group": _wait_group,
    "tirx.ptx_commit_group": _commit_copies,
    "tl.warpgroup_commit_batch": _commit_matrix,
    "tl.warpgroup_wait": _wait_matrix,
    "tl.wait_wgmma": _wait_matrix,
    **{
        name: _count("integer_ops")
        for name in (
            "tirx.ptx_arrive_barrier_expect_tx", "tl.ptx_arrive_cluster_barrier",
            "tl.ptx_cp_async_barrier_noinc", "tirx.ptx_cp_async_barrier",
            "tl.sync_warp", "tl.any_sync", "tl.all_sync", "tl.ballot", "tl.ballot_sync", "tl.all_of",
            "tl.any_of", "tl.mvb_stage_index",
        )
    },
    # The compiler joins bitwise operations of three operands and processes two narrow values at a time, which
    # leaves half of them (each unpacked int4 weight: two to three instructions in the machine code of
    # dequant_matmul, five to six in the IR).
    **{
        f"tirx.{name}": _count("integer_ops", 0.5)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right")
    },
    **{
        f"tl.{name}": _event("block_syncs") for name in ("cluster_sync", "cluster_wait", "sync_grid")
    },
    **{f"tl.{name}": _vote for name in VOTES},
    **{f"tl.warp_reduce_{op}": _count("shuffles", 5) for op in ("sum", "max", "min", "bitand", "bitor")},
    **{f"tl.shfl_{kind}_sync": _count("shuffles") for kind in ("up", "down", "xor")},
    "tl.shfl_sync": _count("shuffles"),
    **{f"tirx.tvm_warp_shuffle{suffix}": _shuffle for suffix in ("", "_up", "_down", "_xor")},
    **{f"tl.match_{kind}_sync": _count("shuffles") for kind in ("all", "any")},
    # a reinterpretation of bits and a hint
    "tirx.reinterpret": _count("integer_ops", 0.0),
    "tirx.likely": _count("integer_ops", 0.0),
    # one packing instruction ends two conversions; it is counted with the conversions
    "tl.pack_b16": _count("integer_ops", 0.0),
    "tl.pack_b8x4": _count("integer_ops", 1.0),
    "tirx.call_extern": _extern,
    "tirx.call_pure_extern": _extern,
}  # fmt: skip
