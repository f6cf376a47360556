"""Recognises branches that elect one thread, that a block votes on, or that give warps separate programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .expressions import UnevaluableError, call_name, constant, function_of, is_scalar, variables
from .loops import BARRIER, BREAKS, RETURN, contains, specialises, stored_buffers
from .scope import Scope

VOTES = ("syncthreads_and", "syncthreads_or", "syncthreads_count")  # barriers of a block
# calls that end a thread, a loop, or an iteration of it
LEAVING = (RETURN, *BREAKS, "tirx.continue_loop")


def elected_group(condition: Any) -> int | None:
    """The group size of a `tl_shuffle_elect(n)` condition; None for any other condition."""
    if call_name(condition) == "tl.tl_shuffle_elect":
        return constant(condition.args[0]) or 0
    return None


def specialised_branches(node: Any, scope: Scope) -> list[tuple[Any, int, int]] | None:
    """(body, first thread, threads) of each branch of a warp-specialising `if`.

    None for any other `if`.
    """
    used = scope.depends_on(node.condition)
    if not used or not used <= scope.launch.thread_variables or scope.elected or not specialises(node):
        return None
    every = scope.first_thread + np.arange(scope.threads)
    try:
        holds = scope.over_block(node.condition).astype(bool)
    except UnevaluableError:
        return None
    here = np.ones(scope.threads, dtype=bool) if scope.held is None else scope.held
    branches = [(node.then_case, every[holds & here])]
    if node.else_case is not None:
        branches.append((node.else_case, every[~holds & here]))
    ranges = []
    for body, threads in branches:
        # whole warps with consecutive indices, but not all warps
        whole = (
            len(threads)
            and not len(threads) % scope.launch.warp_threads
            and threads[-1] - threads[0] + 1 == len(threads)
        )
        if not whole or len(threads) == scope.threads:
            return None
        ranges.append((body, int(threads[0]), len(threads)))
    return ranges


def leaves(statement: Any) -> bool:
    """Whether a statement is an `if` without `else` that ends the thread, the loop or the iteration."""
    if type(statement).__name__ != "IfThenElse" or statement.else_case is not None:
        return False
    last = statement.then_case
    while type(last).__name__ in ("SeqStmt", "AttrStmt"):
        last = last.seq[-1] if type(last).__name__ == "SeqStmt" else last.body
    return call_name(getattr(last, "value", None)) in LEAVING


def is_vote(condition: Any, values: Mapping[int, Any]) -> bool:
    """Whether the threads of a block vote on a condition about data; `values` are those of variables."""

    def votes(part: Any, _kind: str) -> bool:
        return function_of(part) in VOTES

    stated = [values[variable] for variable in variables(condition) & values.keys()]
    return any(contains(value, votes) for value in (condition, *stated))


def condition_of_work(body: Any, *, is_kept: bool) -> Any | None:
    """The condition under which an iteration of a loop works; None if it always does.

    Without it, an iteration computes scalars and passes its barriers. So it does in kernels that go over the
    blocks of a mask. In a loop without barriers the compiler may make predicates of a branch.

    Args:
        body: what an iteration executes.
        is_kept: whether it keeps the branch.
    """
    from tvm.ir import structural_equal

    parts = list(body.seq) if type(body).__name__ == "SeqStmt" else []
    branches = [part for part in parts if type(part).__name__ == "IfThenElse"]
    others = [part for part in parts if type(part).__name__ != "IfThenElse"]
    if not branches or not (is_kept or any(map(_is_barrier, others))) or not all(map(_is_idle, others)):
        return None
    if any(branch.else_case is not None for branch in branches):
        return None
    first, *rest = [branch.condition for branch in branches]
    before = parts[: parts.index(branches[0])]
    scalars = frozenset().union(*map(stored_buffers, before))
    if any(stored_buffers(part) & (scalars | variables(first)) for part in parts[len(before) :]):
        return None  # the next condition may be another one
    if any(variables(part.value) & scalars for part in before if type(part).__name__ == "BufferStore"):
        return None  # it counts, so its value is that of one place alone
    return first if all(structural_equal(first, other) for other in rest) else None


def _is_barrier(statement: Any) -> bool:
    return type(statement).__name__ == "Evaluate" and call_name(statement.value).endswith(BARRIER)


def _is_idle(statement: Any) -> bool:
    """Whether a statement declares buffers, computes a scalar or is a barrier."""
    kind = type(statement).__name__
    if kind == "BufferStore":
        return bool(is_scalar(statement.buffer))
    return kind in ("AllocBuffer", "DeclBuffer", "Bind") or _is_barrier(statement)


def otherwise(branch: Any, rest: Sequence[Any]) -> Any:
    """A branch for which `leaves` is true, with the statements after it as its alternative."""
    from tvm import tirx

    return tirx.IfThenElse(
        branch.condition, branch.then_case, rest[0] if len(rest) == 1 else tirx.SeqStmt(list(rest))
    )
