"""Calibrates a target on one of its devices: runs all probes and makes the new target."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ..builder.device_code import compile_device_code
from ..errors import InputError, TargetFileError, ToolchainError
from ..machine.device_lock import PROCESSOR_LOCK, alone_on, holder_of
from ..machine.devices import Device
from ..machine.toolchain import compiler_version, find_cxx, find_nvcc, package_version
from ..target.checks import checked_value
from ..target.spec import Figure, Target, is_plain_name, node_names, target_names
from .cpu import disturbed_notes, measure_core
from .document import number, target_text
from .gpu import CudaGpu, Gpu
from .loads import LOADS, SUSTAINED
from .probes import PROBES, ProbedGpu
from .readings import Reading

DIGITS = 4  # significant digits of a measured figure
NOMINAL_TOLERANCE = 0.03  # a probe that comes this close to a rate by design confirms the rate
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Calibration:
    """The readings from one device, or from several, and the target that follows from them and `base`.

    Attributes:
        base: The target whose figures the readings replace.
        name: Of the new target.
        device: The first device.
        software: What measured, with versions.
        date: Of the measurement.
        readings: What was measured.
        notes: Probes that were left out, figures that were disturbed.
        superseded: Figures of `base` that contradict a reading; the new target lacks them.
    """

    base: Target
    name: str
    device: Device
    software: str
    date: str
    readings: tuple[Reading, ...]
    notes: tuple[str, ...] = ()
    superseded: frozenset[str] = frozenset()

    @property
    def target(self) -> Target:
        """`base` under a new name, with the measured figures."""
        title = f"{self.base.title}, calibrated {self.date}"
        kept = {path: f for path, f in self.base.figures.items() if path not in self.superseded}
        figures = kept | {r.path: self._figure(r) for r in self.readings}
        levels = tuple(level.with_figures(figures) for level in self.base.levels)
        return replace(self.base, name=self.name, title=title, figures=figures, levels=levels)

    def _figure(self, found: Reading) -> Figure:
        driver = f"driver {self.device.driver}, " if self.device.driver else ""
        count = f"{self.base.world} x " if self.base.levels else ""
        setup = f"{count}{self.device.name}, {driver}{self.software}, {self.date}"
        how = f"tilesight calibrate, {setup}: {found.method}"
        before = self.base.figures.get(found.path)
        if (
            found.nominal
            and before
            and before.provenance == "spec"
            and abs(found.value / before.value - 1) <= NOMINAL_TOLERANCE
        ):
            # the rest is overhead of the probe
            return replace(before, source=f"{before.source}; {how}: {rounded(found.value):g} reached")
        return Figure(rounded(found.value), "measured", f"{how}; spread {100 * found.spread:.1f} %")

    def text(self) -> str:
        """The text of the target's file."""
        heading = (
            f"{self.name}: {self.base.title}, measured by `tilesight calibrate` on {self.date}\n"
            f"Figures without that name in their source are those of target {self.base.name}.\n"
        )
        if not self.base.levels:
            heading += "Rates by design keep their figures if the probe comes within 3 % of them."
        return target_text(self.target, heading)


def check_name(name: str) -> None:
    """Raise `InputError` for a name that a calibrated target cannot have."""
    if not is_plain_name(name):
        raise InputError(
            f"target name '{name}' must be letters, digits, '.', '_' and '-', e.g. h200-calibrated"
        )
    if name.lower() in (*target_names(), *node_names()):
        raise InputError(
            f"target name '{name}' is that of a shipped target; "
            f"give the calibrated one its own, e.g. {name}-calibrated"
        )


def check_kind(base: Target) -> None:
    """Raise `InputError` for a target that cannot be calibrated: an AMD GPU."""
    if base.kind == "hip":
        raise InputError(
            f"target {base.name} cannot be calibrated: the probes are for NVIDIA GPUs and for processors; "
            "there are none in HIP, since no AMD GPU was at hand to try them on. Measured figures can be "
            f"written into a file of your own: `tilesight targets {base.name}` shows all"
        )


def calibrate(
    base: Target, device: Device, name: str, progress: Progress | None = None, gpu: Gpu | None = None
) -> Calibration:
    """Measure `device`, a GPU or this machine's processor, for about half a minute, with its lock held.

    Args:
        base: The target to calibrate.
        device: One of its devices.
        name: Name of the new target.
        progress: Receives the title of each step.
        gpu: Runs the probes; by default CUDA on `device`.

    Raises:
        InputError: The name is taken, or the target is an AMD GPU.
        ToolchainError: The compiler, torch or the driver is missing or fails.
    """
    check_name(name)
    check_kind(base)
    report_step = progress or (lambda _: None)
    if gpu is not None:
        return _calibrated(base, device, name, report_step, gpu)
    if not base.is_gpu:
        with alone_on_device(PROCESSOR_LOCK, report_step):
            readings = measure_core(base, report_step)
            return calibration_of(base, device, name, readings, disturbed_notes(readings))
    report_step("building the probes")
    code = compile_probes(base)
    with alone_on_device(device.uuid, report_step):
        return _calibrated(base, device, name, report_step, CudaGpu(torch_index(device), code))


def _calibrated(base: Target, device: Device, name: str, report_step: Progress, gpu: Gpu) -> Calibration:
    readings: list[Reading] = []
    notes: list[str] = []
    for probe in (*LOADS, *PROBES, *SUSTAINED):
        absent = [kernel for kernel in probe.kernels if not gpu.has(kernel)]
        if absent:
            notes.append(f"{probe.title}: not measured, {base.arch} has no code for it")
            continue
        report_step(probe.title)
        readings += probe.read(ProbedGpu(gpu, base))
    readings += _counted(gpu, base)
    return calibration_of(base, device, name, readings, notes)


@contextmanager
def alone_on_device(lock: str, report_step: Progress) -> Iterator[None]:
    """Hold a device's lock. `report_step` says who holds it, if that is another process."""
    holder = holder_of(lock)
    if holder is not None:
        report_step(f"waiting for {lock}, which process {holder} measures on")
    with alone_on(lock):
        yield


def calibration_of(
    base: Target, device: Device, name: str, readings: Sequence[Reading], notes: Sequence[str]
) -> Calibration:
    """A calibration of today. Readings that no target file could hold become notes."""
    valid, left_out = [], []
    for found in readings:
        try:
            rules = {found.path: base.rule(found.path)}
            checked_value(found.path, rounded(found.value), base.kind, found.path, rules)
            valid.append(found)
        except TargetFileError as error:
            left_out.append(f"left out: {error}")
    today = datetime.date.today().isoformat()
    return Calibration(base, name, device, _software(base), today, tuple(valid), (*notes, *left_out))


def compile_probes(target: Target, package: str = __package__, name: str = "probes.cu") -> bytes:
    """The device code of a source file of `package` for `target`. Raises `ToolchainError`."""
    return compile_device_code(target, package, name)


def rounded(value: float) -> float:
    """`value` with four significant digits; larger integers are not rounded."""
    if value == int(value) and value >= 10**DIGITS:
        return value
    return float(f"{value:.{DIGITS}g}")


def _counted(gpu: Gpu, base: Target) -> list[Reading]:
    """Figures that the driver reports: counted, not timed."""
    counted = {"core.count": gpu.cores, "device.memory.l2.bytes": gpu.l2_bytes}
    return [
        Reading(p, float(v), 0.0, f"as the driver reports it: {number(v)}")
        for p, v in counted.items()
        if v and v != base.get(p)
    ]


def torch_index(device: Device) -> int:
    """Torch's index of `device`. Raises `ToolchainError`."""
    try:
        import torch
    except ImportError as error:
        raise ToolchainError(f"calibrating needs torch: {error}; pip install torch") from error
    if not torch.cuda.is_available():
        raise ToolchainError(
            "calibrating needs a CUDA build of torch that sees the GPU; "
            f"torch {torch.__version__} does not: tilesight doctor"
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
        raise ToolchainError(
            f"torch does not see device {device.index} ('{device.name}'); "
            "is it hidden by CUDA_VISIBLE_DEVICES?"
        )
    return named


def _software(base: Target) -> str:
    if not base.is_gpu:
        cxx = find_cxx()
        return compiler_version(cxx) if cxx else ""
    nvcc, torch = find_nvcc(), package_version("torch")
    parts = [compiler_version(nvcc) if nvcc else "", f"torch {torch}" if torch else ""]
    return ", ".join(part for part in parts if part)
