"""Make one corpus of what was captured: some candidates of each kernel, those that lower.

    python experiments/outside/choose.py CAPTURED --out CORPUS [--lower-s 600] [--processes 2]

Of a kernel at most `MOST` candidates in at most `MOST_GROUPS` groups are taken, groups with three or more
configs and large ones first; none with an empty tensor. Each is lowered for the target in a worker process,
and left out if TileLang refuses it. What was not lowered when `--lower-s` ended stays in. Outcomes are kept
in CAPTURED/lowered.json, so that a second call goes on. CORPUS.tar.xz is written beside CORPUS, reasons into
CAPTURED/chosen.json.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tarfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from corpus import Candidate, Corpus, in_order  # noqa: E402

MOST, MOST_GROUPS, MOST_OF_GROUP = 9, 3, 4
LOWER_LIMIT_S = 60.0
LARGEST_INDEX = 2**28
LARGE_BYTES = 4e9  # larger ones come last


def chosen(candidates: Iterable[Candidate], refused: Iterable[str] = ()) -> list[Candidate]:
    """Some candidates of each kernel; none whose key is in `refused`."""
    refused = set(refused)
    kernels: dict[str, dict[str, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
    known: set[str] = set()
    for one in candidates:
        is_empty = any(a.shape is not None and 0 in a.shape for a in one.arguments)
        if one.key not in known and one.key not in refused and not is_empty:
            known.add(one.key)
            kernels[one.name][one.group].append(one)
    found = []
    for groups in kernels.values():
        ranked = sorted(groups.values(), key=_rank, reverse=True)
        step = max(1, len(ranked) // MOST_GROUPS)
        mine = [ranked[0], *ranked[1::step]][: MOST_GROUPS if len(ranked[0]) > 1 else 2 * MOST_GROUPS]
        taken = 0
        for group in mine:
            room = min(MOST_OF_GROUP if len(mine) > 1 else 8, MOST - taken)
            found += group[:room]
            taken += min(room, len(group))
    return found


def _rank(group: list[Candidate]) -> tuple[bool, bool, float]:
    size = group[0].bytes
    return len(group) >= 3, size <= LARGE_BYTES, size


def lower_one(item: tuple[str, Path, Candidate]) -> None:
    """Lower a candidate. Raises what TileLang raises."""
    from tilesight.lowering.lower import lower
    from tilesight.target.spec import load_target

    target, folder, candidate = item
    lower(Corpus(folder).function(candidate), load_target(target), candidate.pass_configs)


def holds_addresses(candidate: Candidate, corpus: Corpus) -> bool:
    """Whether a tensor of integers holds addresses of the capturing process, or memory that nobody wrote."""
    import numpy as np

    for one in candidate.arguments:
        if one.dtype in ("int32", "int64") and one.content.startswith("file:"):
            values = np.frombuffer(corpus.get("contents", one.content.removeprefix("file:")), one.dtype)
            if values.size and max(abs(int(values.min())), abs(int(values.max()))) > LARGEST_INDEX:
                return True
    return False


def lower_all(
    items: list[tuple[str, Path, Candidate]], processes: int, outcomes: dict[str, str], until: float
) -> None:
    """Lower candidates until `time.monotonic()` says `until`; `outcomes` gets "" or why not, by key."""
    from tilesight.workers import Done, WorkerPool

    begun = (item for item in items if time.monotonic() < until)
    keys = [candidate.key for _, _, candidate in items]
    with WorkerPool(processes, timeout_s=LOWER_LIMIT_S, preload=preload) as pool:
        for number, outcome in pool.run(lower_one, begun):
            outcomes[keys[number]] = "" if isinstance(outcome, Done) else _said(outcome)


def preload() -> None:
    import tilelang  # noqa: F401

    from tilesight.lowering import lower  # noqa: F401


def main(given: argparse.Namespace) -> None:
    parts = sorted(path for path in (given.captured / "parts").iterdir() if path.is_dir())
    where: dict[str, Path] = {}
    for part in parts:
        for candidate in Corpus(part):
            where.setdefault(candidate.key, part)
    every = [
        candidate
        for part in parts
        for candidate in Corpus(part)
        if where[candidate.key] == part and not holds_addresses(candidate, Corpus(part))
    ]
    log = given.captured / "lowered.json"
    outcomes: dict[str, str] = json.loads(log.read_text()) if log.exists() else {}
    until = time.monotonic() + given.lower_s
    for _ in range(2):  # what is refused leaves room for others
        refused = {key for key, said in outcomes.items() if said}
        todo = [one for one in in_order(chosen(every, refused)) if one.key not in outcomes]
        if todo and time.monotonic() < until:
            lower_all([(given.target, where[one.key], one) for one in todo], given.processes, outcomes, until)
            log.write_text(json.dumps(outcomes))
    final = chosen(every, {key for key, said in outcomes.items() if said})
    write(given.out, final, where)
    report(given, final, every, outcomes)


def write(out: Path, final: list[Candidate], where: dict[str, Path]) -> None:
    """The corpus and its archive."""
    shutil.rmtree(out, ignore_errors=True)
    corpus = Corpus(out)
    for candidate in final:
        contents = [a.content[5:] for a in candidate.arguments if a.content.startswith("file:")]
        for kind, names in (("functions", [candidate.function]), ("contents", contents)):
            for name in names:
                target = out / kind / f"{name}.xz"
                if not target.exists():
                    shutil.copyfile(where[candidate.key] / kind / target.name, target)
    corpus.rewrite(final)
    pack(out, out.parent / f"{out.name}.tar.xz")


def pack(folder: Path, archive: Path) -> None:
    """An archive in which functions share one dictionary: they are stored there as they are, less spaces."""

    corpus = Corpus(folder)
    with tarfile.open(archive, "w:xz", preset=2) as tar:
        tar.add(folder / "index.jsonl", "index.jsonl")
        for kind in ("functions", "contents"):
            for path in sorted((folder / kind).glob("*.xz")):
                raw = corpus.get(kind, path.stem)
                if kind == "functions":
                    raw = json.dumps(json.loads(raw), separators=(",", ":")).encode()
                entry = tarfile.TarInfo(f"{kind}/{path.stem}.raw")
                entry.size = len(raw)
                tar.addfile(entry, io.BytesIO(raw))


def report(
    given: argparse.Namespace, final: list[Candidate], every: list[Candidate], outcomes: dict[str, str]
) -> None:
    files = [json.loads(path.read_text()) for path in sorted((given.captured / "files").glob("*.json"))]
    said: dict[str, Any] = {}
    for repository in sorted({one["file"].partition("/")[0] for one in files}):
        mine = [one for one in files if one["file"].startswith(f"{repository}/")]
        taken = [one for one in final if one.name.startswith(f"{repository}/")]
        reasons: Counter[str] = Counter()
        for one in mine:
            reasons.update(one["left_out"])
        keys = {one.key for one in every if one.name.startswith(f"{repository}/")}
        refused = Counter(said[:60] for key, said in outcomes.items() if said and key in keys)
        said[repository] = {
            "files": len(mine),
            "files_without_a_kernel": sum(one["captured"] == 0 for one in mine),
            "captured_candidates": len(keys),
            "kernels": len({one.name for one in taken}),
            "groups": len({one.group for one in taken}),
            "candidates": len(taken),
            "lowered": sum(outcomes.get(one.key) == "" for one in taken),
            "left_out": dict(reasons.most_common(12)),
            "refused_by_tilelang": dict(refused.most_common(12)),
        }
    sized: Counter[str] = Counter(one.group for one in final)
    said["all"] = {
        "kernels": len({one.name for one in final}),
        "groups": len(sized),
        "groups_with_three_configs": sum(count >= 3 for count in sized.values()),
        "candidates": len(final),
        "with_run_time_sizes": sum(bool(one.sizes) for one in final),
        "with_integers": sum(any(a.content for a in one.arguments) for one in final),
    }
    (given.captured / "chosen.json").write_text(json.dumps(said, indent=1))
    print(json.dumps(said, indent=1))


def _said(outcome: Any) -> str:
    if hasattr(outcome, "type_name"):
        return f"{outcome.type_name}: {outcome.message}"[:300] or "?"
    return type(outcome).__name__


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make one corpus of what was captured.")
    parser.add_argument("captured", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--lower-s", type=float, default=600.0)
    parser.add_argument("--processes", type=int, default=2)
    main(parser.parse_args())
