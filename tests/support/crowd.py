"""A program in which several processes use one database at the same moment; prints the result of each.

python -m tests.support.crowd URL SCENE PROCESSES [SESSION]
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.unit.database import samples
from tilesight.database import Store, open_store
from tilesight.problem.space import Census
from tilesight.records.session import Baseline, Effort, SessionState
from tilesight.records.winners import Miss

CANDIDATES, BATCH, MISSES = 40, 8, 10
OPTIONS = {"top": 5}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
MISS = Miss(
    samples.context().workload,
    "h200",
    "NVIDIA H200",
    "matmul",
    1,
    samples.config(1),
    "nearest",
    2.0,
    MOMENT,
    MOMENT,
)


def fill(store: Store, number: int, _session_id: int) -> object:
    """Record a session with the same facts as the other processes, in another order."""
    context = samples.context()
    session_id = store.begin(context, Effort.QUICK, 0, {"number": number}, Census(1, 1, {}))
    order = random.Random(number).sample(range(CANDIDATES), CANDIDATES)
    for start in range(0, CANDIDATES, BATCH):
        store.record_many(
            session_id, context, [samples.verified(n, 10.0 + n) for n in order[start : start + BATCH]]
        )
    other = replace(MISS, workload=replace(MISS.workload, dims={"m": 7}))
    for _ in range(MISSES):
        store.record_misses([MISS, other] if number % 2 else [other, MISS])
    store.finish(session_id, SessionState.COMPLETE)
    return session_id


def take_over(store: Store, _number: int, _session_id: int) -> object:
    return store.find_interrupted(samples.context(), Effort.QUICK, OPTIONS)


def one_row(store: Store, number: int, session_id: int) -> object:
    """Record a trial, baselines and the end of one session, like all other processes."""
    context = samples.context()
    for _ in range(10):
        store.record(session_id, context, samples.verified(1, 10.0 + number))
        store.record_baselines(
            session_id, [Baseline(f"first of {number}", (1.0,)), Baseline(f"second of {number}", (2.0,))]
        )
    store.finish(session_id, SessionState.COMPLETE, [f"said by {number}"], float(number))
    return None


def begin(store: Store, number: int, _session_id: int) -> object:
    return [store.begin(samples.context(), Effort.QUICK, number, {}, Census(1, 1, {})) for _ in range(10)]


def run(url: str, processes: int, work: Callable[[Store, int, int], object], session_id: int) -> list[Any]:
    """The result of `work` in each process. All start at the moment when the last is ready."""
    ready, go, leave = os.pipe(), os.pipe(), os.pipe()
    answers = []
    for number in range(processes):
        answer = os.pipe()
        if os.fork() == 0:
            try:
                os.close(go[1])
                os.close(leave[1])
                os.write(ready[1], b".")
                os.read(go[0], 1)  # until the parent closes it
                with open_store(url) as store:
                    text = json.dumps(work(store, number, session_id))
            except BaseException as error:
                text = json.dumps({"error": repr(error)})
            os.write(answer[1], text.encode())
            os.close(answer[1])
            os.read(leave[0], 1)  # and lives until all have answered
            os._exit(0)
        os.close(answer[1])
        answers.append(answer[0])
    for _ in range(processes):
        os.read(ready[0], 1)
    os.close(go[1])
    found = []
    for answer in answers:
        with open(answer) as pipe:
            found.append(json.loads(pipe.read()))
    os.close(leave[1])
    return found


if __name__ == "__main__":
    scenes = {work.__name__: work for work in (fill, take_over, one_row, begin)}
    print(json.dumps(run(sys.argv[1], int(sys.argv[3]), scenes[sys.argv[2]], int((*sys.argv, "0")[4]))))
