"""`tilesight calibrate`: measure a GPU, the processor or the network of GPUs, and write a target file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import InputError, TargetFileError, ToolchainError
from ..files import check_out
from ..settings import load_settings
from ..target.spec import Target, load_target
from . import options, output

if TYPE_CHECKING:
    from ..calibration import Calibration
    from ..calibration.network.steps import NetworkStep, Times
    from ..machine.devices import Device


@click.command()
@options.with_options(
    options.target,
    click.option(
        "--device",
        "number",
        metavar="N",
        type=click.IntRange(min=0),
        help="Index of the GPU in the driver's order; not for target cpu and several GPUs. "
        "[default: the first of the target]",
    ),
    click.option(
        "--name",
        metavar="NAME",
        help="Name of the calibrated target. [default: the target's name with -calibrated]",
    ),
    click.option(
        "--out",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Target file to write. [default: NAME.toml in the current folder]",
    ),
    click.option(
        "--rows",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Also write all samples of all GPUs there, one line of JSON a step, as they come; for several "
        "GPUs.",
    ),
    options.as_json,
    options.database,
    options.debug,
)
def calibrate(
    target: str | None,
    number: int | None,
    name: str | None,
    out: Path | None,
    rows: Path | None,
    as_json: bool,
    database: str | None,
) -> None:
    """Measure a GPU of this machine, with --target cpu one core of its processor, or with --target h200x4 the
    network between its GPUs.

    The figures are written to a target file and recorded in the database. This takes about half a minute on
    a GPU, ten seconds on a processor and up to two minutes for a network; nothing else should run there.
    Figures that are not measured are copied from --target.
    """
    from ..calibration import check_kind, check_name
    from ..calibration.network import check_network
    from ..database import open_store
    from ..machine.load import notice_load
    from ..machine.placement import named_target
    from ..machine.toolchain import software_versions

    if name is not None:
        check_name(name)
    if out is not None:
        check_out(out, ".toml", "target files")
    base = named_target(target, predicts=False)
    if base.levels:
        check_network(base)
    if rows is not None:
        _check_rows(rows, base)
    name = name or f"{base.name}-calibrated"
    check_name(name)
    check_kind(base)
    out = out or Path(f"{name}.toml")
    check_out(out, ".toml", "target files")
    _check_file(out, name)
    devices = _devices(base, number) if base.levels else [_device(base, number)]
    device = devices[0]
    notice_load(devices, output.print_hint)
    with open_store(database or load_settings().database_url) as store:
        found = _measure(base, devices, name, rows)
        try:
            out.write_text(found.text(), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"'{out}' cannot be written: {error.strerror or error}; name another file with --out"
            ) from error
        store.record_calibration(found, software_versions(base, device))
    calibrated = load_target(str(out.absolute()))
    if as_json:
        facts = {
            "file": str(out),
            "target": name,
            "base": base.name,
            "device": device.name,
            "driver": device.driver,
        }
        output.print_json("calibration", **facts, figures=_figures(found), notes=found.notes)
        return
    _print(found, calibrated, out)


def _measure(base: Target, devices: list[Device], name: str, rows: Path | None) -> Calibration:
    from ..calibration import calibrate as calibrate_device
    from ..calibration.network import calibrate_network, row_line

    def progress(title: str) -> None:
        click.echo(f"measuring: {title}", err=True)

    if not base.levels:
        return calibrate_device(base, devices[0], name, progress)
    if rows is None:
        return calibrate_network(base, devices, name, progress)
    try:
        with rows.open("w", encoding="utf-8", buffering=1) as file:  # each line as it comes

            def observe(step: NetworkStep, row: tuple[Times, ...]) -> None:
                file.write(row_line(step, row) + "\n")

            return calibrate_network(base, devices, name, progress, observe)
    except OSError as error:
        raise InputError(
            f"'{rows}' cannot be written: {error.strerror or error}; name another file with --rows"
        ) from error


def _check_rows(rows: Path, base: Target) -> None:
    if not base.levels:
        raise InputError(f"--rows is for several GPUs, and target {base.name} is one device: leave it out")
    check_out(rows, ".jsonl", "files of samples", "--rows")


def _check_file(out: Path, name: str) -> None:
    """Raise `InputError` if `out` exists and is not a target file of this name."""
    if out.exists():
        try:
            before = load_target(str(out.absolute())).name
        except TargetFileError:
            before = None
        if before != name:
            raise InputError(f"--out {out} exists and is not target '{name}'; name another file")


def _devices(base: Target, number: int | None) -> list[Device]:
    """The devices whose network is measured: the first of the target, as many as it has.

    Raises:
        ToolchainError: The machine has fewer.
        InputError: One of them is chosen by its number.
    """
    from ..machine.devices import NoDevice, devices_for, find_devices

    if number is not None:
        raise InputError(
            f"--device {number} is one GPU, and target {base.name} is {base.world}: leave it out; "
            "CUDA_VISIBLE_DEVICES chooses among more"
        )
    found = devices_for(base, find_devices())
    if isinstance(found, NoDevice):
        raise ToolchainError(f"nothing to calibrate: {found.message}")
    if len(found) < base.world:
        raise ToolchainError(
            f"nothing to calibrate: target {base.name} is {base.world} devices, and this machine has "
            f"{len(found)} of them"
        )
    return list(found[: base.world])


def _device(base: Target, number: int | None) -> Device:
    """The device to measure.

    Raises:
        ToolchainError: The machine has no GPU of the target.
        InputError: The number is not that of such a GPU.
    """
    from ..machine.devices import NoDevice, cpu_device, device_for, find_devices

    if not base.is_gpu:
        if number is not None:
            raise InputError(
                f"--device {number} numbers GPUs; target {base.name} is the processor: leave it out"
            )
        return cpu_device()
    devices = find_devices() if base.is_gpu else []
    if number is not None:
        chosen = [device for device in devices if device.index == number and device.kind == base.kind]
        if devices and not chosen:
            numbers = ", ".join(f"{device.index} ({device.name})" for device in devices)
            raise InputError(
                f"--device {number} is not a GPU of this machine and target; its GPUs are {numbers}"
            )
        devices = chosen
    device = device_for(base, devices)
    if isinstance(device, NoDevice):
        raise ToolchainError(f"nothing to calibrate: {device.message}")
    return device


def _figures(found: Calibration) -> list[dict[str, object]]:
    target = found.target
    return [
        {
            "path": r.path,
            "value": target[r.path],
            "measured": r.value,
            "unit": target.rule(r.path).unit,
            "before": found.base.figures[r.path].value if r.path in found.base.figures else None,
            "spread": r.spread,
            "method": r.method,
        }
        for r in found.readings
    ]


def _print(found: Calibration, calibrated: Target, out: Path) -> None:
    driver = f"driver {found.device.driver}, " if found.device.driver else ""
    count = f"{found.base.world} x " if found.base.levels else ""
    output.print_text(f"{count}{found.device.name}, {driver}{found.software}", bold=True)
    rows = []
    for r in found.readings:
        before = found.base.figures.get(r.path)
        change = (
            f"{100 * (calibrated[r.path] / before.value - 1):+.1f} %" if before and before.value else "new"
        )
        was = output.number(before.value) if before else "-"
        rows.append(
            [
                r.path,
                output.number(calibrated[r.path]),
                calibrated.rule(r.path).unit,
                was,
                change,
                output.percent(r.spread),
            ]
        )
    columns = ["figure", "measured", "unit", "before", "change", "spread"]
    output.print_table(columns, rows, right=["measured", "before", "change", "spread"], folded=["unit"])
    output.print_text()
    for note in found.notes:
        output.print_text(f"note: {note}")
    output.print_line(f"written to {out}; use it: --target {out if out.is_absolute() else f'./{out}'}")
