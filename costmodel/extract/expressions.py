"""Evaluates TVM index expressions over many threads, loop iterations and blocks at once.

Expressions are evaluated over arrays of shape (scenarios, lanes). A scenario fixes a block, a warp and a
value for each loop variable; its lanes are the threads of the warp. The addresses of the lanes in one
scenario show coalescing and bank conflicts. The values of a condition over the scenarios show how often it
holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tables import Contents

EXTERN = ("tirx.call_extern", "tirx.call_pure_extern")
Values = NDArray[Any]
# keys of bindings that are no variables: buffers with known contents (a mapping), the lane of a vector, and a
# function that computes calls: `(expression, bindings) -> value`
FILLED, LANE, CALLS = -2, -3, -4
Bindings = Mapping[int, Any]  # identity of a variable -> its value: a number, or an array (scenarios, lanes)


class UnevaluableError(Exception):
    """The expression depends on data: a loaded value or an opaque call."""


class Computed(ABC):
    """An expression that TVM has no node for."""

    @abstractmethod
    def variables(self) -> set[int]:
        """Identities of the variables and buffers that it derives from."""

    @abstractmethod
    def value(self, bindings: Bindings) -> Any:
        """Its value. Raises `UnevaluableError`."""


@dataclass(frozen=True)
class Alias(Computed):
    """Another variable for the same quantity, such as a second name of a thread index."""

    variable: int

    def variables(self) -> set[int]:
        return {self.variable}

    def value(self, bindings: Bindings) -> Any:
        return bindings[self.variable]


class FilledContents(ABC):
    """The contents of a buffer that the kernel fills with known values."""

    @abstractmethod
    def roots(self) -> frozenset[int]:
        """The block and loop variables that the contents follow from."""

    @abstractmethod
    def load(self, buffer: int, index: Any, bindings: Bindings) -> Any:
        """The elements at `index`. Raises `UnevaluableError`."""


class ArbitraryData(dict[int, Any]):
    """Bindings under which loaded data has arbitrary values, so that an address of data can be evaluated.

    A loaded value is a number that follows from its position in the buffer and from the variables that the
    contents of the buffer derive from. So equal places have equal values, and different places have
    different ones, but by rare chance.
    """

    def __init__(
        self,
        known: Bindings,
        derived: Mapping[int, Any],
        roots: Mapping[int, frozenset[int]],
        contents: Mapping[int, frozenset[int]],
    ) -> None:
        """Bindings with a value for every variable and load.

        Args:
            known: values of variables.
            derived: expressions of the variables that data was assigned to.
            roots: the variables that other unknown variables derive from.
            contents: the same for the contents of buffers.
        """
        super().__init__(known)
        self.derived, self.roots, self.contents = derived, roots, contents

    def extended(self, variable: int, value: Any) -> ArbitraryData:
        """The same bindings, and `variable` bound to `value`."""
        return ArbitraryData({**self, variable: value}, self.derived, self.roots, self.contents)

    def unknown(self, variable: int) -> Any:
        """The value of a variable that derives from data."""
        expression = self.derived.get(variable)
        if expression is not None:
            # an assignment may refer to the earlier value of its own variable
            rest = {v: e for v, e in self.derived.items() if v != variable}
            return evaluate(expression, ArbitraryData(self, rest, self.roots, self.contents))
        return _arbitrary(self._values(self.roots.get(variable, frozenset())))

    def loaded(self, buffer: int, indices: Iterable[Any]) -> Any:
        """The value at `indices` of a buffer."""
        if buffer in self.roots or buffer in self.derived:
            return self.unknown(buffer)
        return _arbitrary([*indices, *self._values(self.contents.get(buffer, frozenset()))])

    def _values(self, variables: frozenset[int]) -> list[Any]:
        # in the order of the bindings: identities differ from run to run
        return [value for variable, value in self.items() if variable in variables]


def _arbitrary(values: Iterable[Any]) -> Any:
    """A whole number below 2^31 for each combination of values, so that addresses are exact in a float.

    Different single values below 2^31 have different numbers, since each step can be inverted.
    """
    mixed: Any = np.int64(0)
    for value in values:
        mixed = (mixed * _MIXER + np.asarray(value).astype(np.int64)) & _MOST_ARBITRARY
        for _ in range(2):
            mixed = (mixed ^ (mixed >> 15)) * _MIXER & _MOST_ARBITRARY
    return mixed ^ (mixed >> 16)  # products of numbers in a row alone would spread evenly over banks


_MOST_ARBITRARY = 2**31 - 1
_MIXER = 0x2C1B3C6D  # odd, so multiplication modulo 2^31 loses nothing


_NOTHING: Mapping[int, FilledContents] = {}


def identity(variable: Any) -> int:
    """A key for a TVM variable. Equal keys mean the same object, not only the same name."""
    return hash(variable)


def evaluate(expression: Any, bindings: Bindings) -> Any:
    """Evaluate an index expression. Vector expressions (`Ramp`, `Broadcast`) evaluate to their first lane.

    Args:
        expression: a TIR expression.
        bindings: values of its variables, by `identity`.

    Returns:
        A number if no bound variable is an array, else an array of shape (scenarios, lanes).

    Raises:
        UnevaluableError: the expression depends on data or on an unbound variable.
    """
    if isinstance(expression, Computed):
        return expression.value(bindings)
    rule = _RULES.get(type(expression).__name__)
    if rule is None:
        raise UnevaluableError(type(expression).__name__)
    return rule(expression, bindings)


def wrapped(value: Any, dtype: str) -> Any:
    """A value as a variable of a type of 32 or 64 bits holds it: whole numbers wrap around."""
    bits = _WRAPPED.get(dtype)
    if bits is None or np.asarray(value).dtype.kind not in "iuO":
        return value
    least = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    if isinstance(value, int):
        return (value - least) % (1 << bits) + least
    return np.asarray(value).astype(dtype).astype(np.int64)


_WRAPPED = {"int32": 32, "uint32": 32, "int64": 64}


def constant(expression: Any) -> int | None:
    """The integer value of `expression`, or None if it is not constant.

    Expressions of constants are evaluated, since they appear where sizes take the place of dynamic
    dimensions.
    """
    kind = type(expression).__name__
    if kind == "IntImm":
        return int(expression.value)
    if kind not in _COMPOSED:
        return None
    try:
        return int(evaluate(expression, {}))
    except UnevaluableError:
        return None


_COMPOSED = frozenset({"Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Min", "Max", "Cast"})


def call_name(expression: Any) -> str:
    """The name of the intrinsic that an expression calls; "" if it is no call of one."""
    return str(getattr(getattr(expression, "op", None), "name", ""))


def function_of(call: Any) -> str:
    """The name of what an expression calls, without namespaces and underscores: of a device function, too."""
    name = call_name(call)
    if name in EXTERN:
        name = str(call.args[0].value).partition("<")[0].rpartition("::")[2]
    return name.rpartition(".")[2].strip("_")


def is_choice(value: Any) -> bool:
    """Whether a value is a choice between two, of which one alone is computed."""
    return call_name(value) == "tirx.if_then_else"


def conjuncts(condition: Any) -> list[Any]:
    """The conditions that must all hold."""
    if type(condition).__name__ == "And":
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [condition]


def is_shared(buffer: Any) -> bool:
    """Whether a buffer lies in shared memory."""
    return str(buffer.scope()).startswith("shared")


def is_power_of_two(expression: Any) -> bool:
    """Whether an expression is a constant power of two."""
    number = constant(expression) or 0
    return number > 0 and number & (number - 1) == 0


def variables(expression: Any) -> set[int]:
    """Identities of all variables in `expression` and of all buffers that it loads from."""
    from tvm.tirx.stmt_functor import post_order_visit

    if isinstance(expression, Computed):
        return expression.variables()
    found: set[int] = set()

    def visit(node: Any) -> None:
        kind = type(node).__name__
        if kind == "Var":
            found.add(hash(node))
        elif kind == "BufferLoad":
            found.add(hash(node.buffer.data))

    post_order_visit(expression, visit)
    return found


def loads(expression: Any) -> list[Any]:
    """The loads in `expression`. A load in the index of another load comes first."""
    from tvm.tirx.stmt_functor import post_order_visit

    found: list[Any] = []
    post_order_visit(
        expression, lambda node: found.append(node) if type(node).__name__ == "BufferLoad" else None
    )
    return found


def _variable(expression: Any, bindings: Bindings) -> Any:
    try:
        return bindings[hash(expression)]
    except KeyError:
        if isinstance(bindings, ArbitraryData):
            return bindings.unknown(hash(expression))
        raise UnevaluableError(expression.name) from None


def is_single(buffer: Any) -> bool:
    """Whether `buffer` has one element."""
    return all(constant(extent) == 1 for extent in buffer.shape)


def is_scalar(buffer: Any) -> bool:
    """Whether `buffer` is one integer in the registers of each thread, and so acts as a variable."""
    is_own = str(buffer.scope()) in ("local", "local.var")
    return is_own and str(buffer.dtype) in _WHOLE_NUMBERS and is_single(buffer)


_WHOLE_NUMBERS = ("int32", "uint32", "int64", "uint64", "bool")


def _load(expression: Any, bindings: Bindings) -> Any:
    """The value of a local scalar, or of a tensor whose contents are known. Other loads depend on data."""
    try:
        buffer = hash(expression.buffer.data)
        filled = bindings.get(FILLED, _NOTHING).get(buffer)
        if filled is not None and buffer not in bindings:
            return filled.load(buffer, evaluate(expression.indices[0], bindings), bindings)
        known = bindings[buffer]
        return known.at(evaluate(expression.indices[0], bindings)) if isinstance(known, Contents) else known
    except KeyError:
        if isinstance(bindings, ArbitraryData):
            indices = [evaluate(index, bindings) for index in expression.indices]
            value = bindings.loaded(hash(expression.buffer.data), indices)
            return _within_type(value, str(expression.dtype))
        raise UnevaluableError("data") from None


# Values of narrow integer types, without negative ones: an index has none.
_NARROW = {"uint8": 256, "int8": 128, "bool": 2}


def _within_type(value: Any, dtype: str) -> Any:
    """An arbitrary value as one of its type: a byte chooses among few places of a table."""
    values = next((values for name, values in _NARROW.items() if dtype.startswith(name)), None)
    return value if values is None else np.asarray(value) % values


def _let(expression: Any, bindings: Bindings) -> Any:
    variable, value = hash(expression.var), evaluate(expression.value, bindings)
    if isinstance(bindings, ArbitraryData):
        return evaluate(expression.body, bindings.extended(variable, value))
    return evaluate(expression.body, {**bindings, variable: value})


def _binary(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Bindings], Any]:
    def rule(expression: Any, bindings: Bindings) -> Any:
        try:
            return operation(evaluate(expression.a, bindings), evaluate(expression.b, bindings))
        except ZeroDivisionError:
            raise UnevaluableError("a division by zero") from None

    return rule


def _cast(expression: Any, bindings: Bindings) -> Any:
    value = evaluate(expression.value, bindings)
    # NumPy must add booleans as integers after the cast
    return np.asarray(value).astype(np.int64) if str(expression.dtype).startswith(("int", "uint")) else value


def _division(expression: Any, bindings: Bindings) -> Any:
    """A division, which is truncated for whole numbers."""
    quotient = _QUOTIENT(expression, bindings)
    if "float" in str(expression.dtype):
        return quotient
    return np.trunc(quotient).astype(np.int64) if hasattr(quotient, "dtype") else int(quotient)


def _choice(condition: Any, yes: Any, no: Any, bindings: Bindings) -> Any:
    if isinstance(bindings, ArbitraryData):
        try:
            held = evaluate(condition, dict(bindings))
        except UnevaluableError:  # a bounds check of data: indices are taken as valid
            return evaluate(yes, bindings)
    else:
        held = evaluate(condition, bindings)
    return np.where(held, evaluate(yes, bindings), evaluate(no, bindings))


def _call(expression: Any, bindings: Bindings) -> Any:
    name = call_name(expression)
    arguments = expression.args
    if is_choice(expression):
        condition, yes, no = arguments
        return _choice(condition, yes, no, bindings)
    if name == "tirx.likely":
        return evaluate(arguments[0], bindings)
    if name in _INTEGER_CALLS:
        try:
            numbers = [np.asarray(evaluate(part, bindings), dtype=np.int64) for part in arguments]
        except OverflowError:
            raise UnevaluableError("a number of more than 64 bits") from None
        return _INTEGER_CALLS[name](*numbers)
    if isinstance(bindings, ArbitraryData) and function_of(expression) in _SAME_FOR_A_WARP:
        value = np.asarray(evaluate(arguments[-1], bindings))
        return value[:, :1] if value.ndim > 1 else value  # that of one lane stands for what all get
    if CALLS in bindings:
        return bindings[CALLS](expression, bindings)
    raise UnevaluableError(name)


# functions whose result all lanes of a warp have; the last argument is what a lane says
_SAME_FOR_A_WARP = frozenset(
    [
        *(f"warp_reduce_{operation}" for operation in ("sum", "max", "min", "bitand", "bitor")),
        *("any_sync", "all_sync", "ballot_sync", "syncthreads_and", "syncthreads_or", "syncthreads_count"),
    ]
)
_INTEGER_CALLS: Mapping[str, Callable[..., Any]] = {
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.bitwise_xor": np.bitwise_xor,
    "tirx.bitwise_not": np.bitwise_not,
    "tirx.shift_left": np.left_shift,
    "tirx.shift_right": np.right_shift,
}

_QUOTIENT = _binary(lambda a, b: a / b)

_RULES: Mapping[str, Callable[[Any, Bindings], Any]] = {
    "IntImm": lambda e, _: int(e.value),
    "FloatImm": lambda e, _: float(e.value),
    "Var": _variable,
    "BufferLoad": _load,
    "Add": _binary(lambda a, b: a + b),
    "Sub": _binary(lambda a, b: a - b),
    "Mul": _binary(lambda a, b: a * b),
    "FloorDiv": _binary(lambda a, b: a // b),
    "FloorMod": _binary(lambda a, b: a % b),
    "Div": _division,
    "Mod": _binary(lambda a, b: np.fmod(a, b)),
    "Min": _binary(np.minimum),
    "Max": _binary(np.maximum),
    "LT": _binary(lambda a, b: a < b),
    "LE": _binary(lambda a, b: a <= b),
    "GT": _binary(lambda a, b: a > b),
    "GE": _binary(lambda a, b: a >= b),
    "EQ": _binary(lambda a, b: a == b),
    "NE": _binary(lambda a, b: a != b),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Not": lambda e, b: np.logical_not(evaluate(e.a, b)),
    "Select": lambda e, b: _choice(e.condition, e.true_value, e.false_value, b),
    "Cast": _cast,
    "Ramp": lambda e, b: evaluate(e.base, b) + evaluate(e.stride, b) * b.get(LANE, 0),
    "Broadcast": lambda e, b: evaluate(e.value, b),
    "Let": _let,
    "Call": _call,
}
