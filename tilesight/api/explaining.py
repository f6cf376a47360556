"""`explain`: what limits a config, and why it loses to the best that is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Failure, NoCandidateError, headline
from ..problem.candidate import Candidate
from ..problem.space import Config, Value
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..profile.values import KernelProfile
from ..records.session import Effort
from ..records.trial import Prediction
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import Shape, find_operator, find_template, find_workloads

if TYPE_CHECKING:
    from ..explanation import CandidateView, Explanation, MeasuredRows
    from .engine import Engine


def explain(
    kernel: str,
    target: str | Target | None = None,
    shape: Shape | None = None,
    *,
    config: str | Mapping[str, Value] | None = None,
    dtype: str | None = None,
    measured: str | Path | Sequence[str | Path] | None = None,
    database: str | None = None,
    layers: Sequence[str] | None = None,
    workers: int | None = None,
    observer: Observer | None = None,
) -> Explanation:
    """What limits a config and by how much, why it loses to the best that is known, and how sure the model
    is.

    Args:
        kernel, target, shape, dtype, database, layers, workers, observer: As for `tune`; of several default
            shapes the first.
        config: The config to explain; None: the best itself. The best is the fastest measured if the database
            has a complete session of this machine's device, else the one predicted fastest; if the space was
            never ranked, it is ranked now.
        measured: Datasets (files or folders) whose rows take the place of the database: their times, profiles
            and hardware counters.

    Raises:
        InputError: an argument is wrong, or the datasets have no row of the workload.
        NoCandidateError: the config cannot be lowered or predicted.
    """
    from ..explanation import explain as compare
    from ..explanation import find_steps, measured_rows
    from ..machine.placement import locate
    from .engine import Engine
    from .sessions import best_known

    operator = find_operator(kernel)
    placement = locate(target, measures=False)
    workload = find_workloads(operator, placement.target, shape, dtype)[0]
    template = find_template(operator, placement.target, workload.dtype)
    space = template.space(workload, placement.target)
    rows = None if measured is None else measured_rows(measured, workload, placement.target, template.version)
    wanted: Config | None = None
    if config is not None:
        wanted = space.read(config) if isinstance(config, str) else Config(config)
        if rows is None or wanted not in rows.times_us:
            space.check(wanted)
    options = TuneOptions.of(effort=Effort.PREDICT, database=database, layers=layers, workers=workers)
    with Engine(placement, options, observer) as engine:
        if rows is not None:
            best, times = rows.best, dict[Config, float | None](rows.times_us)
        else:
            result = best_known(engine, operator, workload)
            assert result.best is not None  # a session without one raises
            best, times = result.best.config, {t.config: t.measured_us for t in result.trials}
        lowered = _Lowerings(engine, template, workload)
        shown = list(dict.fromkeys([wanted or best, best]))
        views = _views(lowered, shown, times, rows)
        notes = []
        if rows is not None and rows.template_version != template.version:
            measured_code = {c: rows.fingerprints.get(c) for c in shown if c in rows.times_us}
            present_code = lowered.fingerprints(list(measured_code))
            if any(code is None or code != present_code.get(c) for c, code in measured_code.items()):
                name = template.name
                notes.append(
                    f"the rows were measured with another version of {name}, whose code is other code"
                )
        if len(views) == 1:
            return compare(workload, placement.target, views[0], None, (), notes)
        this, other = (v.prediction for v in views)
        steps = find_steps((wanted or best, this), (best, other), space, lowered.predictions, times)
        if notes and steps:
            notes[0] += "; the steps are predicted for the present version"
    return compare(workload, placement.target, views[0], views[1], steps, notes)


class _Lowerings:
    """Profiles, predictions and code of configs of one workload, lowered once each."""

    def __init__(self, engine: Engine, template: KernelTemplate, workload: Workload) -> None:
        from ..executor.shared_lowering import SharedLowering

        self.engine, self._template, self._workload = engine, template, workload
        self._shared = SharedLowering()

    def profiles(
        self, configs: Sequence[Config]
    ) -> Iterator[tuple[Config, tuple[KernelProfile, ...] | Failure]]:
        from ..executor.jobs import lower_all

        if configs:  # the first lowering starts processes
            run = partial(lower_all, self.engine.executor)
            for candidate, outcome in self._shared.lower(self._candidates(configs), run):
                yield candidate.config, outcome if isinstance(outcome, Failure) else outcome.kernels

    def predictions(self, configs: Sequence[Config]) -> dict[Config, Prediction]:
        """Of those configs that lower and fit the target."""
        found: dict[Config, Prediction] = {}
        for config, outcome in self.profiles(configs):
            if not isinstance(outcome, Failure):
                with suppress(Exception):  # the profile may be anything
                    found[config] = self.engine.model.predict(outcome, self.engine.placement.target)
        return found

    def fingerprints(self, configs: Sequence[Config]) -> dict[Config, str]:
        """Hashes of the code that is generated for those configs that lower, each lowered by itself."""
        from ..executor.jobs import lower_all

        outcomes = {
            c.config: outcome for c, outcome in lower_all(self.engine.executor, self._candidates(configs))
        }
        return {config: o.fingerprint for config, o in outcomes.items() if not isinstance(o, Failure)}

    def _candidates(self, configs: Sequence[Config]) -> list[Candidate]:
        target = self.engine.placement.target
        return [Candidate(self._workload, target, self._template, config) for config in configs]


def _views(
    lowered: _Lowerings,
    configs: Sequence[Config],
    measured_us: Mapping[Config, float | None],
    rows: MeasuredRows | None,
) -> list[CandidateView]:
    """`configs` as the model sees them, from their profiles in `rows` or lowered now.

    Raises `NoCandidateError` for a config that does not lower.
    """
    from ..costmodel.model import was_trained_on
    from ..explanation import view

    model, target = lowered.engine.model, lowered.engine.placement.target
    known = {c: kernels for c in configs if rows is not None and (kernels := rows.kernels(c)) is not None}
    found: dict[Config, CandidateView] = {}
    for config, outcome in [*known.items(), *lowered.profiles([c for c in configs if c not in known])]:
        if isinstance(outcome, Failure):
            raise NoCandidateError(
                f"config '{config}' cannot be explained: {outcome.kind}: {outcome.message}"
            )
        try:
            prediction = model.predict(outcome, target)
        except Exception as error:  # the profile may be anything
            raise NoCandidateError(
                f"config '{config}' cannot be explained: {headline(str(error))}"
            ) from error
        time_us = measured_us.get(config)
        if rows is None:
            found[config] = view(outcome, prediction, target, config, time_us)
        else:
            seen = rows.counters.get(config), rows.compiled.get(config)
            trained = config in rows.runs and was_trained_on(model, rows.runs[config])
            found[config] = view(outcome, prediction, target, config, time_us, *seen, trained)
    return [found[config] for config in configs]
