"""The dataset writer: keeps one row per candidate, and writes them to the Parquet file of a collection."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import Failure, InputError
from ..executor.tasks import Profiled
from ..problem.candidate import Candidate
from ..problem.space import Config
from ..problem.workload import Workload
from ..profile.codec import profiles_text
from ..records.dataset import Dataset, read_dataset, write_dataset
from ..records.protocol import MeasurementProtocol
from ..records.session import Baseline
from ..records.trial import BuildResult, Measurement, Status

Row = dict[str, Any]
Key = tuple[str, str, str, str, str]  # values of `dataset_columns.CANDIDATE`
# (key of a workload, hash of code) -> the first config with that code
ConfigByHash = MutableMapping[tuple[str, str], Config]
_PRIVATE = ("uuid",)  # serial numbers of devices are not written
_FOLDER = re.compile(r"(?<![\w.])/(?:[\w.+@~-]+/)+")  # nor are folders of the machine, in messages
# fields of a protocol that must be equal, so that times can be compared
_CONDITIONS = ("l2", "launch", "inputs", "input_sets", "version")


class DatasetWriter:
    """Rows of an existing file and of a new run, with facts about the runs."""

    def __init__(self, path: Path, run: str, facts: Mapping[str, Any]) -> None:
        """Begin with the rows of `path`, if it exists.

        Args:
            path: the Parquet file.
            run: id of the new run.
            facts: metadata of the new run.

        Raises:
            InputError: `path` exists and is no dataset.
        """
        existing = read_dataset(path) if path.exists() else None
        self.path, self.run = path, run
        self._runs: dict[str, Any] = dict(existing.runs) if existing else {}
        self._facts: dict[str, Any] = {**facts, "environment": {}, "protocol": {}, "vendor": {}}
        self._rows: dict[Key, Row] = {}
        self._added = 0
        for row in _plain_rows(existing) if existing else []:
            self._rows[_row_key(row)] = row

    def __contains__(self, candidate: object) -> bool:
        return isinstance(candidate, Candidate) and _key(candidate) in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def codes(self) -> ConfigByHash:
        """The first config of each generated device code."""
        return self._first_configs("fingerprint")

    def binaries(self) -> ConfigByHash:
        """The first config of each binary."""
        return self._first_configs("binary")

    def _first_configs(self, column: str) -> ConfigByHash:
        found: ConfigByHash = {}
        for row in self._rows.values():
            if row.get(column) and row["failure_kind"] != "duplicate":
                found.setdefault((row["workload"], row[column]), Config(json.loads(row["config"])))
        return found

    def failed(
        self,
        candidate: Candidate,
        failure: Failure,
        lowered: Profiled | None = None,
        build: BuildResult | None = None,
    ) -> None:
        """Add a candidate that failed, with the results of the stages that it passed."""
        self._add(candidate, lowered, build, failure)

    def measured(
        self, candidate: Candidate, lowered: Profiled, build: BuildResult, measurement: Measurement
    ) -> None:
        """Add a candidate that was measured, with right or wrong results."""
        for part, found in (("environment", measurement.environment), ("protocol", measurement.protocol)):
            self._facts[part] = self._facts[part] or {
                name: value for name, value in found.items() if name not in _PRIVATE
            }
        times = (
            {}
            if measurement.failure
            else {"measured_us": measurement.latency_us, "samples_us": measurement.samples_us}
        )
        observed = (
            json.dumps(dict(measurement.observed), separators=(",", ":")) if measurement.observed else None
        )
        results = {"relative_error": measurement.relative_error, "observed": observed, **times}
        self._add(candidate, lowered, build, measurement.failure, results)

    def compared(
        self, finalists: Sequence[Candidate], again: Sequence[Measurement], vendor: Sequence[Baseline]
    ) -> None:
        """Record the vendor's times of a case, and the times of its finalists beside them.

        A finalist with wrong results becomes a failure: a race shows only now and then.
        """
        workload, target = finalists[0].workload, finalists[0].target.name
        pairs = list(zip(finalists, again, strict=True))
        self._facts["vendor"][workload.key] = {
            "times_us": {baseline.name: baseline.latency_us for baseline in vendor},
            "fastest": [
                {
                    "config": candidate.config.key,
                    "measured_us": self._rows[_key(candidate)].get("measured_us"),
                    "again_us": None if found.failure else found.latency_us,
                }
                for candidate, found in pairs
            ],
        }
        best = min(vendor, key=lambda baseline: baseline.latency_us, default=None)
        for row in self._of(workload, target):
            if best and not row.get("vendor_us"):
                row["vendor"], row["vendor_us"] = best.name, best.latency_us
        for candidate, found in pairs:
            if found.failure and found.is_wrong:
                nothing = {"measured_us": None, "samples_us": None, "relative_error": found.relative_error}
                self._rows[_key(candidate)] = {
                    **self._rows[_key(candidate)],
                    **nothing,
                    **_outcome(found.failure),
                }
        self._added += 1

    def is_compared(self, workload: Workload, target: str) -> bool:
        """Whether every measured row of the case has a vendor time or was measured without that library."""
        runs = {**self._runs, self.run: self._facts}
        measured = [row for row in self._of(workload, target) if row.get("measured_us")]
        return all(
            row.get("vendor_us") or workload.key in runs[row["run"]].get("vendor", {}) for row in measured
        )

    def fastest_us(self, workload: Workload, target: str) -> float | None:
        """The shortest time of a case in us; None if nothing was measured."""
        return min(
            (row["measured_us"] for row in self._of(workload, target) if row.get("measured_us")), default=None
        )

    def fastest(self, workload: Workload, target: str, version: str, count: int) -> list[Config]:
        """The `count` fastest verified configs of the template with that version, fastest first."""
        rows = [
            row
            for row in self._of(workload, target)
            if row.get("measured_us") and row["template_version"] == version
        ]
        return [
            Config(json.loads(row["config"]))
            for row in sorted(rows, key=lambda row: float(row["measured_us"]))[:count]
        ]

    def check(self, target: str, protocol: MeasurementProtocol) -> None:
        """Check before a long collection that `save` will work.

        Raises:
            InputError: the file cannot be written, or has times on `target` under other conditions than
                `protocol`.
            ToolchainError: pyarrow is missing.
        """
        wanted = {name: protocol.record()[name] for name in _CONDITIONS}
        for facts in self._runs.values():
            used = facts.get("protocol")
            if (
                used
                and facts.get("target", {}).get("name") == target
                and wanted != {name: used.get(name) for name in _CONDITIONS}
            ):
                theirs = (
                    _listed({name: used[name] for name in _CONDITIONS if name in used})
                    or "those of an earlier version"
                )
                raise InputError(
                    f"{self.path}: its times on {target} were taken under other conditions ({theirs}) than "
                    f"protocol {protocol.name} has "
                    f"({_listed(wanted)}), and cannot be compared with them; name another file"
                )
        write_dataset(self.path, self.dataset())

    def dataset(self) -> Dataset:
        """All rows sorted by case, so that equal samples make equal files."""
        rows = sorted(self._rows.values(), key=_row_key)
        used = {row["run"] for row in rows}
        runs = {**self._runs, self.run: self._facts}
        return Dataset.of(rows, {name: facts for name, facts in runs.items() if name in used})

    def save(self) -> bool:
        """Write the file if rows were added. Returns whether it was written."""
        if not self._added:
            return False
        write_dataset(self.path, self.dataset())
        self._added = 0
        return True

    def _of(self, workload: Workload, target: str) -> list[Row]:
        return [
            row for row in self._rows.values() if (row["workload"], row["target"]) == (workload.key, target)
        ]

    def _add(
        self,
        candidate: Candidate,
        lowered: Profiled | None,
        build: BuildResult | None,
        failure: Failure | None,
        results: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        resources = build.resources if build else {}
        row = {
            **_identity(candidate),
            **_outcome(failure),
            "fingerprint": lowered.fingerprint if lowered else None,
            "profile": profiles_text(lowered.kernels) if lowered else None,
            "binary": (build.binary or None) if build else None,
            **{name: resources.get(name) for name in ("registers", "spill_bytes", "smem_bytes")},
            **results,
            "run": self.run,
        }
        # One assignment, since an interrupt may come between any two statements, and all rows are saved then.
        self._rows[_key(candidate)] = row
        self._added += 1


def _outcome(failure: Failure | None) -> Row:
    if failure is None:
        return {"status": Status.VERIFIED.value, "failure_kind": None, "failure": None}
    return {
        "status": Status.FAILED.value,
        "failure_kind": failure.kind.value,
        "failure": _FOLDER.sub("", failure.message),
    }


def _listed(conditions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in conditions.items())


def _identity(candidate: Candidate) -> Row:
    workload, template = candidate.workload, candidate.template
    operator = template.operator
    return {
        "operator": workload.operator,
        "workload": workload.key,
        "shape": workload.name or ",".join(f"{name}={size}" for name, size in workload.dims.items()),
        "dims": json.dumps(dict(workload.dims), separators=(",", ":")),
        "dtype": workload.dtype,
        "attrs": json.dumps(dict(workload.attrs), separators=(",", ":")),
        "template": template.name,
        "template_version": template.version,
        "target": candidate.target.name,
        "config": candidate.config.key,
        "flops": float(operator.flops(workload)),
        "min_bytes": float(operator.min_bytes(workload)),
    }


def _key(candidate: Candidate) -> Key:
    template = candidate.template
    return (
        candidate.workload.key,
        candidate.target.name,
        template.name,
        template.version,
        candidate.config.key,
    )


def _row_key(row: Mapping[str, Any]) -> Key:
    return row["workload"], row["target"], row["template"], row["template_version"], row["config"]


def _plain_rows(dataset: Dataset) -> list[Row]:
    """The rows as dictionaries, with None for missing values."""
    frame = dataset.frame.astype(object)
    return [
        dict(zip(frame.columns, row, strict=True))
        for row in frame.where(dataset.frame.notna(), None).itertuples(index=False)
    ]
