"""Hashes of functions and values."""

from __future__ import annotations

import functools
import importlib
import itertools
import linecache
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilesight.decorator import content
from tilesight.decorator.content import content_hash, is_library

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
Load = Callable[..., ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Makes a new module of a text; `above` of another text, which may import that module as `below`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def module(source: str, above: str = "") -> ModuleType:
        name = f"user_code_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
        return (
            module(above.replace("import below", f"import {name} as below"))
            if above
            else importlib.import_module(name)
        )

    return module


def test_white_space_comments_and_decorators_do_not_count(load: Load) -> None:
    spaced = SOURCE.replace(
        "    y = helper(a) * FACTOR", "\n    # a comment\n    y = helper( a )*FACTOR  # and one more"
    )
    assert content_hash(load(SOURCE).kernel) == content_hash(load(spaced).kernel)
    decorated = SOURCE.replace(
        "def kernel", "def keep(**_):\n    return lambda f: f\n@keep(configs=[1, 2])\ndef kernel"
    )
    other = decorated.replace("configs=[1, 2]", "configs=[1, 2, 3]")
    assert content_hash(load(decorated).kernel) == content_hash(load(other).kernel)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* FACTOR", "- FACTOR"),
        ("FACTOR = 3", "FACTOR = 4"),
        ("return x + 1", "return x + 2"),
        ("import numpy\nFACTOR = 3", "FACTOR = '3'"),
    ],
)
def test_code_constants_and_helpers_count(load: Load, old: str, new: str) -> None:
    assert old in SOURCE
    assert content_hash(load(SOURCE).kernel) != content_hash(load(SOURCE.replace(old, new)).kernel)


def test_a_global_that_an_argument_hides_does_not_count(load: Load) -> None:
    assert content_hash(load(SOURCE).kernel) == content_hash(
        load(SOURCE.replace("b = 0.5", "b = 7.5")).kernel
    )


def test_a_global_counts_by_its_value_at_the_time_of_the_call(load: Load) -> None:
    module = load(SOURCE)
    before = content_hash(module.kernel)
    module.FACTOR = 5
    assert content_hash(module.kernel) != before


@pytest.mark.parametrize(("old", "new"), [("FACTOR = 3", "FACTOR = 4"), ("return x + 1", "return x + 2")])
@pytest.mark.parametrize(
    "use", ["below.helper(a) * below.FACTOR", "(lambda x: below.helper(x) * below.FACTOR)(a)"]
)
def test_helpers_and_constants_of_other_modules_count(load: Load, old: str, new: str, use: str) -> None:
    above = f"import below\ndef kernel(a):\n    return {use}\n"
    first, same, other = (
        content_hash(load(text, above).kernel) for text in (SOURCE, SOURCE, SOURCE.replace(old, new))
    )
    assert first == same != other
    assert content_hash(load(SOURCE.replace("b = 0.5", "b = 7.5"), above).kernel) == first, (
        "a constant that is not used"
    )


def test_annotations_of_local_variables_count(load: Load) -> None:
    """TileLang reads them, and Python's bytecode lacks them."""
    source = "DTYPE = 'float16'\ndef kernel(a):\n    a: DTYPE\n    return a\n"
    assert content_hash(load(source).kernel) != content_hash(
        load(source.replace("float16", "float32")).kernel
    )


def test_closures_defaults_partials_and_lambdas_count() -> None:
    def make(size: int) -> Any:
        def kernel(n: int = size) -> int:
            return n * size

        return kernel

    def plain(n: int, block: int) -> int:
        return n * block

    assert content_hash(make(3)) == content_hash(make(3)) != content_hash(make(4))
    assert content_hash(functools.partial(plain, block=1)) == content_hash(functools.partial(plain, block=1))
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


class Settings:
    def __init__(self, block: int) -> None:
        self.block = block

    def doubled(self) -> int:
        return 2 * self.block


def test_objects_and_methods_count_by_what_they_hold() -> None:
    assert content_hash(Settings(1)) == content_hash(Settings(1)) != content_hash(Settings(2))
    assert (
        content_hash(Settings(1).doubled)
        == content_hash(Settings(1).doubled)
        != content_hash(Settings(2).doubled)
    )
    looped = Settings(1)
    looped.__dict__["again"] = looped
    assert content_hash(looped) == content_hash(looped)


CLASSES = """
import functools
LIMIT = 2
def keep(f):
    @functools.wraps(f)
    def kept(*values):
        return f(*values) * 1
    return kept
@keep
def wrapped(x):
    return x + 3
class Base:
    step = 5
    def __call__(self, x):
        return x * LIMIT
class Reference(Base):
    @staticmethod
    def least(x):
        return x - LIMIT
    @property
    def most(self):
        return LIMIT + 1
    @functools.cached_property
    def middle(self):
        return LIMIT + 2
reference = Reference()
"""


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("wrapped", "f(*values) * 1", "f(*values) * 2"),
        ("wrapped", "x + 3", "x + 4"),
        ("reference", "LIMIT = 2", "LIMIT = 3"),
        ("reference", "x * LIMIT", "x + LIMIT"),
        ("reference", "step = 5", "step = 6"),
        ("Reference", "x - LIMIT", "x + LIMIT"),
        ("Reference", "LIMIT + 1", "LIMIT - 1"),
        ("Reference", "LIMIT + 2", "LIMIT - 2"),
    ],
)
def test_decorated_functions_and_classes_count_with_what_they_use(
    load: Load, name: str, old: str, new: str
) -> None:
    first, same, other = (getattr(load(text), name) for text in (CLASSES, CLASSES, CLASSES.replace(old, new)))
    assert content_hash(first) == content_hash(same) != content_hash(other)


def test_libraries_count_by_name() -> None:
    import numpy
    import tilelang
    import torch
    from tilelang import language

    assert content_hash(torch.float16) != content_hash(torch.bfloat16)
    assert content_hash(language.float16) != content_hash(language.bfloat16)
    assert content_hash(torch.zeros(3)) == content_hash(torch.zeros(3)) != content_hash(torch.ones(3))
    assert content_hash(numpy.dot) == content_hash(numpy.dot) != content_hash(numpy.sum)
    assert is_library("functools", functools.__file__)
    assert is_library("tilelang", tilelang.__file__)
    assert is_library("pytest", pytest.__file__)
    assert not is_library(__name__, __file__)


def test_an_address_in_the_text_of_an_object_does_not_count() -> None:
    assert content_hash(iter([1])) == content_hash(iter([1]))


def test_a_users_wrapper_of_a_librarys_function_counts_by_its_code(load: Load) -> None:
    source = (
        "import functools\nimport numpy\n"
        "@functools.wraps(numpy.sum)\ndef total(a):\n    return numpy.sum(a) * 2\n"
        "def kernel(a):\n    return total(a)\n"
    )
    assert content_hash(load(source).kernel) != content_hash(load(source.replace("* 2", "* 3")).kernel)


def test_of_very_much_code_the_farthest_counts_by_name(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = "".join(f"def f{n}(x): return f{n + 1}(x)\n" for n in range(20)) + "def f20(x): return x\n"
    monkeypatch.setattr(content, "_MOST_DEFINITIONS", 10)
    near, far = (
        functions.replace("f3(x): return", "f3(x): return 1 +"),
        functions.replace("f20(x): return", "f20(x): return 1 +"),
    )
    hashes = [content_hash(load(text).f0) for text in (functions, near, far)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_an_installed_package_of_the_users_own_counts_by_its_code(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "_INSTALLED", (f"{tmp_path}/",))
    one, other = (load(text).kernel for text in (SOURCE, SOURCE.replace("x + 1", "x + 2")))
    for kernel in (one, other):
        kernel.__module__ = kernel.__globals__["__name__"] = "installed"
        kernel.__globals__["helper"].__module__ = "installed"
    assert content_hash(one, own=one) != content_hash(other, own=other)
    assert content_hash(one) == content_hash(other), "one of another package counts by its name"


def test_the_same_in_another_process(tmp_path: Path) -> None:
    program = (
        f"{SOURCE}\nmember = lambda x: x in {{'a', 'b', 'c', 'd'}}\nimport sys\n"
        "from tilesight.decorator.content import content_hash\n"
        "print(content_hash(kernel, member, {'x', 'y', 'z'}))\n"
    )
    (tmp_path / "program.py").write_text(program, encoding="utf-8")

    def run(seed: str) -> str:
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        command = [sys.executable, tmp_path / "program.py"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert run("1") == run("2") != ""


def defined_in(text: str, name: str, *, has_source: bool) -> Any:
    if has_source:  # IPython keeps the text of its cells in this place
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec", dont_inherit=True), namespace)
    return namespace["kernel"]


@pytest.mark.parametrize("has_source", [True, False])
def test_cells_of_a_notebook_and_code_without_a_file(has_source: bool) -> None:
    inner = "    def inner(b: int) -> int:\n        return b * SIZE\n"
    text = f"SIZE = 2\ndef kernel(a):\n{inner}    return inner(a)\n"
    texts = [
        text,
        f"# a comment\n{text}",
        text.replace("inner(a)", "inner(2 * a)"),
        text.replace("SIZE = 2", "SIZE = 3"),
    ]
    found = [content_hash(defined_in(t, f"<cell-{next(_numbers)}>", has_source=has_source)) for t in texts]
    assert found[0] == found[1]
    assert len(set(found)) == 3
