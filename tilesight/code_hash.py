"""Hashes of code: equal for code that does the same, wherever it is and however it is formatted.

Not hashed are imports, comments, white space, docstrings, type-checking blocks, names of modules, and unused
definitions. Hashes are the same under every supported Python version.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from functools import cache
from pathlib import Path

DIGITS = 12  # hexadecimal digits of a hash
_SAME_CODE = Path(__file__).with_name("same_code.json")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOKS = ("ctx", "type_comment", "kind", "type_ignores")  # fields of syntax trees without meaning


def definition_hash(value: type | Callable[..., object], ignored: Collection[str] = ()) -> str:
    """A hash of the class or function `value` and of every definition that it uses, in its own package.

    Args:
        value: a class or function of a module that has a source file.
        ignored: class attributes and methods that do not count, in any of these classes. What only such a
            method uses does not count either.

    Returns:
        12 hexadecimal digits.

    Raises:
        OSError: the source file of the module cannot be read.
    """
    found = _used(value.__module__, value.__qualname__.split(".")[0], ignored)
    if not found:
        raise OSError(f"{value.__module__}.{value.__qualname__} has no source file")
    # sorted by name and not by module, since a function may move to another file
    texts = sorted(
        (name, "".join(map(_Text(ignored).of, statements))) for (_, name), statements in found.items()
    )
    return digest(repr(texts))


def module_hash(roots: Iterable[str], packages: Collection[str]) -> str:
    """A hash of the modules `roots` and of all that these import, directly or not, within `packages`.

    Args:
        roots: full names of modules.
        packages: full names of packages; modules outside of them do not count.

    Returns:
        12 hexadecimal digits.

    Raises:
        OSError: a source file cannot be read.
    """
    texts = ["".join(map(_Text(()).of, _code(_tree(name)))) for name in modules_used(roots, packages)]
    return digest(repr(sorted(texts)))


@cache
def _same_code() -> dict[str, str]:
    found: dict[str, str] = json.loads(_SAME_CODE.read_text(encoding="utf-8"))
    return found


def recorded_version(code: str) -> str:
    """The version under which results of the code with hash `code` are recorded.

    That is `code` itself, or the hash of earlier code that did the same under other names. `same_code.json`
    lists these, so that renaming loses no measurement.
    """
    return _same_code().get(code, code)


def source_hash(source: str) -> str:
    """A hash of Python source text. Raises `SyntaxError`."""
    return digest("".join(map(_Text(()).of, _code(ast.parse(source)))))


def modules_used(roots: Iterable[str], packages: Collection[str]) -> list[str]:
    """Full names of `roots` and all modules within `packages` that they import, directly or not, sorted."""
    found: set[str] = set()
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name in found or not _is_within(name, packages):
            continue
        if _file(name) is None:
            continue
        found.add(name)
        for home, member in _module_imports(name).values():
            pending += [home, f"{home}.{member}"]
    return sorted(found)


def digest(text: str) -> str:
    """A hash (12 hexadecimal digits) of `text`."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]


def _is_within(name: str, packages: Collection[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


# ---- which definitions a definition uses


def _used(module: str, name: str, ignored: Collection[str]) -> dict[tuple[str, str], list[ast.stmt]]:
    """Statements that define `name` of `module`, and all definitions that they use, by module and name.

    Of classes, `ignored` methods are left out.
    """
    package = module.rpartition(".")[0] or module
    found: dict[tuple[str, str], list[ast.stmt]] = {}
    pending = [(module, name)]
    while pending:
        key = pending.pop()
        if key in found:
            continue
        home, wanted = key
        statements = [_without(node, ignored) for node in _definitions(home).get(wanted, [])]
        if statements:
            found[key] = statements
            pending += _names_used(statements, home, package)
    return found


def _without(statement: ast.stmt, methods: Collection[str]) -> ast.stmt:
    """A class without these methods; any other statement as it is."""
    if not isinstance(statement, ast.ClassDef):
        return statement
    kept = [
        node
        for node in statement.body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name not in methods
    ]
    if len(kept) == len(statement.body):
        return statement
    left = copy(statement)  # the tree is kept, and must stay as it is
    left.body = kept
    return left


def _names_used(statements: list[ast.stmt], module: str, package: str) -> Iterator[tuple[str, str]]:
    """(module, name) of the definitions in `package` that these statements of `module` refer to."""
    imported = {**_module_imports(module), **_imports(statements, module)}
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Name) and node.id not in imported:
            yield module, node.id
        elif isinstance(node, ast.Name) and _is_followed(imported[node.id][0], package):
            yield imported[node.id]
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
        ):
            home, member = imported[node.value.id]
            inner = f"{home}.{member}" if member else home
            if _is_followed(inner, package):
                yield inner, node.attr


def _is_followed(module: str, package: str) -> bool:
    """Whether `module` is in `package`; if `package` is a single module, whether it is in the same folder."""
    if _is_within(module, (package,)):
        return True
    ours = _file(package)
    if ours is None or ours.name == "__init__.py" or "." in module:
        return False
    other = _file(module)
    return other is not None and other.parent == ours.parent


@cache
def _definitions(module: str) -> dict[str, list[ast.stmt]]:
    """The top-level statements of a module by the names that they bind, without imports."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in _code(_tree(module)):
        names = [statement.name] if isinstance(statement, _DEFINITIONS) else _bound(statement)
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(statement)
    return found


def _bound(statement: ast.stmt) -> list[str]:
    """Names that a statement assigns or defines, also within its blocks."""
    stored = [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return [*stored, *(node.name for node in ast.walk(statement) if isinstance(node, _DEFINITIONS))]


# ---- modules as syntax trees


def _file(module: str) -> Path | None:
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is None and module not in sys.modules:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return None
        loaded = None if spec is None or not spec.has_location else spec.origin
    return Path(loaded) if loaded and loaded.endswith(".py") else None


@cache
def _tree(module: str) -> ast.Module:
    file = _file(module)
    return ast.parse(b"" if file is None else file.read_bytes())


def _code(tree: ast.Module) -> list[ast.stmt]:
    """The statements of a module without docstring, imports and type-checking blocks."""
    return [statement for statement in _body(tree.body) if not _is_for_type_checking(statement)]


def _body(statements: list[ast.stmt]) -> list[ast.stmt]:
    return [s for s in statements if not isinstance(s, ast.Import | ast.ImportFrom) and not _is_text(s)]


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_for_type_checking(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Name)
        and statement.test.id == "TYPE_CHECKING"
    )


@cache
def _module_imports(module: str) -> dict[str, tuple[str, str]]:
    return _imports(_tree(module).body, module)


def _imports(statements: Iterable[ast.stmt], module: str) -> dict[str, tuple[str, str]]:
    """(module or package, name in it or "") by the name that an import within `statements` binds."""
    found: dict[str, tuple[str, str]] = {}
    for node in (node for s in statements if not _is_for_type_checking(s) for node in ast.walk(s)):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = _absolute(node, module)
            found |= {alias.asname or alias.name: (home, alias.name) for alias in node.names}
    return found


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    file = _file(module)
    is_package = file is not None and file.name == "__init__.py"
    above = module.split(".")
    above = above[: len(above) - node.level + is_package]
    return ".".join([*above, *([node.module] if node.module else [])])


# ---- syntax trees as text


class _Text:
    """Writes syntax trees as text that is independent of formatting and Python version."""

    def __init__(self, ignored: Collection[str]) -> None:
        self._ignored = ignored

    def of(self, node: object) -> str:
        if isinstance(node, ast.AST):
            fields = [(name, getattr(node, name, None)) for name in node._fields if name not in _LOOKS]
            if isinstance(node, ast.JoinedStr):
                fields = [("values", _joined(node.values))]
            parts = [
                f"{name}={self.of(value)}" for name, value in fields if value is not None and value != []
            ]
            return f"{type(node).__name__}({','.join(parts)})"
        if isinstance(node, list):
            kept = _body(node) if node and isinstance(node[0], ast.stmt) else node
            return f"[{','.join(self.of(item) for item in kept if not self._is_ignored(item))}]"
        return repr(node)

    def _is_ignored(self, node: object) -> bool:
        targets = (
            [node.target]
            if isinstance(node, ast.AnnAssign)
            else node.targets
            if isinstance(node, ast.Assign)
            else []
        )
        return any(isinstance(target, ast.Name) and target.id in self._ignored for target in targets)


def _joined(parts: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string with adjacent texts joined, since Python versions divide them differently."""
    found: list[ast.expr] = []
    for part in parts:
        before = found[-1] if found else None
        if isinstance(part, ast.Constant) and isinstance(before, ast.Constant):
            found[-1] = ast.Constant(str(before.value) + str(part.value))
        else:
            found.append(part)
    return [part for part in found if not isinstance(part, ast.Constant) or part.value]
