"""The main loop of a worker process: receives items, runs them, sends back the results."""

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

__all__ = [
    "Began",
    "Fault",
    "Ready",
    "Result",
    "Setup",
    "describe",
    "end_with_parent",
    "is_worker",
    "prepare",
    "retire",
    "serve",
]

TRACEBACK_TAIL = 4000
_CLEANUP_TIMEOUT_S = 2.0

Fault = tuple[str, str, str]  # type name, message, tail of the traceback
Gate = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to a worker.

    Callables are pickled separately, since the running script may define them.
    """

    environment: dict[str, str]
    preload: bytes
    initializer: bytes
    gate: bytes
    main_path: str | None


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker can take items. If `fault` is set, it cannot, and ends.

    `pid` is also in the fork server's `WorkerStarted`, which may come later than the worker's first results.
    """

    pid: int
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Began:
    """The worker has entered the gate: its item begins now."""


@dataclass(frozen=True, slots=True)
class Result:
    """What an item returned (pickled), or its fault. `retires`: the worker asks to be replaced."""

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
    """Whether this process is a worker, or a fork server."""
    return _State.is_worker


def retire() -> None:
    """Request a fresh process in place of this worker after the current item, whose result still counts.

    For work that leaves the process unusable, for example a failed launch that corrupts the CUDA context. Has
    no effect outside a worker.
    """
    _State.retires = True


def prepare(preload: bytes, main_path: str | None) -> None:
    """Call `preload`, unless the fork server has done so before the fork."""
    _State.is_worker = True
    if not _State.prepared:
        start = load(preload, main_path)
        if start is not None:
            start()
        # modules are never collected: scanning them for garbage takes a tenth of a lowering's time, and would
        # copy their memory into each forked process
        gc.collect()
        gc.freeze()
        _State.prepared = True


def serve(descriptor: int, parent_pid: int) -> None:
    """The main function of a worker's process; does not return.

    The process ends when the pool closes the connection, or by a fault.

    Args:
        descriptor: The worker's end of its connection to the pool.
        parent_pid: Process id of the fork server.
    """
    with suppress(OSError):
        os.setsid()  # Ctrl-C in the terminal does not reach it, and it can be killed with its group
    end_with_parent(parent_pid)
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # the kernel kills this process before others when memory runs out
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
            connection.send_bytes(pickle.dumps(Ready(os.getpid(), describe(error))))
            os._exit(1)
        connection.send_bytes(pickle.dumps(Ready(os.getpid())))
        _serve_items(connection, gate, setup.main_path)
    except (EOFError, OSError):
        pass  # the pool has closed, or its process is gone
    os._exit(0)  # without cleanup: shutting down CUDA or TVM may hang


def _serve_items(connection: Connection, gate: Gate | None, main_path: str | None) -> None:
    own, spared = os.getpid(), _children()
    while not _State.retires:
        payload = connection.recv_bytes()
        began = (lambda: connection.send_bytes(pickle.dumps(Began()))) if gate else None
        result = _run(payload, main_path, gate or nullcontext, began)
        if os.getpid() != own:
            os._exit(0)  # a process that the item forked, and that returned from the item
        _end_leftovers(spared)
        with suppress(OSError):  # without disk space for the output the result still counts
            sys.stdout.flush()
            sys.stderr.flush()
        connection.send_bytes(pickle.dumps(result))


def _children() -> frozenset[int]:
    """Processes that the initializer started: they serve all items."""
    own = os.getpid()
    return (
        frozenset(pid for pid, process in processes().items() if process.parent == own)
        if _has_children()
        else frozenset()
    )


def _has_children() -> bool:
    # this process adopts orphans: without a child it has no descendants
    if sys.platform != "linux":
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _end_leftovers(spared: Collection[int]) -> None:
    """Kill the processes that an item left behind."""
    if not _has_children() or (spared and not below(os.getpid(), processes(), spared)):
        return
    until = time.monotonic() + _CLEANUP_TIMEOUT_S
    while end_below(spared) and time.monotonic() < until:
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
    except BaseException as error:  # also SystemExit: only the pool ends a worker
        return Result(fault=describe(error), seconds=time.perf_counter() - begin, retires=_State.retires)


def describe(error: BaseException) -> Fault:
    """An exception as data that can be sent between processes."""
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be shown)"
    return type(error).__name__, text, "".join(traceback.format_exception(error))[-TRACEBACK_TAIL:]


def load(payload: bytes, main_path: str | None) -> Any:
    """Unpickle `payload`; imports the running script if `payload` refers to it.

    Scripts whose own functions are not sent need no main guard.
    """
    if b"__main__" in payload and main_path is not None and not _State.has_main:
        module = ModuleType("__mp_main__")
        module.__dict__.update(runpy.run_path(main_path, run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        _State.has_main = True
    return pickle.loads(payload)
