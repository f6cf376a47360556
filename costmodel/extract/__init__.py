"""Reads `KernelProfile`s from lowered IR: counts of the work that each kernel asks of the hardware."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ...lowering.lower import Lowered
from ...problem.peer_copies import peer_copies
from ...problem.run_time_data import NOTHING_KNOWN, RunTimeData
from ...profile.names import KernelNames
from ...profile.values import KernelProfile
from ...target.spec import Target
from .cpu_nest import read_nest
from .descriptors import read_descriptors
from .expressions import constant, identity, is_scalar
from .launch_geometry import LaunchGeometry, with_ranks
from .loops import stored_buffers, visit
from .mathematics import is_fast
from .memory import chosen_by_data, parameter_sizes
from .named_loops import named_loops
from .peers import with_copies, with_peers
from .walk import KernelReader

__all__ = ["read_named_profiles", "read_profiles", "variable_names"]


def read_profiles(
    lowered: Lowered,
    target: Target,
    data: RunTimeData = NOTHING_KNOWN,
    *,
    flags: Sequence[str] = (),
    peers: Collection[str] = (),
) -> tuple[KernelProfile, ...]:
    """Read one profile for each kernel of a lowered function.

    Only the device IR, the TMA descriptors of the host part and copies to peers (`PeerCopies`) are read: no
    config values, and no names but those of `peers`.

    Args:
        lowered: the IR of one function, without dynamic dimensions (see `lowering.dynamic.at`).
        target: the target for which the function was lowered.
        data: what is known of the data that the kernels meet at run time.
        flags: options of the device compiler; fast math changes the costs of functions.
        peers: names of the parameters that are tensors of other devices, of a function that several run
            together (`Candidate.peer_tensors`).

    Returns:
        The profiles, in the order of the kernels.

    Raises:
        ValueError: the IR holds no kernel, or the launch geometry of a kernel is not static.
    """
    return tuple(profile for profile, _ in _readings(lowered, target, data, flags, peers))


def read_named_profiles(
    lowered: Lowered,
    target: Target,
    data: RunTimeData = NOTHING_KNOWN,
    *,
    flags: Sequence[str] = (),
    peers: Collection[str] = (),
) -> tuple[tuple[KernelProfile, KernelNames], ...]:
    """The same profiles, each with the names in its kernel. Of processors the names are not read."""
    return tuple(
        (profile, KernelNames() if reader is None else _names(function, reader))
        for function, (profile, reader) in zip(
            lowered.device.functions.values(), _readings(lowered, target, data, flags, peers), strict=True
        )
    )


def _readings(
    lowered: Lowered, target: Target, data: RunTimeData, flags: Sequence[str], peers: Collection[str]
) -> list[tuple[KernelProfile, KernelReader | None]]:
    """The profile of each kernel, and its reader, if the target is a GPU."""
    functions = lowered.device.functions.values()
    if not target.is_gpu:
        return [(read_nest(function, target), None) for function in functions]
    descriptors = read_descriptors(lowered.host)
    sizes, copies = parameter_sizes(lowered.traced), peer_copies(lowered.traced)
    found: list[tuple[KernelProfile, KernelReader | None]] = []
    for function in functions:
        profile, reader = _read(function, descriptors, sizes, target, data, flags)
        data = _without_stored(data, function)
        profile = with_peers(profile, reader.memory.names, function, peers)
        found.append((with_copies(profile, copies), reader))
    if not found:
        raise ValueError("the lowered module holds no device function: nothing to profile")
    return found


def _without_stored(data: RunTimeData, function: Any) -> RunTimeData:
    """The same, without examples of tensors to which a kernel stores before the next one runs."""
    stored = {str(p.name) for p in function.params if identity(p) in stored_buffers(function.body)}
    return replace(data, inputs={name: value for name, value in data.inputs.items() if name not in stored})


def _names(function: Any, reader: KernelReader) -> KernelNames:
    memory = reader.memory
    return KernelNames(memory.all_names, reader.held_registers, named_loops(function, memory))


def variable_names(lowered: Lowered) -> list[str]:
    """Names of the integer variables of the kernels, in order; a caller may state values of them."""
    found: dict[str, None] = {}

    def look(node: Any, kind: str) -> None:
        if kind == "Bind" and str(node.var.dtype).startswith(("int", "uint")):
            found[str(node.var.name)] = None
        elif kind == "BufferStore" and is_scalar(node.buffer):
            found[str(node.buffer.name)] = None

    for function in lowered.device.functions.values():
        visit(function.body, look)
    return list(found)


def _read(
    function: Any,
    descriptors: Any,
    sizes: Any,
    target: Target,
    data: RunTimeData,
    flags: Sequence[str],
) -> tuple[KernelProfile, KernelReader]:
    attributes = function.attrs or {}
    cluster = tuple(int(extent) for extent in attributes.get("cluster_dims") or ())
    if math.prod(cluster) > 1:
        function = function.with_body(with_ranks(function.body, cluster))
    launch = _launch(function, target, cluster)
    least_float_bits = int(target.get("core.unit.vector.least_float_bits"))
    reader = KernelReader(launch, descriptors, data, least_float_bits, fast_math=is_fast(flags))
    reader.read(function)
    reader.memory.fill_sizes(function, sizes)
    dynamic = attributes.get("dyn_shared_memory_buf")
    profile = KernelProfile(
        kind=target.kind,
        arch=target.arch,
        grid=launch.grid,
        block_threads=launch.threads,
        cluster=math.prod(cluster),
        shared_bytes=_static_shared(function) + (int(dynamic) if dynamic is not None else 0),
        roles=reader.roles,
        tensors=tuple(reader.memory.tensors.values()),
        rasterization=replace(reader.rasterization, depth=cluster[2] if len(cluster) > 2 else 1),
        min_blocks_per_core=reader.min_blocks_per_core,
        unknown_calls=tuple(sorted(reader.unknown_calls)),
        notes=tuple(dict.fromkeys((*reader.notes, *_chosen_by_data(reader)))),
    )
    return profile, reader


def _chosen_by_data(reader: KernelReader) -> list[str]:
    """A note for each tensor and direction whose places are chosen by loaded data."""
    chosen = {
        (access.tensor, access.write)
        for role in reader.roles
        for phase in role.phases
        for access in phase.work.accesses
        if access.row_bytes
    }
    return [chosen_by_data(reader.memory.names.get(t, t), write=write) for t, write in sorted(chosen)]


def _launch(function: Any, target: Target, cluster: tuple[int, ...]) -> LaunchGeometry:
    from tvm.tirx.stmt_functor import post_order_visit

    block: dict[str, tuple[int, int]] = {}
    thread: dict[str, tuple[int, int]] = {}

    def visit(node: Any) -> None:
        if type(node).__name__ != "AttrStmt" or node.attr_key != "thread_extent":
            return
        tag, extent = str(node.node.thread_tag), constant(node.value)
        if extent is None:
            raise ValueError(
                f"launch extent of {tag} is '{node.value}', known only at run time; "
                "give the kernel static shapes to predict it"
            )
        side = block if tag.startswith("blockIdx") else thread
        if tag[-1] in "xyz" and (tag.startswith(("blockIdx", "threadIdx"))):
            side[tag[-1]] = (identity(node.node.var), extent)

    post_order_visit(function.body, visit)
    return LaunchGeometry(block, thread, target.int("warp.threads") if target.is_gpu else 1, cluster)


def _static_shared(function: Any) -> int:
    """Bytes of shared memory outside the dynamic buffer: barriers and workspaces of fixed size."""
    from tvm.tirx.stmt_functor import post_order_visit

    from .element_types import element_type

    total = 0.0

    def visit(node: Any) -> None:
        nonlocal total
        if type(node).__name__ == "AllocBuffer" and str(node.buffer.scope()) in (
            "shared",
            "shared.barrier",
            "shared.cluster_barrier",
        ):
            size = element_type(str(node.buffer.dtype)).bytes
            for extent in node.buffer.shape:
                size *= constant(extent) or 1
            total += size

    post_order_visit(function.body, visit)
    return round(total)
