"""The repository's layout: four top-level folders are packages of `tilesight`, here and in the wheel; names
and layers.
"""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tilesight

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("costmodel", "database", "kernels", "search_spaces")

BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def build(step: str, source: Path, out: Path) -> Path:
    """Run one step of setuptools' build interface in `source`, in a process of its own; the file that it
    made.
    """
    done = subprocess.run(
        [sys.executable, "-c", BUILD, step, str(out)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist, built from a copy of the working tree."""
    work = tmp_path_factory.mktemp("wheel")
    tree = work / "tree"
    tree.mkdir()
    for name in ("tilesight", *LINKED):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    with tarfile.open(build("build_sdist", tree, work)) as sdist:
        sdist.extractall(work / "unpacked", filter="data")
    return build("build_wheel", next((work / "unpacked").iterdir()), work)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was unpacked, as an installer does for a pure Python one."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run_installed(site: Path, code: str) -> str:
    """The output of `code` with the unpacked wheel first on the path, run outside of the checkout."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize("name", LINKED)
def test_folder_is_imported_under_tilesight(name: str) -> None:
    module = importlib.import_module(f"tilesight.{name}")
    assert module.__file__ is not None
    assert Path(module.__file__).resolve().is_relative_to(ROOT / name)


@pytest.mark.parametrize("name", LINKED)
def test_link_is_relative(name: str) -> None:
    assert os.readlink(ROOT / "tilesight" / name) == f"../{name}"


def test_wheel_claims_no_other_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.split("/")[0] for name in archive.namelist()}
    assert top == {"tilesight", f"tilesight-{tilesight.__version__}.dist-info"}


def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("tilesight/")}
    # the links are followed by hand: before Python 3.13 `rglob` may or may not
    folders = {"tilesight": ROOT / "tilesight", **{f"tilesight/{name}": ROOT / name for name in LINKED}}
    present = {
        f"{prefix}/{path.relative_to(folder).as_posix()}"
        for prefix, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not (prefix == "tilesight" and path.relative_to(folder).parts[0] in LINKED)
    }
    assert shipped == present


def test_wheel_finds_its_code_and_data(installed: Path) -> None:
    code = (
        "import tilesight, tilesight.costmodel, tilesight.database\n"
        "import tilesight.kernels, tilesight.search_spaces\n"
        "from tilesight.target.spec import load_target, node_names, target_names\n"
        "print(tilesight.__file__, *(load_target(name).name for name in target_names() + node_names()))"
    )
    where, *names = run_installed(installed, code).split()
    assert Path(where).is_relative_to(installed)
    assert names[:5] == ["a100", "cpu", "h100", "h200", "mi300x"]
    assert names[5:] == ["h100x2", "h100x4", "h100x8", "h200x2", "h200x4", "h200x8"]


def test_wheel_has_the_files_of_pages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"tilesight/pages/{name}" for name in ("page.css", "page.js", "charts.js")} <= names


def test_wheel_has_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(f"tilesight-{tilesight.__version__}.dist-info/entry_points.txt").decode()
    assert "tilesight = tilesight.cli.main:main" in entry_points


# ---- the shape of the product's code

PRODUCT = sorted(path for name in ("tilesight", *LINKED) for path in (ROOT / name).rglob("*.py"))
MOST_LOOSE_MODULES = 8  # modules of `tilesight` that lie in none of its packages
MOST_LAYERS = 14


def test_no_public_class_name_is_taken_twice() -> None:
    found: dict[str, set[Path]] = {}
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(path.resolve())
    assert len(found) > 100
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_protocol_is_a_name_of_typing_alone() -> None:
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.ClassDef(name="Protocol"):
                    pytest.fail(f"{path} defines a class Protocol")
                case ast.ImportFrom(module=module, names=names):
                    taken = [alias for alias in names if "Protocol" in (alias.name, alias.asname)]
                    assert not taken or module == "typing", path


def test_few_modules_lie_beside_the_packages() -> None:
    loose = {path.name for path in (ROOT / "tilesight").glob("*.py")} - {"__init__.py"}
    assert len(loose) <= MOST_LOOSE_MODULES, sorted(loose)


def test_the_import_contract_has_few_layers() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [layered] = [c for c in config["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    assert 1 < len(layered["layers"]) <= MOST_LAYERS
