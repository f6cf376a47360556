"""The performance database as the rest of TileSight sees it: values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Table, delete, func
from sqlalchemy.engine import URL

from ..errors import InputError
from ..families import FamilyKey, ProfileFamily
from ..session import Baseline, Context, Decision, Effort, SessionResult, State
from ..space import Census
from ..trial import TrialRecord
from . import rows, schema, sessions
from .best import Best, best
from .connection import Database, parse_url
from .families import family_rows, kept_families
from .recall import recall
from .rows import Place, Rows
from .sessions import Option

BUSY_SECONDS = 30.0
_MOST_KNOWN = 200_000  # ids remembered as written, about 20 MB
_TABLES = tuple(schema.metadata.sorted_tables)  # those first that others refer to
_BATCH = 200  # trials of `record_many` in one transaction


def open_store(url: str | URL, *, read_only: bool = False, busy_seconds: float = BUSY_SECONDS) -> Store:
    """Open the performance database at a SQLAlchemy URL (SQLite or PostgreSQL) or at the path of an SQLite file.

    The file, its folder and its tables are made where they are missing, older tables are migrated; not so with
    `read_only`. A lock of another process is waited for up to `busy_seconds`. Raises `InputError` for a URL that is none,
    else a `DatabaseError`: busy, read-only, corrupt, full, or written by a newer TileSight.
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    return Store(Database(parsed, read_only=read_only, busy_seconds=busy_seconds))


class Store:
    """Reads and writes the line's values. Every call is one transaction; what it wrote outlives the process from then on.

    A context manager. Threads may share it, processes open their own.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._places: dict[str, Place] = {}  # by context key
        self._contexts: dict[int, str] = {}  # session id -> context key
        self._known: set[int] = set()  # ids of facts that are in the database
        self._inserts: dict[Table, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    @property
    def name(self) -> str:
        """Path of the SQLite file, or the URL without its password."""
        return self.database.name

    # ---- sessions

    def begin(
        self,
        context: Context,
        effort: Effort,
        seed: int,
        options: Mapping[str, Option],
        census: Census,
        *,
        flops: int = 0,
        min_bytes: int = 0,
    ) -> int:
        """Begin a session of this process and return its id. `flops` and `min_bytes` are the workload's, for its result's rates."""
        place, place_rows = rows.place_of(context)
        row = sessions.session_row(place, effort, seed, options, census, flops, min_bytes)

        def work(connection: Connection) -> None:
            self._insert(connection, place_rows)
            connection.execute(schema.sessions.insert(), row)

        self.database.write(work)
        self._places[context.key] = place
        self._contexts[row["id"]] = context.key
        return int(row["id"])

    def finish(
        self, session_id: int, state: State, messages: Iterable[str] = (), seconds: float = 0.0, *, decision: Decision | None = None
    ) -> None:
        """Close a session as complete or interrupted. `seconds` is what it took in all; the winner of `decision` is one of
        its trials."""
        if state is State.RUNNING:
            raise InputError(f"session {session_id}: finish it as complete or interrupted, not as running")
        said = list(messages)
        self.database.write(lambda connection: sessions.finish(connection, session_id, state, said, seconds, decision))

    def find_complete(self, context: Context, effort: Effort, options: Mapping[str, Option]) -> SessionResult | None:
        """The latest complete session of the same context, effort and options (the seed is none of them), or None.

        Its trials are those that were recorded under its id: record those that were recalled too.
        """
        key = sessions.options_key(options)
        return self.database.read(lambda connection: sessions.find_complete(connection, context, effort, key))

    def find_interrupted(self, context: Context, effort: Effort, options: Mapping[str, Option]) -> int | None:
        """The latest session of the same context, effort and options that was interrupted or whose process died, or None.

        It is taken over: from now on it runs in this process, and no other one finds it. Go on with `recall` and `record`.
        """
        key = sessions.options_key(options)
        session_id = self.database.write(lambda connection: sessions.take_over(connection, context, effort, key))
        if session_id is not None:
            self._contexts[session_id] = context.key
        return session_id

    # ---- trials

    def recall(self, context: Context) -> dict[str, TrialRecord]:
        """What any session has learned that holds in `context`: config key -> best-known record.

        A record is composed of the parts that hold: predictions of the same target figures, model and software (whatever
        device), builds of the same software and architecture, measurements of the same device, software and protocol.
        Verified goes before measured, built, predicted; a failure goes before what an earlier stage said, and a wrong result
        before all. A failure for want of memory is not held against a candidate.
        An artifact's path is as it was recorded: look whether the file is still there.
        """
        place = self._place(context)
        return self.database.read(lambda connection: recall(connection, place))

    def record(self, session_id: int, context: Context, trial: TrialRecord) -> None:
        """Keep what a session knows of a candidate now, in place of what it knew before. Safe to repeat.

        Raises `InputError` where a number is NaN or infinite.
        """
        self.record_many(session_id, context, (trial,))

    def record_many(self, session_id: int, context: Context, trials: Iterable[TrialRecord]) -> None:
        """`record` for each of `trials`, a few hundred to a transaction."""
        place = self._place(context)
        listed = list(trials)
        for start in range(0, len(listed), _BATCH):
            prepared = [row for trial in listed[start : start + _BATCH] for row in rows.trial_rows(session_id, place, trial)]
            self.database.write(partial(self._record, session_id, context, prepared))
            self._remember(prepared)

    def record_baselines(self, session_id: int, baselines: Iterable[Baseline]) -> None:
        """Keep the vendor libraries' times of a session, in place of earlier ones."""
        prepared = rows.baseline_rows(session_id, baselines)

        def work(connection: Connection) -> None:
            sessions.context_key(connection, session_id)
            connection.execute(delete(schema.baselines).where(schema.baselines.c.session_id == session_id))
            if prepared:
                connection.execute(schema.baselines.insert(), prepared)

        self.database.write(work)

    def best(self, kernel: str | None = None, target: str | None = None) -> list[Best]:
        """The best known of each workload on each target; see `Best`."""
        return self.database.read(lambda connection: best(connection, kernel, target))

    # ---- kept profiles

    def kept_families(self, key: FamilyKey) -> list[ProfileFamily]:
        """The profile families that were kept under `key`, in no order."""
        return self.database.read(lambda connection: kept_families(connection, key))

    def keep_families(self, key: FamilyKey, families: Iterable[ProfileFamily]) -> None:
        """Keep profile families, in place of what was kept of their configs."""
        prepared = family_rows(key, families)
        if prepared:
            self.database.write(lambda connection: connection.execute(self._insert_into(schema.profile_families), prepared))

    # ---- writing

    def _place(self, context: Context) -> Place:
        key = context.key
        if key not in self._places:
            self._places[key], _ = rows.place_of(context)
        return self._places[key]

    def _record(self, session_id: int, context: Context, prepared: Rows, connection: Connection) -> None:
        expected = self._contexts.get(session_id) or sessions.context_key(connection, session_id)
        if expected != context.key:
            raise InputError(f"session {session_id} was begun in context {expected}, not {context.key}; a session has one context")
        self._contexts[session_id] = expected
        self._insert(connection, prepared)

    def _insert(self, connection: Connection, prepared: Rows) -> None:
        """Write `prepared`, facts that are there already left out, in the order in which tables refer to each other."""
        by_table: dict[Table, dict[object, rows.Row]] = {}
        for table, row in prepared:
            if row.get("id") not in self._known:
                by_table.setdefault(table, {})[row.get("id", len(by_table.get(table, ())))] = row
        for table in _TABLES:
            if table in by_table:
                connection.execute(self._insert_into(table), list(by_table[table].values()))

    def _insert_into(self, table: Table) -> Any:
        if table not in self._inserts:
            insert = self.database.insert(table)
            key = list(table.primary_key.columns)
            if table in (schema.trials, schema.profile_families):
                changes = {column.name: insert.excluded[column.name] for column in table.c if not column.primary_key}
                statement = insert.on_conflict_do_update(index_elements=key, set_=changes)
            elif table is schema.workloads:
                # a workload first met without its published name learns it
                name = func.coalesce(insert.excluded.name, table.c.name)
                statement = insert.on_conflict_do_update(index_elements=key, set_={"name": name})
            else:
                statement = insert.on_conflict_do_nothing(index_elements=key)
            self._inserts[table] = statement
        return self._inserts[table]

    def _remember(self, prepared: Rows) -> None:
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known.update(row["id"] for _, row in prepared if "id" in row)
