"""Checks a kernel's outputs against the operator's reference, and repeated runs against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import Failure, FailureKind
from ..problem.operator import Operator
from ..problem.workload import Workload

if TYPE_CHECKING:
    import torch

# quiet NaNs that no arithmetic produces, by element size; an element that still has the value was never
# written
_POISON: Mapping[int, int] = {1: 0x7F, 2: 0x7FE5, 4: 0x7FE5A55A, 8: 0x7FFE5A55A55A5A5A}
_CHUNK = 1 << 24  # elements compared at a time; bounds the memory for double precision


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    `relative_error` is the largest ||out - ref|| / ||ref|| of all outputs, over elements that are finite in
    both; None if nothing was compared.
    """

    relative_error: float | None
    failure: Failure | None = None


def poison(outputs: Mapping[str, torch.Tensor]) -> None:
    """Fill outputs with a known NaN pattern, by which unwritten elements are found."""
    for output in outputs.values():
        bits(output).fill_(_POISON[output.element_size()])


def unwritten(output: torch.Tensor) -> torch.Tensor:
    """Truth values: the elements that still have the value of `poison`."""
    return bits(output) == _POISON[output.element_size()]


def check_outputs(
    operator: Operator,
    workload: Workload,
    outputs: Mapping[str, torch.Tensor],
    reference: Mapping[str, torch.Tensor],
) -> Verdict:
    """Compare `outputs`, computed after `poison`, with `reference` on the same device.

    The first fault is returned.
    """
    own = operator.own_check(workload, outputs, reference)
    if own is not None:
        return Verdict(own[0], _wrong(own[1]) if own[1] else None)
    limit, worst, failure = operator.max_relative_error(workload), 0.0, None
    for name, expected in reference.items():
        blank, wild, error = _compare(outputs[name], expected)
        size = outputs[name].numel()
        worst = max(worst, error)
        if failure is not None:
            continue
        if blank:
            failure = _wrong(f"output '{name}': {blank} of {size} elements were never written")
        elif wild:
            failure = _wrong(
                f"output '{name}': {wild} of {size} elements "
                "are NaN or infinite where the reference is finite"
            )
        elif not error <= limit:
            failure = _wrong(
                f"output '{name}': relative error {error:.3g} exceeds {limit:.3g}, "
                f"the limit for {workload.dtype}"
            )
    return Verdict(worst, failure)


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


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers."""
    import torch

    return tensor.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    )


def _wrong(message: str) -> Failure:
    return Failure(FailureKind.WRONG_RESULT, message)


def _compare(output: torch.Tensor, expected: torch.Tensor) -> tuple[int, int, float]:
    """(elements never written, elements not finite where the reference is, relative error over the rest)."""
    import torch

    if output.shape != expected.shape:
        raise ValueError(
            f"an output of shape {tuple(output.shape)} has a reference of shape {tuple(expected.shape)}"
        )
    flat, flat_expected = output.reshape(-1), expected.reshape(-1)
    sums = torch.zeros(4, dtype=torch.float64, device=output.device)
    for start in range(0, flat.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        got, want = flat[part].double(), flat_expected[part].double()
        blank = unwritten(flat[part])
        both = torch.isfinite(got) & torch.isfinite(want)
        wild = torch.isfinite(want) & ~torch.isfinite(got) & ~blank
        difference = torch.where(both, got - want, 0.0)
        norm = torch.where(both, want, 0.0)
        sums += torch.stack(
            [blank.sum().double(), wild.sum().double(), difference.square().sum(), norm.square().sum()]
        )
    unwritten_count, wild_count, squared_error, squared_norm = sums.tolist()
    error = math.sqrt(squared_error / squared_norm) if squared_norm else (math.inf if squared_error else 0.0)
    return int(unwritten_count), int(wild_count), error
