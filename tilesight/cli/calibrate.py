"""`tilesight calibrate`: measure a GPU or the processor of this machine and write a target file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import InputError, TargetFileError, ToolchainError
from ..files import check_out
from ..settings import load_settings
from ..target.spec import FIGURES, Target, load_target
from . import options, output

if TYPE_CHECKING:
    from ..calibration import Calibration
    from ..machine.devices import Device


@click.command()
@options.with_options(
    options.target,
    click.option(
        "--device",
        "number",
        metavar="N",
        type=click.IntRange(min=0),
        help="Index of the GPU in the driver's order; not for target cpu. [default: the first of the target]",
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
    options.as_json,
    options.database,
    options.debug,
)
def calibrate(
    target: str | None,
    number: int | None,
    name: str | None,
    out: Path | None,
    as_json: bool,
    database: str | None,
) -> None:
    """Measure a GPU of this machine, or with --target cpu one core of its processor.

    The figures are written to a target file and recorded in the database. This takes about half a minute on
    a GPU and ten seconds on a processor; nothing else should run there. Figures that are not measured are
    copied from --target.
    """
    from ..calibration import calibrate as measure
    from ..calibration import check_kind, check_name
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
        raise InputError(
            f"calibrate measures one device, and not yet the network of the {base.world} of target "
            f"{base.name}: --target {base.device_target.name}"
        )
    name = name or f"{base.name}-calibrated"
    check_name(name)
    check_kind(base)
    out = out or Path(f"{name}.toml")
    check_out(out, ".toml", "target files")
    _check_file(out, name)
    device = _device(base, number)
    notice_load([device], output.print_hint)
    with open_store(database or load_settings().database_url) as store:
        found = measure(base, device, name, lambda title: click.echo(f"measuring: {title}", err=True))
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


def _check_file(out: Path, name: str) -> None:
    """Raise `InputError` if `out` exists and is not a target file of this name."""
    if out.exists():
        try:
            before = load_target(str(out.absolute())).name
        except TargetFileError:
            before = None
        if before != name:
            raise InputError(f"--out {out} exists and is not target '{name}'; name another file")


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
            "unit": FIGURES[r.path].unit,
            "before": found.base.figures[r.path].value if r.path in found.base.figures else None,
            "spread": r.spread,
            "method": r.method,
        }
        for r in found.readings
    ]


def _print(found: Calibration, calibrated: Target, out: Path) -> None:
    driver = f"driver {found.device.driver}, " if found.device.driver else ""
    output.print_text(f"{found.device.name}, {driver}{found.software}", bold=True)
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
                FIGURES[r.path].unit,
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
