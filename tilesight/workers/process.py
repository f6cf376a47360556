"""Inside a worker process: receive items, run them, send back what became of them."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from .process_tree import adopt_orphans, below, end_below, end_with_parent, processes

__all__ = ["Began", "Fault", "Ready", "Result", "Setup", "describe", "end_with_parent", "is_worker", "prepare", "retire", "serve"]

TRACEBACK_TAIL = 4000
_TIDY_S = 2.0

Fault = tuple[str, str, str]  # type name, message, tail of the traceback
Gate = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Setup:
    """The first thing that a worker receives. Callables are pickled apart, since they may be of the running script."""

    environment: dict[str, str]
    preload: bytes
    initializer: bytes
    gate: bytes
    main_path: str | None


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker can take items; with `fault`, it ends because it cannot."""

    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Began:
    """A worker has passed the gate: its item begins now."""


@dataclass(frozen=True, slots=True)
class Result:
    value: bytes = b""
    fault: Fault | None = None
    seconds: float = 0.0
    retires: bool = False


class _State:
    is_worker = False
    retires = False
    has_main = False
    prepared = False


def is_worker() -> bool:
    return _State.is_worker


def retire() -> None:
    """Ask that this worker be replaced after its present item, whose result still counts.

    For work that leaves the process unfit, such as a failed launch that has spoiled the CUDA context. Without effect
    outside a worker.
    """
    _State.retires = True


def prepare(preload: bytes, main_path: str | None) -> None:
    """Import what is slow, unless the process that this one was forked from has done so."""
    _State.is_worker = True
    if not _State.prepared:
        start = load(preload, main_path)
        if start is not None:
            start()
        # modules stay: looking through them for garbage again and again takes a tenth of a lowering's time, and
        # would give each forked process a copy of its own
        gc.collect()
        gc.freeze()
        _State.prepared = True


def serve(descriptor: int, parent_pid: int) -> None:
    """The whole life of a worker. Ends with the process: when the pool closes the connection, or by a fault."""
    with suppress(OSError):
        os.setsid()  # Ctrl-C on the terminal is not for it, and it can be killed with its group
    end_with_parent(parent_pid)
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # the kernel, where it must kill for want of memory, takes this process before others
        Path("/proc/self/oom_score_adj").write_text("1000")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()  # a segmentation fault leaves a Python traceback in the output
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    try:
        setup: Setup = pickle.loads(connection.recv_bytes())
        try:
            os.environ.update(setup.environment)
            prepare(setup.preload, setup.main_path)
            start, gate = load(setup.initializer, setup.main_path), load(setup.gate, setup.main_path)
            if start is not None:
                start()
        except BaseException as error:
            connection.send_bytes(pickle.dumps(Ready(describe(error))))
            os._exit(1)
        connection.send_bytes(pickle.dumps(Ready()))
        _serve_items(connection, gate, setup.main_path)
    except (EOFError, OSError):
        pass  # the pool has closed, or its process is gone
    os._exit(0)  # at once: tearing down CUDA or TVM may hang


def _serve_items(connection: Connection, gate: Gate | None, main_path: str | None) -> None:
    own, kept = os.getpid(), _children()
    while not _State.retires:
        payload = connection.recv_bytes()
        began = (lambda: connection.send_bytes(pickle.dumps(Began()))) if gate else None
        result = _run(payload, main_path, gate or nullcontext, began)
        if os.getpid() != own:
            os._exit(0)  # a fork that the item left behind, and that came back from it
        _end_what_it_left(kept)
        with suppress(OSError):  # no space for its output is no reason to lose the result
            sys.stdout.flush()
            sys.stderr.flush()
        connection.send_bytes(pickle.dumps(result))


def _children() -> frozenset[int]:
    """What the initializer started, which serves all items."""
    own = os.getpid()
    return frozenset(pid for pid, process in processes().items() if process.parent == own) if _has_children() else frozenset()


def _has_children() -> bool:
    # orphans are this process's own, so having no child means having nothing below at all
    if sys.platform != "linux":
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _end_what_it_left(kept: Collection[int]) -> None:
    if not _has_children() or (kept and not below(os.getpid(), processes(), kept)):
        return
    until = time.monotonic() + _TIDY_S
    while end_below(kept) and time.monotonic() < until:
        time.sleep(0.001)


def _run(payload: bytes, main_path: str | None, gate: Gate, began: Callable[[], None] | None) -> Result:
    begin = time.perf_counter()
    try:
        function, item = load(payload, main_path)
        with gate():
            if began:
                began()
                begin = time.perf_counter()
            value = function(item)
        seconds = time.perf_counter() - begin
        try:
            return Result(pickle.dumps(value), seconds=seconds, retires=_State.retires)
        except Exception as error:
            text = f"its result, a {type(value).__name__}, cannot be sent between processes: {error}"
            return Result(fault=(type(error).__name__, text, ""), seconds=seconds, retires=_State.retires)
    except BaseException as error:  # SystemExit too: only the pool ends a worker
        return Result(fault=describe(error), seconds=time.perf_counter() - begin, retires=_State.retires)


def describe(error: BaseException) -> Fault:
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be shown)"
    return type(error).__name__, text, "".join(traceback.format_exception(error))[-TRACEBACK_TAIL:]


def load(payload: bytes, main_path: str | None) -> Any:
    # the running script is imported only where something of it is needed: other scripts need no main guard
    if b"__main__" in payload and main_path is not None and not _State.has_main:
        module = ModuleType("__mp_main__")
        module.__dict__.update(runpy.run_path(main_path, run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        _State.has_main = True
    return pickle.loads(payload)
