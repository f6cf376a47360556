"""Strict JSON, for files that come from outside: finite numbers, each key once, limits on size and depth."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

MAX_LINE_BYTES = 8 << 20
MAX_TEXT = 1 << 18  # characters of one text
MAX_DIGITS = 40  # of a whole number
# TileSight writes at most 14 levels (cached profiles, of any kernel); the rest is room for later fields.
# Python's own limit is near 1000.
MAX_DEPTH = 24
MAX_MEMBERS = 100_000  # of one list or object

_SHOWN = 60
_HALF = re.compile("[\ud800-\udfff]")


class StrictJsonError(ValueError):
    """What is wrong with a JSON text, without its line."""


def parse(raw: bytes) -> Any:
    """The value of one JSON text.

    Raises `StrictJsonError` if it is not UTF-8, invalid, too deep or too long, has NaN, an infinity, or a key
    twice.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"byte {error.start + 1} is not UTF-8") from None
    try:
        value = json.loads(
            text, parse_constant=_constant, parse_int=_whole, parse_float=_number, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        raise StrictJsonError(f"this is no JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise StrictJsonError(f"it is nested more than {MAX_DEPTH} deep") from None
    _check(value, 0)
    return value


def shown(value: object) -> str:
    """A foreign value as messages quote it: short, in printable ASCII."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _constant(name: str) -> None:
    raise StrictJsonError(f"{name} is no number here; all must be finite")


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise StrictJsonError(f"a whole number has {len(text)} digits; {MAX_DIGITS} are allowed")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise StrictJsonError(f"{shown(text)} is no number here; all must be finite")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise StrictJsonError(f"the key {shown(twice)} is given twice")
    return found


def _check(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise StrictJsonError(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, list | dict):
        if len(value) > MAX_MEMBERS:
            raise StrictJsonError(f"a list or object has {len(value)} members; {MAX_MEMBERS} are allowed")
        for member in value:
            _check(member, depth + 1)
        if isinstance(value, dict):
            for member in value.values():
                _check(member, depth + 1)


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise StrictJsonError(f"a text has {len(text)} characters; {MAX_TEXT} are allowed: {shown(text)}")
    if "\0" in text or (not text.isascii() and _HALF.search(text)):
        raise StrictJsonError(f"a text holds NUL or half a character: {shown(text)}")
