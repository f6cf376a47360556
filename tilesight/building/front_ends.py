"""NVIDIA's front end, stopped where it has read the headers: each kernel is compiled by a copy of that process.

Most of a build's time goes into headers, which are the same for all kernels of an operator. So `cicc` is started on the
headers and an `#include` of a file that is not there yet. When it opens that file, a preloaded hook takes over and waits for
folders with a kernel. For each one it forks, and the copy goes on as if nothing had been: it reads the kernel and writes its
PTX. It has read what nvcc would have given it, so the code is the same. What cannot be compiled in this way is for the caller
to compile with nvcc, which also says what is wrong with it.

`FrontEnds` belongs to whoever has workers. It runs a process that starts the front ends for them all and ends with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from ..workers.process import end_with_parent
from .compiler import CompileError, compile_in
from .front_end import peer
from .front_end_hook import BODY, HOOK

_NICENESS = 10  # the process that measures must not wait for a core
_MOST = 6  # front ends at once; each holds half a gigabyte
_TRIES = 3  # starts of the same one, which may have been killed
_WAITING = 1024  # who may wait for one to be ready
_TICK_S = 1.0  # between looks at whether the owner lives
_CLOSE_S = 3.0
_START = """
import sys
name, listening, owner_pid, *sys.path[:] = sys.argv[1:]
from tilesight.building.front_ends import keep
keep(name, int(listening), int(owner_pid))
"""


class FrontEnds:
    """Front ends for the workers of this process; they end with it. A context manager, started by its first `address`."""

    def __init__(self) -> None:
        self._keeper: subprocess.Popen[bytes] | None = None
        self._name = self._secret = ""
        self._lock = threading.Lock()  # several threads may be the first to ask

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def address(self) -> str:
        """What `build_kernel` is told; empty where this system has no such thing, and nvcc does all."""
        if sys.platform != "linux":
            return ""
        with self._lock:
            self._start()
        return f"{self._name}/{self._secret}"

    def _start(self) -> None:
        if self._keeper is None:
            # a name that is no file: it is free again when its process ends, however that comes
            self._secret = os.urandom(16).hex()  # names can be read by whoever shares the network: they may not give orders
            self._name = f"tilesight-{os.getuid()}-{os.getpid()}-{os.urandom(6).hex()}"
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(f"\0{self._name}")
                listening.listen(_WAITING)
                paths = [path or os.getcwd() for path in sys.path]
                self._keeper = subprocess.Popen(
                    [sys.executable, "-c", _START, self._name, str(listening.fileno()), str(os.getpid()), *paths],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[listening.fileno()],
                    start_new_session=True,  # Ctrl-C on the terminal is not for it
                )
            assert self._keeper.stdin is not None
            self._keeper.stdin.write(f"{self._secret}\n".encode())
            self._keeper.stdin.flush()

    def close(self) -> None:
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()  # which is its sign to end, unless a fork of this process holds it too
            for then in (self._keeper.terminate, self._keeper.kill):
                try:
                    self._keeper.wait(_CLOSE_S)
                    break
                except subprocess.TimeoutExpired:
                    then()
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(_CLOSE_S)
            self._keeper = None


class _Keeper:
    """Starts front ends when asked, one at a time."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}  # oldest first
        self._starts: Counter[str] = Counter()

    def answer(self, request: Mapping[str, Any]) -> str:
        key = str(request["key"])
        running = self._running.get(key)
        if running is not None and running.poll() is None:
            return "started"
        if self._starts[key] >= _TRIES:
            return f"it was started {_TRIES} times, and has failed"
        self._starts[key] += 1
        while len(self._running) >= _MOST:
            _end(self._running.pop(next(iter(self._running))))
        try:
            self._running[key] = self._start(key, request)
        except (CompileError, OSError) as error:
            return f"it cannot be started: {error}".replace("\n", " ")
        return "started"

    def end(self) -> None:
        for process in self._running.values():
            _end(process)

    def _start(self, key: str, request: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        folder = self._folder / key
        folder.mkdir(exist_ok=True)
        hook = self._folder / "hook.so"
        if not hook.exists():
            (self._folder / "hook.c").write_text(HOOK, encoding="utf-8")
            compile_in(self._folder, [request["cxx"], "-x", "c", "-O1", "-shared", "-fPIC", "hook.c", "-ldl", "-o", "hook.so"])
        (folder / "prefix.cu").write_text(request["headers"], encoding="utf-8")
        # -dD: the kernel's macros are expanded where it is read, so they must come along
        preprocessor, *options = request["preprocess"]
        compile_in(folder, [preprocessor, "-dD", *options])
        with open(folder / "prefix.ii", "a", encoding="utf-8") as preprocessed:
            preprocessed.write(f'\n#include "{BODY}"\n')
        (folder / BODY).touch()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"\0{self._name}-{key}")
            listening.listen(_WAITING)
            return subprocess.Popen(
                ["env", f"LD_PRELOAD={hook}", f"TMPDIR={folder}", *request["front_end"]],
                cwd=folder,
                stdin=listening.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # its copies end with it
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)


def keep(name: str, descriptor: int, owner_pid: int) -> None:
    """The life of the process that keeps front ends, on a listening socket; it ends when its standard input or its owner does."""
    os.nice(_NICENESS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    listening = socket.socket(fileno=descriptor)
    secret = sys.stdin.readline().strip()
    with TemporaryDirectory(prefix="tilesight-", ignore_cleanup_errors=True) as folder:
        keeper = _Keeper(name, Path(folder))
        while sys.stdin not in (ready := select.select([sys.stdin, listening], [], [], _TICK_S)[0]) and os.getppid() == owner_pid:
            if listening in ready:
                client, _ = listening.accept()
                with client, client.makefile("rw", encoding="utf-8") as lines, suppress(OSError, ValueError, KeyError):
                    if peer(client) == os.getuid():
                        request = json.loads(lines.readline())
                        if compare_digest(str(request["secret"]), secret):
                            lines.write(keeper.answer(request) + "\n")
                            lines.flush()
        keeper.end()
