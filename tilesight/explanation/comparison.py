"""Comparison of a candidate with a better one: their differences, the path between them, and a verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ..costmodel.learned.hybrid import CORRECTION
from ..problem.space import Value
from ..problem.workload import Workload
from ..records.trial import ORDER_TERM
from ..reports.numbers import rounded
from ..reports.report import Report, Reported
from ..target.spec import Target
from .config_path import Step
from .own_configs import OwnConfig
from .view_values import CandidateView

if TYPE_CHECKING:
    from pandas import DataFrame

SAME = 0.02  # quantities that differ by a smaller share are left out


@dataclass(frozen=True, slots=True)
class CandidateDifference:
    """A quantity of two candidates; `kind` is parameter, term (us), launch or quantity (whole grid)."""

    kind: str
    name: str
    this: Value | float | None
    best: Value | float | None


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Reported):
    """A candidate, the best known one, and what sets them apart. `print` shows what `tilesight explain` does.

    Attributes:
        workload: None for a kernel of which nothing but its IR is known.
        best: None if the candidate is the best known one itself, or no other one is known.
        differences: grouped by kind, the largest first.
        steps: the path from the candidate to the best one.
        largest_step: a sentence on the change that brings most.
        verdict: a sentence on how far the model can tell the two apart.
        notes: facts that a reader must know of the comparison.
        kernel: name of a kernel without a workload.
        own_configs: of such a kernel's own `@autotune`, if this one was chosen among them by prediction.
    """

    workload: Workload | None
    target: Target
    this: CandidateView
    best: CandidateView | None
    differences: tuple[CandidateDifference, ...]
    steps: tuple[Step, ...] = ()
    largest_step: str = ""
    verdict: str = ""
    notes: tuple[str, ...] = ()
    kernel: str = ""
    own_configs: tuple[OwnConfig, ...] = ()

    @property
    def title(self) -> str:
        """The workload, or the name of a kernel without one."""
        return self.kernel if self.workload is None else self.workload.label

    def __repr__(self) -> str:
        config = "" if self.this.config is None else f"{self.this.config}, "
        return (
            f"Explanation({self.title} on {self.target.name}: {config}largest cost: {self.this.largest_cost})"
        )

    def report(self) -> Report:
        """The report of `tilesight explain`."""
        from .explanation_report import explanation_report

        return explanation_report(self)

    def to_frame(self) -> DataFrame:
        """One row for each resource and latency of the candidate.

        Columns: `resource`, `busy` (predicted share of the time, 0 .. 1; none for a latency), `without_us`
        (predicted time if it cost nothing), `gain` (the share of the time that this saves).
        """
        import pandas as pd

        shares = {use.resource: use.share for use in self.this.uses}
        limits = {limit.name: limit for limit in self.this.limits.limits}
        return pd.DataFrame(
            {
                "resource": name,
                "busy": shares.get(name),
                "without_us": limits[name].without_us if name in limits else None,
                "gain": limits[name].gain if name in limits else None,
            }
            for name in dict.fromkeys([*shares, *limits])
        )


def explain(
    workload: Workload,
    target: Target,
    this: CandidateView,
    best: CandidateView | None,
    steps: Sequence[Step] = (),
    notes: Sequence[str] = (),
) -> Explanation:
    """The explanation of `this`, compared with `best` unless that is None or the same config."""
    if best is None or best.config == this.config:
        return Explanation(workload, target, this, None, (), notes=tuple(notes))
    largest_step, verdict = _largest_step(this, steps), _verdict(this, best)
    return Explanation(
        workload,
        target,
        this,
        best,
        tuple(_differences(this, best)),
        tuple(steps),
        largest_step,
        verdict,
        tuple(notes),
    )


def _largest_step(this: CandidateView, steps: Sequence[Step]) -> str:
    """A sentence on the step with the largest predicted gain; "" if there is none."""
    before = [this.prediction.latency_us, *(step.predicted_us for step in steps)]
    gains = [a - b for a, b in pairwise(before)]
    whole = before[0] - before[-1]
    if not steps or whole <= SAME * before[0]:
        return ""
    largest = max(range(len(gains)), key=lambda i: gains[i])
    changed = ", ".join(
        f"{name} {_shown(a)} -> {_shown(b)}" for name, (a, b) in steps[largest].changes.items()
    )
    fallen = [t for t in steps[largest].terms if t.after_us < t.before_us]
    why = (
        f": {fallen[0].name} falls from {rounded(fallen[0].before_us)} to {rounded(fallen[0].after_us)} us"
        if fallen
        else ""
    )
    apart = "" if len(steps) == 1 else f" (the two are {rounded(whole)} us apart)"
    return f"Largest step: {changed}, {rounded(gains[largest])} us faster{apart}{why}."


def _shown(value: Value | None) -> str:
    """The value as `--config` spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _verdict(this: CandidateView, best: CandidateView) -> str:
    """A sentence on whether the model tells the two apart.

    The errors of two configs of one kernel mostly have the same sign, so the spread of one time is an upper
    bound of the spread of their ratio.
    """
    ratio = this.prediction.latency_us / best.prediction.latency_us
    spread = 1 + max(this.prediction.uncertainty, best.prediction.uncertainty)
    if this.measured_us and best.measured_us:
        measured = this.measured_us / best.measured_us
        trained = " It was trained on both." if this.is_training_row and best.is_training_row else ""
        return (
            f"The model puts a factor of {ratio:.2f} between the two, the measurements "
            f"{measured:.2f}.{trained}"
        )
    if ratio < 1 and this.prediction.ranking_us > best.prediction.ranking_us:
        return (
            f"The predicted time of this one is shorter ({1 / ratio:.2f}x), but its ranking score is worse: "
            "only a measurement decides."
        )
    if ratio < 1:
        return (
            f"The model expects this one to be faster ({1 / ratio:.2f}x), but it was not measured: measure "
            "it."
        )
    if ratio > spread:
        return f"The gap of {ratio:.2f}x is more than the spread of a prediction ({spread:.2f}x)."
    return (
        f"The gap of {ratio:.2f}x lies within the spread of a prediction ({spread:.2f}x): only a measurement "
        "decides."
    )


def _differences(this: CandidateView, best: CandidateView) -> list[CandidateDifference]:
    a, b = dict(this.config or {}), dict(best.config or {})
    found = [
        CandidateDifference("parameter", name, a.get(name), b.get(name))
        for name in {**a, **b}
        if a.get(name) != b.get(name)
    ]
    tables = (
        ("term", this.prediction.terms_us, best.prediction.terms_us),
        ("launch", this.launch, best.launch),
        ("quantity", _whole(this), _whole(best)),
    )
    for kind, of_this, of_best in tables:
        pairs = [(name, of_this.get(name, 0.0), of_best.get(name, 0.0)) for name in {**of_this, **of_best}]
        if kind == "term":
            # corrections are errors of other terms, and the ranking term is no part of the time
            pairs = [pair for pair in pairs if pair[0] not in (CORRECTION, ORDER_TERM)]
            pairs.sort(key=lambda pair: -abs(pair[1] - pair[2]))  # by microseconds
        else:
            pairs.sort(key=lambda pair: -abs(pair[1] - pair[2]) / max(pair[1], pair[2], 1e-9))
        found += [
            CandidateDifference(kind, name, x, y)
            for name, x, y in pairs
            if abs(x - y) > SAME * max(abs(x), abs(y))
        ]
    return found


def _whole(side: CandidateView) -> dict[str, float]:
    """Quantities of all roles over the whole grid, comparable between blocks of different size."""
    total: dict[str, float] = defaultdict(float)
    for work in side.requested:
        for name, amount in work.quantities.items():
            total[name] += amount * side.launch["blocks"]
    return total
