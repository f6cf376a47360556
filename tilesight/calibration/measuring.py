"""From a target and a device of it to a calibrated target."""

from __future__ import annotations

import datetime
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..building.compiler import CompileError, compile_in
from ..building.cuda import cuda_flags
from ..device import Device
from ..device_lock import alone_on, holder_of
from ..errors import InputError, ToolchainError
from ..target import Figure, Target, is_plain_name, target_names
from ..toolchain import compiler_version, find_cxx, find_nvcc, missing_compiler, package_version
from .document import number, target_text
from .gpu import CudaGpu, Gpu
from .loads import LOADS, SUSTAINED
from .probes import PROBES, Subject
from .reading import Reading

DIGITS = 4  # significant ones of a measured figure
NEARLY = 0.03  # a rate by design that a probe reached but for this share is that rate
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Calibration:
    """What was measured on one device, and the target that it makes of `base`."""

    base: Target
    name: str
    device: Device
    software: str
    date: str
    readings: tuple[Reading, ...]
    notes: tuple[str, ...] = ()  # probes that were left out, and why

    @property
    def target(self) -> Target:
        """`base` under a name of its own, with what was measured in place of its figures."""
        title = f"{self.base.title}, calibrated {self.date}"
        figures = {**self.base.figures, **{r.path: self._figure(r) for r in self.readings}}
        return replace(self.base, name=self.name, title=title, figures=figures)

    def _figure(self, found: Reading) -> Figure:
        where = f"{self.device.name}, driver {self.device.driver}, {self.software}, {self.date}"
        how = f"tilesight calibrate, {where}: {found.method}"
        before = self.base.figures.get(found.path)
        if found.nominal and before and before.provenance == "spec" and abs(found.value / before.value - 1) <= NEARLY:
            # what is missing went to the probe's own loop
            return replace(before, source=f"{before.source}; {how}: {rounded(found.value):g} reached")
        return Figure(rounded(found.value), "measured", f"{how}; spread {100 * found.spread:.1f} %")

    def text(self) -> str:
        """The target's file."""
        heading = (
            f"{self.name}: {self.base.title}, measured by `tilesight calibrate` on {self.date}\n"
            f"Figures without that name in their source are those of target {self.base.name}. What is a rate by design stays\n"
            "so where the probe comes close to it."
        )
        return target_text(self.target, heading)


def check_name(name: str) -> None:
    """Raise `InputError` for a name that a calibrated target cannot have."""
    if not is_plain_name(name):
        raise InputError(f"target name '{name}' must be letters, digits, '.', '_' and '-', e.g. h200-calibrated")
    if name.lower() in target_names():
        raise InputError(f"target name '{name}' is that of a shipped target; give the calibrated one its own, e.g. {name}-calibrated")


def check_kind(base: Target) -> None:
    """Raise `InputError` for a target that is no NVIDIA GPU."""
    if base.kind != "cuda":
        why = (
            "there are no probes in HIP, since no AMD GPU was at hand to try them on"
            if base.kind == "hip"
            else "there are none for processors"
        )
        raise InputError(
            f"target {base.name} cannot be calibrated: the probes are for NVIDIA GPUs, {why}; "
            f"measured figures can be written into a file of your own: `tilesight targets {base.name}` shows all"
        )


def calibrate(base: Target, device: Device, name: str, progress: Progress | None = None, gpu: Gpu | None = None) -> Calibration:
    """Measure `device` for about half a minute, alone on it. `progress` is told what is being measured.

    Raises `InputError` for a name that is taken and for targets that are no NVIDIA GPU, `ToolchainError` where the
    compiler, torch or the driver is missing or fails.
    """
    check_name(name)
    check_kind(base)
    tell = progress or (lambda _: None)
    if gpu is not None:
        return _calibrated(base, device, name, tell, gpu)
    tell("building the probes")
    code = compile_probes(base)
    holder = holder_of(device.uuid)
    if holder is not None:
        tell(f"waiting for {device.uuid}, which process {holder} measures on")
    with alone_on(device.uuid):
        return _calibrated(base, device, name, tell, CudaGpu(_torch_index(device), code))


def _calibrated(base: Target, device: Device, name: str, tell: Progress, gpu: Gpu) -> Calibration:
    readings: list[Reading] = []
    notes: list[str] = []
    for probe in (*LOADS, *PROBES, *SUSTAINED):
        absent = [kernel for kernel in probe.kernels if not gpu.has(kernel)]
        if absent:
            notes.append(f"{probe.title}: not measured, {base.arch} has no code for it")
            continue
        tell(probe.title)
        found = list(probe.read(Subject(gpu, base)))
        odd = [r for r in found if not math.isfinite(r.value) or r.value <= 0]
        notes += [f"{r.path}: left out, {r.value:g} was measured" for r in odd]
        readings += [r for r in found if r not in odd]
    readings += _counted(gpu, base)
    return Calibration(base, name, device, _software(), datetime.date.today().isoformat(), tuple(readings), tuple(notes))


def compile_probes(target: Target) -> bytes:
    """The probes' device code for `target`. Raises `ToolchainError`."""
    missing = missing_compiler(target)
    if missing:
        raise ToolchainError(missing)
    source = Path(__file__).with_name("probes.cu")
    with tempfile.TemporaryDirectory(prefix="tilesight-probes-") as name:
        folder = Path(name)
        try:
            command = [find_nvcc() or "nvcc", "-cubin", *cuda_flags(target.arch, ()), "-ccbin", str(find_cxx())]
            compile_in(folder, [*command, source, "-o", "probes.cubin"])
        except CompileError as error:
            raise ToolchainError(f"calibration: the probes cannot be built: {error}") from error
        return (folder / "probes.cubin").read_bytes()


def rounded(value: float) -> float:
    """Four significant digits; whole numbers of more stay whole."""
    if value == int(value) and value >= 10**DIGITS:
        return value
    return float(f"{value:.{DIGITS}g}")


def _counted(gpu: Gpu, base: Target) -> list[Reading]:
    """What the driver knows better than a file: counted, not timed."""
    counted = {"core.count": gpu.cores, "device.memory.l2.bytes": gpu.l2_bytes}
    return [Reading(p, float(v), 0.0, f"as the driver reports it: {number(v)}") for p, v in counted.items() if v and v != base.get(p)]


def _torch_index(device: Device) -> int:
    """The number under which torch knows `device`. Raises `ToolchainError`."""
    try:
        import torch
    except ImportError as error:
        raise ToolchainError(f"calibrating needs torch: {error}; pip install torch") from error
    if not torch.cuda.is_available():
        raise ToolchainError(
            f"calibrating needs a CUDA build of torch that sees the GPU; torch {torch.__version__} does not: tilesight doctor"
        )
    named = None
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        uuid = str(getattr(properties, "uuid", ""))
        if uuid and device.uuid.endswith(uuid):
            return index
        if named is None and not uuid and properties.name == device.name:
            named = index
    if named is None:
        raise ToolchainError(f"torch does not see device {device.index} ('{device.name}'); is it hidden by CUDA_VISIBLE_DEVICES?")
    return named


def _software() -> str:
    nvcc, torch = find_nvcc(), package_version("torch")
    parts = [compiler_version(nvcc) if nvcc else "", f"torch {torch}" if torch else ""]
    return ", ".join(part for part in parts if part)
