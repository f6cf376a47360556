"""The kernels of a dispatch table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..dispatch.problem import DispatchProblem, make_problem
from ..dispatch.select.choice import Choice, ChoiceSource
from ..dispatch.select.legality import is_legal
from ..dispatch.table.dispatch_table import DispatchTable, Segment
from ..errors import InputError, UnknownNameError
from ..machine.placement import Placement
from ..records.protocol import MeasurementProtocol
from ..target.spec import Target, load_target
from ..tuner.resolve import find_context, find_operator, find_template
from .kernel_set import KernelSet, SizeLimits

MOST_STATIC = 64  # libraries of an export whose kernels serve one size each

# what must be the same, or the table's kernels cannot be made
_MUST_MATCH = ("operator", "dtype", "attributes", "template", "target", "architecture")


def kernels_of_table(
    table: DispatchTable, name: str, target: str | Target | None, sizes: Sequence[int] = ()
) -> KernelSet:
    """The kernels of a table.

    Args:
        table: the table.
        name: of the export.
        target: None for the shipped target that the table names.
        sizes: of a table whose kernels serve one size each, the sizes to export; all if there are few.

    Raises:
        InputError: the table is of another target, template or architecture, or its configs are not legal.
    """
    chosen = _target(table, target)
    operator = find_operator(table.operator)
    if operator.communicates:
        raise InputError(
            f"{operator.name} runs on several devices together and is called by the processes of a group; "
            "only kernels of one device can be exported"
        )
    template = find_template(operator, chosen, table.dtype)
    problem = make_problem(template, chosen, table.dtype, table.attrs, table.fixed, ())
    notes = _differences(table, problem)
    if table.dynamic:
        if sizes:
            raise InputError(
                f"--sizes: the kernels of this table take {table.vary} at run time; leave it out"
            )
        choices = tuple(_choice(table, segment, segment.first) for segment in _first_of_kernels(table))
        used = {segment.kernel: place for place, segment in enumerate(_first_of_kernels(table))}
        segments = tuple(replace(segment, kernel=used[segment.kernel]) for segment in table.segments)
    else:
        chosen_sizes = _static_sizes(table, sizes)
        choices = tuple(_choice(table, table.choose(size).segment, size) for size in chosen_sizes)
        segments = tuple(Segment(size, size, place) for place, size in enumerate(chosen_sizes))
    for segment in segments:
        choice = choices[segment.kernel]
        for size in {segment.first, segment.last}:
            check_choice(replace(choice, workload=table.workload(size)), problem)
    ranges = (SizeLimits(table.vary, segments[0].first, segments[-1].last),)
    return KernelSet(name, problem, ranges, choices, segments, table, tuple(notes))


def _target(table: DispatchTable, target: str | Target | None) -> Target:
    if target is None:
        try:
            return load_target(table.target)
        except UnknownNameError as error:
            raise InputError(
                f"the table was made for target {table.target}, which is none of the shipped ones; "
                "name its file: --target FILE.toml"
            ) from error
    found = load_target(target) if isinstance(target, str) else target
    if found.name != table.target:
        raise InputError(
            f"the table was made for {table.target} and not for {found.name}: make one with "
            f"`tilesight plan {table.operator} --target {found.name}`"
        )
    return found


def _differences(table: DispatchTable, problem: DispatchProblem) -> list[str]:
    """Differences between the table and this machine under which its kernels can still be made.

    Raises `InputError` for the others.
    """
    context = find_context(
        problem.template,
        table.workload(table.first),
        Placement(problem.target),
        "",
        None,
        MeasurementProtocol.named("default", problem.target),
        table.dynamic,
    )
    # the table's device and conditions are what its times were measured on, wherever it is exported
    found = table.mismatches(replace(context, device="", protocol=""))
    wrong = [text for text in found if text.split(":")[0] in _MUST_MATCH]
    if wrong:
        raise InputError(
            f"the table's kernels cannot be made: {'; '.join(wrong)}; `tilesight plan` makes one"
        )
    return [f"{text}; its times are those of other code" for text in found]


def _first_of_kernels(table: DispatchTable) -> list[Segment]:
    """The first segment of each kernel that serves any size."""
    found: dict[int, Segment] = {}
    for segment in table.segments:
        found.setdefault(segment.kernel, segment)
    return [found[kernel] for kernel in sorted(found)]


def _static_sizes(table: DispatchTable, sizes: Sequence[int]) -> list[int]:
    for size in sizes:
        table.choose(size)  # refuses those outside
    found = sorted(set(sizes)) or list(range(table.first, min(table.last, table.first + MOST_STATIC) + 1))
    if len(found) > MOST_STATIC:
        raise InputError(
            f"the kernels of this table serve one size of {table.vary} each, and {table.first} .. "
            f"{table.last} are more than {MOST_STATIC} libraries: name sizes, "
            f"e.g. --sizes {table.first},{table.last}"
        )
    return found


def _choice(table: DispatchTable, segment: Segment, size: int) -> Choice:
    config = table.kernels[segment.kernel]
    return Choice(table.workload(size), config, ChoiceSource.TABLE, "of the table", dynamic=table.dynamic)


def check_choice(choice: Choice, problem: DispatchProblem) -> None:
    """Raise `InputError` if the config is not legal for the workload."""
    space = problem.space(choice.workload)
    if not is_legal(choice.config, choice.dynamic, space):
        space.check(choice.config)
        raise InputError(f"{choice.config} is not legal for {choice.workload.label} on {problem.target.name}")
