"""Alembic's entry point: runs the migrations on the connection, and in the transaction, that
`migrate.upgrade` hands over."""

from __future__ import annotations

from alembic import context

from tilesight.database.schema.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
