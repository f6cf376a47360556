"""Processes of ranks: rows in order, and faults of single ranks as data."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tilesight.calibration.network.ranks import RankLimits, Send, run_ranks

QUICK = RankLimits(start_s=60.0, silence_s=1.0, total_s=60.0)


def squares(rank: int, count: Any, send: Send) -> None:
    for value in range(count):
        send((rank, value * value))


def second_falters(rank: int, given: tuple[str, Path], send: Send) -> None:
    """Rank 1 falters when both have sent their first value; rank 0 sends a second and waits for ever."""
    how, folder = given
    send(rank)
    (folder / str(rank)).touch()
    if rank == 1:
        while not (folder / "0").exists():
            time.sleep(0.01)
        if how == "raise":
            raise ValueError("no peer access\nand more")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(3)
        time.sleep(1000)
    send(rank)
    time.sleep(1000)


def never_starts(*_: object) -> None:
    time.sleep(1000)


def sends_for_ever(rank: int, _: Any, send: Send) -> None:
    while True:
        send(rank)
        time.sleep(0.01)


def stays(rank: int, _: Any, send: Send) -> None:
    send((rank, os.getpid()))
    time.sleep(1000)


def test_rows_have_the_values_of_all_ranks_in_their_order() -> None:
    seen: list[tuple[Any, ...]] = []
    found = run_ranks(squares, 2, 4, 4, QUICK, seen.append)
    assert found.fault == ""
    assert found.rows == seen == [tuple((rank, value**2) for rank in range(2)) for value in range(4)]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "rank 1 failed: ValueError: no peer access (test_ranks.py, line "),
        ("die", "rank 1 was killed by SIGKILL"),
        ("exit", "rank 1 ended with exit code 3"),
        ("hang", "no rank answered for 1 s; rank 1 is behind"),
    ],
)
def test_a_rank_that_falters_ends_the_run_and_complete_rows_stay(
    how: str, message: str, tmp_path: Path
) -> None:
    found = run_ranks(second_falters, 2, (how, tmp_path), 2, QUICK)
    assert found.rows == [(0, 1)]
    assert found.fault.startswith(message)


def test_ranks_that_do_not_start() -> None:
    found = run_ranks(never_starts, 2, None, 1, RankLimits(start_s=0.5, silence_s=1.0, total_s=60.0))
    assert (found.rows, found.fault) == ([], "rank 0, 1 did not start within 0.5 s")


def test_a_run_that_takes_too_long() -> None:
    found = run_ranks(sends_for_ever, 1, None, 1 << 30, RankLimits(start_s=60.0, silence_s=60.0, total_s=1.0))
    assert found.fault == "not done after 1 s; rank 0 is behind"


def test_no_process_remains() -> None:
    found = run_ranks(stays, 2, None, 2, QUICK)
    for _, pid in found.rows[0]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
