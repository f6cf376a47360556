"""Error messages for a space without legal configs, and for a session in which every candidate failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..errors import NoCandidateError, headline
from ..problem.rejections import rejections
from ..problem.space import SearchSpace
from ..problem.workload import Workload
from ..records.trial import TrialRecord
from ..target.spec import Target


def no_legal_config(workload: Workload, target: Target, space: SearchSpace) -> NoCandidateError:
    census = space.census()
    found = "; ".join(f"{r.count} break '{r.constraint}' (e.g. {r.example})" for r in rejections(space)[:3])
    return NoCandidateError(
        f"no candidate fits {workload.label} on {target.name}: of {census.size} configs "
        f"{found or 'none exists'}. "
        "Try another shape, dtype or target"
    )


def nothing_worked(
    workload: Workload, target: Target, trials: Iterable[TrialRecord], cut: bool
) -> NoCandidateError:
    """The error of a session without a working candidate. `cut`: the time budget ended it early."""
    records = list(trials)
    if not records:
        return NoCandidateError(
            f"{workload.label} on {target.name}: the time budget ended before any candidate was examined"
        )
    more = " The time budget ended the search early: try a larger --budget." if cut else ""
    first = next((t.failure for t in records if t.failure and t.failure.detail), None)
    output = " The output of the first failure is shown with --debug." if first else ""
    error = NoCandidateError(
        f"none of {len(records)} candidates for {workload.label} on {target.name} worked: "
        f"{common_failures(records)}.{output}{more}"
    )
    if first:
        error.add_note(f"{first.kind}: {first.message}\n{first.detail}")
    return error


def common_failures(trials: Iterable[TrialRecord]) -> str:
    """The three most frequent failures, with their counts."""
    lines = [(t.failure.kind.value, headline(t.failure.message)) for t in trials if t.failure]
    return "; ".join(f"{count} {kind}: {message}" for (kind, message), count in Counter(lines).most_common(3))
