"""The performance database as the rest of TileSight uses it: it takes and returns values, never rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection, delete, exc
from sqlalchemy.engine import URL

from ..bounded_dict import BoundedDict
from ..errors import DatabaseError, InputError
from ..problem.space import Census, Config
from ..profile.parametric import ParametricProfile, ProfileKey
from ..records.progress import SessionProgress
from ..records.recorded_session import RecordedSession, SessionSummary
from ..records.session import Baseline, Context, Decision, Effort, SessionResult, SessionState
from ..records.trial import TrialRecord
from ..records.winners import Miss, Winner
from .engine.connection import Database, parse_url
from .lookups import progress as running
from .lookups import sessions as recorded
from .lookups import winners as lookups
from .lookups.best import Best, best
from .lookups.contexts import measured_contexts
from .lookups.model_errors import model_errors
from .lookups.predicted import best_predicted
from .lookups.recall import recall
from .lookups.vendor_times import vendor_times
from .schema import tables as schema
from .tables import miss_rows as misses
from .tables import rows
from .tables import session_rows as sessions
from .tables.calibration_rows import CalibrationRecord, calibration_rows, calibrations
from .tables.profile_rows import cached_profiles, parametric_profile_rows
from .tables.rows import ContextIds, Rows
from .tables.session_rows import Option
from .tables.writer import Writer

if TYPE_CHECKING:
    from ..calibration import Calibration
    from ..target.spec import Target

BUSY_SECONDS = 30.0
_CONTEXT_LIMIT = 1000
_BATCH = 200  # trials per transaction in `record_many`


def open_store(url: str | URL, *, read_only: bool = False, busy_seconds: float = BUSY_SECONDS) -> Store:
    """Open the performance database at a SQLAlchemy URL (SQLite or PostgreSQL) or at the path of an SQLite
    file.

    A missing file, its folder and its tables are created, and tables of an older version are migrated.

    Args:
        url: A URL, or the path of a file that ends in .db, .sqlite or .sqlite3.
        read_only: Create and migrate nothing.
        busy_seconds: How long calls wait for locks of other processes.

    Raises:
        InputError: The URL is invalid.
        DatabaseError: The database is busy, read-only, corrupt, full, or written by a newer TileSight.
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    return Store(Database(parsed, read_only=read_only, busy_seconds=busy_seconds))


class Store:
    """Reads and writes sessions, trials, misses, calibrations and profiles.

    A context manager. Each call is one transaction; once a writing call has returned, its changes survive a
    crash of the process. Threads may share a store; each process opens its own.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._ids_by_context: BoundedDict[str, ContextIds] = BoundedDict(_CONTEXT_LIMIT)  # by context key
        self._contexts: dict[int, str] = {}  # session id -> context key
        self._writer = Writer(database)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Begin a session of this process; returns its id.

        `flops` and `min_bytes` of the workload give the rates in results.
        """
        ids, context_rows = rows.context_rows(context)
        row = sessions.session_row(ids, effort, seed, options, census, flops, min_bytes)

        def work(connection: Connection) -> None:
            self._writer.write(connection, context_rows)
            sessions.add(connection, self.database.insert(schema.sessions), row)

        self.database.write(work)
        self._ids_by_context[context.key] = ids
        self._contexts[row["id"]] = context.key
        return int(row["id"])

    def finish(
        self,
        session_id: int,
        state: SessionState,
        messages: Iterable[str] = (),
        seconds: float = 0.0,
        *,
        decision: Decision | None = None,
    ) -> None:
        """Close a session as complete or interrupted.

        Args:
            session_id: A session that runs.
            state: Complete or interrupted.
            messages: Shown again when the session answers a later call.
            seconds: Duration of the session.
            decision: Its winner must be the config of a trial of this session.
        """
        if state is SessionState.RUNNING:
            raise InputError(f"session {session_id}: finish it as complete or interrupted, not as running")
        texts = list(messages)
        self.database.write(
            lambda connection: sessions.finish(connection, session_id, state, texts, seconds, decision)
        )

    def find_complete(
        self, context: Context, effort: Effort, options: Mapping[str, Option]
    ) -> SessionResult | None:
        """The latest complete session of this context, effort and options (with any seed), or None.

        Its trials are those that were recorded under its id; a session should therefore record recalled
        trials, too.
        """
        key = sessions.options_key(options)
        return self.database.read(lambda connection: sessions.find_complete(connection, context, effort, key))

    def shipped_session(self, context: Context, efforts: Sequence[Effort]) -> RecordedSession | None:
        """The session of one of these efforts that ships with TileSight and answers `context`, under other
        software perhaps.

        None if there is none, if a session of the same kernel and workload was begun on this device, or if a
        wrong result of one of its configs is known here.
        """
        return None

    def find_interrupted(self, context: Context, effort: Effort, options: Mapping[str, Option]) -> int | None:
        """Take over the latest session of this context, effort and options that was interrupted or whose
        process died. Returns its id, or None. The session now runs in this process, and no other process
        finds it. Continue it with `recall` and `record`."""
        key = sessions.options_key(options)
        taken: set[int] = set()
        session_id = self.database.write(
            lambda connection: sessions.take_over(connection, context, effort, key, taken)
        )
        if session_id is not None:
            self._contexts[session_id] = context.key
        return session_id

    def session_summaries(
        self,
        kernel: str | None = None,
        target: str | None = None,
        limit: int | None = None,
        *,
        workload: str | None = None,
        before: int | None = None,
    ) -> list[SessionSummary]:
        """Sessions, latest first: of an operator or template, on a target, of the workload with a key, with
        ids below `before`; at most `limit`.
        """
        return self.database.read(
            lambda connection: recorded.session_summaries(
                connection, kernel, target, limit, workload=workload, before=before
            )
        )

    def recorded_session(self, session_id: int) -> RecordedSession:
        """One session with its candidates. Raises `InputError` if there is none of this id."""
        return self.database.read(lambda connection: recorded.recorded_session(connection, session_id))

    def running_sessions(self) -> list[int]:
        """The ids of the sessions that run in living processes, the latest first."""
        return self.database.read(running.running_sessions)

    def session_progress(self, session_id: int) -> tuple[SessionProgress, running.Pace]:
        """How far a session has come. Raises `InputError` if there is none of this id."""
        return self.database.read(lambda connection: running.session_progress(connection, session_id))

    # ---- trials

    def recall(self, context: Context) -> dict[str, TrialRecord]:
        """The best-known record of each config that any session tried and that holds in `context`, by config
        key.

        A record is composed of the parts that hold: predictions of the same target figures and model (on any
        device), builds of the same architecture, measurements of the same device, driver and protocol; all of
        the same template, dynamic dimensions and code-generating software. A verified record is preferred to
        a measured, built or predicted one. A failure outranks the results of earlier stages, and a wrong
        result outranks everything. Failures for lack of memory are ignored. The file at an artifact's path
        may have been deleted since.
        """
        ids = self._ids(context)
        return self.database.read(lambda connection: recall(connection, ids))

    def record(self, session_id: int, context: Context, trial: TrialRecord) -> None:
        """Record a trial of a session, in place of an earlier record of the same config.

        Raises `InputError` if a number is NaN or infinite.
        """
        self.record_many(session_id, context, (trial,))

    def record_many(self, session_id: int, context: Context, trials: Iterable[TrialRecord]) -> None:
        """Record several trials, up to 200 in a transaction."""
        ids = self._ids(context)
        listed = list(trials)
        for start in range(0, len(listed), _BATCH):
            prepared = [
                row
                for trial in listed[start : start + _BATCH]
                for row in rows.trial_rows(session_id, ids, trial)
            ]
            self._write(prepared, partial(self._check_context, session_id, context))

    def record_baselines(self, session_id: int, baselines: Iterable[Baseline]) -> None:
        """Record the vendor libraries' times of a session, in place of earlier ones."""
        prepared = rows.baseline_rows(session_id, baselines)

        def work(connection: Connection) -> None:
            sessions.context_key(connection, session_id)
            connection.execute(delete(schema.baselines).where(schema.baselines.c.session_id == session_id))
            if prepared:
                connection.execute(schema.baselines.insert(), prepared)

        self.database.write(work)

    def best(self, kernel: str | None = None, target: str | None = None) -> list[Best]:
        """The best known candidate of each workload on each target; see `Best`."""
        return self.database.read(lambda connection: best(connection, kernel, target))

    def best_predicted(self, context: Context, count: int) -> list[Config]:
        """Up to `count` configs that the context's model has predicted best for its workload, under any
        software; failed ones are left out."""
        ids = self._ids(context)
        return self.database.read(lambda connection: best_predicted(connection, ids, count))

    def vendor_times(
        self, workload_keys: Iterable[str], target: str, device: str, protocol: str
    ) -> dict[str, float]:
        """The time of the fastest other implementation, in microseconds, by the key of the workload: that of
        the latest session that measured one on the device under the protocol.
        """
        keys = list(workload_keys)
        return self.database.read(lambda connection: vendor_times(connection, keys, target, device, protocol))

    # ---- for dispatch

    def winners(
        self, context: Context, fixed: Mapping[str, int], *, any_dynamic: bool = False
    ) -> list[Winner]:
        """The winners of all workloads that differ from the context's only in dimensions, ordered by their
        dimensions. A workload's winner is the decision of its latest complete session, else its fastest
        verified candidate, of the same template, architecture, software, device and protocol. A candidate
        with a wrong result there never wins.

        Args:
            context: Its workload gives operator, dtype and attributes.
            fixed: Sizes that the workloads must have, by dimension.
            any_dynamic: Also return winners whose dynamic dimensions differ from those of the context.
        """
        ids = self._ids(context)
        return self.database.read(
            lambda connection: lookups.winners(connection, ids, fixed, any_dynamic=any_dynamic)
        )

    def recorded_winners(self, context: Context, fixed: Mapping[str, int]) -> list[Winner]:
        """As `winners`, in this context exactly: of what ships with TileSight those of its software."""
        return self.winners(context, fixed)

    def measured_contexts(self, target: Target, device: str = "") -> list[Context]:
        """A context of each family of shapes that was measured, latest first: its `winners` are those of all
        sizes, which share template, software, device, protocol and dynamic dimensions with it.

        Args:
            target: Sessions of its architecture.
            device: Sessions that measured on it; "": those of this target's name, on any device.
        """
        return self.database.read(
            lambda connection: measured_contexts(connection, target.name, target.arch, device)
        )

    def record_misses(self, found: Iterable[Miss]) -> None:
        """Add to the counts of workloads that dispatchers had no record of."""
        workloads, counted = misses.miss_rows(found)
        if counted:
            insert = self.database.insert(schema.dispatch_misses)
            self._write(workloads, then=lambda connection: misses.add(connection, insert, counted))

    def misses(self, operator: str | None = None, target: str | None = None) -> list[Miss]:
        """The counted misses, of one operator and one target if given, most costly first. Times are UTC."""
        return self.database.read(lambda connection: misses.misses(connection, operator, target))

    def forget_misses(self, workload_keys: Iterable[str], target: str | None = None) -> int:
        """Delete the counts of these workloads, on `target` or on all targets; returns the number of deleted
        rows."""
        keys = list(workload_keys)
        return self.database.write(lambda connection: misses.forget(connection, keys, target))

    # ---- calibrations

    def record_calibration(self, found: Calibration, software: Mapping[str, str]) -> None:
        """Record a calibration, with the software versions that it was measured with."""
        self._write(calibration_rows(found, software))

    def calibrations(self, name: str | None = None) -> list[CalibrationRecord]:
        """The calibrations that made the target `name`, or all, latest first."""
        return self.database.read(lambda connection: calibrations(connection, name))

    def model_errors(self, model: str, target: Target, device: str) -> tuple[float, ...]:
        """|log(measured / predicted)| of what a version of the model predicted and `device` measured."""
        return self.database.read(lambda connection: model_errors(connection, model, target, device))

    # ---- cached profiles

    def cached_profiles(self, key: ProfileKey) -> list[ParametricProfile]:
        """The parametric profiles that are cached under `key`, in no order."""
        return self.database.read(lambda connection: cached_profiles(connection, key))

    def cache_profiles(self, key: ProfileKey, profiles: Iterable[ParametricProfile]) -> None:
        """Cache parametric profiles, in place of those of the same configs."""
        prepared = parametric_profile_rows(key, profiles)
        self._write([(schema.parametric_profiles, row) for row in prepared])

    # ---- writing

    def _ids(self, context: Context) -> ContextIds:
        key = context.key
        ids = self._ids_by_context.get(key)
        if ids is None:
            ids, _ = rows.context_rows(context)
            self._ids_by_context[key] = ids
        return ids

    def _write(
        self,
        prepared: Rows,
        first: Callable[[Connection], None] | None = None,
        then: Callable[[Connection], None] | None = None,
    ) -> None:
        """Write `prepared` in one transaction, after calling `first` and before calling `then`."""
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
            # another process may have removed facts that this one wrote: write all of them again
            if not isinstance(error.__cause__, exc.IntegrityError) or not self._writer.forget():
                raise
            self.database.write(work)
        self._writer.remember(prepared)

    def _check_context(self, session_id: int, context: Context, connection: Connection) -> None:
        expected = self._contexts.get(session_id) or sessions.context_key(connection, session_id)
        if expected != context.key:
            raise InputError(
                f"session {session_id} was begun in context {expected}, not {context.key}; a session "
                "has one context"
            )
        self._contexts[session_id] = expected
