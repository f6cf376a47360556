"""The documents: links and paths exist, commands parse, examples run, generated parts are up to date."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import tilesight
from tests.support.preloaded import run_python
from tests.unit.pages import samples
from tilesight.cli.commands import cli
from tilesight.costmodel.learned.model_file import read_card, shipped

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

MOST_WORDS = 700  # of the README
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
MACHINE_PATH = re.compile(r"(?<![\w./:~-])/(?:root|home|tmp|work|Users|mnt|opt|usr|var)/\w+")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# a file or folder of the project, in backticks
PATH = re.compile(
    r"`((?:tilesight|costmodel|database|kernels|search_spaces|experiments|tests|docs)/[\w./-]*)`"
)

NOT_IN_A_CHECKOUT = {"tilesight/database/shipped.db"}  # a package may carry one


def blocks(language: str, documents: list[Path] = DOCUMENTS) -> Iterator[str]:
    for document in documents:
        for found, text in BLOCK.findall(document.read_text(encoding="utf-8")):
            if found == language:
                yield text


def shell_commands() -> list[str]:
    """Commands of shell blocks and, after a `$`, of console blocks; continued lines are joined."""
    lines = [line for text in blocks("sh") for line in text.replace("\\\n", " ").splitlines()]
    consoles = [line for text in blocks("console") for line in text.replace("\\\n", " ").splitlines()]
    lines += [line[2:] for line in consoles if line.startswith("$ ")]
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def anchor(heading: str) -> str:
    """The fragment under which GitHub shows a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def program(name: str) -> ModuleType:
    """A program of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(DOCS))  # programs find their neighbours, as when they are run
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS))
    return module


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
def test_paths_are_of_the_project_and_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert MACHINE_PATH.findall(text) == []
    paths = {path for path in PATH.findall(text) if "NNNN" not in path} - NOT_IN_A_CHECKOUT
    assert {path for path in paths if not any(ROOT.glob(path.rstrip("/")))} == set()


def test_the_index_lists_every_page() -> None:
    linked = {
        link.partition("#")[0] for link in LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    }
    assert {page.name for page in PAGES} - linked == {"index.md"}


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
    known = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known | {"--help"}
    if words and "--help" not in words:
        # parses as click would: required arguments are there, choices are known; nothing is run
        found.make_context(found.name, words, parent=context, resilient_parsing=False)


def test_python_examples_are_python() -> None:
    for text in blocks("python"):
        compile(text, "example", "exec")
        for name in re.findall(r"(?<![\w.])tilesight\.(\w+)", text):
            assert hasattr(tilesight, name), name
        for names in re.findall(r"^from tilesight import ([\w, ]+)", text, re.MULTILINE):
            assert all(hasattr(tilesight, name.strip()) for name in names.split(",")), names


@pytest.mark.full
def test_predict_example_runs(tmp_path: Path) -> None:
    [example] = [text for text in blocks("python", [README]) if "tilesight.predict(" in text]
    script = tmp_path / "example.py"  # TileLang reads a kernel's source from its file
    script.write_text(example, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_python(script, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = re.search(r"predicted time: ([\d.]+) us", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > 0


@pytest.mark.full
def test_the_tutorial_runs(tmp_path: Path) -> None:
    """All its blocks in their order: Python is written to the named file, console lines are run."""
    folder, home = tmp_path / "tutorial", str(tmp_path)
    folder.mkdir()
    environment = {
        **os.environ,
        "TILESIGHT_CACHE_DIR": f"{home}/cache",
        "TILESIGHT_DB": f"{home}/tutorial.db",
    }
    for name in ("TILESIGHT_KERNELS", "TILESIGHT_LAYERS", "TILESIGHT_WORKERS"):
        environment.pop(name, None)
    environment["PYTHONPATH"] = str(ROOT)
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    for language, block in BLOCK.findall(text):
        if language == "python":
            (folder / block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")
        elif language == "console":
            _run_console(block, folder, environment)
    assert {path.name for path in folder.glob("*.py")} == set(
        re.findall(r"^# (\w+\.py)$", text, re.MULTILINE)
    )


def _run_console(block: str, folder: Path, environment: dict[str, str]) -> None:
    """Run the lines after `$`; each line shown below a command must be in its output, but for numbers."""
    for part in block.split("$ ")[1:]:
        command, *shown = part.splitlines()
        words = shlex.split(command)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            environment[name] = f"{value}{os.pathsep}{ROOT}" if name == "PYTHONPATH" else value
            continue
        ours = {"python": [], "tilesight": ["-m", "tilesight.cli.main"]}
        done = run_python(*ours[words[0]], *words[1:], cwd=folder, env=environment, is_parent=True)
        assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
        written = {_plain(line) for line in (done.stdout + done.stderr).splitlines()}
        assert {_plain(line) for line in shown if "[...]" not in line} - written == set(), command


def _plain(line: str) -> str:
    """A line of output without its numbers and without the name of the processor that measured."""
    return " ".join(re.sub(r"\d+(\.\d+)?", "0", re.sub(r"measured on .*", "", line)).split())


def test_the_example_of_a_model_predicts() -> None:
    [example] = blocks("python", [DOCS / "own_model.md"])
    names: dict[str, Any] = {}
    exec(example, names)
    model, target = names["Spilling"](), tilesight.load_target("h200")
    for spills in (False, True):
        kernel = samples.profile()
        if spills:
            [role] = kernel.roles
            kernel = replace(kernel, roles=(replace(role, registers_limit=32, local_registers=200),))
        found, base = (each.predict([kernel], target) for each in (model, model.base))
        assert (base.terms_us["spills"] > 0) == spills
        assert found.latency_us == (2 if spills else 1) * base.latency_us
    assert model.version != model.base.version


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [c for c in shell_commands() if c.startswith("make ")]
    words = [word for line in lines for word in shlex.split(line, comments=True)[1:]]
    shown = {word for word in words if re.fullmatch(r"[a-z-]+", word)}
    assert {"tune", "test"} <= shown
    for target in shown:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_readme_is_short_and_opens_with_the_two_commands() -> None:
    text = README.read_text(encoding="utf-8")
    first = BLOCK.search(text)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first[2].splitlines()] == ["make tune", "make test"]
    assert len(text.split()) <= MOST_WORDS


def test_readme_states_the_scores_of_the_model_that_ships() -> None:
    text = README.read_text(encoding="utf-8")
    for one in read_card(shipped())["held_out"]:
        scores = one["models"]["both"]
        found = f"{100 * scores['top1']:.1f} %", f"{100 * scores['top1_worst']:.0f} %"
        if one["split"] == "shape":
            stated = f"{found[0]} of the best measured speed of a sample (geometric mean; worst {found[1]})"
        else:
            stated = f"on operators that it had not seen {found[0]} ({found[1]})"
        assert stated in text, stated


def test_every_dependency_is_justified() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(line for extra in extras.values() for line in extra)]:
        name = re.split(r"[\[<>=~!; ]", requirement)[0]
        if name == project["name"]:  # an extra that takes in others
            continue
        line = re.search(rf"^\| `{re.escape(name)}`", ARCHITECTURE, re.MULTILINE)
        assert line, f"{name} has no line in docs/architecture.md"


def test_generated_parts_are_up_to_date() -> None:
    generate = program("generate")
    for path, write in generate.PAGES:
        text = path.read_text(encoding="utf-8")
        assert generate.page(text, write) == text, f"{path.name}: run `python docs/generate.py`"


def test_every_package_and_module_has_its_place() -> None:
    generate = program("generate")
    packages = {path.parent.name for path in (ROOT / "tilesight").glob("*/__init__.py")}
    assert set(generate.PACKAGES) == packages
    text = generate.modules("modules")
    for path in (ROOT / "tilesight").rglob("*.py"):
        if path.name != "__init__.py" and "migrations" not in path.parts:
            assert re.search(rf"^\| `{path.name}` \| \S", text, re.MULTILINE), f"{path} has no docstring"


def test_pictures_are_up_to_date() -> None:
    for name, draw in program("draw_line").PICTURES.items():
        assert draw() == (DOCS / name).read_text(encoding="utf-8"), "run `python docs/draw_line.py`"


def test_the_page_of_the_architecture_has_the_layers() -> None:
    [contract, *_] = PROJECT["tool"]["importlinter"]["contracts"]
    assert "\n".join(contract["layers"]) in ARCHITECTURE


def test_values_are_in_their_modules() -> None:
    rows = re.findall(r"^\| (`.*?) \| `([\w/]+\.py)` \|", ARCHITECTURE, re.MULTILINE)
    assert len(rows) >= 15
    for names, path in rows:
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^class {name}\b", source, re.MULTILINE), f"{name} is not in {path}"


def test_the_model_page_counts_the_kernels_of_the_datasets() -> None:
    card = json.loads((ROOT / "costmodel" / "pretrained" / "card.json").read_text(encoding="utf-8"))
    rows = f"{card['data']['rows']:,}"
    assert f"{rows} verified candidates" in (DOCS / "model.md").read_text(encoding="utf-8")
