"""The fork server and its workers: no process outlives the pool, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilesight.builder.compiler import compile_in
from tilesight.errors import ToolchainError
from tilesight.workers import Crashed, Done, TimedOut, WorkerPool, wait_for


def ready() -> None:
    """The preload of most pools: to unpickle it, the fork server imports this module, and pytest with it."""


def note(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()


def noted(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]


def wait_until_noted(folder: Path, count: int) -> list[int]:
    until = time.monotonic() + 20
    while len(noted(folder)) < count and time.monotonic() < until:
        time.sleep(0.01)
    assert len(noted(folder)) >= count
    return noted(folder)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def left(pids: list[int], seconds: float = 10.0) -> list[int]:
    """Those that still run after `seconds`."""
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    return [pid for pid in pids if alive(pid)]


def fork(folder: str, *, session: bool = False) -> None:
    """Leave a hanging child behind; with `session`, a grandchild in a session of its own."""
    child = os.fork()
    if child == 0:
        if session:
            os.setsid()
            if os.fork():
                os._exit(0)
        note(folder)
        time.sleep(3600)
    if session:
        os.waitpid(child, 0)


def bomb(folder: str, generations: int) -> None:
    """Processes each of which starts two more, in sessions of their own."""
    note(folder)
    for _ in range(2 if generations else 0):
        if os.fork() == 0:
            os.setsid()
            bomb(folder, generations - 1)
            time.sleep(3600)


def leave_behind(item: tuple[str, str]) -> tuple[str, int, int]:
    """Start processes, then end, as the item specifies ("start, end")."""
    what, folder = item
    start, _, end = what.partition(", ")
    if start == "fork":
        fork(folder)
    elif start == "daemon":
        fork(folder, session=True)
    elif start == "bomb":
        bomb(folder, 4)
    elif start == "compiler":
        script = Path(folder) / "compiler"
        script.write_text(f"#!/bin/sh\ntouch {folder}/$$\nexec sleep 3600\n")
        script.chmod(0o755)
        compile_in(Path(folder), [script])
    wait_until_noted(Path(folder), 31 if start == "bomb" else 1)
    if end == "hang":
        time.sleep(3600)
    elif end == "crash":
        os.abort()
    return what, os.getpid(), os.getppid()


@pytest.mark.parametrize("start", ["fork", "daemon", "bomb"])
def test_processes_that_an_item_leaves_behind_end_with_the_item(tmp_path: Path, start: str) -> None:
    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        first = second = None
        for _, outcome in pool.run(leave_behind, [(start, str(tmp_path)), ("", str(tmp_path))]):
            assert isinstance(outcome, Done)
            worker = outcome.value[1]
            assert left([pid for pid in noted(tmp_path) if pid != worker], 0.0) == []
            first, second = second, worker
        assert first == second, "the worker was replaced"


@pytest.mark.parametrize("start", ["fork", "daemon", "bomb", "compiler"])
def test_processes_that_an_item_started_end_with_its_worker(tmp_path: Path, start: str) -> None:
    with WorkerPool(1, timeout_s=3.0 if start == "bomb" else 1.0, preload=ready) as pool:
        ((_, outcome),) = pool.run(leave_behind, [(f"{start}, hang", str(tmp_path))])
        assert isinstance(outcome, TimedOut)
        assert noted(tmp_path)
        assert left(noted(tmp_path), 0.0) == []


def test_processes_that_an_item_started_end_when_it_crashes_its_worker(tmp_path: Path) -> None:
    with WorkerPool(2, timeout_s=60, preload=ready) as pool:
        pool.submit(leave_behind, ("daemon, crash", str(tmp_path)))
        (tmp_path / "other").mkdir()
        pool.submit(leave_behind, ("daemon, hang", str(tmp_path / "other")))
        others = wait_for_children(pool, tmp_path / "other")
        ((_, _, outcome),) = wait_for([pool])
        assert isinstance(outcome, Crashed)
        assert left(noted(tmp_path), 0.0) == []
        assert all(map(alive, others)), "the processes of another worker were ended too"


def wait_for_children(pool: WorkerPool, folder: Path) -> list[int]:
    """Advance the pool until an item has started its processes, without taking an outcome."""
    until = time.monotonic() + 20
    while not noted(folder) and time.monotonic() < until:
        pool._supervisor.advance()
        time.sleep(0.01)
    assert noted(folder)
    return noted(folder)


def die_with_server(folder: str) -> int:
    """The first time, leave a daemon behind and kill the fork server."""
    if not noted(Path(folder)):
        fork(folder, session=True)
        wait_until_noted(Path(folder), 1)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    return os.getpid()


def always_kill_server(_: object) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


def test_a_killed_server_is_replaced_and_its_items_run_again(tmp_path: Path) -> None:
    with WorkerPool(2, timeout_s=60, preload=ready) as pool:
        found = dict(pool.run(die_with_server, [str(tmp_path)] * 2))
        assert [type(outcome) for outcome in found.values()] == [Done, Done]
        assert left(noted(tmp_path), 0.0) == [], "a process of the first worker outlived the fork server"


def test_an_item_that_kills_the_server_twice_has_crashed() -> None:
    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        ((_, outcome),) = pool.run(always_kill_server, [None])
        assert isinstance(outcome, Crashed)
        ((_, outcome),) = pool.run(os.path.basename, ["a/b"])
        assert isinstance(outcome, Done)


def test_a_server_that_does_not_answer_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesight.workers.handle.KILL_TIMEOUT_S", 0.3)
    with WorkerPool(1, timeout_s=1.0, preload=ready) as pool:
        ((_, outcome),) = pool.run(leave_behind, [("", str(noted_folder(tmp_path)))])
        assert isinstance(outcome, Done)
        _, worker, server = outcome.value
        pool.submit(time.sleep, 3600)
        os.kill(server, signal.SIGSTOP)
        ((_, _, outcome),) = wait_for([pool])
        assert isinstance(outcome, TimedOut)
        assert left([worker, server], 5.0) == []
        ((_, outcome),) = pool.run(os.path.basename, ["a/b"])
        assert isinstance(outcome, Done)


def noted_folder(folder: Path) -> Path:
    (folder / "1").touch()
    return folder


# how a script uses a pool when it is killed
STATES = {
    "preloading": "pool = WorkerPool(2, timeout_s=3600, preload=partial(hang, folder)); pool.start()",
    "starting": (
        "pool = WorkerPool(2, timeout_s=3600, preload=ready, initializer=partial(hang, folder)); pool.start()"
    ),
    "idle": (
        "pool = WorkerPool(2, timeout_s=3600, preload=ready, initializer=partial(note, folder)); "
        "list(pool.run(abs, [1, 2]))"
    ),
    "at the gate": (
        "pool = WorkerPool(1, timeout_s=3600, preload=ready, gate=partial(hang, folder)); "
        "pool.submit(abs, 1); "
        "wait_on(pool)"
    ),
    "a hanging item": (
        "pool = WorkerPool(2, timeout_s=3600, preload=ready); pool.submit(hang, folder); wait_on(pool)"
    ),
    "a fork": (
        "pool = WorkerPool(2, timeout_s=3600, preload=ready); "
        "pool.submit(leave_behind, ('fork, hang', folder)); "
        "wait_on(pool)"
    ),
    "a daemon": (
        "pool = WorkerPool(2, timeout_s=3600, preload=ready); "
        "pool.submit(leave_behind, ('daemon, hang', folder)); "
        "wait_on(pool)"
    ),
    "a compiler": (
        "pool = WorkerPool(2, timeout_s=3600, preload=ready); "
        "pool.submit(leave_behind, ('compiler, hang', folder)); "
        "wait_on(pool)"
    ),
    "a bomb": (
        "pool = WorkerPool(2, timeout_s=3600, preload=ready); "
        "pool.submit(leave_behind, ('bomb, hang', folder)); "
        "wait_on(pool)"
    ),
}


def hang(folder: str) -> None:
    note(folder)
    time.sleep(3600)


def wait_on(pool: WorkerPool) -> None:
    wait_for([pool])


def tree_of(root: int) -> list[int]:
    """Process ids of all descendants of a process."""
    from tilesight.workers.process_tree import below, processes

    return below(root, processes())


@pytest.mark.parametrize("state", STATES)
def test_no_process_survives_the_parent(tmp_path: Path, state: str) -> None:
    program = f"""
        from functools import partial
        from tilesight.workers import WorkerPool
        from {__name__} import *
        folder = {str(tmp_path)!r}
        {STATES[state]}
        time.sleep(3600)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], env=environment)
    wait_until_noted(tmp_path, 31 if state == "a bomb" else 1)
    started = sorted({*tree_of(parent.pid), *noted(tmp_path)})
    assert len(started) >= (1 if state == "preloading" else 2)
    parent.kill()
    parent.wait()
    assert left(started) == []


@pytest.mark.parametrize("state", STATES)
def test_a_pool_can_be_closed_in_every_state(tmp_path: Path, state: str) -> None:
    scope = {
        **globals(),
        "folder": str(tmp_path),
        "partial": __import__("functools").partial,
        "wait_on": lambda _: None,
    }
    exec(STATES[state], scope)
    pool: WorkerPool = scope["pool"]
    until = time.monotonic() + 20
    while len(noted(tmp_path)) < (31 if state == "a bomb" else 1) and time.monotonic() < until:
        pool._supervisor.advance()
        time.sleep(0.01)
    started = sorted({*tree_of(os.getpid()), *noted(tmp_path)})
    pool.close()
    assert noted(tmp_path)
    assert left([pid for pid in started if pid in noted(tmp_path)]) == []
    assert pool.pids() == []
    pool.close()


def start_thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def pid_and_threads(_: object) -> tuple[int, int]:
    return os.getppid(), threading.active_count()


@pytest.fixture(params=[True, False], ids=["forked", "fresh"])
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    with WorkerPool(1, timeout_s=60, preload=None if request.param else start_thread) as pool:
        list(pool.run(abs, [1]))
        assert pool.forks is request.param
        yield pool


def test_workers_are_fresh_processes_where_forking_is_unsafe(pool: WorkerPool, tmp_path: Path) -> None:
    """A preload that starts threads costs only time."""
    ((_, outcome),) = pool.run(pid_and_threads, [None])
    assert isinstance(outcome, Done)
    assert outcome.value[1] == (1 if pool.forks else 2)
    ((_, outcome),) = pool.run(leave_behind, [("daemon, crash", str(tmp_path))])
    assert isinstance(outcome, Crashed)
    assert "leave_behind" in outcome.output
    assert left(noted(tmp_path), 0.0) == []


def fail() -> None:
    raise ModuleNotFoundError("No module named 'tilelang'")


@pytest.mark.parametrize(
    ("preload", "text"), [(fail, "cannot start: ModuleNotFoundError"), (os.abort, "exit code -6")]
)
def test_a_preload_that_fails_stops_the_run(preload: object, text: str) -> None:
    pool = WorkerPool(1, timeout_s=60, preload=preload)  # type: ignore[arg-type]
    with pool, pytest.raises(ToolchainError, match=text):
        list(pool.run(abs, [1]))


def test_workers_share_the_preload(tmp_path: Path) -> None:
    with WorkerPool(3, timeout_s=60, preload=PreloadOnce(str(tmp_path))) as pool:
        found = dict(pool.run(pid_and_threads, [None] * 6))
        assert {outcome.value[0] for outcome in found.values() if isinstance(outcome, Done)} == set(
            noted(tmp_path)
        )
        assert len(noted(tmp_path)) == 1


class PreloadOnce:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self) -> None:
        note(self.folder)
