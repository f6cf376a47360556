"""How long an exploration takes on two cores: the first workload of a class, and ones with cached profiles.

    python experiments/exploration_speed/speed.py      # all rows, less than five minutes on a quiet machine
    python experiments/exploration_speed/speed.py FA         # the rows whose name begins with FA

Each row is one command in a process of its own, from its start to its end, on two cores and with two workers.
Rows of one group share a database that is empty at first. Nothing is measured on a GPU: use a machine without
one of the target. Lowerings are counted at the worker processes; those that are not of the asked workload
itself teach how profiles scale.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = "h200"
CORES = 2


@dataclass(frozen=True)
class Row:
    group: str
    kernel: str
    shape: str
    command: tuple[str, ...]  # of tilesight
    means: str


RANK, WHOLE = ("rank",), ("tune", "--effort", "exhaustive")
ROWS = (
    Row("FA", "flash_attention", "FA4", RANK, "first workload"),
    Row("FA", "flash_attention", "FA0", RANK, "second of the class"),
    Row("M", "matmul", "M0", WHOLE, "first workload, whole space"),
    Row("M", "matmul", "M1", RANK, "second of the class"),
    Row("M", "matmul", "M5", RANK, "third of the class"),
    Row("M", "matmul", "M5", RANK, "the same once more"),
)
HEAD = ("kernel", "shape", "what", "candidates", "lowered", "probes", "seconds", "cpu s", "load before")


def main(wanted: Sequence[str]) -> None:
    rows = [row for row in ROWS if not wanted or any(row.group.startswith(name) for name in wanted)]
    if not rows:
        sys.exit(
            f"no row begins with {', '.join(wanted)}; "
            f"there are {', '.join(sorted({row.group for row in ROWS}))}"
        )
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    print(f"{len(os.sched_getaffinity(0))} cores of {_processor()}, {time.strftime('%Y-%m-%d')}")
    print(" | ".join(HEAD), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            print(" | ".join(map(str, _timed(row, Path(folder)))), flush=True)


def _timed(row: Row, folder: Path) -> Iterator[Any]:
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    load = os.getloadavg()[0]
    arguments = [*row.command, row.kernel, "--target", TARGET, "--shape", row.shape, "--workers", str(CORES)]
    arguments += ["--db", str(folder / f"{row.group}.db")]
    before, begin = os.times(), time.perf_counter()
    run = subprocess.run(
        [sys.executable, __file__, "--count", str(report), *arguments], capture_output=True, text=True
    )
    seconds, after = time.perf_counter() - begin, os.times()
    if run.returncode or not report.exists():
        sys.exit(f"{' '.join(arguments)} failed:\n{run.stdout}\n{run.stderr}")
    counts = json.loads(report.read_text())
    # of the command and of the workers that it waited for
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    yield from (row.kernel, row.shape, row.means, counts["candidates"], counts["own"], counts["probes"])
    yield from (f"{seconds:.1f}", f"{cpu:.1f}", f"{load:.1f}")


def count(report: Path, arguments: Sequence[str]) -> None:
    """Run `tilesight ARGUMENTS` and write what was lowered, and how many candidates the result has."""
    from tilesight.cli.main import main as command
    from tilesight.executor import local as executor
    from tilesight.executor.jobs import LowerDone
    from tilesight.tuner import recorded

    counts = {"own": 0, "probes": 0, "candidates": 0}
    asked: list[str] = []
    stream, run = executor.LocalExecutor.stream, recorded.run_recorded

    def counted(self: Any, source: Any) -> Iterator[Any]:
        with closing(stream(self, source)) as events:
            for event in events:
                if isinstance(event, LowerDone):
                    counts["own" if event.job.candidate.workload.key == asked[0] else "probes"] += 1
                yield event

    def noted(request: Any, *others: Any) -> Any:
        asked.append(request.workload.key)
        result = run(request, *others)
        counts["candidates"] = len(result.trials)
        return result

    executor.LocalExecutor.stream = counted  # type: ignore[method-assign]
    recorded.run_recorded = noted  # type: ignore[assignment]
    sys.argv = ["tilesight", *arguments]
    try:
        command()
    except SystemExit as end:
        if end.code:
            raise
    report.write_text(json.dumps(counts))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        "an unnamed processor",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        count(Path(sys.argv[2]), sys.argv[3:])
    else:
        main(sys.argv[1:])
