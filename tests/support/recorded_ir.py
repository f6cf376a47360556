"""What TileLang's passes make of functions, as recorded in `tests/golden/ir.zip`: most of a lowering's time.

The passes are TileLang's own. A function is looked up by its text, its structure, its target and the options
of the passes, and by the version of TileLang, so a function that has changed at all is lowered as usual.
So are functions that are compiled (the launcher looks for their own tensors in the result), unless the caller
says that it becomes text (`only_text`). Where a function takes sizes or other numbers, their variables are
recorded, too, and the host part that is read has the variables of the function at hand in their places.
Tests of lowering itself take no recorded IR: `ALWAYS_LOWERED` of `tests/conftest.py`.

A run of all tests with `PYTEST_RECORD_IR=FOLDER` writes into a folder what it has taken from the record, and
results that took long; `python -m tests.support.recorded_ir FOLDER` makes the record of them. With `--keep`
what is in the record stays, so a run of some tests is enough to add what is missing.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

from tilesight.lowering import thread_sync
from tilesight.lowering.dynamic import runtime_sizes

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "golden" / "ir.zip"
# variables of the environment, so that processes of tests have them, too
SWITCH = "PYTEST_RECORDED_IR"
FOLDER = "PYTEST_RECORD_IR"
MISSES = "PYTEST_IR_MISSES"  # the file that notes what is not in the record
LONG_S = 0.2  # passes that take less are run: to read their result takes some hundredths of a second

_only_text: ContextVar[bool] = ContextVar("only text", default=False)


@contextmanager
def only_text() -> Iterator[None]:
    """In this block functions may take numbers: the result becomes text, in which these have their names."""
    token = _only_text.set(True)
    try:
        yield
    finally:
        _only_text.reset(token)


def use_recorded_ir() -> None:
    """From now on the passes are not run for functions in the record, while the switch is on."""
    from tilelang.backend.module import BackendModule

    if not hasattr(BackendModule.lower, "run_passes"):
        BackendModule.lower = with_record(BackendModule.lower)  # type: ignore[method-assign]


def with_record(run_passes: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Like `run_passes`, which is not called for what is in the record."""

    def lower(backend: Any, module: Any, target: Any) -> Any:
        key = _key(module, target) if os.environ.get(SWITCH) == "1" else None
        if key is None:
            return run_passes(backend, module, target)
        own = _variables(module)
        if key in recorded():
            text = read(key)
            _record(key, text)
            return _module(text, own)
        begin = time.process_time()
        lowered = run_passes(backend, module, target)
        seconds = time.process_time() - begin
        if seconds > LONG_S:
            _note_miss(seconds)
            if os.environ.get(FOLDER):
                _record(key, _text(lowered, own))
        return lowered

    lower.run_passes = run_passes  # type: ignore[attr-defined]
    return lower


def _key(module: Any, target: Any) -> str | None:
    """A hash of all that the result of the passes depends on; None for modules that are always lowered."""
    from tvm import ir, tirx
    from tvm.ir.transform import PassContext

    functions = [function for _, function in module.functions_items()]
    if not all(isinstance(one, tirx.PrimFunc) for one in functions):
        return None
    context = PassContext.current()
    instruments = [str(one.name) for one in context.instruments]
    if any(name not in ("Shortcut", "Slices") for name in instruments):
        return None
    if "Shortcut" not in instruments and not _only_text.get():
        return None
    parts = (
        module.script(show_meta=True),
        str(ir.structural_hash(module, map_free_vars=True)),
        str(target),
        json.dumps({name: str(value) for name, value in context.config.items()}, sort_keys=True),
        # not the code that leaves slices out: nothing of them is in the result
        shortcut() if "Shortcut" in instruments else "",
        version("tilelang"),
        *(["variables"] if _variables(module) else []),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@cache
def shortcut() -> str:
    """A hash of the code that stands for a pass in kernels that are only read."""
    return hashlib.sha256(Path(thread_sync.__file__).read_bytes()).hexdigest()


@cache
def recorded() -> frozenset[str]:
    """The keys of the record."""
    if not FILE.exists():
        return frozenset()
    with ZipFile(FILE) as archive:
        return frozenset(archive.namelist())


def read(key: str) -> str:
    """A recorded module, as JSON."""
    with ZipFile(FILE) as archive:  # no open file is shared with processes that are forked
        return archive.read(key).decode()


def _variables(module: Any) -> list[Any]:
    """The variables of sizes and numbers that the functions take; none where the result becomes text."""
    if _only_text.get():
        return []
    found: list[Any] = []
    for _, function in sorted(module.functions_items(), key=lambda item: str(item[0].name_hint)):
        numbers = [one for one in function.params if one not in function.buffer_map]
        for one in (*runtime_sizes(function), *numbers):
            if not any(one.same_as(known) for known in found):
                found.append(one)
    return found


def _module(text: str, own: list[Any]) -> Any:
    """The module of a record, with the variables `own` in place of those that were recorded."""
    from tvm import IRModule, ir

    found = ir.load_json(text)
    if not own:
        return found
    module, recorded_ones = found
    values = dict(zip(recorded_ones, own, strict=True))
    functions = {
        name: _with_variables(function, values)
        # a kernel's parameters are its own: the host part passes the values
        if not any(one in values for one in function.params)
        else function
        for name, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _with_variables(function: Any, values: dict[Any, Any]) -> Any:
    """`function` with other variables wherever it uses them, in its tensor descriptors, too."""
    from tvm import tirx

    def put(value: Any) -> Any:
        return (
            tirx.stmt_functor.substitute(value, values)
            if isinstance(value, tirx.PrimExpr) and not isinstance(value, tirx.StringImm)
            else value
        )

    made = function.with_body(tirx.stmt_functor.substitute(function.body, values))
    if described := (function.attrs or {}).get("tma_descriptor_args"):
        parts = {descriptor: [put(part) for part in given] for descriptor, given in described.items()}
        made = made.with_attr("tma_descriptor_args", parts)
    return made


def _text(module: Any, own: list[Any]) -> str:
    """`module` as JSON, without the places in source files; with its variables of sizes and numbers."""
    from tvm import ir

    graph = json.loads(ir.save_json([module, own] if own else module))
    nodes = graph["nodes"]
    nothing = next(index for index, node in enumerate(nodes) if node["type"] == "None")
    for node in nodes:
        if node["type"] == "ir.SourceName":
            node["data"] = ""
        elif node["type"] == "ir.Span":
            node["data"] = {
                name: value if name == "source_name" else 0 for name, value in node["data"].items()
            }
        elif isinstance(data := node.get("data"), dict) and "span" in data:
            data["span"] = nothing
    return json.dumps(graph, separators=(",", ":"))


def _note_miss(seconds: float) -> None:
    """Note that passes took long for a function that is not in the record, for `misses`."""
    if given := os.environ.get(MISSES):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        # one write to a file that is open for appending: lines of several processes stay whole
        with open(given, "a", encoding="utf-8") as file:
            file.write(json.dumps([seconds, test]) + "\n")


def misses(path: Path) -> list[tuple[float, str]]:
    """Seconds and test of each function that the record lacks, longest first."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return sorted(((seconds, test) for seconds, test in map(json.loads, lines)), reverse=True)


def _record(key: str, text: str) -> None:
    if given := os.environ.get(FOLDER):
        folder = ROOT / given
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{key}.{os.getpid()}.partial"  # other processes may write the same one
        partial.write_bytes(lzma.compress(text.encode()))
        partial.replace(folder / key)


def main(folder: str, *, keep: bool = False) -> None:
    """Make the record of the files in a folder; with `keep` beside what is in the record now."""
    entries = {path.name: lzma.decompress(path.read_bytes()) for path in Path(folder).iterdir()}
    if keep:
        entries = {key: read(key).encode() for key in recorded()} | entries
    made = FILE.with_suffix(".new")
    with ZipFile(made, "w", ZIP_LZMA) as archive:
        for key, text in sorted(entries.items()):
            entry = ZipInfo(key)  # without the time
            entry.compress_type = ZIP_LZMA
            archive.writestr(entry, text)
    made.replace(FILE)


if __name__ == "__main__":
    main(sys.argv[1], keep="--keep" in sys.argv[2:])
