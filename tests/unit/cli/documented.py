"""docs/cli.md, section by section, and whether JSON that a command wrote is what it says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
FIELDS = dict(re.findall(r"^### Fields of (.*?)\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))

# what a key of these maps to is data: names of resources, parameters, constraints, versions
OPEN = {
    *(
        "dims",
        "attrs",
        "software",
        "rejected",
        "counts",
        "failures",
        "config",
        "utilization",
        "terms_us",
        "launch",
        "per_block",
    ),
    *(
        "matrix_instructions",
        "unknown_calls",
        "registers",
        "default_config",
        "shapes",
        "nearest",
        "kept",
        "card",
        "compiled",
        "resources",
    ),
    *("table", "default_us", "served_by", "winner", "vendors_us"),
}


def fields_of(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*(fields_of(member) for member in value))
    if not isinstance(value, dict):
        return set()
    inner = [
        fields_of(member)
        for key, member in value.items()
        if not ((key in OPEN and not isinstance(member, list)) or key == "nearest")
    ]
    return set(value).union(*inner)


def check_fields(command: str, answers: Iterable[object]) -> None:
    """The JSON of several calls of a command has every field that docs/cli.md names, and no others."""
    written = fields_of(list(answers))
    (text,) = [text for heading, text in FIELDS.items() if f"`{command} --json`" in heading]
    for field in written:
        assert f"`{field}`" in text, f"field '{field}' of `tilesight {command} --json` is not in docs/cli.md"
    first_cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    documented = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} - {"candidates"}
    assert documented - written == set()
