"""Python processes that begin with the slow modules imported: forks of one process that imported them.

Importing TileLang and torch takes seconds, and every process that lowers, builds or measures begins with it.
`PreloadedPython` is `subprocess.Popen` for commands of this Python: the child is forked from a process that
has imported these modules. Its variables, folder, files, exit code and parent are those of a process that was
started. `/proc/PID/environ` is not, by which a broken fork server's processes are found, and neither are the
seeds of hashes and of `random`, which all children share. Tests of these take `subprocess.Popen`.

A child that starts processes which import these modules, too, is a `PreloadedParent`: it has a process of its
own that they are forked from. Otherwise each of them imports for seconds.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path
from subprocess import Popen
from typing import Any
from unittest.mock import patch

from tests.support.preloaded_source import Child
from tilesight.workers import fork_client

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_BEFORE = dict(os.environ)  # tests change it
# of the source: it has one thread, and initialises no GPU
_SAFE = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
# read while a program runs. Of the other variables, imports may read each.
_READ_LATE = (
    *("TILESIGHT_", "PYTEST_", "PYTHONPATH", "PYTHONIOENCODING", "TMPDIR"),
    *("IPYTHONDIR", "JUPYTER_", "JPY_", "MPLCONFIGDIR"),
    *("GLOO_", "NCCL_", "TORCH_SYMM_MEM_"),  # when groups of processes begin
)
# imports set them, also those of this process
_SET_BY_IMPORTS = ("TVM_LIBRARY_PATH", "TL_CUTLASS_PATH", "TL_TEMPLATE_PATH", "KMP_", "RAY_CLIENT_MODE")
_START = """import sys
descriptor, parent_pid, sys.path[0] = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
from tests.support.preloaded_source import run_source
run_program = run_source(descriptor, parent_pid)
run_program()
"""


class _Source:
    """The process that is forked: the one that has been forked for this process, or a new one."""

    def __init__(self, connection: Connection | None = None, pid: int = 0) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        if connection is not None:
            self._connection, self._pid = connection, pid
            return
        self._connection, end = Pipe()
        environment = {name: value for name, value in _BEFORE.items() if name != "PYTHONPATH"}
        with end:
            self._process = Popen(
                [sys.executable, "-c", _START, str(end.fileno()), str(self._owner), str(ROOT)],
                env=environment | _SAFE,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[end.fileno()],
            )
        self._pid = self._process.pid
        self._connection.recv()  # raises EOFError if it cannot be forked

    @property
    def is_alive(self) -> bool:
        return self._owner == os.getpid() and os.waitid(os.P_PID, self._pid, _HAS_ENDED) is None

    def fork(self, child: Child, files: Sequence[int]) -> int:
        """The process id of a new child of this process."""
        with self._lock:
            _adopt_orphans(True)  # the process that forks it ends at once
            try:
                self._connection.send(child)
                for file in files:
                    send_handle(self._connection, file, self._pid)
                return int(self._connection.recv())
            finally:
                _adopt_orphans(False)


_sources: list[_Source | None] = []


def _source() -> _Source | None:
    """The source of this process; None where it cannot be forked."""
    if _sources and (_sources[0] is None or _sources[0].is_alive):
        return _sources[0]
    try:
        _sources[:] = [_Source()]
    except EOFError:
        _sources[:] = [None]
    return _sources[0]


def _imports_alike(environment: Mapping[str, str]) -> bool:
    """Whether modules that are imported in an environment are those of the source."""
    theirs, ours = (
        {
            name: value
            for name, value in variables.items()
            if not name.startswith((*_READ_LATE, *_SET_BY_IMPORTS))
        }
        for variables in (environment, _BEFORE)
    )
    return theirs.get("OMP_NUM_THREADS") == "1" and {**theirs, **_SAFE} == {**ours, **_SAFE}


def _adopt_orphans(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


class PreloadedPython(Popen[Any]):
    """A process that runs `[sys.executable, "-c", program, ...]`, a script, or a module after `-m`.

    It starts as usual where modules would be imported differently, with options that forking does not know,
    and with another command.
    """

    is_parent = False

    def _execute_child(self, args: Any, *given: Any) -> None:
        # in the order of CPython 3.11 to 3.13
        (
            _executable,
            preexec,
            _close_fds,
            pass_fds,
            cwd,
            env,
            _startupinfo,
            _creationflags,
            shell,
            stdin,
            _stdin_end,
            _stdout_end,
            stdout,
            _stderr_end,
            stderr,
            _restores_signals,
            gid,
            gids,
            uid,
            umask,
            start_new_session,
            process_group,
        ) = given
        environment = dict(os.environ if env is None else env)
        is_python = not shell and not isinstance(args, str) and args[0] == sys.executable
        is_python = is_python and (str(args[1]) in ("-c", "-m") or not str(args[1]).startswith("-"))
        is_python = is_python and (preexec, gid, gids, uid, umask, process_group) == (*[None] * 4, -1, -1)
        is_alike = sys.platform == "linux" and is_python and _imports_alike(environment)
        source = _source() if is_alike else None
        if source is None:
            super()._execute_child(args, *given)  # type: ignore[misc]
            return
        files = {0: stdin, 1: stdout, 2: stderr, **{number: number for number in pass_fds}}
        child = Child(
            [str(argument) for argument in args[1:]],
            environment,
            str(cwd or os.getcwd()),
            start_new_session,
            list(files),
            self.is_parent,
        )
        try:
            opened = [there if here == -1 else here for there, here in files.items()]
            self.pid = source.fork(child, opened)
            self._child_created = True
        finally:
            pipes = given[9:15]
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class PreloadedParent(PreloadedPython):
    """A process whose fork servers begin preloaded, too, and that can use this module."""

    is_parent = True


def run_python(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Like `subprocess.run` for this Python; the output is kept, as text unless `options` say otherwise.

    `is_parent`: it is a `PreloadedParent`.
    """
    timeout = options.pop("timeout", None)
    kind = PreloadedParent if options.pop("is_parent", False) else PreloadedPython
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *map(str, arguments)]
    with kind(command, **{"text": True, **pipes, **options}) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, errors)


def preload_fork_servers() -> None:
    """From now on fork servers begin preloaded whose pools preload modules of TileSight."""
    start = fork_client.ForkServerClient.__init__

    def start_preloaded(self: Any, environment: Mapping[str, str], setup: Any) -> None:
        if b"tilesight." not in setup.preload:
            start(self, environment, setup)
            return
        with patch.object(subprocess, "Popen", PreloadedPython):
            start(self, environment, setup)

    fork_client.ForkServerClient.__init__ = start_preloaded  # type: ignore[method-assign]


def fork_from(connection: Connection, pid: int) -> None:
    """Let the process `pid`, which has imported the slow modules, be the one that is forked."""
    _sources[:] = [_Source(connection, pid)]
    preload_fork_servers()
