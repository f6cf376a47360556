"""What it brings that headers are read once: seconds of a build and of a tuning session, by each way of
building (`ways.py`).

    python experiments/compilers/measure.py --out rows --seconds 560
    python experiments/compilers/measure.py --out rows --report

Builds are the same kernels for sm_90a from an empty kernel cache, by worker processes as in a session, and
need no GPU. Sessions run in a process of their own with an empty kernel cache, and a database that is empty
(`cold`) or has the profiles of the workload (`known`: exploring costs nothing, what is waited for is
building). Each measurement is a line of `rows.jsonl`; the same command goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import nvrtc
import ways

from tilesight import tune
from tilesight.candidate import Candidate
from tilesight.device import cpu_name, find_devices
from tilesight.executor import LocalExecutor
from tilesight.lookup import find_operator, find_template, find_workloads
from tilesight.observers import Observer
from tilesight.settings import available_cores
from tilesight.target import load_target
from tilesight.toolchain import compiler_version, find_nvcc, package_version
from tilesight.trial import BuildResult, TrialRecord
from tilesight.work import Build, Built, Lower, OneLane

# (kernel, shape, configs): 64 kernels
SAMPLE = (
    ("matmul", "M0", 14),
    ("matmul", "M1", 10),
    ("flash_attention", "FA4", 12),
    ("flash_attention", "FA1", 8),
    ("dequant_matmul", "D9", 8),
    ("gemv", "V5", 6),
    ("rms_norm", "R4", 6),
)
BUILD_TARGET = "h100"  # sm_90a, as h200
SESSIONS = ("flash_attention FA4", "matmul M0", "gemv V5")
SESSION_WAYS = (ways.HOOK, ways.NVCC, ways.NVRTC)
VARIANTS = ("cold", "known")
GUESS_S = 60.0  # that a session takes, before one was seen
ROWS = "rows.jsonl"

Row = dict[str, Any]


def main() -> None:
    asked = _arguments()
    if asked.nvrtc:
        os.environ[nvrtc.LIBRARY] = str(asked.nvrtc)
    if asked.one:
        what, *given = json.loads(asked.one)
        print(json.dumps(ONE[what](*given)))
        return
    if not asked.report:
        asked.out.mkdir(parents=True, exist_ok=True)
        Measuring(asked).run()
    report(rows_of(asked.out))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help=f"folder of {ROWS}")
    parser.add_argument("--report", action="store_true", help="only print the tables")
    parser.add_argument("--seconds", type=float, default=560.0, help="it ends within this time")
    parser.add_argument(
        "--workers", type=int, default=available_cores(), help="processes that lower and build"
    )
    parser.add_argument("--kernels", type=int, default=64, help="how many of the sample are built")
    parser.add_argument("--ways", default=",".join(ways.WAYS), help="of the builds; none: an empty text")
    parser.add_argument(
        "--sessions", nargs="*", default=SESSIONS, metavar="'KERNEL SHAPE'", help="most important first"
    )
    parser.add_argument("--session-ways", default=",".join(SESSION_WAYS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--target", default="auto", help="of the sessions")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--nvrtc", type=Path, help="libnvrtc.so.13, where it is in no package")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # what a process of its own measures
    return parser.parse_args()


# ---- what is measured in which order


@dataclass
class Measuring:
    """One run of this program, to its time limit."""

    asked: argparse.Namespace
    begin: float = field(default_factory=time.monotonic)
    took_s: dict[tuple[str, ...], float] = field(default_factory=dict)

    def run(self) -> None:
        self.machine = machine()
        self.done = {_key(row) for row in rows_of(self.asked.out)}
        for way in _listed(self.asked.ways):
            key = {"what": "builds", "way": way, "kernels": self.asked.kernels, "workers": self.asked.workers}
            self._measure(key, ["builds", way, self.asked.kernels, self.asked.workers], 0.0)
        with TemporaryDirectory() as folder:
            for session in self._sessions():
                kernel, shape, variant = session["kernel"], session["shape"], session["variant"]
                if _key({"what": "session", **session}) in self.done:
                    continue
                seed = self._seed(Path(folder), kernel, shape) if variant == "known" else ""
                if seed is None:
                    continue
                given = [
                    session["way"],
                    kernel,
                    shape,
                    self.asked.target,
                    self.asked.effort,
                    self.asked.workers,
                    seed,
                ]
                guess = self.took_s.get((kernel, shape, variant), GUESS_S)
                row = self._measure({"what": "session", **session}, ["session", *given], guess)
                if row:
                    self.took_s[kernel, shape, variant] = row["process_s"]

    def _sessions(self) -> Iterator[Row]:
        """Round by round, the ways in turns and each round in another order."""
        chosen, turn = _listed(self.asked.session_ways), 0
        for repetition in range(self.asked.repetitions):
            for session in self.asked.sessions:
                kernel, shape = session.split()
                for variant in _listed(self.asked.variants):
                    start = (turn + repetition) % len(chosen)
                    for way in chosen[start:] + chosen[:start]:
                        yield {
                            "way": way,
                            "kernel": kernel,
                            "shape": shape,
                            "variant": variant,
                            "repetition": repetition,
                        }
                    turn += 1

    def _seed(self, folder: Path, kernel: str, shape: str) -> str | None:
        """A database with the workload's profiles, made once; None where there is no time for that."""
        path = folder / f"{kernel}-{shape}.db"
        if not path.exists():
            given = [kernel, shape, self.asked.target, self.asked.workers, str(path)]
            if self._left() < GUESS_S or _apart(["seed", *given], self._left(), self.asked.nvrtc) is None:
                path.unlink(missing_ok=True)
                return None
        return str(path)

    def _measure(self, key: Row, one: list[Any], guess_s: float) -> Row | None:
        """Measure in a process of its own and keep the row; None where it is there already, or time does not
        suffice.
        """
        if _key(key) in self.done or self._left() < max(guess_s, 1.0):
            return None
        begin = time.perf_counter()
        found = _apart(one, self._left(), self.asked.nvrtc)
        if found is None:
            return None
        date = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        row = {
            **key,
            **found,
            "process_s": round(time.perf_counter() - begin, 2),
            "date": date,
            "machine": self.machine,
        }
        with open(self.asked.out / ROWS, "a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")
        print(
            f"{time.monotonic() - self.begin:5.0f} s  {' '.join(map(str, key.values()))}: {row['seconds']} s",
            file=sys.stderr,
            flush=True,
        )
        return row

    def _left(self) -> float:
        return self.asked.seconds - (time.monotonic() - self.begin)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        row.get(name)
        for name in ("what", "way", "kernels", "workers", "kernel", "shape", "variant", "repetition")
    )


def _apart(one: list[Any], limit_s: float, library: Path | None) -> Row | None:
    """What a process of its own measures; None where it fails or takes too long, which is said."""
    command = [sys.executable, __file__, "--out", ".", "--one", json.dumps(one)]
    command += ["--nvrtc", str(library)] if library else []
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=max(1.0, limit_s), check=True
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        print(f"{' '.join(map(str, one))}: {type(error).__name__}", file=sys.stderr, flush=True)
        return None
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def machine() -> Row:
    devices, nvcc = find_devices(), find_nvcc()
    return {
        "gpu": devices[0].name if devices else "",
        "driver": devices[0].driver if devices else "",
        "cpu": cpu_name(),
        "cores": available_cores(),
        "nvcc": compiler_version(nvcc) if nvcc else "",
        "nvrtc": nvrtc.version(),
        "tilelang": package_version("tilelang"),
        "python": sys.version.split()[0],
    }


# ---- builds


def sample(count: int) -> list[Candidate]:
    """The first so many of the fixed sample, whose kernels are mixed."""
    target, chosen = load_target(BUILD_TARGET), random.Random(0)
    found = []
    for kernel, shape, configs in SAMPLE:
        operator = find_operator(kernel)
        [workload] = find_workloads(operator, target, shape, None)
        template = find_template(operator, target, workload.dtype)
        space = template.space(workload, target).configs()
        found += [
            Candidate(workload, target, template, config) for config in chosen.sample(list(space), configs)
        ]
    chosen.shuffle(found)
    return found[:count]


def builds(way: str, count: int, workers: int) -> Row:
    ways.use(way)
    candidates, found = sample(count), list[Row]()
    with TemporaryDirectory() as folder:
        with LocalExecutor(workers, Path(folder)) as executor:
            executor.start()
            for _ in executor.stream(OneLane(Lower(candidate) for candidate in candidates[: 2 * workers])):
                pass  # a worker's first lowering takes longer, and sessions build after that
            begin, busy = time.perf_counter(), _busy_s()
            for event in executor.stream(OneLane(Build(candidate) for candidate in candidates)):
                if isinstance(event, Built):
                    found.append(_build_row(event.job.candidate, event.result))
            seconds, busy = time.perf_counter() - begin, _busy_s() - busy
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {"seconds": round(seconds, 2), **_build_figures(found)}
    # the whole machine's while it built; its processes' from their start, without those that a hooked front
    # end forks
    return {
        **figures,
        "machine_cpu_s": round(busy, 1),
        "children_cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "builds": found,
    }


def _build_row(candidate: Candidate, result: BuildResult) -> Row:
    return {
        "candidate": f"{candidate.workload.key} {candidate.config.key}",
        "seconds": round(result.seconds, 3),
        "binary": result.binary,
        **result.resources,
        "failure": f"{result.failure.kind}: {result.failure.message}" if result.failure else "",
    }


def _build_figures(found: Sequence[Row]) -> Row:
    """Over builds that did not fail. `quick`: how many did not read the headers."""
    good = [row for row in found if not row["failure"]]
    if len(good) < 2:
        return {"built": len(good), "failed": len(found) - len(good)}
    return {
        "built": len(good),
        "failed": len(found) - len(good),
        "quick": sum(row.get("quick", 0) for row in good),
        "median_s": round(median(row["seconds"] for row in good), 3),
        "p90_s": round(quantiles([row["seconds"] for row in good], n=10)[-1], 3),
        "compile_median_s": round(median(row.get("compile_ms", 0) for row in good) / 1000, 3),
        "build_sum_s": round(sum(row["seconds"] for row in good), 1),
        "compile_sum_s": round(sum(row.get("compile_ms", 0) for row in good) / 1000, 1),
    }


def _busy_s() -> float:
    """Seconds that this machine's cores have worked; 0 where the system does not say."""
    try:
        times = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, soft = map(int, times[:7])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


# ---- sessions


@dataclass
class Watch(Observer):
    """Notes when the phases of a session begin and end, what was built, and when the first measurement was
    there.
    """

    begin: float = field(default_factory=time.perf_counter)
    phases: list[Row] = field(default_factory=list)
    built: dict[str, Row] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    first_s: float | None = None

    def phase(self, name: str, total: int | None) -> None:
        self.phases.append({"name": name, "at_s": round(time.perf_counter() - self.begin, 2)})

    def phase_done(self, summary: str) -> None:
        now = time.perf_counter() - self.begin
        self.phases[-1] |= {"seconds": round(now - self.phases[-1]["at_s"], 2), "summary": summary}

    def trial(self, record: TrialRecord) -> None:
        if record.build is not None and record.config.key not in self.built:
            failure = record.build.failure
            why = f"{failure.kind}: {failure.message}" if failure else ""
            self.built[record.config.key] = {
                "seconds": record.build.seconds,
                **record.build.resources,
                "failure": why,
            }
        if record.measured_us is not None and self.first_s is None:
            self.first_s = round(time.perf_counter() - self.begin, 2)

    def message(self, text: str) -> None:
        self.messages.append(text)


def session(way: str, kernel: str, shape: str, target: str, effort: str, workers: int, seed: str) -> Row:
    ways.use(way)
    with TemporaryDirectory() as folder:
        database = Path(folder) / "session.db"
        if seed:
            shutil.copy(seed, database)
        os.environ |= {"TILESIGHT_DB": f"sqlite:///{database}", "TILESIGHT_CACHE_DIR": folder}
        watch = Watch()
        [found] = tune(kernel, target, shape, effort=effort, workers=workers, observer=watch)
        seconds = time.perf_counter() - watch.begin
    best = found.best
    assert best is not None  # a session without one raises
    built = list(watch.built.values())
    return {
        "seconds": round(seconds, 2),
        "phases": watch.phases,
        "first_s": watch.first_s,
        "best_us": best.measured_us or best.predicted_us,
        "best": best.config.key,
        "is_measured": found.is_measured,
        "target": target,
        "effort": effort,
        **_build_figures(built),
        "failures": dict(Counter(row["failure"] for row in built if row["failure"])),
        "messages": watch.messages,
    }


def seed(kernel: str, shape: str, target: str, workers: int, path: str) -> Row:
    """Explore the workload without building anything, in a database of its own."""
    with TemporaryDirectory() as folder:
        os.environ["TILESIGHT_CACHE_DIR"] = folder
        tune(kernel, target, shape, effort="predict", database=path, workers=workers)
    return {}


ONE = {"builds": builds, "session": session, "seed": seed}


# ---- what came out


def rows_of(folder: Path) -> list[Row]:
    path = folder / ROWS
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    )


def report(rows: Sequence[Row]) -> None:
    for place in {json.dumps(row["machine"]) for row in rows}:
        print(place)
    built = [row for row in rows if row["what"] == "builds"]
    if built:
        names = (
            "seconds",
            "median_s",
            "p90_s",
            "compile_median_s",
            "build_sum_s",
            "compile_sum_s",
            "machine_cpu_s",
            "children_cpu_s",
        )
        names += ("built", "quick", "failed")
        _print_table(
            ["way", "kernels", "workers", *names],
            [[row.get(n) for n in ("way", "kernels", "workers", *names)] for row in built],
        )
        _print_equality(built)
    sessions = [row for row in rows if row["what"] == "session"]
    if sessions:
        _print_sessions(sessions)


def _print_equality(built: Sequence[Row]) -> None:
    """How many kernels of each way are those of nvcc, and why the others are none."""
    reference = next((row for row in built if row["way"] == ways.NVCC), None)
    if reference is None:
        return
    expected, table = {row["candidate"]: row for row in reference["builds"]}, []
    for row in built:
        pairs = [
            (found, expected[found["candidate"]]) for found in row["builds"] if found["candidate"] in expected
        ]
        both = [(a, b) for a, b in pairs if not a["failure"] and not b["failure"]]
        counts = [sum(a[name] == b[name] for a, b in both) for name in ("binary", "registers", "spill_bytes")]
        more = (
            sum(a["registers"] > b["registers"] for a, b in both),
            sum(a["spill_bytes"] > b["spill_bytes"] for a, b in both),
        )
        table.append([row["way"], len(both), *counts, *more])
    _print_table(
        [
            "way, beside nvcc",
            "kernels",
            "equal code",
            "equal registers",
            "equal spills",
            "more registers",
            "more spills",
        ],
        table,
    )
    reasons = Counter(
        (row["way"], found["failure"]) for row in built for found in row["builds"] if found["failure"]
    )
    for (way, reason), count in sorted(reasons.items()):
        print(f"{way}: {count} failed, {reason}")


def _print_sessions(sessions: Sequence[Row]) -> None:
    """The medians of each kind of session, and its time beside nvcc's."""
    kinds: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in sessions:
        kinds.setdefault((row["kernel"], row["shape"], row["variant"]), {}).setdefault(row["way"], []).append(
            row
        )
    table = []
    for kind, by_way in kinds.items():
        base = median(row["seconds"] for row in by_way[ways.NVCC]) if ways.NVCC in by_way else None
        for way, found in by_way.items():
            seconds = median(row["seconds"] for row in found)
            phases = [
                _median(_phase_s(row, name) for row in found) for name in ("explore", "measure", "compare")
            ]
            times = " ".join(f"{row['seconds']:.1f}" for row in found)
            beside = f"{seconds / base:.2f}" if base else ""
            rest = [
                _median(row.get(name) for row in found)
                for name in ("first_s", "built", "quick", "failed", "median_s", "best_us")
            ]
            table.append([*kind, way, times, f"{seconds:.1f}", beside, *phases, *rest])
    head = [
        "kernel",
        "shape",
        "database",
        "way",
        "seconds",
        "median",
        "of nvcc's",
        "explore",
        "measure",
        "compare",
        "first",
    ]
    _print_table([*head, "built", "quick", "failed", "a build", "best us"], table)


def _phase_s(row: Row, name: str) -> float | None:
    return next((phase.get("seconds") for phase in row["phases"] if phase["name"] == name), None)


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 2) if known else None


def _print_table(head: Sequence[str], table: Sequence[Sequence[Any]]) -> None:
    print()
    for line in (head, ["---"] * len(head), *table):
        print("| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |")


if __name__ == "__main__":
    main()
