"""Reads the workloads of a data set as shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_text
from ..records.shapes_file import ListedShape
from .definition import DefinitionError, TraceDefinition, read_definition
from .matches import dtype_of, match_of_definition

MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A definition, or a file, that gives no shape, and why."""

    name: str
    reason: str

    @property
    def text(self) -> str:
        return f"left out: {self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class TraceShapes:
    """The shapes of a data set, those with most workloads first, and what is left out.

    A shape's weight is its number of workloads, its origin the name of the definition.
    """

    shapes: tuple[ListedShape, ...]
    left_out: tuple[LeftOut, ...]


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
            name, axes, scalars = _workload(text, place)
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
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield f"{file.relative_to(folder)}, line {number}", line


def _read(file: Path) -> str:
    try:
        return read_text(file, f"'{file}'", MOST_BYTES)
    except InputError as error:
        raise DefinitionError(str(error)) from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DefinitionError(f"it is no JSON: {error}") from None


def _workload(text: str, place: str) -> tuple[str, Mapping[str, int], Mapping[str, float]]:
    """The definition, the axes and the numbers of a line."""
    try:
        fields = _parsed(text)
        workload = fields["workload"]
        axes = {str(name): size for name, size in workload["axes"].items()}
        if not all(type(size) is int and size > 0 for size in axes.values()):
            raise DefinitionError(f"{place}: axes must be whole numbers above 0: {axes}")
        given = workload.get("inputs", {}).items()
        scalars = {str(name): float(one["value"]) for name, one in given if one["type"] == "scalar"}
        return str(fields["definition"]), axes, scalars
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DefinitionError):
            raise
        raise DefinitionError(f"it is no workload: {type(error).__name__}: {error}") from None


def _listed(
    definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
) -> ListedShape:
    match = match_of_definition(definition)
    found = match.shape(definition, axes, scalars)
    parts = (f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in found.items())
    return ListedShape(match.operator, ",".join(parts), dtype_of(definition), None, definition.name)
