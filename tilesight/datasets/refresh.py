"""Refresh of a dataset: profiles are read again after a change of the profile reader, nothing is measured.

A row's profile is replaced only if its candidate lowers to the same code that was measured.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import kernels
from ..errors import Failure, TileSightError
from ..executor.jobs import lower_all
from ..executor.profile_cache import reader_version
from ..executor.tasks import Profiled
from ..problem.candidate import Candidate
from ..problem.space import Config
from ..profile.codec import profiles_text
from ..records.dataset import Dataset, read_dataset, workload_of, write_dataset
from ..settings import load_settings
from ..target.spec import Target, load_target
from ..tuner.observers import Observer

SAME, CHANGED = "same", "changed"
OTHER_CODE = "lower to other code than the measured one"
UNKNOWN = "have a kernel, template or target that is unknown here"
NOT_LOWERED = "do not lower"


@dataclass(frozen=True)
class RefreshResult:
    """Number of rows by outcome: `SAME`, `CHANGED`, or the reason why the profile was kept."""

    outcomes: Mapping[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, Any]:
        """Changed, equal and kept profiles, as JSON fields."""
        kept = {reason: count for reason, count in self.outcomes.items() if reason not in (SAME, CHANGED)}
        return {"changed": self.outcomes.get(CHANGED, 0), "same": self.outcomes.get(SAME, 0), "kept": kept}

    def text(self) -> str:
        """The counts as a sentence."""
        counts = self.counts()
        kept = "".join(
            f"; {count} rows kept their profile: they {reason}" for reason, count in counts["kept"].items()
        )
        return f"{counts['changed']} profiles changed, {counts['same']} are unchanged{kept}"


def refresh(
    path: str | Path, *, workers: int | None = None, observer: Observer | None = None
) -> RefreshResult:
    """Lower the rows of a dataset again and replace their profiles.

    Outcomes go to `path`.refresh until the refresh is complete, so that an interrupted one is continued by
    the same call. Rows that lower to other code than the measured one (after a change of template or
    TileLang) keep their profile.

    Args:
        path: the Parquet file.
        workers: number of processes that lower; None for the setting.
        observer: receives progress.

    Raises:
        InputError: the file is no dataset, or cannot be written.
        ToolchainError: pyarrow is missing.
    """
    from ..executor.local import LocalExecutor

    path, observer = Path(path), observer or Observer()
    dataset = read_dataset(path)
    rows = dataset.frame[dataset.frame["profile"].notna()]
    progress = _Progress(path, reader_version())
    candidates: dict[
        Candidate, list[int]
    ] = {}  # several rows: measured under several versions of the template
    targets = {name: _target(name) for name in rows["target"].unique()}
    for position, row in zip(rows.index.tolist(), rows.to_dict("records"), strict=True):
        candidate = _candidate(row, targets[row["target"]])
        if candidate is not None:
            candidates.setdefault(candidate, []).append(position)
        else:
            progress.outcomes[position] = UNKNOWN
    pending = [
        candidate
        for candidate, positions in candidates.items()
        if any(p not in progress.outcomes for p in positions)
    ]
    observer.phase("refresh", len(pending))
    settings = load_settings()
    with progress, LocalExecutor(workers or settings.workers, settings.cache_dir) as executor:
        for candidate, lowered in lower_all(executor, pending):
            observer.advanced()
            for position in candidates[candidate]:
                progress.add(position, *_outcome(rows.loc[position], lowered))
    result = RefreshResult(Counter(progress.outcomes.values()))
    observer.phase_done(result.text())
    write_dataset(path, _replaced(dataset, progress.profiles))
    progress.path.unlink(missing_ok=True)
    return result


def _outcome(row: Any, lowered: Profiled | Failure) -> tuple[str, str | None]:
    """Outcome of a row, and its profile unless the row keeps the old one."""
    if isinstance(lowered, Failure):
        return NOT_LOWERED, None
    if lowered.fingerprint != row["fingerprint"]:
        return OTHER_CODE, None
    text = profiles_text(lowered.kernels)
    return SAME if text == row["profile"] else CHANGED, text


class _Progress:
    """Outcomes and profiles by row number, kept in a file beside the dataset until all rows are done."""

    def __init__(self, dataset: Path, version: str) -> None:
        self.path = dataset.with_name(dataset.name + ".refresh")
        self.outcomes: dict[int, str] = {}
        self.profiles: dict[int, str] = {}
        stat = dataset.stat()
        # progress of another profile reader, or on another file, is ignored
        self._head = {"reader": version, "size": stat.st_size, "time": stat.st_mtime_ns}
        self._read()

    def __enter__(self) -> None:
        whole = [
            self._head,
            *({"row": p, "outcome": o, "profile": self.profiles.get(p)} for p, o in self.outcomes.items()),
        ]
        self._file = self.path.open("w", encoding="utf-8")
        self._file.writelines(json.dumps(line) + "\n" for line in whole)

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, position: int, outcome: str, profile: str | None = None) -> None:
        self.outcomes[position] = outcome
        if profile is not None:
            self.profiles[position] = profile
        self._file.write(json.dumps({"row": position, "outcome": outcome, "profile": profile}) + "\n")
        self._file.flush()

    def _read(self) -> None:
        lines = self._lines() if self.path.exists() else iter(())
        if next(lines, None) != self._head:
            return
        for line in lines:
            self.outcomes[line["row"]] = line["outcome"]
            if line["profile"] is not None:
                self.profiles[line["row"]] = line["profile"]

    def _lines(self) -> Iterator[dict[str, Any]]:
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:  # an interrupt cut the last line off
                    return


def _target(name: str) -> Target | None:
    try:
        return load_target(name)
    except TileSightError:
        return None


def _candidate(row: Mapping[Any, Any], target: Target | None) -> Candidate | None:
    """The row's candidate; None if its kernel, template or target is unknown."""
    if target is None:
        return None
    try:
        template = next(t for t in kernels.templates(row["operator"]) if t.name == row["template"])
    except (TileSightError, StopIteration):
        return None
    return Candidate(workload_of(row), target, template, Config(json.loads(row["config"])))


def _replaced(dataset: Dataset, profiles: Mapping[int, str]) -> Dataset:
    frame = dataset.frame.copy()
    frame.loc[list(profiles), "profile"] = list(profiles.values())
    return replace(dataset, frame=frame)
