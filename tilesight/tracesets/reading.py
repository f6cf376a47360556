"""Reads the workloads of a data set as shapes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_text
from ..records.shapes_file import ListedShape
from .definition import DefinitionError, TraceDefinition, read_definition
from .matches import match_of_definition

MOST_BYTES = 64 << 20
MOST_LINES = 20  # of what is left out
_MOST_LETTERS = 500  # of a name, and of a reason


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A definition, or a file, that gives no shape, and why."""

    name: str
    reason: str

    @property
    def text(self) -> str:
        """One line: names of a data set may have any characters."""
        return f"left out: {_in_line(self.name)}: {_in_line(self.reason)}"


@dataclass(frozen=True, slots=True)
class TraceShapes:
    """The shapes of a data set, those with most workloads first, and what is left out.

    A shape's weight is its number of workloads, its origin the name of the definition.
    """

    shapes: tuple[ListedShape, ...]
    left_out: tuple[LeftOut, ...]


def left_out_lines(left_out: Iterable[LeftOut]) -> list[str]:
    """Different lines of what is left out, and the number of those beyond `MOST_LINES`."""
    lines = list(dict.fromkeys(one.text for one in left_out))
    if (more := len(lines) - MOST_LINES) > 0:
        return [*lines[:MOST_LINES], f"left out: {more} more; --json has all of them"]
    return lines


def _in_line(text: str) -> str:
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_MOST_LETTERS])
    return shown if len(text) <= _MOST_LETTERS else f"{shown}..."


def read_trace_shapes(folder: Path) -> TraceShapes:
    """Read `definitions/**/*.json` and `workloads/**/*.jsonl` of a folder.

    Raises `InputError` if the folder has no definitions.
    """
    files = sorted((folder / "definitions").rglob("*.json"))
    if not files:
        raise InputError(
            f"--workloads {folder} has no definitions/**/*.json; name a data set of FlashInfer-Bench"
        )
    left_out: dict[LeftOut, None] = {}
    definitions: dict[str, TraceDefinition] = {}
    for file in files:
        try:
            definition = read_definition(_parsed(_read(file)))
        except DefinitionError as error:
            left_out[LeftOut(str(file.relative_to(folder)), str(error))] = None
        else:
            definitions[definition.name] = definition
    shapes: dict[tuple[str, str, str | None], ListedShape] = {}
    used: set[str] = set()
    for place, text in _lines(folder, left_out):
        name = place
        try:
            name, axes, scalars = _workload(text)
            used.add(name)
            if name not in definitions:
                raise DefinitionError("the data set has no definition of this name")
            listed = _listed(definitions[name], axes, scalars)
        except DefinitionError as error:
            left_out[LeftOut(name, str(error))] = None
            continue
        key = listed.kernel, listed.shape, listed.dtype
        before = shapes.get(key)
        weight = 1.0 + (before.weight or 0.0 if before else 0.0)
        shapes[key] = replace(before or listed, weight=weight)
    for name in sorted(definitions.keys() - used):
        left_out[LeftOut(name, "the data set has no workloads of it")] = None
    ordered = sorted(shapes.values(), key=lambda listed: -(listed.weight or 0.0))
    return TraceShapes(tuple(ordered), tuple(left_out))


def _lines(folder: Path, left_out: dict[LeftOut, None]) -> Iterator[tuple[str, str]]:
    """Lines of all files of workloads, each with its place."""
    for file in sorted((folder / "workloads").rglob("*.jsonl")):
        try:
            text = _read(file)
        except DefinitionError as error:
            left_out[LeftOut(str(file.relative_to(folder)), str(error))] = None
            continue
        for number, line in enumerate(text.split("\n"), 1):  # texts of JSON may have other ends of lines
            if line.strip():
                yield f"{file.relative_to(folder)}, line {number}", line


def _read(file: Path) -> str:
    """The text of a file. Pipes are not opened, since that would wait for their writers."""
    try:
        if not file.is_file():
            raise DefinitionError("it is no regular file")
        return read_text(file, "it", MOST_BYTES)
    except OSError as error:
        raise DefinitionError(f"it cannot be read: {error.strerror or error}") from None
    except InputError as error:
        raise DefinitionError(str(error)) from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise DefinitionError("its JSON is nested too deeply") from None
    except ValueError as error:
        raise DefinitionError(f"it is no JSON: {error}") from None


def _workload(text: str) -> tuple[str, Mapping[str, int], Mapping[str, float]]:
    """The definition, the axes and the numbers of a line."""
    try:
        fields = _parsed(text)
        workload = fields["workload"]
        axes = {str(name): size for name, size in workload["axes"].items()}
        wrong = [name for name, size in axes.items() if type(size) is not int or size < 1]
        if wrong:
            raise DefinitionError(f"axes must be whole numbers above 0: {', '.join(wrong)}")
        given = workload.get("inputs", {}).items()
        scalars = {str(name): float(one["value"]) for name, one in given if one["type"] == "scalar"}
        return str(fields["definition"]), axes, scalars
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, DefinitionError):
            raise
        raise DefinitionError(f"it is no workload: {type(error).__name__}: {error}") from None


def _listed(
    definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
) -> ListedShape:
    match = match_of_definition(definition)
    found = match.shape(definition, axes, scalars)
    match.check_dtypes(definition, found)
    parts = (f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in found.items())
    return ListedShape(match.operator, ",".join(parts), match.dtype(definition), None, definition.name)
