"""What a user's function depends on, as a hash: its code, the code of all that it uses, and the constants that it sees.

White space, comments and the function's own decorators do not matter. What comes with Python or was installed counts by its
name: its versions are part of a context already. What no hash can see (state of foreign objects) shows in the traced IR, which
is part of a template's version, too.
"""

from __future__ import annotations

import ast
import dis
import enum
import functools
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ..code_hash import source_hash
from ..errors import InputError
from .running_code import bytecode, methods, other_values, text_of, unlike

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_DEEPEST = 24  # levels of containers and calls that are followed
_MOST_ELEMENTS = 4096  # of a tensor whose values are looked at
_MOST_FOLLOWED = 20_000  # functions, modules and other objects: so many are no kernel's own code but a library's
_LIBRARIES = tuple(f"{Path(sysconfig.get_paths()[name]).resolve()}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def content_hash(*values: Any, own: Any = None) -> str:
    """16 hex digits over `values` and everything that the functions among them use. The same in every process. The package of
    the function `own` counts by its code, also where it is installed."""
    reader = _Reader(str(getattr(own, "__module__", None) or "").split(".")[0])
    text = "\0".join(reader.read(value, 0) for value in values)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def is_library(file: str | None, module: str | None = None) -> bool:
    """Whether code comes with Python, is installed, is TileSight's or of a library that it stands on: it changes with a version
    only. Where it has a file, that decides: a wrapper of a library's function takes over the name of its module."""
    package = "" if module is None else module.split(".")[0]
    if package in ("tilesight", "builtins", *sys.builtin_module_names):
        return True
    if not file or file.startswith("<"):
        return False
    return str(Path(file).resolve()).startswith((*_LIBRARIES, *_foundations()))


@functools.cache
def _foundations() -> tuple[str, ...]:
    """The folders of what TileSight stands on, also where that runs from a checkout of its own."""
    specs = [importlib.util.find_spec(name) for name in ("tilelang", "tvm_ffi", "torch", "triton", "numpy")]
    folders = [folder for spec in specs if spec is not None for folder in spec.submodule_search_locations or ()]
    return tuple(f"{Path(folder).resolve()}/" for folder in folders)


def python_function(value: Any) -> Any:
    """The Python function inside what decorators made of it; `value` itself where there is none."""
    for _ in range(_DEEPEST):
        inner = next((found for name in ("orig_func", "func", "__wrapped__") if (found := _attribute(value, name)) is not None), None)
        if inspect.isfunction(value) or inner is None:
            return value
        value = inner
    return value


class _Reader:
    """Turns values into text. Functions that were met before are named by their number, so that recursion ends."""

    def __init__(self, own: str = "") -> None:
        self._own = own
        self._met: dict[int, int] = {}
        self._alive: list[Any] = []  # or an id could be given twice

    def read(self, value: Any, depth: int) -> str:
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if type(value) in _PLAIN:
            return f"{type(value).__name__}:{value!r}"
        if depth > _DEEPEST:
            return type(value).__qualname__
        if isinstance(value, Mapping):
            return "{" + ",".join(sorted(f"{self.read(k, depth + 1)}={self.read(v, depth + 1)}" for k, v in value.items())) + "}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}({','.join(self.read(v, depth + 1) for v in value)})"
        if isinstance(value, set | frozenset):
            return f"set({','.join(sorted(self.read(v, depth + 1) for v in value))})"
        if isinstance(value, str | int | float):  # types derived from them, e.g. TileLang's dtypes
            return f"{type(value).__qualname__}:{value}"
        if isinstance(value, ModuleType):
            return self._module(value, depth)
        if id(value) in self._met:
            return f"met:{self._met[id(value)]}"
        self._meet(value)
        return self._object(value, depth)

    def _meet(self, value: Any) -> None:
        if len(self._met) >= _MOST_FOLLOWED:
            where = getattr(value, "__module__", None) or type(value).__module__
            raise InputError(
                f"autotune: what the function uses leads to more than {_MOST_FOLLOWED} functions and objects, lastly in {where}, "
                "a library that was not installed: install it, or take it out of what the function uses"
            )
        self._met[id(value)] = len(self._met)
        self._alive.append(value)

    def _object(self, value: Any, depth: int) -> str:
        if isinstance(value, functools.partial):
            return f"partial({self.read(value.func, depth + 1)},{self.read(value.args, depth + 1)},{self.read(value.keywords, depth + 1)})"
        if isinstance(value, MethodType):
            return f"method({self.read(value.__func__, depth + 1)},{self.read(value.__self__, depth + 1)})"
        if isinstance(value, BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, FunctionType):
            return self._function(value, depth)
        if isinstance(value, type):
            return self._class(value, depth)
        function = python_function(value)
        if isinstance(function, FunctionType) and function is not value:
            return f"{type(value).__qualname__}({self.read(function, depth + 1)})"
        return self._other(value, depth)

    def _is_library(self, file: str | None, module: str | None) -> bool:
        is_own = bool(self._own) and module is not None and module.split(".")[0] == self._own
        return not is_own and is_library(file, module)

    def _other(self, value: Any, depth: int) -> str:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return f"{kind}:{value.dtype}:{tuple(value.shape)!r}:{_elements(value)}"
        if hasattr(value, "script") and kind.startswith("tvm."):
            return f"{kind}:{value.script()}"
        if is_dataclass(value):
            return f"{kind}({','.join(f'{f.name}={self.read(getattr(value, f.name, None), depth + 1)}' for f in fields(value))})"
        if self._is_library(getattr(sys.modules.get(type(value).__module__), "__file__", None), type(value).__module__):
            has_text = "__str__" in vars(type(value)) or "__repr__" in vars(type(value))
            return f"{kind}:{value}" if has_text else kind
        return f"{self._class(type(value), depth)}({self.read(getattr(value, '__dict__', {}), depth + 1)})"

    def _function(self, function: FunctionType, depth: int) -> str:
        if self._is_library(function.__code__.co_filename, function.__module__):
            return f"{function.__module__}.{function.__qualname__}"
        text, names = _code_of(function)
        parts = [text, self.read(function.__defaults__, depth + 1), self.read(function.__kwdefaults__, depth + 1)]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        seen: dict[str, Any] = {name: function.__globals__[name] for name in names if name in function.__globals__}
        for name, cell in cells:
            try:
                seen[name] = cell.cell_contents
            except ValueError:  # not yet set: the function is being defined
                seen.pop(name, None)
        parts += [f"{name}={self.read(seen[name], depth + 1)}" for name in sorted(seen)]
        return f"function({';'.join(parts)})"

    def _class(self, kind: type, depth: int) -> str:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if self._is_library(getattr(sys.modules.get(kind.__module__), "__file__", None), kind.__module__):
            return name
        try:
            source = textwrap.dedent(inspect.getsource(kind))
        except (OSError, TypeError):
            source = ""
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        found = next((s for s in _body(source) if isinstance(s, ast.ClassDef)), None)
        others = other_values(found.body if found else (), vars(kind), file)
        # what its methods and the classes above it use counts as well
        used = [self.read(value, depth + 1) for value in (*methods(kind), *(base for base in kind.__bases__ if base is not object))]
        return f"class({_tokens(source) if source else name};{';'.join((*used, *others))})"

    def _module(self, module: ModuleType, depth: int) -> str:
        """Its text, and that of all modules of the user's that it uses in turn."""
        file = getattr(module, "__file__", None)
        if file is None or self._is_library(file, module.__name__) or not file.endswith(".py"):
            return f"module:{module.__name__}"
        if id(module) in self._met:
            return f"met:{self._met[id(module)]}"
        self._meet(module)
        try:
            text = Path(file).read_text(encoding="utf-8")
        except OSError:
            return f"module:{module.__name__}"
        used = {name: sys.modules[name] for name in _imported(text, module) if name in sys.modules}
        used |= {found.__name__: found for found in vars(module).values() if isinstance(found, ModuleType)}
        running = [*unlike(text, _functions(module, file)), *other_values(_body(text), vars(module), file)]
        return f"module:{_tokens(text)}:{running}:{[self._module(used[name], depth + 1) for name in sorted(used)]}"


def _imported(text: str, module: ModuleType) -> set[str]:
    """Full names of the modules that a module's text may import."""
    found: set[str] = set()
    for node in (node for statement in _body(text) for node in ast.walk(statement)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = (module.__package__ or "").split(".")
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def _body(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError):
        return []


def _functions(module: ModuleType, file: str) -> Iterator[FunctionType]:
    """Those that stand in the module's file, and its classes' own."""
    for value in list(vars(module).values()):
        functions = methods(value) if isinstance(value, type) else [python_function(value)] if callable(value) else []
        yield from (f for f in functions if isinstance(f, FunctionType) and f.__code__.co_filename == file)


def _attribute(value: Any, name: str) -> Any:
    try:
        found = getattr(value, name, None)
    except Exception:  # properties of foreign objects may do anything
        return None
    return found if callable(found) else None


def _elements(value: Any) -> str:
    """Values of a small tensor or array."""
    try:
        count = value.numel() if hasattr(value, "numel") else value.size
        return repr(value.tolist()) if count <= _MOST_ELEMENTS else ""
    except Exception:  # a tensor without memory, on `meta`
        return ""


def _code_of(function: FunctionType) -> tuple[str, set[str]]:
    """Text that stands for the function's code, and all names in it."""
    code = function.__code__  # not the function: `functools.wraps` would show what is wrapped
    text = None if code.co_name == "<lambda>" else text_of(code)  # what stands beside a lambda on its lines is not its own
    if text is None:
        return bytecode(code), _globals(code)
    source = textwrap.dedent(text)
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return bytecode(code), _globals(code)
    found = tree.body[0] if tree.body else None
    parts: list[ast.AST] = [tree]
    if isinstance(found, ast.FunctionDef):
        # what the decorators are told (configs, tolerances) is asked for elsewhere
        parts = [found.args, *found.body, *([found.returns] if found.returns else [])]
        source = "".join(source.splitlines(keepends=True)[found.lineno - 1 :])
    # annotations of local variables are no part of the bytecode, and TileLang reads them
    named = {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}
    return _tokens(source), _globals(code) | (named - _locals(code))


def _tokens(source: str) -> str:
    try:
        return source_hash(textwrap.dedent(source))
    except SyntaxError:
        return hashlib.sha256(source.encode()).hexdigest()


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The function's code and that of functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _globals(code: CodeType) -> set[str]:
    looked_up = ("LOAD_GLOBAL", "LOAD_NAME")
    return {str(step.argval) for part in _codes(code) for step in dis.get_instructions(part) if step.opname in looked_up}


def _locals(code: CodeType) -> set[str]:
    return {name for part in _codes(code) for name in (*part.co_varnames, *part.co_cellvars)}
