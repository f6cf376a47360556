"""From values to rows.

Ids are hashes of the content, so equal facts share one row. Columns added later enter the id only when they
are set, so old rows keep their ids.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Table

from ...errors import Failure, InputError
from ...problem.space import Config
from ...problem.workload import Workload
from ...records.session import Baseline, Context, code_software, time_software
from ...records.trial import BuildResult, Measurement, Prediction, TrialRecord
from ..engine.text_checks import (
    check_finite,
    check_name,
    check_names,
    clean,
    cleaned,
    is_suspect,
    refuse_unless_finite,
)
from ..schema import tables as schema

Row = dict[str, Any]
Rows = list[tuple[Table, Row]]

# the compilers among a context's software versions
_TOOLKITS = ("nvcc", "hipcc", "c++")
_canonical = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class ContextIds:
    """Ids of a context's parts, and the context itself."""

    context: Context
    template_id: int
    workload_id: int
    target_id: int
    software_id: int
    environment_id: int
    code_key: str  # `software.code_key`
    time_key: str
    dynamic: str  # names with commas, as columns store them
    shape_family: int


def content_id(*parts: object) -> int:
    """63 bits of SHA-256 over the canonical JSON of `parts`, with their text cleaned for databases."""
    text = _canonical(parts)
    if is_suspect(text):
        text = _canonical(cleaned(parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def versions_key(versions: Mapping[str, str]) -> str:
    """16 hex digits, equal for equal versions of the same names in any order."""
    return f"{content_id(dict(sorted(versions.items()))):016x}"


def now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def context_rows(context: Context) -> tuple[ContextIds, Rows]:
    """The ids of a context's parts, and the rows of these parts."""
    workload = context.workload
    check_name("context", "architecture", context.arch)
    rows: Rows = []
    software_id = software_row(rows, context.software)
    template_id = add_row(
        rows, schema.templates, {"name": context.template, "version": context.template_version}
    )
    keys = software_keys(context.software)
    environment = {"device": context.device, "software_id": software_id, "observed": {}}
    ids = ContextIds(
        context=context,
        template_id=template_id,
        workload_id=content_id("workloads", workload.key),
        target_id=add_row(
            rows,
            schema.targets,
            {"name": context.target, "fingerprint": context.target_fingerprint, "arch": context.arch},
        ),
        software_id=software_id,
        environment_id=add_row(
            rows, schema.environments, environment, derived=_versions(context.software, {})
        ),
        **keys,
        dynamic=clean(",".join(context.dynamic)),
        shape_family=_shape_family(context, template_id, keys["time_key"]),
    )
    return ids, rows + workload_rows(workload)


def software_row(rows: Rows, versions: Mapping[str, str]) -> int:
    """Append the row of these versions; return its id."""
    return add_row(
        rows, schema.software, {"versions": dict(sorted(versions.items()))}, derived=software_keys(versions)
    )


def software_keys(versions: Mapping[str, str]) -> dict[str, str]:
    """Columns of `software`: hashes of the versions on which the code depends, and on which its time
    depends."""
    return {
        "code_key": versions_key(code_software(versions)),
        "time_key": versions_key(time_software(versions)),
    }


def workload_rows(workload: Workload) -> Rows:
    check_names(workload)
    workload_id = content_id("workloads", workload.key)
    rows: Rows = [
        (
            schema.workloads,
            {
                "id": workload_id,
                "key": clean(workload.key),
                "operator": clean(workload.operator),
                "dtype": clean(workload.dtype),
                "dims": dict(workload.dims),
                "attrs": dict(workload.attrs),
                "name": None if workload.name is None else clean(workload.name),
            },
        )
    ]
    rows += [
        (schema.workload_dims, {"workload_id": workload_id, "dim": clean(dim), "size": size})
        for dim, size in workload.dims.items()
    ]
    return rows


def _shape_family(context: Context, template_id: int, time_key: str) -> int:
    """A number for all contexts whose winners dispatch compares: they differ only in the sizes of the
    workload."""
    workload = context.workload
    parts = (workload.operator, workload.dtype, dict(sorted(workload.attrs.items())), sorted(workload.dims))
    return content_id(
        "shape family", *parts, template_id, context.arch, time_key, context.device, context.protocol
    )


def candidate_row(ids: ContextIds, config: Config) -> Row:
    natural = {
        "template_id": ids.template_id,
        "workload_id": ids.workload_id,
        "arch": ids.context.arch,
        "config": config.key,
    }
    later = [("open", ids.dynamic)] if ids.dynamic else []  # the column's former name
    return {
        "id": content_id("candidates", *natural.values(), *later),
        **_cleaned(natural),
        "dynamic": ids.dynamic,
    }


def trial_rows(session_id: int, ids: ContextIds, trial: TrialRecord) -> Rows:
    """All rows of a trial; referenced rows come first. Raises `InputError` for NaN and infinities."""
    check_finite(trial)
    rows: Rows = []
    candidate = candidate_row(ids, trial.config)
    rows.append((schema.candidates, candidate))
    candidate_id = candidate["id"]
    moment = now()
    rows.append(
        (
            schema.trials,
            {
                "session_id": session_id,
                "candidate_id": candidate_id,
                "status": trial.status.value,
                "prediction_id": _add_prediction(rows, ids, candidate_id, trial.prediction, moment),
                "build_id": _add_build(rows, ids, candidate_id, trial.build, moment),
                "measurement_id": _add_measurement(rows, ids, candidate_id, trial.measurement, moment),
                "failure_id": _add_failure(rows, trial.failure),
                "fingerprint": clean(trial.fingerprint),
                "lowering_seconds": float(trial.lowering_seconds),
                "recorded_at": moment,
                "measured_us": trial.measured_us,
            },
        )
    )
    return rows


def baseline_rows(session_id: int, baselines: Iterable[Baseline]) -> list[Row]:
    rows = []
    for position, baseline in enumerate(baselines):
        refuse_unless_finite(f"baseline '{clean(baseline.name[:200])}'", {"samples_us": baseline.samples_us})
        samples = [float(sample) for sample in baseline.samples_us]
        if not samples:
            raise InputError(
                f"baseline '{baseline.name}' has no samples; leave it out where it could not be measured"
            )
        if min(samples) <= 0:
            raise InputError(
                f"baseline '{clean(baseline.name[:200])}' took {min(samples):g} us in a sample; "
                "a time is above 0"
            )
        rows.append(
            {
                "session_id": session_id,
                "position": position,
                "name": clean(baseline.name),
                "samples_us": samples,
                "latency_us": statistics.median(samples),
            }
        )
    return rows


def add_row(
    rows: Rows, table: Table, natural: Row, added: Row | None = None, derived: Row | None = None
) -> int:
    """Append a row to `rows`; returns its id.

    Args:
        rows: Gets the row.
        table: The row's table.
        natural: Columns that make the id.
        added: Columns of later versions; they enter the id only when they are set.
        derived: Columns that do not enter the id.
    """
    later = [(name, value) for name, value in (added or {}).items() if value]
    row_id = content_id(table.name, *natural.values(), *later)
    rows.append(
        (table, {"id": row_id, **_cleaned(natural), **_cleaned(added or {}), **_cleaned(derived or {})})
    )
    return row_id


def _versions(software: Mapping[str, str], observed: Mapping[str, str]) -> Row:
    """Version columns of an environment: the observation of a measurement is preferred to the session's
    versions."""
    known = {**software, **observed}
    toolkit = observed.get("compiler") or next((software[name] for name in _TOOLKITS if name in software), "")
    return {
        "toolkit": toolkit,
        **{name: known.get(name, "") for name in ("uuid", "driver", "tilelang", "torch")},
    }


def _add_prediction(
    rows: Rows, ids: ContextIds, candidate_id: int, prediction: Prediction | None, moment: datetime
) -> int | None:
    if prediction is None:
        return None
    natural = {
        "candidate_id": candidate_id,
        "target_id": ids.target_id,
        "software_id": ids.software_id,
        "model": ids.context.model,
        "stated_model": prediction.model,
        "latency_us": float(prediction.latency_us),
        "limiting": prediction.limiting,
        "uncertainty": float(prediction.uncertainty),
        "utilization": _floats(prediction.utilization),
        "terms_us": _floats(prediction.terms_us),
        "notes": list(prediction.notes),
    }
    return add_row(
        rows,
        schema.predictions,
        natural,
        derived={"ranking_us": float(prediction.ranking_us), "created_at": moment},
    )


def _add_build(
    rows: Rows, ids: ContextIds, candidate_id: int, build: BuildResult | None, moment: datetime
) -> int | None:
    if build is None:
        return None
    natural = {
        "candidate_id": candidate_id,
        "software_id": ids.software_id,
        "artifact": build.artifact,
        "entry": build.entry,
        "resources": dict(build.resources),
        "compiler": build.compiler,
        "seconds": float(build.seconds),
        "failure_id": _add_failure(rows, build.failure),
    }
    return add_row(rows, schema.builds, natural, {"binary": build.binary}, {"created_at": moment})


def _add_measurement(
    rows: Rows, ids: ContextIds, candidate_id: int, measurement: Measurement | None, moment: datetime
) -> int | None:
    if measurement is None:
        return None
    observed = {
        "device": ids.context.device,
        "software_id": ids.software_id,
        "observed": dict(measurement.environment),
    }
    versions = _versions(ids.context.software, measurement.environment)
    samples = [float(sample) for sample in measurement.samples_us]
    natural = {
        "candidate_id": candidate_id,
        "environment_id": add_row(rows, schema.environments, observed, derived=versions),
        "samples_us": samples,
        "sample_count": len(samples),
        "latency_us": statistics.median(samples) if samples else None,
        "relative_error": None if measurement.relative_error is None else float(measurement.relative_error),
        "protocol": dict(measurement.protocol),
        "failure_id": _add_failure(rows, measurement.failure),
    }
    added = {"protocol_key": ids.context.protocol, "observed": _floats(measurement.observed)}
    return add_row(rows, schema.measurements, natural, added, {"created_at": moment})


def _add_failure(rows: Rows, failure: Failure | None) -> int | None:
    if failure is None:
        return None
    return add_row(
        rows,
        schema.failure_reasons,
        {"kind": failure.kind.value, "message": failure.message, "detail": failure.detail},
    )


def _floats(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _cleaned(row: Row) -> Row:
    return {name: clean(value) if isinstance(value, str) else value for name, value in row.items()}
