"""Versions of code: what counts, what does not, and that shipped templates keep theirs."""

from __future__ import annotations

import importlib
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilesight.code_hash import definition_hash, module_hash, modules_used, recorded_version, source_hash
from tilesight.kernels import operators, templates

KERNEL = '''
"""A kernel."""
from math import floor
from typing import ClassVar

from .shared import Base, helper

LIMIT = 7
_UNUSED = 3


def _rows(n):
    """How many."""
    return min(n, LIMIT)


def nobody(n):
    return n


def _library(n):
    return n + 1


class Kernel(Base):
    """Docstring."""

    named: ClassVar[dict] = {"K0": 1}

    def vendor(self, n):
        return {"torch": _library(n)}

    def build(self, n):
        for i in range(_rows(n)):
            # why
            helper(i)
'''
SHARED = """
SCALE = 2

class Base:
    def common(self):
        return 1

def helper(i):
    return i * SCALE

def another(i):
    return i
"""
_numbers = itertools.count()
Hash = Callable[..., str]


@pytest.fixture
def version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hash:
    """The hash of `Kernel` with these texts of its two modules, in a new package each time."""
    monkeypatch.syspath_prepend(tmp_path)

    def hashed(kernel: str = KERNEL, shared: str = SHARED, *, inside: str = "") -> str:
        package = tmp_path / f"hashed_{next(_numbers)}" / inside
        package.mkdir(parents=True)
        (package / "kernel.py").write_text(kernel)
        (package / "shared.py").write_text(shared)
        name = ".".join([*package.relative_to(tmp_path).parts, "kernel"])
        return definition_hash(importlib.import_module(name).Kernel, ignored=("named", "vendor"))

    return hashed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        # why\n", ""),
        ("helper(i)\n", "helper( i )  # loop\n\n\n"),
        ("    ", "  "),
        ('"""Docstring."""', '"""Another docstring."""'),
        ('    """How many."""\n', ""),
        ("from math import floor\n", "import os\nfrom math import ceil\n"),
        ("from .shared import Base, helper", "from .shared import helper\nfrom .shared import Base"),
        ("_UNUSED = 3", "_UNUSED = 4"),
        ("    return n\n", "    return -n\n"),
        ('{"K0": 1}', '{"K0": 1, "K1": 2}'),
        ('"torch": ', '"cuBLAS": '),
        ("    return n + 1\n", "    return n + 2\n"),
        ('    def vendor(self, n):\n        return {"torch": _library(n)}\n', ""),
        ("LIMIT = 7\n", "if TYPE_CHECKING:\n    import torch\nLIMIT = 7\n"),
    ],
)
def test_what_changes_nothing_does_not_count(version: Hash, old: str, new: str) -> None:
    assert old in KERNEL
    assert version() == version(
        KERNEL.replace(old, new).replace("from math", "from typing import TYPE_CHECKING\nfrom math")
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range(", "reversed("),
        ("LIMIT = 7", "LIMIT = 8"),
        ("min(n", "max(n"),
        ("helper(i)", "pass"),
        ("def build", "def made"),
    ],
)
def test_the_class_its_helpers_and_its_constants_count(version: Hash, old: str, new: str) -> None:
    assert version() != version(KERNEL.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [("SCALE = 2", "SCALE = 3", True), ("return 1", "return 2", True), ("return i\n", "return 0\n", False)],
)
def test_helpers_in_other_modules_of_the_package_count(
    version: Hash, old: str, new: str, counts: bool
) -> None:
    assert (version() != version(KERNEL, SHARED.replace(old, new))) is counts


def test_where_the_code_lies_does_not_count(version: Hash) -> None:
    whole = KERNEL.replace("from .shared import Base, helper", SHARED)
    reached = KERNEL.replace(
        "from .shared import Base, helper", "from . import shared\nfrom .shared import Base"
    ).replace("helper(i)", "shared.helper(i)")
    assert version() == version(inside="deep/er") == version(whole)
    assert version(reached) == version(reached, inside="deep")
    assert version(reached) != version(reached, SHARED.replace("SCALE = 2", "SCALE = 3"))


def test_a_shipped_template_may_move_to_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of each shipped template, copied to another package, with its imports changed to find what it
    needs.
    """
    import tilesight.kernels as shipped

    (package,) = shipped.__path__
    copy = tmp_path / "moved_kernels" / "inner"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__init__.py", "__pycache__"))
    for file in copy.glob("*.py"):
        file.write_text(file.read_text().replace("from ..", "from tilesight."))
    monkeypatch.syspath_prepend(tmp_path)
    moved = 0
    for template in (template for name in operators() for template in templates(name)):
        module = importlib.import_module(
            f"moved_kernels.inner.{type(template).__module__.rpartition('.')[2]}"
        )
        (copied,) = (t for t in module.TEMPLATES if t.name == template.name)
        assert type(copied) is not type(template)
        assert copied.version == template.version
        moved += 1
    assert moved >= 7


def test_shipped_templates_keep_the_versions_under_which_results_are_recorded() -> None:
    """A template that does what it did keeps its version: where its code changed in its words only,
    `same_code.json` says so. One that does something else has a new version, and its results of before no
    longer stand for it.
    """
    recorded = {
        "chunk_state": "1f044915c91a",
        "dequant_matmul": "f1c7076ec03e",
        "flash_attention": "dafb2bd5fb70",
        "flash_attention_bwd": "be78c7d77aaf",
        "gemv": "40e5495f6b98",
        "layer_norm": "c84c45ac44fa",
        "matmul": "23183d3b9dbb",
        "matmul_cpu": "a57e1d0fcecf",
        "rms_norm": "60a1883eeca8",
    }
    found = {t.name: t.version for name in operators() for t in templates(name)}
    assert {name: found[name] for name in recorded} == recorded
    assert recorded_version("no such code") == "no such code"


def test_a_class_without_source_is_refused() -> None:
    scope: dict[str, type] = {}
    exec("class Kernel: pass", {"__name__": "made_up"}, scope)
    with pytest.raises(OSError, match=r"made_up\.Kernel has no source file"):
        definition_hash(scope["Kernel"])


def test_modules_are_followed_within_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "__init__": "",
        "root": "from . import first\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from . import types\n",
        "first": "def f():\n    from .second import g  # later\n    return g\n",
        "second": "import json\ng = 1\n",
        "types": "",
        "other": "",
    }
    package = tmp_path / "followed"
    package.mkdir()
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert modules_used(["followed.root"], ["followed"]) == [
        "followed",
        "followed.first",
        "followed.root",
        "followed.second",
    ]
    assert modules_used(["followed.root"], ["followed.root", "followed.second"]) == ["followed.root"]

    def hashed() -> str:  # in a process of its own, where nothing is remembered
        code = (
            "from tilesight.code_hash import module_hash; print(module_hash(['followed.root'], ['followed']))"
        )
        return subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
            capture_output=True,
            check=True,
            text=True,
        ).stdout

    before = hashed()
    assert before.strip() == module_hash(["followed.root"], ["followed"])
    (package / "other.py").write_text("x = 1\n")
    (package / "second.py").write_text('"""Says more."""\nimport os\n\ng = 1  # why\n')
    assert hashed() == before
    (package / "second.py").write_text("g = 2\n")
    assert hashed() != before


def test_a_hash_is_the_same_under_every_python() -> None:
    """Python 3.12 began to take f-strings apart. The digest is what 3.11 to 3.13 find."""
    source = "def f(x, y):\n    return f\"{x!r:>{y}} of {y + 1}\" + f'''{\n    x}\n{f\"{y}\" \"b\"}'''"
    source += ' + "plain"  # why\n'
    assert source_hash(source) == "184a22f53d66"
    assert source_hash("if a:\n  b\nc < d\n") != source_hash("if a:\n  b < c\nd\n")
    assert source_hash("def f(x):\n  return\n  -x\n") != source_hash("def f(x):\n  return -x\n")
    assert source_hash(source) != source_hash(source.replace(" of ", " in "))
    assert source_hash(source) != source_hash(source.replace("y + 1", "y + 2"))
