"""Exchanges among three ranks, on threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from torch.distributed import HashStore

from tilesight.dispatch.group.exchange import Exchange, RankStep
from tilesight.dispatch.group.members import RankProcess, Watch, check_members, own_member
from tilesight.errors import GroupError, InputError

WORLD = 3


@pytest.fixture
def exchanges() -> list[Exchange]:
    store = HashStore()
    return [Exchange(store, rank, WORLD, wait_s=5.0) for rank in range(WORLD)]


def on_each(exchanges: list[Exchange], work: Callable[[int, Exchange], Any]) -> list[Any]:
    """What `work` returns on each rank, or the message of its error."""

    def of_rank(rank: int) -> Any:
        try:
            return work(rank, exchanges[rank])
        except (GroupError, InputError, ZeroDivisionError) as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(len(exchanges)) as pool:
        return list(pool.map(of_rank, range(len(exchanges))))


def test_each_rank_gets_its_result_and_what_all_tell(exchanges: list[Exchange]) -> None:
    found = on_each(
        exchanges,
        lambda rank, one: [one.attempt("step", lambda: RankStep(rank, {"a": "b"}, 10 * rank)) for _ in "12"],
    )
    assert found == [[(rank, [0, 10, 20])] * 2 for rank in range(WORLD)]


def test_a_difference_is_one_message_that_names_rank_and_value(exchanges: list[Exchange]) -> None:
    found = on_each(
        exchanges, lambda rank, one: one.attempt("step", lambda: RankStep(rank, {"size": str(rank // 2)}))
    )
    assert set(found) == {
        "GroupError: step: refused by all ranks, because they disagree: size is 1 on rank 2 and 0 on rank 0; "
        "give all ranks the same"
    }
    assert on_each(exchanges, lambda _, one: one.attempt("next", lambda: RankStep(1))[0]) == [1] * WORLD


def test_what_only_some_ranks_have_is_a_difference(exchanges: list[Exchange]) -> None:
    found = on_each(
        exchanges, lambda rank, one: one.attempt("step", lambda: RankStep(0, {"x": "1"} if rank else {}))
    )
    assert all("x is 1 on rank 1 and none on rank 0" in text for text in found)


@pytest.mark.parametrize("error", [InputError("a wrong size"), ZeroDivisionError("by zero")])
def test_an_error_of_one_rank_is_that_of_all(error: Exception, exchanges: list[Exchange]) -> None:
    def work(rank: int, one: Exchange) -> Any:
        def step() -> RankStep[int]:
            if rank == 1:
                raise error
            return RankStep(rank)

        return one.attempt("step", step)

    text = str(error) if isinstance(error, InputError) else f"ZeroDivisionError: {error}"
    expected = f"GroupError: step: refused by all ranks, because rank 1 failed: {text}"
    assert on_each(exchanges, work) == [expected] * WORLD


def test_an_error_that_all_have_is_raised_as_it_is(exchanges: list[Exchange]) -> None:
    def fails() -> RankStep[int]:
        raise InputError("wrong everywhere")

    found = on_each(exchanges, lambda _, one: one.attempt("step", fails))
    assert found == ["InputError: wrong everywhere"] * WORLD


def test_another_step_is_named(exchanges: list[Exchange]) -> None:
    steps = ["prepare", "call", "call"]
    found = on_each(exchanges, lambda rank, one: one.attempt(steps[rank], lambda: RankStep(0)))
    assert all(text.startswith("GroupError: rank 1 does this: call; and rank 0: prepare; ") for text in found)


def test_a_rank_that_does_not_come_is_named(exchanges: list[Exchange]) -> None:
    for one in exchanges:
        one.wait_s = 0.05
    found = on_each(exchanges[:2], lambda _, one: one.attempt("step", lambda: RankStep(0)))
    assert found[0].startswith(
        "GroupError: step: rank 2 has not come within 0.05 s, and rank 0 waits for it; "
    )


def test_a_waiting_rank_is_seen_and_can_be_refused(exchanges: list[Exchange]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(on_each, exchanges[:1], lambda _, one: one.attempt("call", lambda: RankStep(0)))
        while not exchanges[1].waiting_ranks():
            time.sleep(0.01)
        assert exchanges[1].waiting_ranks() == {0: "call"}
        exchanges[1].refuse("never together")
        assert waiting.result() == ["GroupError: never together"]


def test_the_reason_of_a_rank_that_refused_and_ended_is_told(exchanges: list[Exchange]) -> None:
    def ended() -> None:
        raise GroupError("rank 1 of the group (process 7) has ended")

    exchanges[0].check_others = ended
    one = [exchanges[0]]
    assert on_each(one, lambda _, it: it.attempt("call", lambda: RankStep(0))) == [
        "GroupError: rank 1 of the group (process 7) has ended"
    ]
    exchanges[1].refuse("never together")
    assert on_each(one, lambda _, it: it.attempt("call", lambda: RankStep(0))) == [
        "GroupError: never together"
    ]


def test_old_values_are_deleted(exchanges: list[Exchange]) -> None:
    for _ in range(5):
        on_each(exchanges, lambda _, one: one.attempt("step", lambda: RankStep(0)))
    store: Any = exchanges[0]._store
    assert store.num_keys() == 2 * WORLD  # the last values, and the numbers of dispatchers


def test_a_store_that_ends_is_said(exchanges: list[Exchange]) -> None:
    class Ended:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Connection reset by peer\nmore")

    exchanges[0]._store = Ended()  # type: ignore[assignment]
    with pytest.raises(
        GroupError, match=r"cannot reach the store of its process group.*: Connection reset by peer$"
    ):
        exchanges[0].attempt("step", lambda: RankStep(0))


def test_members_share_a_host_and_no_gpu() -> None:
    check_members([RankProcess(1, "host", "a"), RankProcess(2, "host", "b")])
    check_members([RankProcess(1, "host"), RankProcess(2, "host")])
    with pytest.raises(InputError, match="rank 1 runs on another host"):
        check_members([RankProcess(1, "host"), RankProcess(2, "other")])
    with pytest.raises(InputError, match="rank 2 uses the same GPU as rank 0"):
        check_members([RankProcess(1, "host", "a"), RankProcess(2, "host", "b"), RankProcess(3, "host", "a")])


@pytest.fixture
def sleeper() -> Any:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def watch_of(sleeper: subprocess.Popen[bytes], **changes: Any) -> tuple[Watch, list[str], threading.Event]:
    said: list[str] = []
    ended = threading.Event()

    def end(message: str) -> None:
        said.append(message)
        ended.set()

    given = {"settles": lambda _: True, "waiting_ranks": dict, "refuse": lambda _: None, **changes}
    members = [own_member(""), RankProcess(sleeper.pid, "host")]
    return Watch(members, 0, end=end, look_s=0.02, stuck_s=0.1, late_s=0.1, **given), said, ended


def test_the_end_of_a_process_is_no_fault_while_nothing_waits_for_it(
    sleeper: subprocess.Popen[bytes],
) -> None:
    watch, said, ended = watch_of(sleeper)
    watch.check()
    sleeper.kill()
    assert not ended.wait(0.3)
    with pytest.raises(GroupError, match=rf"rank 1 of the group \(process {sleeper.pid}\) has ended"):
        watch.check()
    watch.close()
    assert said == []


@pytest.mark.parametrize("where", ["on the device", "on the host"])
def test_a_process_that_waits_for_an_ended_one_ends(where: str, sleeper: subprocess.Popen[bytes]) -> None:
    refused: list[str] = []
    changes = {"settles": lambda _: False} if where == "on the device" else {}
    watch, said, ended = watch_of(sleeper, refuse=refused.append, **changes)
    with watch.waiting() if where == "on the host" else nullcontext():
        sleeper.kill()
        assert ended.wait(5)
    assert said == [f"{refused[0]}. Rank 0 waits for it and cannot go on, so its process ends too"]


def test_a_process_that_waits_in_a_kernel_while_another_waits_to_agree_ends(
    sleeper: subprocess.Popen[bytes],
) -> None:
    watch, said, ended = watch_of(sleeper, waiting_ranks=lambda: {1: "call"}, settles=lambda _: False)
    assert ended.wait(5)
    assert said[0].startswith("rank 1 does this: call; and rank 0 waits in another call; ")
    watch.close()


def test_a_closed_watch_keeps_no_descriptor(sleeper: subprocess.Popen[bytes]) -> None:
    gc.collect()  # what earlier tests left may be closed meanwhile
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        watch_of(sleeper)[0].close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_fork_does_not_end_the_watch(sleeper: subprocess.Popen[bytes]) -> None:
    watch, _, _ = watch_of(sleeper)
    if not (pid := os.fork()):
        watch.close()
        os._exit(0)
    os.waitpid(pid, 0)
    sleeper.kill()
    for _ in range(100):
        if watch._ended:
            break
        time.sleep(0.05)
    with pytest.raises(GroupError, match="rank 1 of the group"):
        watch.check()
    watch.close()
    watch.close()
