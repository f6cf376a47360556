"""The release: wheel and sdist are built and installed in a clean environment, with what they need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tilesight

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
STEP = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
OFFLINE = ("No matching distribution", "Could not find a version", "Connection", "Temporary failure")


def run(*command: object, cwd: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist, built from the files that git knows."""
    work = tmp_path_factory.mktemp("release")
    tree = work / "tree"
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    sdist = run(sys.executable, "-c", STEP, "build_sdist", work, cwd=tree).splitlines()[-1]
    shutil.unpack_archive(work / sdist, work / "unpacked", filter="data")
    [unpacked] = (work / "unpacked").iterdir()
    return work / run(sys.executable, "-c", STEP, "build_wheel", work, cwd=unpacked).splitlines()[-1]


def needed_by(made: metadata.Distribution) -> list[metadata.Distribution]:
    """The installed packages that `made` needs, directly or by others, without optional ones."""
    found: dict[str, metadata.Distribution] = {}
    left = [made]
    while left:
        for text in left.pop().requires or ():
            need = Requirement(text)
            name = canonicalize_name(need.name)
            if name not in found and (need.marker is None or need.marker.evaluate({"extra": ""})):
                found[name] = metadata.distribution(need.name)
                left.append(found[name])
    return list(found.values())


def link_packages(packages: Iterable[metadata.Distribution], site: Path) -> None:
    """Put links to the folders and files of `packages` into the folder `site`."""
    for package in packages:
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():  # several packages may share a folder
                (site / name).symlink_to(package.locate_file(name))


def install_from_index(python: Path, wheel: Path, folder: Path) -> None:
    """Install `wheel` and what it needs for `python`. Skips the test if no index has it."""
    torch, index = (
        re.findall(rf"^{name} := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0]
        for name in ("TORCH_CPU", "TORCH_CPU_INDEX")
    )
    try:
        pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--retries", "1"]
        run(*pip, "--extra-index-url", index, torch, wheel, cwd=folder)
    except AssertionError as error:
        if not any(text in str(error) for text in OFFLINE):
            raise
        pytest.skip("no package index here has what TileSight needs for this Python")


@pytest.mark.parametrize(
    "version", [v if v == OURS else pytest.param(v, marks=pytest.mark.full) for v in PYTHONS]
)
def test_the_wheel_works_in_a_clean_environment(version: str, wheel: Path, tmp_path: Path) -> None:
    """With the packages that it asks for, directly or by others, and no more.

    For the interpreter at hand these are links to the packages of the environment that runs the tests, which
    were installed by the same requirements: to install them once more takes a minute. Another interpreter
    takes them from an index, with the CPU build of PyTorch.
    """
    is_ours = version == OURS
    python = sys.executable if is_ours else shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", "import ensurepip"], capture_output=True).returncode:
        pytest.skip(f"Python {version} is not here, or cannot make environments")
    run(python, "-m", "venv", *(["--without-pip"] if is_ours else []), tmp_path / "venv", cwd=tmp_path)
    bin_folder = tmp_path / "venv" / "bin"
    if is_ours:
        pip = [python, "-m", "pip", "--python", bin_folder / "python"]
        run(*pip, "install", "--quiet", "--no-compile", "--no-deps", wheel, cwd=tmp_path)
        [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
        [made] = metadata.distributions(name="tilesight", path=[str(site)])
        link_packages(needed_by(made), site)
        run(*pip, "check", cwd=tmp_path)
    else:
        install_from_index(bin_folder / "python", wheel, tmp_path)
    command = bin_folder / "tilesight"
    state = {"TILESIGHT_DB": str(tmp_path / "x.db"), "TILESIGHT_CACHE_DIR": str(tmp_path / "cache")}
    assert tilesight.__version__ in run(command, "--version", cwd=tmp_path, **state)
    ranked = run(
        *(command, "rank", "gemv", "--target", "h100", "--effort", "glance", "--json"), cwd=tmp_path, **state
    )
    assert '"kind": "rank"' in ranked or '"kind":"rank"' in ranked
    found = run(
        bin_folder / "python",
        "-c",
        "import tilesight; print(tilesight.__file__, tilesight.predict.__name__)",
        cwd=tmp_path,
    )
    assert found.startswith(str(tmp_path)), found


def test_the_guide_states_the_size_of_the_wheel(wheel: Path) -> None:
    """To a tenth, since a stated size that nobody checks grows old."""
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    [(packed, taken)] = re.findall(r"The wheel has ([\d.]+) MB and takes ([\d.]+) MB", guide)
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    assert wheel.stat().st_size / 1e6 == pytest.approx(float(packed), rel=0.1)
    assert unpacked / 1e6 == pytest.approx(float(taken), rel=0.1)


def test_the_version_is_that_of_the_citation_and_the_changelog() -> None:
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited == [tilesight.__version__]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"This will be {tilesight.__version__}" in changes or f"## [{tilesight.__version__}]" in changes
