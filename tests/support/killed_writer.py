"""A program that kills processes while they write to a database, and checks what is left.

    python -m tests.support.killed_writer URL ROUNDS SEED   kills at random moments python -m
    tests.support.killed_writer URL steps STEP    kills at each STEPth statement, and before and after each
    commit

Exits with 1 and a message if committed rows are lost, or a partial write is visible.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.unit.database import samples
from tilesight.database import Store, open_store
from tilesight.problem.space import Census
from tilesight.records.session import Baseline, Decision, Effort, SessionState
from tilesight.records.trial import TrialRecord
from tilesight.records.winners import Miss

BATCH = 5
ROUND = 10_000  # numbers of candidates that are a round's own
MOST_REPORTS = 40  # a session and half of the next
LONGEST_SECONDS = 0.004  # of a write or two
_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def trial(number: int) -> TrialRecord:
    return samples.verified(number, 10.0 + number, 11.0 + number)


def miss(round_number: int) -> Miss:
    workload = replace(samples.context().workload, dims={"m": round_number + 1})
    return Miss(
        workload, "h200", "NVIDIA H200", "matmul", 1, samples.config(1), "nearest", 2.0, _MOMENT, _MOMENT
    )


def write(url: str, round_number: int, report: Callable[[str], None]) -> None:
    """Write without end; report each write with `report` before it begins, and once it is done."""
    numbers = itertools.count(round_number * ROUND)
    context = samples.context()
    while True:
        report("open")
        with open_store(url) as store:
            session_id = store.begin(context, Effort.QUICK, 0, {"round": round_number}, Census(1, 1, {}))
            for _ in range(3):
                one = next(numbers)
                report(f"one {one}")
                store.record(session_id, context, trial(one))
                report(f"done {one}")
                batch = list(itertools.islice(numbers, BATCH))
                report(f"batch {batch[0]}")
                store.record_many(session_id, context, [trial(number) for number in batch])
                report(f"done {batch[0]}")
                report("miss")
                store.record_misses([miss(round_number)])
                report("missed")
            store.record_baselines(session_id, [Baseline("vendor", (1.0, 2.0)), Baseline("other", (3.0,))])
            report(f"finish {session_id}")
            store.finish(
                session_id,
                SessionState.COMPLETE,
                ["reported"],
                1.5,
                decision=Decision(samples.config(one), (), "reason"),
            )
            report(f"finished {session_id}")


def check(store: Store, round_number: int, reported: list[str]) -> None:
    """What the process of this round reported is done is there; what it had begun is there in whole or not at
    all."""
    context = samples.context()
    own = range(round_number * ROUND, (round_number + 1) * ROUND)
    found = {
        int(record.config["block_m"]): record
        for record in store.recall(context).values()
        if int(record.config["block_m"]) in own
    }
    begun = [word.split() for word in reported]
    done = {int(words[1]) for words in begun if words[0] == "done"}
    for words in begun:
        if words[0] in ("one", "batch"):
            first = int(words[1])
            numbers = range(first, first + (BATCH if words[0] == "batch" else 1))
            there = [number for number in numbers if number in found]
            expect(
                first not in done or len(there) == len(numbers),
                f"round {round_number}: {words} was done, and {there} is left",
            )
            expect(len(there) in (0, len(numbers)), f"round {round_number}: of {words} only {there} is there")
            for number in there:
                expect(found.pop(number) == trial(number), f"round {round_number}: {number} is half-written")
    expect(not found, f"round {round_number}: {sorted(found)} came from nowhere")
    counts = [entry.count for entry in store.misses() if entry.workload == miss(round_number).workload]
    missed = [reported.count("missed"), reported.count("miss")]
    expect(sum(counts) in missed, f"round {round_number}: {counts} misses, {missed} were reported")
    finished = [words[1] for words in begun if words[0] == "finished"]
    if finished:
        result = store.find_complete(context, Effort.QUICK, {"round": round_number})
        expect(
            result is not None and result.messages == ("reported",) and len(result.baselines) == 2,
            f"round {round_number}: no result",
        )
        expect(
            result is not None and len(result.trials) == 3 * (1 + BATCH),
            f"round {round_number}: a session lost trials",
        )
    store.find_interrupted(context, Effort.QUICK, {"round": round_number})


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(what)


def one_round(
    url: str, round_number: int, prepare: Callable[[], None], after: tuple[int, float] | None
) -> list[str]:
    """Run a writing process, kill it so many seconds `after` it has reported so many things, or let it kill
    itself; what it reported."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            prepare()
            write(url, round_number, lambda words: os.write(writer, (words + "\n").encode()) and None)
        except BaseException as error:
            os.write(writer, f"error {error!r}\n".encode())
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader) as pipe:
        reported = []
        if after is not None:
            reported = [pipe.readline().strip() for _ in range(after[0])]
            time.sleep(after[1])
            os.kill(child, signal.SIGKILL)
        reported += pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    expect(
        os.WIFSIGNALED(status) and not any(words.startswith("error") for words in reported),
        f"the writer died by itself: {reported[-1:]}",
    )
    return reported


def kill_at(step: int) -> None:
    """Kill this process at the `step`th event of its statements and commits."""
    count = 0

    def passed(*_: object) -> None:
        nonlocal count
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "after_cursor_execute", "begin", "commit"):
        event.listen(Engine, name, passed)


def main() -> None:
    url, how, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    history: list[list[str]] = []
    draw = random.Random(number)
    steps = itertools.count(1, number) if how == "steps" else None
    while True:
        at = len(history)
        if steps is not None:
            step = next(steps)
            reported = one_round(url, at, lambda step=step: kill_at(step), None)
        else:
            reported = one_round(
                url, at, lambda: None, (draw.randint(1, MOST_REPORTS), draw.uniform(0.0, LONGEST_SECONDS))
            )
        history.append(reported)
        with open_store(url) as store:
            check(store, at, reported)
        # a whole session and the begin of the next
        if (steps is not None and "open" in reported[1:]) or (steps is None and len(history) == int(how)):
            break
    done = {int(words.split()[1]) for reported in history for words in reported if words.startswith("done")}
    with open_store(url) as store:
        kept = {int(record.config["block_m"]) for record in store.recall(samples.context()).values()}
    expect(done <= kept, f"lost later: {sorted(done - kept)}")
    print(f"{len(history)} processes killed, {len(done)} writes kept")


if __name__ == "__main__":
    main()
