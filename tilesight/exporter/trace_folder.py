"""An export as a data set of FlashInfer-Bench: a definition, a solution with the libraries, and workloads.

The schema has texts only, so libraries are compressed and written in base64. The solution's module writes
them beside itself when it is imported.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import file_hash
from ..tracesets.definition import DefinitionError, TraceDefinition
from ..tracesets.match import KernelProblem, TraceMatch
from ..tracesets.matches import match_of_operator
from .kernel_set import KernelSet
from .manifest import MANIFEST
from .texts import fill

AUTHOR = "tilesight"
ENTRY = "_main.py"  # names of exports begin with a letter
PACKED = ".packed"  # suffix of a compressed library in base64
_SOURCES = ("*.py", "*.so", "LICENSE.txt")


@dataclass(frozen=True, slots=True)
class TraceExport:
    """The definition that kernels compute, and how its solution calls them."""

    match: TraceMatch
    definition: TraceDefinition
    problem: KernelProblem


def find_definition(kernels: KernelSet) -> TraceExport:
    """Raises `InputError` if there is no definition that these kernels compute."""
    found = kernels.problem
    problem = KernelProblem(found.operator, found.dtype, found.attrs, found.fixed)
    try:
        match = match_of_operator(found.operator.name)
        return TraceExport(match, match.definition(problem), problem)
    except DefinitionError as error:
        raise InputError(
            f"{found.operator.name} cannot be exported as flashinfer-trace: {error}; take --format python"
        ) from None


def write_trace(kernels: KernelSet, trace: TraceExport, made: Path, folder: Path) -> None:
    """Write the data set into a folder. `made`: the same kernels with a Python module."""
    definition, name = trace.definition, kernels.name
    # definitions of several dtypes have one name
    solution = f"{AUTHOR}_{definition.name}_{kernels.problem.dtype}_{kernels.problem.target.name}"
    entry = fill(
        "trace.txt",
        {
            "NAME": name,
            "DEFINITION": definition.name,
            "PACKED": PACKED,
            "RUN": trace.match.run(trace.problem, name),
        },
    )
    sources = [{"path": ENTRY, "content": entry}]
    files = sorted(path for pattern in _SOURCES for path in made.rglob(pattern))
    sources += [_source(file, file.relative_to(made).as_posix()) for file in files]
    manifest = json.loads((made / MANIFEST).read_text(encoding="utf-8"))
    inside = {one["path"]: hashlib.sha256(one["content"].encode()).hexdigest() for one in sources}
    # the entry writes the libraries
    inside |= {file.relative_to(made).as_posix(): file_hash(file) for file in files if file.suffix == ".so"}
    sources.append({"path": MANIFEST, "content": _json({**manifest, "files": dict(sorted(inside.items()))})})
    is_gpu = kernels.problem.target.is_gpu
    fields = {
        "name": solution,
        "definition": definition.name,
        "author": AUTHOR,
        "description": f"{kernels.problem.label}, {_ranges(kernels)}",
        "spec": {
            "language": "python",
            "target_hardware": ["cuda" if is_gpu else "cpu"],
            "entry_point": f"{ENTRY}::run",
            "dependencies": [],
            "destination_passing_style": True,
        },
        "sources": sources,
    }
    place = Path(definition.op_type)
    _write(folder / "definitions" / place / f"{definition.name}.json", definition.fields())
    _write(folder / "solutions" / AUTHOR / place / definition.name / f"{solution}.json", fields)
    if trace.match.has_random_inputs:
        lines = [json.dumps(_workload(trace, sizes)) for sizes in _sizes(kernels)]
        path = folder / "workloads" / place / f"{definition.name}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    # the libraries are in the solution, whose own manifest has their places
    bare = [{key: value for key, value in one.items() if key != "file"} for one in manifest["kernels"]]
    written = {path.relative_to(folder).as_posix(): file_hash(path) for path in folder.rglob("*.json*")}
    _write(folder / MANIFEST, {**manifest, "kernels": bare, "files": dict(sorted(written.items()))})


def _source(file: Path, path: str) -> dict[str, str]:
    if file.suffix != ".so":
        return {"path": path, "content": file.read_text(encoding="utf-8")}
    packed = base64.b64encode(zlib.compress(file.read_bytes(), 9)).decode("ascii")
    return {"path": f"{path}{PACKED}", "content": packed}


def _ranges(kernels: KernelSet) -> str:
    return ", ".join(f"{one.name} = {one.first} .. {one.last}" for one in kernels.sizes) or "one shape"


def _sizes(kernels: KernelSet) -> list[Mapping[str, int]]:
    """The last size of each segment; the one shape of a kernel without free sizes."""
    shape = kernels.kernels[0].workload.dims
    if not kernels.sizes:
        return [shape]
    first, *others = kernels.sizes
    if kernels.table is None:  # a kernel for any size: the one that it was chosen for
        return [shape]
    rest = {one.name: one.last for one in others}
    return [{**kernels.problem.fixed, **rest, first.name: segment.last} for segment in kernels.segments]


def _workload(trace: TraceExport, sizes: Mapping[str, int]) -> dict[str, Any]:
    axes = trace.match.axes(sizes)
    text = f"{trace.definition.name} {json.dumps(axes, sort_keys=True)}"
    workload = {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, text)),
        "axes": axes,
        "inputs": {name: {"type": "random"} for name in trace.definition.inputs},
    }
    return {
        "definition": trace.definition.name,
        "workload": workload,
        "solution": None,
        "evaluation": None,
    }


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_json(fields), encoding="utf-8")


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1) + "\n"
