"""Calibrations: the measurements of `tilesight calibrate`, recorded beside the target file that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from ..engine.text_checks import check_name, clean, refuse_unless_finite
from ..schema import tables as schema
from .rows import Rows, add_row, now, software_row
from .trial_rows import sound

if TYPE_CHECKING:
    from ...calibration import Calibration


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """One calibration.

    `figures` are the measured figures of the target that it made, by path. `readings` give for each figure
    its `value`, `spread`, `method`, and `samples` in the order taken.
    """

    name: str  # of the target that it made
    base: str
    device: str
    uuid: str
    fingerprint: str  # of the made target
    figures: Mapping[str, float]
    readings: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]
    software: Mapping[str, str]
    recorded_at: datetime


def calibration_rows(found: Calibration, software: Mapping[str, str]) -> Rows:
    """The rows of a calibration that was measured with the versions in `software`.

    Raises `InputError` if a number is NaN or infinite, or the name is too long for an index.
    """
    check_name(f"calibration '{clean(found.name[:40])}'", "target", found.name)
    readings = {
        r.path: {
            "value": float(r.value),
            "spread": float(r.spread),
            "samples": [float(s) for s in r.samples],
            "method": r.method,
        }
        for r in found.readings
    }
    refuse_unless_finite(f"calibration '{found.name}'", readings)
    rows: Rows = []
    software_id = software_row(rows, software)
    target = found.target
    natural = {
        "name": found.name,
        "base": found.base.name,
        "device": found.device.name,
        "uuid": found.device.uuid,
        "fingerprint": target.fingerprint,
        "figures": {path: float(target[path]) for path in readings},
        "readings": readings,
        "notes": list(found.notes),
        "software_id": software_id,
    }
    add_row(rows, schema.calibrations, natural, derived={"created_at": now()})
    return rows


def calibrations(connection: Connection, name: str | None) -> list[CalibrationRecord]:
    """The calibrations that made the target `name`, or all, latest first."""
    table = schema.calibrations
    statement = select(table, schema.software.c.versions).join_from(table, schema.software)
    if name is not None:
        statement = statement.where(table.c.name == clean(name))
    found = []
    for row in connection.execute(statement.order_by(table.c.created_at.desc(), table.c.id)):
        with sound(f"calibration {row.name}"):
            values = {
                field: getattr(row, field)
                for field in ("name", "base", "device", "uuid", "fingerprint", "figures", "readings")
            }
            found.append(
                CalibrationRecord(
                    **values, notes=tuple(row.notes), software=row.versions, recorded_at=row.created_at
                )
            )
    return found
