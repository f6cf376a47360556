"""Evidence: the content of a database, and the differences between two states. Plain SQL, without TileSight's
code.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

STAGES = ("predicted", "built", "measured", "verified")


@dataclass(frozen=True)
class Trial:
    """The state of one trial."""

    status: str
    failure: str | None
    measured: bool


@dataclass(frozen=True)
class Evidence:
    """Facts by their ids, trials by session and config, and the answer of the latest complete session."""

    facts: frozenset[tuple[str, int]] = frozenset()
    trials: Mapping[tuple[int, str], Trial] = field(default_factory=dict)
    samplings: Mapping[tuple[str, int], int] = field(
        default_factory=dict
    )  # (config, minimum of samples) -> number of measurements
    complete: int | None = None  # id of the latest complete session
    states: tuple[str, ...] = ()

    @property
    def measured(self) -> int:
        return len({config for (_, config), trial in self.trials.items() if trial.measured})

    @property
    def tried(self) -> int:
        return len({config for _, config in self.trials})

    def answer(self) -> dict[str, Trial]:
        """The trials of the latest complete session, by config."""
        return {config: trial for (session, config), trial in self.trials.items() if session == self.complete}


def read(path: Path) -> Evidence:
    """The state of the database, also while other processes write; empty before its tables exist."""
    if not path.exists():
        return Evidence()
    with closing(
        sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30, isolation_level=None)
    ) as connection:
        connection.execute("BEGIN")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'trials'").fetchone():
            return Evidence()
        facts = {
            (table, row[0])
            for table in ("predictions", "builds", "measurements", "failure_reasons")
            for row in connection.execute(f"SELECT id FROM {table}")
        }
        trials = {
            (session, config): Trial(status, failure, samples not in (None, "[]"))
            for session, config, status, failure, samples in connection.execute(
                "SELECT t.session_id, c.config, t.status, f.kind, m.samples_us FROM trials t "
                "JOIN candidates c ON c.id = t.candidate_id "
                "LEFT JOIN failure_reasons f ON f.id = t.failure_id "
                "LEFT JOIN measurements m ON m.id = t.measurement_id"
            )
        }
        samplings = Counter(
            (config, int(json.loads(protocol)["min_samples"]))
            for config, protocol in connection.execute(
                "SELECT c.config, m.protocol FROM measurements m "
                "JOIN candidates c ON c.id = m.candidate_id WHERE m.sample_count > 0"
            )
        )
        sessions = connection.execute("SELECT id, state FROM sessions ORDER BY id").fetchall()
    complete = [session for session, state in sessions if state == "complete"]
    return Evidence(
        frozenset(facts),
        trials,
        dict(samplings),
        complete[-1] if complete else None,
        tuple(state for _, state in sessions),
    )


def lost(before: Evidence, after: Evidence) -> list[str]:
    """Facts, trials and reached stages that are in `before` and not in `after`."""
    missing = [f"{table} {row}" for table, row in sorted(before.facts - after.facts)]
    for (session, config), trial in before.trials.items():
        now = after.trials.get((session, config))
        if now is None or _stage(now) < _stage(trial) or (trial.measured and not now.measured):
            missing.append(f"{config} in session {session}: {trial} became {now}")
    return missing


def lost_in_answer(before: Evidence, after: Evidence) -> list[str]:
    """Trials and reached stages that are in `before` and not in the completed session of `after`."""
    answer, missing = after.answer(), []
    for (_, config), trial in before.trials.items():
        now = answer.get(config)
        if now is None or _stage(now) < _stage(trial) or (trial.measured and not now.measured):
            missing.append(f"{config}: {trial} is {now} in the answer")
    return missing


def measured_twice(evidence: Evidence) -> list[str]:
    """Candidates with several measurements for ranking; finalists have further ones with more samples."""
    least = min((samples for _, samples in evidence.samplings), default=0)
    return [
        f"{config}: {count} times"
        for (config, samples), count in evidence.samplings.items()
        if count > 1 and samples == least
    ]


def damage(path: Path) -> list[str]:
    """Findings of SQLite's own checks."""
    with closing(sqlite3.connect(path)) as connection:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        return found + [
            f"reference of {row[0]} {row[1]}" for row in connection.execute("PRAGMA foreign_key_check")
        ]


def _stage(trial: Trial) -> int:
    """The stage of a trial; a failed trial counts as the lowest, since it may be tried again."""
    return 0 if trial.status == "failed" else STAGES.index(trial.status)
