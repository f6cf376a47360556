"""The explanation of one config of a search space: it is lowered again, and so are the configs between it
and the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ..errors import Failure, NoCandidateError, headline
from ..problem.candidate import Candidate
from ..problem.space import Config, SearchSpace
from ..profile.values import KernelProfile
from ..records.trial import Prediction
from .comparison import Explanation, explain
from .config_path import find_steps
from .measured_rows import MeasuredRows
from .view import view
from .view_values import CandidateView

if TYPE_CHECKING:
    from ..costmodel.model import CostModel
    from ..executor.jobs import Executor


class ConfigLowerings:
    """Profiles, predictions and code of configs of one workload, lowered once each."""

    def __init__(
        self, executor: Callable[[], Executor], model: CostModel, candidate: Callable[[Config], Candidate]
    ) -> None:
        """
        Args:
            executor: called for the first lowering, which starts processes.
            model: predicts.
            candidate: the candidate of a config; all are of one workload and target.
        """
        from ..executor.shared_lowering import SharedLowering

        self.model, self.candidate = model, candidate
        self._executor, self._shared = executor, SharedLowering()

    def profiles(
        self, configs: Sequence[Config]
    ) -> Iterator[tuple[Config, tuple[KernelProfile, ...] | Failure]]:
        from ..executor.jobs import lower_all

        if configs:
            run = partial(lower_all, self._executor())
            for candidate, outcome in self._shared.lower(map(self.candidate, configs), run):
                yield candidate.config, outcome if isinstance(outcome, Failure) else outcome.kernels

    def predictions(self, configs: Sequence[Config]) -> dict[Config, Prediction]:
        """Of those configs that lower and fit the target."""
        found: dict[Config, Prediction] = {}
        for config, outcome in self.profiles(configs):
            if not isinstance(outcome, Failure):
                with suppress(Exception):  # the profile may be anything
                    found[config] = self.model.predict(outcome, self.candidate(config).target)
        return found

    def fingerprints(self, configs: Sequence[Config]) -> dict[Config, str]:
        """Hashes of the code that is generated for those configs that lower, each lowered by itself."""
        from ..executor.jobs import lower_all

        outcomes = {
            c.config: outcome for c, outcome in lower_all(self._executor(), map(self.candidate, configs))
        }
        return {config: o.fingerprint for config, o in outcomes.items() if not isinstance(o, Failure)}


def explain_config(
    lowered: ConfigLowerings,
    space: SearchSpace,
    config: Config,
    best: Config,
    times_us: Mapping[Config, float | None],
    rows: MeasuredRows | None = None,
    notes: Sequence[str] = (),
) -> Explanation:
    """What limits `config`, and what sets it apart from `best`, which may be the same.

    Args:
        lowered: lowers and predicts.
        space: the configs between the two are configs of it.
        config: the config to explain.
        best: the best known config.
        times_us: measured times; None for a config that was not measured.
        rows: rows of datasets, whose profiles and counters are used.
        notes: facts that a reader must know of the comparison.

    Raises:
        NoCandidateError: one of the two does not lower, or cannot be predicted.
    """
    views = _views(lowered, list(dict.fromkeys([config, best])), times_us, rows)
    candidate = lowered.candidate(config)
    workload, target = candidate.workload, candidate.target
    if len(views) == 1:
        return explain(workload, target, views[0], None, (), notes)
    this, other = (v.prediction for v in views)
    steps = find_steps((config, this), (best, other), space, lowered.predictions, times_us)
    return explain(workload, target, views[0], views[1], steps, notes)


def _views(
    lowered: ConfigLowerings,
    configs: Sequence[Config],
    measured_us: Mapping[Config, float | None],
    rows: MeasuredRows | None,
) -> list[CandidateView]:
    """`configs` as the model sees them, from their profiles in `rows` or lowered now."""
    from ..costmodel.model import was_trained_on

    model, target = lowered.model, lowered.candidate(configs[0]).target
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
