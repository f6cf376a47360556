"""From the line's values to rows. Ids are taken from the content, so that equal facts are one row.

What later versions added to facts is part of their ids only where it says something: facts of older databases keep theirs.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Table

from ..errors import Failure, InputError
from ..session import Baseline, Context
from ..space import Config
from ..trial import BuildResult, Measurement, Prediction, TrialRecord
from . import schema
from .checks import check_finite, clean, refuse_unless_finite

Row = dict[str, Any]
Rows = list[tuple[Table, Row]]


@dataclass(frozen=True, slots=True)
class Place:
    """Ids of a context's parts, and the context itself."""

    context: Context
    template_id: int
    workload_id: int
    target_id: int
    software_id: int
    environment_id: int


def content_id(*parts: object) -> int:
    """63 bits of SHA-256 over the canonical JSON of `parts`."""
    text = json.dumps(parts, separators=(",", ":"), allow_nan=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def place_of(context: Context) -> tuple[Place, Rows]:
    """The ids of a context's parts, and the rows that hold them."""
    workload = context.workload
    versions = dict(sorted(context.software.items()))
    rows: Rows = []
    software_id = _add(rows, schema.software, {"versions": versions})
    place = Place(
        context=context,
        template_id=_add(rows, schema.templates, {"name": context.template, "version": context.template_version}),
        workload_id=content_id("workloads", workload.key),
        target_id=_add(rows, schema.targets, {"name": context.target, "fingerprint": context.target_fingerprint, "arch": context.arch}),
        software_id=software_id,
        environment_id=_add(rows, schema.environments, {"device": context.device, "software_id": software_id, "observed": {}}),
    )
    rows.append(
        (
            schema.workloads,
            {
                "id": place.workload_id,
                "key": clean(workload.key),
                "operator": clean(workload.operator),
                "dtype": clean(workload.dtype),
                "dims": dict(workload.dims),
                "attrs": dict(workload.attrs),
                "name": None if workload.name is None else clean(workload.name),
            },
        )
    )
    rows += [
        (schema.workload_dims, {"workload_id": place.workload_id, "dim": clean(dim), "size": size, "log2": math.log2(size)})
        for dim, size in workload.dims.items()
    ]
    return place, rows


def candidate_row(place: Place, config: Config) -> Row:
    natural = {
        "template_id": place.template_id,
        "workload_id": place.workload_id,
        "arch": place.context.arch,
        "config": config.key,
    }
    return {"id": content_id("candidates", *natural.values()), **_cleaned(natural)}


def trial_rows(session_id: int, place: Place, trial: TrialRecord) -> Rows:
    """Every row that `trial` needs, those first that others refer to. Raises `InputError` for NaN and infinities."""
    check_finite(trial)
    rows: Rows = []
    candidate = candidate_row(place, trial.config)
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
                "prediction_id": _add_prediction(rows, place, candidate_id, trial.prediction, moment),
                "build_id": _add_build(rows, place, candidate_id, trial.build, moment),
                "measurement_id": _add_measurement(rows, place, candidate_id, trial.measurement, moment),
                "failure_id": _add_failure(rows, trial.failure),
                "fingerprint": clean(trial.fingerprint),
                "lowering_seconds": float(trial.lowering_seconds),
                "recorded_at": moment,
            },
        )
    )
    return rows


def baseline_rows(session_id: int, baselines: Iterable[Baseline]) -> list[Row]:
    rows = []
    for position, baseline in enumerate(baselines):
        samples = [float(sample) for sample in baseline.samples_us]
        refuse_unless_finite(f"baseline '{baseline.name}'", {"samples_us": samples})
        if not samples:
            raise InputError(f"baseline '{baseline.name}' has no samples; leave it out where it could not be measured")
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


def _add(rows: Rows, table: Table, natural: Row, added: Row | None = None) -> int:
    """Append the row of these values, its id taken from them; return the id. `added` counts where it is not empty."""
    told = [(name, value) for name, value in (added or {}).items() if value]
    row_id = content_id(table.name, *natural.values(), *told)
    rows.append((table, {"id": row_id, **_cleaned(natural), **_cleaned(added or {})}))
    return row_id


def _add_prediction(rows: Rows, place: Place, candidate_id: int, prediction: Prediction | None, moment: datetime) -> int | None:
    if prediction is None:
        return None
    natural = {
        "candidate_id": candidate_id,
        "target_id": place.target_id,
        "software_id": place.software_id,
        "model": place.context.model,
        "stated_model": prediction.model,
        "latency_us": float(prediction.latency_us),
        "limiting": prediction.limiting,
        "uncertainty": float(prediction.uncertainty),
        "utilization": _floats(prediction.utilization),
        "terms_us": _floats(prediction.terms_us),
        "notes": list(prediction.notes),
    }
    return _add_at(rows, schema.predictions, natural, moment, derived={"ranking_us": float(prediction.ranking_us)})


def _add_build(rows: Rows, place: Place, candidate_id: int, build: BuildResult | None, moment: datetime) -> int | None:
    if build is None:
        return None
    natural = {
        "candidate_id": candidate_id,
        "software_id": place.software_id,
        "artifact": build.artifact,
        "entry": build.entry,
        "resources": dict(build.resources),
        "compiler": build.compiler,
        "seconds": float(build.seconds),
        "failure_id": _add_failure(rows, build.failure),
    }
    return _add_at(rows, schema.builds, natural, moment, added={"binary": build.binary})


def _add_measurement(rows: Rows, place: Place, candidate_id: int, measurement: Measurement | None, moment: datetime) -> int | None:
    if measurement is None:
        return None
    observed = {"device": place.context.device, "software_id": place.software_id, "observed": dict(measurement.environment)}
    samples = [float(sample) for sample in measurement.samples_us]
    natural = {
        "candidate_id": candidate_id,
        "environment_id": _add(rows, schema.environments, observed),
        "samples_us": samples,
        "sample_count": len(samples),
        "latency_us": statistics.median(samples) if samples else None,
        "relative_error": None if measurement.relative_error is None else float(measurement.relative_error),
        "protocol": dict(measurement.protocol),
        "failure_id": _add_failure(rows, measurement.failure),
    }
    added = {"protocol_key": place.context.protocol, "observed": _floats(measurement.observed)}
    return _add_at(rows, schema.measurements, natural, moment, added=added)


def _add_failure(rows: Rows, failure: Failure | None) -> int | None:
    if failure is None:
        return None
    return _add(rows, schema.failure_reasons, {"kind": failure.kind.value, "message": failure.message, "detail": failure.detail})


def _add_at(rows: Rows, table: Table, natural: Row, moment: datetime, *, added: Row | None = None, derived: Row | None = None) -> int:
    """As `_add`, with what is no part of a fact's identity: `derived` values, and the time at which it was first written."""
    row_id = _add(rows, table, natural, added)
    rows[-1][1].update(derived or {}, created_at=moment)
    return row_id


def _floats(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _cleaned(row: Row) -> Row:
    return {name: clean(value) if isinstance(value, str) else value for name, value in row.items()}
