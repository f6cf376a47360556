"""Capture the TileLang kernels of a checkout: what is traced, and the arguments of the calls. No GPU needed.

    python experiments/outside/capture.py FOLDER --repository NAME --out CORPUS [--seconds 30] [--processes 2]

Each Python file runs in a process of its own (`capture_file.py`) on stand-ins for a GPU (`stand_ins.py`),
for at most `--seconds` on a core; a crash or a hang costs one file. The processes are copies of this one,
which has imported TileLang and the modules of `--preload`. `--files GLOB ...` says which files; `--path` what
is put on the path; `--timers` names functions that time others. A file whose log exists is not run again.
What each file gave is in CORPUS/files/, its kernels are in CORPUS/parts/; `choose.py` makes one corpus of
them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from capture_file import run_file
from corpus import Corpus
from stand_ins import prepare

OTHER_CHIPS = (
    "amd",
    "sm100",
    "sm120",
    "sm70",
    "sm75",
    "tcgen05",
    "tcgen5",
    "metal",
    "aws",
    "cdna",
    "mfma",
    "triton",
    "rdna",
)
MOST_BYTES = 8 * 2**30  # resident, of one file's process
PATIENCE = 5  # times the seconds on a core; other work takes its share


def files_of(root: Path, globs: Iterable[str]) -> Iterator[Path]:
    """Python files that name TileLang, or are tests, but those for other chips."""
    found = {path for glob in globs for path in root.glob(glob)}
    for path in sorted(found):
        text = path.read_text(errors="replace")
        if any(word in str(path.relative_to(root)).lower() for word in OTHER_CHIPS):
            continue
        is_test = path.name.startswith(("test_", "bench_"))
        if is_test or "tilelang" in text:
            yield path


class Job:
    """A running copy of this process that captures one file."""

    def __init__(self, root: Path, path: Path, given: argparse.Namespace) -> None:
        name = str(path.relative_to(root)).replace("/", "__")
        self.file = f"{given.repository}/{path.relative_to(root)}"
        self.log = given.out / "files" / f"{given.repository}__{name}.json"
        self.folder = given.out / "parts" / f"{given.repository}__{name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.until = time.monotonic() + PATIENCE * given.seconds
        self.pid = os.fork()
        if self.pid == 0:
            self._run(root, path, given)

    def _run(self, root: Path, path: Path, given: argparse.Namespace) -> None:
        os.setsid()
        output = os.open(self.folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        try:
            run_file(root, path, given.repository, self.folder, given.seconds)
        finally:
            os._exit(1)

    def ended(self) -> str | None:
        """How the process ended, "" if well; None while it runs. It is killed if it takes too much."""
        done, status = os.waitpid(self.pid, os.WNOHANG)
        if done:
            return "" if status == 0 else f"exit code {os.waitstatus_to_exitcode(status)}"
        reason = ""
        if time.monotonic() > self.until:
            reason = "took too long"
        elif _resident(self.pid) > MOST_BYTES:
            reason = "took too much memory"
        if not reason:
            return None
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return reason

    def report(self, ended: str) -> dict[str, Any]:
        lines = (self.folder / "output").read_text(errors="replace").strip().splitlines()
        try:
            said = json.loads(lines[-1])
        except (IndexError, ValueError):
            said = {"made": 0, "left_out": {}, "errors": lines[-3:]}
        said |= {"file": self.file, "ended": ended, "captured": sum(1 for _ in Corpus(self.folder))}
        self.log.write_text(json.dumps(said, indent=1))
        return said


def call_once(function: Any, args: tuple[Any, ...] = (), **_: Any) -> list[float]:
    """In place of a program's own timer."""
    function(*args)
    return []


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def main(given: argparse.Namespace) -> None:
    root = given.folder.resolve()
    given.out = given.out.resolve()
    (given.out / "files").mkdir(parents=True, exist_ok=True)
    sys.path[:0] = [str(root / one) for one in given.path]
    os.chdir(root)
    import tilelang  # noqa: F401 - what the copies need; nothing may start a thread
    import torch

    torch.set_num_threads(1)
    prepare()
    for timer in given.timers:
        place, _, name = timer.partition(":")
        real = getattr(importlib.import_module(place), name)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is real:
                setattr(module, name, call_once)
    for name in given.preload:
        importlib.import_module(name)
    paths = list(files_of(root, given.files))
    random.Random(21).shuffle(paths)
    known = {path.stem for path in (given.out / "files").glob("*.json")}
    paths = [
        p for p in paths if f"{given.repository}__{str(p.relative_to(root)).replace('/', '__')}" not in known
    ]
    running: list[Job] = []
    while paths or running:
        while paths and len(running) < given.processes:
            running.append(Job(root, paths.pop(), given))
        time.sleep(0.1)
        for job in list(running):
            if (ended := job.ended()) is not None:
                running.remove(job)
                said = job.report(ended)
                error = str((said["errors"] or [""])[-1])[:150]
                print(f"{said['captured']:4} {said['file']} {ended} {error}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Capture the TileLang kernels of a checkout.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--files", nargs="+", default=["**/*.py"])
    parser.add_argument("--path", nargs="*", default=[])
    parser.add_argument("--preload", nargs="*", default=[], help="modules that every file needs")
    parser.add_argument("--timers", nargs="*", default=[], help="MODULE:FUNCTION, which only calls then")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=2)
    main(parser.parse_args())
