"""Hashes of a user's functions and values: code counts by its syntax tree, a name by its value.

White space, comments and decorators do not count. Python, frameworks and installed packages count by name.
"""

from __future__ import annotations

import ast
import enum
import hashlib
import inspect
import math
import re
import sys
import sysconfig
import textwrap
import tokenize
from collections import ChainMap, deque
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ..code_hash import source_hash
from .user_function import python_function

_LITERALS = (type(None), bool, int, float, complex, str, bytes)
_LIBRARIES = (
    "tilesight",
    "tilelang",
    "tvm",
    "tvm_ffi",
    "torch",
    "triton",
    "numpy",
    *sys.builtin_module_names,
)
_FOLDERS = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_INSTALLED = tuple(f"{Path(folder).resolve()}/" for folder in _FOLDERS)
_MOST_DEFINITIONS = 2000  # functions, classes and objects that are followed; further ones count by name
_MOST_ELEMENTS = 4096  # of a tensor whose values count


def content_hash(*values: Any, own: Any = None) -> str:
    """A hash of values, and of all code and constants that the functions among them use.

    Args:
        values: plain values, containers, tensors, functions, classes, other objects.
        own: a function. The package that defines it is followed even if it is installed.

    Returns:
        16 hexadecimal digits, the same in every process.
    """
    reader = _Reader(_package(getattr(own, "__module__", None)))
    texts = [reader.text(value) for value in values]
    while reader.waiting:
        texts.append(reader.definition(reader.waiting.popleft()))
    return hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()[:16]


def is_library(module: str | None, file: str | None) -> bool:
    """Whether code of this module and file is installed, or belongs to Python or to a framework."""
    return _package(module) in _LIBRARIES or bool(file and str(Path(file).resolve()).startswith(_INSTALLED))


class _Reader:
    """Writes values as text. A function, class or object gets a number, and is read once."""

    def __init__(self, own: str) -> None:
        self.waiting: deque[Any] = deque()
        self._own = own
        self._numbered: dict[
            int, tuple[int, Any]
        ] = {}  # by id; holds the values, so that no id is used twice

    def text(self, value: Any) -> str:
        kind = type(value)
        if kind in _LITERALS:
            return f"{kind.__name__}:{value!r}"
        if isinstance(value, enum.Enum):
            return f"{kind.__qualname__}.{value.name}"
        if isinstance(value, Mapping):
            pairs = [f"{self.text(key)}={self.text(value[key])}" for key in sorted(value, key=str)]
            return f"{{{','.join(pairs)}}}"
        if isinstance(value, set | frozenset):
            return f"set({','.join(sorted(map(self.text, value)))})"
        if isinstance(value, list | tuple):
            return f"{kind.__name__}({','.join(map(self.text, value))})"
        if hasattr(value, "tolist") and hasattr(value, "shape"):
            is_read = math.prod(value.shape) <= _MOST_ELEMENTS and str(getattr(value, "device", "")) != "meta"
            return f"{kind.__name__}:{value.dtype}:{tuple(value.shape)}:{value.tolist() if is_read else ''}"
        if isinstance(value, ModuleType | FunctionType | type):
            if isinstance(
                value, ModuleType
            ):  # of a user's module, functions count the members that they name
                return value.__name__ if self._is_library(value) else "module"
            if self._is_library(value):
                return f"{value.__module__}.{value.__qualname__}"
        elif not isinstance(value, partial | MethodType) and self._is_library(kind):
            inner = python_function(value)
            if inner is value:
                return f"{kind.__qualname__}:{re.sub(' at 0x[0-9a-fA-F]+', '', str(value))}"
            return f"{kind.__qualname__}:{self.text(inner)}"
        if id(value) not in self._numbered:
            if len(self._numbered) >= _MOST_DEFINITIONS:
                return str(getattr(value, "__qualname__", kind.__qualname__))
            self._numbered[id(value)] = len(self._numbered), value
            self.waiting.append(value)
        return f"#{self._numbered[id(value)][0]}"

    def definition(self, value: Any) -> str:
        """The contents of a numbered value."""
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, partial | MethodType):
            return self.text(value.__reduce__())
        if isinstance(value, type):
            parts = {
                name: part
                for name, part in vars(value).items()
                if callable(part) or not name.startswith("__")
            }
            return f"class {value.__name__}{self.text([list(value.__bases__), parts])}"
        return f"object{self.text([type(value), value.__getstate__()])}"

    def _function(self, function: FunctionType) -> str:
        code, tree = function.__code__, _tree(function.__code__)
        names = {name for part in _codes(code) for name in part.co_names} | set(code.co_freevars)
        if tree is not None:  # annotations of local variables are in no bytecode, and TileLang reads them
            local = {name for part in _codes(code) for name in (*part.co_varnames, *part.co_cellvars)}
            names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - local
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        cells = dict(zip(code.co_freevars, map(_cell, function.__closure__ or ()), strict=True))
        values = self._values(ChainMap(cells, function.__globals__), names)
        text = source_hash(ast.unparse(tree)) if tree is not None else "".join(map(_bytecode, _codes(code)))
        return f"function {text}{self.text([function.__defaults__, function.__kwdefaults__, values])}"

    def _values(self, namespace: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
        """Values of names in a namespace, and in those modules of the user's that the names mean there."""
        found = {name: namespace[name] for name in sorted(names) if name in namespace}
        for name, value in list(found.items()):
            if isinstance(value, ModuleType) and not self._is_library(value):
                members = self._values(vars(value), names - {name})
                found |= {f"{name}.{member}": inner for member, inner in members.items()}
        return found

    def _is_library(self, value: FunctionType | type | ModuleType) -> bool:
        if isinstance(value, FunctionType):  # not its `__module__`, which `functools.wraps` changes
            module: str | None = value.__globals__.get("__name__")
            file: str | None = value.__code__.co_filename
        else:
            module = value.__name__ if isinstance(value, ModuleType) else value.__module__
            file = getattr(sys.modules.get(str(module)), "__file__", None)
        return _package(module) != self._own and is_library(module, file)


def _package(module: str | None) -> str:
    return str(module or "").split(".")[0]


def _tree(code: CodeType) -> ast.FunctionDef | None:
    """A function's definition without its decorators; None for a lambda, and for code without source text."""
    try:
        [found] = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, TypeError, IndexError, ValueError, SyntaxError, tokenize.TokenError):
        return None
    if not isinstance(found, ast.FunctionDef) or found.name != code.co_name:
        return None
    found.decorator_list = []
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and the code of functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _bytecode(code: CodeType) -> str:
    constants = [
        sorted(map(repr, c)) if isinstance(c, frozenset) else c
        for c in code.co_consts
        if not isinstance(c, CodeType)
    ]
    return repr((code.co_code, constants, code.co_names))


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
