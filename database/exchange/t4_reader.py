"""Import of T4 files. They are checked and marked as imported, as in `untrusted`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from ...errors import Failure, FailureKind, InputError
from ...problem.space import Census, Config
from ...problem.workload import Workload
from ...records.session import Context, Effort, SessionState
from ...records.trial import BuildResult, Measurement, Status, TrialRecord
from ..schema import tables as schema
from ..store import Store
from ..tables import rows
from ..tables import session_rows as sessions
from ..tables.rows import content_id
from ..tables.strict_json import StrictJsonError, parse, shown
from .json_lines import Imported
from .merge import Merger
from .row_fields import Check, mapping, number, scalar, text, whole
from .t4_writer import fault_of
from .untrusted import MARK, Marks

MAX_FILE_BYTES = 64 << 20
TEMPLATE = "t4"  # for files that do not name the tuned code

_NO_TIME = datetime(2000, 1, 1)  # for results without a timestamp
_UNITS_US = {"ms": 1e3, "us": 1.0, "s": 1e6, "ns": 1e-3}
_FAILURES = {
    "timeout": FailureKind.RUN_TIMEOUT,
    "compile": FailureKind.BUILD_ERROR,
    "runtime": FailureKind.RUN_ERROR,
    "correctness": FailureKind.WRONG_RESULT,
    "constraints": FailureKind.DOES_NOT_FIT,
}
_SUBJECT: Mapping[str, Check] = {
    **dict.fromkeys(
        (
            "operator",
            "dtype",
            "template",
            "template_version",
            "target",
            "target_fingerprint",
            "arch",
            "device",
        ),
        text,
    ),
    **dict.fromkeys(("protocol", "dynamic"), text),
    **dict.fromkeys(("flops", "min_bytes"), number),
    "software": mapping(text),
    "dims": mapping(whole),
    "attrs": mapping(lambda value: type(value) in (bool, int) or text(value)),
    "name": lambda value: value is None or text(value),
}


@dataclass(frozen=True, slots=True)
class ImportSubject:
    """The subject of a T4 file that was not written by TileSight."""

    workload: Workload
    target: str
    arch: str
    device: str
    flops: int = 0
    min_bytes: int = 0


def import_t4(
    store: Store, path: str | Path, subject: ImportSubject | None = None, origin: str | None = None
) -> Imported:
    """Add the results of a T4 file as one session, in one transaction.

    Files that TileSight wrote name their subject; other files need `subject`. Raises `InputError` that names
    the field.
    """
    path = Path(path)
    marks = Marks.of(origin, path)
    document = _read(path)

    def wrong(message: str) -> InputError:
        return InputError(f"import '{path}': {message}; nothing was imported")

    fault = fault_of(document)
    if fault is not None:
        raise wrong(fault)
    if "tilesight" not in document and subject is None:
        raise wrong("it does not name what was tuned; add --kernel K --shape S --target T --device NAME")
    try:
        context, floor = _context(document["tilesight"]) if "tilesight" in document else _context_of(subject)
        trials = [_trial(position, result) for position, result in enumerate(document["results"])]
        first: dict[str, int] = {}  # config key -> position
        for position, (trial, _) in enumerate(trials):
            if first.setdefault(trial.config.key, position) != position:
                raise ValueError(
                    f"results[{position}].configuration is given twice: {shown(trial.config.key)}"
                )
    except ValueError as error:
        raise wrong(str(error)) from error

    def work(connection: Connection) -> Imported:
        merger = Merger(store.database, connection, own_ids=True)
        _add(merger, marks, context, floor, trials)
        return Imported(dict(merger.written), {}, marks.origin)

    return store.database.write(work)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"import '{path}': {error.strerror or error}; name a file that can be read"
        ) from error
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"import '{path}': it has more than {MAX_FILE_BYTES} bytes; nothing was imported")
    try:
        found = parse(raw)
    except StrictJsonError as error:
        raise InputError(f"import '{path}': {error}; nothing was imported") from error
    if not isinstance(found, dict):
        raise InputError(f"import '{path}': a T4 document is an object; nothing was imported")
    return found


def _context(found: Any) -> tuple[Context, dict[str, float]]:
    if not isinstance(found, dict) or set(found) != set(_SUBJECT):
        raise ValueError(f"tilesight must have the fields {', '.join(_SUBJECT)}")
    for name, check in _SUBJECT.items():
        if not check(found[name]):
            raise ValueError(f"tilesight.{name}={shown(found[name])} is of the wrong type")
    try:
        workload = Workload(found["operator"], found["dims"], found["dtype"], found["attrs"])
    except InputError as error:
        raise ValueError(f"tilesight.dims: {error}") from error
    context = Context(
        template=found["template"],
        template_version=found["template_version"],
        workload=workload,
        target=found["target"],
        target_fingerprint=found["target_fingerprint"],
        arch=found["arch"],
        model="",
        space="",
        software=found["software"],
        device=found["device"],
        protocol=found["protocol"],
        dynamic=tuple(found["dynamic"].split(",")) if found["dynamic"] else (),
    )
    return context, {name: max(0.0, float(found[name])) for name in ("flops", "min_bytes")}


def _context_of(subject: ImportSubject | None) -> tuple[Context, dict[str, float]]:
    assert subject is not None
    context = Context(
        TEMPLATE, "", subject.workload, subject.target, "", subject.arch, "", "", {}, subject.device
    )
    return context, {"flops": float(subject.flops), "min_bytes": float(subject.min_bytes)}


def _trial(position: int, result: Mapping[str, Any]) -> tuple[TrialRecord, datetime]:
    """Raises `ValueError` that names the field."""
    name, values = f"results[{position}]", result["configuration"]
    if not values or not all(scalar(value) for value in values.values()):
        raise ValueError(
            f"{name}.configuration={shown(values)} must be an object of texts, numbers and booleans"
        )
    measured = {found.get("name"): found for found in result.get("measurements", [])}
    moment = _moment(name, result.get("timestamp"))
    config = Config(values)
    if result["invalidity"] != "correct":
        failure = Failure(_FAILURES[result["invalidity"]], f"T4 says: {result['invalidity']}")
        build = BuildResult(None, failure) if failure.kind is FailureKind.BUILD_ERROR else None
        ran = failure.kind not in (FailureKind.BUILD_ERROR, FailureKind.DOES_NOT_FIT)
        return TrialRecord(
            config, Status.FAILED, None, build, Measurement(failure=failure) if ran else None, failure
        ), moment
    runtimes_ms = result["times"].get("runtimes") or []
    if not all(number(value) and value > 0 for value in runtimes_ms):
        raise ValueError(f"{name}.times.runtimes must be numbers above 0")
    samples_us = tuple(float(value) * 1e3 for value in runtimes_ms) or _time(name, measured.get("time"))
    if not all(math.isfinite(value) for value in samples_us):
        raise ValueError(f"{name}.times.runtimes must be finite in microseconds, too")
    error = measured.get("relative_error", {}).get("value")
    if error is not None and (not number(error) or error < 0):
        raise ValueError(f"{name}: relative_error={shown(error)} must be a number of at least 0")
    # a result counts as verified only if its error was measured; T4's `correctness` alone is not enough
    status = Status.VERIFIED if error is not None and result["correctness"] == 1 else Status.MEASURED
    return TrialRecord(config, status, None, None, Measurement(samples_us, relative_error=error)), moment


def _time(name: str, found: Mapping[str, Any] | None) -> tuple[float, ...]:
    if found is None:
        raise ValueError(f"{name} has no times.runtimes and no measurement 'time'")
    value, unit = found.get("value"), found.get("unit") or "ms"
    if not number(value) or value <= 0 or unit not in _UNITS_US:  # type: ignore[operator]
        raise ValueError(
            f"{name}: time={shown(value)} {shown(unit)} must be a number above 0 in {', '.join(_UNITS_US)}"
        )
    return (float(value) * _UNITS_US[unit],)  # type: ignore[arg-type]


def _moment(name: str, stamp: str | None) -> datetime:
    if not stamp:
        return _NO_TIME
    try:
        found = datetime.fromisoformat(stamp)
    except ValueError:
        raise ValueError(
            f"{name}.timestamp={shown(stamp)} is no time, e.g. 2026-01-31 12:00:00+00:00"
        ) from None
    try:
        return found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found
    except OverflowError:
        raise ValueError(f"{name}.timestamp={shown(stamp)} must be in the years 1 to 9999 in UTC") from None


def _add(
    merger: Merger,
    marks: Marks,
    stated: Context,
    floor: dict[str, float],
    trials: list[tuple[TrialRecord, datetime]],
) -> None:
    context = marks.context(stated)
    ids, found = rows.context_rows(context)
    moments = [moment for _, moment in trials] or [_NO_TIME]
    started = min(moments)
    counts = {status.value: 0 for status in sorted({trial.status for trial, _ in trials})}
    for trial, _ in trials:
        counts[trial.status.value] += 1
    key = content_id(MARK, marks.origin, ids.context.key)
    session = {
        **sessions.session_row(
            ids, Effort.QUICK, 0, {"format": "T4"}, Census(len(trials), len(trials), {}), 0, 0
        ),
        "context_key": f"{MARK} {key:016x}",  # made from the content: the same file gives the same session
        "owner": "",
        "state": SessionState.COMPLETE.value,
        "started_at": started,
        "finished_at": max(moments),
        "messages": [f"{MARK} from {marks.origin}, a T4 file"],
        "counts": counts,
        **floor,
    }
    found.append((schema.sessions, session))
    for trial, moment in trials:
        for table, row in rows.trial_rows(session["id"], ids, trial):
            found.append(
                (table, {**row, **{name: moment for name in ("created_at", "recorded_at") if name in row}})
            )
    for table in schema.metadata.sorted_tables:
        unique = {row.get("id", number): row for number, (of, row) in enumerate(found) if of is table}
        merger.add(table, list(unique.values()))
