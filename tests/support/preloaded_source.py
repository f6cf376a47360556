"""The process that `preloaded.py` forks: it imports the slow modules, and nothing of pytest."""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle
from pathlib import Path
from types import ModuleType

from tests.support import recorded_ir
from tilesight.workers.process_tree import end_with_parent

_ABOVE = 100  # least number of the descriptors that files have between


@dataclass(frozen=True)
class Child:
    """What a child is. The files with the numbers `descriptors` follow in the same order.

    `is_parent`: it gets a process that its own children are forked from.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    leads_session: bool
    descriptors: list[int]
    is_parent: bool = False


def run_source(descriptor: int, parent_pid: int) -> Callable[[], object]:
    """Fork a child for each `Child` that arrives. Returns in the children alone, with what they run."""
    os.set_inheritable(descriptor, False)
    connection: Connection = Connection(descriptor)
    paths = sys.path[1:]
    importlib.import_module("tests.support.preloaded")  # first: it keeps the variables that imports may set
    _import_slow_modules()
    recorded_ir.use_recorded_ir()
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(
            1
        )  # some builds of NumPy and torch start threads, and a process with threads cannot be forked
    connection.send(os.getpid())  # it is ready
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and they end this process
    return _fork_children(connection, parent_pid, paths)


def _fork_children(connection: Connection, parent_pid: int, paths: list[str]) -> Callable[[], object]:
    end_with_parent(parent_pid)
    while True:
        try:
            child: Child = connection.recv()
            files = [recv_handle(connection) for _ in child.descriptors]
        except EOFError:
            os._exit(0)
        readable, writable = os.pipe()
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)
            connection.close()
            if child.leads_session:
                # before the parent knows of this process: it may signal its group, which is its own then
                os.setsid()
            os.write(writable, str(os.getpid()).encode())
            os.close(readable)
            os.close(writable)
            while os.getppid() != parent_pid:  # until the process between has ended
                time.sleep(0.0005)
            return _become(child, files, paths)
        os.waitpid(between, 0)
        connection.send(int(os.read(readable, 20)))
        for file in (readable, writable, *files):
            os.close(file)


def _import_slow_modules() -> None:
    import alembic.command  # noqa: F401
    import optuna  # noqa: F401
    import pandas  # noqa: F401
    import sklearn.gaussian_process  # noqa: F401
    import tilelang  # noqa: F401
    import torch  # noqa: F401
    import xgboost  # noqa: F401

    from tilesight.api import engine  # noqa: F401
    from tilesight.cli import main  # noqa: F401
    from tilesight.costmodel import extract  # noqa: F401
    from tilesight.database import open_store  # noqa: F401
    from tilesight.dispatch import make  # noqa: F401
    from tilesight.lowering import dynamic  # noqa: F401
    from tilesight.runner import measure  # noqa: F401


def _become(child: Child, files: list[int], paths: list[str]) -> Callable[[], object]:
    """Make this process the child; the result runs its program."""
    if child.is_parent:
        own_pid = os.getpid()
        ours, theirs = Pipe()
        if not (pid := os.fork()):
            ours.close()
            _leave_files(files)
            return _fork_children(theirs, own_pid, paths)
        theirs.close()
        from tests.support.preloaded import fork_from

        fork_from(ours, pid)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _place(dict(zip(child.descriptors, files, strict=True)))
    os.environ.clear()
    os.environ.update(child.environment)
    os.chdir(child.folder)
    _open_standard_streams(child.environment.get("PYTHONIOENCODING", ""))
    first, *others = child.arguments
    main = sys.modules["__main__"] = ModuleType("__main__")
    paths = [*filter(None, child.environment.get("PYTHONPATH", "").split(os.pathsep)), *paths]
    if first == "-m":
        sys.path[:], sys.argv[:] = [child.folder, *paths], others
        sys.modules.pop(others[0], None)  # else runpy warns
        return lambda: runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    if first == "-c":
        sys.path[:], sys.argv[:] = ["", *paths], ["-c", *others[1:]]
        name, text = "<string>", others[0]
    else:
        sys.path[:], sys.argv[:] = [str(Path(first).resolve().parent), *paths], child.arguments
        name, text, main.__file__ = first, Path(first).read_text(encoding="utf-8"), first
    return lambda: exec(compile(text, name, "exec"), main.__dict__)


def _open_standard_streams(wanted: str) -> None:
    encoding, _, errors = wanted.partition(":")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        was = getattr(sys, name)
        kept = "backslashreplace" if name == "stderr" else errors or was.errors
        made = open(number, was.mode, encoding=encoding or was.encoding, errors=kept, closefd=False)  # noqa: SIM115
        made.reconfigure(line_buffering=name == "stderr")
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def _leave_files(files: list[int]) -> None:
    """Close what belongs to the child: who reads its output would wait for this process, too."""
    for file in files:
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)


def _place(files: Mapping[int, int]) -> None:
    """Give open files the numbers that the keys are."""
    above = max(_ABOVE, *(number + 1 for number in files))
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, above) for number, file in files.items()}
    for file in files.values():
        os.close(file)
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)
