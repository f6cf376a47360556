"""Checks a kernel's outputs against the operator's reference, and repeated runs against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import Failure, FailureKind
from ..problem.operator import Operator
from ..problem.workload import Workload
from .compare import Deviation, as_matrix, bits, compare, scale_of
from .error_bounds import ErrorBound, exact_bound, limit_bound, rounding_bound

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    Attributes:
        relative_error: the largest ||out - ref|| / ||ref|| of all outputs, over elements that are finite in
            both; None if nothing was compared.
        failure: what is wrong; None if the outputs are right.
        element_ratio: the largest |error| / bound of an element; None after a check of the operator's own.
        tile_ratio: the largest root mean square of error / bound of a tile, relative to its limit; None
            likewise.
    """

    relative_error: float | None
    failure: Failure | None = None
    element_ratio: float | None = None
    tile_ratio: float | None = None


def check_outputs(
    operator: Operator,
    workload: Workload,
    outputs: Mapping[str, torch.Tensor],
    reference: Mapping[str, torch.Tensor],
    magnitude: Mapping[str, torch.Tensor] | None = None,
    is_exact: bool = False,
) -> Verdict:
    """Compare `outputs`, computed after `poison`, with `reference` on the same device.

    Args:
        operator: the operator; it may have a check of its own.
        workload: the workload.
        outputs: the results by name.
        reference: the right results by name.
        magnitude: `Operator.magnitude` on the same inputs.
        is_exact: whether results must be equal to the reference rounded to the nearest number.

    Returns:
        The first fault, and the largest errors of all outputs.

    Raises:
        ValueError: an output and its reference have different shapes.
    """
    own = operator.own_check(workload, outputs, reference)
    if own is not None:
        return Verdict(own[0], _wrong(own[1]) if own[1] else None)
    limit, failure = operator.max_relative_error(workload), None
    found: list[Deviation] = []
    for name, expected in reference.items():
        output = outputs[name]
        same = is_exact or not expected.dtype.is_floating_point  # indices are right or wrong
        wanted = expected.to(output.dtype) if same else expected
        bound = (
            exact_bound()
            if same
            else _bound(operator, workload, output.dtype, expected, (magnitude or {}).get(name))
        )
        deviation = compare(output, wanted, bound)
        found.append(deviation)
        if failure is None and (fault := _fault(deviation, limit, workload, same)):
            failure = _wrong(f"output '{name}': {fault}")
    return Verdict(
        max((one.relative_error for one in found), default=0.0),
        failure,
        max((one.element_ratio for one in found), default=0.0),
        max((one.tile_ratio for one in found), default=0.0),
    )


def check_repeat(outputs: Mapping[str, torch.Tensor], first: Mapping[str, torch.Tensor]) -> Failure | None:
    """Compare the outputs of two runs on the same inputs, bit by bit. A difference is a race."""
    import torch

    for name, output in outputs.items():
        now, before = bits(output), bits(first[name])
        if not torch.equal(now, before):
            count, size = int((now != before).sum()), output.numel()
            text = f"output '{name}': {count} of {size} elements differ between runs on the same inputs"
            return Failure(FailureKind.NONDETERMINISTIC, text)
    return None


def _bound(
    operator: Operator,
    workload: Workload,
    dtype: torch.dtype,
    reference: torch.Tensor,
    magnitude: torch.Tensor | None,
) -> ErrorBound:
    rounding = operator.rounding(workload)
    if rounding is None:
        return limit_bound(operator.max_relative_error(workload), dtype, scale_of(reference))
    return rounding_bound(rounding, dtype, None if magnitude is None else as_matrix(magnitude))


def _fault(deviation: Deviation, limit: float, workload: Workload, is_exact: bool) -> str:
    """What is wrong with an output, in words; "" if it is right."""
    error = f"relative error {deviation.relative_error:.3g}"
    if fault := deviation.unusable():
        return fault
    if deviation.beyond:
        rule = (
            "differ from exact sums of whole numbers"
            if is_exact
            else f"are off by more than their bounds, up to {deviation.element_ratio:.3g} times"
        )
        count = f"{deviation.beyond} of {deviation.size} elements {rule}"
        place = f", in {deviation.tile}" if deviation.tile_ratio > 1 else ""
        return f"{count}; {deviation.element} ({error}{place})"
    if deviation.tile_ratio > 1:
        times = f"a root mean square error of {deviation.tile_ratio:.3g} times its limit"
        return f"{deviation.tile} has {times}; of all elements {deviation.element} ({error})"
    if not deviation.relative_error <= limit:
        return f"{error} exceeds {limit:.3g}, the limit for {workload.dtype}; {deviation.element}"
    return ""


def _wrong(message: str) -> Failure:
    return Failure(FailureKind.WRONG_RESULT, message)
