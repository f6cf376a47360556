"""Winners for dispatch, of all workloads that share some dimensions.

A workload's winner is the decision of its latest complete session, among the sessions with the context's
template, architecture, software, device and protocol. If none of them decided, the winner is the fastest
verified candidate; if several sessions measured a candidate, its latest time counts. A candidate whose result
was ever wrong on that device, with the same code, never wins. An index on `sessions.shape_family` finds these
sessions.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection

from ...errors import InputError
from ...problem.space import Config
from ...problem.workload import Workload, check_dimension
from ...records.session import SessionState
from ...records.winners import Winner
from ..engine.faults import UnsoundRecordError
from ..engine.text_checks import clean
from ..tables.rows import ContextIds
from ..tables.trial_rows import sound
from . import winner_sql as lookup_sql
from .winner_sql import FastestRow, SessionRow, run

T = TypeVar("T")
Found = tuple[SessionRow, FastestRow]  # a session on the workload, and its winning trial


def winners(
    connection: Connection, ids: ContextIds, fixed: Mapping[str, int], *, any_dynamic: bool = False
) -> list[Winner]:
    """The winners of all workloads with the sizes in `fixed`, ordered by their dimensions."""
    workload = ids.context.workload
    for name, size in fixed.items():
        if name not in workload.dims:
            raise InputError(
                f"'{name}' is no dimension of {workload.operator}; it has {', '.join(workload.dims)}"
            )
        check_dimension(workload.operator, name, size)
    bound: dict[str, object] = {f"dim{number}": clean(name) for number, name in enumerate(fixed)}
    sizes: dict[str, object] = {f"size{number}": size for number, size in enumerate(fixed.values())}
    agrees = "".join(
        f" AND EXISTS (SELECT 1 FROM workload_dims d WHERE d.workload_id = s.workload_id AND d.dim = :{dim} "
        f"AND d.size = :{size})"
        for dim, size in zip(bound, sizes, strict=True)
    )
    found = [
        _winner(*pair)
        for pair in _winners_of(connection, ids, agrees, {**bound, **sizes}, any_dynamic).values()
    ]
    return sorted(found, key=lambda winner: tuple(winner.workload.dims.values()))


def _winners_of(
    connection: Connection, ids: ContextIds, condition: str, values: Mapping[str, object], any_dynamic: bool
) -> dict[int, Found]:
    """The winning session and trial of each workload, by its id.

    `condition` is a condition in SQL on the sessions.
    """
    common = {
        "family": ids.shape_family,
        "device": clean(ids.context.device),
        "code_key": ids.code_key,
        "dynamic": ids.dynamic,
    }
    sql = lookup_sql.sessions(condition, any_dynamic=any_dynamic)
    of_kernel: dict[tuple[int, str], list[SessionRow]] = defaultdict(list)  # latest session first
    for row in map(SessionRow._make, run(connection, sql, {**common, **values})):
        of_kernel[row.workload_id, row.dynamic].append(row)
    found: list[Found] = []
    undecided: list[SessionRow] = []
    for sessions in of_kernel.values():
        decided = next(
            (row for row in sessions if row.state == SessionState.COMPLETE and not row.is_out), None
        )
        if decided is None:
            undecided += sessions
        else:
            found.append((decided, _decision_of(decided)))
    found += _fastest(connection, common, undecided)
    winners: dict[int, Found] = {}
    for session, trial in found:
        best = winners.get(session.workload_id)
        if best is None or trial.measured_us < best[1].measured_us:
            winners[session.workload_id] = session, trial
    return winners


def _decision_of(session: SessionRow) -> FastestRow:
    """The trial of a session's winner. Raises `UnsoundRecordError` if the winner was not verified."""
    if session.measured_us is None or session.config is None:
        raise UnsoundRecordError(f"session {session.id}: its winner has no measured time")
    return FastestRow(session.id, session.measured_us, session.recorded_at, session.config)


def _fastest(
    connection: Connection, common: Mapping[str, object], sessions: Sequence[SessionRow]
) -> list[Found]:
    """The fastest valid candidate of each of these sessions."""
    found: dict[int, Found] = {}
    for of_all in (False, True):
        left = {row.id: row for row in sessions if row.id not in found}
        for ids in _parts(list(left), lookup_sql.LENGTHS):
            values = {**common, **{f"session{n}": session_id for n, session_id in enumerate(ids)}}
            for trial in map(
                FastestRow._make, run(connection, lookup_sql.fastest(len(ids), of_all=of_all), values)
            ):
                found[trial.session_id] = left[trial.session_id], trial
    return list(found.values())


def _parts(values: Sequence[T], lengths: Sequence[int]) -> Iterator[list[T]]:
    """`values` in parts of a few lengths, filled up with the last value: each length needs a statement of its
    own."""
    for start in range(0, len(values), lengths[-1]):
        part = list(values[start : start + lengths[-1]])
        yield part + part[-1:] * (next(length for length in lengths if length >= len(part)) - len(part))


def _winner(session: SessionRow, trial: FastestRow) -> Winner:
    with sound(trial.config):
        moment = trial.recorded_at  # text in SQLite
        return Winner(
            workload=Workload(
                session.operator, _json(session.dims), session.dtype, _json(session.attrs), session.name
            ),
            config=Config(json.loads(trial.config)),
            latency_us=trial.measured_us,
            dynamic=tuple(session.dynamic.split(",")) if session.dynamic else (),
            recorded_at=datetime.fromisoformat(moment) if isinstance(moment, str) else moment,
        )


def _json(value: Any) -> Any:
    """A value of JSON, which SQLite returns as text."""
    return json.loads(value) if isinstance(value, str) else value
