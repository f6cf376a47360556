"""Writes a target as the text of its file, which `parse_target` reads back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ..target.spec import FIGURES, Figure, Target


def target_text(target: Target, heading: str) -> str:
    """The text of the file, with `heading` as a comment at its top.

    Of several devices the file names their unit, whose figures it leaves out. The target must come from a
    file, which says what the unit is.
    """
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    if target.levels:
        return "\n".join([*lines, *_devices(target)]) + "\n"
    for name, value in (
        ("name", target.name),
        ("title", target.title),
        ("kind", target.kind),
        ("arch", target.arch),
    ):
        lines.append(f"{name} = {_text(value)}")
    for name, values in (("device_names", target.device_names), ("dtypes", target.dtypes)):
        lines.append(f"{name} = [{', '.join(map(_text, values))}]")
    paths = (*FIGURES, *(path for path in target.figures if path not in FIGURES))
    lines += _tables((path for path in paths if path in target.figures), target.figures, {})
    return "\n".join(lines) + "\n"


def _devices(target: Target) -> list[str]:
    """The lines of a file that describes several devices."""
    own = target.levels[-target.own_levels :]
    lines = [
        f"name = {_text(target.name)}",
        f"title = {_text(target.title)}",
        f"unit = {_text(target.unit)}",
        f"levels = [{', '.join(_text(level.name) for level in own)}]",
    ]
    for level in own:
        facts = [
            f"topology = {_text(level.topology)}",
            f"link = {_text(level.link)}",
            f"multicast = {'true' if level.multicast else 'false'}",
        ]
        lines += _tables(level.paths(), level.paths(), {level.name: facts})
    return lines


def _tables(paths: Iterable[str], figures: Mapping[str, Figure], begun: Mapping[str, list[str]]) -> list[str]:
    """The lines of tables with the figures at `paths`; `begun` are lines at the top of a table."""
    tables = {table: list(lines) for table, lines in begun.items()}
    for path in paths:
        table, _, name = path.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {_figure(figures[path])}")
    lines: list[str] = []
    for table, entries in tables.items():
        lines += ["", f"[{table}]", *entries]
    return lines


def _figure(figure: Figure) -> str:
    source = f", source = {_text(figure.source)}" if figure.source else ""
    return f'{{ value = {number(figure.value)}, provenance = "{figure.provenance}"{source} }}'


def number(value: float) -> str:
    """A number in TOML; integers without a decimal point."""
    return str(int(value)) if value == int(value) else repr(value)


def _text(value: str) -> str:
    # JSON strings are TOML strings, except that TOML needs DEL escaped
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
