"""What a dispatcher says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .supply import OnMiss

if TYPE_CHECKING:
    from .choice import Choice
    from .service import Service

MOST_SHOWN = 24  # shapes in an explanation

_UNBUILT = {
    OnMiss.WAIT: "a call waits until its kernel is built",
    OnMiss.SERVE: "a built kernel serves until the chosen one is built in the background",
    OnMiss.REFUSE: "no call builds a kernel",
}


def headline(service: Service) -> str:
    problem, records = service.supply.problem, service.supply.selector.records
    return f"{problem.label}, {_count(len(records), 'recorded shape')}, {_count(len(service.slots()), 'shape')} met"


def explanation(service: Service) -> str:
    supply = service.supply
    problem, selector = supply.problem, supply.selector
    lines = [f"dispatcher of {problem.label}, by {problem.template.name}"]
    kernels = f"kernels take {', '.join(problem.open)} at run time" if problem.open else "each shape has a kernel of its own"
    lines.append(f"  {kernels}; {_UNBUILT[supply.on_miss]}")
    table = selector.table
    lines.append(f"  records: {_count(len(selector.records), 'shape')}" + (", and a table" if table is not None else ""))
    if table is not None:
        lines.append(f"  table: {table.vary}={table.first}..{table.last} by {_count(len(table.kernels), 'kernel')}")
    if service.background.tries_better:
        lines.append(
            "  shapes without a record are explored in the background; another kernel serves only once it is measured to be faster"
        )
    lines += [f"  note: {note}" for note in service.notes]
    if service.misses is not None and service.misses.failure:
        lines.append(f"  misses could not be written: {service.misses.failure}")
    slots = service.slots()
    lines.append(f"  shapes met: {len(slots)}")
    for key, slot in list(slots.items())[-MOST_SHOWN:]:
        if slot.served is not None:
            sizes = ", ".join(f"{name}={size}" for name, size in zip(problem.free, key, strict=True))
            lines.append(f"    {sizes or 'all fixed'}: {_choice(slot.served.choice)}")
            if slot.served.wanted is not None:
                lines.append(f"      until this is built: {_choice(slot.served.wanted)}")
    return "\n".join(lines)


def _choice(choice: Choice) -> str:
    return f"{choice.source}: {choice.config} ({choice.reason})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
