"""Kills processes of sessions at random moments, and checks that nothing is lost.

    python experiments/crash_recovery/kill.py OUT.csv [--kills 50] [--seed 0] [--effort full] [--shape
    m=32,n=32,k=32]

A session is `tilesight tune matmul --target cpu` with a database and a kernel cache of its own. At random
moments one of
its processes gets SIGKILL: in turns the main process, a worker that lowers and builds, a worker that
    measures, the fork server, a compiler. If that ends the command, it is started again until it completes.
    Then these questions are answered: is everything that was committed before each kill in the database and
    in the completed session? Was nothing measured twice? Did every process end, is the database intact, and
    were the same configs tried as in an undisturbed session?

Linux only (/proc). It runs at low priority.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import evidence
from processes import MARK, Process, Session, kill

KINDS = ("main", "lowering worker", "measuring worker", "fork server", "compiler")
LIMIT_S = 300.0  # of one command
MAX_KILLS = 4  # of one session
SHARE = 0.4  # of an undisturbed session's time: the longest delay before a kill
RESTARTS = MAX_KILLS + 2
GRACE_S = 10.0  # for the processes below a killed process to end
POLL_S = 0.04


@dataclass
class Row:
    """One kill. The fields from `restarts` on are about its whole completed session."""

    kill: int
    session: int
    kind: str
    name: str
    moment_s: float  # since the session was first started
    phase: str  # from the records: nothing, exploring, building, measuring
    tried_before: int
    measured_before: int
    exit_code: str  # of the command, if the kill ended it
    lost_at_once: int
    gone_after_s: float  # if the kill ended it: until none of its processes was left
    restarts: int = 0
    seconds: float = 0.0
    tried: int = 0
    measured: int = 0
    lost: int = 0
    measured_twice: int = 0
    orphans: int = 0
    blamed: int = 0  # candidates that failed because of a kill
    damage: int = 0
    states: str = ""
    verdict: str = ""


class Command:
    """`tilesight tune` in a folder of its own, which may be started several times."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.database = folder / "performance.db"
        self.arguments = [
            sys.executable,
            "-m",
            "tilesight.cli.main",
            "tune",
            "matmul",
            "--target",
            "cpu",
            "--json",
        ]
        self.arguments += ["--db", str(self.database), *arguments]
        self.began = time.monotonic()
        self.environment = {**os.environ, MARK: self.mark, "TILESIGHT_CACHE_DIR": str(folder / "cache")}

    def start(self) -> tuple[subprocess.Popen[bytes], Session]:
        with (self.folder / "out.json").open("wb") as out, (self.folder / "errors.txt").open("ab") as errors:
            process = subprocess.Popen(
                self.arguments, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, env=self.environment
            )
        return process, Session(process.pid, self.mark)

    def finish(self, process: subprocess.Popen[bytes], session: Session) -> int:
        """Wait for the command, and kill it after LIMIT_S. Returns its exit code."""
        until = time.monotonic() + LIMIT_S
        while process.poll() is None:
            session.running()
            if time.monotonic() > until:
                process.kill()
            time.sleep(0.1)
        return process.returncode

    def answer(self) -> dict[str, Any] | None:
        try:
            (found,) = json.loads((self.folder / "out.json").read_text())["sessions"]
        except (ValueError, KeyError):
            return None
        return dict(found)


def wait_until_gone(session: Session) -> tuple[list[Process], float]:
    """Wait until a session's processes have ended: (processes left after GRACE_S, seconds)."""
    begin = time.monotonic()
    while (left := session.running()) and time.monotonic() - begin < GRACE_S:
        time.sleep(POLL_S)
    for process in left:
        kill(process)
    return left, time.monotonic() - begin


def undisturbed(folder: Path, arguments: list[str]) -> tuple[evidence.Evidence, float]:
    command = Command(folder, arguments)
    begin = time.monotonic()
    code = command.finish(*command.start())
    if code:
        sys.exit(
            f"the undisturbed session ended with exit code {code}:\n{(folder / 'errors.txt').read_text()}"
        )
    return evidence.read(command.database), time.monotonic() - begin


def kill_one(
    process: subprocess.Popen[bytes],
    session: Session,
    database: Path,
    kind: str,
    delay_s: float,
    rng: random.Random,
) -> Any:
    """Kill a process of `kind` after `delay_s`. Returns the process and the evidence just before, or None if
    the command ended first.
    """
    until = time.monotonic() + delay_s
    while process.poll() is None:
        victims = session.kinds().get(kind, []) if time.monotonic() >= until else session.running() and []
        if victims:
            victim, before = rng.choice(victims), evidence.read(database)
            if kill(victim):
                return victim, before
        time.sleep(0.002 if kind == "compiler" else POLL_S)
    return None


@dataclass
class Case:
    """One session with its kills."""

    number: int
    command: Command
    usual: evidence.Evidence
    usual_s: float

    def __post_init__(self) -> None:
        self.rows: list[Row] = []
        self.befores: list[evidence.Evidence] = []
        self.orphans: list[Process] = []
        self.restarts = 0

    def run(self, first: int, most: int, rng: random.Random) -> list[Row]:
        """Up to `most` kills, numbered from `first`."""
        process, session = self.command.start()
        while len(self.rows) < most:
            number = first + len(self.rows)
            kind = KINDS[number % len(KINDS)]
            killed = kill_one(
                process, session, self.command.database, kind, rng.random() * SHARE * self.usual_s, rng
            )
            if killed is None:
                break
            row = self.add_row(number, kind, *killed)
            if kind == "main":
                process, session = self.restart(process, session, row)
        while self.command.finish(process, session) and self.rows and self.restarts < RESTARTS:
            process, session = self.restart(process, session, self.rows[-1])
        self.end(process, session)
        self.judge()
        return self.rows

    def add_row(self, number: int, kind: str, victim: Process, before: evidence.Evidence) -> Row:
        statuses = {trial.status for trial in before.trials.values()}
        phase = (
            "measuring"
            if before.measured
            else "building"
            if "built" in statuses
            else "exploring"
            if statuses
            else "nothing"
        )
        moment_s = round(time.monotonic() - self.command.began, 2)
        lost = len(evidence.lost(before, evidence.read(self.command.database)))
        self.befores.append(before)
        self.rows.append(
            Row(
                number,
                self.number,
                kind,
                victim.name,
                moment_s,
                phase,
                before.tried,
                before.measured,
                "",
                lost,
                0.0,
            )
        )
        return self.rows[-1]

    def end(self, process: subprocess.Popen[bytes], session: Session) -> float:
        """Wait until all processes are gone. Returns the seconds that it took."""
        process.wait()
        left, seconds = wait_until_gone(session)
        self.orphans += left
        return seconds

    def restart(
        self, process: subprocess.Popen[bytes], session: Session, row: Row
    ) -> tuple[subprocess.Popen[bytes], Session]:
        row.gone_after_s = round(self.end(process, session), 2)
        row.exit_code = str(process.returncode)
        self.restarts += 1
        return self.command.start()

    def judge(self) -> None:
        """Fill in the fields about the whole session."""
        after, answer = evidence.read(self.command.database), self.command.answer()
        twice, damage = evidence.measured_twice(after), evidence.damage(self.command.database)
        usual, found = self.usual.answer(), after.answer()
        shared = (
            [f"measured twice: {what}" for what in twice]
            + damage
            + [f"orphan {p.name} {p.pid}" for p in self.orphans]
        )
        if answer is None or answer["state"] != "complete" or not answer["is_measured"]:
            shared.append("no complete answer")
        if set(found) != set(usual):
            shared.append(
                f"{len(set(usual) ^ set(found))} configs differ from those of the undisturbed session"
            )
        for row, before in zip(self.rows, self.befores, strict=True):
            lost = [*evidence.lost(before, after), *evidence.lost_in_answer(before, after)]
            problems = (
                [f"lost: {what}" for what in lost] + (["lost at once"] if row.lost_at_once else []) + shared
            )
            row.restarts, row.seconds = self.restarts, round(time.monotonic() - self.command.began, 1)
            row.tried, row.measured, row.lost, row.measured_twice = (
                after.tried,
                after.measured,
                len(lost),
                len(twice),
            )
            row.orphans, row.damage, row.states = len(self.orphans), len(damage), " ".join(after.states)
            row.blamed = sum(
                trial.status == "failed" and usual.get(c, trial).status != "failed"
                for c, trial in found.items()
            )
            row.verdict = "ok" if not problems else "; ".join(problems)[:500]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Kill processes of sessions at random moments, and check that nothing is lost."
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effort", default="full")
    parser.add_argument("--shape", default="m=32,n=32,k=32")
    options = parser.parse_args()
    os.nice(5)
    arguments = ["--effort", options.effort, "--shape", options.shape, "--workers", "2"]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        usual, usual_s = undisturbed(Path(folder), arguments)
        print(f"undisturbed: {usual_s:.1f} s, {usual.tried} tried, {usual.measured} measured", flush=True)
        for number in itertools.count():
            if len(rows) >= options.kills:
                break
            (case_folder := Path(folder) / str(number)).mkdir()
            case = Case(number, Command(case_folder, arguments), usual, usual_s)
            found = case.run(
                len(rows),
                min(MAX_KILLS, options.kills - len(rows)),
                random.Random(f"{options.seed} {number}"),
            )
            rows += found
            writer.writerows(map(asdict, found))
            file.flush()
            for row in found:
                print(
                    f"{row.kill}: {row.kind} ({row.name}) at {row.moment_s} s, {row.phase}: {row.verdict}",
                    flush=True,
                )
            shutil.rmtree(case_folder)
    fine = sum(row.verdict == "ok" for row in rows)
    print(
        f"{fine} of {len(rows)} kills: nothing lost, nothing measured twice, no orphan, "
        "database intact, session complete"
    )
    return 0 if fine == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
