"""Traces kernels in files. They have no operator: inputs are drawn, and results compared with each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..decorator.interface import Interface, TensorArgument
from ..errors import InputError
from ..machine.devices import Device
from ..problem.template import number_slot
from ..records.protocol import MeasurementProtocol
from ..target.spec import Target
from ..tracing.build_stamped import StampedBuild, build_both
from ..tracing.grids import grids_at
from ..tracing.run_stamped import Trace, new_memory, read_memory, trace_of
from ..tracing.trace_kernel import built, run_on
from .foreign_kernel import call_of, flags_of_kernel, fractions_of, read_lowered
from .kernel_files import FileKernel, FileProfiles, ListedConfigs, choose_kernel

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ..runner.bench import Bench

INPUTS = (
    "inputs were drawn: floats in -1 .. 1, integers 0 where no example was given. What the kernel computes "
    "was compared with what it computes without stamps, not with a reference."
)


@dataclass(frozen=True, slots=True)
class FileBuild(StampedBuild):
    """A built kernel of a file, and how it is called.

    Attributes:
        profiles: What the model reads in it.
        interface: Its arguments.
        slots: The sizes and numbers of the call, as its library takes them.
        contents: Known contents of integer tensors, by name.
    """

    profiles: FileProfiles
    interface: Interface
    slots: tuple[int, ...]
    contents: Mapping[str, np.ndarray[Any, Any]]


def build_file_kernel(item: FileKernel, cache_dir: Path) -> FileBuild | None:
    """Read a kernel in a file and build it, with and without stamps, in one process that lowers it once.

    Returns None if it has configs of its own, and none of them is chosen.

    Raises:
        InputError: as `profiles_in_file`, or the kernel cannot be called with what is known of its calls.
        NoCandidateError: it cannot be built.
        ToolchainError: worker processes cannot start.
    """
    found = built(partial(_build, cache_dir=cache_dir), item, item.place)
    assert found is None or isinstance(found, FileBuild)  # a failure raises
    return found


def trace_file_build(build: FileBuild, item: FileKernel, device: Device) -> Trace:
    """What the stamps of a kernel in a file show. Raises `NoCandidateError` if it fails on the device."""
    protocol = MeasurementProtocol.named("default", item.target)
    return run_on(device, _run, (build, item.target, protocol), item.place)


def _build(item: FileKernel, cache_dir: Path) -> FileBuild | str | None:
    """The work of the process that builds; a text is an error that the user can correct."""
    from ..decorator.interface import read_interface
    from ..lowering.dynamic import tensor_sizes
    from ..lowering.lower import Lowered, lower

    try:
        found = choose_kernel(item)
        if isinstance(found, ListedConfigs):
            return None
        kernel = found.kernel
        lowered = lower(kernel.prim_func, item.target, kernel.pass_configs)
        call = call_of(kernel, lowered, item.facts)
        profiles = found.profiles(read_lowered(kernel, lowered, item.target, call), item.target)
        values: dict[str, int | float] = {**call.sizes, **fractions_of(kernel)}
        interface = read_interface(kernel.prim_func, None, kernel.name, values)
    except InputError as error:
        return str(error)
    shapes = tensor_sizes(kernel.prim_func)
    sizes = [size for size in _sizes(kernel.prim_func) if str(size.name) in shapes]
    lowered = replace(lowered, sizes=tuple(sizes))

    def once() -> Lowered:
        return lowered

    built_twice = build_both(once, item.target, flags_of_kernel(kernel), cache_dir, grids_at(values))
    slots = [int(values[str(size.name)]) for size in sizes]
    slots += [number_slot(number.dtype, number.value) for number in interface.numbers]
    contents = dict(call.data.contents)
    both = (built_twice.plain, built_twice.stamped, built_twice.kernels)
    return FileBuild(*both, profiles, interface, tuple(slots), contents)


def _sizes(prim_func: Any) -> list[Any]:
    """Variables that are sizes, and no arguments of their own."""
    from ..lowering.dynamic import runtime_sizes

    return [
        size
        for size in runtime_sizes(prim_func)
        if not any(size.same_as(parameter) for parameter in prim_func.params)
    ]


def _run(item: tuple[FileBuild, Target, MeasurementProtocol]) -> Trace:
    """The work of the process that owns the device."""
    from ..runner.bench import bench_for
    from ..runner.kernel_run import RUN_FAULTS, run_failure
    from ..workers.worker import retire

    build, target, protocol = item
    bench = bench_for(target, protocol)
    bench.conditions.begin()
    try:
        return _traced(build, bench, protocol)
    except RUN_FAULTS as error:
        if not bench.is_usable():
            retire()
        return Trace(failure=run_failure(error))


def _traced(build: FileBuild, bench: Bench, protocol: MeasurementProtocol) -> Trace:
    import torch

    from ..builder.loaded_kernel import LoadedKernel
    from ..runner.compare import bits
    from ..runner.turns import collect_samples

    generator = torch.Generator(bench.device).manual_seed(protocol.seed or 1)
    tensors = build.interface.tensors
    drawn = [_drawn(tensor, build.contents, bench.device, generator) for tensor in tensors]
    memory = new_memory(build.kernels, bench.device)
    calls, results = [], []
    for result, more in ((build.plain, []), (build.stamped, memory)):
        assert result.artifact is not None  # a failed build is not run
        given = [tensor.clone() for tensor in drawn]
        kernel = LoadedKernel(result.artifact, result.entry)
        calls.append(kernel.bind([*given, *more], bench.stream, build.slots))
        calls[-1]()
        bench.timer.synchronize()
        results.append([tensor.clone() for tensor in given])
    plain, stamped = results
    same = all(torch.equal(bits(one), bits(other)) for one, other in zip(plain, stamped, strict=True))
    notes = (INPUTS,) if same else (INPUTS, "Results with and without stamps differ: sums in no fixed order.")
    taken = collect_samples(bench.timer, calls, protocol, bench.conditions)
    bench.timer.synchronize()
    return trace_of(read_memory(build.kernels, memory), taken, build.plain, build.stamped, bench, notes)


def _drawn(
    tensor: TensorArgument,
    contents: Mapping[str, np.ndarray[Any, Any]],
    device: str,
    generator: torch.Generator,
) -> torch.Tensor:
    """A tensor of the kernel. Whole numbers may be addresses: only 0 is safe where nothing is known."""
    import torch

    from ..decorator.random_inputs import AUTO, draw

    if tensor.name in contents:
        given = torch.as_tensor(contents[tensor.name], device=device)
        return given.to(getattr(torch, tensor.dtype)).reshape(tensor.shape).contiguous()
    is_float = getattr(torch, tensor.dtype).is_floating_point
    return draw(tensor, AUTO if is_float else "Zero", device, generator)
