"""Code as it runs, beside the text of its file: a file may be edited while a program runs, and then says what nobody runs."""

from __future__ import annotations
import __future__

import ast
import functools
import hashlib
import inspect
import os
import time
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

_BEGAN = time.time()
_LITERALS = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict)


def text_of(code: CodeType) -> str | None:
    """The text of a function; None where there is none, or where it is no longer that of the code that runs."""
    try:
        lines, first = inspect.findsource(code)
        text = "".join(inspect.getblock(lines[first:]))
    except (OSError, TypeError, IndexError, SyntaxError, tokenize.TokenError):
        return None
    return text if _place(code) in _places("".join(lines), _future(code)) else None


def bytecode(code: CodeType) -> str:
    """A hash of what runs: without names of files and numbers of lines, and the same in every process."""
    constants = [bytecode(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names, code.co_varnames)).encode(errors="surrogatepass")).hexdigest()


def methods(kind: type) -> list[FunctionType]:
    """The functions of a class itself, also static ones, those of the class, and properties."""
    found: list[Any] = []
    for _, value in sorted(vars(kind).items()):
        if isinstance(value, property):
            found += [value.fget, value.fset]
        elif isinstance(value, functools.cached_property):
            found.append(value.func)
        else:
            found.append(value.__func__ if isinstance(value, staticmethod | classmethod) else value)
    return [value for value in found if isinstance(value, FunctionType)]


def unlike(text: str, running: Iterable[FunctionType]) -> list[str]:
    """Hashes of the functions that `text`, a whole file, has no more."""
    codes = [function.__code__ for function in running]
    return sorted({bytecode(c) for c in codes if bytecode(c) not in {place[2] for place in _places(text, _future(c))}})


def other_values(body: Sequence[ast.stmt], running: Mapping[str, Any], file: str | None) -> list[str]:
    """Names with plain values that are not those that the statements give them, where the file was written after this program
    began. Elsewhere they were changed by the program itself, and a counter is nothing to be told apart by."""
    if file is None or not _is_newer(file):
        return []
    said: dict[str, ast.expr] = {}
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            said |= {target.id: statement.value for target in targets if isinstance(target, ast.Name)}
    values = {name: _literal(running[name]) for name in sorted(said) if name in running}
    found = [f"{name}={value}" for name, value in values.items() if value is not None and value != _said(said[name])]
    for statement in body:
        if isinstance(statement, ast.ClassDef) and isinstance(inner := running.get(statement.name), type):
            found += [f"{statement.name}.{text}" for text in other_values(statement.body, vars(inner), file)]
    return found


def _constant(value: Any) -> str:
    """The same in every process: sets are in no order there."""
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_constant, value))})"
    return f"({','.join(map(_constant, value))})" if isinstance(value, tuple) else repr(value)


def _future(code: CodeType) -> int:
    """Of `from __future__ import annotations`, which a notebook holds on to from cell to cell."""
    return code.co_flags & __future__.annotations.compiler_flag


def _place(code: CodeType) -> tuple[str, int, str]:
    return code.co_name, code.co_firstlineno, bytecode(code)


@functools.lru_cache(maxsize=64)
def _places(text: str, flags: int) -> frozenset[tuple[str, int, str]]:
    """Name, first line and hash of all code that Python makes of a file."""
    try:
        code = compile(text, "<text>", "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError):  # saved by halves
        return frozenset()
    return frozenset(map(_place, _within(code)))


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)


def _is_newer(file: str) -> bool:
    try:
        found = os.stat(file)
    except OSError:
        return True
    return max(found.st_mtime, found.st_ctime) > _BEGAN


def _literal(value: Any) -> str | None:
    """The text of a plain value, or of a container of such."""
    if type(value) not in _LITERALS:
        return None
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError, RecursionError):
        return None
    return repr(value)


def _said(expression: ast.expr) -> str | None:
    try:
        return repr(ast.literal_eval(expression))
    except (ValueError, TypeError, RecursionError):
        return None
