"""The table of a benchmark: one row for each workload, and the ratios to vendors by operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ..problem.workload import Workload
from ..records.session import SessionResult
from ..records.trial import Status
from ..reports.numbers import number, percent
from ..reports.report import Report, Reported


@dataclass(frozen=True, slots=True)
class BenchRow:
    """The outcome of one workload.

    Attributes:
        workload: what was tuned.
        status: `verified` for a measured time, `predicted` for a prediction, else the kind of the failure.
        ours_us: time of the best kernel; None if there is none.
        config: its config, as text.
        vendors_us: measured times of vendor implementations in the same run, by name.
        limit_us: least time that the hardware allows; NaN if it is not known.
        tflops: rate of the kernel's operations in TFLOP/s; None without a time.
        gb_per_s: rate of the bytes that must move in GB/s; None without a time.
        dram_share: that rate as a share of the target's device memory bandwidth; None without a time.
        candidates: number of candidates that were tried.
        measured: number of them that were measured.
        seconds: of the session.
        message: why there is no measured time; "" otherwise.
    """

    workload: Workload
    status: str
    ours_us: float | None = None
    config: str = ""
    vendors_us: Mapping[str, float] = field(default_factory=dict)
    limit_us: float = math.nan
    tflops: float | None = None
    gb_per_s: float | None = None
    dram_share: float | None = None
    candidates: int = 0
    measured: int = 0
    seconds: float = 0.0
    message: str = ""

    @classmethod
    def of(cls, result: SessionResult) -> BenchRow:
        """The row of a session."""
        best, limit = result.best, result.limit
        measured = sum(trial.measurement is not None for trial in result.trials)
        common: dict[str, Any] = {
            "candidates": len(result.trials),
            "measured": measured,
            "seconds": result.seconds,
            "limit_us": limit.latency_us,
            "vendors_us": {baseline.name: baseline.latency_us for baseline in result.baselines},
        }
        workload = result.context.workload
        if best is None:
            failure = next((trial.failure for trial in result.trials if trial.failure), None)
            kind = failure.kind.value if failure else "failed"
            return cls(workload, kind, message=failure.message if failure else "", **common)
        us = best.measured_us if result.is_measured else best.predicted_us
        chip = result.chip
        rate = None if us is None else limit.gb_per_s(us)
        return cls(
            workload,
            (Status.VERIFIED if best.measured_us is not None else best.status).value,
            us,
            str(best.config),
            tflops=None if us is None else limit.tflops(us),
            gb_per_s=rate,
            dram_share=None if rate is None or chip is None else rate / chip.dram_gb_per_s,
            message=next(iter(result.messages), "") if best.measured_us is None else "",
            **common,
        )

    @property
    def is_measured(self) -> bool:
        return self.status == Status.VERIFIED.value

    @property
    def fastest_vendor(self) -> tuple[str, float] | None:
        """Name and time in us of the fastest vendor implementation."""
        return min(self.vendors_us.items(), key=lambda item: item[1], default=None)

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the fastest vendor implementation; None unless both are measured."""
        vendor = self.fastest_vendor
        return vendor[1] / self.ours_us if vendor and self.ours_us and self.is_measured else None

    def fields(self) -> dict[str, Any]:
        """The row for JSON."""
        workload = self.workload
        return {
            "operator": workload.operator,
            "shape": workload.name,
            "dims": dict(workload.dims),
            "attrs": dict(workload.attrs),
            "dtype": workload.dtype,
            "status": self.status,
            "ours_us": self.ours_us,
            "vendors_us": dict(self.vendors_us),
            "ratio": self.ratio,
            "limit_us": self.limit_us,
            "tflops": self.tflops,
            "gb_per_s": self.gb_per_s,
            "dram_share": self.dram_share,
            "candidates": self.candidates,
            "measured": self.measured,
            "seconds": round(self.seconds, 2),
            "config": self.config,
            "message": self.message,
        }


@dataclass(frozen=True, repr=False)
class BenchTable(Reported):
    """All rows of a benchmark. `print` shows it as `tilesight bench` does.

    Attributes:
        target: name of the target.
        device: the measured device; "" if nothing was measured.
        date: day of the run, as ISO 8601.
        effort: of the sessions.
        software: versions by name.
        rows: in the order of the run.
    """

    target: str
    device: str
    date: str
    effort: str
    software: Mapping[str, str]
    rows: tuple[BenchRow, ...]

    @property
    def operators(self) -> list[str]:
        return list(dict.fromkeys(row.workload.operator for row in self.rows))

    def of(self, operator: str) -> list[BenchRow]:
        """The rows of one operator."""
        return [row for row in self.rows if row.workload.operator == operator]

    def fields(self) -> dict[str, Any]:
        """The table for JSON."""
        return {
            "target": self.target,
            "device": self.device,
            "date": self.date,
            "effort": self.effort,
            "software": dict(self.software),
            "rows": [row.fields() for row in self.rows],
            "summary": [{"operator": operator, **summary(self.of(operator))} for operator in self.operators],
        }

    def report(self) -> Report:
        """A table for each operator, then the ratios of all."""
        report = Report()
        where = (
            f"measured on {self.device}, {self.date}" if self.device else "predicted, nothing was measured"
        )
        report.text(f"{self.target}, effort {self.effort}, {where}", bold=True)
        for operator in self.operators:
            rows = self.of(operator)
            names = list(dict.fromkeys(name for row in rows for name in row.vendors_us))
            report.text()
            report.text(operator, bold=True)
            columns = ["shape", "dtype", "ours us", *names, "ratio", "of limit", "of DRAM", "s"]
            cells = [
                [
                    row.workload.name or shape_text(row.workload),
                    row.workload.dtype,
                    _ours(row),
                    *(number(row.vendors_us.get(name)) for name in names),
                    number(row.ratio, 3),
                    percent(row.limit_us / row.ours_us if row.ours_us else None),
                    percent(row.dram_share),
                    f"{row.seconds:.0f}",
                ]
                for row in rows
            ]
            report.table(columns, cells, right=columns[2:], folded=["shape"])
            for message in dict.fromkeys(row.message for row in rows if row.message):
                of = [row.workload.name or shape_text(row.workload) for row in rows if row.message == message]
                report.text(f"{'all' if len(of) == len(rows) > 1 else '; '.join(of)}: {message}")
        rated = [operator for operator in self.operators if summary(self.of(operator))["rated"]]
        if rated:
            report.text()
            report.text("times as fast as the fastest vendor implementation of each workload", bold=True)
            columns = ["operator", "workloads", "geometric mean", "worst", "best"]
            totals = {operator: summary(self.of(operator)) for operator in rated}
            report.table(
                columns,
                [
                    [operator, found["rated"], *(number(found[key], 3) for key in ("mean", "worst", "best"))]
                    for operator, found in totals.items()
                ],
                right=columns[1:],
            )
        if any(row.status == Status.PREDICTED.value for row in self.rows):
            report.text("~: predicted, not measured")
        return report


def summary(rows: Sequence[BenchRow]) -> dict[str, float | int | None]:
    """Number of rows with a ratio, and the geometric mean, least and greatest of these ratios."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if not ratios:
        return {"rated": 0, "mean": None, "worst": None, "best": None}
    mean = math.exp(fmean(map(math.log, ratios)))
    return {"rated": len(ratios), "mean": mean, "worst": min(ratios), "best": max(ratios)}


def shape_text(workload: Workload) -> str:
    """Dimensions and attributes as `--shape` reads them."""
    return ",".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in {**workload.dims, **workload.attrs}.items()
    )


def _ours(row: BenchRow) -> str:
    if row.ours_us is None:
        return row.status
    return number(row.ours_us) if row.is_measured else f"~{number(row.ours_us)}"
