"""Winners for dispatch: of one workload, of the nearest, of all that share some dimensions.

A workload's winner is the one that the latest complete session decided for, among sessions that hold in the context: same
template, architecture, software, device, protocol. Where none decided, the fastest verified candidate is; of one that several
sessions measured the latest time counts. A candidate that was ever wrong on that device, with the same code, is no winner.

Nothing is kept for this beside what sessions record: `sessions.shape_family` and `shape_code` are their place in an index.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection

from ..errors import InputError
from ..known import Known
from ..session import State
from ..space import Config
from ..workload import Workload, check_dimension
from . import lookup_sql, shapes
from .checks import clean
from .lookup_sql import FastestRow, SessionRow, run
from .rows import Place
from .trials import sound

_LENGTHS = (1, 16, 128)  # workloads that one statement looks through

T = TypeVar("T")
Winner = tuple[SessionRow, FastestRow]  # a session on the workload, and its winning trial


def winner(connection: Connection, place: Place, *, any_open: bool = False) -> Known | None:
    """The winner of the place's own workload; with `any_open` whichever dimensions its kernel takes at run time."""
    found = _resolved(connection, place, [(place.workload_id, place.shape_code)], any_open).get(place.workload_id)
    return None if found is None else _known(*found)


def nearest(connection: Connection, place: Place, count: int, *, any_open: bool = False) -> list[Known]:
    """The winners of the `count` nearest other workloads, nearest first, by the distance of the logarithms of dimensions."""
    if count < 1:
        raise InputError(f"count={count} of nearest workloads must be at least 1")
    dims = dict(place.context.workload.dims)
    known = {"family": place.shape_family, "own": place.workload_id, "open": place.open}

    def beside(code: int) -> list[tuple[int, tuple[int, int]]]:
        rows = run(connection, lookup_sql.beside(any_open=any_open), {**known, "code": code})
        return [(found, (workload_id, found)) for _, found, workload_id in rows]

    def read(ranges: Sequence[shapes.Range]) -> list[tuple[int, int, tuple[int, int]]]:
        bounds = {}
        for n in range(shapes.TOGETHER):  # always as many: the last ones are empty
            bounds[f"first{n}"], bounds[f"last{n}"] = ranges[n] if n < len(ranges) else (1, 0)
        rows = run(connection, lookup_sql.within(any_open=any_open), {**known, **bounds})
        return [(part, found, (workload_id, found)) for part, found, workload_id in rows]

    wanted = count
    while True:
        near = shapes.nearest(dims, wanted, beside, read)
        found = _resolved(connection, place, near, any_open)
        # at most so many of those that are wanted have no winner: sessions that verified nothing
        without = len(near) - len(found)
        if wanted - without >= count or len(near) < wanted:
            first = sorted(found.values(), key=lambda pair: shapes.distance(dims, _json(pair[0].dims)))[:count]
            return [_known(*pair) for pair in first]
        wanted = max(count + without, 2 * wanted)


def winners(connection: Connection, place: Place, fixed: Mapping[str, int], *, any_open: bool = False) -> list[Known]:
    """The winners of all workloads whose dimensions agree with `fixed`, in the order of their dimensions."""
    workload = place.context.workload
    for name, size in fixed.items():
        if name not in workload.dims:
            raise InputError(f"'{name}' is no dimension of {workload.operator}; it has {', '.join(workload.dims)}")
        check_dimension(workload.operator, name, size)
    bound: dict[str, object] = {f"dim{number}": clean(name) for number, name in enumerate(fixed)}
    sizes: dict[str, object] = {f"size{number}": size for number, size in enumerate(fixed.values())}
    agrees = "".join(
        f" AND EXISTS (SELECT 1 FROM workload_dims d WHERE d.workload_id = s.workload_id AND d.dim = :{dim} AND d.size = :{size})"
        for dim, size in zip(bound, sizes, strict=True)
    )
    found = [_known(*pair) for pair in _winners_of(connection, place, agrees, {**bound, **sizes}, any_open).values()]
    return sorted(found, key=lambda known: tuple(known.workload.dims.values()))


def _resolved(connection: Connection, place: Place, near: Sequence[tuple[int, int]], any_open: bool) -> dict[int, Winner]:
    """The winners of workloads, given by id and place on the curve."""
    found: dict[int, Winner] = {}
    for part in _parts(near, _LENGTHS):
        values = {f"w{n}": workload_id for n, (workload_id, _) in enumerate(part)}
        codes = {f"c{n}": code for n, (_, code) in enumerate(part)}
        chosen = f" AND s.shape_code IN ({_names(codes)}) AND s.workload_id IN ({_names(values)})"
        found |= _winners_of(connection, place, chosen, {**values, **codes}, any_open)
    return found


def _winners_of(connection: Connection, place: Place, chosen: str, values: Mapping[str, object], any_open: bool) -> dict[int, Winner]:
    """By workload id. `chosen` says in SQL which of the family's sessions are asked."""
    asked = {"family": place.shape_family, "device": clean(place.context.device), "code_key": place.code_key, "open": place.open}
    sql = lookup_sql.sessions(chosen, any_open=any_open)
    of_kernel: dict[tuple[int, str], list[SessionRow]] = defaultdict(list)  # latest session first
    for row in map(SessionRow._make, run(connection, sql, {**asked, **values})):
        of_kernel[row.workload_id, row.open].append(row)
    found: list[Winner] = []
    undecided: list[SessionRow] = []
    for sessions in of_kernel.values():
        decided = next((row for row in sessions if row.state == State.COMPLETE and not row.is_out), None)
        if decided is None:
            undecided += sessions
        else:
            assert decided.measured_us is not None
            assert decided.config is not None
            found.append((decided, FastestRow(decided.id, decided.measured_us, decided.recorded_at, decided.config)))
    found += _fastest(connection, asked, undecided)
    winners: dict[int, Winner] = {}
    for session, trial in found:
        best = winners.get(session.workload_id)
        if best is None or trial.measured_us < best[1].measured_us:
            winners[session.workload_id] = session, trial
    return winners


def _fastest(connection: Connection, asked: Mapping[str, object], sessions: Sequence[SessionRow]) -> list[Winner]:
    """The fastest candidate of each of these sessions that has one."""
    found: dict[int, Winner] = {}
    for of_all in (False, True):
        left = {row.id: row for row in sessions if row.id not in found}
        for ids in _parts(list(left), lookup_sql.LENGTHS):
            values = {**asked, **{f"session{n}": session_id for n, session_id in enumerate(ids)}}
            for trial in map(FastestRow._make, run(connection, lookup_sql.fastest(len(ids), of_all=of_all), values)):
                found[trial.session_id] = left[trial.session_id], trial
    return list(found.values())


def _parts(values: Sequence[T], lengths: Sequence[int]) -> Iterator[list[T]]:
    """`values` in parts of a few lengths only, the last value repeated: each length is a statement of its own, which must be
    planned."""
    for start in range(0, len(values), lengths[-1]):
        part = list(values[start : start + lengths[-1]])
        yield part + part[-1:] * (next(length for length in lengths if length >= len(part)) - len(part))


def _known(session: SessionRow, trial: FastestRow) -> Known:
    with sound(trial.config):
        moment = trial.recorded_at  # SQLite gives text
        return Known(
            workload=Workload(session.operator, _json(session.dims), session.dtype, _json(session.attrs), session.name),
            config=Config(json.loads(trial.config)),
            latency_us=trial.measured_us,
            open=tuple(session.open.split(",")) if session.open else (),
            recorded_at=datetime.fromisoformat(moment) if isinstance(moment, str) else moment,
        )


def _names(values: Mapping[str, object]) -> str:
    return ", ".join(f":{name}" for name in values)


def _json(value: Any) -> Any:
    """SQLite gives the text of it."""
    return json.loads(value) if isinstance(value, str) else value
