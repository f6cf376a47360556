"""Counts the loads and the arithmetic of value expressions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import calls, shared_values
from .accesses import lane_access, repeats_of_load
from .counting import CountingContext, count_function, count_math
from .element_types import element_type
from .expressions import (
    call_name,
    constant,
    identity,
    is_choice,
    is_scalar,
    is_shared,
    is_single,
    loads,
    variables,
)
from .index_arithmetic import DIVISION_INSTRUCTIONS, count_divisions
from .kept_branches import RUN_TIME_DIVISION_INSTRUCTIONS, calls_division, long_quotients
from .loops import calls_routine, contains, visit
from .mathematics import DOUBLE_BITS, MATH, math_function
from .scope import Scope

# Operations of a conversion to and from a float format for which the target has no instruction. Read off the
# machine code of CUDA's `__nv_cvt_float2_to_fp4x2` and `__nv_cvt_fp4x2_to_halfraw2` (nvcc 13.0, sm_90a), with
# both sides of their branches, which the lanes of a warp take together.
SOFTWARE_NARROWING, SOFTWARE_WIDENING = 48, 22

# Loads of spilled values that a thread has in flight: the registers that they need become free one after
# another. Read off the machine code of two scans and a norm by others (nvcc 13.0, 1,112, 2,738 and 807 such
# loads): a wait for each 3.05, 3.24 and 3.7 loads.
SPILLED_IN_FLIGHT = 3.0
WORD_BYTES = 4

WORD_BITS = 32  # of the float type whose exact functions branch to routines

# Expressions of floats that compare or select; fewer lanes do that than multiply and add.
_SELECTIONS = frozenset(("Max", "Min", "EQ", "NE", "LT", "LE", "GT", "GE", "Select"))
_LEAVES = (
    "IntImm",
    "FloatImm",
    "StringImm",
    "Var",
    "Ramp",
)  # a ramp is an address; `count_address` counts its loads


def count_value(context: CountingContext, node: Any, scope: Scope) -> None:
    """Count the loads and the arithmetic of an expression whose value is stored, passed or tested."""
    kind = type(node).__name__
    if kind in _LEAVES or context.is_repeated(node, scope):
        return
    if kind == "BufferLoad":
        _load(context, node, scope)
    elif kind == "Broadcast":
        count_value(context, node.value, scope)
    elif kind == "Cast":
        _cast(context, node, scope)
    elif kind == "Call":
        _call(context, node, scope)
    elif kind == "Select":
        for part in (node.condition, node.true_value, node.false_value):
            count_value(context, part, scope)
        _arithmetic(context, node, scope)
    elif _is_index(node):
        # the compiler hoists and strength-reduces arithmetic on indices: comparisons and divisions remain
        count_divisions(context, node, scope)
        for comparison in _comparisons(node):
            if not shared_values.is_constant(comparison, scope):
                context.phase.counts["integer_ops"] += shared_values.new_lanes(context, comparison, scope)
    elif hasattr(node, "a") and hasattr(node, "b"):
        for operand in (node.a, node.b):
            count_value(context, _predicate(operand) if kind == "Add" else operand, scope)
        # a product that feeds a sum is one multiply-add
        fused = kind in ("Add", "Sub") and "Mul" in (type(node.a).__name__, type(node.b).__name__)
        if not (fused and element_type(str(node.dtype)).kind == "float"):
            _arithmetic(context, node, scope, "divide" if kind == "Div" else None)
    elif kind == "Not":
        count_value(context, node.a, scope)
    elif kind == "Let":
        count_value(context, node.value, scope)
        count_value(context, node.body, scope.with_binding(identity(node.var), node.value))
    elif kind == "Shuffle":
        for part in node.vectors:
            count_value(context, part, scope)
    else:
        context.count_unknown(f"expression {kind}", scope)


def _arithmetic(context: CountingContext, node: Any, scope: Scope, function: str | None = None) -> None:
    dtype = element_type(str(node.dtype))
    operands = element_type(str(node.a.dtype)) if hasattr(node, "a") else dtype
    lanes = scope.issued_lanes * max(dtype.lanes, operands.lanes)
    if operands.kind == "float" and function is not None:
        if not _is_known_quotient(context, node):
            share = _new_share(context, node, scope)
            count_function(context, function, lanes * share, operands.bits)
            _count_routine(context, node, scope, share)
    elif operands.kind == "float":
        if _is_of_indices(node, scope):
            lanes = _lanes_of_indices(context, node, scope) * max(dtype.lanes, operands.lanes)
        # two 16-bit elements of a vector share an instruction
        lanes *= 0.5 if operands.bits == 16 and operands.lanes > 1 else 1
        context.phase.counts["vector_ops"] += lanes
        if type(node).__name__ in _SELECTIONS or operands.bits == DOUBLE_BITS:
            context.phase.counts["selections"] += lanes
    elif operands.kind in ("int", "bool"):
        context.phase.counts["integer_ops"] += lanes * (8 if function == "divide" else 1)


def _new_share(context: CountingContext, function: Any, scope: Scope) -> float:
    """Share of the lanes for which no earlier statement or copy of it computed a function of registers.

    Copies of an unrolled loop and iterations of other loops share a function of what none of them changes,
    such as the inverse deviation of a row by which all its elements are multiplied. A branch on what they
    change keeps its functions, but for exact divisions of single numbers. Read off the machine code of 16
    kernels (nvcc 13.0), and of a convolution by others with the divisions of array elements.
    """
    if not all(context.memory.is_in_registers(load.buffer) for load in loads(function)):
        return 1.0
    stays = (
        context.fast_math
        or type(function).__name__ != "Div"
        or not all(is_single(load.buffer) for load in loads(function))
    )
    new = shared_values.new_lanes(context, function, scope, in_branch=stays) / scope.issued_lanes
    return new / shared_values.iterations(function, scope)


def _count_routine(context: CountingContext, node: Any, scope: Scope, share: float) -> None:
    """Count an exact function that branches to a routine, and the special functions that it waits for.

    Source: machine code and times of such functions (experiments/exact_functions).
    """
    if context.fast_math or element_type(str(node.dtype)).bits != WORD_BITS:
        return
    chain = 1.0

    def look(part: Any, kind: str) -> None:
        nonlocal chain
        if kind == "Call":
            function = math_function(part)
            chain += function is not None and MATH[function].special > 0

    for operand in node.args if hasattr(node, "args") else (node.a, node.b):
        visit(operand, look)
    lanes = max(1.0, element_type(str(node.dtype)).lanes)
    context.phase.counts["routine_calls"] += chain * scope.warp_executions * lanes * share


def _is_known_quotient(context: CountingContext, quotient: Any) -> bool:
    """Whether the same quotient of variables, which do not change, was counted in this phase.

    The compiler computes it once.
    """
    if loads(quotient):
        return False
    key = f"{quotient} of {sorted(variables(quotient))}"
    repeated = key in context.phase.quotients
    context.phase.quotients.add(key)
    return repeated


def _cast(context: CountingContext, node: Any, scope: Scope) -> None:
    count_value(context, node.value, scope)
    into, source = element_type(str(node.dtype)), element_type(str(node.value.dtype))
    in_registers = type(node.value).__name__ == "BufferLoad" and context.memory.is_in_registers(
        node.value.buffer
    )
    computed = scope.issued_lanes
    if in_registers:
        computed = shared_values.new_lanes(context, node, scope)
    elif _is_of_indices(node, scope):
        computed = _lanes_of_indices(context, node, scope)
    lanes = computed * into.lanes / repeats_of_value(context, node.value, scope)
    counts = context.phase.counts
    if (
        into.kind == "float"
        and source.kind == "float"
        and min(into.bits, source.bits) < context.least_float_bits
    ):
        counts["integer_ops"] += lanes * (
            SOFTWARE_NARROWING if into.bits < source.bits else SOFTWARE_WIDENING
        )
    elif into.kind == "float" and source.kind == "float":
        if into.bits == 16:  # one instruction packs two results
            counts["convert_ops"] += lanes / 2
        elif str(node.value.dtype).startswith("bfloat16"):  # a shift or a byte permutation
            counts["integer_ops"] += lanes
        else:
            counts["convert_ops"] += lanes
    elif into.kind != source.kind and "float" in (into.kind, source.kind):
        counts["convert_ops"] += lanes
    elif into.bits != source.bits:
        counts["integer_ops"] += (
            lanes / 2
        )  # loads widen without an instruction; packing instructions narrow two values


def repeats_of_value(context: CountingContext, value: Any, scope: Scope) -> float:
    """Mean number of times that a thread states each element of a value which it loads from memory.

    The compiler converts an element once for each load that it leaves, as in a product of tiles without
    matrix instructions, also if the elements were staged in a local buffer. Read off the machine code of two
    such products (nvcc 13.0): 12 and 33 conversions for 32 multiply-adds, of whose operands each is one.
    """
    if type(value).__name__ == "Broadcast":
        lanes = element_type(str(value.dtype)).lanes
        return lanes * repeats_of_value(context, value.value, scope)
    if type(value).__name__ != "BufferLoad":
        return 1.0
    if is_shared(value.buffer):
        return repeats_of_load(scope, value.indices[0])
    return context.phase.staged.get(identity(value.buffer.data), 1.0)


def count_address(context: CountingContext, index: Any, scope: Scope) -> None:
    """Count the loads in an address, and its divisions."""
    if type(index).__name__ not in ("IntImm", "Var"):
        count_divisions(context, index, scope)
        for load in loads(index):
            if not context.is_repeated(load, scope):
                _one_load(context, load, scope)


def _load(context: CountingContext, node: Any, scope: Scope) -> None:
    count_address(context, node.indices[0], scope)
    _one_load(context, node, scope)


def _one_load(context: CountingContext, node: Any, scope: Scope) -> None:
    context.mark_loaded(node.buffer, node.indices[0])
    site = context.memory.site(node.buffer, node.indices[0], element_type(str(node.dtype)).lanes)
    if site is not None:
        load = lane_access(scope, site, write=False, mechanism="ld")
        context.phase.add_access(load, scope, site)
        if identity(node.buffer.data) in context.memory.spilled:
            words = load.instructions * max(1.0, load.vector_bytes / WORD_BYTES)
            context.phase.counts["local_waits"] += words / SPILLED_IN_FLIGHT
        # an address for each instruction that is left
        context.phase.counts["integer_ops"] += scope.issued_lanes * load.instructions / scope.warp_executions


def _call(context: CountingContext, node: Any, scope: Scope) -> None:
    name = getattr(node.op, "name", str(node.op))
    for argument in node.args:
        if type(argument).__name__ == "Var":
            context.mark_live(argument)
        elif call_name(argument) == "tirx.tvm_access_ptr":
            context.mark_live(argument.args[1])
    if name == "tirx.if_then_else":
        _selection(context, node, scope)
    elif name == "tl.set_max_nreg":
        context.limit_registers(node.args[0])
    elif calls.count_call(context, node, scope):
        return
    else:
        share = _new_share(context, node, scope)
        known = count_math(context, name.rsplit(".", 1)[-1], node, scope, share)
        if known and calls_routine(node, "Call"):
            _count_routine(context, node, scope, share)
        if not known:
            context.count_unknown(name, scope)
        for argument in node.args:
            if type(argument).__name__ not in ("StringImm", "Var"):
                count_value(context, argument, scope)


def _selection(context: CountingContext, node: Any, scope: Scope) -> None:
    from tvm import tirx

    condition, yes, no = node.args
    open_share = shared_values.open_share(condition, scope)
    if open_share < 1.0:
        count_value(context, no, scope.in_share_of_iterations(1.0 - open_share))
        scope = scope.in_share_of_iterations(open_share)
    if not open_share:
        return
    count_value(context, condition, scope)
    dtype = element_type(str(node.dtype))
    together = shared_values.uniform_copies(condition, scope) if _is_index(condition) else 1.0
    if not (_is_index(condition) and shared_values.is_constant(condition, scope)):
        # whole registers are selected, with all their elements
        lanes = scope.issued_lanes / together * max(1.0, dtype.lanes * dtype.bytes / 4)
        context.phase.counts["vector_ops"] += lanes
        context.phase.counts["selections"] += lanes
    if together > 1.0:
        scope = replace(scope, apart=identity(node))
    if _guards_shared(yes) or _guards_shared(no):
        context.phase.counts["shared_branches"] += scope.warp_executions
    for part, branch in (
        (yes, scope.with_choice(condition)),
        (no, scope.with_choice(tirx.Not(condition))),
    ):
        if branch is not None:
            count_value(context, part, branch)
            _count_divided_loads(context, part, branch)


def _predicate(addend: Any) -> Any:
    """The condition of an addend that is an integer or zero; any other addend itself.

    The compiler adds the integer under a predicate, as where a thread counts the larger ones of many numbers.
    """
    if not is_choice(addend) or element_type(str(addend.dtype)).kind != "int":
        return addend
    condition, yes, no = addend.args
    return condition if constant(yes) is not None and constant(no) == 0 else addend


def _count_divided_loads(context: CountingContext, value: Any, scope: Scope) -> None:
    """Count a part of a selection, which the compiler keeps as a branch for the divisions in its address.

    A branch computes its divisions of 64 bits anew. No load is issued before those of the branch before it.
    """
    if not any(context.memory.is_global(load.buffer) for load in loads(value)):
        return
    called = calls_division(value) * RUN_TIME_DIVISION_INSTRUCTIONS
    if instructions := called or long_quotients(value, context.memory.is_global) * DIVISION_INSTRUCTIONS[64]:
        context.phase.counts["load_branches"] += scope.warp_executions
        context.phase.counts["integer_ops"] += scope.issued_lanes * instructions


def _guards_shared(value: Any) -> bool:
    """Whether a part of a selection has a selection of its own of a load from shared memory.

    The compiler makes a predicate of one condition, and a branch of the outer one: each warp waits in it for
    its value before it goes on to the next. Read off the machine code of scans over chunks, whose weights on
    the diagonal add a number from shared memory (nvcc 13.0).
    """

    def selects_shared(part: Any, kind: str) -> bool:
        choices = part.args[1:] if kind == "Call" and is_choice(part) else ()
        return any(is_shared(load.buffer) for choice in choices for load in loads(choice))

    return contains(value, selects_shared)


def count_selected_moves(context: CountingContext, branch: Any, scope: Scope) -> None:
    """Count a selection for each value that a branch only moves between registers.

    The compiler makes selections of a branch that stores to registers alone. An operation whose result is
    stored takes its place in the branch, so it needs no selection.

    Args:
        context: the counting context.
        branch: the statement under the condition.
        scope: the scope of the condition: lanes for which it is false take the selections, too.
    """
    stores = _register_stores(context, branch)
    moves = sum(
        type(store.value).__name__ in (*_LEAVES, "BufferLoad") or _is_index(store.value)
        for store in stores or ()
    )
    context.phase.counts["vector_ops"] += moves * scope.issued_lanes
    context.phase.counts["selections"] += moves * scope.issued_lanes


def is_predicated(context: CountingContext, branch: Any) -> bool:
    """Whether the compiler makes predicates of a branch: one value for a register, also under conditions.

    So it does for one value that goes to shared memory and derives from no load of device memory, such as a
    step of a sum over threads. It keeps a branch around functions, some of which are long code.
    """
    while type(branch).__name__ == "IfThenElse" and branch.else_case is None:
        branch = branch.then_case
    stores = [branch] if _is_shared_step(context, branch) else _register_stores(context, branch) or ()

    def is_function(part: Any, kind: str) -> bool:
        return kind == "Call" and math_function(part) is not None

    return len(stores) == 1 and not contains(stores[0].value, is_function)


def _is_shared_step(context: CountingContext, statement: Any) -> bool:
    """Whether a statement stores a value to shared memory that derives from no load of device memory."""
    if type(statement).__name__ != "BufferStore" or not is_shared(statement.buffer):
        return False
    return not any(context.memory.is_global(load.buffer) for load in loads(statement.value))


def _register_stores(context: CountingContext, statement: Any) -> list[Any] | None:
    """The stores to registers that a statement consists of; None if it has another part."""
    kind = type(statement).__name__
    if kind == "SeqStmt":
        parts = [_register_stores(context, part) for part in statement.seq]
        return None if None in parts else [store for part in parts for store in part or ()]
    is_store = kind == "BufferStore" and context.memory.is_in_registers(statement.buffer)
    return [statement] if is_store else None


def _lanes_of_indices(context: CountingContext, node: Any, scope: Scope) -> float:
    """Lane executions of a value of indices alone; 0 if it is computed before the loop of the phase.

    The compiler computes the coordinates of a pixel once, before the loops that do not change them. Read off
    the machine code of a rasterizer by others (nvcc 13.0).
    """
    if shared_values.iterations(node, scope) > 1:
        return 0.0
    return shared_values.new_lanes(context, node, scope)


def _is_of_indices(node: Any, scope: Scope) -> bool:
    """Whether a value derives from the indices of blocks, threads and loops alone."""
    kind = type(node).__name__
    if kind == "Var":
        return identity(node) in scope.pattern
    if kind == "Cast":
        return _is_of_indices(node.value, scope)
    if hasattr(node, "a") and hasattr(node, "b"):
        return _is_of_indices(node.a, scope) and _is_of_indices(node.b, scope)
    return kind in ("IntImm", "FloatImm")


def _is_index(node: Any) -> bool:
    """Whether an expression is integer or boolean arithmetic on variables and local scalars alone."""
    kind = type(node).__name__
    if kind in ("IntImm", "Var"):
        return True
    if kind == "BufferLoad":
        return is_scalar(node.buffer)
    if kind == "Not":
        return _is_index(node.a)
    if kind == "Cast":
        kinds = {element_type(str(each.dtype)).kind for each in (node, node.value)}
        return kinds == {"int"} and _is_index(node.value)
    if kind in ("And", "Or") or (
        hasattr(node, "a") and hasattr(node, "b") and element_type(str(node.a.dtype)).kind == "int"
    ):
        return _is_index(node.a) and _is_index(node.b)
    return False


def _comparisons(node: Any) -> list[Any]:
    kind = type(node).__name__
    if kind in ("And", "Or"):
        return _comparisons(node.a) + _comparisons(node.b)
    if kind == "Not":
        return _comparisons(node.a)
    if kind == "Cast":
        return _comparisons(node.value)
    return [node] if kind in shared_values.COMPARISONS else []
