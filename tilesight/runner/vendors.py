"""Calls of vendor implementations beside a kernel: those that work here and give the operator's results.

Only the time of a right result counts. Vendors round where they like, so that their limit is wider than that
of kernels; a wrong layout, scale or mask is far beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import CaptureError, headline
from ..problem.operator import Operator
from ..problem.workload import Workload
from .bench import Bench, BenchCase
from .compare import compare
from .error_bounds import exact_bound
from .kernel_run import in_turn
from .timers import Call

if TYPE_CHECKING:
    import torch

LIMIT = 8.0  # times an operator's largest relative error, which is about three times that of right kernels


def vendor_calls(bench: Bench, case: BenchCase) -> tuple[dict[str, Call], tuple[str, ...]]:
    """Calls of the right vendor implementations, on the input sets in turn, and notes on the others."""
    try:
        offered = case.vendor()
    except Exception as error:
        return {}, (f"no vendor library to compare with: {headline(str(error))}",)
    calls, notes = {}, []
    for name in offered[0]:
        pairs = [(one[name], given) for one, given in zip(offered, case.sets, strict=True) if name in one]
        call = in_turn([one for one, _ in pairs])
        try:
            faults = [
                vendor_fault(case.operator, case.workload, result, reference)
                for one, given in pairs
                for result, reference in zip(case.results(one()), case.parts(given.reference), strict=True)
            ]
            fault = next(filter(None, faults), "")
            if not fault:
                bench.timer.stretch(call)
                bench.timer.synchronize()
        except Exception as error:
            fault = headline(str(error) or type(error).__name__)
            bench.timer.broken = bench.timer.broken or isinstance(error, CaptureError)
        finally:
            bench.timer.release()
        if written := case.overwritten():
            bench.restore(case)
            fault = f"it writes to the input '{written}'"
        if fault:
            notes.append(f"{name} was left out: {fault}")
        else:
            calls[name] = call
    return calls, tuple(notes)


def vendor_fault(
    operator: Operator, workload: Workload, result: object, reference: Mapping[str, torch.Tensor]
) -> str:
    """What is wrong with the result of a vendor's call, in words; "" if it is right.

    Args:
        operator: the operator.
        workload: the workload.
        result: a tensor, or several in the order of the operator's outputs, of which the first one counts
            always, and others of floating-point numbers where they have the output's shape. The second and
            third axis may be exchanged. None: nothing is compared, as the call does something else.
        reference: the right outputs by name.
    """
    import torch

    found = list(result) if isinstance(result, tuple | list) else [] if result is None else [result]
    if found and not isinstance(found[0], torch.Tensor):
        return f"its result is a {type(result).__name__}, and must be a tensor or several"
    limit = LIMIT * operator.max_relative_error(workload)
    for index, (name, output) in enumerate(zip(operator.outputs(workload), found, strict=False)):
        if name not in reference or not isinstance(output, torch.Tensor):
            continue
        wanted = reference[name]
        turned = [output.transpose(1, 2)] if output.dim() > 2 else []
        views = [view for view in (output, *turned) if view.shape == wanted.shape]
        if index and (not views or not wanted.dtype.is_floating_point):
            continue
        if not views:
            shapes = f"the shape {tuple(output.shape)} and not {tuple(wanted.shape)}"
            return f"its result '{name}' has {shapes}"
        deviation = min(
            (compare(view, wanted, exact_bound()) for view in views),
            key=lambda one: (one.wild + one.unwritten, one.relative_error),
        )
        if fault := deviation.unusable():
            return f"of its result '{name}', {fault}"
        if not deviation.relative_error <= limit:
            error = f"a relative error of {deviation.relative_error:.3g}, above {limit:.3g}"
            return f"its result '{name}' has {error}"
    return ""
