"""Templates of the user's own: the example of docs/templates.md, as a user would run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.preloaded import run_python

EXAMPLE = re.search(
    r"```python\n(.*?)```", (Path(__file__).parents[3] / "docs/templates.md").read_text(), re.DOTALL
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert EXAMPLE is not None
    (tmp_path / "my_axpy.py").write_text(EXAMPLE[1])
    return tmp_path


def run(folder: Path, modules: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TILESIGHT_KERNELS": modules,
        "TILESIGHT_DB": f"sqlite:///{folder}/own.db",
        "TILESIGHT_CACHE_DIR": str(folder / "cache"),
    }
    return run_python(*arguments, env=os.environ | own, timeout=300, is_parent=True)


def tilesight(folder: Path, *arguments: str, modules: str = "my_axpy") -> subprocess.CompletedProcess[str]:
    return run(
        folder, modules, "-c", "import sys; from tilesight.cli.main import main; sys.exit(main())", *arguments
    )


@pytest.mark.full
def test_the_example_is_tuned_and_explained(folder: Path) -> None:
    tuned = tilesight(folder, "tune", "axpy", "--target", "cpu", "--shape", "n=4100", "--json")
    assert tuned.returncode == 0, tuned.stderr
    [session] = json.loads(tuned.stdout)["sessions"]
    assert session["is_measured"]
    assert session["counts"] == {"verified": 4}
    explained = tilesight(
        folder, "explain", "axpy", "--target", "cpu", "--shape", "n=4100", "--config", "block=64"
    )
    assert explained.returncode == 0, explained.stderr
    assert "measured" in explained.stdout
    assert "axpy" in tilesight(folder, "kernels").stdout


@pytest.mark.full
def test_the_example_has_a_dispatcher(folder: Path) -> None:
    program = """
import torch, tilesight
with tilesight.dispatcher("axpy", target="cpu") as d:
    x, y = torch.randn(1000), torch.randn(1000)
    torch.testing.assert_close(d(x, y), 2 * x + y)
    print(d.choose(n=1000).source)
"""
    done = run(folder, "my_axpy", "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("model", "default")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            None,
            "kernel module 'other' of TILESIGHT_KERNELS cannot be imported: No module named 'other'; its "
            "folder must be on PYTHONPATH, or name its file",
        ),
        (
            "raise OSError('broken')",
            "kernel module 'other' of TILESIGHT_KERNELS cannot be imported: broken; its",
        ),
        ("", "kernel module 'other' of TILESIGHT_KERNELS must have TEMPLATES, a tuple of"),
        (
            "TEMPLATES = (3,)",
            "must have TEMPLATES, a tuple of instances of tilesight.problem.template.KernelTemplate",
        ),
        (
            "from my_axpy import TEMPLATES\nOPERATOR = 3",
            "must have an instance of tilesight.problem.operator.Operator as OPERATOR",
        ),
        (
            "from my_axpy import *\nOPERATOR = Axpy()",
            "other: another operator is named 'axpy'; give it a name of its own",
        ),
    ],
)
def test_a_wrong_module_is_named(folder: Path, text: str | None, message: str) -> None:
    if text is not None:
        (folder / "other.py").write_text(text)
    found = tilesight(folder, "kernels", modules=os.pathsep.join(["my_axpy", "other"]))
    assert found.returncode == 2
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_a_file_is_named_by_its_path_and_workers_import_the_same(tmp_path: Path) -> None:
    """Its folder is on no import path, it imports a file beside it, and worker processes lower the kernel."""
    assert EXAMPLE is not None
    own = tmp_path / "elsewhere" / "my_own_axpy.py"
    own.parent.mkdir()
    own.write_text(EXAMPLE[1].replace("from typing", "import my_helper\nfrom typing", 1))
    (own.parent / "my_helper.py").write_text("")
    ranked = tilesight(
        tmp_path, "rank", "axpy", "--target", "cpu", "--shape", "n=4100", "--json", modules=str(own)
    )
    assert ranked.returncode == 0, ranked.stderr
    [session] = json.loads(ranked.stdout)["sessions"]
    assert session["counts"] == {"predicted": 4}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "of TILESIGHT_KERNELS cannot be imported: there is no such file"),
        ("json.py", "", "cannot be imported: another module is named 'json'"),
        ("mine.py", "raise OSError('broken')", "cannot be imported: broken"),
        ("mine.py", "", "must have TEMPLATES"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    path = tmp_path / "elsewhere" / name
    path.parent.mkdir()
    if text is not None:
        path.write_text(text)
    found = tilesight(tmp_path, "kernels", modules=str(path))
    assert found.returncode == 2
    assert f"kernel file '{path}'" in found.stderr
    assert message in found.stderr
    assert "Traceback" not in found.stderr
