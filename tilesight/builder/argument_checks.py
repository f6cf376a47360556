"""C code with which a launcher checks a kernel's dynamic dimensions: values, tensor sizes and grids."""

from __future__ import annotations

from .launch_plan import KernelLaunch, LaunchPlan
from .size_expr import SIZE_FUNCTIONS, Expression

MAX_ELEMENTS = 2**31  # of a tensor: TileLang indexes with 32-bit integers
MAX_SIZE = 2**31 - 2**16  # of one dimension, as `Workload` allows
# blocks along x, y and z of a CUDA or HIP grid
MAX_BLOCKS = (2**31 - 1, 65535, 65535)


def prologue(plan: LaunchPlan, error_text: str) -> list[str]:
    """C code before the functions of a library: its numbers of arguments, and functions for the checks."""
    lines = [
        f'extern "C" int tilesight_arity(void) {{ return {plan.tensors}; }}',
        f'extern "C" int tilesight_sizes(void) {{ return {len(plan.sizes) + len(plan.numbers)}; }}',
    ]
    if plan.sizes:
        lines += [
            SIZE_FUNCTIONS,
            "template <typename... V> static int tilesight_refuse(const char *format, V... values) {",
            f"  snprintf({error_text}, sizeof {error_text}, format, values...);",
            "  return -1;",
            "}",
        ]
    return lines


def checks(plan: LaunchPlan) -> list[str]:
    """The first statements of `tilesight_call`: declare each `size_i`, return an error if one is invalid."""
    lines = []
    for i, name in enumerate(plan.sizes):
        lines += [
            f"  const int64_t size_{i} = (int64_t)(intptr_t)arguments[{plan.tensors + i}];",
            f"  if (size_{i} < 1 || size_{i} > INT64_C({MAX_SIZE}))",
            f'    return tilesight_refuse("{name}=%lld must lie in 1 .. {MAX_SIZE}", (long long)size_{i});',
        ]
    where = ", ".join(f"{name}=%lld" for name in plan.sizes)
    values = ", ".join(f"(long long)size_{i}" for i in range(len(plan.sizes)))
    checked = set()
    for tensor, shape in plan.extents:
        elements = " * ".join(
            f"(double){extent}" if isinstance(extent, Expression) else f"{extent}.0" for extent in shape
        )
        if elements in checked:
            continue
        checked.add(elements)
        lines += [
            f"  if ({elements} > {MAX_ELEMENTS}.0)",  # as double, in which no product of sizes overflows
            f'    return tilesight_refuse("{tensor} would have more than {MAX_ELEMENTS} elements '
            f'at {where}", {values});',
        ]
    for launch in plan.launches:
        lines += _grid(launch, where, values)
    return lines


def _grid(launch: KernelLaunch, where: str, values: str) -> list[str]:
    lines = []
    for axis, extent, most in zip("xyz", launch.grid, MAX_BLOCKS, strict=True):
        if isinstance(extent, Expression):
            message = f"%lld blocks along {axis} at {where}: a grid has 1 to {most}"
            lines += [
                f"  if ({extent} < 1 || {extent} > {most})",
                f'    return tilesight_refuse("{message}", (long long){extent}, {values});',
            ]
    return lines
