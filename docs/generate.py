"""Writes the generated parts of three pages of docs/: `python docs/generate.py`.

The option tables of cli.md come from the commands (click), those of kernels.md from the operators and their
templates. The tables of packages and modules in architecture.md come from the first sentence of each
docstring. A generated part stands between two marker lines; the text around it is written by hand. A test
checks that the pages are up to date.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from tilesight.cli.commands import cli
from tilesight.kernels import operator, operators, templates
from tilesight.problem.operator import Operator

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CLI, ARCHITECTURE, KERNELS = DOCS / "cli.md", DOCS / "architecture.md", DOCS / "kernels.md"
BEGIN, END = "<!-- generated: {} -->", "<!-- end -->"
PART = re.compile(r"<!-- generated: ([^\n]*?) -->\n(.*?)<!-- end -->", re.DOTALL)

# in the order in which data passes them; a test compares them with the folders
PACKAGES = (
    *(
        "problem",
        "search_spaces",
        "kernels",
        "target",
        "machine",
        "lowering",
        "profile",
        "costmodel",
        "records",
    ),
    *("search", "builder", "runner", "workers", "executor", "tuner", "database", "calibration", "datasets"),
    *("explanation", "dispatch", "decorator", "planner", "rechecking", "exporter", "reports", "pages", "api"),
    "benchmarks",
    *("server", "cli"),
)
LINKED = (
    "costmodel",
    "database",
    "kernels",
    "search_spaces",
)  # folders beside tilesight/, which links to them


def main() -> None:
    for path, write in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8"), write), encoding="utf-8")


def page(text: str, write: Callable[[str], str]) -> str:
    """`text` with each generated part written again; `write` gets the name in its marker."""
    return PART.sub(lambda found: f"{BEGIN.format(found[1])}\n{write(found[1])}{END}", text)


def options(name: str) -> str:
    """The table of options of the command `name`, such as `options of db gc`."""
    found = filter(_is_shown, commands()[name.removeprefix("options of ")].params)
    return _table(("option", "meaning", "default"), [(_option(o), _meaning(o), _default(o)) for o in found])


def commands() -> dict[str, click.Command]:
    """All commands by their full names, those of groups among them."""
    found: dict[str, click.Command] = {}
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= {f"{name} {child}": member for child, member in command.commands.items()}
        else:
            found[name] = command
    return found


def modules(name: str) -> str:
    """The table `packages`, or the tables of all `modules` by package."""
    if name == "packages":
        folders = [ROOT / "tilesight" / package for package in PACKAGES]
        return _table(("package", "role"), [(f"`{_path(f)}/`", _summary(f / "__init__.py")) for f in folders])
    parts = [_table(("`tilesight/`", "role"), list(_rows(ROOT / "tilesight")))]
    for package in PACKAGES:
        for folder in _folders(ROOT / "tilesight" / package):
            parts.append(_table((f"`{_path(folder)}/`", "role"), list(_rows(folder))))
    return "\n".join(part for part in parts if part)


def kernels(name: str) -> str:
    """The table of all `operators`, or of their `attributes`, or of their `shapes`."""
    found = [operator(each) for each in operators()]
    if name == "operators":
        return _table(
            ("kernel", "what it computes", "dimensions", "element types", "targets"),
            [(f"`{o.name}`", _computes(o), _dims(o), ", ".join(o.dtypes), _kinds(o)) for o in found],
        )
    if name == "attributes":
        rows = [(f"`{o.name}`", f"`{a}`", _values(o, a)) for o in found for a in o.attrs]
        return _table(("kernel", "attribute", "values; the first is the default"), rows)
    return _table(
        ("kernel", "shapes"),
        [(f"`{o.name}`", ", ".join(f"`{shape}`" for shape in o.named)) for o in found],
    )


def _computes(found: Operator) -> str:
    module = sys.modules[type(found).__module__]
    summary = _summary(Path(str(module.__file__))).removeprefix(f"{found.name}: ")
    return re.split(r"[,;] and its templates?", summary)[0]


def _dims(found: Operator) -> str:
    dynamic = {dim for template in templates(found.name) for dim in template.dynamic_dims}
    return ", ".join(f"*{dim}*" if dim in dynamic else dim for dim in found.dims)


def _kinds(found: Operator) -> str:
    kinds = {kind for template in templates(found.name) for kind in template.target_kinds}
    return ", ".join(sorted(kinds))


def _values(found: Operator, attribute: str) -> str:
    default = found.attrs[attribute]
    others = (False, True) if isinstance(default, bool) else found.choices.get(attribute, ())
    listed = [default, *(value for value in others if value != default)]
    text = ", ".join(f"`{str(v).lower() if isinstance(v, bool) else v}`" for v in listed)
    return text if others else f"{text}, or another whole number"


def _is_shown(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not parameter.hidden


def _option(option: click.Parameter) -> str:
    assert isinstance(option, click.Option)
    name = str(option.name)[0] if isinstance(option.type, click.Choice) else option.type.name
    value = option.metavar or ("" if option.is_flag else name.upper())
    return f"`{' '.join(filter(None, [option.opts[0], value]))}`"


_DEFAULT = re.compile(r"\s*\[default: (.*)\]$")


def _meaning(option: click.Parameter) -> str:
    assert isinstance(option, click.Option)
    text = _DEFAULT.sub("", option.help or "").rstrip(".")
    if isinstance(option.type, click.Choice) and not all(
        f"`{choice}`" in text for choice in option.type.choices
    ):
        text += ": " + ", ".join(f"`{choice}`" for choice in option.type.choices)
    return text.replace("|", "\\|")


def _default(option: click.Parameter) -> str:
    assert isinstance(option, click.Option)
    written = _DEFAULT.search(option.help or "")
    if written:
        return written[1]
    return f"`{option.default}`" if option.show_default and not option.is_flag else ""


def _folders(folder: Path) -> Iterator[Path]:
    yield folder
    for child in sorted(folder.iterdir()):
        if (child / "__init__.py").exists() and child.name != "migrations":
            yield from _folders(child)


def _rows(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield f"`{path.name}`", _summary(path)


def _summary(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.match(r"(.+?[^.][.])(?= [A-Z`]|$)", paragraph)
    return (sentence[1] if sentence else paragraph).rstrip(".").replace("|", "\\|")


def _path(folder: Path) -> str:
    parts = folder.relative_to(ROOT / "tilesight").parts
    return "/".join(parts if parts[0] in LINKED else ("tilesight", *parts))


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in (heading, *rows)]
    return "".join([lines[0], "|---" * len(heading) + "|\n", *lines[1:]])


PAGES = ((CLI, options), (ARCHITECTURE, modules), (KERNELS, kernels))

if __name__ == "__main__":
    main()
