"""The schema revision of a database, and its migration to this version."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text

from ...errors import DatabaseCorruptError, DatabaseError, DatabaseVersionError
from .tables import HEAD, REVISIONS, VERSION_TABLE
from .views import VIEWS


def revision(connection: Connection, name: str) -> str | None:
    """The schema revision of the database, None where it holds no TileSight tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()
    if len(found) != 1:
        raise DatabaseCorruptError(
            f"database '{name}': its table {VERSION_TABLE} must hold one row, found {len(found)}; restore a "
            "copy or use another with --db"
        )
    return str(found[0])


def check_revision(found: str | None, name: str) -> None:
    """Raise `DatabaseVersionError` for a revision that this version does not know."""
    if found is not None and found not in REVISIONS:
        raise DatabaseVersionError(
            f"database '{name}' has schema {found}, which this TileSight does not know (it reads up to "
            f"{HEAD}): "
            "a newer TileSight wrote it. Upgrade: pip install --upgrade tilesight; or use another database "
            "with --db"
        )


def upgrade(connection: Connection, name: str) -> None:
    """Create or migrate the tables in the transaction of `connection`; after a failure nothing has
    changed."""
    found = revision(connection, name)
    if found == HEAD:
        return  # another process was faster
    check_revision(found, name)
    if found is None and (foreign := inspect(connection).get_table_names()):
        raise DatabaseError(
            f"database '{name}' belongs to another program (it has the table '{sorted(foreign)[0]}'); "
            "give TileSight one of its own with --db"
        )
    # views are dropped and created anew, so that migrations may change the tables under them
    for view in reversed(list(VIEWS)):
        connection.execute(text(f"DROP VIEW IF EXISTS {view}"))
    _run_migrations(connection)
    for view, query in VIEWS.items():
        connection.exec_driver_sql(f"CREATE VIEW {view} AS {query}")


def _run_migrations(connection: Connection) -> None:
    # loading alembic takes 0.1 s: it is loaded only for a migration
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "tilesight.database.schema:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
