"""Collect Nsight Compute's counters for a sample of a dataset's candidates, into its `counters` column.

    python experiments/counters/collect_counters.py DATASET.parquet... --per-case 12 --out OUT.parquet
    [--budget 300]

The sample of each case has the fastest candidates, the fastest one that spills, and quantiles of the measured
time. Kernels come from the kernel cache or are built again. One process under ncu launches many of them; if
it dies, only the kernel that caused it is lost. Results are written to OUT.parquet.jsonl as they arrive. The
same command continues from there, and it leaves rows with counters unchanged.

Launches are matched to candidates by order. They are accepted only if the number of launches, and the grid
and block of each, are those of the stored profiles of the candidate.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

import ncu  # noqa: E402

FASTEST = 4  # fastest candidates of each case in the sample
CHUNK = 64  # launches of one process, which are lost if it hangs
START_S = 25.0  # limit of the time before the first launch of a process under ncu
PER_LAUNCH_S = 0.6  # estimate for the first chunk; measured afterwards
BUILD_SHARE = 0.6  # largest share of the budget for building
INPUT_SEED = 0  # counters do not depend on the values of inputs


@dataclass(frozen=True)
class Item:
    """A candidate to profile. `launches` are (grid, threads of a block) of each of its kernels, and `scratch`
    (shape, dtype) of each tensor that it takes after its outputs.
    """

    number: int  # of the dataset's row
    case: str
    operator: str
    shape: str
    dtype: str
    launches: tuple[tuple[tuple[int, int, int], int], ...]
    artifact: str = ""
    entry: str = ""
    scratch: tuple[tuple[tuple[int, ...], str], ...] = ()

    def job(self) -> dict[str, object]:
        names = ("number", "operator", "shape", "dtype", "artifact", "entry", "scratch")
        return {name: getattr(self, name) for name in names}


class MismatchError(Exception):
    """The launches that ncu reports are not those of the program."""


def sample(times: Sequence[tuple[int, float, bool]], count: int) -> list[int]:
    """Choose `count` rows of a case from (number, measured time, spills).

    They are the fastest rows, the fastest that spills, and others evenly over the order of times, with the
    slowest.
    """
    ordered = sorted(times, key=lambda row: (row[1], row[0]))
    if len(ordered) <= count:
        return [number for number, _, _ in ordered]
    picked = dict.fromkeys(number for number, _, _ in ordered[: min(FASTEST, count)])
    spilling = next((number for number, _, spills in ordered if spills), None)
    if spilling is not None and len(picked) < count:
        picked[spilling] = None
    rest = [number for number, _, _ in ordered if number not in picked]
    left = count - len(picked)
    for index in range(left):
        picked[rest[round((index + 1) * (len(rest) - 1) / left)]] = None
    return list(picked)


def shape_text(dims: str, attrs: str) -> str:
    """The dimensions and attributes of a row as text for `Operator.workload`."""
    values = {**json.loads(dims), **json.loads(attrs or "{}")}
    return ",".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()
    )


def pick(frame: Any, per_case: int, done: set[int]) -> list[Item]:
    """The sampled items of each case, without those that have counters or are among the rows `done`."""
    from tilesight.records.dataset import profiles_of

    items = []
    usable = frame[(frame["status"] == "verified") & frame["measured_us"].notna() & frame["profile"].notna()]
    for (workload, _), case in usable.groupby(["workload", "target"], sort=False):
        case = case.drop_duplicates("fingerprint")
        columns = (case.index, case["measured_us"], case["spill_bytes"] > 0)
        times = [
            (int(number), float(time_us), bool(spills))
            for number, time_us, spills in zip(*columns, strict=True)
        ]
        for number in sample(times, per_case):
            row = frame.loc[number]
            if number in done or isinstance(row["counters"], str):
                continue
            launches = tuple((tuple(p.grid), p.block_threads) for p in profiles_of(row["profile"]))
            items.append(
                Item(
                    number,
                    str(workload),
                    row["operator"],
                    shape_text(row["dims"], row["attrs"]),
                    row["dtype"],
                    launches,
                )
            )
    return items


def libraries(cache_dir: Path) -> dict[str, str]:
    """The libraries in the kernel cache by the identity of their binary."""
    found = {}
    for path in (cache_dir / "kernels").glob("*.json"):
        library = path.with_suffix(".so")
        if library.exists():
            found[str(json.loads(path.read_text())["binary"])] = str(library)
    return found


def build(
    items: Sequence[Item], frame: Any, cache_dir: Path, workers: int, until: float
) -> Iterator[Item | tuple[int, str]]:
    """Each item with its built library, in order, or (number, reason) if it could not be built.

    A library in the kernel cache is found by the binary of the dataset's row, which takes no lowering.
    """
    from dataclasses import replace

    from tilesight.builder.build import ENTRY
    from tilesight.executor.jobs import BuildDone, BuildJob, SingleLaneSource
    from tilesight.executor.local import LocalExecutor
    from tilesight.kernels import operator, template_for
    from tilesight.problem.candidate import Candidate
    from tilesight.problem.space import Config
    from tilesight.target.spec import load_target

    numbers: dict[str, Item] = {}
    candidates = []
    cached = libraries(cache_dir)
    built: dict[int, Item] = {}
    for item in items:
        row = frame.loc[item.number]
        target = load_target(row["target"])
        workload = operator(item.operator).workload(item.shape, item.dtype)
        template = template_for(item.operator, target, item.dtype)
        if template.name != row["template"] or template.version != row["template_version"]:
            yield (
                item.number,
                f"measured with {row['template']} {row['template_version']}, here is {template.name} "
                f"{template.version}",
            )
            continue
        candidate = Candidate(workload, target, template, Config(json.loads(row["config"])))
        scratch = tuple(template.scratch(workload, candidate.config).values())
        library = cached.get(row.get("binary"))
        if library is not None:
            built[item.number] = replace(item, scratch=scratch, artifact=library, entry=ENTRY)
            continue
        numbers[candidate.key] = replace(item, scratch=scratch)
        candidates.append(candidate)
    with (
        LocalExecutor(workers, cache_dir) as executor,
        closing(executor.stream(SingleLaneSource(map(BuildJob, candidates)))) as events,
    ):
        for event in events:
            assert isinstance(event, BuildDone)
            item, result = numbers[event.job.candidate.key], event.result
            if result.artifact is None:
                yield item.number, f"not built: {result.failure.message if result.failure else ''}"
            else:
                built[item.number] = replace(item, artifact=result.artifact, entry=result.entry)
            if time.time() > until:
                print(
                    f"the budget's share for building ends: {len(built)} of {len(candidates)} "
                    "kernels are there",
                    flush=True,
                )
                break
    yield from (built[item.number] for item in items if item.number in built)


def match(
    launches: Sequence[ncu.Launch], items: Sequence[Item]
) -> tuple[dict[int, list[ncu.Launch]], dict[int, str]]:
    """Match launches to items by order.

    If launches are missing because the profiler died, only a consistent beginning is used, and the other
    items are in neither result.

    Returns:
        (launches by item, reason by item whose launches have another shape than its profile).

    Raises:
        MismatchError: the launches of the process cannot be matched with certainty.
    """
    wanted = sum(len(item.launches) for item in items)
    if len(launches) > wanted:
        raise MismatchError(f"ncu saw {len(launches)} launches where {wanted} were made")
    found: dict[int, list[ncu.Launch]] = {}
    odd: dict[int, str] = {}
    at = 0
    for item in items:
        own = list(launches[at : at + len(item.launches)])
        at += len(own)
        if len(own) < len(item.launches):
            break
        wrong = next((pair for pair in zip(own, item.launches, strict=True) if not _same(*pair)), None)
        if wrong is None:
            found[item.number] = own
            continue
        (launch, (grid, threads)) = wrong
        odd[item.number] = (
            f"its profile says {grid} blocks of {threads} threads, ncu saw {launch.grid} of {launch.block}"
        )
        if len(launches) < wanted:
            raise MismatchError(
                f"{wanted - len(launches)} launches of {wanted} are missing, and of row {item.number} "
                f"{odd[item.number]}"
            )
    return found, odd


def _same(launch: ncu.Launch, expected: tuple[tuple[int, int, int], int]) -> bool:
    x, y, z = launch.block
    return launch.grid == tuple(expected[0]) and x * y * z == expected[1]


@dataclass
class Outcome:
    """The result of a process under ncu: launches by row, reasons of failed rows, and its output."""

    launches: dict[int, list[ncu.Launch]]
    failed: dict[int, str]
    output: str


def profile(
    items: Sequence[Item], tool: str, metrics: Sequence[str], deadline: float, limit_s: float
) -> Outcome:
    """Launch `items` in one process under ncu, which is killed after `limit_s` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        job, log, table = Path(folder, "job.json"), Path(folder, "log.jsonl"), Path(folder, "ncu.csv")
        log.touch()
        job.write_text(
            json.dumps(
                {"log": str(log), "deadline": deadline, "seed": INPUT_SEED, "items": [i.job() for i in items]}
            )
        )
        program = [sys.executable, str(HERE / "launch.py"), str(job)]
        run = subprocess.Popen(
            ncu.command(tool, metrics, table, program),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = run.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)  # its own session: nothing else is in it
            output = run.communicate()[0] + f"\nended after {limit_s:.0f} s"
        events = [json.loads(line) for line in log.read_text().splitlines()]
        ended = {event["number"] for event in events if event["event"] == "end"}
        failed = {event["number"]: event["message"] for event in events if event["event"] == "failed"}
        for event in events:
            if event["event"] == "begin" and event["number"] not in ended:
                failed.setdefault(
                    event["number"], f"the process ended while it ran (exit code {run.returncode})"
                )
        text = table.read_text(errors="replace") if table.exists() else ""
        launches = ncu.parse(text)
        seen, odd = match(launches, [item for item in items if item.number in ended])
        return Outcome(seen, failed | odd, f"{output}\n{'' if launches else text}")


def collect(items: Sequence[Item], tool: str, until: float, keep: Any) -> list[str]:
    """Profile all items in chunks.

    Calls `keep(number, counters or None, reason)` for each, and returns notes.
    """
    refused: set[str] = set()
    known = ncu.known_metrics(tool)
    choice = ncu.choose(known)
    notes = list(choice.notes) + (
        [] if known else ["ncu --query-metrics gave no list; unknown metrics are dropped as they are refused"]
    )
    left, per_launch_s, empty = list(items), PER_LAUNCH_S, 0
    while left and time.time() + START_S < until:
        fits = int((until - time.time() - START_S) / per_launch_s)
        chunk = left[: max(1, min(CHUNK, fits))]
        begin = time.time()
        deadline = until - 10  # the program stops there by itself, and ncu writes what it has
        try:
            limit_s = max(60.0, min(until - begin, START_S + 6 * per_launch_s * len(chunk)))
            outcome = profile(chunk, tool, choice.metrics, deadline, limit_s)
        except MismatchError as error:
            notes.append(str(error))
            for item in chunk:
                keep(item.number, None, str(error))
            left = left[len(chunk) :]
            continue
        bad = ncu.refused_metrics(outcome.output) - refused
        if bad:
            refused |= bad
            choice = ncu.choose(known, refused)
            notes.append(f"ncu refused {', '.join(sorted(bad))}")
            continue
        for number, launches in outcome.launches.items():
            keep(number, ncu.counters(launches, choice), "")
        for number, why in outcome.failed.items():
            keep(number, None, why)
        settled = set(outcome.launches) | set(outcome.failed)
        if settled:
            empty = 0
            per_launch_s = max(0.05, (time.time() - begin - min(START_S, 8.0)) / len(settled))
        else:
            empty += 1
            print(f"a process gave nothing; the end of its output:\n{outcome.output[-1500:]}", flush=True)
            if empty == 2:
                notes.append(f"gave up: two processes in a row gave nothing: {outcome.output[-300:]}")
                break
        left = [item for item in left if item.number not in settled]
        print(
            f"{len(items) - len(left)} of {len(items)} settled, {time.time() - begin:.0f} s for the last "
            f"{len(chunk)}",
            flush=True,
        )
    notes += [f"{key} from {name}" for key, (name, _) in choice.taken.items()]
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", nargs="+", type=Path)
    parser.add_argument("--per-case", type=int, default=12)
    parser.add_argument("--out", type=Path, required=True, help="the dataset with counters; may be the input")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds for all, building included")
    parser.add_argument("--ncu", help="where the profiler is, if not on PATH")
    parser.add_argument("--workers", type=int, help="processes that build")
    given = parser.parse_args()
    until = time.time() + given.budget

    from tilesight.records.dataset import Dataset, read_dataset, write_dataset
    from tilesight.settings import load_settings

    tool = ncu.find_ncu(given.ncu)
    if tool is None:
        sys.exit("ncu was not found; install Nsight Compute, or say where it is: --ncu PATH")
    settings = load_settings()
    dataset = read_dataset(given.dataset)
    frame = dataset.frame.reset_index(drop=True)
    journal = Path(f"{given.out}.jsonl")
    keys = _keys(frame)
    found, tried = _read_journal(journal, keys)
    items = pick(frame, given.per_case, set(found) | tried)
    print(f"{len(items)} candidates to profile, {len(found)} done before", flush=True)
    failures: dict[int, str] = {}
    with journal.open("a") as file:

        def keep(number: int, counters: Mapping[str, float] | None, why: str) -> None:
            if counters:
                found[number] = dict(counters)
            else:
                failures[number] = why or "ncu gave no value"
            file.write(json.dumps({"key": keys[number], "counters": counters, "why": why}) + "\n")
            file.flush()

        ready = []
        for made in build(
            items,
            frame,
            settings.cache_dir,
            given.workers or settings.workers,
            time.time() + BUILD_SHARE * given.budget,
        ):
            if isinstance(made, Item):
                ready.append(made)
            else:
                keep(made[0], None, made[1])
        print(f"{len(ready)} built", flush=True)
        notes = collect(ready, tool, until, keep) if ready else []
    for number, counters in found.items():
        frame.at[number, "counters"] = json.dumps(counters, sort_keys=True)
    about = {
        "program": "experiments/counters",
        "tool": _version(tool),
        "date": date.today().isoformat(),
        "notes": notes,
    }
    runs = {name: {**run, "counters": about} for name, run in dataset.runs.items()} if notes else dataset.runs
    write_dataset(given.out, Dataset(frame, {**dataset.metadata, "runs": runs}))
    print(f"{frame['counters'].notna().sum()} of {len(frame)} rows have counters; {len(failures)} failed")
    for note in notes:
        print("note:", note)
    for number, why in list(failures.items())[:20]:
        print("failed:", keys[number], why)


def _keys(frame: Any) -> dict[int, str]:
    """The identity of each row, independent of its number, since files may be read in another order later."""
    columns = ["workload", "target", "template", "template_version", "config"]
    return {
        number: "|".join(map(str, row))
        for number, row in zip(frame.index, frame[columns].itertuples(index=False), strict=True)
    }


def _read_journal(path: Path, keys: Mapping[int, str]) -> tuple[dict[int, dict[str, float]], set[int]]:
    """(counters by row, failed rows) of earlier calls."""
    numbers = {key: number for number, key in keys.items()}
    found, tried = {}, set()
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:  # the line was not written completely
            continue
        number = numbers.get(entry["key"])
        if number is not None and entry["counters"]:
            found[number] = entry["counters"]
        elif number is not None:
            tried.add(number)
    return found, tried


def _version(tool: str) -> str:
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("Version")]
    return f"Nsight Compute {lines[0].removeprefix('Version ')}" if lines else "Nsight Compute"


if __name__ == "__main__":
    main()
