"""docs/cli.md against the commands: options, exit codes and JSON fields, in both directions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from tilesight import errors
from tilesight.cli.main import COMMANDS, EXIT_BROKEN_PIPE, EXIT_INTERNAL, EXIT_INTERRUPT, cli, main

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
OURS = [name for name in COMMANDS if name != "db"]
CONFIG = "block=7,stages=2,swizzle=true"

# what a key of these maps to is data: names of resources, parameters, constraints, versions
OPEN = {
    *("dims", "attrs", "software", "rejected", "counts", "failures", "config", "utilization", "terms_us", "launch", "per_block"),
    *("matrix_instructions", "unknown_calls", "default_config", "shapes", "nearest"),
}


def section(command: str) -> str:
    return SECTIONS["tilesight rank" if command == "tune" else f"tilesight {command}"]


def fields_of(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*(fields_of(member) for member in value))
    if not isinstance(value, dict):
        return set()
    inner = [fields_of(member) for key, member in value.items() if not ((key in OPEN and not isinstance(member, list)) or key == "nearest")]
    return set(value).union(*inner)


@pytest.mark.parametrize("command", OURS)
def test_options_are_documented(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    options = {name for p in found.params if isinstance(p, click.Option) and not p.hidden for name in p.opts}
    text = SECTIONS["tilesight tune"] if command == "rank" else SECTIONS[f"tilesight {command}"]
    listed = set(re.findall(r"`(--\w+)`", "".join(line for line in text.splitlines() if "Takes `--" in line)))
    assert listed - ({"--effort"} if command == "rank" else set()) == options
    for option in options:
        assert re.search(rf"^\| `{option}( \w+)?` \|", SECTIONS["Options that several commands share"], re.MULTILINE)


def test_every_command_has_a_section() -> None:
    assert {title.removeprefix("tilesight ") for title in SECTIONS if title.startswith("tilesight ")} == set(OURS)


def test_exit_codes() -> None:
    pending: list[type[errors.TileSightError]] = [errors.TileSightError]
    codes = {0, EXIT_INTERNAL, EXIT_INTERRUPT, EXIT_BROKEN_PIPE}
    while pending:
        kind = pending.pop()
        codes.add(kind.exit_code)
        pending.extend(kind.__subclasses__())
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENT, re.MULTILINE)} == codes


@pytest.mark.usefixtures("fake_line")
@pytest.mark.parametrize(
    ("command", "calls"),
    [
        ("tune", [["tune", "axpy", "--target", "cpu"]]),
        ("rank", [["rank", "axpy", "--target", "cpu"]]),
        ("explain", [["explain", "axpy", "--target", "cpu", "--config", "block=7,stages=1,swizzle=true"]]),
        ("space", [["space", "axpy", "--target", "cpu"], ["space", "axpy", "--target", "cpu", "--config", CONFIG]]),
        ("kernels", [["kernels"]]),
        ("targets", [["targets"], ["targets", "h200"]]),
        ("doctor", [["doctor"]]),
    ],
)
def test_json_fields_are_documented(command: str, calls: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    written: set[str] = set()
    for call in calls:
        with pytest.raises(SystemExit) as ended:
            main([*call, "--json"])
        assert ended.value.code == 0
        written |= fields_of(json.loads(capsys.readouterr().out))
    text = section(command)
    text = text[text.index("### Fields of") :]
    for field in written:
        assert f"`{field}`" in text, f"field '{field}' of `tilesight {command} --json` is not in docs/cli.md"
    first_cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    documented = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} - {"candidates"}
    assert documented - written == set()
