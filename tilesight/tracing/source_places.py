"""Finds the places of stamps in CUDA source: a kernel's parameters, begin and ends, and its loops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import LaunchError
from .layout import MOST_LOOPS
from .values import StampedLoop

if TYPE_CHECKING:
    from tree_sitter import Node

_LOOPS = ("for_statement", "while_statement", "do_statement")
# the grammar is that of C++: these words are overwritten with blanks, which moves nothing
_QUALIFIERS = re.compile(rb'extern\s+"C"|__[a-z]+(?:_[a-z]+)*__(?:\([^()]*\))?')
_LOADS = re.compile(rb"\btma_load|\bcp_async")
_MATRIX = re.compile(rb"\b(?:wgmma|mma|tcgen05mma)_\w+\s*<")
# what makes the warps of a loop wait for others, or for copies
_PACED = re.compile(
    rb"\.wait\(|__sync(?:threads|_thread_partial)|\bcp_async|\btma_load|wgmma_wait|wait_wgmma|group_wait"
)


@dataclass(frozen=True, slots=True)
class LoopPlace:
    """A loop: where its body begins, where the loop ends, and what must surround it there."""

    loop: StampedLoop
    body: int
    end: int
    start: int
    before: int  # the same, or where its pragma starts
    is_braced: bool  # the loop is one of several statements; otherwise it needs braces with its stamp
    body_is_braced: bool
    body_end: int
    may_unroll: bool  # the compiler may unroll this loop, of which all that matters are its copies


@dataclass(frozen=True, slots=True)
class KernelPlaces:
    """Byte offsets in the source of one kernel.

    Attributes:
        declared: Begin of the line that names it first.
        parameters: The ends of its lists of parameters (declaration and definition), and whether they are
            empty.
        begin: After the brace of the body.
        end: Before the last brace.
        returns: Begin and end of each `return` statement.
        loops: Its loops.
    """

    declared: int
    parameters: tuple[tuple[int, bool], ...]
    begin: int
    end: int
    returns: tuple[tuple[int, int], ...]
    loops: tuple[LoopPlace, ...]


def find_places(source: bytes, function: str) -> KernelPlaces:
    """The places of stamps of one kernel. Raises `LaunchError` if the source does not define it.

    Loops that the source asks to unroll have no iterations at run time and get no stamps. Of loops within
    stamped ones only those get them that wait for others or copy, as the inner loop of a persistent kernel:
    other such loops are short, like that over the instructions of one product, and stamps would cost more.
    Other loops that neither wait nor copy are stamped as a whole (`StampedLoop.overlaps`).
    """
    parameters: list[tuple[int, bool]] = []
    starts: list[int] = []
    body: Node | None = None
    for node in _functions(source):
        declarator = _function_declarator(node)
        if declarator is None or _text(declarator.child_by_field_name("declarator")) != function:
            continue
        listed = declarator.child_by_field_name("parameters")
        assert listed is not None  # of every function declarator
        starts.append(node.start_byte)
        parameters.append((listed.end_byte - 1, not listed.named_children))
        if node.type == "function_definition":
            body = node.child_by_field_name("body")
    if body is None:
        raise LaunchError(f"the source defines no kernel '{function}'")
    returns = [node for node in _within(body) if node.type == "return_statement"]
    return KernelPlaces(
        source.rfind(b"\n", 0, starts[0]) + 1,
        tuple(parameters),
        body.start_byte + 1,
        body.end_byte - 1,
        tuple((node.start_byte, node.end_byte) for node in returns),
        tuple(_loops(source, body)),
    )


def _functions(source: bytes) -> list[Node]:
    """Definitions and declarations at the top level."""
    import tree_sitter_cpp
    from tree_sitter import Language, Parser

    blanked = _QUALIFIERS.sub(lambda found: b" " * len(found.group()), source)
    tree = Parser(Language(tree_sitter_cpp.language())).parse(blanked)
    return [n for n in _within(tree.root_node) if n.type in ("function_definition", "declaration")]


def _function_declarator(node: Node) -> Node | None:
    found = node.child_by_field_name("declarator")
    while found is not None and found.type != "function_declarator":
        found = found.child_by_field_name("declarator")
    return found


def _within(node: Node) -> Iterator[Node]:
    """All nodes within `node`, without those of lambda functions, which return by themselves."""
    for child in node.named_children:
        if child.type != "lambda_expression":
            yield child
            yield from _within(child)


def _loops(source: bytes, body: Node) -> Iterator[LoopPlace]:
    numbers: dict[int, int] = {}  # by the id of the loop's node
    for node in _within(body):
        if node.type not in _LOOPS or _is_unrolled(node):
            continue
        outer = _stamped_around(node, numbers)
        inside = node.child_by_field_name("body")
        assert inside is not None  # of every loop
        text = source[inside.start_byte : inside.end_byte]
        is_paced = _PACED.search(text) is not None
        if outer is not None and not is_paced:
            continue
        if len(numbers) == MOST_LOOPS:
            return
        numbers[node.id] = len(numbers)
        loads, computes = bool(_LOADS.search(text)), bool(_MATRIX.search(text))
        loop = StampedLoop(numbers[node.id], outer, loads, computes, not is_paced)
        only_copies = loads and not computes and not _assigns(inside)
        is_braced = inside.type == "compound_statement"
        yield LoopPlace(
            loop,
            _after_exit(inside) if is_braced else inside.start_byte,
            node.end_byte,
            node.start_byte,
            _start_with_pragma(node),
            node.parent is not None and node.parent.type == "compound_statement",
            is_braced,
            inside.end_byte,
            only_copies and not _pragma(node),
        )


def _pragma(loop: Node) -> list[str]:
    """The words of the pragma before a loop."""
    before = loop.prev_named_sibling
    words = _text(before).split() if before is not None and before.type == "preproc_call" else []
    return words if words[:2] == ["#pragma", "unroll"] else []


def _start_with_pragma(loop: Node) -> int:
    before = loop.prev_named_sibling
    return int(before.start_byte if before is not None and _pragma(loop) else loop.start_byte)


def _is_unrolled(loop: Node) -> bool:
    """Whether a pragma asks to unroll the loop; `unroll 1` forbids it."""
    words = _pragma(loop)
    return bool(words) and words[2:] != ["1"]


def _stamped_around(node: Node, numbers: dict[int, int]) -> int | None:
    around = node.parent
    while around is not None:
        if around.id in numbers:
            return numbers[around.id]
        around = around.parent
    return None


def _after_exit(body: Node) -> int:
    """Where an iteration begins: after a first statement that may leave the loop, else after the brace.

    TileLang writes `while (1) { if (!condition) { break; } ... }`.
    """
    first = body.named_children[0] if body.named_children else None
    if first is None or first.type != "if_statement":
        return int(body.start_byte) + 1
    leaves = any(node.type == "break_statement" for node in _within(first))
    return int(first.end_byte if leaves else body.start_byte + 1)


def _assigns(body: Node) -> bool:
    return any(node.type == "assignment_expression" for node in _within(body))


def _text(node: Node | None) -> str:
    return "" if node is None else (node.text or b"").decode(errors="replace")
