"""Consistency of rows that come from outside: ids match the content, references lead to earlier rows, derived
columns match what they are derived from."""

from __future__ import annotations

import json
import statistics
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Table

from ...errors import Failure, FailureKind, InputError, TileSightError
from ...problem.space import Config
from ...problem.workload import Workload
from ...profile.parametric import DECODE_ERRORS, ProfileKey, parametric_profile_of
from ...records.session import Context
from ...records.trial import BuildResult, Measurement, Prediction, Status, TrialRecord
from ..engine.text_checks import check_names
from ..schema import tables as schema
from ..tables.content_ids import expected_id
from ..tables.profile_rows import MAX_BODY
from ..tables.rows import ContextIds, Row, content_id, context_rows, software_keys
from ..tables.session_rows import options_key
from ..tables.strict_json import StrictJsonError, parse, shown
from .row_fields import FieldError, scalar

T = TypeVar("T")


class Soundness:
    """Checks rows one by one, in an order in which rows come after those that they refer to."""

    def __init__(self) -> None:
        self._seen: dict[str, set[tuple[object, ...]]] = {table: set() for table in schema.metadata.tables}
        self.software: dict[int, Mapping[str, str]] = {}
        self.environments: dict[int, tuple[str, int]] = {}  # device, software
        self.templates: dict[int, tuple[str, str]] = {}
        self.targets: dict[int, tuple[str, str, str]] = {}
        self.workloads: dict[int, Workload] = {}
        self.candidates: dict[int, tuple[int, int, str]] = {}  # template, workload, dynamic dimensions
        self.sessions: dict[int, tuple[int, int, str]] = {}
        self._failures: dict[int, Failure] = {}
        # per table: id -> candidate, and the value with all that a trial's status depends on
        self._facts: dict[str, dict[int, tuple[int, Any]]] = {
            "predictions": {},
            "builds": {},
            "measurements": {},
        }
        self._rules: Mapping[str, Callable[[Row], None]] = {
            "software": self._software,
            "environments": lambda row: self.environments.update(
                {row["id"]: (row["device"], row["software_id"])}
            ),
            "templates": lambda row: self.templates.update({row["id"]: (row["name"], row["version"])}),
            "targets": lambda row: self.targets.update(
                {row["id"]: (row["name"], row["fingerprint"], row["arch"])}
            ),
            "workloads": self._workload,
            "workload_dims": self._workload_dim,
            "candidates": self._candidate,
            "failure_reasons": lambda row: self._failures.update(
                {row["id"]: Failure(FailureKind(row["kind"]), "")}
            ),
            "predictions": self._prediction,
            "builds": self._build,
            "measurements": self._measurement,
            "sessions": self._session,
            "trials": self._trial,
            "baselines": self._baseline,
            "parametric_profiles": _profile,
            "dispatch_misses": self._miss,
        }

    def check(self, table: Table, row: Row) -> None:
        """Raise `FieldError` if `row` is inconsistent; fill derived columns that older versions did not
        have."""
        key = tuple(row[column.name] for column in table.primary_key.columns)
        if key in self._seen[table.name]:
            raise FieldError(f"{table.name}: the row {', '.join(map(str, key))} is given twice")
        self._seen[table.name].add(key)
        for column in table.c:
            for reference in column.foreign_keys:
                of, value = reference.column.table.name, row[column.name]
                if value is not None and (value,) not in self._seen[of]:
                    raise FieldError(f"{table.name}.{column.name}={value} refers to no row of {of} before it")
        expected = expected_id(table.name, row)
        if expected is not None and expected != row["id"]:
            raise FieldError(
                f"{table.name}.id={row['id']} is not the id of this content ({expected}): the row was changed"
            )
        rule = self._rules.get(table.name)
        if rule is not None:
            rule(row)

    def context_ids(
        self, row: Row, change: Callable[[Context], Context] = lambda context: context
    ) -> ContextIds:
        """The ids of a session's context, after `change` was applied to the context."""
        device, software_id = self.environments[row["environment_id"]]
        template, version = self.templates[row["template_id"]]
        target, fingerprint, arch = self.targets[row["target_id"]]
        context = Context(
            template=template,
            template_version=version,
            workload=self.workloads[row["workload_id"]],
            target=target,
            target_fingerprint=fingerprint,
            arch=arch,
            model=row["model"],
            space="",
            software=self.software[software_id],
            device=device,
            protocol=row["protocol"],
            dynamic=tuple(row["dynamic"].split(",")) if row["dynamic"] else (),
        )
        return context_rows(change(context))[0]

    def _software(self, row: Row) -> None:
        keys = software_keys(row["versions"])
        for name, value in keys.items():
            if row[name] not in ("", value):  # "": a version that did not know it
                raise FieldError(f"software.{name}={shown(row[name])} does not follow from its versions")
        row.update(keys)
        self.software[row["id"]] = row["versions"]

    def _workload(self, row: Row) -> None:
        try:
            workload = Workload(row["operator"], row["dims"], row["dtype"], row["attrs"], row["name"])
            check_names(workload)
        except InputError as error:
            raise FieldError(f"workloads.dims: {error}") from error
        if workload.key != row["key"]:
            raise FieldError(
                f"workloads.key={shown(row['key'])} is not that of its dimensions: {shown(workload.key)}"
            )
        self.workloads[row["id"]] = workload

    def _workload_dim(self, row: Row) -> None:
        size = self.workloads[row["workload_id"]].dims.get(row["dim"])
        if size != row["size"]:
            raise FieldError(
                f"workload_dims: {shown(row['dim'])}={row['size']} is not that of its workload ({size})"
            )

    def _candidate(self, row: Row) -> None:
        self.candidates[row["id"]] = row["template_id"], row["workload_id"], row["dynamic"]
        _config("candidates", row["config"])

    def _prediction(self, row: Row) -> None:
        self._facts["predictions"][row["id"]] = row["candidate_id"], Prediction(row["latency_us"], {}, "")

    def _build(self, row: Row) -> None:
        build = _made("builds", BuildResult, row["artifact"], self._failure(row))
        self._facts["builds"][row["id"]] = row["candidate_id"], build

    def _measurement(self, row: Row) -> None:
        samples = row["samples_us"]
        latency_us = statistics.median(samples) if samples else None
        if row["sample_count"] != len(samples):
            raise FieldError(
                f"measurements.sample_count={row['sample_count']} must be the number of samples_us, "
                f"{len(samples)}"
            )
        if row["latency_us"] != latency_us:
            raise FieldError(f"measurements.latency_us={row['latency_us']} must be the median of samples_us")
        kept = () if latency_us is None else (latency_us,)  # the others are not needed
        measurement = _made("measurements", Measurement, kept, self._failure(row), row["relative_error"])
        self._facts["measurements"][row["id"]] = row["candidate_id"], measurement

    def _failure(self, row: Row) -> Failure | None:
        return None if row["failure_id"] is None else self._failures[row["failure_id"]]

    def _session(self, row: Row) -> None:
        self.sessions[row["id"]] = row["template_id"], row["workload_id"], row["dynamic"]
        if row["options_key"] != options_key(row["options"]):
            raise FieldError(
                f"sessions.options_key={shown(row['options_key'])} does not follow from its options"
            )
        if row["winner_id"] is not None and self.candidates[row["winner_id"]] != self.sessions[row["id"]]:
            raise FieldError(
                f"sessions.winner_id={row['winner_id']} is a candidate of another template or workload, or "
                "has other dynamic dimensions"
            )
        try:
            ids = self.context_ids(row)
        except (TileSightError, ValueError) as error:
            raise FieldError(f"sessions: it makes no context: {error}") from error
        if row["shape_family"] not in (0, ids.shape_family):  # 0: of a version without this column
            raise FieldError(
                f"sessions.shape_family={row['shape_family']} does not follow from its workload and "
                "environment"
            )
        row["shape_family"] = ids.shape_family

    def _trial(self, row: Row) -> None:
        session, candidate = self.sessions[row["session_id"]], self.candidates[row["candidate_id"]]
        if session != candidate:
            raise FieldError(
                f"trials.candidate_id={row['candidate_id']} is a candidate of another template or workload "
                "than the session's"
            )
        values: list[Any] = []
        for table, facts in self._facts.items():
            name = f"{table.removesuffix('s')}_id"
            candidate_id, value = (row["candidate_id"], None) if row[name] is None else facts[row[name]]
            if candidate_id != row["candidate_id"]:
                raise FieldError(f"trials.{name}={row[name]} is of another candidate")
            values.append(value)
        status = Status(row["status"])
        record = _made(
            f"trials.status={status}", TrialRecord, Config({}), status, *values, self._failure(row)
        )
        row["measured_us"] = record.measured_us

    def _miss(self, row: Row) -> None:
        _config("dispatch_misses", row["config"])
        key = self.workloads[row["workload_id"]].key
        expected = content_id("dispatch_misses", key, row["target"], row["device"], row["template"])
        if row["id"] != expected:
            raise FieldError(f"dispatch_misses.id={row['id']} is not the id of this content ({expected})")
        if not row["first_at"] <= row["last_at"]:
            raise FieldError("dispatch_misses.last_at lies before first_at")

    def _baseline(self, row: Row) -> None:
        if row["latency_us"] != statistics.median(row["samples_us"]):
            raise FieldError(f"baselines.latency_us={row['latency_us']} must be the median of samples_us")


def _made(name: str, kind: Callable[..., T], *values: Any) -> T:
    """A value; what its constructor refuses becomes a `FieldError`."""
    try:
        return kind(*values)
    except ValueError as error:
        raise FieldError(f"{name}: {error}") from error


def _config(table: str, text: str) -> None:
    try:
        found: Any = parse(text.encode())
    except StrictJsonError as error:
        raise FieldError(f"{table}.config={shown(text)}: {error}") from error
    if (
        not isinstance(found, dict)
        or not all(scalar(value) for value in found.values())
        or Config(found).key != text
    ):
        raise FieldError(
            f"{table}.config={shown(text)} must be a config as `Config.key` writes it: an object, names "
            "sorted, no spaces"
        )


def _profile(row: Row) -> None:
    key = ProfileKey(row["template"], row["template_version"], row["arch"], row["shape_class"], row["reader"])
    if key.digest != row["profile_key"]:
        raise FieldError(
            f"parametric_profiles.profile_key={shown(row['profile_key'])} does not follow from the columns "
            "after it"
        )
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(row["body"], MAX_BODY)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise FieldError(f"parametric_profiles.body has more than {MAX_BODY} bytes, or is cut short")
        found = parametric_profile_of(json.dumps(parse(body)))
    except (*DECODE_ERRORS, zlib.error, StrictJsonError) as error:
        raise FieldError(
            f"parametric_profiles.body is no parametric profile: {type(error).__name__}: {shown(str(error))}"
        ) from error
    if found.config.key != row["config"]:
        raise FieldError("parametric_profiles.body is of another config")
