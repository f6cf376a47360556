"""Writes a target as the text of its file, which `parse_target` reads back."""

from __future__ import annotations

import json

from ..target.spec import FIGURES, Figure, Target


def target_text(target: Target, heading: str) -> str:
    """The text of the file, with `heading` as a comment at its top."""
    lines = [*(f"# {line}".rstrip() for line in heading.splitlines())]
    for name, value in (
        ("name", target.name),
        ("title", target.title),
        ("kind", target.kind),
        ("arch", target.arch),
    ):
        lines.append(f"{name} = {_text(value)}")
    for name, values in (("device_names", target.device_names), ("dtypes", target.dtypes)):
        lines.append(f"{name} = [{', '.join(map(_text, values))}]")
    tables: dict[str, list[str]] = {}
    for path in (*FIGURES, *(path for path in target.figures if path not in FIGURES)):
        if path in target.figures:
            table, _, name = path.rpartition(".")
            tables.setdefault(table, []).append(f"{name} = {_figure(target.figures[path])}")
    for table, entries in tables.items():
        lines += ["", f"[{table}]", *entries]
    return "\n".join(lines) + "\n"


def _figure(figure: Figure) -> str:
    source = f", source = {_text(figure.source)}" if figure.source else ""
    return f'{{ value = {number(figure.value)}, provenance = "{figure.provenance}"{source} }}'


def number(value: float) -> str:
    """A number in TOML; integers without a decimal point."""
    return str(int(value)) if value == int(value) else repr(value)


def _text(value: str) -> str:
    # JSON strings are TOML strings, except that TOML needs DEL escaped
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
