"""Slices of tensors that are bound to a name and not read, left out before TileLang works on their indices.

`part = A[row : row + 256, col : col + 32]` in a kernel binds `part` to a vector load, and a copy of `part`
then takes the region itself, so that nothing reads the load. TileLang's pass `Simplify` drops it. But the
pass `LegalizeNegativeIndex` runs earlier: it tries to prove for each of the 256 rows that its index is not
negative, which fails if `row` depends on a size that is a variable, and writes a choice between two indices
for each row, which `Simplify` then simplifies. That takes four fifths of the lowering of a matmul with
clusters and a dynamic dimension. `Simplify` drops such loads in any case, so the IR is the same without them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

PASS = "tl.LegalizeNegativeIndex"


@contextlib.contextmanager
def without_unused_slices() -> Iterator[None]:
    """Passes that run in this block, in this thread, do so without unused slices."""
    from tvm.ir.instrument import pass_instrument
    from tvm.ir.transform import PassContext

    @pass_instrument
    class Slices:  # the module that TVM shows it before a pass is the one that the pass takes
        def run_before_pass(self, module: Any, info: Any) -> None:
            if info.name == PASS:
                drop_unused_slices(module)

    context = PassContext.current()
    instruments = list(context.instruments)
    context.override_instruments([*instruments, Slices()])
    try:
        yield
    finally:
        context.override_instruments(instruments)


def drop_unused_slices(module: Any) -> int:
    """Drop the unused slices of all functions of a module, in place. Returns how many there were."""
    from tvm import tirx

    count = 0
    for symbol, function in list(module.functions_items()):
        if isinstance(function, tirx.PrimFunc) and (unused := _unused_slices(function.body)):
            module[symbol] = function.with_body(_without(function.body, unused))
            count += len(unused)
    return count


def _unused_slices(body: Any) -> set[Any]:
    """The variables that are bound to slices and stand nowhere else."""
    from tvm import tirx

    slices: set[Any] = set()
    used: set[Any] = set()

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Var):
            used.add(node)
        elif isinstance(node, tirx.Bind) and _is_slice(node.value):
            slices.add(node.var)

    tirx.stmt_functor.post_order_visit(body, visit)
    return slices - used


def _is_slice(value: Any) -> bool:
    """Whether a value is a vector load along two dimensions or more, which `Simplify` drops in any case."""
    from tvm import tirx

    if not isinstance(value, tirx.BufferLoad):
        return False
    ramps = [index for index in value.indices if isinstance(index, tirx.Ramp)]
    return len(ramps) > 1 and all(isinstance(one.stride, tirx.IntImm) and one.stride for one in ramps)


def _without(body: Any, variables: set[Any]) -> Any:
    """`body` without the bindings of these variables."""
    from tvm import tirx

    def drop(node: Any) -> Any:
        return tirx.Evaluate(tirx.const(0, "int32")) if node.var in variables else None

    return tirx.stmt_functor.ir_transform(body, None, drop, ["tirx.Bind"])
