"""Kernels that take dimensions at run time, what dispatch looks up, what was missed, calibrations, versions
by what depends on them. Frozen: it names nothing that later code may change.

Revision: 0004
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"

_TOGETHER = 1000  # rows in one statement


def upgrade() -> None:
    _add("software", _text("code_key"), _text("time_key"))
    _add("environments", *(_text(name) for name in ("uuid", "driver", "toolkit", "tilelang", "torch")))
    _add("candidates", _text("open"))
    _add("sessions", _text("open"), _count("shape_family"), _count("shape_code"))
    _add("trials", sa.Column("measured_us", sa.Double(), nullable=True))
    _fill_software()
    _fill_environments()
    _fill_sessions()
    op.execute(
        "UPDATE trials SET measured_us = (SELECT m.latency_us FROM measurements m WHERE m.id = "
        "trials.measurement_id) "
        "WHERE status = 'verified'"
    )
    op.create_index(
        "ix_sessions_shape_family_shape_code_workload_id_open",
        "sessions",
        ["shape_family", "shape_code", "workload_id", "open"],
    )
    is_measured = sa.text("measured_us IS NOT NULL")
    op.create_index(
        "ix_trials_measured",
        "trials",
        ["session_id", "measured_us"],
        sqlite_where=is_measured,
        postgresql_where=is_measured,
    )
    _make_calibrations()
    _make_misses()


def _make_calibrations() -> None:
    op.create_table(
        "calibrations",
        sa.Column("id", _number(), autoincrement=False, nullable=False),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("name", "base", "device", "uuid", "fingerprint")
        ),
        *(sa.Column(name, sa.JSON(), nullable=False) for name in ("figures", "readings", "notes")),
        sa.Column("software_id", _number(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_calibrations"),
        sa.ForeignKeyConstraint(["software_id"], ["software.id"], name="fk_calibrations_software_id"),
    )
    op.create_index("ix_calibrations_name", "calibrations", ["name"])


def _make_misses() -> None:
    op.create_table(
        "dispatch_misses",
        sa.Column("id", _number(), autoincrement=False, nullable=False),
        sa.Column("workload_id", _number(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("target", "device", "template")),
        sa.Column("count", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("config", "source")),
        sa.Column("expected_us", sa.Double(), nullable=True),
        *(sa.Column(name, sa.DateTime(), nullable=False) for name in ("first_at", "last_at")),
        sa.PrimaryKeyConstraint("id", name="pk_dispatch_misses"),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_dispatch_misses_workload_id"),
    )
    op.create_index("ix_dispatch_misses_workload_id", "dispatch_misses", ["workload_id"])


def _fill_software() -> None:
    changes = []
    for row_id, versions in _rows("software", "id", versions=True):
        # the driver launches what was compiled, torch brings the vendor's library: neither changes the code
        code = {name: version for name, version in versions.items() if name not in ("driver", "torch")}
        time = {name: version for name, version in versions.items() if name != "torch"}
        changes.append({"row_id": row_id, "code_key": _hash_of(code), "time_key": _hash_of(time)})
    _update("software", changes)


def _fill_environments() -> None:
    software = dict(_rows("software", "id", versions=True))
    changes = []
    for row_id, software_id, observed in _rows("environments", "id", "software_id", observed=True):
        versions = software[software_id]
        known = {**versions, **observed}
        toolkit = observed.get("compiler") or next(
            (versions[name] for name in ("nvcc", "hipcc", "c++") if name in versions), ""
        )
        others = {name: known.get(name, "") for name in ("uuid", "driver", "tilelang", "torch")}
        texts = {name: _clean(str(value)) for name, value in {"toolkit": toolkit, **others}.items()}
        changes.append({"row_id": row_id, **texts})
    _update("environments", changes)


def _fill_sessions() -> None:
    workloads = {
        row_id: (operator, dtype, dict(sorted(attrs.items())), dims)
        for row_id, operator, dtype, attrs, dims in _rows(
            "workloads", "id", "operator", "dtype", attrs=True, dims=True
        )
    }
    arches = dict(_rows("targets", "id", "arch"))
    time_keys = dict(_rows("software", "id", "time_key"))
    devices = {
        row_id: (device, time_keys[of])
        for row_id, device, of in _rows("environments", "id", "device", "software_id")
    }
    changes = []
    columns = ("id", "workload_id", "template_id", "target_id", "environment_id", "protocol")
    for row_id, workload_id, template_id, target_id, environment_id, protocol in _rows("sessions", *columns):
        operator, dtype, attrs, dims = workloads[workload_id]
        device, time_key = devices[environment_id]
        asked = (
            "shape family",
            operator,
            dtype,
            attrs,
            sorted(dims),
            template_id,
            arches[target_id],
            time_key,
            device,
            protocol,
        )
        changes.append({"row_id": row_id, "shape_family": _hash(*asked), "shape_code": _code(dims)})
    _update("sessions", changes)


def _code(dims: Mapping[str, int]) -> int:
    """The bits of the dimensions' logarithms, interleaved: where a shape lies on a Z-order curve."""
    bits = min(12, 62 // max(1, len(dims)))
    steps = [int((math.log2(dims[name]) + 1 / 3) * 2.0 ** (bits - 5)) for name in sorted(dims)]
    code = 0
    for bit in range(bits - 1, -1, -1):
        for step in steps:
            code = code << 1 | (step >> bit & 1)
    return code


def _hash(*parts: object) -> int:
    text = json.dumps(parts, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _hash_of(versions: Mapping[str, str]) -> str:
    return f"{_hash(dict(sorted(versions.items()))):016x}"


def _clean(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _rows(table: str, *plain: str, **read: bool) -> Iterable[Any]:
    """Columns of a table; those named by keyword hold JSON."""
    columns: list[Any] = [sa.column(name) for name in plain] + [sa.column(name, sa.JSON()) for name in read]
    return op.get_bind().execute(sa.select(*columns).select_from(sa.table(table, *columns))).all()


def _update(table: str, changes: list[dict[str, Any]]) -> None:
    if not changes:
        return
    names = [name for name in changes[0] if name != "row_id"]
    into = sa.table(table, sa.column("id"), *(sa.column(name) for name in names))
    statement = (
        sa.update(into)
        .where(into.c.id == sa.bindparam("row_id"))
        .values({name: sa.bindparam(f"new_{name}") for name in names})
    )
    rows = [{"row_id": row["row_id"], **{f"new_{name}": row[name] for name in names}} for row in changes]
    for start in range(0, len(rows), _TOGETHER):
        op.get_bind().execute(statement, rows[start : start + _TOGETHER])


def _add(table: str, *columns: Any) -> None:
    for column in columns:
        op.add_column(table, column)


def _number() -> Any:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text(name: str) -> Any:
    return sa.Column(name, sa.Text(), nullable=False, server_default="")


def _count(name: str) -> Any:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
