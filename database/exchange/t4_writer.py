"""Export of one session to T4, the open format of auto-tuning results that Kernel Tuner writes.

Version 1.0.0 of its schema: https://github.com/KernelTuner/kernel_tuner, kernel_tuner/schema/T4. A document
is `{"schema_version": "1.0.0", "results": [...]}`; its times are milliseconds. T4 has no fields for what was
tuned and where: the field `tilesight` has them, which other readers ignore.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, exists, select

from ...errors import FailureKind, InputError
from ...files import replacing
from ...records.trial import Status, TrialRecord
from ..engine.faults import UnsoundRecordError
from ..schema import tables as schema
from ..store import Store
from ..tables.trial_rows import session_trials, sound
from .row_fields import number

VERSION = "1.0.0"
INVALIDITIES = ("timeout", "compile", "runtime", "correctness", "constraints", "correct")

_REQUIRED = ("configuration", "times", "invalidity", "correctness")
_NUMBERS = (
    "compilation_time",
    "compilation",
    "benchmark",
    "framework",
    "search_algorithm",
    "validation",
)  # of `times`
_LEFT_OUT = frozenset(
    {
        FailureKind.DUPLICATE,
        FailureKind.PROFILE_ERROR,
        FailureKind.LOWER_MEMORY,
        FailureKind.BUILD_MEMORY,
        FailureKind.RUN_MEMORY,
    }
)
INVALIDITY_OF: Mapping[FailureKind, str] = MappingProxyType(
    {
        FailureKind.LOWER_ERROR: "compile",
        FailureKind.LOWER_CRASH: "compile",
        FailureKind.LOWER_TIMEOUT: "timeout",
        FailureKind.DOES_NOT_FIT: "constraints",
        FailureKind.BUILD_ERROR: "compile",
        FailureKind.BUILD_CRASH: "compile",
        FailureKind.BUILD_TIMEOUT: "timeout",
        FailureKind.RUN_ERROR: "runtime",
        FailureKind.RUN_CRASH: "runtime",
        FailureKind.RUN_TIMEOUT: "timeout",
        FailureKind.WRONG_RESULT: "correctness",
        FailureKind.NONDETERMINISTIC: "correctness",
    }
)


def export_t4(store: Store, path: str | Path, session_id: int | None = None) -> int:
    """Write a session's measurements and failures as T4; returns the number of results.

    T4 has no fields for candidates that were only predicted or built, that failed for lack of memory or as
    duplicates: they are left out. An existing file is replaced.

    Args:
        store: The database.
        path: A file that ends in .json.
        session_id: By default the latest session that measured.

    Raises:
        InputError: The session is unknown, or measured nothing.
    """
    path = Path(path)
    if path.suffix.lower() != ".json":
        raise InputError(f"export to '{path}': T4 is JSON; name a file that ends in .json")
    text, count = store.database.read(lambda connection: _document(connection, session_id))
    with replacing(path, f"export to '{path}' failed") as partial_path:
        partial_path.write_text(text + "\n", encoding="utf-8")
    return count


def fault_of(document: object) -> str | None:
    """The first violation of T4 1.0.0's schema in a JSON value; None if it conforms."""
    if not isinstance(document, dict):
        return "a T4 document is an object"
    version = document.get("schema_version", VERSION)
    if not isinstance(version, str) or not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version):
        return f"schema_version must be a text like {VERSION}"
    results = document.get("results")
    if not isinstance(results, list):
        return "results must be a list"
    for position, result in enumerate(results):
        fault = _result_fault(result)
        if fault is not None:
            return f"results[{position}]{fault}"
    return None


def _result_fault(result: object) -> str | None:
    if not isinstance(result, dict):
        return " must be an object"
    missing = [name for name in _REQUIRED if name not in result]
    if missing:
        return f" lacks {', '.join(missing)}"
    times, measurements = result["times"], result.get("measurements", [])
    checks = {
        ".timestamp must be a text": isinstance(result.get("timestamp", ""), str),
        ".configuration must be an object": isinstance(result["configuration"], dict),
        ".objectives must be a list": isinstance(result.get("objectives", []), list),
        ".times must be an object": isinstance(times, dict),
        f".invalidity must be one of: {', '.join(INVALIDITIES)}": result["invalidity"] in INVALIDITIES,
        ".correctness must be a number": number(result["correctness"]),
        ".measurements must be a list of objects": isinstance(measurements, list)
        and all(isinstance(m, dict) for m in measurements),
    }
    fault = next((text for text, is_right in checks.items() if not is_right), None)
    if fault is not None:
        return fault
    for name in _NUMBERS:
        if name in times and not number(times[name]):
            return f".times.{name} must be a number"
    if not isinstance(times.get("runtimes", []), list):
        return ".times.runtimes must be a list"
    for position, measurement in enumerate(measurements):
        value = measurement.get("value", 0)
        if not isinstance(measurement.get("name", ""), str) or not isinstance(
            measurement.get("unit", ""), str
        ):
            return f".measurements[{position}]: name and unit must be texts"
        if not (number(value) or isinstance(value, str | list)):
            return f".measurements[{position}].value must be a number, a text or a list"
    return None


def _document(connection: Connection, session_id: int | None) -> tuple[str, int]:
    """The document, and the number of its results."""
    session = _session(connection, session_id)
    with sound(f"session {session.id}"):
        return _document_of(connection, session)


def _document_of(connection: Connection, session: Any) -> tuple[str, int]:
    moments = dict(
        connection.execute(
            select(schema.candidates.c.config, schema.trials.c.recorded_at)
            .join_from(schema.trials, schema.candidates)
            .where(schema.trials.c.session_id == session.id)
        ).all()
    )
    rates = {"tflops": session.flops / 1e6, "gb_per_s": session.min_bytes / 1e3}  # over microseconds
    results = [
        {"timestamp": moments[key].replace(tzinfo=UTC).isoformat(" "), **result}
        for key, trial in session_trials(connection, session.id).items()
        if (result := _result(trial, rates)) is not None
    ]
    if not results:
        raise InputError(
            f"session {session.id} has no results that T4 can hold; `tilesight db query` shows which "
            "sessions did"
        )
    document = {"schema_version": VERSION, "results": results, "tilesight": _subject(connection, session)}
    fault = fault_of(document)
    if fault is not None:
        raise UnsoundRecordError(f"session {session.id}: {fault}")
    return json.dumps(document, indent=1, allow_nan=False), len(results)


def _session(connection: Connection, session_id: int | None) -> Any:
    sessions, trials = schema.sessions.c, schema.trials.c
    if session_id is not None:
        found = connection.execute(select(schema.sessions).where(sessions.id == session_id)).first()
        if found is None:
            raise InputError(
                f"session {session_id} is not in this database; see them: tilesight db query 'SELECT "
                "DISTINCT session_id FROM records'"
            )
        return found
    measured = exists().where(trials.session_id == sessions.id, trials.measurement_id.is_not(None))
    found = connection.execute(
        select(schema.sessions).where(measured).order_by(sessions.id.desc()).limit(1)
    ).first()
    if found is None:
        raise InputError(
            "no session here has measured anything, and T4 holds measurements; `tilesight tune KERNEL` "
            "measures"
        )
    return found


def _subject(connection: Connection, session: Any) -> dict[str, Any]:
    """The workload, code and machine of a session, for the field `tilesight`."""

    def row(table: Any, key: int) -> Any:
        return connection.execute(select(table).where(table.c.id == key)).one()

    workload, template = (
        row(schema.workloads, session.workload_id),
        row(schema.templates, session.template_id),
    )
    target, environment = (
        row(schema.targets, session.target_id),
        row(schema.environments, session.environment_id),
    )
    return {
        "operator": workload.operator,
        "dims": workload.dims,
        "dtype": workload.dtype,
        "attrs": workload.attrs,
        "name": workload.name,
        "template": template.name,
        "template_version": template.version,
        "target": target.name,
        "target_fingerprint": target.fingerprint,
        "arch": target.arch,
        "device": environment.device,
        "software": row(schema.software, environment.software_id).versions,
        "protocol": session.protocol,
        "dynamic": session.dynamic,
        "flops": session.flops,
        "min_bytes": session.min_bytes,
    }


def _result(trial: TrialRecord, rates: Mapping[str, float]) -> dict[str, Any] | None:
    if trial.status in (Status.PREDICTED, Status.BUILT) or (
        trial.failure is not None and trial.failure.kind in _LEFT_OUT
    ):
        return None
    samples_us = trial.measurement.samples_us if trial.measurement else ()
    build_s = trial.build.seconds if trial.build else 0.0
    measurements: list[dict[str, Any]] = []
    if trial.measurement is not None and samples_us:
        time_us = trial.measurement.latency_us
        measurements.append({"name": "time", "value": time_us / 1e3, "unit": "ms"})
        if trial.status is Status.VERIFIED:
            measurements += [
                {"name": name, "value": rate / time_us, "unit": ""} for name, rate in rates.items() if rate
            ]
        if trial.measurement.relative_error is not None:
            measurements.append(
                {"name": "relative_error", "value": trial.measurement.relative_error, "unit": ""}
            )
    if trial.prediction is not None:
        measurements.append(
            {"name": "predicted_time", "value": trial.prediction.latency_us / 1e3, "unit": "ms"}
        )
    # the first name is that of the schema, the second that of Kernel Tuner's files
    times = dict.fromkeys(("compilation_time", "compilation"), (trial.lowering_seconds + build_s) * 1e3)
    return {
        "configuration": dict(trial.config),
        "times": {
            **{name: ms for name, ms in times.items() if number(ms)},
            "runtimes": [us / 1e3 for us in samples_us],
        },
        "invalidity": "correct" if trial.failure is None else INVALIDITY_OF[trial.failure.kind],
        "correctness": 1 if trial.status is Status.VERIFIED else 0,
        "measurements": [found for found in measurements if number(found["value"])],
        "objectives": ["time"],
    }
