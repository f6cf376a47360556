"""Functions in TileLang's language, each parsed once a process: kernels, and the macros that they use.

TileLang finds the source of a function under `@T.prim_func` or `@T.macro`, rewrites its syntax tree and
compiles it, each time that the decorator runs: a dozen times in the lowering of one matmul, since TileLang's
own tile operators are made of macros. The compiled function depends on the code of the function, on which of
its outer variables exist, and on what TileLang looks up while it rewrites. If these are the same as before,
only the values of the outer variables are new.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CellType, FunctionType
from typing import Any

from ..bounded_dict import BoundedDict

CAPACITY = 500  # functions; a lowering parses about a dozen


@dataclass(frozen=True)
class _Parsed:
    """A parsed function, and the values of the names that TileLang looked up, in their order."""

    generator: Any  # TileLang's IRGenerator
    names: tuple[str, ...]
    values: tuple[Any, ...]
    global_names: Any  # kept alive, so that no other dictionary gets its id


class ParsedFunctions:
    """In the place of TileLang's `mutate`, which it calls for functions that it has not parsed."""

    def __init__(self, mutate: Callable[[Any], Any]) -> None:
        self._mutate = mutate
        self._known: BoundedDict[Any, _Parsed] = BoundedDict(CAPACITY)

    def __call__(self, function: Any) -> Any:
        from tilelang.language.eager.utils import get_ast, get_func_nonlocals

        if not isinstance(function, FunctionType):
            return self._mutate(function)
        outer = get_func_nonlocals(function)
        key = (function.__code__, id(function.__globals__), tuple(outer))
        known = self._known.get(key)
        if known is not None and _same(known.values, _values(known.names, outer, function)):
            cells = tuple(CellType(outer[name]) for name in known.generator.gen.__code__.co_freevars)
            return replace(known.generator, gen=_with_cells(known.generator.gen, cells))
        generator = self._mutate(function)
        made = generator.gen
        if isinstance(made, FunctionType) and set(made.__code__.co_freevars) <= set(outer):
            names = _looked_up(get_ast(function)) if known is None else known.names
            values = _values(names, outer, function)
            self._known[key] = _Parsed(generator, names, values, function.__globals__)
        return generator


def parse_once() -> None:
    """Let TileLang parse each function once in this process."""
    from tilelang.language.eager import builder

    if not isinstance(builder.mutate, ParsedFunctions):
        builder.mutate = ParsedFunctions(builder.mutate)


def _with_cells(function: Any, cells: tuple[CellType, ...]) -> Any:
    return FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )


def _looked_up(tree: ast.AST) -> tuple[str, ...]:
    """Names whose values decide how TileLang rewrites: of what makes a context, and of declared types."""
    deciding: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            deciding += [
                item.context_expr.func for item in node.items if isinstance(item.context_expr, ast.Call)
            ]
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            declared = node.annotation
            if isinstance(declared, ast.Call | ast.Subscript):
                declared = declared.func if isinstance(declared, ast.Call) else declared.value
            deciding.append(declared)
    return tuple(
        sorted({name.id for part in deciding for name in ast.walk(part) if isinstance(name, ast.Name)})
    )


def _values(names: tuple[str, ...], outer: dict[str, Any], function: Any) -> tuple[Any, ...]:
    return tuple(outer.get(name, function.__globals__.get(name)) for name in names)


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))
