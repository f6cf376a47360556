"""The performance database as the rest of TileSight sees it: values in, values out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection, delete, exc
from sqlalchemy.engine import URL

from ..errors import DatabaseError, InputError
from ..families import FamilyKey, ProfileFamily
from ..known import Known, Miss
from ..session import Baseline, Context, Decision, Effort, SessionResult, State
from ..space import Census
from ..trial import TrialRecord
from . import lookups, misses, rows, schema, sessions
from .best import Best, best
from .calibrations import CalibrationRecord, calibration_rows, calibrations
from .connection import Database, parse_url
from .families import family_rows, kept_families
from .recall import recall
from .rows import Place, Rows
from .sessions import Option
from .writing import Writer

if TYPE_CHECKING:
    from ..calibration import Calibration

BUSY_SECONDS = 30.0
_MOST_PLACES = 1000
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
        self._writer = Writer(database)

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
            self._writer.write(connection, place_rows)
            sessions.add(connection, self.database.insert(schema.sessions), row)

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

        A record is composed of the parts that hold: predictions of the same target figures and model (whatever device), builds
        of the same architecture, measurements of the same device, driver and protocol; and of all of them, those of the same
        template, open dimensions and software that makes the code.
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
            self._write(prepared, partial(self._check_context, session_id, context))

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

    # ---- for dispatch

    def winner(self, context: Context, *, any_open: bool = False) -> Known | None:
        """The winner of the context's workload, or None: what the latest complete session decided for, else the fastest verified
        candidate, of the same template, architecture, software, device and protocol; never one that was wrong there.

        Its kernel takes `context.open` at run time; with `any_open` whatever dimensions.
        """
        place = self._place(context)
        return self.database.read(lambda connection: lookups.winner(connection, place, any_open=any_open))

    def nearest(self, context: Context, count: int = 4, *, any_open: bool = False) -> list[Known]:
        """`winner` of the workloads that differ from the context's in their dimensions alone: the nearest first, by the distance
        of the dimensions' logarithms."""
        place = self._place(context)
        return self.database.read(lambda connection: lookups.nearest(connection, place, count, any_open=any_open))

    def winners(self, context: Context, fixed: Mapping[str, int], *, any_open: bool = False) -> list[Known]:
        """`winner` of all workloads that differ from the context's in dimensions alone and agree with `fixed`, in their order."""
        place = self._place(context)
        return self.database.read(lambda connection: lookups.winners(connection, place, fixed, any_open=any_open))

    def record_misses(self, found: Iterable[Miss]) -> None:
        """Add to what is counted of workloads that dispatchers had no record of."""
        workloads, counted = misses.miss_rows(found)
        if counted:
            insert = self.database.insert(schema.dispatch_misses)
            self._write(workloads, then=lambda connection: misses.add(connection, insert, counted))

    def misses(self, operator: str | None = None, target: str | None = None) -> list[Miss]:
        """What was counted, of an operator, on a target; most costly first. Times are UTC."""
        return self.database.read(lambda connection: misses.misses(connection, operator, target))

    def forget_misses(self, workload_keys: Iterable[str], target: str | None = None) -> int:
        """Forget what was counted of these workloads, on `target` or on all; returns how many entries that were."""
        keys = list(workload_keys)
        return self.database.write(lambda connection: misses.forget(connection, keys, target))

    # ---- calibrations

    def record_calibration(self, found: Calibration, software: Mapping[str, str]) -> None:
        """Keep what `tilesight calibrate` measured, with the versions that it measured with."""
        self._write(calibration_rows(found, software))

    def calibrations(self, name: str | None = None) -> list[CalibrationRecord]:
        """Those that made the target `name`, or all; latest first."""
        return self.database.read(lambda connection: calibrations(connection, name))

    # ---- kept profiles

    def kept_families(self, key: FamilyKey) -> list[ProfileFamily]:
        """The profile families that were kept under `key`, in no order."""
        return self.database.read(lambda connection: kept_families(connection, key))

    def keep_families(self, key: FamilyKey, families: Iterable[ProfileFamily]) -> None:
        """Keep profile families, in place of what was kept of their configs."""
        prepared = family_rows(key, families)
        self._write([(schema.profile_families, row) for row in prepared])

    # ---- writing

    def _place(self, context: Context) -> Place:
        key = context.key
        place = self._places.get(key)
        if place is None:
            place, _ = rows.place_of(context)
            if len(self._places) >= _MOST_PLACES:  # look-ups of many shapes
                self._places = {}
            self._places[key] = place
        return place

    def _write(
        self, prepared: Rows, first: Callable[[Connection], None] | None = None, then: Callable[[Connection], None] | None = None
    ) -> None:
        """`prepared` in a transaction, after `first` and before `then`."""
        if not prepared:
            return

        def work(connection: Connection) -> None:
            if first is not None:
                first(connection)
            self._writer.write(connection, prepared)
            if then is not None:
                then(connection)

        try:
            self.database.write(work)
        except DatabaseError as error:
            # facts that were written once may be gone: another process cleaned up. All of them are written again
            if not isinstance(error.__cause__, exc.IntegrityError) or not self._writer.forget():
                raise
            self.database.write(work)
        self._writer.remember(prepared)

    def _check_context(self, session_id: int, context: Context, connection: Connection) -> None:
        expected = self._contexts.get(session_id) or sessions.context_key(connection, session_id)
        if expected != context.key:
            raise InputError(f"session {session_id} was begun in context {expected}, not {context.key}; a session has one context")
        self._contexts[session_id] = expected
