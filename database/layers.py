"""Layers: the user's own database, and read-only databases below it, of an application or of TileSight
itself.

Only the user's own database is written. Reads use all of them: the record of highest precedence wins, of
equal ones that of the upper layer, and a wrong result in any layer counts everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, select
from sqlalchemy.engine import URL

from ..problem.space import Config
from ..profile.parametric import ParametricProfile, ProfileKey
from ..records.recorded_session import RecordedSession
from ..records.session import Context, Effort, SessionResult
from ..records.trial import Status, TrialRecord
from ..records.winners import Winner
from ..settings import load_settings
from .engine.text_checks import clean
from .lookups.best import Best, chosen
from .lookups.recall import VERDICTS, strength
from .readable import open_readable
from .schema import tables as schema
from .shipped import PROFILES, SESSIONS, ProfileArchive, Shipped, has_session, shipped_file
from .shipped_files import REINSTALL
from .shipped_plans import PLANS, PlanArchive
from .store import BUSY_SECONDS, Store, open_store
from .tables import rows
from .tables.calibration_rows import CalibrationRecord
from .tables.session_rows import Option

if TYPE_CHECKING:
    from ..target.spec import Target

WAY_OUT = "repair it, or take it out of TILESIGHT_LAYERS (in Python: layers=)"


class _Kernel(NamedTuple):
    """A kernel's code on a device, as it can be compared between databases."""

    template_id: int  # hash of name and version
    arch: str
    code_key: str
    device: str
    workload: str  # canonical key
    config: str
    dynamic: str


def open_layers(
    url: str | URL,
    layers: Iterable[str | Path | URL] | None = None,
    *,
    read_only: bool = False,
    busy_seconds: float = BUSY_SECONDS,
    cache_dir: Path | None = None,
    shipped: bool | None = None,
) -> LayeredStore:
    """Open the user's own database at `url` over read-only layers.

    A layer of an older TileSight is read through a migrated copy in `cache_dir`.

    Args:
        url: The user's own database, as for `open_store`.
        layers: The layers, the first on top; by default those of `TILESIGHT_LAYERS`.
        read_only: As for `open_store`.
        busy_seconds: As for `open_store`.
        cache_dir: By default the cache folder of the settings.
        shipped: Whether the sessions that ship with TileSight are the lowest layer, and its profiles and
            plans are used; by default as the settings say (`TILESIGHT_SHIPPED`).

    Raises:
        InputError: A URL is invalid.
        DatabaseError: As for `open_store`, or a layer is missing, damaged or of a newer TileSight.
    """
    settings = load_settings()
    named = [
        str(layer) if isinstance(layer, Path) else layer
        for layer in (settings.layers if layers is None else layers)
    ]
    folder = cache_dir or settings.cache_dir
    with ExitStack() as opened:
        own = opened.enter_context(open_store(url, read_only=read_only, busy_seconds=busy_seconds))
        below = [
            opened.enter_context(open_readable(layer, "layer", WAY_OUT, folder, busy_seconds))
            for layer in named
        ]
        lowest = Shipped()
        if settings.shipped if shipped is None else shipped:
            sessions, profiles, plans = (shipped_file(name) for name in (SESSIONS, PROFILES, PLANS))
            lowest = Shipped(
                opened.enter_context(open_readable(str(sessions), "layer", REINSTALL, folder, busy_seconds))
                if sessions
                else None,
                ProfileArchive(profiles) if profiles else None,
                PlanArchive(plans) if plans else None,
            )
        opened.pop_all()
    return LayeredStore(own, below, lowest)


class LayeredStore(Store):
    """A `Store` that also reads from `layers`, in their order, and closes them with itself.

    Attributes:
        layers: Those below the own database; the sessions that ship with TileSight are the last one.
        shipped: What ships with TileSight.
    """

    def __init__(self, own: Store, layers: Sequence[Store] = (), shipped: Shipped | None = None) -> None:
        super().__init__(own.database)
        self.shipped = shipped or Shipped()
        self.layers = (*layers, *([self.shipped.store] if self.shipped.store else []))
        self._all: tuple[Store, ...] = (own, *self.layers)
        self._others = tuple(store for store in self._all if store is not self.shipped.store)

    def close(self) -> None:
        with ExitStack() as closing:
            for store in self._all:
                closing.callback(store.close)

    def find_complete(
        self, context: Context, effort: Effort, options: Mapping[str, Option]
    ) -> SessionResult | None:
        """As in `Store`, from the first layer that has such a session, unless another layer has a wrong
        result of one of the session's verified configs."""
        for store in self._all:
            found = store.find_complete(context, effort, options)
            if found is None:
                continue
            others = [other for other in self._all if other is not store]
            verified = [trial.config for trial in found.trials if trial.status is Status.VERIFIED]
            if not any(_seen_wrong(other, context, verified) for other in others):
                return found
        return None

    def shipped_session(self, context: Context, efforts: Sequence[Effort]) -> RecordedSession | None:
        found = self.shipped.session(context, efforts)
        if found is None or any(has_session(store, context) for store in self._others):
            return None
        verified = [trial.config for trial in found.result.trials if trial.status is Status.VERIFIED]
        return None if any(_seen_wrong(store, context, verified) for store in self._others) else found

    def recall(self, context: Context) -> dict[str, TrialRecord]:
        known: dict[str, list[TrialRecord]] = {}
        for store in self._others:  # libraries do not ship, so what is built there is not built here
            for key, record in store.recall(context).items():
                known.setdefault(key, []).append(record)
        return {key: _strongest(records) for key, records in known.items()}

    def best(self, kernel: str | None = None, target: str | None = None) -> list[Best]:
        """As in `Store`: for each workload, target and protocol the first layer's verified candidate, else
        the first layer's prediction; without those that ship with TileSight."""
        found: dict[tuple[str, str, str], Best] = {}
        wrong = _wrong_anywhere(self._all) if self.layers else set()
        listed = [row for store in self._others for row in (_right(store, wrong) if wrong else store.best())]
        for row in sorted(
            listed, key=lambda row: row.status is not Status.VERIFIED
        ):  # stable: the own one stays first
            found.setdefault((row.workload, row.target, row.protocol_key), row)
        measured = {
            (workload, target)
            for (workload, target, _), row in found.items()
            if row.status is Status.VERIFIED
        }
        shown = [
            row
            for row in found.values()
            if row.status is Status.VERIFIED or (row.workload, row.target) not in measured
        ]
        return chosen(shown, kernel, target)

    def best_predicted(self, context: Context, count: int) -> list[Config]:
        """As in `Store`: the own ones first, then those of each layer."""
        found = (config for store in self._all for config in store.best_predicted(context, count))
        return list(dict.fromkeys(found))[:count]

    def cached_profiles(self, key: ProfileKey) -> list[ParametricProfile]:
        found: dict[str, ParametricProfile] = {}
        for store in self._all:
            for profile in store.cached_profiles(key):
                found.setdefault(profile.config.key, profile)
        for profile in self.shipped.profiles.cached_profiles(key) if self.shipped.profiles else ():
            found.setdefault(profile.config.key, profile)
        return list(found.values())

    def calibrations(self, name: str | None = None) -> list[CalibrationRecord]:
        found = [record for store in self._all for record in store.calibrations(name)]
        return sorted(found, key=lambda record: record.recorded_at, reverse=True)

    # ---- for dispatch

    def winners(
        self, context: Context, fixed: Mapping[str, int], *, any_dynamic: bool = False
    ) -> list[Winner]:
        return self._winners(self._with_contexts(context), context, fixed, any_dynamic=any_dynamic)

    def recorded_winners(self, context: Context, fixed: Mapping[str, int]) -> list[Winner]:
        return self._winners(((store, context) for store in self._all), context, fixed)

    def _winners(
        self,
        places: Iterable[tuple[Store, Context]],
        context: Context,
        fixed: Mapping[str, int],
        *,
        any_dynamic: bool = False,
    ) -> list[Winner]:
        found: dict[str, Winner] = {}  # by workload: the first layer's that no layer has a wrong result of
        for store, at in places:
            for winner in store.winners(at, fixed, any_dynamic=any_dynamic):
                if winner.workload.key not in found and self._holds(store, context, winner):
                    found[winner.workload.key] = winner if winner.layer else replace(winner, layer=store.name)
        return sorted(found.values(), key=lambda winner: tuple(winner.workload.dims.values()))

    def _with_contexts(self, context: Context) -> Iterator[tuple[Store, Context]]:
        """The layers, each with the context in which its winners are looked for.

        A winner that ships with TileSight is used under any software: it is built here.
        """
        for store in self._all:
            if store is not self.shipped.store:
                yield store, context
                continue
            for versions in self.shipped.software:
                yield store, replace(context, software=versions)

    def measured_contexts(self, target: Target, device: str = "") -> list[Context]:
        found: dict[tuple[int, tuple[str, ...]], Context] = {}
        for store in self._all:
            for context in store.measured_contexts(target, device):
                ids, _ = rows.context_rows(context)
                found.setdefault((ids.shape_family, context.dynamic), context)
        return list(found.values())

    def _holds(self, store: Store, context: Context, winner: Winner) -> bool:
        at = replace(context, workload=winner.workload, dynamic=winner.dynamic)
        return not any(_seen_wrong(other, at, [winner.config]) for other in self._all if other is not store)


def _seen_wrong(store: Store, context: Context, configs: Sequence[Config]) -> bool:
    """Whether a session of `store` has a wrong result of one of `configs` on the context's device, under any
    protocol."""
    ids, _ = rows.context_rows(context)
    candidate_ids = [rows.candidate_row(ids, config)["id"] for config in configs]
    trials, sessions = schema.trials.c, schema.sessions.c
    statement = (
        select(trials.candidate_id)
        .join(schema.sessions, sessions.id == trials.session_id)
        .join(schema.environments, schema.environments.c.id == sessions.environment_id)
        .join(schema.failure_reasons, schema.failure_reasons.c.id == trials.failure_id)
        .join(schema.software, schema.software.c.id == schema.environments.c.software_id)
        .where(
            schema.environments.c.device == clean(context.device),
            schema.software.c.code_key == ids.code_key,
            schema.failure_reasons.c.kind.in_(VERDICTS),
        )
    )

    def work(connection: Connection) -> bool:
        return any(
            connection.execute(
                statement.where(trials.candidate_id.in_(candidate_ids[start : start + 500])).limit(1)
            ).first()
            is not None
            for start in range(0, len(candidate_ids), 500)
        )

    return store.database.read(work)


def _wrong_anywhere(stores: Iterable[Store]) -> set[_Kernel]:
    """All kernels with a wrong result, by the parts on which a wrong result depends."""
    candidates = schema.candidates.c
    statement = (
        select(
            *(candidates[name] for name in ("template_id", "arch")),
            schema.software.c.code_key,
            schema.environments.c.device,
        )
        .add_columns(schema.workloads.c.key, candidates.config, candidates.dynamic)
        .select_from(schema.trials)
        .join(schema.failure_reasons, schema.failure_reasons.c.id == schema.trials.c.failure_id)
        .join(schema.candidates, candidates.id == schema.trials.c.candidate_id)
        .join(schema.workloads, schema.workloads.c.id == candidates.workload_id)
        .join(schema.sessions, schema.sessions.c.id == schema.trials.c.session_id)
        .join(schema.environments, schema.environments.c.id == schema.sessions.c.environment_id)
        .join(schema.software, schema.software.c.id == schema.environments.c.software_id)
        .where(schema.failure_reasons.c.kind.in_(VERDICTS))
    )

    def work(connection: Connection) -> list[_Kernel]:
        return [_Kernel(*row) for row in connection.execute(statement)]

    return {kernel for store in stores for kernel in store.database.read(work)}


def _right(store: Store, wrong: set[_Kernel]) -> list[Best]:
    """`store.best()` without the kernels in `wrong`."""
    sessions = schema.sessions.c
    statement = (
        select(sessions.id, sessions.template_id, schema.targets.c.arch, schema.software.c.code_key)
        .join(schema.targets, schema.targets.c.id == sessions.target_id)
        .join(schema.environments, schema.environments.c.id == sessions.environment_id)
        .join(schema.software, schema.software.c.id == schema.environments.c.software_id)
    )
    listed = store.best()
    ids = sorted({row.session_id for row in listed})
    parts = [ids[start : start + 500] for start in range(0, len(ids), 500)]

    def work(connection: Connection) -> dict[int, tuple[int, str, str]]:
        rows = (row for part in parts for row in connection.execute(statement.where(sessions.id.in_(part))))
        return {session_id: (template_id, arch, code_key) for session_id, template_id, arch, code_key in rows}

    known = store.database.read(work)
    return [
        row
        for row in listed
        if row.status is not Status.VERIFIED
        or row.session_id not in known  # removed by another process meanwhile
        or _Kernel(*known[row.session_id], row.device, row.workload, row.config.key, ",".join(row.dynamic))
        not in wrong
    ]


def _strongest(records: list[TrialRecord]) -> TrialRecord:
    """The record of highest precedence of one config, completed with the prediction and build of the others,
    as `recall` does within one database."""
    ordered = sorted(records, key=lambda record: -_strength(record))  # stable: the own one stays first
    best = ordered[0]
    builds = [best.build, *(record.build for record in ordered if _strength(record) > 2)]
    return replace(
        best,
        prediction=next((record.prediction for record in ordered if record.prediction is not None), None),
        build=next((build for build in builds if build is not None), None),
    )


def _strength(record: TrialRecord) -> int:
    is_built = record.build is not None and record.build.artifact is not None
    return strength(record.status, record.failure.kind if record.failure else None, is_built=is_built)
