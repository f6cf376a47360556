"""One kernel by its name: the recorded winner of a shape, or a config of the caller's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..builder.argument_checks import MAX_ELEMENTS
from ..dispatch.problem import DispatchProblem, make_problem
from ..dispatch.select.choice import Choice, ChoiceSource
from ..dispatch.table.dispatch_table import Segment
from ..errors import InputError
from ..machine.devices import NoDevice, devices_for, find_devices
from ..machine.placement import Placement, locate
from ..problem.axes import shape as shape_of
from ..problem.space import Config, Value
from ..problem.workload import MAX_DIMENSION, Workload
from ..records.protocol import MeasurementProtocol
from ..records.winners import Winner
from ..settings import load_settings
from ..target.spec import Target
from ..tuner.resolve import Shape, find_context, find_operator, find_template, find_workloads
from .kernel_set import KernelSet, SizeLimits
from .table_source import check_choice


def kernel_by_name(
    kernel: str,
    name: str,
    target: str | Target | None,
    shape: Shape | None,
    dtype: str | None,
    config: str | Mapping[str, Value] | None,
    dynamic: str | Sequence[str],
    protocol: str,
    database: str | None,
    layers: Sequence[str] | None,
) -> KernelSet:
    """One kernel of an operator; see `api.exporting.export` for the arguments.

    Raises `InputError` for a wrong argument, and if no config is given and none is recorded.
    """
    operator = find_operator(kernel)
    if operator.communicates:
        raise InputError(
            f"{operator.name} runs on several devices together and is called by the processes of a group; "
            "only kernels of one device can be exported"
        )
    placement = locate(target, measures=False)
    workload = find_workloads(operator, placement.target, shape, dtype)[0]
    template = find_template(operator, placement.target, workload.dtype)
    dims = template.check_dynamic(dynamic)
    fixed = {dim: size for dim, size in workload.dims.items() if dim not in dims}
    problem = make_problem(template, placement.target, workload.dtype, workload.attrs, fixed, dims)
    notes: tuple[str, ...] = ()
    if config is not None:
        space = problem.space(workload)
        read = space.read(config) if isinstance(config, str) else space.config(config)
        choice = Choice(workload, Config(read), ChoiceSource.GIVEN, "the caller gave it", dynamic=dims)
    else:
        winner = _winner(problem, workload, placement, protocol, database, layers)
        if winner.layer:
            notes = (f"the winner was recorded on {winner.recorded_at:%Y-%m-%d} in the layer {winner.layer}",)
        choice = Choice(
            workload, winner.config, ChoiceSource.RECORD, "recorded", winner.latency_us, True, winner.dynamic
        )
    check_choice(choice, problem)
    sizes = tuple(SizeLimits(dim, 1, _largest(problem, dim)) for dim in problem.free)
    segments = (Segment(sizes[0].first, sizes[0].last, 0),) if sizes else ()
    return KernelSet(name, problem, sizes, (choice,), segments, notes=notes)


def _winner(
    problem: DispatchProblem,
    workload: Workload,
    placement: Placement,
    protocol: str,
    database: str | None,
    layers: Sequence[str] | None,
) -> Winner:
    """The recorded winner of a workload, measured on any card of the target."""
    from ..database import open_layers  # here: it loads SQLAlchemy, which tables do not need

    target, dynamic = placement.target, problem.dynamic
    found = devices_for(target, find_devices() if target.is_gpu else [])
    here = placement if isinstance(found, NoDevice) else replace(placement, devices=found)
    conditions = MeasurementProtocol.named(protocol, target)
    context = find_context(problem.template, workload, here, "", None, conditions, dynamic)
    devices = dict.fromkeys([*filter(None, [here.device_name]), *target.device_names])
    with open_layers(database or load_settings().database_url, layers) as store:
        for device in devices:
            measured = replace(context, device=device, protocol=conditions.key)
            for winner in store.winners(measured, workload.dims):
                return winner
    sizes = ",".join(f"{name}={size}" for name, size in {**workload.dims, **workload.attrs}.items())
    option = "".join(f" --dynamic {dim}" for dim in dynamic)
    raise InputError(
        f"no winner is recorded of {workload.label} on {target.name}; give a config (--config), or tune it: "
        f"tilesight tune {problem.operator.name} --target {target.name} --shape {sizes}{option} (a winner "
        "whose time is noisy counts only with TILESIGHT_MAX_NOISE=inf)"
    )


def _largest(problem: DispatchProblem, dim: str) -> int:
    """The largest size of a dimension at which no tensor has too many elements; other free ones are 1."""
    ones = {**problem.fixed, **dict.fromkeys(problem.free, 1)}

    def fits(size: int) -> bool:
        dims = {**ones, dim: size}
        return all(
            math.prod(shape_of(axes, dims, problem.attrs)) <= MAX_ELEMENTS for axes in problem.axes.values()
        )

    low, high = 1, MAX_DIMENSION
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
