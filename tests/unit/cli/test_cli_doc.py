"""docs/cli.md has every command, exit code and JSON field, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import click
import pytest

from tests.unit.cli.documented import DOCUMENT, FIELDS, SECTIONS, check_fields
from tilesight import errors
from tilesight.cli.commands import COMMANDS, EXIT_INTERNAL, cli
from tilesight.cli.interrupts import EXIT_CODES
from tilesight.cli.main import EXIT_BROKEN_PIPE, main

CONFIG = "block=7,stages=2,swizzle=true"


def leaves() -> Iterator[tuple[str, str, click.Command]]:
    """Every command: its section in docs/cli.md, its full name, and the command."""
    for section in COMMANDS:
        found = cli.get_command(click.Context(cli), section)
        assert found is not None
        if isinstance(found, click.Group):
            yield from ((section, f"{section} {child}", command) for child, command in found.commands.items())
        else:
            yield section, section, found


def test_every_command_has_its_options_in_its_section() -> None:
    """The tables themselves are generated: tests/unit/test_docs.py."""
    for section, name, _ in leaves():
        assert f"<!-- generated: options of {name} -->" in SECTIONS[f"tilesight {section}"], name


def test_every_command_has_a_section() -> None:
    titles = {title.removeprefix("tilesight ") for title in SECTIONS if title.startswith("tilesight ")}
    assert titles == set(COMMANDS)


def test_exit_codes() -> None:
    pending: list[type[errors.TileSightError]] = [errors.TileSightError]
    codes = {0, EXIT_INTERNAL, EXIT_BROKEN_PIPE, *EXIT_CODES.values()}
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
        ("bench", [["bench", "axpy", "--target", "cpu"]]),
        ("explain", [["explain", "axpy", "--target", "cpu", "--config", "block=7,stages=1,swizzle=true"]]),
        (
            "space",
            [["space", "axpy", "--target", "cpu"], ["space", "axpy", "--target", "cpu", "--config", CONFIG]],
        ),
        ("kernels", [["kernels"]]),
        ("targets", [["targets"], ["targets", "h200"], ["targets", "h200x4"]]),
        ("doctor", [["doctor"]]),
    ],
)
def test_json_fields_are_documented(
    command: str, calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for call in calls:
        with pytest.raises(SystemExit) as ended:
            main([*call, "--json"])
        assert ended.value.code == 0
        answers.append(json.loads(capsys.readouterr().out))
    check_fields(command, answers)


def test_every_json_is_documented() -> None:
    """Other tests check the fields of build, calibrate, collect, model, plan, replay and db."""
    headings = " ".join(FIELDS)
    for section, name, command in leaves():
        if section != "db" and "--json" in [option for p in command.params for option in p.opts]:
            assert f"`{name} --json`" in headings
