"""Refreshing a dataset: the profiles of its rows read anew, after the profile reader has changed. Measures nothing.

What was measured was one program. Its profile is replaced only where the same program comes out of lowering today.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import kernels
from .candidate import Candidate
from .dataset import Dataset, read_dataset, write_dataset
from .errors import Failure, TileSightError
from .jobs import Profiled
from .kept import reader_version
from .observers import Observer
from .profile_json import profiles_text
from .settings import load_settings
from .space import Config
from .target import Target, load_target
from .work import lower_all
from .workload import Workload

SAME, CHANGED = "same", "changed"
OTHER_CODE = "lower to other code today than was measured"
UNKNOWN = "are of a kernel, template or target that is not known here"
NOT_LOWERED = "do not lower today"


@dataclass(frozen=True)
class Refreshed:
    """How many rows had their profile replaced by another (`changed`), by an equal one (`same`), and kept it, by reason."""

    outcomes: Mapping[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, Any]:
        kept = {reason: count for reason, count in self.outcomes.items() if reason not in (SAME, CHANGED)}
        return {"changed": self.outcomes.get(CHANGED, 0), "same": self.outcomes.get(SAME, 0), "kept": kept}

    def text(self) -> str:
        counts = self.counts()
        kept = "".join(f"; {count} rows kept their profile: they {reason}" for reason, count in counts["kept"].items())
        return f"{counts['changed']} profiles changed, {counts['same']} are as they were{kept}"


def refresh(path: str | Path, *, workers: int | None = None, observer: Observer | None = None) -> Refreshed:
    """Lower the rows of the dataset `path` anew and replace their profiles.

    What is done goes to `path`.refresh until all of it is: interrupted, the same call goes on there. Rows that lower to
    other code than was measured (their template or TileLang has changed) keep their profile.
    """
    from .executor import LocalExecutor

    path, observer = Path(path), observer or Observer()
    dataset = read_dataset(path)
    rows = dataset.frame[dataset.frame["profile"].notna()]
    found = _Progress(path, reader_version())
    candidates: dict[Candidate, list[int]] = {}  # several rows: measured under several versions of the template
    targets = {name: _target(name) for name in rows["target"].unique()}
    for position, row in zip(rows.index.tolist(), rows.to_dict("records"), strict=True):
        candidate = _candidate(row, targets[row["target"]])
        if candidate is not None:
            candidates.setdefault(candidate, []).append(position)
        else:
            found.outcomes[position] = UNKNOWN
    todo = [candidate for candidate, positions in candidates.items() if any(p not in found.outcomes for p in positions)]
    observer.phase("refresh", len(todo))
    settings = load_settings()
    # the fingerprint must be that of the code itself, to be held against the one that was measured
    with found, LocalExecutor(workers or settings.workers, settings.cache_dir) as executor:
        for candidate, lowered in lower_all(executor, todo):
            observer.advanced()
            for position in candidates[candidate]:
                found.add(position, *_outcome(rows.loc[position], lowered))
    result = Refreshed(Counter(found.outcomes.values()))
    observer.phase_done(result.text())
    write_dataset(path, _replaced(dataset, found.profiles))
    found.path.unlink(missing_ok=True)
    return result


def _outcome(row: Any, lowered: Profiled | Failure) -> tuple[str, str | None]:
    """What became of a row, and its profile where it was read anew."""
    if isinstance(lowered, Failure):
        return NOT_LOWERED, None
    if lowered.fingerprint != row["fingerprint"]:
        return OTHER_CODE, None
    text = profiles_text(lowered.kernels)
    return SAME if text == row["profile"] else CHANGED, text


class _Progress:
    """Outcomes and profiles by row number; in a file beside the dataset while they are not all there."""

    def __init__(self, dataset: Path, version: str) -> None:
        self.path = dataset.with_name(dataset.name + ".refresh")
        self.outcomes: dict[int, str] = {}
        self.profiles: dict[int, str] = {}
        stat = dataset.stat()
        # what was read by other code, or for another file, is of no use
        self._head = {"reader": version, "size": stat.st_size, "time": stat.st_mtime_ns}
        self._read()

    def __enter__(self) -> None:
        whole = [self._head, *({"row": p, "outcome": o, "profile": self.profiles.get(p)} for p, o in self.outcomes.items())]
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
                except ValueError:  # cut off when it was written
                    return


def _target(name: str) -> Target | None:
    try:
        return load_target(name)
    except TileSightError:
        return None


def _candidate(row: Mapping[Any, Any], target: Target | None) -> Candidate | None:
    """The row's candidate; None where its kernel, template or target is not known."""
    if target is None:
        return None
    try:
        operator = kernels.operator(row["operator"])
        template = next(t for t in kernels.templates(operator.name) if t.name == row["template"])
    except (TileSightError, StopIteration):
        return None
    workload = Workload(operator.name, json.loads(row["dims"]), row["dtype"], json.loads(row["attrs"]))
    return Candidate(workload, target, template, Config(json.loads(row["config"])))


def _replaced(dataset: Dataset, profiles: Mapping[int, str]) -> Dataset:
    frame = dataset.frame.copy()
    frame.loc[list(profiles), "profile"] = list(profiles.values())
    return replace(dataset, frame=frame)
