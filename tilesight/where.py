"""Where a call runs: the target, and the device of this machine that may be measured for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .device import Device, NoDevice, devices_for, find_devices, target_for
from .errors import ToolchainError
from .target import Target, load_target, target_names
from .toolchain import missing_compiler


@dataclass(frozen=True, slots=True)
class Where:
    """`devices` are those of the target that are measured on, none where nothing is measured; `messages` say why, where that
    was not asked for."""

    target: Target
    devices: tuple[Device, ...] = ()
    messages: tuple[str, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)  # of the machines that do the work, where that is not this one

    @property
    def device(self) -> Device | None:
        """The first of `devices`: all bear one name."""
        return self.devices[0] if self.devices else None

    @property
    def gpus(self) -> tuple[Device, ...]:
        """Those that a `LocalExecutor` measures on each by a process of its own; it is on its processor itself."""
        return self.devices if self.target.is_gpu else ()


def locate(target: str | Target, *, measures: bool, predicts: bool = True, takes_cpu: bool = True) -> Where:
    """The target by name, path or value (`auto`: that of the GPU found), and with `measures` its device.

    Messages offer what the caller can do instead: `predicts`, predict without a device; `takes_cpu`, go by a processor.

    Raises `UnknownNameError` or `TargetFileError` for a target that is none, and `ToolchainError` where `auto` finds
    no GPU, or where a device is at hand but nothing can be built for it.
    """
    chosen = _automatic(predicts, takes_cpu) if target == "auto" else load_target(target) if isinstance(target, str) else target
    if not measures:
        return Where(chosen)
    found = devices_for(chosen, find_devices() if chosen.is_gpu else [])
    if isinstance(found, NoDevice):
        return Where(chosen, (), (f"nothing is measured, all times are predicted: {found.message}" if predicts else found.message,))
    missing = missing_compiler(chosen)
    if missing:
        raise ToolchainError(f"{missing}. Predictions need no compiler: --effort predict" if predicts else missing)
    return Where(chosen, found)


def _automatic(predicts: bool, takes_cpu: bool) -> Target:
    devices = find_devices()
    for device in devices:
        name = target_for(device)
        if name is not None:
            return load_target(name)
    gpus = ", ".join(name for name in target_names() if name != "cpu")
    if devices:
        raise ToolchainError(
            f"no shipped target describes the GPU found here ('{devices[0].name}'); describe it in a file (--target ./mychip.toml)"
            + (f", or name one of {gpus} for predictions" if predicts else "")
        )
    ways = ["--target cpu measures on this machine's processor"] if takes_cpu else []
    ways += [f"{gpus} give predictions"] if predicts else []
    raise ToolchainError(
        "no GPU was found here, so there is none that --target auto could mean; "
        + (", and ".join(ways) or "this needs one: run it on a machine with a GPU and its driver")
    )
