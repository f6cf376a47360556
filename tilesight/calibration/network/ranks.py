"""Runs one function in a process for each rank, and collects what the processes send, as data.

All ranks send the same number of values in the same order. A rank that fails, dies or falls silent ends the
run: the others would wait for it for ever. What all ranks have sent before that stays.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from ...errors import headline
from ...workers.process_tree import end_with_parent

Send = Callable[[Any], None]
RankFunction = Callable[[int, Any, Send], None]
END_S = 10.0  # in which processes may end that have sent everything


@dataclass(frozen=True, slots=True)
class RankLimits:
    """Limits of a run in seconds.

    Attributes:
        start_s: Until each rank has sent its first value.
        silence_s: Between two values of any ranks, after that.
        total_s: For everything.
    """

    start_s: float = 60.0
    silence_s: float = 20.0
    total_s: float = 110.0


@dataclass(slots=True)
class Collected:
    """What the ranks sent.

    Attributes:
        rows: The values of all ranks, in the order of ranks, for each value that all of them sent.
        fault: Why the run ended early; empty if it did not.
    """

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    fault: str = ""


def run_ranks(
    function: RankFunction,
    world: int,
    argument: object,
    expected: int,
    limits: RankLimits,
    on_row: Callable[[tuple[Any, ...]], None] = lambda _: None,
) -> Collected:
    """Call `function(rank, argument, send)` in `world` new processes.

    Args:
        function: Can be imported; calls `send` with each of its values.
        world: Number of ranks.
        argument: Can be pickled.
        expected: Values of each rank.
        limits: Processes that exceed them are killed.
        on_row: Receives each row when it is complete.
    """
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    channels: list[Connection] = []
    try:
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_serve, args=(function, rank, argument, theirs, os.getpid()), daemon=True
            )
            channels.append(ours)
            process.start()
            theirs.close()
            processes.append(process)
        found = _collect(processes, channels, expected, limits, on_row)
        if not found.fault:
            deadline = time.monotonic() + END_S
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
        return found
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join(END_S)
        for channel in channels:
            channel.close()


def _collect(
    processes: list[SpawnProcess],
    channels: list[Connection],
    expected: int,
    limits: RankLimits,
    on_row: Callable[[tuple[Any, ...]], None],
) -> Collected:
    values: list[list[Any]] = [[] for _ in channels]
    found = Collected()
    begin = last = time.monotonic()
    while len(found.rows) < expected:
        started = all(values)
        allowed = min(begin + limits.total_s, last + limits.silence_s if started else begin + limits.start_s)
        behind = [rank for rank, own in enumerate(values) if len(own) < expected]
        ready = wait([channels[rank] for rank in behind], max(0.0, allowed - time.monotonic()))
        if not ready:
            found.fault = _silence(values, limits, started, time.monotonic() - begin)
            return found
        for rank in behind:
            if channels[rank] in ready:
                fault = _receive(channels[rank], processes[rank], values[rank])
                last = time.monotonic()
                if fault:
                    found.fault = found.fault or f"rank {rank} {fault}"
        while all(len(own) > len(found.rows) for own in values):
            row = tuple(own[len(found.rows)] for own in values)
            found.rows.append(row)
            on_row(row)
        if found.fault:
            return found
    return found


def _receive(channel: Connection, process: SpawnProcess, values: list[Any]) -> str:
    """Add the next value. Returns what happened to the rank instead, if it sent none."""
    try:
        is_value, content = channel.recv()
    except (EOFError, OSError):
        process.join(END_S)
        code = process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"
    if is_value:
        values.append(content)
        return ""
    return f"failed: {content}"


def _silence(values: list[list[Any]], limits: RankLimits, started: bool, passed_s: float) -> str:
    least = min(map(len, values))
    slowest = ", ".join(str(rank) for rank, own in enumerate(values) if len(own) == least)
    if passed_s >= limits.total_s:
        return f"not done after {limits.total_s:g} s; rank {slowest} is behind"
    if not started:
        return f"rank {slowest} did not start within {limits.start_s:g} s"
    return f"no rank answered for {limits.silence_s:g} s; rank {slowest} is behind"


def _place(error: Exception) -> str:
    """Where the innermost code of ours raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "-packages" not in f.filename or "tilesight" in f.filename]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}"


def _serve(function: RankFunction, rank: int, argument: object, channel: Connection, parent_pid: int) -> None:
    end_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and kills the ranks
    try:
        function(rank, argument, lambda value: channel.send((True, value)))
    except Exception as error:
        channel.send((False, f"{type(error).__name__}: {headline(str(error))} ({_place(error)})"))
    channel.close()
