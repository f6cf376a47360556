"""The protocol of measurements, what decided a session, what predictions are ordered by.

Frozen: it names nothing that later code may change.

Revision: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"

_TOGETHER = 1000  # rows in one statement


def upgrade() -> None:
    op.add_column("sessions", sa.Column("protocol", sa.Text(), nullable=False, server_default=""))
    op.add_column("sessions", sa.Column("decision", sa.JSON(), nullable=True))
    number = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
    # in SQL, since Alembic cannot add a reference to a table of SQLite
    op.execute(
        f"ALTER TABLE sessions ADD COLUMN winner_id {number} CONSTRAINT fk_sessions_winner_id REFERENCES "
        "candidates (id)"
    )
    op.add_column("measurements", sa.Column("protocol_key", sa.Text(), nullable=False, server_default=""))
    op.add_column("measurements", sa.Column("observed", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("builds", sa.Column("binary", sa.Text(), nullable=False, server_default=""))
    op.add_column("predictions", sa.Column("ranking_us", sa.Double(), nullable=True))
    _fill_ranking()


def _fill_ranking() -> None:
    """The time and the model's term `order` together, a thousandth at the least."""
    connection = op.get_bind()
    predictions = sa.table(
        "predictions",
        sa.column("id"),
        sa.column("latency_us"),
        sa.column("ranking_us"),
        sa.column("terms_us", sa.JSON()),
    )
    connection.execute(sa.update(predictions).values(ranking_us=predictions.c.latency_us))
    changed = []
    for row_id, latency_us, terms_us in connection.execute(
        sa.select(predictions.c.id, predictions.c.latency_us, predictions.c.terms_us)
    ):
        ranking_us = max(1e-3, latency_us + terms_us.get("order", 0.0))
        if ranking_us != latency_us:
            changed.append({"row_id": row_id, "ranking": ranking_us})
    statement = (
        sa.update(predictions)
        .where(predictions.c.id == sa.bindparam("row_id"))
        .values(ranking_us=sa.bindparam("ranking"))
    )
    for start in range(0, len(changed), _TOGETHER):
        connection.execute(statement, changed[start : start + _TOGETHER])
