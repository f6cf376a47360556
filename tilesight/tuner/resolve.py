"""Lookup: from the names that a user gives to the values of the line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import kernels
from ..errors import InputError, UnknownNameError
from ..problem.operator import Operator
from ..problem.space import SearchSpace, Value
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..records.protocol import MeasurementProtocol
from ..records.session import Context, Effort
from ..target.spec import Target

if TYPE_CHECKING:
    from ..machine.placement import Placement

Shape = str | Mapping[str, Value]


def find_operator(name: str) -> Operator:
    """Raises `UnknownNameError` with the near names."""
    return kernels.operator(name)


def communicate(operators: Sequence[Operator]) -> bool:
    """Whether several devices compute these operators together; for one call, which has one target.

    Raises:
        InputError: several devices compute some of them, and one device computes others.
    """
    together = [operator.name for operator in operators if operator.communicates]
    alone = [operator.name for operator in operators if not operator.communicates]
    if together and alone:
        raise InputError(
            f"{together[0]} runs on several devices together, and {alone[0]} on one: name kernels of both "
            "kinds in calls of their own"
        )
    return bool(together)


def find_effort(name: str) -> Effort:
    """Raises `UnknownNameError`."""
    if name not in list(Effort):
        raise UnknownNameError("effort", name, [effort.value for effort in Effort])
    return Effort(name)


def check_budget(budget_s: float | None) -> None:
    """Raise `InputError` unless it is a time, or None."""
    if budget_s is not None and not 0 < budget_s < math.inf:
        raise InputError(f"budget {budget_s} must be a number of seconds above 0; leave it out for no limit")


def find_template(operator: Operator, target: Target, dtype: str) -> KernelTemplate:
    """Raises `InputError` where the operator has no kernel for this kind of target or this dtype."""
    return kernels.template_for(operator.name, target, dtype)


def check_workers(workers: int | None) -> None:
    """Raise `InputError` unless it is a number of worker processes, or None."""
    if workers is not None and not 1 <= workers <= 1024:
        raise InputError(f"workers={workers} must lie in 1 .. 1024")


def default_dtype(operator: Operator, target: Target) -> str:
    """The dtype that is taken where none is named."""
    return kernels.default_dtype(operator.name, target)


def find_workloads(
    operator: Operator, target: Target, shape: Shape | Sequence[Shape] | None, dtype: str | None
) -> list[Workload]:
    """The workloads that `shape` means, each once; the operator's default set for None. All can be tuned for
    `target`.
    """
    known = dtype or default_dtype(operator, target)
    if shape is None:
        found = operator.default_workloads_on(target, known)
    else:
        shapes = [shape] if isinstance(shape, str | Mapping) else list(shape)
        if not shapes:
            raise InputError("no shape was given; leave it out for the default set")
        wrong = [s for s in shapes if not isinstance(s, str | Mapping)]
        if wrong:
            first, names = operator.stated_dims[0], ", ".join(operator.stated_dims)
            takes = f"must be text ('{first}=...,...' or a published name) or a mapping of {names}"
            raise InputError(f"{operator.name}: shape {wrong[0]!r} {takes}")
        found = [operator.workload_on(target, s if isinstance(s, str) else _text(s), known) for s in shapes]
    for workload in found:
        find_template(operator, target, workload.dtype)
    return list({workload.key: workload for workload in found}.values())


def find_context(
    template: KernelTemplate,
    workload: Workload,
    placement: Placement,
    model: str,
    space: SearchSpace | None,
    protocol: MeasurementProtocol,
    dynamic: tuple[str, ...] = (),
) -> Context:
    """Everything that a result's validity depends on. `space`: None for what single configs are asked about,
    whatever they were chosen from. `dynamic`: dimensions that its kernels take at run time.
    """
    from ..machine.toolchain import software_versions

    return Context(
        template=template.name,
        template_version=template.version,
        workload=workload,
        target=placement.target.name,
        target_fingerprint=placement.target.fingerprint,
        arch=placement.target.arch,
        model=model,
        space="" if space is None else space.fingerprint,
        software=dict(placement.software) or software_versions(placement.target, placement.device),
        device=placement.device_name,
        protocol=protocol.key if placement.device else "",
        dynamic=dynamic,
    )


def _text(shape: Mapping[str, Value]) -> str:
    return ",".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in shape.items()
    )
