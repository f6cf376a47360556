"""Kill writers at random moments, and look whether anything is lost or half there.

    python experiments/database/kill.py kills.csv --rounds 50 --seed 1

In each round one to eight processes record measured trials into one SQLite file, each trial in a transaction
of its own, and write down the number of each once `Store.record` has returned, with a plain write() that
outlives them. They get SIGKILL, all at the same random moment. Then the file is looked at in plain SQL,
without TileSight's code:

    lost      numbers that were written down and are not in the file
    unsaid    records in the file that nobody had time to write down: at most one a process
    partial   trials that lack a fact they refer to, or whose facts differ from what was recorded
    damage    what SQLite's `integrity_check` and `foreign_key_check` say

The file grows from round to round, so that kills meet splits and checkpoints of a file of some size, too.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from records import context, trials, where_and_when

from tilesight.database import open_store
from tilesight.problem.space import Census
from tilesight.problem.workload import Workload
from tilesight.records.session import Effort

PARTS = """
SELECT t.session_id, c.config, t.status, p.latency_us, b.artifact, m.samples_us, m.sample_count, f.kind
FROM trials t JOIN candidates c ON c.id = t.candidate_id
LEFT JOIN predictions p ON p.id = t.prediction_id AND p.candidate_id = c.id
LEFT JOIN builds b ON b.id = t.build_id AND b.candidate_id = c.id
LEFT JOIN measurements m ON m.id = t.measurement_id AND m.candidate_id = c.id
LEFT JOIN failure_reasons f ON f.id = t.failure_id
WHERE t.session_id = ?
"""


def main(out: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        database = Path(folder, "x.db")
        open_store(str(database)).close()
        for number in range(rounds):
            rows.append({**where_and_when(), "round": number, **kill(database, Path(folder), rng)})
            print(rows[-1], flush=True)
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def kill(database: Path, folder: Path, rng: random.Random) -> dict[str, object]:
    journals = [folder / f"journal{number}" for number in range(rng.choice((1, 2, 4, 8)))]
    for journal in journals:
        journal.unlink(missing_ok=True)
    commands = [
        [sys.executable, __file__, "--writer", str(database), str(journal), str(rng.getrandbits(60))]
        for journal in journals
    ]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    sessions = [int(writer.stdout.readline()) for writer in writers if writer.stdout is not None]
    seconds = rng.uniform(0.02, 2.0)
    time.sleep(seconds)
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
    for writer in writers:
        assert writer.wait() == -signal.SIGKILL, "a writer had died by itself"
    said = [len(journal.read_bytes().splitlines()) if journal.exists() else 0 for journal in journals]
    lost = unsaid = partial = 0
    with closing(sqlite3.connect(database)) as connection:
        for session, count in zip(sessions, said, strict=True):
            found = connection.execute(PARTS, (session,)).fetchall()
            numbers = {int(config.split('"number":')[1].split(",")[0]) for _, config, *_ in found}
            lost += len(set(range(count)) - numbers)
            unsaid += len(numbers - set(range(count)))
            partial += sum(not is_whole(*row[2:]) for row in found)
        damage = [row for row in connection.execute("PRAGMA integrity_check") if row != ("ok",)]
        damage += connection.execute("PRAGMA foreign_key_check").fetchall()
        records = connection.execute("SELECT COUNT(*) FROM trials").fetchone()[0]
    facts = {
        "writers": len(writers),
        "killed_after_s": round(seconds, 3),
        "said": sum(said),
        "lost": lost,
        "unsaid": unsaid,
    }
    is_fine = not (lost or partial or damage or unsaid > len(writers))
    return {
        **facts,
        "partial": partial,
        "damage": len(damage),
        "records": records,
        "verdict": "ok" if is_fine else "BAD",
    }


def is_whole(
    status: str, predicted_us: float, artifact: str, samples: str, count: int, kind: str | None
) -> bool:
    if predicted_us is None or artifact is None:
        return False
    return (
        (count == 40 and samples.count(",") == 39 and kind is None)
        if status == "verified"
        else (kind == "run_error" and count == 0)
    )


def write(database: str, journal: str, seed: str) -> None:
    rng = random.Random(seed)
    recorded_in = context(
        Workload("matmul", {"m": rng.randrange(1, 2**20), "n": rng.randrange(1, 2**20), "k": 64}, "bfloat16")
    )
    listed = list(trials(rng, 5000))
    with open_store(database) as store:
        session_id = store.begin(recorded_in, Effort.QUICK, 0, {}, Census(1, 1, {}))
        file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        print(session_id, flush=True)
        for number, trial in enumerate(listed):
            store.record(session_id, recorded_in, trial)
            os.write(file, f"{number}\n".encode())
        time.sleep(60)  # for the kill


if __name__ == "__main__":
    if sys.argv[1] == "--writer":
        write(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("out", type=Path)
        parser.add_argument("--rounds", type=int, default=50)
        parser.add_argument("--seed", type=int, default=1)
        arguments = parser.parse_args()
        main(arguments.out, arguments.rounds, arguments.seed)
