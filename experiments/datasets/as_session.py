"""Records one workload of a dataset as a session of a database, with what the shipped model predicts of it.

    python experiments/datasets/as_session.py experiments/datasets/h200/matmul-bf16.parquet M0 session.db

So everything that reads sessions (reports, `tilesight db query`, exports) can be tried on measured candidates
without a GPU. The three fastest candidates have the time that was taken in turns with the vendor's library,
and the fastest of them is the winner. The candidates are a stratified sample, not those of a search, and the
times at which the rows are written say nothing of the times of the measurements. The session's messages state
its origin.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tilesight.costmodel import default_model
from tilesight.costmodel.model import predict_many
from tilesight.database import open_store
from tilesight.errors import Failure, FailureKind, InputError
from tilesight.problem.config import Config
from tilesight.problem.space import Census
from tilesight.records.dataset import profiles_of, read_dataset, workload_of
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Baseline, Context, Decision, Effort, SessionState
from tilesight.records.trial import BuildResult, Measurement, Prediction, Status, TrialRecord
from tilesight.target.spec import Target, load_target


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("shape", help="as in the dataset's column `shape`")
    parser.add_argument("database", help="path of an SQLite file, or a URL")
    given = parser.parse_args()
    print(record(given.dataset, given.shape, given.database))


def record(dataset: Path, shape: str, database: str) -> int:
    """The id of the new session in `database`, which is made if it does not exist."""
    found = read_dataset(dataset)
    rows = found.frame[found.frame["shape"] == shape].to_dict("records")
    if not rows:
        raise InputError(
            f"{dataset} has no rows of shape '{shape}': {', '.join(found.frame['shape'].unique())}"
        )
    first, target, model = rows[0], load_target(rows[0]["target"]), default_model()
    run = found.metadata["runs"][first["run"]]
    context = _context(first, run, target, model.version)
    predictions = _predictions(rows, target)
    turns = {each["config"]: each["again_us"] for each in run["vendor"][first["workload"]]["fastest"]}
    trials = [_trial(row, predictions.get(row["config"]), turns.get(row["config"])) for row in rows]
    finalists = [trial for trial in trials if trial.measurement and trial.measurement.observed]
    fastest = min(finalists, key=lambda trial: trial.measured_us or 0.0)
    with open_store(database) as store:
        session = store.begin(
            context,
            Effort.FULL,
            0,
            {},
            Census(len(rows), len(rows), {}),
            flops=int(first["flops"]),
            min_bytes=int(first["min_bytes"]),
        )
        store.record_many(session, context, trials)
        store.record_baselines(session, [Baseline(first["vendor"], (float(first["vendor_us"]),))])
        message = f"a sample of {len(rows)} configs from {dataset.name}, not the candidates of a search"
        decision = Decision(fastest.config, reason="the fastest of three in turns with the vendor")
        store.finish(session, SessionState.COMPLETE, [message], decision=decision)
    return session


def _context(row: dict[str, Any], run: dict[str, Any], target: Target, model: str) -> Context:
    workload = workload_of(row)
    software = {name: version for name, version in run["environment"].items() if name != "device"}
    return Context(
        row["template"], row["template_version"], workload, target.name, target.fingerprint, target.arch,
        model, "", software, device=run["environment"]["device"], protocol=_protocol(run["protocol"]),
    )  # fmt: skip


def _protocol(conditions: dict[str, Any]) -> str:
    """The key of a run's conditions; that of runs before there were protocols is empty."""
    return MeasurementProtocol(**conditions).key if "l2" in conditions else ""


def _predictions(rows: list[dict[str, Any]], target: Target) -> dict[str, Prediction]:
    """By config, of the rows with a profile that the model takes for one that fits."""
    known = [row for row in rows if isinstance(row["profile"], str)]
    found = predict_many(default_model(), [profiles_of(row["profile"]) for row in known], target)
    pairs = zip(known, found, strict=True)
    return {row["config"]: answer for row, answer in pairs if isinstance(answer, Prediction)}


def _trial(row: dict[str, Any], prediction: Prediction | None, in_turns_us: float | None) -> TrialRecord:
    config = Config(json.loads(row["config"]))
    if row["status"] == "failed":
        failure = Failure(FailureKind(row["failure_kind"]), str(row["failure"]))
        return TrialRecord(config, Status.FAILED, prediction, failure=failure)
    samples = row["samples_us"] if in_turns_us is None else (in_turns_us,)
    measurement = Measurement(
        tuple(float(us) for us in samples),
        relative_error=float(row["relative_error"]),
        observed={} if in_turns_us is None else {"in_turns": 1.0},
    )
    resources = {
        name: int(row[name]) for name in ("registers", "spill_bytes", "smem_bytes") if row[name] == row[name]
    }
    build = BuildResult("of the dataset's run", entry="main", resources=resources)
    return TrialRecord(
        config, Status.VERIFIED, prediction, build, measurement, fingerprint=str(row["fingerprint"])
    )


if __name__ == "__main__":
    main()
