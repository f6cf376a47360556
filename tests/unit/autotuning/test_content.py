"""Hashes of what a function depends on: the same in every process, other for other code."""

from __future__ import annotations

import functools
import importlib
import itertools
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilesight.autotuning import content
from tilesight.autotuning.content import content_hash, is_library

SOURCE = """
import numpy
FACTOR = 3
b = 0.5
def helper(x):
    return x + 1
def kernel(a, b):
    y = helper(a) * FACTOR
    return y + b
"""


_numbers = itertools.count()


def load(folder: Path, source: str, name: str) -> ModuleType:
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.fixture
def hash_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))

    def found(source: str) -> str:
        return content_hash(load(tmp_path, source, f"user_code_{next(_numbers)}").kernel)

    return found


def test_white_space_and_comments_do_not_matter(hash_of: Any) -> None:
    spaced = SOURCE.replace("    y = helper(a) * FACTOR", "\n    # a comment\n    y = helper( a )*FACTOR  # and one more")
    assert hash_of(SOURCE) == hash_of(spaced)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* FACTOR", "- FACTOR"),
        ("FACTOR = 3", "FACTOR = 4"),
        ("return x + 1", "return x + 2"),
        ("import numpy\nFACTOR = 3", "FACTOR = '3'"),
    ],
)
def test_code_constants_and_helpers_matter(hash_of: Any, old: str, new: str) -> None:
    assert old in SOURCE
    assert hash_of(SOURCE) != hash_of(SOURCE.replace(old, new))


def test_what_it_does_not_use_does_not_matter(hash_of: Any) -> None:
    assert hash_of(SOURCE) == hash_of(SOURCE.replace("b = 0.5", "b = 7.5")), "the argument b hides the global of that name"


def test_decorators_are_asked_for_elsewhere(hash_of: Any) -> None:
    decorated = SOURCE.replace("def kernel", "def keep(**_):\n    return lambda f: f\n@keep(configs=[1, 2])\ndef kernel")
    assert hash_of(decorated) == hash_of(decorated.replace("configs=[1, 2]", "configs=[1, 2, 3]"))


def test_annotations_of_local_variables_matter(hash_of: Any) -> None:
    """TileLang reads them, and Python's bytecode lacks them."""
    source = "DTYPE = 'float16'\ndef kernel(a):\n    a: DTYPE\n    return a\n"
    assert hash_of(source) != hash_of(source.replace("float16", "float32"))


def test_closures_defaults_and_partials_matter() -> None:
    def make(size: int) -> Any:
        def kernel(n: int = size) -> int:
            return n * size

        return kernel

    def plain(n: int, block: int) -> int:
        return n * block

    assert content_hash(make(3)) == content_hash(make(3)) != content_hash(make(4))
    assert content_hash(functools.partial(plain, block=1)) != content_hash(functools.partial(plain, block=2))
    assert content_hash(lambda x: x + 1) != content_hash(lambda x: x + 2)


def test_functions_that_call_each_other() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert content_hash(even) == content_hash(even) != content_hash(odd)


def test_values_keep_their_types() -> None:
    values = [1, 1.0, True, "1", None, (1,), [1], {"a": 1}, {1}, b"1"]
    assert len({content_hash(value) for value in values}) == len(values)
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert content_hash({3, 1, 2}) == content_hash({1, 2, 3})


def test_objects_count_by_what_they_hold() -> None:
    class Settings:
        def __init__(self, block: int) -> None:
            self.block = block

    assert content_hash(Settings(1)) == content_hash(Settings(1)) != content_hash(Settings(2))
    looped = Settings(1)
    looped.__dict__["again"] = looped
    assert content_hash(looped) == content_hash(looped)


def test_libraries_count_by_name() -> None:
    import numpy
    import torch
    from tilelang import language

    assert content_hash(torch.float16) != content_hash(torch.bfloat16)
    assert content_hash(language.float16) != content_hash(language.bfloat16)
    assert content_hash(torch.zeros(3)) == content_hash(torch.zeros(3)) != content_hash(torch.ones(3))

    assert is_library(functools.__file__)
    assert is_library(numpy.__file__)
    assert not is_library(__file__)
    assert content_hash(numpy.dot) == content_hash(numpy.dot)


def test_an_installed_package_of_the_users_own_counts_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(content, "_LIBRARIES", (f"{tmp_path}/",))
    one, two = (load(tmp_path, text, f"installed_{next(_numbers)}").kernel for text in (SOURCE, SOURCE.replace("x + 1", "x + 2")))
    for kernel in (one, two):
        kernel.__module__ = kernel.__globals__["helper"].__module__ = "installed"
    assert content_hash(one, own=one) != content_hash(two, own=two)
    assert content_hash(one) == content_hash(two), "one of another package counts by its name"


def test_the_same_in_another_process(tmp_path: Path) -> None:
    program = (
        f"{SOURCE}\nimport sys\nfrom tilesight.autotuning.content import content_hash\nprint(content_hash(kernel, {{'x', 'y', 'z'}}))\n"
    )
    (tmp_path / "program.py").write_text(program, encoding="utf-8")

    def run(seed: str) -> str:
        root = str(Path(__file__).resolve().parents[3])
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": root}
        done = subprocess.run([sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert run("1") == run("2") != ""
