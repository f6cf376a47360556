"""Writes kernel profiles as JSON text and reads them back without loss.

Objects use the names of the fields. Fields with their default value are left out, so older texts stay
readable when a field with a default is added. Mappings and sets are written in sorted order, so equal
profiles have equal texts.
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

from ..errors import InputError
from .values import KernelProfile

Plain = Any  # JSON types: dict, list, str, int, float, bool, None
_Decoder = Callable[[Plain, str], Any]  # (value, its path for errors) -> decoded value


def profiles_text(kernels: Sequence[KernelProfile]) -> str:
    """Write profiles as one line of JSON: a list with one object for each kernel.

    Raises:
        ValueError: a number is not finite; the message names its field.
    """
    return json.dumps(
        [plain_profile(kernel) for kernel in kernels],
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def profiles_of(text: str) -> tuple[KernelProfile, ...]:
    """Read profiles that `profiles_text` wrote.

    Raises:
        InputError: the text is invalid; the message names the field.
    """
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InputError(f"profile: not JSON text ({error}); write it with profiles_text") from error
    if not isinstance(found, list):
        raise InputError(f"profile: must be a list of kernels, not {_named(found)}")
    return tuple(read_profile(kernel, f"kernels[{index}]") for index, kernel in enumerate(found))


def plain_profile(kernel: KernelProfile) -> dict[str, Plain]:
    """One profile in JSON types, without fields that have their default value."""
    found = _plain(kernel, "kernel")
    assert isinstance(found, dict)
    return found


def read_profile(value: Plain, path: str = "kernel") -> KernelProfile:
    """Read a profile that `plain_profile` wrote. Errors name fields below `path`. Raises `InputError`."""
    found = _decoder(KernelProfile)(value, path)
    assert isinstance(found, KernelProfile)
    return found


def _plain(value: Any, path: str) -> Plain:
    if is_dataclass(value):
        return {
            field.name: _plain(member, f"{path}.{field.name}")
            for field in fields(value)
            if (member := getattr(value, field.name)) != _default(field)
        }
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):  # includes NumPy's integers
        return int(value)
    if isinstance(value, Real):
        if not math.isfinite(value):
            raise ValueError(f"{path}={float(value)} must be finite")
        return float(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(value[name], f"{path}.{name}") for name in sorted(value)}
    members = sorted(value) if isinstance(value, frozenset) else value
    return [_plain(member, f"{path}[{index}]") for index, member in enumerate(members)]


def _default(field: Field[Any]) -> Any:
    """The default of a field; MISSING if it has none."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


@cache
def _decoder(kind: Any) -> _Decoder:
    """The decoder of the annotated type `kind`."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _object_decoder(kind)
    if origin in (Union, types.UnionType):
        (other,) = (part for part in parts if part is not types.NoneType)
        inner = _decoder(other)
        return lambda value, path: None if value is None else inner(value, path)
    if (origin is tuple and parts[-1] is Ellipsis) or origin is frozenset:
        return _list_decoder(origin, parts[0])
    if origin is tuple:
        return _row_decoder(parts)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_decoder(parts[1])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice_decoder(kind)
    return _scalar_decoder(kind)


def _object_decoder(kind: Any) -> _Decoder:
    hints = get_type_hints(kind)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(kind)}
    needed = [field.name for field in fields(kind) if _default(field) is MISSING]

    def read(value: Plain, path: str) -> Any:
        if not isinstance(value, dict):
            raise InputError(f"profile: {path} must be an object ({kind.__name__}), not {_named(value)}")
        for name in value:
            if name not in decoders:
                raise InputError(
                    f"profile: {path}.{name} is no field of {kind.__name__}; another version of TileSight "
                    "wrote it: use that version, or have the profiles read anew"
                )
        for name in needed:
            if name not in value:
                raise InputError(f"profile: {path}.{name} is missing; have the profiles read anew")
        return kind(**{n: decoders[n](member, f"{path}.{n}") for n, member in value.items()})

    return read


def _list_decoder(collection: Any, part: Any) -> _Decoder:
    inner = _decoder(part)
    return lambda value, path: collection(
        inner(member, f"{path}[{i}]") for i, member in enumerate(_list(value, path))
    )


def _row_decoder(parts: tuple[Any, ...]) -> _Decoder:
    inner = [_decoder(part) for part in parts]

    def read(value: Plain, path: str) -> Any:
        if len(_list(value, path)) != len(inner):
            raise InputError(f"profile: {path} must have {len(inner)} members, not {len(value)}")
        return tuple(
            part(member, f"{path}[{i}]") for i, (part, member) in enumerate(zip(inner, value, strict=True))
        )

    return read


def _mapping_decoder(part: Any) -> _Decoder:
    inner = _decoder(part)

    def read(value: Plain, path: str) -> Any:
        if not isinstance(value, dict):
            raise InputError(f"profile: {path} must be an object, not {_named(value)}")
        return {name: inner(member, f"{path}.{name}") for name, member in value.items()}

    return read


def _choice_decoder(kind: type[Enum]) -> _Decoder:
    known = {member.value: member for member in kind}

    def read(value: Plain, path: str) -> Any:
        if not isinstance(value, str) or value not in known:
            raise InputError(f"profile: {path}={value!r} is not one of {', '.join(known)}")
        return known[value]

    return read


def _scalar_decoder(kind: Any) -> _Decoder:
    accepted = {float: (int, float), int: (int,), bool: (bool,), str: (str,)}[kind]
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}

    def read(value: Plain, path: str) -> Any:
        # a bool is an int in Python, but must not be read as a number
        if not isinstance(value, accepted) or isinstance(value, bool) is not (kind is bool):
            raise InputError(f"profile: {path} must be {names[kind]}, not {_named(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"profile: {path}={value} must be finite")
        return value

    return read


def _list(value: Plain, path: str) -> list[Plain]:
    if not isinstance(value, list):
        raise InputError(f"profile: {path} must be a list, not {_named(value)}")
    return value


def _named(value: Plain) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
