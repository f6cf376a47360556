"""Inside a worker process: receive items, run them, send back what became of them."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import runpy
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

TRACEBACK_TAIL = 4000
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Message:
    """From a worker to its pool. The first one, with neither value nor error, says that it is ready."""

    value: bytes = b""
    error: tuple[str, str, str] | None = None  # type name, message, tail of the traceback
    seconds: float = 0.0
    retires: bool = False


class _State:
    is_worker = False
    retires = False
    has_main = False


def is_worker() -> bool:
    return _State.is_worker


def retire() -> None:
    """Ask that this worker be replaced after its present item, whose result still counts.

    For work that leaves the process unfit, such as a failed launch that has spoiled the CUDA context. Without effect
    outside a worker.
    """
    _State.retires = True


def end_with_parent(parent_pid: int) -> None:
    """Let Linux kill this process when the thread that started it ends. Exits at once where that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def serve(descriptor: int, parent_pid: int) -> None:
    """The whole life of a worker. Ends with the process: when the pool closes the connection, or by a fault."""
    end_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()  # a segmentation fault leaves a Python traceback in the output
    _State.is_worker = True
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    try:
        environment, initializer, main_path = pickle.loads(connection.recv_bytes())
        os.environ.update(environment)
        try:
            start = _load(initializer, main_path)
            if start is not None:
                start()
        except BaseException as error:
            connection.send_bytes(pickle.dumps(Message(error=_describe(error))))
            os._exit(1)
        connection.send_bytes(pickle.dumps(Message()))
        while True:
            payload = connection.recv_bytes()
            message = _run(payload, main_path)
            with suppress(OSError):  # no space for its output is no reason to lose the result
                sys.stdout.flush()
                sys.stderr.flush()
            connection.send_bytes(pickle.dumps(message))
            if message.retires:
                break
    except (EOFError, OSError):
        pass  # the pool has closed, or its process is gone
    os._exit(0)  # at once: tearing down CUDA or TVM may hang


def _run(payload: bytes, main_path: str | None) -> Message:
    begin = time.perf_counter()
    try:
        function, item = _load(payload, main_path)
        value = function(item)
        seconds = time.perf_counter() - begin
        try:
            return Message(pickle.dumps(value), seconds=seconds, retires=_State.retires)
        except Exception as error:
            text = f"its result, a {type(value).__name__}, cannot be sent between processes: {error}"
            return Message(error=(type(error).__name__, text, ""), seconds=seconds, retires=_State.retires)
    except BaseException as error:  # SystemExit too: only the pool ends a worker
        return Message(error=_describe(error), seconds=time.perf_counter() - begin, retires=_State.retires)


def _describe(error: BaseException) -> tuple[str, str, str]:
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be shown)"
    return type(error).__name__, text, "".join(traceback.format_exception(error))[-TRACEBACK_TAIL:]


def _load(payload: bytes, main_path: str | None) -> Any:
    # the running script is imported only where something of it is needed: other scripts need no main guard
    if b"__main__" in payload and main_path is not None and not _State.has_main:
        module = ModuleType("__mp_main__")
        module.__dict__.update(runpy.run_path(main_path, run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        _State.has_main = True
    return pickle.loads(payload)
