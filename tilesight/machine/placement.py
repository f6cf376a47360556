"""The placement of a call: the target, and the devices on which it is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import InputError, ToolchainError
from ..settings import load_settings
from ..target.part import part_of
from ..target.spec import Target, load_target, node_names, of_world, target_names
from .devices import Device, NoDevice, find_devices, groups_for, target_for
from .toolchain import missing_compiler


@dataclass(frozen=True, slots=True)
class Placement:
    """The target of a call and its devices.

    Attributes:
        target: The target.
        devices: Devices to measure on, all of one name; none if nothing is measured. Of a target of several
            GPUs each `target.world` that follow each other are measured together.
        messages: Why nothing is measured although measuring was requested; that one of several devices is
            used.
        software: Versions of the software on the machines that do the work; empty for this machine.
    """

    target: Target
    devices: tuple[Device, ...] = ()
    messages: tuple[str, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)

    @property
    def device(self) -> Device | None:
        """The first of `devices`."""
        return self.devices[0] if self.devices else None

    @property
    def device_name(self) -> str:
        """The measured device in records, with the number of those that run a kernel together; "" if none."""
        if self.device is None:
            return ""
        return f"{self.target.world} x {self.device.name}" if self.target.levels else self.device.name

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs among `devices`, as `LocalExecutor` expects them."""
        return self.devices if self.target.is_gpu else ()


def named_target(target: str | Target | None, predicts: bool = True) -> Target:
    """The target that a caller names: a chip, or several devices.

    Args:
        target: A name, the path of a target file, a target, or `auto`: the target of the GPU in this machine;
            None: that of the settings.
        predicts: The caller can predict without a device; messages offer that.

    Raises:
        UnknownNameError: There is no target of that name.
        TargetFileError: The target file is invalid.
        ToolchainError: `auto` finds no GPU.
    """
    given = load_settings().target if target is None else target
    if given == "auto":
        return _automatic(predicts)
    return load_target(given) if isinstance(given, str) else given


def target_of_world(target: str | Target | None, world: int | None, predicts: bool = True) -> Target:
    """The target that a caller names, of `world` devices. None: of as many as it has.

    Raises:
        InputError: The target is the devices of one host, and not so many; it is several hosts, and so many
            devices are no whole hosts; or no shipped target describes so many devices of this chip.
    """
    named = named_target(target, predicts)
    if world is None or named.world == world:
        return named
    if len(named.levels) > 1:
        return part_of(named, world)
    if named.levels:
        raise InputError(
            f"target {named.name} is {named.world} devices and not {world}: leave the world out, or state it "
            f"of {named.device_target.name}"
        )
    found = of_world(named, world)
    if found.world != world:
        raise InputError(
            f"no shipped target describes {world} devices of {found.device_target.name}: {found.name} has "
            f"{found.world}; describe them in a file of their own (--target ./mynode.toml)"
        )
    return found


def locate(
    target: str | Target | None, *, measures: bool, predicts: bool = True, communicates: bool = False
) -> Placement:
    """Find the target and, if needed, its devices on this machine.

    An operator that communicates needs a target of several devices. For other operators the chip of such a
    target is the target of the call, and a message says so: each runs on one device.

    Args:
        target: A name, the path of a target file, a target, or `auto`: the target of the GPU in this machine;
            None: that of the settings.
        measures: Also find devices.
        predicts: The caller can predict without a device; messages offer that.
        communicates: Several devices compute the operator together (`Operator.communicates`).

    Raises:
        InputError: The operator communicates, and the target is one device.
        UnknownNameError: There is no target of that name.
        TargetFileError: The target file is invalid.
        ToolchainError: `auto` finds no GPU, or there is a device and no compiler for it.
    """
    named = named_target(target, predicts)
    if communicates and not named.levels:
        raise InputError(_several_needed(named))
    chosen = named if communicates else named.device_target
    notes = () if chosen is named else (_runs_on_one(named),)
    if not measures:
        return Placement(chosen, messages=notes)
    found = groups_for(chosen, find_devices() if chosen.is_gpu else [])
    if isinstance(found, NoDevice):
        return Placement(
            chosen,
            (),
            (
                f"nothing is measured, all times are predicted: {found.message}"
                if predicts
                else found.message,
                *notes,
            ),
        )
    missing = missing_compiler(chosen)
    if missing:
        raise ToolchainError(
            f"{missing}. Predictions need no compiler: --effort predict" if predicts else missing
        )
    return Placement(chosen, found, notes)


def _several_needed(chip: Target) -> str:
    """What to do about a target that is one device, where an operator communicates."""
    nodes = [node for node in map(load_target, node_names()) if node.chip == chip]
    names = " or ".join(node.name for node in sorted(nodes, key=lambda node: node.world))
    offer = (
        f"name a target of several, {names}"
        if nodes
        else "describe several in a file of their own (--target ./mynode.toml)"
    )
    return f"this operator runs on several devices together, and target {chip.name} is one: {offer}"


def _runs_on_one(target: Target) -> str:
    return (
        f"target {target.name} is {target.world} devices, of which this operator uses one: results are those "
        f"of target {target.device_target.name}"
    )


def _automatic(predicts: bool) -> Target:
    devices = find_devices()
    for device in devices:
        name = target_for(device)
        if name is not None:
            return load_target(name)
    gpus = ", ".join(name for name in target_names() if name != "cpu")
    if devices:
        raise ToolchainError(
            f"no shipped target describes the GPU found here ('{devices[0].name}'); "
            "describe it in a file and give its path as the target (./mychip.toml)"
            + (f", or name one of {gpus} for predictions" if predicts else "")
        )
    raise ToolchainError(
        "no GPU was found here, so there is none that target 'auto' could mean; "
        "target 'cpu' measures kernels for processors on this machine"
        + (f", and {gpus} give predictions" if predicts else "")
    )
