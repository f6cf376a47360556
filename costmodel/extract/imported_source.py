"""Counts the work of device functions that a kernel imports as CUDA C++ text (`T.import_source`).

The text is parsed by tree-sitter, which needs no headers and tolerates what it does not know. Loops with
constant bounds are counted in full, branches by their longer side, PTX by its mnemonics. Loops that depend on
data are assumed, and functions of unknown headers and matrix instructions are reported.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from ...problem.run_time_data import function_name
from .source_instructions import (
    CASTS,
    REAL_TYPE,
    Work,
    access_of_ptx,
    work_of_function,
    work_of_operator,
    work_of_ptx,
)
from .source_values import counter_of, nodes, text, trips_of, value

if TYPE_CHECKING:
    from tree_sitter import Node

_UNKNOWN_TRIPS = 8.0  # assumed iterations of a loop whose bounds depend on data
_UNROLLED_AT_MOST = 64  # iterations of a loop in which addresses that follow the counter are constants
_MOST_NESTED = 8  # calls within calls; a recursion ends here
# words that say nothing about the work, which tree-sitter would take for types
_QUALIFIERS = re.compile(
    r"__(?:device|host|global|forceinline|inline|noinline|restrict)__|__inline\b|extern\s+\"C\""
)
_POINTER_CAST = re.compile(r"(?:\(|_cast<)\s*(?:const\s+)?(\w+)\s*(?:const\s*)?\*")
_CAST_BYTES: Mapping[str, float] = {
    **dict.fromkeys(("uint4", "int4", "float4"), 16.0),
    **dict.fromkeys(("uint2", "int2", "float2", "uint64_t", "int64_t", "double"), 8.0),
    **dict.fromkeys(("uint", "int", "unsigned", "uint32_t", "int32_t", "float", "half2", "__half2"), 4.0),
    **dict.fromkeys(("uint16_t", "int16_t", "half", "__half"), 2.0),
    **dict.fromkeys(("uint8_t", "int8_t", "char"), 1.0),
}


@dataclass(frozen=True)
class PointerUse:
    """Accesses of a call through a pointer argument.

    Attributes:
        argument: Its position.
        write: Stores, not loads.
        times: How many.
        bytes: Of one access; 0: those of the pointer's element.
        cluster: In the shared memory of any block of the cluster, at the same place as in the block's own.
    """

    argument: int
    write: bool
    times: float
    bytes: float
    cluster: bool = False


@dataclass(frozen=True)
class FunctionWork:
    """The work of one call of a device function, per thread.

    Attributes:
        counts: Lane operations by the keys of `PhaseCounts.counts`.
        uses: Accesses through pointer arguments.
        assumed: What was assumed of loops whose bounds depend on data.
        unread: What was not counted: functions of unknown headers, matrix instructions, copies.
    """

    counts: Mapping[str, float]
    uses: tuple[PointerUse, ...] = ()
    assumed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def work_of_call(source: str, name: str, constants: tuple[float | None, ...]) -> FunctionWork | None:
    """The work of a call of an imported function.

    Args:
        source: CUDA C++ text that a kernel imports.
        name: Of the function, without template arguments.
        constants: Values of the arguments that are constants, in order; None for others.

    Returns:
        The work; None if the text does not define the function.
    """
    functions = _functions(source)
    if name not in functions:
        return None
    reader = _Reader(functions)
    reader.call(name, constants, 1.0, {i: i for i in range(len(constants))}, 0)
    uses = tuple(
        PointerUse(i, write, n, size, cluster) for (i, write, size, cluster), n in sorted(reader.uses.items())
    )
    return FunctionWork(
        dict(reader.counts), uses, tuple(sorted(reader.assumed)), tuple(sorted(reader.unread))
    )


@lru_cache(maxsize=64)
def _functions(source: str) -> Mapping[str, Node]:
    """The function definitions of a text by name; of overloads, the first."""
    import tree_sitter_cpp
    from tree_sitter import Language, Parser

    tree = Parser(Language(tree_sitter_cpp.language())).parse(_QUALIFIERS.sub(" ", source).encode())
    found: dict[str, Node] = {}
    for node in nodes(tree.root_node):
        declarator = node.child_by_field_name("declarator") if node.type == "function_definition" else None
        while declarator is not None and declarator.type != "function_declarator":
            declarator = declarator.child_by_field_name("declarator")
        if declarator is not None:
            name = text(declarator.child_by_field_name("declarator"))
            found.setdefault(name.rpartition("::")[2], node)
    return found


@dataclass
class _Frame:
    """What is known within a call."""

    known: dict[str, float] = field(default_factory=dict)
    reals: set[str] = field(default_factory=set)  # variables of floating-point numbers
    pointers: dict[str, int] = field(default_factory=dict)  # name -> argument of the outermost call
    depth: int = 0

    def copy(self) -> _Frame:
        return _Frame(dict(self.known), set(self.reals), dict(self.pointers), self.depth)


@dataclass
class _Reader:
    """Adds up the work of a call and of the calls within it.

    Methods that are named after a kind of node of tree-sitter's C++ grammar handle that kind.
    """

    functions: Mapping[str, Node]
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    uses: dict[tuple[int, bool, float, bool], float] = field(default_factory=lambda: defaultdict(float))
    assumed: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)

    def call(
        self,
        name: str,
        constants: Sequence[float | None],
        times: float,
        pointers: Mapping[int, int],
        depth: int,
    ) -> None:
        """Add `times` calls. `pointers`: the outermost argument behind each argument that is a pointer."""
        function, frame = self.functions[name], _Frame(depth=depth)
        lists = [node for node in nodes(function) if node.type == "parameter_list"][:1]
        parameters = [p for one in lists for p in one.named_children if "parameter" in p.type]
        for position, parameter in enumerate(parameters):
            declarator = parameter.child_by_field_name("declarator")
            label = _label(declarator)
            if declarator is not None and declarator.type != "identifier" and position in pointers:
                frame.pointers[label] = pointers[position]
            if REAL_TYPE.search(text(parameter)):
                frame.reals.add(label)
            given = (
                constants[position]
                if position < len(constants)
                else value(parameter.child_by_field_name("default_value"), {})
            )
            if given is not None:
                frame.known[label] = given
        self.visit(function.child_by_field_name("body"), frame, times)

    def visit(self, node: Node | None, frame: _Frame, times: float) -> None:
        """Add the work of a statement or expression that runs `times` times. The compiler folds constants."""
        if node is None or value(node, frame.known) is not None:
            return
        handler = getattr(self, f"_{node.type}", None)
        if handler is not None:
            handler(node, frame, times)
            return
        for child in node.named_children:
            self.visit(child, frame, times)

    def _add(self, work: Work, times: float) -> None:
        for key, count in work.items():
            self.counts[key] += times * count

    # --- statements -----------------------------------------------------------------------------------------

    def _declaration(self, node: Node, frame: _Frame, times: float) -> None:
        is_real = REAL_TYPE.search(text(node).partition("=")[0]) is not None
        for part in node.children_by_field_name("declarator"):
            label, given = _label(part), part.child_by_field_name("value")
            if is_real:
                frame.reals.add(label)
            declared = part.child_by_field_name("declarator")
            is_pointer = declared is not None and declared.type == "pointer_declarator"
            if is_pointer and given is not None and _base(given) in frame.pointers:
                frame.pointers[label] = frame.pointers[_base(given)]  # another view of the argument
            elif (known := value(given, frame.known)) is not None:
                frame.known[label] = known
            else:
                self.visit(given, frame, times)

    def _for_statement(self, node: Node, frame: _Frame, times: float) -> None:
        inner, counter = frame.copy(), counter_of(node)
        self.visit(node.child_by_field_name("initializer"), inner, times)
        trips = trips_of(node, inner.known)
        if trips is None or trips > _UNROLLED_AT_MOST:
            inner.known.pop(counter, None)
        if trips is None:
            trips = _UNKNOWN_TRIPS
            self.assumed.add(f"a loop over {counter or 'data'} was taken for {trips:g} iterations")
            self._add({"integer_ops": 2.0}, times * trips)
        if trips:
            self.visit(node.child_by_field_name("body"), inner, times * trips)

    def _while_statement(self, node: Node, frame: _Frame, times: float) -> None:
        self.assumed.add(f"a while loop was taken for {_UNKNOWN_TRIPS:g} iterations")
        for child in node.named_children:
            self.visit(child, frame, times * _UNKNOWN_TRIPS)

    _do_statement = _while_statement

    def _if_statement(self, node: Node, frame: _Frame, times: float) -> None:
        sides = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
        condition = node.child_by_field_name("condition")
        known = value(condition, frame.known)
        if known is not None:
            self.visit(sides[0] if known else sides[1], frame, times)
            return
        self.visit(condition, frame, times)
        readers = []
        for side in sides:
            readers.append(_Reader(self.functions))
            readers[-1].visit(side, frame.copy(), times)
        longer = max(readers, key=lambda reader: sum(reader.counts.values()))
        self._add(longer.counts, 1.0)
        for use, count in longer.uses.items():
            self.uses[use] += count
        self.assumed |= longer.assumed
        self.unread |= longer.unread

    # --- expressions ----------------------------------------------------------------------------------------

    def _conditional_expression(self, node: Node, frame: _Frame, times: float) -> None:
        self._if_statement(node, frame, times)
        self._add({"integer_ops": 1.0}, times)

    def _binary_expression(self, node: Node, frame: _Frame, times: float) -> None:
        self._operator(text(node.child_by_field_name("operator")), node, frame, times)
        for child in node.named_children:
            self.visit(child, frame, times)

    def _operator(self, symbol: str, node: Node, frame: _Frame, times: float) -> None:
        is_real = any(
            ("." in text(part) if part.type == "number_literal" else text(part) in frame.reals)
            for part in nodes(node)
            if part.type in ("number_literal", "identifier")
        )
        self._add(work_of_operator(symbol, is_real=is_real), times)

    def _assignment_expression(self, node: Node, frame: _Frame, times: float) -> None:
        symbol, left = text(node.child_by_field_name("operator")), node.child_by_field_name("left")
        if symbol != "=":
            self._operator(symbol[:-1], node, frame, times)
            self._access(left, frame, times, write=False)
        frame.known.pop(text(left), None)
        self._access(left, frame, times, write=True)
        self.visit(node.child_by_field_name("right"), frame, times)

    def _update_expression(self, node: Node, frame: _Frame, times: float) -> None:
        frame.known.pop(text(node.child_by_field_name("argument")), None)
        self._add({"integer_ops": 1.0}, times)

    def _subscript_expression(self, node: Node, frame: _Frame, times: float) -> None:
        self._access(node, frame, times, write=False)

    def _pointer_expression(self, node: Node, frame: _Frame, times: float) -> None:
        if text(node).startswith("*"):
            self._access(node, frame, times, write=False)

    def _access(self, node: Node | None, frame: _Frame, times: float, *, write: bool) -> None:
        """Add a load or store through a pointer argument. Other arrays are registers."""
        if node is None or node.type not in ("subscript_expression", "pointer_expression"):
            return
        argument = frame.pointers.get(_base(node))
        if argument is not None:
            cast = _POINTER_CAST.search(text(node))
            self.uses[argument, write, _CAST_BYTES.get(cast[1], 0.0) if cast else 0.0, False] += times

    def _call_expression(self, node: Node, frame: _Frame, times: float) -> None:
        name = function_name(text(node.child_by_field_name("function")))
        given = node.child_by_field_name("arguments")
        arguments = [] if given is None else given.named_children
        if name in self.functions and frame.depth < _MOST_NESTED:
            pointers = {i: frame.pointers.get(_base(one), -1) for i, one in enumerate(arguments)}
            self.call(
                name,
                [value(one, frame.known) for one in arguments],
                times,
                {i: argument for i, argument in pointers.items() if argument >= 0},
                frame.depth + 1,
            )
        elif (work := work_of_function(name)) is not None:
            self._add(work, times)
        else:
            self.unread.add(name)
        for one in arguments:
            self.visit(one, frame, times)

    def _gnu_asm_expression(self, node: Node, frame: _Frame, times: float) -> None:
        code = node.child_by_field_name("assembly_code")
        strings = [] if code is None else [text(p) for p in nodes(code) if p.type == "string_content"]
        for statement in re.split(r"[;\n]", ";".join(strings)):
            found = re.match(r"[\s{}]*(?:@!?%?\w+\s+)?([a-z]\w*(?:\.\w+(?:::\w+)*)*)\s+\S", statement)
            if found is None:
                continue
            work, access = work_of_ptx(found[1]), access_of_ptx(found[1])
            argument = None if access is None else self._pointer_of(statement, node, frame)
            if access is not None and argument is not None:
                self.uses[argument, *access] += times
            elif work is None:
                self.unread.add(found[1].partition(".")[0])
            else:
                self._add(work, times)
        for operand in nodes(node):
            if operand.type == "gnu_asm_output_operand":
                self._access(operand.child_by_field_name("value"), frame, times, write=True)
            elif operand.type == "gnu_asm_input_operand":
                self.visit(operand.child_by_field_name("value"), frame, times)

    def _pointer_of(self, statement: str, node: Node, frame: _Frame) -> int | None:
        """The argument of the outermost call through whose address a PTX statement loads or stores.

        None if that is not known: the place is in another register, and the piece of PTX takes several
        addresses.
        """
        kinds = ("gnu_asm_output_operand", "gnu_asm_input_operand")
        operands = [n for kind in kinds for n in nodes(node) if n.type == kind]
        place = re.search(r"\[\s*%(\d+)", statement)
        if place is not None:
            operands = operands[int(place[1]) : int(place[1]) + 1]
        values = [n.child_by_field_name("value") for n in operands if n.type == kinds[1]]
        bases = {_base(value) for value in values if value is not None and not _is_element(value)}
        found = {frame.pointers[base] for base in bases if base in frame.pointers}
        return found.pop() if len(found) == 1 else None


def _label(declarator: Node | None) -> str:
    """The name that a declarator declares: `* const p[4]` -> `p`."""
    return next((text(n) for n in nodes(declarator) if n.type == "identifier"), "") if declarator else ""


def _is_element(node: Node) -> bool:
    """Whether an expression loads an element, in contrast to its address."""
    parts = [(n.type, text(n)[:1]) for n in nodes(node)]
    if ("pointer_expression", "&") in parts:
        return False
    return any(
        kind == "subscript_expression" or (kind, first) == ("pointer_expression", "*")
        for kind, first in parts
    )


def _base(node: Node) -> str:
    """The variable behind an expression of a pointer: `((uint *)p)[i]` -> `p`."""
    names = (text(n) for n in nodes(node) if n.type == "identifier")
    return next((name for name in names if not CASTS.fullmatch(name)), "")
