"""Columns and tables named `dynamic` and `parametric_profiles`; the order of workloads by nearness is
dropped; batches of misses are numbered. Frozen: it uses nothing that later code may change.

Revision: 0005
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"

_LOOKED_UP = ["shape_family", "workload_id", "dynamic"]


def upgrade() -> None:
    op.drop_index("ix_sessions_shape_family_shape_code_workload_id_open", "sessions")
    for table in ("candidates", "sessions"):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN open TO dynamic")
    op.execute("ALTER TABLE sessions DROP COLUMN shape_code")
    op.create_index("ix_sessions_shape_family_workload_id_dynamic", "sessions", _LOOKED_UP)
    op.drop_index("ix_workload_dims_dim_log2", "workload_dims")
    op.execute("ALTER TABLE workload_dims DROP COLUMN log2")
    op.create_index("ix_workload_dims_dim_size", "workload_dims", ["dim", "size"])
    op.add_column("dispatch_misses", sa.Column("batch", sa.BigInteger(), nullable=False, server_default="0"))
    _make_profiles()
    _copy_profiles()
    op.drop_table("profile_families")


def _make_profiles() -> None:
    texts = ("profile_key", "template", "template_version", "arch", "shape_class", "reader", "config")
    op.create_table(
        "parametric_profiles",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        *(sa.Column(name, sa.Text(), nullable=False) for name in texts),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_parametric_profiles"),
    )
    op.create_index("ix_parametric_profiles_profile_key", "parametric_profiles", ["profile_key"])


def _copy_profiles() -> None:
    """Copy every row under its old id. The key `open` in its body becomes `dynamic`."""
    names = ("template", "template_version", "arch", "shape_class", "reader", "config", "body", "created_at")
    types: dict[str, sa.types.TypeEngine[Any]] = {"body": sa.LargeBinary(), "created_at": sa.DateTime()}

    def table(name: str, key: str) -> sa.TableClause:
        columns = (sa.column(column, types.get(column, sa.Text())) for column in (*names, key))
        return sa.table(name, sa.column("id", sa.BigInteger()), *columns)

    old, new = table("profile_families", "family_key"), table("parametric_profiles", "profile_key")
    connection = op.get_bind()
    ids = connection.execute(sa.select(old.c.id)).scalars().all()
    for row_id in ids:
        row = connection.execute(sa.select(old).where(old.c.id == row_id)).one()._asdict()
        row["profile_key"] = row.pop("family_key")
        row["body"] = _renamed(row["body"])
        connection.execute(sa.insert(new).values(row))


def _renamed(body: bytes) -> bytes:
    """The body with its key `open` renamed. A body that cannot be read is returned unchanged."""
    try:
        parts = json.loads(zlib.decompress(body))
        if "open" not in parts:
            return body
        renamed = {"dynamic" if name == "open" else name: value for name, value in parts.items()}
        return zlib.compress(json.dumps(renamed, separators=(",", ":")).encode(), 6)
    except (zlib.error, ValueError, TypeError):
        return body
