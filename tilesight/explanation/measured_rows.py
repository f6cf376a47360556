"""Measured candidates of one workload from datasets, for explanations without a tuning session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..problem.space import Config
from ..problem.workload import Workload
from ..profile.values import KernelProfile
from ..records.dataset import profiles_of, read_dataset
from ..target.spec import Target

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class MeasuredRows:
    """Measured rows of one workload, by config.

    Attributes:
        versions: version of the template that was measured.
        times_us: median times.
        profiles: profiles as JSON.
        counters: hardware counters, for rows that have them.
        compiled: registers, spill_bytes and smem_bytes, reported by the compiler.
        fingerprints: hashes of the generated code.
        runs: id of the run that measured the row.
    """

    versions: Mapping[Config, str]
    times_us: Mapping[Config, float]
    profiles: Mapping[Config, str]
    counters: Mapping[Config, Mapping[str, float]]
    compiled: Mapping[Config, Mapping[str, float]]
    fingerprints: Mapping[Config, str]
    runs: Mapping[Config, str]

    @property
    def best(self) -> Config:
        """The fastest config."""
        return min(self.times_us, key=lambda config: self.times_us[config])

    def kernels(self, config: Config) -> tuple[KernelProfile, ...] | None:
        """Profiles of the kernels of `config`; None if it has no row."""
        text = self.profiles.get(config)
        return None if text is None else profiles_of(text)


def measured_rows(paths: Paths, workload: Workload, target: Target) -> MeasuredRows:
    """The verified rows of `workload` on `target`. Of a config with several rows the last one counts.

    Args:
        paths: dataset files or folders.
        workload: the workload.
        target: the target.

    Raises:
        InputError: the files cannot be read, or have no such row.
    """
    frame = read_dataset(paths).verified().frame
    own = frame[(frame["workload"] == workload.key) & (frame["target"] == target.name)]
    if own.empty:
        near = frame[(frame["operator"] == workload.operator) & (frame["target"] == target.name)]
        names = list(
            dict.fromkeys(
                f"{shape} ({dtype})" for shape, dtype in zip(near["shape"], near["dtype"], strict=True)
            )
        )
        have = (
            f"they have {', '.join(names)}"
            if names
            else f"they have no {workload.operator} on {target.name} at all"
        )
        raise InputError(f"the datasets have no measured row of {workload.label} on {target.name}; {have}")
    rows = own.drop_duplicates("config", keep="last")
    configs = [Config(json.loads(text)) for text in rows["config"]]
    compiled = rows[["registers", "spill_bytes", "smem_bytes"]].to_dict("records")
    return MeasuredRows(
        dict(zip(configs, rows["template_version"], strict=True)),
        dict(zip(configs, map(float, rows["measured_us"]), strict=True)),
        dict(zip(configs, rows["profile"], strict=True)),
        {
            config: json.loads(text)
            for config, text in zip(configs, rows["counters"], strict=True)
            if isinstance(text, str)
        },
        {
            config: {str(k): v for k, v in row.items() if v == v}
            for config, row in zip(configs, compiled, strict=True)
        },
        {
            config: text
            for config, text in zip(configs, rows["fingerprint"], strict=True)
            if isinstance(text, str)
        },
        dict(zip(configs, rows["run"], strict=True)),
    )
