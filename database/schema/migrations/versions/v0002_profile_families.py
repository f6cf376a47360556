"""Profiles kept for whole shape classes. Frozen: it names nothing that later code may change.

Revision: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"


def upgrade() -> None:
    op.create_table(
        "profile_families",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in (
                "family_key",
                "template",
                "template_version",
                "arch",
                "shape_class",
                "reader",
                "config",
            )
        ),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_profile_families"),
    )
    op.create_index("ix_profile_families_family_key", "profile_families", ["family_key"])
