"""Recorded sessions: what the database knows of a session, and what sets two of them apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ..problem.space import Config
from ..reports.numbers import number
from ..reports.report import Report, Reported
from .session import Context, Effort, SessionResult, SessionState
from .trial import Status


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session in a list.

    Attributes:
        context_key: equal for sessions of equal contexts, `Context.key`.
        context: without the fingerprint of its search space, which is not recorded.
        counts: number of candidates by status.
        winner: the decision's winner, else the fastest verified candidate, else the best predicted one.
        winner_us: its time, measured if `is_measured`, else predicted.
        started_at, finished_at: UTC.
        seconds: how long it ran; 0 while it runs.
    """

    id: int
    context_key: str
    context: Context
    effort: Effort
    seed: int
    state: SessionState
    started_at: datetime
    finished_at: datetime | None
    seconds: float
    counts: Mapping[str, int]
    winner: Config | None
    winner_us: float | None
    is_measured: bool


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """When the results of a candidate were recorded, in UTC. Recalled ones are older than the session.

    Attributes:
        lowered_at: the first prediction under the session's model, or, without any, the failure; a candidate
            is predicted as soon as it is lowered.
        predicted_at: the prediction that holds; that of a built candidate may be a later one.
        built_at: the build.
        measured_at: the measurement.
    """

    predicted_at: datetime | None = None
    measured_at: datetime | None = None
    lowered_at: datetime | None = None
    built_at: datetime | None = None


@dataclass(frozen=True, repr=False)
class RecordedSession(Reported):
    """A session with its candidates. `print` shows it as `tilesight sessions show` does."""

    summary: SessionSummary
    result: SessionResult
    trial_times: Mapping[Config, TrialTimes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"RecordedSession({self.summary.id}: {self.result.summary})"

    @property
    def phases(self) -> dict[str, int]:
        """Number of candidates that came through each phase."""
        trials = self.result.trials
        compared = [t for t in trials if t.measurement and t.measurement.observed.get("in_turns")]
        return {
            "predicted": sum(t.prediction is not None for t in trials),
            "built": sum(t.build is not None and t.build.artifact is not None for t in trials),
            "measured": sum(t.measurement is not None for t in trials),
            "compared": len(compared),
            "failed": sum(t.status is Status.FAILED for t in trials),
        }

    def report(self, top: int = 10) -> Report:
        """When and under what it ran, its phases, its finalists, and the report of its result.

        `top`: largest number of candidates to show.
        """
        report, found, context = Report(), self.summary, self.summary.context
        ended = f" in {found.seconds:.1f} s" if found.finished_at else ""
        report.text(
            f"session {found.id}: began {found.started_at:%Y-%m-%d %H:%M} UTC, {found.state.value}{ended}",
            bold=True,
        )
        report.text(f"effort {found.effort.value}, seed {found.seed}, model {context.model}")
        report.text(f"template {context.template} {context.template_version}, target {context.target}")
        if context.software:
            report.text("software: " + ", ".join(f"{n} {v}" for n, v in sorted(context.software.items())))
        report.text("phases: " + ", ".join(f"{count} {phase}" for phase, count in self.phases.items()))
        decision = self.result.decision
        if decision is not None:
            count = 1 + len(decision.tied)
            report.text(f"winner, of {count} finalists that cannot be distinguished: {decision.reason}")
            for config in (decision.winner, *decision.tied):
                report.line(f"  {config}")
        report.text()
        report.add(self.result.report(top))
        return report


@dataclass(frozen=True, slots=True)
class SessionDifference:
    """A fact of two sessions that differs. `kind` is context, space, run, winner or time."""

    kind: str
    name: str
    first: str
    second: str


@dataclass(frozen=True, repr=False)
class SessionComparison(Reported):
    """Two sessions and what sets them apart. `print` shows it as `tilesight sessions compare` does."""

    first: RecordedSession
    second: RecordedSession

    def __repr__(self) -> str:
        ids = f"{self.first.summary.id}, {self.second.summary.id}"
        return f"SessionComparison({ids}: {len(self.differences)} differences)"

    @property
    def differences(self) -> tuple[SessionDifference, ...]:
        """What differs: context, search space, how they ran, winners and times."""
        facts = [_facts(session) for session in (self.first, self.second)]
        names = dict.fromkeys([*facts[0], *facts[1]])
        pairs = ((kind, name, facts[0].get((kind, name)), facts[1].get((kind, name))) for kind, name in names)
        return tuple(
            SessionDifference(kind, name, first or "-", second or "-")
            for kind, name, first, second in pairs
            if first != second
        )

    @property
    def times(self) -> tuple[tuple[Config, float | None, float | None], ...]:
        """The winners of both sessions, each with its measured time in the first and in the second one."""
        winners = [s.summary.winner for s in (self.first, self.second) if s.summary.winner is not None]
        return tuple(
            (config, _measured_us(self.first, config), _measured_us(self.second, config))
            for config in dict.fromkeys(winners)
        )

    def report(self) -> Report:
        """A table of differences, and the times of both winners in both sessions."""
        report, found = Report(), self.differences
        ids = [str(session.summary.id) for session in (self.first, self.second)]
        same = self.first.summary.context_key == self.second.summary.context_key
        one = "They have one context: one can answer for the other" if same else "Their contexts differ"
        report.text(f"sessions {ids[0]} and {ids[1]}. {one}.", bold=True)
        report.text()
        rows = [[d.kind, d.name, d.first, d.second] for d in found]
        report.table(["", "what differs", *ids], rows, folded=ids)
        if self.times:
            report.text()
            columns = [f"us in {ids[0]}", f"us in {ids[1]}"]
            times = [[number(a), number(b), config] for config, a, b in self.times]
            report.table([*columns, "measured winner"], times, right=columns, folded=["measured winner"])
        return report


def _facts(session: RecordedSession) -> dict[tuple[str, str], str]:
    return {(kind, name): text for kind, name, text in _listed(session)}


def _listed(session: RecordedSession) -> Iterator[tuple[str, str, str]]:
    """All facts of a session that can differ: kind, name and text."""
    found, context, census = session.summary, session.summary.context, session.result.census
    yield "context", "workload", context.workload.key
    yield "context", "template", f"{context.template} {context.template_version}"
    yield "context", "target", f"{context.target} {context.target_fingerprint} ({context.arch})"
    yield "context", "device", context.device or "none"
    yield "context", "protocol", context.protocol or "none"
    yield "context", "model", context.model
    yield "context", "dynamic", ", ".join(context.dynamic) or "none"
    for name, version in sorted(context.software.items()):
        yield "context", name, version
    yield "space", "legal configs", f"{census.legal} of {census.size}"
    yield "run", "effort", found.effort.value
    yield "run", "seed", str(found.seed)
    yield "run", "state", found.state.value
    yield "run", "seconds", f"{found.seconds:.1f}"
    for phase, count in session.phases.items():
        yield "run", phase, str(count)
    for name, value in (found.winner or {}).items():
        yield "winner", name, str(value)
    known = "measured" if found.is_measured else "predicted"
    yield "time", f"winner, {known} us", number(found.winner_us)
    for baseline in session.result.baselines:
        yield "time", f"{baseline.name}, us", number(baseline.latency_us)


def _measured_us(session: RecordedSession, config: Config) -> float | None:
    return next((t.measured_us for t in session.result.trials if t.config == config), None)
