"""The documents hold what they say: commands and options exist, links lead somewhere, lists are complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tilesight
from tilesight.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
MACHINE_PATH = re.compile(r"(?<![\w./:~-])/(?:root|home|tmp|work|Users|mnt|opt|usr|var)/\w+")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> Iterator[str]:
    for document in DOCUMENTS:
        for found, text in BLOCK.findall(document.read_text(encoding="utf-8")):
            if found == language:
                yield text


def shell_commands() -> list[str]:
    """Lines of shell blocks, without comments and continuations joined; in `console` blocks those after a `$`."""
    lines = [line for text in blocks("sh") for line in text.replace("\\\n", " ").splitlines()]
    lines += [line[2:] for text in blocks("console") for line in text.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def anchor(heading: str) -> str:
    """The fragment under which GitHub shows a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in LINK.findall(document.read_text(encoding="utf-8")):
        if link.startswith(("https://", "http://")):
            continue
        path, _, fragment = link.partition("#")
        aim = (document.parent / path).resolve() if path else document
        assert aim.exists(), f"{document.name}: {link}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", aim.read_text(encoding="utf-8"), re.MULTILINE)
            assert fragment in {anchor(h) for h in headings}, f"{document.name}: {link}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_path_of_one_machine(document: Path) -> None:
    assert MACHINE_PATH.findall(document.read_text(encoding="utf-8")) == []


def test_documents_show_commands() -> None:
    assert len([c for c in shell_commands() if c.startswith("tilesight ")]) >= 10


@pytest.mark.parametrize("command", sorted({c for c in shell_commands() if c.startswith("tilesight ")}))
def test_command_exists(command: str) -> None:
    words = shlex.split(command, comments=True)[1:]
    found: click.Command = cli
    context = click.Context(cli, info_name="tilesight")
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        child = found.get_command(context, words[0])
        assert child is not None, f"no command '{words[0]}' in: {command}"
        found, words = child, words[1:]
    options = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= options
    if words and "--help" not in words:
        # parses as click would: required arguments are there, choices are known; nothing is run
        found.make_context(found.name, words, parent=context, resilient_parsing=False)


def test_python_examples_are_python() -> None:
    for text in blocks("python"):
        compile(text, "example", "exec")
        for name in re.findall(r"\btilesight\.(\w+)", text):
            assert hasattr(tilesight, name), name


def test_predict_example_runs(tmp_path: Path) -> None:
    [example] = [text for text in blocks("python") if "tilesight.predict(" in text]
    script = tmp_path / "example.py"  # TileLang reads a kernel's source from its file
    script.write_text(example, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[0]) > 0


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    words = [word for c in shell_commands() if c.startswith("make ") for word in shlex.split(c, comments=True)[1:]]
    shown = {word for word in words if re.fullmatch(r"[a-z-]+", word)}
    assert {"tune", "test"} <= shown
    for target in shown:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_readme_opens_with_the_two_commands() -> None:
    first = BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert first is not None
    assert [line.split("#")[0].strip() for line in first[2].splitlines()] == ["make tune", "make test"]


def test_every_dependency_is_justified() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(line for extra in extras.values() for line in extra)]:
        name = re.split(r"[\[<>=~!; ]", requirement)[0]
        if name == project["name"]:  # an extra that takes in others
            continue
        assert re.search(rf"^\| `{re.escape(name)}`", ARCHITECTURE, re.MULTILINE), f"{name} has no line in docs/architecture.md"


def test_every_module_has_its_place() -> None:
    for folder in ("tilesight", "costmodel", "database", "kernels", "search_spaces"):
        for path in (ROOT / folder).glob("*.py"):
            named = any(f"`{name}`" in ARCHITECTURE for name in (path.name, f"{folder}/{path.name}"))
            assert named or path.name.startswith("__"), f"{folder}/{path.name} is not in docs/architecture.md"


def test_every_package_has_its_place() -> None:
    packages = {path.parent.name for path in (ROOT / "tilesight").glob("*/__init__.py")}
    assert packages >= {"workers", "measuring", "distributed"}
    for name in packages:
        assert f"`{name}/`" in ARCHITECTURE or f"### {name}" in ARCHITECTURE or f", {name}:" in ARCHITECTURE, name


def test_tables_of_packages_are_complete() -> None:
    tables = dict(re.findall(r"^\| `(\w+)/` \| role \|\n(.*?)(?=\n\n)", ARCHITECTURE, re.MULTILINE | re.DOTALL))
    assert set(tables) == {"workers", "measuring", "distributed", "autotuning", "planning", "dispatch"}
    for folder, table in tables.items():
        modules = {path.name for path in (ROOT / "tilesight" / folder).glob("*.py") if path.name != "__init__.py"}
        assert set(re.findall(r"`(\w+\.py)`", table)) == modules, folder
