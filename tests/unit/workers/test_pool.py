"""Worker pools: each kind of fault costs its own item only."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tilesight.errors import FailureKind, ToolchainError
from tilesight.workers import (
    Crashed,
    Done,
    Outcome,
    OutOfMemory,
    Raised,
    TimedOut,
    TimeLimit,
    WorkerPool,
    failure_of,
    thread_limits,
    wait_for,
)
from tilesight.workers.fork_client import ForkServerClient
from tilesight.workers.fork_server import LOG_BYTES, ServerReady, WorkerEnded, WorkerStarted
from tilesight.workers.worker import retire


def behave(how: str) -> object:
    """One item's behaviour, good or bad."""
    if how == "abort":
        print("about to abort", flush=True)
        os.abort()
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(7)
    elif how == "sys.exit":
        sys.exit(3)
    elif how == "raise":
        raise ValueError("block_k is odd")
    elif how == "hang":
        time.sleep(3600)
    elif how == "hang in C":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            ctypes.PyDLL(None).sleep(3600)  # the interpreter's lock is held
    elif how == "all memory":
        taken = []
        while True:
            taken.append(bytearray(os.urandom(1)) * 2**24)
            time.sleep(0.005)
    elif how == "endless output":
        return until_truncated()
    elif how == "hold":
        time.sleep(0.2)
    elif how == "fork and return":
        os.fork()
    elif how == "unpicklable result":
        return lambda: None
    elif how == "much output":
        print("x" * 5_000_000)
        print("the last line", flush=True)
        os.abort()
    elif how == "retire":
        retire()
    return how, os.getpid()


def ready() -> None:
    """The preload of most pools: to unpickle it, the fork server imports this module, and pytest with it."""


def until_truncated() -> int:
    """Print more than a log may hold, and wait until it is truncated. Returns the size of the log."""
    for _ in range(2 * LOG_BYTES // 2**20):
        print("x" * 2**20)
    print("the last line", flush=True)
    until = time.monotonic() + 20
    while os.fstat(1).st_size > LOG_BYTES and time.monotonic() < until:
        time.sleep(0.01)
    return os.fstat(1).st_size


def results(pool: WorkerPool, items: list[str]) -> dict[int, Outcome[object]]:
    return dict(pool.run(behave, items))


def pid_of(outcome: Outcome[object]) -> int:
    assert isinstance(outcome, Done)
    assert isinstance(outcome.value, tuple)
    pid = outcome.value[1]
    assert isinstance(pid, int)
    return pid


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int], seconds: float = 10.0) -> list[int]:
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return [p for p in pids if alive(p)]


def started_pids(pool: WorkerPool, count: int) -> list[int]:
    until = time.monotonic() + 20
    while len(pool.pids()) < count and time.monotonic() < until:
        time.sleep(0.01)
    assert len(pool.pids()) == count
    return pool.pids()


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        yield pool


@pytest.mark.parametrize(
    ("how", "exit_code", "reason"),
    [
        ("abort", -signal.SIGABRT, "SIGABRT"),
        ("segfault", -signal.SIGSEGV, "SIGSEGV"),
        ("exit", 7, "exit code 7"),
    ],
)
def test_a_crash_costs_its_own_item(pool: WorkerPool, how: str, exit_code: int, reason: str) -> None:
    found = results(pool, ["fine", how, "fine"])
    crash = found[1]
    assert isinstance(crash, Crashed)
    assert crash.exit_code == exit_code
    assert reason in crash.reason
    assert pid_of(found[0]) != pid_of(found[2]), "the crashed worker was not replaced"


def test_a_crash_reports_the_tail_of_its_output(pool: WorkerPool) -> None:
    abort = results(pool, ["abort"])[0]
    assert isinstance(abort, Crashed)
    assert "about to abort" in abort.output
    assert "behave" in abort.output, "the Python traceback of the abort is missing"


def test_only_the_end_of_megabytes_of_output_is_reported(pool: WorkerPool) -> None:
    crash = results(pool, ["much output"])[0]
    assert isinstance(crash, Crashed)
    assert len(crash.output) <= 4000
    assert "the last line" in crash.output


def test_output_of_an_earlier_item_is_not_reported(pool: WorkerPool) -> None:
    (first,) = (o for _, o in pool.run(print, ["output of the first"]))
    assert isinstance(first, Done)
    crash = results(pool, ["exit"])[0]
    assert isinstance(crash, Crashed)
    assert "output of the first" not in crash.output


@pytest.mark.parametrize(("how", "type_name"), [("raise", "ValueError"), ("sys.exit", "SystemExit")])
def test_an_exception_is_data_and_the_worker_lives_on(pool: WorkerPool, how: str, type_name: str) -> None:
    found = results(pool, ["fine", how, "fine"])
    raised = found[1]
    assert isinstance(raised, Raised)
    assert raised.type_name == type_name
    assert "behave" in raised.traceback
    assert pid_of(found[0]) == pid_of(found[2])


def test_a_result_that_cannot_be_sent_is_data(pool: WorkerPool) -> None:
    found = results(pool, ["unpicklable result", "fine"])
    raised = found[0]
    assert isinstance(raised, Raised)
    assert "cannot be sent between processes" in raised.message
    assert isinstance(found[1], Done)


def test_an_item_that_cannot_be_sent_is_data(pool: WorkerPool) -> None:
    found = dict(pool.run(repr, [1, lambda: None, 2]))
    assert isinstance(found[1], Raised)
    assert "cannot be sent to a worker" in found[1].message
    assert [type(found[i]) for i in (0, 2)] == [Done, Done]


def test_a_lambda_is_refused_at_once(pool: WorkerPool) -> None:
    with pytest.raises((AttributeError, TypeError, Exception), match="lambda"):
        list(pool.run(lambda item: item, [1]))


def test_a_hanging_item_is_killed() -> None:
    with WorkerPool(1, timeout_s=1.0, preload=ready) as pool:
        found = results(pool, ["fine", "hang", "fine"])
    assert found[1] == TimedOut(1.0, "")
    assert isinstance(found[2], Done)


def test_an_item_that_hangs_in_c_and_ignores_signals_is_killed() -> None:
    with WorkerPool(1, timeout_s=1.0, preload=ready) as pool:
        found = results(pool, ["hang in C", "fine"])
    assert isinstance(found[0], TimedOut)
    assert isinstance(found[1], Done)


def test_an_item_that_takes_all_memory_is_killed() -> None:
    with WorkerPool(1, timeout_s=60, preload=ready, memory_bytes=3 * 2**26) as pool:
        found = results(pool, ["all memory", "fine"])
    memory = found[0]
    assert isinstance(memory, OutOfMemory)
    assert memory.limit_bytes == 3 * 2**26 < memory.used_bytes
    assert isinstance(found[1], Done)
    failure = failure_of(memory, FailureKind.RUN_ERROR, FailureKind.RUN_CRASH, FailureKind.RUN_TIMEOUT)
    assert failure.kind is FailureKind.RUN_MEMORY
    assert "more than its 0.2 GiB" in failure.message


def test_endless_output_is_truncated_while_the_item_runs(pool: WorkerPool) -> None:
    (outcome,) = results(pool, ["endless output"]).values()
    assert isinstance(outcome, Done)
    assert isinstance(outcome.value, int)
    assert outcome.value < LOG_BYTES


def test_an_item_that_forks_and_returns_twice_has_one_result(pool: WorkerPool) -> None:
    found = results(pool, ["fine", "fork and return", "fine"])
    assert [type(o) for o in found.values()] == [Done, Done, Done]
    assert len({pid_of(o) for o in found.values()}) == 1, "another process sent the result"


def test_the_limit_counts_the_item_only() -> None:
    """The start of a worker and a slow consumer do not count against an item's limit."""
    with WorkerPool(1, timeout_s=0.8, preload=ready, initializer=partial(time.sleep, 1.0)) as slow_to_start:
        for _, outcome in slow_to_start.run(behave, ["fine", "fine"]):
            assert isinstance(outcome, Done)
            time.sleep(0.9)


def test_a_worker_can_ask_to_be_replaced(pool: WorkerPool) -> None:
    found = results(pool, ["retire", "fine"])
    assert pid_of(found[0]) != pid_of(found[1])


def test_workers_start_and_items_are_drawn_when_needed() -> None:
    drawn: list[int] = []

    def items() -> Iterator[str]:
        for number in range(4):
            drawn.append(number)
            yield "fine"

    with WorkerPool(2, timeout_s=60, preload=ready) as pool:
        assert pool.pids() == []
        assert results(pool, []) == {}
        assert pool.pids() == []
        results(pool, ["fine"])
        started_pids(pool, 1)  # an item may be done before its fork is reported
        for finished, _ in enumerate(pool.run(behave, items()), 1):
            assert len(drawn) <= finished + 1, "an item was drawn before a worker was free for it"
        assert len(drawn) == 4


def test_workers_can_be_started_before_the_first_item() -> None:
    with WorkerPool(2, timeout_s=60, preload=ready) as pool:
        pool.start()
        started = started_pids(pool, 2)
        assert pid_of(results(pool, ["fine"])[0]) in started
        assert pool.pids() == started
    with WorkerPool(2, timeout_s=60, preload=ready) as pool:
        assert not pool.is_starting
        pool.start()
        assert pool.is_starting
        pool.wait_until_started()
        assert not pool.is_starting


def test_leaving_early_kills_the_running_items_only() -> None:
    with WorkerPool(2, timeout_s=60, preload=ready) as pool:
        for _ in pool.run(behave, ["fine", "hang", "hang"]):
            busy = pool.pids()
            break
        assert len(wait_until_gone(busy, 0.0)) <= 1
        assert isinstance(results(pool, ["fine"])[0], Done)


def test_an_interrupt_in_the_parent_leaves_no_worker() -> None:
    pids: list[int] = []

    def items() -> Iterator[str]:
        yield "hang"
        pids.extend(started_pids(interrupted, 1))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), WorkerPool(2, timeout_s=60, preload=ready) as interrupted:
        list(interrupted.run(behave, items()))
    assert pids
    assert wait_until_gone(pids, 0.0) == []


def fail_to_start() -> None:
    raise ModuleNotFoundError("No module named 'tilelang'")


def test_a_worker_that_does_not_start_in_time_stops_the_run() -> None:
    initializer = partial(time.sleep, 3600)
    with WorkerPool(1, timeout_s=60, preload=ready, initializer=initializer, start_timeout_s=0.5) as pool:
        with pytest.raises(ToolchainError, match=r"did not start within 0\.5 s"):
            results(pool, ["fine"])
        assert pool.pids() == []


@pytest.mark.parametrize(
    ("initializer", "text"), [(fail_to_start, "No module named 'tilelang'"), (os.abort, "exit code -6")]
)
def test_workers_that_cannot_start_stop_the_run(initializer: object, text: str) -> None:
    with (
        WorkerPool(1, timeout_s=60, preload=ready, initializer=initializer) as pool,
        pytest.raises(ToolchainError, match=text),
    ):  # type: ignore[arg-type]
        results(pool, ["fine"])
    assert pool.pids() == []


def test_a_fork_server_that_cannot_start_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with (
        WorkerPool(1, timeout_s=60, preload=ready) as pool,
        pytest.raises(ToolchainError, match="cannot be started"),
    ):
        results(pool, ["fine"])


def test_a_worker_that_died_idle_is_replaced() -> None:
    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        results(pool, ["fine"])
        os.kill(pool.pids()[0], signal.SIGKILL)
        wait_until_gone(pool.pids())
        assert isinstance(results(pool, ["fine"])[0], Done)


def test_the_process_that_returned_a_result_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a worker's result comes before the fork server says that it has started it."""
    receive = ForkServerClient.receive

    def receive_without_starts(client: ForkServerClient) -> list[WorkerStarted | WorkerEnded | ServerReady]:
        return [event for event in receive(client) if not isinstance(event, WorkerStarted)]

    monkeypatch.setattr(ForkServerClient, "receive", receive_without_starts)
    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        assert [pid_of(outcome) for outcome in results(pool, ["fine"]).values()] == pool.pids()


def test_the_environment_is_set_before_the_initializer() -> None:
    with WorkerPool(1, timeout_s=60, preload=ready, environment=thread_limits(3)) as pool:
        ((_, outcome),) = pool.run(os.getenv, ["OMP_NUM_THREADS"])
    assert isinstance(outcome, Done)
    assert outcome.value == "3"
    assert os.getenv("OMP_NUM_THREADS") != "3"


@pytest.mark.parametrize("guarded", [True, False])
def test_scripts_without_a_main_guard(tmp_path: Path, guarded: bool) -> None:
    """Only a script that sends its own functions needs a main guard; without it, a message says so."""
    body = """
        def double(x): return 2 * x
        GUARD
        from tilesight.workers import WorkerPool
        with WorkerPool(1, timeout_s=60) as pool:
            print(*(getattr(o, "value", o) for _, o in pool.run(abs, [-1])))
            print(*(getattr(o, "value", o) for _, o in pool.run(double, [4])))
    """
    text = textwrap.dedent(body)
    head, tail = text.split("GUARD\n")
    script = tmp_path / "script.py"
    script.write_text(
        head + ("if __name__ == '__main__':\n" + textwrap.indent(tail, "    ") if guarded else tail)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60
    )
    first, second = output.stdout.splitlines()
    assert first == "1", output.stderr
    assert (second == "8") if guarded else ("if __name__ == '__main__'" in second)


def test_the_failure_of_each_fault() -> None:
    def failure(outcome: Raised | Crashed | TimedOut) -> tuple[FailureKind, str]:
        found = failure_of(
            outcome, FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT
        )
        return found.kind, found.message

    assert failure(Raised("ValueError", "odd", "...", 1.0)) == (FailureKind.BUILD_ERROR, "ValueError: odd")
    assert (
        failure(Raised("InternalError", "\n" + "x" * 1000 + "\nmore", "...", 1.0))[1]
        == "InternalError: " + "x" * 297 + "..."
    )
    assert failure(Crashed(-9, "", 1.0)) == (
        FailureKind.BUILD_CRASH,
        "the process was killed by SIGKILL (out of memory?)",
    )
    assert failure(TimedOut(30.0, "")) == (FailureKind.BUILD_TIMEOUT, "stopped after 30 s")


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        WorkerPool(0, timeout_s=1, preload=ready)


def test_items_are_submitted_and_waited_for_over_several_pools() -> None:
    with WorkerPool(2, timeout_s=60, preload=ready) as two, WorkerPool(1, timeout_s=60, preload=ready) as one:
        assert wait_for([two, one]) == []
        assert (two.room(), one.room()) == (2, 1)
        submitted = {(two, two.submit(behave, how)): how for how in ("fine", "raise")} | {
            (one, one.submit(behave, "exit")): "exit"
        }
        assert (two.room(), one.room()) == (0, 0)
        with pytest.raises(RuntimeError, match="ask room"):
            one.submit(behave, "fine")
        with pytest.raises(RuntimeError, match="items in progress"):
            list(one.run(behave, ["fine"]))
        found = {}
        while fresh := wait_for([two, one]):
            found |= {submitted[pool, ticket]: type(outcome) for pool, ticket, outcome in fresh}
        assert found == {"fine": Done, "raise": Raised, "exit": Crashed}
        assert (two.room(), one.room()) == (2, 1)


def test_waiting_has_a_limit_of_its_own_and_the_item_goes_on() -> None:
    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        ticket = pool.submit(time.sleep, 0.3)
        assert wait_for([pool], timeout_s=0.0) == []
        assert [(t, type(o)) for _, t, o in wait_for([pool])] == [(ticket, Done)]


def test_submitted_items_can_be_cancelled() -> None:
    with WorkerPool(2, timeout_s=60, preload=ready) as pool:
        pool.submit(behave, "hang")
        pool.submit(behave, "hang")
        assert wait_for([pool], timeout_s=1.0) == []
        busy = pool.pids()
        pool.cancel()
        assert [pid for pid in busy if alive(pid)] == []
        assert wait_for([pool]) == []
        assert pool.room() == 2
        assert isinstance(results(pool, ["fine"])[0], Done)


def test_an_interrupt_right_after_an_item_was_sent_ends_its_worker() -> None:
    send = Connection.send_bytes

    def interrupted(connection: Connection, payload: bytes) -> None:
        send(connection, payload)
        raise KeyboardInterrupt

    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        results(pool, ["fine"])
        until = time.monotonic() + 30
        while not pool.pids() and time.monotonic() < until:
            time.sleep(0.01)  # an outcome may come before the server says that the worker was started
        [busy] = pool.pids()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "send_bytes", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.submit(behave, "hang")
        pool.cancel()
        assert not alive(busy)
        assert isinstance(results(pool, ["fine"])[0], Done)


def test_a_fresh_process_has_run_nothing_before() -> None:
    with WorkerPool(2, timeout_s=60, preload=ready) as pool:
        results(pool, ["hold", "hold"])
        seen = before = set(pool.pids())
        assert len(seen) == 2
        for _ in range(3):
            pool.submit(behave, "fine", fresh=True)
            ((_, _, outcome),) = wait_for([pool])
            assert pid_of(outcome) not in seen
            # a process that ended with the item before may not have a successor yet
            assert len(before - set(pool.pids())) <= 1, "more than one worker was replaced for it"
            seen, before = seen | {pid_of(outcome)}, set(pool.pids())


def test_each_slot_has_an_environment_of_its_own_also_after_a_crash() -> None:
    environments = [{"DEVICE": "a"}, {"DEVICE": "b"}]
    with WorkerPool(2, timeout_s=60, preload=ready, environments=environments) as pool:
        for _ in range(2):
            found = dict(pool.run(os.getenv, ["DEVICE"] * 6))
            values = {(o.slot, o.value) for o in found.values() if isinstance(o, Done)}
            assert values <= {(0, "a"), (1, "b")}
            assert len(found) == 6
            assert values
            assert all(isinstance(o, Crashed) for o in results(pool, ["exit", "exit"]).values())
    with pytest.raises(ValueError, match="needs 2 environments"):
        WorkerPool(2, timeout_s=60, preload=ready, environments=environments[:1])


def wait_with_limit(seconds: float) -> None:
    time.sleep(seconds)


def test_an_item_may_have_a_limit_of_its_own_and_limits_adapt() -> None:
    limit = TimeLimit(60.0, floor_s=1.0, factor=1.0)
    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        for _ in range(8):
            pool.submit(wait_with_limit, 0.0, timeout_s=limit)
            assert isinstance(wait_for([pool])[0][2], Done)
        pool.submit(wait_with_limit, 3600, timeout_s=limit)
        assert wait_for([pool])[0][2] == TimedOut(1.0, "")


def kill_own_worker(path: str) -> str:
    """Be killed from outside; `path` holds how often."""
    left = int(Path(path).read_text())
    if left:
        Path(path).write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return "came through"


@pytest.mark.parametrize(("times", "expected"), [(1, Done), (2, Crashed)])
def test_an_item_whose_worker_another_process_killed_runs_again_once(
    tmp_path: Path, times: int, expected: type
) -> None:
    (tmp_path / "times").write_text(str(times))
    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        ((_, outcome),) = pool.run(kill_own_worker, [str(tmp_path / "times")])
        assert isinstance(outcome, expected)
        assert isinstance(results(pool, ["fine"])[0], Done)
    if isinstance(outcome, Crashed):
        assert outcome.exit_code == -signal.SIGKILL


class Gate:
    """Waits until a file exists."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        while not self.path.exists():
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        pass


def test_waiting_for_the_gate_does_not_count_against_the_limit(tmp_path: Path) -> None:
    with WorkerPool(1, timeout_s=0.8, preload=ready, gate=partial(Gate, tmp_path / "open")) as pool:
        pool.submit(behave, "fine")
        until = time.monotonic() + 20
        while not pool.waiting_for_gate and time.monotonic() < until:  # its worker has yet to start
            assert wait_for([pool], timeout_s=0.1) == []
        assert wait_for([pool], timeout_s=1.5) == []
        assert pool.waiting_for_gate == 1
        (tmp_path / "open").touch()
        assert isinstance(wait_for([pool])[0][2], Done)
        assert pool.waiting_for_gate == 0
        pool.submit(behave, "hang")
        assert isinstance(wait_for([pool])[0][2], TimedOut), "the limit does not hold after the gate"


def take_large_argument(given: bytes) -> None:
    """An initializer whose argument is more than a connection holds."""


def test_the_setup_of_a_worker_may_be_large() -> None:
    with WorkerPool(
        1, timeout_s=60, preload=ready, initializer=partial(take_large_argument, bytes(2**22))
    ) as pool:
        assert isinstance(results(pool, ["fine"])[0], Done)


def half_a_message(_: str) -> None:
    """Write the length of a message into the worker's connection, and no message."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), struct.pack("!i", 2**20))
    time.sleep(3600)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_an_item_that_writes_into_the_connection_has_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.workers.supervisor.KILL_TIMEOUT_S", 1.0)
    with WorkerPool(1, timeout_s=60, preload=ready) as pool:
        assert isinstance(dict(pool.run(half_a_message, ["it"]))[0], Crashed)
        assert isinstance(results(pool, ["fine"])[0], Done)


def closed_gate() -> object:
    raise OSError("no folder for locks")


def test_a_gate_that_fails_is_data() -> None:
    with WorkerPool(1, timeout_s=60, preload=ready, gate=closed_gate) as pool:  # type: ignore[arg-type]
        raised = results(pool, ["fine"])[0]
    assert isinstance(raised, Raised)
    assert "no folder for locks" in raised.message
