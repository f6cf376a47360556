"""Layers: the user's own database, and read-only ones below it that come with TileSight or with an application.

All that is written goes to the own one. What is read comes from all of them: the own one wins where they know equally much,
the strongest knowledge wins otherwise, and what any of them saw to be wrong is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, select
from sqlalchemy.engine import URL

from ..families import FamilyKey, ProfileFamily
from ..known import Known
from ..session import Context, Effort, SessionResult
from ..settings import load_settings
from ..space import Config
from ..trial import Status, TrialRecord
from . import rows, schema
from .best import Best, chosen
from .calibrations import CalibrationRecord
from .checks import clean
from .readable import open_readable
from .recall import VERDICTS, strength
from .sessions import Option
from .shapes import distance
from .store import BUSY_SECONDS, Store, open_store

SHIPPED = "shipped.db"  # in this package, where a release brings one
WAY_OUT = "mend it, or take it out of TILESIGHT_LAYERS (in Python: layers=)"


class _Kernel(NamedTuple):
    """One kernel's code on one device, whatever database it stands in."""

    template_id: int  # of name and version
    arch: str
    code_key: str
    device: str
    workload: str  # canonical key
    config: str
    open: str


def open_layers(
    url: str | URL,
    layers: Iterable[str | Path | URL] | None = None,
    *,
    read_only: bool = False,
    busy_seconds: float = BUSY_SECONDS,
    cache_dir: Path | None = None,
    shipped: bool = True,
) -> LayeredStore:
    """The user's own database at `url`, as `open_store` opens it, over `layers`: the first on top, that which ships with
    TileSight below them all (`shipped`: unless it is not to be looked for). None: those of `TILESIGHT_LAYERS`.

    A layer is opened for reading only; one of an older TileSight is read through a migrated copy in `cache_dir`. Raises what
    `open_store` raises, and a `DatabaseError` that names the layer where one is missing, damaged or of a newer TileSight.
    """
    settings = load_settings()
    named = [str(layer) if isinstance(layer, Path) else layer for layer in (settings.layers if layers is None else layers)]
    folder = cache_dir or settings.cache_dir
    with ExitStack() as opened:
        own = opened.enter_context(open_store(url, read_only=read_only, busy_seconds=busy_seconds))
        below = [opened.enter_context(open_readable(layer, "layer", WAY_OUT, folder, busy_seconds)) for layer in named]
        packaged = shipped_file() if shipped else None
        if packaged is not None:
            way_out = "install TileSight anew: pip install --force-reinstall tilesight"
            below.append(opened.enter_context(open_readable(str(packaged), "layer", way_out, folder, busy_seconds)))
        opened.pop_all()
    return LayeredStore(own, below)


def shipped_file() -> Path | None:
    """The database in this package; None where the release brings none."""
    found = resources.files(__package__) / SHIPPED
    return Path(str(found)) if found.is_file() else None


class LayeredStore(Store):
    """A `Store` that reads from `layers`, too, in their order. They are closed with it."""

    def __init__(self, own: Store, layers: Sequence[Store] = ()) -> None:
        super().__init__(own.database)
        self.layers = tuple(layers)
        self._all: tuple[Store, ...] = (own, *self.layers)

    def close(self) -> None:
        with ExitStack() as closing:
            for store in self._all:
                closing.callback(store.close)

    def find_complete(self, context: Context, effort: Effort, options: Mapping[str, Option]) -> SessionResult | None:
        """As `Store`'s, from the first layer that has one. A session is no answer where another layer saw one of its verified
        configs to be wrong: what is asked then goes on from what all of them know."""
        for store in self._all:
            found = store.find_complete(context, effort, options)
            if found is None:
                continue
            others = [other for other in self._all if other is not store]
            verified = [trial.config for trial in found.trials if trial.status is Status.VERIFIED]
            if not any(_seen_wrong(other, context, verified) for other in others):
                return found
        return None

    def recall(self, context: Context) -> dict[str, TrialRecord]:
        known: dict[str, list[TrialRecord]] = {}
        for store in self._all:
            for key, record in store.recall(context).items():
                known.setdefault(key, []).append(record)
        return {key: _strongest(records) for key, records in known.items()}

    def best(self, kernel: str | None = None, target: str | None = None) -> list[Best]:
        """As `Store`'s: of each workload, target and protocol the first layer's that verified it, else the first's at all."""
        found: dict[tuple[str, str, str], Best] = {}
        wrong = _wrong_anywhere(self._all) if self.layers else set()
        listed = [row for store in self._all for row in (_right(store, wrong) if wrong else store.best())]
        for row in sorted(listed, key=lambda row: row.status is not Status.VERIFIED):  # stable: the own one stays first
            found.setdefault((row.workload, row.target, row.protocol_key), row)
        measured = {(workload, target) for (workload, target, _), row in found.items() if row.status is Status.VERIFIED}
        shown = [row for row in found.values() if row.status is Status.VERIFIED or (row.workload, row.target) not in measured]
        return chosen(shown, kernel, target)

    def kept_families(self, key: FamilyKey) -> list[ProfileFamily]:
        kept: dict[str, ProfileFamily] = {}
        for store in self._all:
            for family in store.kept_families(key):
                kept.setdefault(family.config.key, family)
        return list(kept.values())

    def calibrations(self, name: str | None = None) -> list[CalibrationRecord]:
        found = [record for store in self._all for record in store.calibrations(name)]
        return sorted(found, key=lambda record: record.recorded_at, reverse=True)

    # ---- for dispatch

    def winner(self, context: Context, *, any_open: bool = False) -> Known | None:
        for store in self._all:
            found = store.winner(context, any_open=any_open)
            if found is not None and self._holds(store, context, found):
                return _of(store, found)
        return None

    def nearest(self, context: Context, count: int = 4, *, any_open: bool = False) -> list[Known]:
        gathered = self._first_of_each(context, lambda store: store.nearest(context, count, any_open=any_open))
        return sorted(gathered, key=lambda known: distance(context.workload.dims, known.workload.dims))[:count]

    def winners(self, context: Context, fixed: Mapping[str, int], *, any_open: bool = False) -> list[Known]:
        gathered = self._first_of_each(context, lambda store: store.winners(context, fixed, any_open=any_open))
        return sorted(gathered, key=lambda known: tuple(known.workload.dims.values()))

    def _first_of_each(self, context: Context, ask: Callable[[Store], list[Known]]) -> list[Known]:
        """One winner a workload: the first layer's that nobody saw to be wrong."""
        found: dict[str, Known] = {}
        for store in self._all:
            for known in ask(store):
                if known.workload.key not in found and self._holds(store, context, known):
                    found[known.workload.key] = _of(store, known)
        return list(found.values())

    def _holds(self, store: Store, context: Context, known: Known) -> bool:
        at = replace(context, workload=known.workload, open=known.open)
        return not any(_seen_wrong(other, at, [known.config]) for other in self._all if other is not store)


def _of(store: Store, known: Known) -> Known:
    return known if known.layer else replace(known, layer=store.name)


def _seen_wrong(store: Store, context: Context, configs: Sequence[Config]) -> bool:
    """Whether a session of `store` found one of `configs` wrong on the context's device, however it was timed."""
    place, _ = rows.place_of(context)
    ids = [rows.candidate_row(place, config)["id"] for config in configs]
    trials, sessions = schema.trials.c, schema.sessions.c
    statement = (
        select(trials.candidate_id)
        .join(schema.sessions, sessions.id == trials.session_id)
        .join(schema.environments, schema.environments.c.id == sessions.environment_id)
        .join(schema.failure_reasons, schema.failure_reasons.c.id == trials.failure_id)
        .join(schema.software, schema.software.c.id == schema.environments.c.software_id)
        .where(
            schema.environments.c.device == clean(context.device),
            schema.software.c.code_key == place.code_key,
            schema.failure_reasons.c.kind.in_(VERDICTS),
        )
    )

    def work(connection: Connection) -> bool:
        return any(
            connection.execute(statement.where(trials.candidate_id.in_(ids[start : start + 500])).limit(1)).first() is not None
            for start in range(0, len(ids), 500)
        )

    return store.database.read(work)


def _wrong_anywhere(stores: Iterable[Store]) -> set[_Kernel]:
    """All that was seen to be wrong: on what a verdict depends, as `recall` has it."""
    candidates = schema.candidates.c
    statement = (
        select(*(candidates[name] for name in ("template_id", "arch")), schema.software.c.code_key, schema.environments.c.device)
        .add_columns(schema.workloads.c.key, candidates.config, candidates.open)
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
    """The best of `store`, without those whose kernel is `wrong`."""
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
        or row.session_id not in known  # another process removed it meanwhile
        or _Kernel(*known[row.session_id], row.device, row.workload, row.config.key, ",".join(row.open)) not in wrong
    ]


def _strongest(records: list[TrialRecord]) -> TrialRecord:
    """The strongest of several layers' records of one config, the upper layer's of equals, completed by what the others know
    of prediction and build, as `recall` does it within one database."""
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
