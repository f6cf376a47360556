"""The number of blocks of each launch of a function, also at given sizes of its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..builder.launch_plan import LaunchPlan, read_plan
from ..errors import LaunchError

if TYPE_CHECKING:
    from ..lowering.lower import Lowered

Grid = tuple[int, int, int]


def fixed_grids(_: Lowered, plan: LaunchPlan) -> list[Grid]:
    """The grids of a function without dynamic dimensions. Raises `LaunchError` if it has some."""
    found = []
    for launch in plan.launches:
        x, y, z = launch.grid
        if not (isinstance(x, int) and isinstance(y, int) and isinstance(z, int)):
            raise LaunchError(f"the number of blocks of {launch.function} depends on dynamic dimensions")
        found.append((x, y, z))
    return found


def grids_at(sizes: Mapping[str, int | float]) -> Callable[[Lowered, LaunchPlan], list[Grid]]:
    """As `fixed_grids`, for a function whose dynamic dimensions have these values."""

    def grids(lowered: Lowered, plan: LaunchPlan) -> list[Grid]:
        if all(isinstance(extent, int) for launch in plan.launches for extent in launch.grid):
            return fixed_grids(lowered, plan)
        return fixed_grids(lowered, read_plan(_with_values(lowered, sizes)))

    return grids


def _with_values(lowered: Lowered, values: Mapping[str, int | float]) -> Lowered:
    """`lowered` with values in place of its dynamic dimensions, in its host part and its shapes only."""
    from tvm import IRModule, tirx

    known = {size: tirx.IntImm(size.dtype, int(values[str(size.name)])) for size in lowered.sizes}
    (host,) = lowered.host.functions.values()
    traced = lowered.traced
    shaped = {
        parameter: tirx.decl_buffer(
            [tirx.stmt_functor.substitute(extent, known) for extent in buffer.shape],
            buffer.dtype,
            buffer.name,
            data=buffer.data,  # by which the host part names it
        )
        for parameter, buffer in traced.buffer_map.items()
    }
    body = tirx.stmt_functor.substitute(host.body, known)
    return replace(
        lowered,
        traced=tirx.PrimFunc(traced.params, tirx.Evaluate(0), traced.ret_type, shaped),
        host=IRModule({"host": host.with_body(body)}),
        sizes=(),
    )
