"""docs/cli.md against the commands: options, exit codes and JSON fields, in both directions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import click
import pytest

from tests.unit.cli.documented import DOCUMENT, FIELDS, SECTIONS, check_fields
from tilesight import errors
from tilesight.cli.main import COMMANDS, EXIT_BROKEN_PIPE, EXIT_INTERNAL, EXIT_INTERRUPT, cli, main

OURS = [name for name in COMMANDS if name != "db"]
CONFIG = "block=7,stages=2,swizzle=true"
NOT_OF_RANK = {
    "--effort",
    "--dynamic",
    "--misses",
    "--limit",
    "--protocol",
    "--cluster",
}  # it measures nothing; else its options are those of tune


def leaves() -> Iterator[tuple[str, str, click.Command]]:
    """Every command but those of the database: its section, how that calls it, and the command."""
    for name in OURS:
        found = cli.get_command(click.Context(cli), name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from ((name, f"`{child}` takes ", command) for child, command in found.commands.items())
        else:
            yield name, "Takes ", found


@pytest.mark.parametrize(("name", "takes", "command"), list(leaves()), ids=lambda value: value if isinstance(value, str) else "")
def test_options_are_documented(name: str, takes: str, command: click.Command) -> None:
    options = {option for p in command.params if isinstance(p, click.Option) and not p.hidden for option in p.opts}
    text = SECTIONS["tilesight tune"] if name == "rank" else SECTIONS[f"tilesight {name}"]
    listed = set(re.findall(r"`(--[\w-]+)`", "".join(line for line in text.splitlines() if f"{takes}`--" in line)))
    assert listed - (NOT_OF_RANK if name == "rank" else set()) == options
    for option in options:
        assert re.search(rf"^\| `{option}( [\w=.]+)?` \|", SECTIONS["Options that several commands share"], re.MULTILINE), option


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
    answers = []
    for call in calls:
        with pytest.raises(SystemExit) as ended:
            main([*call, "--json"])
        assert ended.value.code == 0
        answers.append(json.loads(capsys.readouterr().out))
    check_fields(command, answers)


def test_every_json_is_documented() -> None:
    """The fields of build, calibrate, collect, model, plan and replay are checked beside their other tests."""
    headings = " ".join(FIELDS)
    for name, takes, command in leaves():
        if "--json" in [option for p in command.params for option in p.opts]:
            child = "" if takes == "Takes " else f" {command.name}"
            assert f"`{name}{child} --json`" in headings
