"""Reader of the text of dispatch tables. Every field is checked, and named in the error if it is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from ...errors import InputError
from ...problem.space import Config, Value
from ...problem.workload import MAX_DIMENSION
from .dispatch_table import FORMAT, DispatchTable, Evidence, Segment

MAX_ITEMS = 100_000  # of one list
MAX_TEXT = 400  # characters of a name or version
MAX_VALUE = 2**53  # the largest whole number that every reader of JSON reads exactly
LOSS_STEP = 0.001  # the loss in the file is rounded

T = TypeVar("T")
Reader = Callable[[Any, str], T]

FIELDS = (
    *(
        "format",
        "operator",
        "dtype",
        "attrs",
        "dims",
        "fixed",
        "vary",
        "dynamic",
        "template",
        "target",
        "device",
        "protocol",
    ),
    *("software", "model", "kernels", "segments", "evidence"),
)
FORMER_DYNAMIC = "open"


def parse_table(text: str) -> DispatchTable:
    """The table of a text. Raises `InputError` that names the wrong field and the fault."""
    try:
        found = json.loads(text, object_pairs_hook=_members, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is not JSON: {error}") from error
    fields = _fields(found, "the table", FIELDS[:1], others=True)
    version = _whole(fields["format"], "format", 1, MAX_VALUE)
    if version != FORMAT:
        raise InputError(
            f"format: {version} is not known to this TileSight, which reads {FORMAT}; install a newer "
            "TileSight, or make a new table with `tilesight plan`"
        )
    if FORMER_DYNAMIC in fields and "dynamic" not in fields:
        raise InputError(
            f"an older TileSight wrote it, with field '{FORMER_DYNAMIC}' in place of 'dynamic'; make a new "
            "one with `tilesight plan`"
        )
    fields = _fields(found, "the table", FIELDS)
    template = _fields(fields["template"], "template", ("name", "version"))
    target = _fields(fields["target"], "target", ("name", "fingerprint", "arch"))
    return DispatchTable(
        operator=_text(fields["operator"], "operator"),
        dtype=_text(fields["dtype"], "dtype"),
        attrs=_mapping(fields["attrs"], "attrs", _attribute),
        dims=tuple(_list(fields["dims"], "dims", _text)),
        fixed=_mapping(fields["fixed"], "fixed", lambda value, path: _whole(value, path, 1, MAX_DIMENSION)),
        vary=_text(fields["vary"], "vary"),
        dynamic=tuple(_list(fields["dynamic"], "dynamic", _text)),
        template=_text(template["name"], "template.name"),
        template_version=_text(template["version"], "template.version"),
        target=_text(target["name"], "target.name"),
        target_fingerprint=_text(target["fingerprint"], "target.fingerprint"),
        arch=_text(target["arch"], "target.arch"),
        device=_text(fields["device"], "device", minimum=0),
        protocol=_text(fields["protocol"], "protocol", minimum=0),
        software=_mapping(fields["software"], "software", _text),
        model=_text(fields["model"], "model"),
        kernels=tuple(_list(fields["kernels"], "kernels", _config)),
        segments=tuple(_list(fields["segments"], "segments", _segment)),
        evidence=tuple(_list(fields["evidence"], "evidence", _evidence)),
    )


def _segment(value: Any, path: str) -> Segment:
    fields = _fields(value, path, ("first", "last", "kernel"))
    ends = [_whole(fields[name], f"{path}.{name}", 1, MAX_DIMENSION) for name in ("first", "last")]
    return Segment(ends[0], ends[1], _whole(fields["kernel"], f"{path}.kernel", 0, MAX_ITEMS))


def _evidence(value: Any, path: str) -> Evidence:
    fields = _fields(value, path, ("size", "kernel", "chosen_us", "best_us", "chosen", "best", "loss"))
    found = Evidence(
        size=_whole(fields["size"], f"{path}.size", 1, MAX_DIMENSION),
        kernel=_whole(fields["kernel"], f"{path}.kernel", 0, MAX_ITEMS),
        chosen_us=_time(fields["chosen_us"], f"{path}.chosen_us"),
        best_us=_time(fields["best_us"], f"{path}.best_us"),
        chosen_measured=_is_measured(fields["chosen"], f"{path}.chosen"),
        best_measured=_is_measured(fields["best"], f"{path}.best"),
    )
    loss = fields["loss"]
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not abs(loss - found.loss) <= LOSS_STEP:
        _fail(f"{path}.loss", f"{_quoted(loss)} is not what chosen_us and best_us make it, {found.loss:.4f}")
    return found


def _config(value: Any, path: str) -> Config:
    members = _mapping(value, path, _config_value)
    if not members:
        _fail(path, "a kernel has parameters")
    return Config(members)


def _config_value(value: Any, path: str) -> Value:
    if isinstance(value, str):
        return _text(value, path)
    return _flag_or_number(value, path)


def _attribute(value: Any, path: str) -> Value:
    if isinstance(value, str | int):
        return _config_value(value, path)
    if not isinstance(value, float) or not math.isfinite(value):
        _fail(path, f"{_quoted(value)} must be a number, a text, true or false")
    return value


def _flag_or_number(value: Any, path: str) -> bool | int:
    if isinstance(value, bool):
        return value
    return _whole(value, path, -MAX_VALUE, MAX_VALUE)


def _whole(value: Any, path: str, minimum: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        _fail(path, f"{_quoted(value)} must be a whole number")
    if not minimum <= value <= maximum:
        _fail(path, f"{_quoted(value)} must lie in {minimum} .. {maximum}")
    return int(value)


def _time(value: Any, path: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < 1e12
        or not math.isfinite(value)
    ):
        _fail(path, f"{_quoted(value)} must be a time in microseconds, above 0")
    return float(value)


def _is_measured(value: Any, path: str) -> bool:
    if value not in ("measured", "predicted"):
        _fail(path, f"{_quoted(value)} must be 'measured' or 'predicted'")
    return bool(value == "measured")


def _text(value: Any, path: str, minimum: int = 1) -> str:
    if not isinstance(value, str):
        _fail(path, f"{_quoted(value)} must be text")
    if not minimum <= len(value) <= MAX_TEXT or not value.isprintable():
        _fail(path, f"{_quoted(value)} must be {minimum} to {MAX_TEXT} printable characters")
    return str(value)


def _list(value: Any, path: str, read: Reader[T]) -> list[T]:
    if not isinstance(value, list):
        _fail(path, f"{_quoted(value)} must be a list")
    if len(value) > MAX_ITEMS:
        _fail(path, f"{len(value)} items are more than the {MAX_ITEMS} that a table may have")
    return [read(member, f"{path}[{number}]") for number, member in enumerate(value)]


def _mapping(value: Any, path: str, read: Reader[T]) -> dict[str, T]:
    if not isinstance(value, dict):
        _fail(path, f"{_quoted(value)} must be an object with named members")
    return {_text(name, f"{path}, a name"): read(member, f"{path}.{name}") for name, member in value.items()}


def _fields(value: Any, path: str, names: Sequence[str], others: bool = False) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _fail(path, f"{_quoted(value)} must be an object with {', '.join(names)}")
    missing = [name for name in names if name not in value]
    if missing:
        _fail(path, f"it lacks {', '.join(missing)}")
    unknown = [name for name in value if name not in names]
    if unknown and not others:
        _fail(path, f"{_quoted(unknown[0])} is not a field of it; known: {', '.join(names)}")
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"{_quoted(next(name for name in names if names.count(name) > 1))} occurs twice in one object"
        )
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")


def _quoted(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _fail(path: str, text: str) -> NoReturn:
    raise InputError(f"{path}: {text}")
