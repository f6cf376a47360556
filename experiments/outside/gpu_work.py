"""What worker processes do with one candidate of the corpus: build it, and time it on a GPU."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from corpus import SPREAD, Argument, Candidate, Corpus, bits_of

SAME_BYTES = {  # types for which torch lacks functions
    "uint16": "int16",
    "uint32": "int32",
    "uint64": "int64",
    "custom[tfloat32]": "float32",
}


@dataclass(frozen=True)
class Task:
    """A candidate, where the corpus and builds are, and the target's name."""

    candidate: Candidate
    corpus: Path
    builds: Path
    target: str


@dataclass(frozen=True)
class Built:
    """A built kernel. `way`: "plan" (a library of this project's builder) or "tilelang" (in its disk cache).

    `order` is the order of the library's tensors as places among the arguments, `slots` the sizes and numbers
    that follow them.
    """

    task: Task
    way: str
    library: str = ""
    order: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Timed:
    samples_us: tuple[float, ...]
    observed: Mapping[str, float]
    environment: Mapping[str, str]


def preload_builder() -> None:
    import tilelang  # noqa: F401

    from tilesight.builder import build, cuda  # noqa: F401
    from tilesight.lowering import dynamic  # noqa: F401


def build(task: Task) -> Built:
    """Build a candidate: with this project's launcher if it can call the kernel, else by TileLang.

    Raises whatever TileLang or the compiler raises.
    """
    from tilesight.builder.launch_plan import UnsupportedLaunchError

    begin = time.perf_counter()
    prim_func = Corpus(task.corpus).function(task.candidate)
    try:
        built = _with_plan(task, prim_func)
    except UnsupportedLaunchError as error:
        built = _with_tilelang(task, prim_func, str(error))
    return replace(built, seconds=time.perf_counter() - begin)


def _with_plan(task: Task, prim_func: Any) -> Built:
    import tilesight.builder.cuda as cuda
    from tilesight.builder.build import device_source
    from tilesight.builder.launch_plan import UnsupportedLaunchError, read_plan
    from tilesight.lowering.dynamic import runtime_sizes
    from tilesight.lowering.lower import lower
    from tilesight.machine.toolchain import compiler_for, find_cxx
    from tilesight.problem.template import number_slot

    candidate, target = task.candidate, _target(task.target)
    sizes = runtime_sizes(prim_func)
    lowered = replace(lower(prim_func, target, candidate.pass_configs), sizes=sizes)
    plan = read_plan(lowered)
    known = {str(size.name): candidate.sizes.get(str(size.name)) for size in sizes}
    if any(value is None or value < 1 for value in known.values()):
        raise UnsupportedLaunchError(f"the launcher takes sizes from 1 on, and the call has {known}")
    folder = task.builds / candidate.key
    folder.mkdir(parents=True, exist_ok=True)
    nvcc, cxx = compiler_for(target), find_cxx()
    if nvcc is None or cxx is None:
        raise FileNotFoundError("nvcc and a C++ compiler are needed; see tilesight doctor")
    said: list[str] = []
    run = cuda.compile_in

    def compile_in(where: Path, command: Sequence[str | Path]) -> str:
        said.append(run(where, command))
        return said[-1]

    cuda.compile_in = compile_in  # what ptxas says has more than `resources` takes from it
    try:
        flags = cuda.cuda_flags(target.arch, flags_of(candidate))
        files, figures = cuda.build_cuda(folder, device_source(lowered, target), plan, flags, nvcc, cxx)
    finally:
        cuda.compile_in = run
    places = [place for place, one in enumerate(prim_func.params) if one in prim_func.buffer_map]
    numbers = [one for one in candidate.arguments if one.shape is None]
    slots = [*known.values(), *(number_slot(one.dtype, one.value) for one in numbers)]
    figures = {**figures, **spills(said[0])}
    return Built(task, "plan", str(files[0]), tuple(places), tuple(slots), figures)


def _with_tilelang(task: Task, prim_func: Any, reason: str) -> Built:
    compile_with_tilelang(task, prim_func)  # into TileLang's disk cache, which the measuring process reads
    return Built(task, "tilelang", reason)


def compile_with_tilelang(task: Task, prim_func: Any) -> Any:
    import tilelang

    candidate = task.candidate
    target = {"kind": "cuda", "arch": _target(task.target).arch}
    return tilelang.compile(
        prim_func,
        target=target,
        pass_configs=dict(candidate.pass_configs) or None,
        compile_flags=list(candidate.compile_flags) or None,
    )


def flags_of(candidate: Candidate) -> tuple[str, ...]:
    """Flags of the device compiler that the options of the function mean, as TileLang passes them."""
    options = candidate.pass_configs
    extra = options.get("tl.device_compile_flags") or ()
    flags = [*candidate.compile_flags, *([extra] if isinstance(extra, str) else map(str, extra))]
    if options.get("tl.enable_fast_math"):
        flags.append("--use_fast_math")
    if (level := options.get("tl.ptxas_register_usage_level")) is not None:
        flags.append(f"--ptxas-options=--register-usage-level={int(level)}")
    return tuple(part for flag in flags for part in flag.split())


def spills(ptxas: str) -> dict[str, int]:
    """Bytes a thread that are spilled, stores and loads apart, of all kernels together."""
    return {
        f"spill_{way[:-1]}_bytes": sum(map(int, re.findall(rf"(\d+) bytes spill {way}", ptxas)))
        for way in ("stores", "loads")
    }


def preload_device() -> None:
    import torch  # noqa: F401

    from tilesight.runner import bench, turns  # noqa: F401


def measure(built: Built) -> Timed:
    """Time a built kernel on random data, by the default protocol. Raises what the launch raises."""
    import torch

    from tilesight.records.protocol import MeasurementProtocol
    from tilesight.runner.bench import bench_for
    from tilesight.runner.turns import collect_samples
    from tilesight.workers.worker import retire

    target = _target(built.task.target)
    protocol = MeasurementProtocol.named("default", target)
    bench = bench_for(target, protocol)
    bench.conditions.begin()
    try:
        call, held = launcher(built, bench.device, bench.stream)
        call()
        bench.timer.synchronize()
        taken = collect_samples(bench.timer, [call], protocol, bench.conditions)
    except BaseException:
        held = None
        if not bench.is_usable():
            retire()
        torch.cuda.empty_cache()
        raise
    observed = {**bench.conditions.observed(), "retaken": taken.retaken, "disturbed": taken.disturbed}
    big = sum(tensor.nbytes for tensor in held) > 2**31
    del call, held
    if big:
        torch.cuda.empty_cache()
    return Timed(taken.samples_us[0], observed, bench.environment)


def launcher(built: Built, device: str, stream: int) -> tuple[Callable[[], object], list[Any]]:
    """A call of a built kernel on random data, and the tensors that it uses."""
    candidate, corpus = built.task.candidate, Corpus(built.task.corpus)
    tensors = [
        None if one.shape is None or one.content == "none" else draw(one, corpus, device, place)
        for place, one in enumerate(candidate.arguments)
    ]
    held = [tensor for tensor in tensors if tensor is not None]
    if built.way == "tilelang":
        return _tilelang_call(built, tensors), held
    import ctypes

    from tilesight.builder.loaded_kernel import LoadedKernel

    kernel = LoadedKernel(built.library, "tilesight_call")
    chosen = [tensors[place] for place in built.order]
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in chosen]
    if (kernel.arity, kernel.sizes) != (len(addresses), len(built.slots)):
        raise ValueError(f"the library takes {kernel.arity} tensors and {kernel.sizes} numbers")
    arguments = (ctypes.c_void_p * (len(addresses) + len(built.slots)))(*addresses, *built.slots)
    address = ctypes.addressof(arguments)

    def call() -> None:
        if status := kernel.launch(address, stream):
            kernel.check(status)

    call.__dict__["keeps"] = (kernel, arguments)
    return call, held


def _tilelang_call(built: Built, tensors: Sequence[Any]) -> Callable[[], object]:
    prim_func = Corpus(built.task.corpus).function(built.task.candidate)
    kernel = compile_with_tilelang(built.task, prim_func)
    outputs = set(map(int, (prim_func.attrs or {}).get("tilelang_out_idx", ())))
    values = [
        one.value if one.shape is None else tensor
        for place, (one, tensor) in enumerate(zip(built.task.candidate.arguments, tensors, strict=True))
        if place not in outputs
    ]
    return lambda: kernel(*values)


def draw(argument: Argument, corpus: Corpus, device: str, seed: int) -> Any:
    """A tensor for an argument: integers as in the corpus, normal floating-point values."""
    import torch

    assert argument.shape is not None
    shape, strides = argument.shape, argument.strides
    count = math.prod(shape)
    if strides is not None and count:
        count = 1 + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    flat = _flat(argument, max(count, 1), corpus, torch.Generator(device).manual_seed(seed), device)
    if flat.numel() < count:
        return flat  # several elements a byte: only the address counts
    return flat.as_strided(shape, strides) if strides is not None else flat[: math.prod(shape)].view(shape)


def _flat(argument: Argument, count: int, corpus: Corpus, generator: Any, device: str) -> Any:
    import torch

    name = argument.dtype
    kind = torch_dtype(name)
    if kind is None:  # a type that torch lacks: any bytes do
        size = max(1, math.ceil(count * bits_of(name) / 8))
        return torch.randint(0, 256, (size,), generator=generator, device=device, dtype=torch.uint8)
    if kind.is_floating_point:
        found = torch.empty(count, dtype=kind, device=device)
        step = 2**26
        for begin in range(0, count, step):
            part = found[begin : begin + step]
            values = torch.randn(part.numel(), generator=generator, device=device) * SPREAD
            part.copy_(values.abs() + 0.1 if "e8m0" in name else values)
        return found
    content = argument.content
    if content.startswith("file:"):
        raw = bytearray(corpus.get("contents", content.removeprefix("file:")))
        data = torch.frombuffer(raw, dtype=torch.uint8 if kind == torch.bool else kind)
        found = torch.zeros(max(count, data.numel()), dtype=kind, device=device)
        found[: data.numel()] = data.to(device).to(kind)
        return found
    if content.startswith("uniform:"):
        low, high = map(int, content.split(":")[1:])
        wide = torch.randint(low, high + 1, (count,), generator=generator, device=device)
        return wide.to(kind)
    if bits_of(name) <= 8 and kind != torch.bool:
        return torch.randint(0, 256, (count,), generator=generator, device=device, dtype=torch.uint8).view(
            kind
        )
    return torch.zeros(count, dtype=kind, device=device)


def torch_dtype(name: str) -> Any:
    """torch's type of the same name; None if it has none, or several elements share a byte."""
    import torch

    if bits_of(name) < 8:
        return None
    name = SAME_BYTES.get(name, name)
    for spelling in (name, name.replace("float8_e4m3", "float8_e4m3fn"), f"{name}fn"):
        if isinstance(found := getattr(torch, spelling, None), torch.dtype):
            return found
    return None


@lru_cache
def _target(name: str) -> Any:
    from tilesight.target.spec import load_target

    return load_target(name)


def row_of(timed: Timed) -> dict[str, object]:
    """The figures of a row of measure.py."""
    from tilesight.records.intervals import median_interval

    low, high = median_interval(timed.samples_us)
    return {
        "median_us": f"{median(timed.samples_us):.3f}",
        "low_us": f"{low:.3f}" if math.isfinite(low) else "",
        "high_us": f"{high:.3f}" if math.isfinite(high) else "",
        "samples": len(timed.samples_us),
        "clock_mhz": timed.observed.get("sm_clock_mhz", ""),
        "disturbed": f"{timed.observed.get('disturbed', 0.0):.2f}",
        "device": timed.environment.get("device", ""),
        "driver": timed.environment.get("driver", ""),
    }


def quiet_builder() -> None:
    """A builder gives way to the process that measures."""
    os.nice(10)
