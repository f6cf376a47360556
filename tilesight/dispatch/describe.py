"""The texts of `repr` and `Dispatcher.explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .on_miss import OnMiss
from .on_unknown import OnUnknown

if TYPE_CHECKING:
    from .select.choice import Choice
    from .shape_table import ShapeTable

MAX_SHOWN = 24  # shapes in an explanation

_POLICIES = {
    OnMiss.WAIT: "a call waits until its kernel is built",
    OnMiss.SERVE: "a built kernel is used until the chosen one is built in the background",
    OnMiss.REFUSE: "no call builds a kernel",
}
_UNKNOWN = {
    OnUnknown.REFUSE: "other shapes are refused",
    OnUnknown.DEFAULT: "other shapes get the default config",
    OnUnknown.NEAREST: "other shapes get the config of the nearest size that a record, table or plan has",
}


def headline(shapes: ShapeTable) -> str:
    """One line: the problem, and the numbers of shapes."""
    called = _count(len(shapes.shapes()), "shape")
    return f"{shapes.problem.label}, {_count(len(shapes.loaded.winners), 'recorded shape')}, {called} met"


def explanation(shapes: ShapeTable) -> str:
    """Several lines: the policy, the records, the notes, and the latest shapes with their choices."""
    problem, selector, loaded = shapes.problem, shapes.selector, shapes.loaded
    lines = [f"dispatcher of {problem.label}, by {problem.template.name}"]
    kernels = "each shape has a kernel of its own"
    if problem.dynamic:
        kernels = f"kernels take {', '.join(problem.dynamic)} at run time"
    lines.append(f"  {kernels}; {_POLICIES[shapes.on_miss]}")
    table = loaded.table
    lines.append(
        f"  records: {_count(len(loaded.winners), 'shape')}" + (", and a table" if table is not None else "")
    )
    if table is not None:
        count = _count(len(table.kernels), "kernel")
        lines.append(f"  table: {table.vary}={table.first}..{table.last} by {count}")
    if loaded.shipped is not None and loaded.shipped.plans:
        lines.append(f"  plans that ship with TileSight: {len(loaded.shipped.plans)}")
    if selector.on_unknown is not None:
        lines.append(f"  frozen: nothing else chooses; {_UNKNOWN[selector.on_unknown]}")
    lines.append(f"  digest of what was loaded: {loaded.digest()}")
    if shapes.improver.is_automatic:
        lines.append(
            "  shapes without a record are explored in the background; another kernel is used only once "
            "it is measured to be faster"
        )
    lines += [f"  note: {note}" for note in (*shapes.notes, *loaded.notes)]
    if shapes.misses is not None and shapes.misses.failure:
        lines.append(f"  misses could not be written: {shapes.misses.failure}")
    called = shapes.shapes()
    lines.append(f"  shapes met: {len(called)}")
    for key, shape in list(called.items())[-MAX_SHOWN:]:
        if shape.kernel is not None:
            sizes = ", ".join(f"{name}={size}" for name, size in zip(problem.free, key, strict=True))
            lines.append(f"    {sizes or 'all fixed'}: {_line(shape.kernel.choice)}")
            if shape.kernel.pending is not None:
                lines.append(f"      until this is built: {_line(shape.kernel.pending)}")
    return "\n".join(lines)


def _line(choice: Choice) -> str:
    return f"{choice.source}: {choice.config} ({choice.reason})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
