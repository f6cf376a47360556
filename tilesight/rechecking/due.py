"""Which recorded winners are due: those of other contexts that the present one has no winner for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ..errors import TileSightError
from ..machine.placement import Placement
from ..problem.space import Config
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..records.protocol import MeasurementProtocol
from ..records.session import Context, time_software
from ..records.winners import Miss, Winner
from ..tuner.resolve import find_context, find_operator, find_template

if TYPE_CHECKING:
    from ..database.store import Store

Key = tuple[str, tuple[str, ...]]  # a workload and its dynamic dimensions
ORDER = (
    "most used first: by the expected time of the calls that dispatchers made without a record, then by "
    "their number, then the latest recorded"
)


@dataclass(frozen=True, slots=True)
class DueWinner:
    """A recorded winner that is to be measured again.

    Attributes:
        template: that makes its kernel now.
        context: in which it was recorded.
        latency_us: its recorded time.
        changes: what differs from the recorded context, each as (part, recorded, now).
        calls: of dispatchers since they had no record of it; 0 if none is counted.
        cost_us: expected time of these calls together; 0 if unknown.
    """

    workload: Workload
    template: KernelTemplate
    config: Config
    dynamic: tuple[str, ...]
    context: Context
    latency_us: float
    recorded_at: datetime | None
    layer: str
    changes: tuple[tuple[str, str, str], ...]
    calls: int = 0
    cost_us: float = 0.0

    @property
    def key(self) -> Key:
        return self.workload.key, self.dynamic

    @property
    def label(self) -> str:
        at_run_time = f", {', '.join(self.dynamic)} taken at run time" if self.dynamic else ""
        return f"{self.workload.label}{at_run_time}"


@dataclass(frozen=True, slots=True)
class Due:
    """The winners that are due, most used first.

    Attributes:
        current: number of winners that were measured in the present context.
        left_out: why recorded winners are left out, each with their number.
    """

    winners: tuple[DueWinner, ...]
    current: int
    left_out: tuple[str, ...] = ()


def find_due(
    store: Store,
    placement: Placement,
    model: str,
    protocol: MeasurementProtocol,
    operators: Collection[str] | None,
) -> Due:
    """The recorded winners of a target that have no winner in the present context.

    Args:
        store: The database with its layers.
        placement: The target, and the device that measures; without one, records of any device of the target
            count.
        model: Version of the cost model.
        protocol: Conditions of the measurements; winners under others are not due.
        operators: Names of the operators; None: all that this target takes.
    """
    recorded: dict[Key, DueWinner] = {}
    current: set[Key] = set()
    unknown: set[Key] = set()
    misses = _misses(store, placement)
    for context in store.measured_contexts(placement.target, placement.device_name):
        if operators is not None and context.workload.operator not in operators:
            continue
        if protocol.key != context.protocol:
            continue
        template = _template_now(context, placement)
        now = None if template is None else _present(template, context, placement, model, protocol)
        for winner in store.recorded_winners(context, {}):  # of all sizes
            key = winner.workload.key, winner.dynamic
            if template is None or now is None:
                unknown.add(key)
            elif not (changes := _changes(context, now)):
                current.add(key)
            elif key not in recorded or _moment(recorded[key].recorded_at) < _moment(winner.recorded_at):
                at = replace(context, workload=winner.workload)
                recorded[key] = _due(winner, at, template, changes, misses.get(winner.workload.key))
    due = [winner for key, winner in recorded.items() if key not in current]
    due.sort(key=lambda winner: (-winner.cost_us, -winner.calls, -_moment(winner.recorded_at), winner.label))
    return Due(tuple(due), len(current), tuple(_left_out(unknown - current - recorded.keys())))


def _template_now(context: Context, placement: Placement) -> KernelTemplate | None:
    """The template that makes the kernels of a recorded context now; None if there is none."""
    workload, target = context.workload, placement.target
    try:
        operator = find_operator(workload.operator)
        template = find_template(operator, target, workload.dtype)
        template.check_dynamic(context.dynamic)
    except TileSightError:
        return None
    is_for_target = operator.communicates == bool(target.levels)
    return template if is_for_target and template.name == context.template else None


def _present(
    template: KernelTemplate,
    context: Context,
    placement: Placement,
    model: str,
    protocol: MeasurementProtocol,
) -> Context:
    return find_context(template, context.workload, placement, model, None, protocol, context.dynamic)


def _changes(recorded: Context, now: Context) -> tuple[tuple[str, str, str], ...]:
    """What differs of all that a winner depends on; nothing if dispatchers find it now."""
    parts = [("template_version", recorded.template_version, now.template_version)]
    parts += [("arch", recorded.arch, now.arch)]
    if now.device:
        parts.append(("device", recorded.device, now.device))
    before, today = time_software(recorded.software), time_software(now.software)
    parts += [(name, before.get(name, ""), today.get(name, "")) for name in sorted(before.keys() | today)]
    if not now.device:  # no driver is known on a machine without a device
        parts = [part for part in parts if part[0] != "driver"]
    return tuple(part for part in parts if part[1] != part[2])


def _due(
    winner: Winner,
    context: Context,
    template: KernelTemplate,
    changes: tuple[tuple[str, str, str], ...],
    miss: Miss | None,
) -> DueWinner:
    calls, cost_us = (0, 0.0) if miss is None else (miss.count, miss.cost_us)
    return DueWinner(
        winner.workload,
        template,
        winner.config,
        winner.dynamic,
        context,
        winner.latency_us,
        winner.recorded_at,
        winner.layer,
        changes,
        calls,
        cost_us,
    )


def _misses(store: Store, placement: Placement) -> Mapping[str, Miss]:
    """The counted misses of the target and its device, by workload."""
    device = placement.device_name
    found = store.misses(None, placement.target.name)
    return {miss.workload.key: miss for miss in reversed(found) if not device or miss.device in ("", device)}


def _left_out(unknown: Collection[Key]) -> Iterator[str]:
    if unknown:
        count = f"{len(unknown)} recorded winner{'' if len(unknown) == 1 else 's'}"
        yield f"{count} left out: this TileSight has no kernel of that operator, dtype or template"


def _moment(recorded_at: datetime | None) -> float:
    return 0.0 if recorded_at is None else recorded_at.timestamp()
