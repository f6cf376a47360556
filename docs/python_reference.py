"""The reference of Python's names, from their signatures and docstrings, for `generate.py`."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import tilesight
from tilesight import research

WIDTH = 90  # of a signature's lines
MADE = ("Autotuned", "Dispatcher", "GroupDispatcher")  # by functions, so their own signatures are of no use
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$")
_ENTRY = re.compile(r"^([\w*][\w*, ]*): (.*)$", re.DOTALL)
_DEFAULTS = (
    (r"<(\w+\.\w+): [^>]*>", r"\1"),
    (r"<factory>|<function .* at 0x\w+>|<object \w+>", "..."),
    (r"Constants\(.*?\)", "Constants(...)"),  # of a model: too many, and fitted anew from time to time
)


def python(kind: str) -> str:
    """The entries of all public functions, values or errors, or of what `tilesight.research` has."""
    if kind == "research":
        named = [name for name in research.__all__ if not isinstance(getattr(research, name), str)]
        return "\n".join("".join(_entry(name, research)) for name in sorted(named, key=str.lower))
    return "\n".join("".join(_entry(name, tilesight)) for name in sorted(_names(kind), key=str.lower))


def _names(kind: str) -> list[str]:
    return [name for name in tilesight.__all__ if not name.startswith("__") and _kind(name) == kind]


def _kind(name: str) -> str:
    value = getattr(tilesight, name)
    if not inspect.isclass(value):
        return "functions"
    return "errors" if issubclass(value, Exception) else "values"


def _entry(name: str, home: ModuleType) -> Iterator[str]:
    value = getattr(home, name)
    is_enum = inspect.isclass(value) and issubclass(value, enum.Enum)
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    yield f"### {name}\n"
    is_called = not is_error and not is_enum and name not in MADE
    if is_called and (written := _signature(value, f"{home.__name__}.{name}")):
        yield f"```py\n{written}\n```\n\n"
    yield f"{docstring(value)}\n"
    if is_enum:
        yield f"\nMembers: {', '.join(f'`{member.name}`' for member in value)}.\n"
    elif inspect.isclass(value):
        yield from _members(value)


def _members(value: type) -> Iterator[str]:
    rows = list(_described(value))
    if rows:
        yield "\n| member | meaning |\n|---|---|\n"
        yield from rows


def _described(value: type) -> Iterator[str]:
    """Rows of the methods and properties that have a docstring."""
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        is_shown = inspect.isfunction(function) or hasattr(function, "func")
        function = getattr(function, "func", function)  # of a cached property
        if name.startswith("_") or not is_shown or not function.__doc__:
            continue
        call = "" if isinstance(member, property) or hasattr(member, "func") else _parameters(function)
        summary = " ".join(inspect.cleandoc(function.__doc__).split("\n\n")[0].split())
        summary = summary.replace("|", "\\|")
        yield f"| `{name}{call}` | {summary} |\n"


def _parameters(function: Any) -> str:
    """The names of a method's parameters."""
    names = [
        f"{'*' * {p.VAR_POSITIONAL: 1, p.VAR_KEYWORD: 2}.get(p.kind, 0)}{p.name}"
        for p in inspect.signature(function).parameters.values()
        if p.name not in ("self", "cls")
    ]
    return f"({', '.join(names)})"


def _signature(value: Any, name: str) -> str:
    """A call with all parameters and their types; "" where there are none to show."""
    found = inspect.signature(value)
    parameters = list(found.parameters.values())
    if not parameters or [p.kind for p in parameters] == [
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    ]:
        return ""
    parts, had_star = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not had_star:
            parts.append("*")
        had_star = had_star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        parts.append(_plain(str(p)))
    is_class = inspect.isclass(value) or found.return_annotation in (found.empty, "None")
    end = ")" if is_class else f") -> {_plain(str(found.return_annotation))}"
    line = f"{name}({', '.join(parts)}{end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), end])


def _plain(text: str) -> str:
    """A parameter without the quotes of its type, and with a default that does not vary."""
    text = re.sub(r"^(\**\w+: )'([^']*)'", r"\1\2", text)
    text = re.sub(r"^'([^']*)'$", r"\1", text)
    for pattern, shown in _DEFAULTS:
        text = re.sub(pattern, shown, text)
    return text


def docstring(value: Any) -> str:
    """A docstring as Markdown: its sections become lists, aligned lines stay as they are."""
    lines = inspect.cleandoc(value.__doc__ or "").splitlines()
    parts: list[str] = []
    while lines:
        line = lines.pop(0)
        if section := _SECTION.match(line):
            block = []
            while lines and (not lines[0] or lines[0].startswith("    ")):
                block.append(lines.pop(0))
            parts += [f"*{section[1]}*", "", *_items(block), ""]
        else:
            parts.append(line)
    paragraphs: list[str] = []
    for paragraph in "\n".join(parts).strip().split("\n\n"):
        if paragraphs and all(text.startswith("    ") for text in (paragraphs[-1], paragraph)):
            paragraphs[-1] += f"\n\n{paragraph}"  # blank lines within code do not end it
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(_shown(paragraph) for paragraph in paragraphs)


def _items(block: list[str]) -> list[str]:
    """The entries of a section; a line that is indented further continues the one before."""
    entries: list[str] = []
    for line in filter(str.strip, block):
        if line.startswith("     ") and entries:
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line.strip())
    found = [(_ENTRY.match(entry), entry) for entry in entries]
    return [f"- `{match[1]}`: {match[2]}" if match else f"- {entry}" for match, entry in found]


def _shown(paragraph: str) -> str:
    if paragraph.startswith("    "):
        # not as Python, which ruff would format: a test compares the page with what is written here
        return f"```text\n{inspect.cleandoc(paragraph)}\n```"
    if re.search(r"^\S+ {2,}\S", paragraph, re.MULTILINE):
        return f"```\n{paragraph}\n```"
    is_list = paragraph.startswith("- ")
    return paragraph if is_list else " ".join(paragraph.split())
