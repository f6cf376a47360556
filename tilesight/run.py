"""A run: one target of this machine, the database and the worker processes, for as long as a call needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .candidate import Candidate
from .device import Device, device_for, find_devices
from .errors import Failure, NoCandidateError, headline
from .lookup import check_workers, find_context, find_template
from .observers import Observer
from .profile import KernelProfile
from .protocol import Protocol
from .session import Effort, SessionResult
from .settings import load_settings
from .space import Config
from .template import KernelTemplate, Operator
from .trial import Prediction
from .where import Where
from .workload import Workload

if TYPE_CHECKING:
    from .costmodel.model import CostModel
    from .database.store import Store
    from .distributed import RayExecutor
    from .executor import LocalExecutor
    from .explanation import MeasuredRows, View
    from .known import Miss
    from .planning.planner import Wish
    from .planning.result import Planned
    from .planning.sizes import Vary
    from .request import Request
    from .twins import SharedLowering
    from .work import Executor


class Run:
    """A context manager. The database is opened at once, processes start when there is work for them."""

    def __init__(
        self,
        where: Where,
        *,
        database: str | None = None,
        layers: Sequence[str] | None = None,
        workers: int | None = None,
        seed: int = 0,
        sampler: str = "tpe",
        protocol: str = "default",
        cluster: str | None = None,
        measures: bool = True,
        observer: Observer | None = None,
    ) -> None:
        """`layers`: read-only databases below that of `database`, None: those of the settings. `cluster`: address of a Ray cluster
        that does the work; `measures`: it must have a device of the target."""
        check_workers(workers)
        from .costmodel import default_model
        from .database import open_layers

        settings = load_settings()
        self.where, self.seed, self.sampler = where, seed, sampler
        self.protocol = Protocol.named(protocol, where.target)
        self.observer = observer or Observer()
        if protocol != "default" and self.protocol.key == Protocol.named("default", where.target).key:
            self.observer.message(f"on {where.target.name} protocol {protocol} means the same as default")
        self._workers = workers or settings.workers
        self._cache_dir = settings.cache_dir
        self._model: CostModel = default_model()
        self._store: Store = open_layers(database or settings.database_url, layers)
        if cluster is not None:
            self._join(cluster, measures, workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if "executor" in self.__dict__:
                self.executor.close()
        finally:
            self._store.close()

    def _join(self, address: str, measures: bool, workers: int | None) -> None:
        """Let a cluster do the work: what it has takes the place of what is here."""
        from .distributed import RayExecutor

        try:
            message = self.observer.message
            joined = RayExecutor(address, self.where.target, self._cache_dir, measures=measures, workers=workers, message=message)
        except BaseException:
            self._store.close()
            raise
        self.executor = joined
        self.where = replace(joined.where, software=joined.software)

    @cached_property
    def executor(self) -> LocalExecutor | RayExecutor:
        from .executor import LocalExecutor

        return LocalExecutor(self._workers, self._cache_dir, self.where.gpus, notice=self.observer.message)

    @cached_property
    def _shared_lowering(self) -> SharedLowering:
        from .twins import SharedLowering

        return SharedLowering()

    def session(
        self, operator: Operator, workload: Workload, effort: Effort, budget_s: float | None = None, open: tuple[str, ...] = ()
    ) -> SessionResult:
        """One session: from the database, resumed or new. `open`: dimensions that the kernels take at run time. Raises what
        `Tuner.run` raises, and `DatabaseError`."""
        from .recorded import run_recorded

        dynamic = f", {', '.join(open)} taken at run time" if open else ""
        self.observer.started(f"{workload.label} on {self.where.target.title}{dynamic}")
        request = self._request(find_template(operator, self.where.target, workload.dtype), workload, effort, self.where, open)
        request = replace(request, budget_s=budget_s)
        result = run_recorded(request, self._store, self._model, self._keeping_executor, self.observer, self.where.messages)
        self.observer.answered(result)
        return result

    def _keeping_executor(self) -> Executor:
        from .kept import KeptExecutor

        if self.where.devices:
            # what is measured will be built: what these processes import is there when the first jobs come
            self.executor.start(measures=True)
        # else they start when something must be lowered: kept profiles need none
        return KeptExecutor(self.executor, self._store)

    def plan(self, template: KernelTemplate, base: Workload, vary: Vary, wish: Wish, *, static: bool = False) -> Planned:
        """The few kernels that cover a range of sizes. Raises what `Planner.run` raises, and `DatabaseError`."""
        from .planning.planner import Planner
        from .planning.sessions import Sessions
        from .planning.subject import Subject, openings

        open = openings(template, vary, static)
        subject = Subject(template, self.where, base, vary, open, self.protocol, self._model.version)
        self.observer.started(f"{subject.label} on {self.where.target.title}: {wish.kernels} kernels")
        for note in self.where.messages:
            self.observer.message(note)
        sessions = Sessions(subject, self._store, wish.effort, wish.seed, wish.asked(vary))
        return Planner(subject, wish, self._model, self._keeping_executor(), sessions, self.observer).run()

    def misses(self, operator: str | None) -> list[Miss]:
        """Workloads of `operator` (None: of any) that dispatchers were asked for on this target and had no record of, most costly
        first: those of its device, where one measures."""
        device = self.where.device
        found = self._store.misses(operator, self.where.target.name)
        return [miss for miss in found if device is None or miss.device in ("", device.name)]

    def forget(self, miss: Miss) -> None:
        self._store.forget_misses([miss.workload.key], miss.target)

    def best_known(self, operator: Operator, workload: Workload) -> SessionResult:
        """A complete session that measured on this machine, else the predicted ranking, which is made where it is missing."""
        from .recorded import find_answer

        template = find_template(operator, self.where.target, workload.dtype)
        device = device_for(self.where.target, find_devices() if self.where.target.is_gpu else [])
        if isinstance(device, Device):
            answer = find_answer(self._store, self._request(template, workload, Effort.QUICK, replace(self.where, devices=(device,))))
            if answer is not None:
                return answer
        return self.session(operator, workload, Effort.PREDICT)

    def views(
        self,
        template: KernelTemplate,
        workload: Workload,
        configs: Sequence[Config],
        measured_us: Mapping[Config, float | None],
        rows: MeasuredRows | None = None,
    ) -> list[View]:
        """`configs` as the model sees them: from their profiles in `rows`, else lowered anew. Raises `NoCandidateError` where
        one does not lower."""
        from .costmodel.model import was_trained_on
        from .explanation import view

        target = self.where.target
        known = {config: kernels for config in configs if rows is not None and (kernels := rows.kernels(config)) is not None}
        found: dict[Config, View] = {}
        for config, outcome in [*known.items(), *self._lowered(template, workload, [c for c in configs if c not in known])]:
            if isinstance(outcome, Failure):
                raise NoCandidateError(f"config '{config}' cannot be explained: {outcome.kind}: {outcome.message}")
            try:
                prediction = self._model.predict(outcome, target)
            except Exception as error:  # any profile may come here
                raise NoCandidateError(f"config '{config}' cannot be explained: {headline(str(error))}") from error
            time_us = measured_us.get(config)
            if rows is None:
                found[config] = view(outcome, prediction, target, config, time_us)
            else:
                seen = rows.counters.get(config), rows.compiled.get(config)
                trained = config in rows.runs and was_trained_on(self._model, rows.runs[config])
                found[config] = view(outcome, prediction, target, config, time_us, *seen, trained)
        return [found[config] for config in configs]

    def fingerprints(self, template: KernelTemplate, workload: Workload, configs: Sequence[Config]) -> dict[Config, str]:
        """Of the code that is generated today for those configs that lower."""
        from .work import lower_all

        candidates = [Candidate(workload, self.where.target, template, config) for config in configs]
        # each lowered itself: of the code, as in datasets, and not one that was derived from a twin's
        outcomes = {candidate.config: outcome for candidate, outcome in lower_all(self.executor, candidates)}
        return {config: outcome.fingerprint for config, outcome in outcomes.items() if not isinstance(outcome, Failure)}

    def predictions(self, template: KernelTemplate, workload: Workload, configs: Sequence[Config]) -> dict[Config, Prediction]:
        """Of those configs that lower and fit the target."""
        found: dict[Config, Prediction] = {}
        for config, outcome in self._lowered(template, workload, configs):
            if not isinstance(outcome, Failure):
                with suppress(Exception):  # any profile may come here
                    found[config] = self._model.predict(outcome, self.where.target)
        return found

    def _lowered(
        self, template: KernelTemplate, workload: Workload, configs: Sequence[Config]
    ) -> Iterator[tuple[Config, tuple[KernelProfile, ...] | Failure]]:
        from .work import lower_all

        if configs:  # processes start when something must be lowered
            candidates = [Candidate(workload, self.where.target, template, config) for config in configs]
            for candidate, outcome in self._shared_lowering.lower(candidates, partial(lower_all, self.executor)):
                yield candidate.config, outcome if isinstance(outcome, Failure) else outcome.kernels

    def _request(self, template: KernelTemplate, workload: Workload, effort: Effort, where: Where, open: tuple[str, ...] = ()) -> Request:
        from .request import Request

        space = template.space(workload, where.target)
        context = find_context(template, workload, where, self._model.version, space, self.protocol, open)
        return Request(
            workload,
            where.target,
            template,
            space,
            context,
            effort,
            self.protocol,
            measures=bool(where.devices),
            seed=self.seed,
            sampler=self.sampler,
        )
