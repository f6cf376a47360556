"""Kernel profiles as JSON text, exactly: what is read back equals what was written.

Objects have the fields' own names. What equals its default is left out, so a field that is added later with a default
does not make older texts unreadable. Mappings and sets are written in sorted order: equal profiles make equal texts.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints

from .errors import InputError
from .profile import KernelProfile

Plain = Any  # what JSON has: dict, list, str, int, float, bool, None
_Reader = Callable[[Plain, str], Any]


def profiles_text(kernels: Sequence[KernelProfile]) -> str:
    """One line of JSON: a list with an object for each kernel. Raises `ValueError` that names a field which is not finite."""
    return json.dumps([plain_profile(kernel) for kernel in kernels], separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def profiles_of(text: str) -> tuple[KernelProfile, ...]:
    """The profiles that `profiles_text` wrote. Raises `InputError` that names the field which is not as it should be."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InputError(f"profile: not JSON text ({error}); write it with profiles_text") from error
    if not isinstance(found, list):
        raise InputError(f"profile: must be a list of kernels, not {_named(found)}")
    return tuple(read_profile(kernel, f"kernels[{index}]") for index, kernel in enumerate(found))


def plain_profile(kernel: KernelProfile) -> dict[str, Plain]:
    """One profile in JSON's types, defaults left out."""
    found = _plain(kernel, "kernel")
    assert isinstance(found, dict)
    return found


def read_profile(value: Plain, place: str = "kernel") -> KernelProfile:
    """The profile of `plain_profile`. `place` is what errors call it. Raises `InputError`."""
    found = _reader(KernelProfile)(value, place)
    assert isinstance(found, KernelProfile)
    return found


def _plain(value: Any, place: str) -> Plain:
    if is_dataclass(value):
        return {
            field.name: _plain(member, f"{place}.{field.name}")
            for field in fields(value)
            if (member := getattr(value, field.name)) != _default(field)
        }
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):  # NumPy's are such, too
        return int(value)
    if isinstance(value, Real):
        if not math.isfinite(value):
            raise ValueError(f"{place}={float(value)} must be finite")
        return float(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(value[name], f"{place}.{name}") for name in sorted(value)}
    members = sorted(value) if isinstance(value, frozenset) else value
    return [_plain(member, f"{place}[{index}]") for index, member in enumerate(members)]


def _default(field: Field[Any]) -> Any:
    """MISSING, which equals nothing else, where there is none."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


@cache
def _reader(kind: Any) -> _Reader:
    """What reads a value of the annotated type `kind`."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _object_reader(kind)
    if origin in (Union, types.UnionType):
        (other,) = (part for part in parts if part is not types.NoneType)
        inner = _reader(other)
        return lambda value, place: None if value is None else inner(value, place)
    if (origin is tuple and parts[-1] is Ellipsis) or origin is frozenset:
        return _list_reader(origin, parts[0])
    if origin is tuple:
        return _row_reader(parts)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(parts[1])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice_reader(kind)
    return _scalar_reader(kind)


def _object_reader(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    needed = [field.name for field in fields(kind) if _default(field) is MISSING]

    def read(value: Plain, place: str) -> Any:
        if not isinstance(value, dict):
            raise InputError(f"profile: {place} must be an object ({kind.__name__}), not {_named(value)}")
        for name in value:
            if name not in readers:
                raise InputError(
                    f"profile: {place}.{name} is no field of {kind.__name__}; another version of TileSight wrote it: "
                    "use that version, or have the profiles read anew"
                )
        for name in needed:
            if name not in value:
                raise InputError(f"profile: {place}.{name} is missing; have the profiles read anew")
        return kind(**{name: readers[name](member, f"{place}.{name}") for name, member in value.items()})

    return read


def _list_reader(collection: Any, part: Any) -> _Reader:
    inner = _reader(part)
    return lambda value, place: collection(inner(member, f"{place}[{i}]") for i, member in enumerate(_list(value, place)))


def _row_reader(parts: tuple[Any, ...]) -> _Reader:
    inner = [_reader(part) for part in parts]

    def read(value: Plain, place: str) -> Any:
        if len(_list(value, place)) != len(inner):
            raise InputError(f"profile: {place} must have {len(inner)} members, not {len(value)}")
        return tuple(reader(member, f"{place}[{i}]") for i, (reader, member) in enumerate(zip(inner, value, strict=True)))

    return read


def _mapping_reader(part: Any) -> _Reader:
    inner = _reader(part)

    def read(value: Plain, place: str) -> Any:
        if not isinstance(value, dict):
            raise InputError(f"profile: {place} must be an object, not {_named(value)}")
        return {name: inner(member, f"{place}.{name}") for name, member in value.items()}

    return read


def _choice_reader(kind: type[Enum]) -> _Reader:
    known = {member.value: member for member in kind}

    def read(value: Plain, place: str) -> Any:
        if not isinstance(value, str) or value not in known:
            raise InputError(f"profile: {place}={value!r} is not one of {', '.join(known)}")
        return known[value]

    return read


def _scalar_reader(kind: Any) -> _Reader:
    accepted = {float: (int, float), int: (int,), bool: (bool,), str: (str,)}[kind]
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}

    def read(value: Plain, place: str) -> Any:
        # True is an int in Python: a flag must not pass for a number
        if not isinstance(value, accepted) or isinstance(value, bool) is not (kind is bool):
            raise InputError(f"profile: {place} must be {names[kind]}, not {_named(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"profile: {place}={value} must be finite")
        return value

    return read


def _list(value: Plain, place: str) -> list[Plain]:
    if not isinstance(value, list):
        raise InputError(f"profile: {place} must be a list, not {_named(value)}")
    return value


def _named(value: Plain) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
