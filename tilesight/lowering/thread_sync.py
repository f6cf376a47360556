"""TileLang's pass `ThreadSync` without its slowest step, in kernels where that step can only count a range.

The pass plans the barriers between accesses to shared memory. Where a barrier lies in a branch on the thread
index, it counts the threads of the branch: an SMT solver lists them one by one, which takes two thirds of the
lowering of a warp-specialized matmul. If each condition on thread indices compares `threadIdx.x` with a whole
number of warps, these threads are a range, and the pass knows its ends from its bounds as well. It takes the
bounds if the list is empty, and the list holds no more threads than the extent of `threadIdx.x`. So this
extent is 0 while the pass runs, and what would follow from it is put right afterwards: the IR is the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

PASS = "tl.ThreadSync"
_SYNC = "tirx.tvm_storage_sync"
_PLACES = tuple(
    f"tirx.{kind}" for kind in ("AttrStmt", "IfThenElse", "While", "AssertStmt", "For", "Bind", "Evaluate")
)


@contextlib.contextmanager
def shortened_thread_sync() -> Iterator[None]:
    """Passes that run in this block, in this thread, do so with the shortcut."""
    from tvm.ir.instrument import pass_instrument
    from tvm.ir.transform import PassContext

    @pass_instrument
    class Shortcut:  # the module that TVM shows it before a pass is the one that the pass takes
        def __init__(self) -> None:
            self.shortcut = ThreadSyncShortcut()

        def run_before_pass(self, module: Any, info: Any) -> None:
            if info.name == PASS:
                self.shortcut.before(module)

        def run_after_pass(self, module: Any, info: Any) -> None:
            if info.name == PASS:
                self.shortcut.after(module)

    context = PassContext.current()
    instruments = list(context.instruments)
    context.override_instruments([*instruments, Shortcut()])
    try:
        yield
    finally:
        context.override_instruments(instruments)


class ThreadSyncShortcut:
    """Changes a module in place before the pass, and again after it."""

    def __init__(self) -> None:
        self._threads: dict[str, Any] = {}  # threadIdx.x as it was, by the name of the kernel

    def before(self, module: Any) -> None:
        """Set the extent of threadIdx.x to 0 in the kernels where the pass counts nothing but ranges."""
        self._threads = {}
        for symbol, function in list(module.functions_items()):
            threads = _threads_in_ranges(function)
            if threads is not None:
                self._threads[str(symbol.name_hint)] = threads
                module[symbol] = function.with_body(_replaced(function.body, threads, _emptied(threads)))

    def after(self, module: Any) -> None:
        """Put the extents back, and write barriers of all threads as the pass does."""
        for symbol, function in list(module.functions_items()):
            threads = self._threads.pop(str(symbol.name_hint), None)
            if threads is not None:
                body = _without_full_barriers(function.body, int(threads.dom.extent))
                module[symbol] = function.with_body(_replaced(body, threads, threads))


def _threads_in_ranges(function: Any) -> Any:
    """The iteration variable of threadIdx.x, if each branch on threads divides them between two warps.

    None for other functions, and for those without a branch, where the pass counts nothing.
    """
    from tvm import tirx

    if not isinstance(function, tirx.PrimFunc):
        return None
    found = _Constraints(function.body)
    threads = found.threads.pop("threadIdx.x", None)
    if threads is None or not found.branches or found.has_numbered_barriers or found.has_more_threads:
        return None
    others = [thread for tag, thread in found.threads.items() if tag.startswith("threadIdx")]
    if any(_number(thread.dom.extent) != 1 for thread in others):
        return None
    warp = int(function.attrs["target"].attrs.get("thread_warp_size", 32))
    extent = _number(threads.dom.extent)
    if not extent or extent % warp or _number(threads.dom.min) != 0:
        return None
    derived = {threads.var, *(thread.var for thread in others)}
    for variable, value in found.definitions:  # in the order of the program: each before its uses
        if _mentions(value, derived):
            derived.add(variable)
    if any(_mentions(other, derived) for other in found.others):
        return None
    of_threads = [condition for condition in found.branches if _mentions(condition, derived)]
    return threads if all(_splits_at_warp(c, threads.var, warp) for c in of_threads) else None


class _Constraints:
    """What the pass may know of thread indices inside a kernel."""

    def __init__(self, body: Any) -> None:
        from tvm import tirx

        self.threads: dict[str, Any] = {}  # iteration variables of the launch, by tag
        self.branches: list[Any] = []  # conditions
        self.others: list[Any] = []  # conditions of other statements, and ends of loops
        self.definitions: list[tuple[Any, Any]] = []  # (variable, value)
        self.has_numbered_barriers = False
        self.has_more_threads = False  # an index that is defined twice
        tirx.stmt_functor.ir_transform(body, None, self._visit, list(_PLACES))

    def _visit(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "AttrStmt":
            if node.attr_key == "thread_extent":
                known = self.threads.setdefault(str(node.node.thread_tag), node.node)
                self.has_more_threads |= not known.same_as(node.node)
            elif node.attr_key == "tl.assume":
                self.others.append(node.node)
        elif kind == "IfThenElse":
            self.branches.append(node.condition)
        elif kind in ("While", "AssertStmt"):
            self.others.append(node.condition)
        elif kind == "For":
            self.others += [node.min, node.extent]
        elif kind == "Bind":
            self.definitions.append((node.var, node.value))
        else:
            self.has_numbered_barriers |= len(_barrier(node)) > 1


def _emptied(threads: Any) -> Any:
    """`threads` with the extent 0."""
    from tvm import ir, tirx

    nothing = ir.Range.from_min_extent(threads.dom.min, tirx.const(0, threads.dom.extent.dtype))
    return tirx.IterVar(nothing, threads.var, threads.iter_type, threads.thread_tag)


def _replaced(body: Any, threads: Any, replacement: Any) -> Any:
    """`body` with another iteration variable in the place of that of `threads`."""
    from tvm import tirx

    def replace(node: Any) -> Any:
        if node.attr_key != "thread_extent" or not node.node.var.same_as(threads.var):
            return None
        return tirx.AttrStmt(replacement, node.attr_key, node.value, node.body)

    return tirx.stmt_functor.ir_transform(body, None, replace, ["tirx.AttrStmt"])


def _without_full_barriers(body: Any, all_threads: int) -> Any:
    """`body` with plain barriers where numbered ones have all threads, and other numbers without a gap.

    The pass numbers the barriers of each group of threads as it meets them, but not those of all threads.
    """
    from tvm import tirx

    numbers: dict[int, int] = {}  # threads by number

    def look(node: Any) -> None:
        if len(arguments := _barrier(node)) > 1:
            numbers[int(arguments[1])] = int(arguments[2])

    tirx.stmt_functor.ir_transform(body, None, look, ["tirx.Evaluate"])
    full = [number for number, threads in numbers.items() if threads == all_threads]
    if not full:
        return body

    def replace(node: Any) -> Any:
        arguments = _barrier(node)
        if len(arguments) < 2:
            return None
        scope, number, threads = arguments
        if int(threads) == all_threads:
            kept = [scope]
        else:
            moved = int(number) - sum(other < int(number) for other in full)
            kept = [scope, tirx.IntImm(number.dtype, moved), threads]
        return tirx.Evaluate(tirx.Call(node.value.dtype, node.value.op, kept))

    return tirx.stmt_functor.ir_transform(body, None, replace, ["tirx.Evaluate"])


def _barrier(node: Any) -> list[Any]:
    """Arguments of a barrier of the block; [] for other statements."""
    from tvm import tirx

    call = node.value
    if not isinstance(call, tirx.Call) or getattr(call.op, "name", "") != _SYNC:
        return []
    return list(call.args)


def _mentions(expression: Any, variables: set[Any]) -> bool:
    from tvm import tirx

    found = False

    def look(node: Any) -> None:
        nonlocal found
        found = found or (isinstance(node, tirx.Var) and node in variables)

    tirx.stmt_functor.post_order_visit(expression, look)
    return found


def _splits_at_warp(condition: Any, thread: Any, warp: int) -> bool:
    """Whether a condition compares the thread index itself with a whole number of warps."""
    from tvm import tirx

    # the bound is the first thread of the warp that the condition cuts before
    match condition:
        case tirx.LT() | tirx.GE():
            index, bound, beyond = condition.a, condition.b, 0
        case tirx.LE() | tirx.GT():
            index, bound, beyond = condition.a, condition.b, 1
        case _:
            return False
    if isinstance(bound, tirx.Var):
        index, bound, beyond = bound, index, 1 - beyond
    number = _number(bound)
    return (
        isinstance(index, tirx.Var)
        and index.same_as(thread)
        and number is not None
        and ((number + beyond) % warp == 0)
    )


def _number(expression: Any) -> int | None:
    from tvm import tirx

    return int(expression) if isinstance(expression, tirx.IntImm) else None
