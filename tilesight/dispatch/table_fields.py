"""Reading a dispatch table's text, of which nothing is taken on trust: each field is looked at, and named where it is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from ..errors import InputError
from ..space import Config, Value
from ..workload import MAX_DIMENSION
from .table_values import FORMAT, DispatchTable, Evidence, Segment

MOST_ITEMS = 100_000  # of one list
MOST_TEXT = 400  # characters of a name or version
MOST_VALUE = 2**53  # readers of JSON keep whole numbers no further
LOSS_STEP = 0.001  # the loss is written for people, rounded

T = TypeVar("T")
Reader = Callable[[Any, str], T]

FIELDS = (
    *("format", "operator", "dtype", "attrs", "dims", "fixed", "vary", "open", "template", "target", "device", "protocol"),
    *("software", "model", "kernels", "segments", "evidence"),
)


def table_of(text: str) -> DispatchTable:
    """The table that a text says. Raises `InputError` that names the field and what is wrong there."""
    try:
        found = json.loads(text, object_pairs_hook=_members, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is no JSON: {error}") from error
    fields = _fields(found, "the table", FIELDS[:1], others=True)
    version = _whole(fields["format"], "format", 1, MOST_VALUE)
    if version != FORMAT:
        raise InputError(f"format: {version} is not known to this TileSight, which reads {FORMAT}; take a newer one, or plan anew")
    fields = _fields(found, "the table", FIELDS)
    template = _fields(fields["template"], "template", ("name", "version"))
    target = _fields(fields["target"], "target", ("name", "fingerprint", "arch"))
    return DispatchTable(
        operator=_text(fields["operator"], "operator"),
        dtype=_text(fields["dtype"], "dtype"),
        attrs=_mapping(fields["attrs"], "attrs", _flag_or_number),
        dims=tuple(_list(fields["dims"], "dims", _text)),
        fixed=_mapping(fields["fixed"], "fixed", lambda value, place: _whole(value, place, 1, MAX_DIMENSION)),
        vary=_text(fields["vary"], "vary"),
        open=tuple(_list(fields["open"], "open", _text)),
        template=_text(template["name"], "template.name"),
        template_version=_text(template["version"], "template.version"),
        target=_text(target["name"], "target.name"),
        target_fingerprint=_text(target["fingerprint"], "target.fingerprint"),
        arch=_text(target["arch"], "target.arch"),
        device=_text(fields["device"], "device", least=0),
        protocol=_text(fields["protocol"], "protocol", least=0),
        software=_mapping(fields["software"], "software", _text),
        model=_text(fields["model"], "model"),
        kernels=tuple(_list(fields["kernels"], "kernels", _config)),
        segments=tuple(_list(fields["segments"], "segments", _segment)),
        evidence=tuple(_list(fields["evidence"], "evidence", _evidence)),
    )


def _segment(value: Any, place: str) -> Segment:
    fields = _fields(value, place, ("first", "last", "kernel"))
    ends = [_whole(fields[name], f"{place}.{name}", 1, MAX_DIMENSION) for name in ("first", "last")]
    return Segment(ends[0], ends[1], _whole(fields["kernel"], f"{place}.kernel", 0, MOST_ITEMS))


def _evidence(value: Any, place: str) -> Evidence:
    fields = _fields(value, place, ("size", "kernel", "chosen_us", "best_us", "chosen", "best", "loss"))
    found = Evidence(
        size=_whole(fields["size"], f"{place}.size", 1, MAX_DIMENSION),
        kernel=_whole(fields["kernel"], f"{place}.kernel", 0, MOST_ITEMS),
        chosen_us=_time(fields["chosen_us"], f"{place}.chosen_us"),
        best_us=_time(fields["best_us"], f"{place}.best_us"),
        chosen_measured=_is_measured(fields["chosen"], f"{place}.chosen"),
        best_measured=_is_measured(fields["best"], f"{place}.best"),
    )
    loss = fields["loss"]
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not abs(loss - found.loss) <= LOSS_STEP:
        _fail(f"{place}.loss", f"{_quoted(loss)} is not what chosen_us and best_us make it, {found.loss:.4f}")
    return found


def _config(value: Any, place: str) -> Config:
    members = _mapping(value, place, _config_value)
    if not members:
        _fail(place, "a kernel has parameters")
    return Config(members)


def _config_value(value: Any, place: str) -> Value:
    if isinstance(value, str):
        return _text(value, place)
    return _flag_or_number(value, place)


def _flag_or_number(value: Any, place: str) -> bool | int:
    if isinstance(value, bool):
        return value
    return _whole(value, place, -MOST_VALUE, MOST_VALUE)


def _whole(value: Any, place: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        _fail(place, f"{_quoted(value)} must be a whole number")
    if not least <= value <= most:
        _fail(place, f"{_quoted(value)} must lie in {least} .. {most}")
    return int(value)


def _time(value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12 or not math.isfinite(value):
        _fail(place, f"{_quoted(value)} must be a time in microseconds, above 0")
    return float(value)


def _is_measured(value: Any, place: str) -> bool:
    if value not in ("measured", "predicted"):
        _fail(place, f"{_quoted(value)} must be 'measured' or 'predicted'")
    return bool(value == "measured")


def _text(value: Any, place: str, least: int = 1) -> str:
    if not isinstance(value, str):
        _fail(place, f"{_quoted(value)} must be text")
    if not least <= len(value) <= MOST_TEXT or not value.isprintable():
        _fail(place, f"{_quoted(value)} must be {least} to {MOST_TEXT} printable characters")
    return str(value)


def _list(value: Any, place: str, read: Reader[T]) -> list[T]:
    if not isinstance(value, list):
        _fail(place, f"{_quoted(value)} must be a list")
    if len(value) > MOST_ITEMS:
        _fail(place, f"{len(value)} items are more than the {MOST_ITEMS} that a table may have")
    return [read(member, f"{place}[{number}]") for number, member in enumerate(value)]


def _mapping(value: Any, place: str, read: Reader[T]) -> dict[str, T]:
    if not isinstance(value, dict):
        _fail(place, f"{_quoted(value)} must be an object with named members")
    return {_text(name, f"{place}, a name"): read(member, f"{place}.{name}") for name, member in value.items()}


def _fields(value: Any, place: str, names: Sequence[str], others: bool = False) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _fail(place, f"{_quoted(value)} must be an object with {', '.join(names)}")
    missing = [name for name in names if name not in value]
    if missing:
        _fail(place, f"it lacks {', '.join(missing)}")
    unknown = [name for name in value if name not in names]
    if unknown and not others:
        _fail(place, f"{_quoted(unknown[0])} is none of its fields; known: {', '.join(names)}")
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{_quoted(next(name for name in names if names.count(name) > 1))} is there twice in one object")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _quoted(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _fail(place: str, text: str) -> NoReturn:
    raise InputError(f"{place}: {text}")
