"""Measured candidates of one workload, out of datasets: what an explanation compares with where no session is at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..dataset import profiles_of, read_dataset
from ..errors import InputError
from ..profile import KernelProfile
from ..space import Config
from ..target import Target
from ..workload import Workload

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class MeasuredRows:
    """By config: median times, profiles as stored, and the counters of those rows that have them."""

    template_version: str  # that they were measured with
    times_us: Mapping[Config, float]
    profiles: Mapping[Config, str]
    counters: Mapping[Config, Mapping[str, float]]
    compiled: Mapping[Config, Mapping[str, float]]  # registers, spill_bytes and smem_bytes, as the compiler says
    fingerprints: Mapping[Config, str]  # of the generated code that was measured
    runs: Mapping[Config, str]  # id of the run that measured it

    @property
    def best(self) -> Config:
        return min(self.times_us, key=lambda config: self.times_us[config])

    def kernels(self, config: Config) -> tuple[KernelProfile, ...] | None:
        text = self.profiles.get(config)
        return None if text is None else profiles_of(text)


def measured_rows(paths: Paths, workload: Workload, target: Target, template_version: str = "") -> MeasuredRows:
    """The verified rows of `workload` on `target`. Where several versions of the template were measured, those of
    `template_version`, else the version that comes last. Raises `InputError` where there is no such row."""
    frame = read_dataset(paths).verified().frame
    own = frame[(frame["workload"] == workload.key) & (frame["target"] == target.name)]
    if own.empty:
        near = frame[(frame["operator"] == workload.operator) & (frame["target"] == target.name)]
        names = list(dict.fromkeys(f"{shape} ({dtype})" for shape, dtype in zip(near["shape"], near["dtype"], strict=True)))
        have = f"they have {', '.join(names)}" if names else f"they have no {workload.operator} on {target.name} at all"
        raise InputError(f"the datasets have no measured row of {workload.label} on {target.name}; {have}")
    versions = list(dict.fromkeys(own["template_version"]))
    version = template_version if template_version in versions else versions[-1]
    rows = own[own["template_version"] == version]
    configs = [Config(json.loads(text)) for text in rows["config"]]
    compiled = rows[["registers", "spill_bytes", "smem_bytes"]].to_dict("records")
    return MeasuredRows(
        version,
        dict(zip(configs, map(float, rows["measured_us"]), strict=True)),
        dict(zip(configs, rows["profile"], strict=True)),
        {config: json.loads(text) for config, text in zip(configs, rows["counters"], strict=True) if isinstance(text, str)},
        {config: {str(k): v for k, v in row.items() if v == v} for config, row in zip(configs, compiled, strict=True)},  # no NaN
        {config: text for config, text in zip(configs, rows["fingerprint"], strict=True) if isinstance(text, str)},
        dict(zip(configs, rows["run"], strict=True)),
    )
