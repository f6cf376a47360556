"""Writes the generated parts of the pages of docs/: `python docs/generate.py`.

The option tables of cli.md come from the commands (click), those of kernels.md from the operators and their
templates. The tables of packages and modules in architecture.md come from the first sentence of each
docstring, python.md from signatures and docstrings, schema.md from the tables of the database, and the
figures of targets.md from the rules by which target files are checked. A generated part stands between two
marker lines; the text around it is written by hand. A test checks that the pages are up to date.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import sqlalchemy
from python_reference import python

from tilesight import errors
from tilesight.cli.commands import cli
from tilesight.database.schema import tables
from tilesight.database.schema.descriptions import DESCRIPTIONS, column_text, unit
from tilesight.database.schema.views import VIEWS
from tilesight.kernels import operator, operators, templates
from tilesight.problem.operator import Operator
from tilesight.target.fields import FIGURES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CLI, ARCHITECTURE, KERNELS = DOCS / "cli.md", DOCS / "architecture.md", DOCS / "kernels.md"
PYTHON, SCHEMA, TARGETS = DOCS / "python.md", DOCS / "schema.md", DOCS / "targets.md"
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
    "tracing",
    *("explanation", "dispatch", "decorator", "planner", "rechecking", "tracesets"),
    *("exporter", "reports", "pages", "api", "research"),
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


def command_line(name: str) -> str:
    """A table of cli.md: `options of db gc`, `exit codes` of the errors, or the places of `json` fields."""
    if name == "exit codes":
        rows = [(f"`{error.__name__}`", str(error.exit_code)) for error in _errors(errors.TileSightError)]
        return _table(("error in Python", "exit code of the command"), rows)
    if name == "json":
        with_json = [n for n, c in commands().items() if any("--json" in p.opts for p in c.params)]
        return _table(("command", "its fields"), [(f"`{n} --json`", _json_fields(n)) for n in with_json])
    return _options(name)


def _errors(error: type[errors.TileSightError]) -> Iterator[type[errors.TileSightError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _errors(child)


def _json_fields(name: str) -> str:
    """A link to the heading under which the fields of a command stand."""
    if name.startswith("db "):
        return "[fields](database.md#json-of-the-commands)"
    headings = re.findall(r"^### (Fields of .*)$", CLI.read_text(encoding="utf-8"), re.MULTILINE)
    heading = next(heading for heading in headings if f"`{name} --json`" in heading)
    return f"[fields](#{re.sub(r'[^a-z_ -]', '', heading.lower()).replace(' ', '-')})"


def _options(name: str) -> str:
    """The table of options of a command."""
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


def schema(name: str) -> str:
    """The columns of all `tables`, or of all `views`, of the database."""
    if name == "views":
        engine = sqlalchemy.create_engine("sqlite://")
        with engine.begin() as connection:
            tables.metadata.create_all(connection)
            for view, query in VIEWS.items():
                connection.exec_driver_sql(f"CREATE VIEW {view} AS {query}")
            found = sqlalchemy.inspect(connection)
            columns = {view: [column["name"] for column in found.get_columns(view)] for view in VIEWS}
        return "\n".join(_section(view, [_described(view, name) for name in columns[view]]) for view in VIEWS)
    return "\n".join(_columns(table) for table in tables.metadata.tables.values())


def _columns(table: sqlalchemy.Table) -> str:
    rows = []
    for column in table.columns:
        aims = [f"`{key.target_fullname}`" for key in column.foreign_keys]
        notes = [*(["key"] if column.primary_key else []), *(f"refers to {aim}" for aim in aims)]
        kind = column.type.as_generic().__visit_name__.replace("_", " ").lower()
        may = "yes" if column.nullable else ""
        rows.append((*_described(table.name, column.name), kind, may, "; ".join(notes)))
    return _section(table.name, rows, "type", "may be empty", "key")


def _described(table: str, column: str) -> tuple[str, str, str]:
    return f"`{column}`", column_text(table, column), unit(column)


def _section(table: str, rows: Sequence[tuple[str, ...]], *further: str) -> str:
    text = DESCRIPTIONS[table].text
    return f"### {table}\n{text}\n\n{_table(('column', 'meaning', 'unit', *further), rows)}"


def figures(_: str) -> str:
    """The table of all figures that a target file may have."""
    rows = [
        (f"`{path}`", rule.unit, rule.meaning.replace("|", "\\|"), ", ".join(rule.required))
        for path, rule in FIGURES.items()
    ]
    return _table(("figure", "unit", "meaning", "required of"), rows)


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
    kind = "number" if isinstance(default, float) else "whole number"
    return text if others else f"{text}, or another {kind}"


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


PAGES = (
    *((CLI, command_line), (ARCHITECTURE, modules), (KERNELS, kernels)),
    *((PYTHON, python), (SCHEMA, schema), (TARGETS, figures)),
)

if __name__ == "__main__":
    main()
