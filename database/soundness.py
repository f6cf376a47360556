"""Whether rows of strangers make sense together: ids that their content gives, references that lead somewhere, values that
follow from each other."""

from __future__ import annotations

import json
import math
import statistics
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table

from ..errors import InputError, TileSightError
from ..families import DAMAGE, FamilyKey, family_of
from ..session import Context
from ..space import Config
from ..trial import Status
from ..workload import Workload
from . import schema
from .families import MAX_BODY
from .fields import FieldError, scalar
from .identity import expected_id
from .rows import Place, Row, content_id, place_of, software_keys
from .sessions import options_key
from .strict_json import StrictJsonError, parse, shown


@dataclass(frozen=True, slots=True)
class Fact:
    """What a trial must know of a prediction, build or measurement that it refers to."""

    candidate_id: int
    works: bool
    latency_us: float | None = None
    is_checked: bool = False


class Soundness:
    """Takes rows one by one, those first that others refer to. `check` raises `FieldError`."""

    def __init__(self) -> None:
        self._seen: dict[str, set[tuple[object, ...]]] = {table: set() for table in schema.metadata.tables}
        self.software: dict[int, Mapping[str, str]] = {}
        self.environments: dict[int, tuple[str, int]] = {}  # device, software
        self.templates: dict[int, tuple[str, str]] = {}
        self.targets: dict[int, tuple[str, str, str]] = {}
        self.workloads: dict[int, Workload] = {}
        self.candidates: dict[int, tuple[int, int, str]] = {}  # template, workload, open
        self.sessions: dict[int, tuple[int, int, str]] = {}
        self._facts: dict[str, dict[int, Fact]] = {"predictions": {}, "builds": {}, "measurements": {}}
        self._rules: Mapping[str, Callable[[Row], None]] = {
            "software": self._software,
            "environments": self._environment,
            "templates": lambda row: self.templates.update({row["id"]: (row["name"], row["version"])}),
            "targets": lambda row: self.targets.update({row["id"]: (row["name"], row["fingerprint"], row["arch"])}),
            "workloads": self._workload,
            "workload_dims": self._workload_dim,
            "candidates": self._candidate,
            "predictions": lambda row: self._add_fact("predictions", row, Fact(row["candidate_id"], True)),
            "builds": self._build,
            "measurements": self._measurement,
            "sessions": self._session,
            "trials": self._trial,
            "baselines": self._baseline,
            "profile_families": _family,
            "dispatch_misses": self._miss,
        }

    def check(self, table: Table, row: Row) -> None:
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
            raise FieldError(f"{table.name}.id={row['id']} is not the id of this content ({expected}): the row was changed")
        rule = self._rules.get(table.name)
        if rule is not None:
            rule(row)

    def place_of(self, row: Row, change: Callable[[Context], Context] = lambda context: context) -> Place:
        """Where a session stands: its context's parts, after a `change` of them."""
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
            open=tuple(row["open"].split(",")) if row["open"] else (),
        )
        return place_of(change(context))[0]

    def _software(self, row: Row) -> None:
        keys = software_keys(row["versions"])
        for name, value in keys.items():
            if row[name] not in ("", value):  # "": a version that did not know it
                raise FieldError(f"software.{name}={shown(row[name])} does not follow from its versions")
        row.update(keys)
        self.software[row["id"]] = row["versions"]

    def _environment(self, row: Row) -> None:
        self.environments[row["id"]] = row["device"], row["software_id"]

    def _workload(self, row: Row) -> None:
        try:
            workload = Workload(row["operator"], row["dims"], row["dtype"], row["attrs"], row["name"])
        except InputError as error:
            raise FieldError(f"workloads.dims: {error}") from error
        if workload.key != row["key"]:
            raise FieldError(f"workloads.key={shown(row['key'])} is not that of its dimensions: {shown(workload.key)}")
        self.workloads[row["id"]] = workload

    def _workload_dim(self, row: Row) -> None:
        size = self.workloads[row["workload_id"]].dims.get(row["dim"])
        if size != row["size"] or not math.isclose(row["log2"], math.log2(row["size"]), abs_tol=1e-9):
            raise FieldError(f"workload_dims: {shown(row['dim'])}={row['size']} is not what its workload says ({size})")

    def _candidate(self, row: Row) -> None:
        self.candidates[row["id"]] = row["template_id"], row["workload_id"], row["open"]
        _config("candidates", row["config"])

    def _add_fact(self, table: str, row: Row, fact: Fact) -> None:
        self._facts[table][row["id"]] = fact

    def _build(self, row: Row) -> None:
        self._add_fact("builds", row, Fact(row["candidate_id"], row["artifact"] is not None))
        if (row["artifact"] is None) == (row["failure_id"] is None):
            raise FieldError("builds: it must have either an artifact or a failure_id")

    def _measurement(self, row: Row) -> None:
        samples = row["samples_us"]
        fact = Fact(row["candidate_id"], bool(samples), row["latency_us"], row["relative_error"] is not None)
        self._add_fact("measurements", row, fact)
        if bool(samples) == (row["failure_id"] is not None):
            raise FieldError("measurements: it must have either samples_us or a failure_id")
        if row["sample_count"] != len(samples):
            raise FieldError(f"measurements.sample_count={row['sample_count']} must be the number of samples_us, {len(samples)}")
        if row["latency_us"] != (statistics.median(samples) if samples else None):
            raise FieldError(f"measurements.latency_us={row['latency_us']} must be the median of samples_us")

    def _session(self, row: Row) -> None:
        self.sessions[row["id"]] = row["template_id"], row["workload_id"], row["open"]
        if row["options_key"] != options_key(row["options"]):
            raise FieldError(f"sessions.options_key={shown(row['options_key'])} does not follow from its options")
        if row["winner_id"] is not None and self.candidates[row["winner_id"]] != self.sessions[row["id"]]:
            raise FieldError(f"sessions.winner_id={row['winner_id']} is a candidate of another template or workload, or open otherwise")
        try:
            place = self.place_of(row)
        except (TileSightError, ValueError) as error:
            raise FieldError(f"sessions: it makes no context: {error}") from error
        for name in ("shape_family", "shape_code"):
            value = getattr(place, name)
            if row[name] not in (0, value):  # 0: a version that did not know it
                raise FieldError(f"sessions.{name}={row[name]} does not follow from its workload and environment")
            row[name] = value

    def _trial(self, row: Row) -> None:
        session, candidate = self.sessions[row["session_id"]], self.candidates[row["candidate_id"]]
        if session != candidate:
            raise FieldError(f"trials.candidate_id={row['candidate_id']} is a candidate of another template or workload than the session's")
        found: dict[str, Fact | None] = {}
        for table, facts in self._facts.items():
            name = f"{table.removesuffix('s')}_id"
            found[table] = None if row[name] is None else facts[row[name]]
            fact = found[table]
            if fact is not None and fact.candidate_id != row["candidate_id"]:
                raise FieldError(f"trials.{name}={row[name]} is of another candidate")
        measurement, build, status = found["measurements"], found["builds"], Status(row["status"])
        ran = measurement is not None and measurement.works
        needed = {
            Status.PREDICTED: found["predictions"] is not None,
            Status.BUILT: build is not None and build.works,
            Status.MEASURED: ran,
            Status.VERIFIED: ran and measurement is not None and measurement.is_checked,
            Status.FAILED: row["failure_id"] is not None,
        }[status]
        if not needed or (status is not Status.FAILED and row["failure_id"] is not None):
            raise FieldError(f"trials.status={status.value} is not what the rows that it refers to say")
        row["measured_us"] = measurement.latency_us if measurement is not None and status is Status.VERIFIED else None

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


def _config(table: str, text: str) -> None:
    try:
        found: Any = parse(text.encode())
    except StrictJsonError as error:
        raise FieldError(f"{table}.config={shown(text)}: {error}") from error
    if not isinstance(found, dict) or not all(scalar(value) for value in found.values()) or Config(found).key != text:
        raise FieldError(f"{table}.config={shown(text)} must be a config as `Config.key` writes it: an object, names sorted, no spaces")


def _family(row: Row) -> None:
    key = FamilyKey(row["template"], row["template_version"], row["arch"], row["shape_class"], row["reader"])
    if key.digest != row["family_key"]:
        raise FieldError(f"profile_families.family_key={shown(row['family_key'])} does not follow from the columns after it")
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(row["body"], MAX_BODY)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise FieldError(f"profile_families.body has more than {MAX_BODY} bytes, or is cut short")
        found = family_of(json.dumps(parse(body)))
    except (*DAMAGE, zlib.error, StrictJsonError) as error:
        raise FieldError(f"profile_families.body is no profile family: {type(error).__name__}: {shown(str(error))}") from error
    if found.config.key != row["config"]:
        raise FieldError("profile_families.body is of another config")
