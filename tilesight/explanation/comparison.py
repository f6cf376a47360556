"""A candidate beside a better one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..costmodel.hybrid import CORRECTION
from ..space import Value
from ..target import Target
from ..trial import ORDER_TERM
from ..workload import Workload
from .steps import Step
from .values import View

SAME = 0.02  # quantities that differ by less than this share are not worth a line


@dataclass(frozen=True, slots=True)
class Difference:
    """The same quantity of two candidates; `kind` is parameter, term (microseconds), launch or quantity (whole grid)."""

    kind: str
    name: str
    this: Value | float | None
    best: Value | float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """`best` is None where the candidate is itself the best that is known. `differences` go by kind, largest first; `steps`
    lead from the candidate to the best. `lesson` names the change that brings most, `verdict` says what the model's gap
    between the two is worth, `notes` what a reader must know of the comparison."""

    workload: Workload
    target: Target
    this: View
    best: View | None
    differences: tuple[Difference, ...]
    steps: tuple[Step, ...] = ()
    lesson: str = ""
    verdict: str = ""
    notes: tuple[str, ...] = ()


def explain(
    workload: Workload, target: Target, this: View, best: View | None, steps: Sequence[Step] = (), notes: Sequence[str] = ()
) -> Explanation:
    """`this`, and what sets it apart from `best`."""
    if best is None or best.config == this.config:
        return Explanation(workload, target, this, None, (), notes=tuple(notes))
    lesson, verdict = _lesson(this, steps), _verdict(this, best)
    return Explanation(workload, target, this, best, tuple(_differences(this, best)), tuple(steps), lesson, verdict, tuple(notes))


def _lesson(this: View, steps: Sequence[Step]) -> str:
    """The step that is predicted to bring most, where there is one."""
    before = [this.prediction.latency_us, *(step.predicted_us for step in steps)]
    gains = [a - b for a, b in pairwise(before)]
    whole = before[0] - before[-1]
    if not steps or whole <= SAME * before[0]:
        return ""
    place = max(range(len(gains)), key=lambda i: gains[i])
    changed = ", ".join(f"{name} {_shown(a)} -> {_shown(b)}" for name, (a, b) in steps[place].changes.items())
    fallen = [t for t in steps[place].terms if t.after_us < t.before_us]
    why = f": {fallen[0].name} falls from {fallen[0].before_us:.4g} to {fallen[0].after_us:.4g} us" if fallen else ""
    apart = "" if len(steps) == 1 else f" (the two are {whole:.4g} us apart)"
    return f"Largest step: {changed}, {gains[place]:.4g} us faster{apart}{why}."


def _shown(value: Value | None) -> str:
    """As `--config` spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _verdict(this: View, best: View) -> str:
    """Whether the model tells the two apart. Both are of one kernel, so their errors mostly go the same way: the spread of
    one time is more than that of their ratio."""
    ratio = this.prediction.latency_us / best.prediction.latency_us
    spread = 1 + max(this.prediction.uncertainty, best.prediction.uncertainty)
    if this.measured_us and best.measured_us:
        measured = this.measured_us / best.measured_us
        trained = " It was trained on both." if this.is_training_row and best.is_training_row else ""
        return f"The model puts a factor of {ratio:.2f} between the two, the clock {measured:.2f}.{trained}"
    if ratio < 1 and this.prediction.ranking_us > best.prediction.ranking_us:
        return (
            f"The predicted time of this one is shorter ({1 / ratio:.2f}x), and yet the model puts it behind: only a measurement decides."
        )
    if ratio < 1:
        return f"The model expects this one to be faster ({1 / ratio:.2f}x), and it was not measured: measure it."
    if ratio > spread:
        return f"The gap of {ratio:.2f}x is more than the spread of a prediction ({spread:.2f}x)."
    return f"The gap of {ratio:.2f}x lies within the spread of a prediction ({spread:.2f}x): only a measurement decides."


def _differences(this: View, best: View) -> list[Difference]:
    a, b = dict(this.config or {}), dict(best.config or {})
    found = [Difference("parameter", name, a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)]
    tables = (
        ("term", this.prediction.terms_us, best.prediction.terms_us),
        ("launch", this.launch, best.launch),
        ("quantity", _whole(this), _whole(best)),
    )
    for kind, of_this, of_best in tables:
        pairs = [(name, of_this.get(name, 0.0), of_best.get(name, 0.0)) for name in {**of_this, **of_best}]
        if kind == "term":
            # an error of the other terms is no reason of its own, and what only orders candidates no part of the time
            pairs = [pair for pair in pairs if pair[0] not in (CORRECTION, ORDER_TERM)]
            pairs.sort(key=lambda pair: -abs(pair[1] - pair[2]))  # microseconds weigh by their amount
        else:
            pairs.sort(key=lambda pair: -abs(pair[1] - pair[2]) / max(pair[1], pair[2], 1e-9))
        found += [Difference(kind, name, x, y) for name, x, y in pairs if abs(x - y) > SAME * max(abs(x), abs(y))]
    return found


def _whole(side: View) -> dict[str, float]:
    """Quantities of all roles over the whole grid: blocks of different size become comparable."""
    total: dict[str, float] = defaultdict(float)
    for asked in side.asked:
        for name, amount in asked.quantities.items():
            total[name] += amount * side.launch["blocks"]
    return total
