"""Hashes of what a function depends on: the same in every process, other for other code."""

from __future__ import annotations
import __future__

import functools
import importlib
import inspect
import itertools
import linecache
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilesight.autotuning import content, running_code
from tilesight.autotuning.content import content_hash, is_library
from tilesight.errors import InputError

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


def test_what_tilesight_stands_on_is_not_followed_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thousands of functions, each with all that it uses, once took all memory."""
    import numpy
    import tilelang

    monkeypatch.setattr(content, "_LIBRARIES", ("/nowhere/",))
    assert is_library(tilelang.__file__, "tilelang")
    assert is_library(numpy.__file__)
    assert not is_library(str(tmp_path / "tilelang" / "language.py"), "tilelang.language"), "of the same name, from another place"


def test_a_wrapper_of_a_librarys_function_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = """
import functools
import numpy
@functools.wraps(numpy.sum)
def total(a):
    return numpy.sum(a) * 2
def kernel(a):
    return total(a)
"""
    one = load(tmp_path, source, f"wrapper_{next(_numbers)}")
    other = load(tmp_path, source.replace("* 2", "* 3"), f"wrapper_{next(_numbers)}")
    assert content_hash(one.kernel) != content_hash(other.kernel)


def test_what_leads_to_a_whole_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_MOST_FOLLOWED", 100)
    monkeypatch.syspath_prepend(tmp_path)
    functions = "\n".join(f"def f{n}(x): return f{n + 1}(x)" for n in range(20))
    few = load(tmp_path, f"{functions}\ndef f20(x): return x\n", f"few_{next(_numbers)}")
    assert content_hash(few.f0)
    many = "\n".join(f"def g{n}(x): return x" for n in range(200))
    calls = " + ".join(f"g{n}(x)" for n in range(200))
    library = load(tmp_path, f"{many}\ndef kernel(x): return {calls}\n", f"library_{next(_numbers)}")
    with pytest.raises(InputError, match=f"more than 100 functions and objects, lastly in {library.__name__}"):
        content_hash(library.kernel)


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
        f"{SOURCE}\nmember = lambda x: x in {{'a', 'b', 'c', 'd'}}\nimport sys\nfrom tilesight.autotuning.content import content_hash\n"
        "print(content_hash(kernel, member, {'x', 'y', 'z'}))\n"
    )
    (tmp_path / "program.py").write_text(program, encoding="utf-8")

    def run(seed: str) -> str:
        root = str(Path(__file__).resolve().parents[3])
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": root}
        done = subprocess.run([sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert run("1") == run("2") != ""


USED = """
import functools
import {above}
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
        return LIMIT
reference = Reference()
through = lambda x: {above}.factor(x)
"""
MODULE = "import {below}\ndef factor(x):\n    return x * {below}.FACTOR\n"
CONSTANTS = "FACTOR = 3\n"


def user_modules(folder: Path, old: str = "", new: str = "") -> ModuleType:
    """Code that uses a module, which uses another one; with `old` changed for `new` in one of them."""
    number = next(_numbers)
    below, above = f"below_{number}", f"above_{number}"
    texts = [text.replace(old, new) if old else text for text in (CONSTANTS, MODULE, USED)]
    assert not old or texts != [CONSTANTS, MODULE, USED], old
    (folder / f"{below}.py").write_text(texts[0], encoding="utf-8")
    (folder / f"{above}.py").write_text(texts[1].format(below=below), encoding="utf-8")
    return load(folder, texts[2].format(above=above), f"using_{number}")


def plain(text: str) -> str:
    """Without the numbers in the modules' names."""
    return re.sub(r"(below|above|using)_\d+", r"\1", text)


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules under other names with the same text are one."""
    read, code = content._tokens, content.bytecode
    monkeypatch.setattr(content, "_tokens", lambda text: read(plain(text)))
    monkeypatch.setattr(content, "bytecode", lambda found: code(found.replace(co_names=tuple(map(plain, found.co_names)))))
    inner = content._Reader._function
    monkeypatch.setattr(content._Reader, "_function", lambda self, function, depth: plain(inner(self, function, depth)))


@pytest.mark.usefixtures("nameless")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("wrapped", "f(*values) * 1", "f(*values) * 2"),  # the wrapper of functools.wraps
        ("wrapped", "x + 3", "x + 4"),  # and what it wraps
        ("through", "x * {below}", "x + {below}"),  # a module
        ("through", "FACTOR = 3", "FACTOR = 4"),  # a module that a module uses
        ("reference", "LIMIT = 2", "LIMIT = 3"),  # used by a method of the class above
        ("reference", "x * LIMIT", "x + LIMIT"),
        ("reference", "step = 5", "step = 6"),
        ("Reference", "x - LIMIT", "x + LIMIT"),
        ("Reference", "LIMIT = 2", "LIMIT = 3"),
    ],
)
def test_all_that_is_used_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    first, same, other = (getattr(user_modules(tmp_path, *change), name) for change in ((), (), (old, new)))
    assert content_hash(first) == content_hash(same) != content_hash(other)


def test_static_methods_and_properties_use_what_they_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for decorator in ("staticmethod", "classmethod", "property", "functools.cached_property"):
        text = f"import functools\nLIMIT = 2\nclass Reference:\n    @{decorator}\n    def found(x):\n        return LIMIT\n"
        one, two = (load(tmp_path, t, f"static_{next(_numbers)}").Reference for t in (text, text.replace("LIMIT = 2", "LIMIT = 3")))
        assert content_hash(one) != content_hash(two), decorator


@pytest.mark.parametrize(
    ("old", "new"), [("x + 1", "x + 2"), ("FACTOR = 3", "FACTOR = 4"), ("rows = 4", "rows = 5"), ("x - 1", "x - 2"), ("x * 6", "x * 7")]
)
def test_a_file_that_is_edited_while_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """The text is the new code's then, and what runs is not: the new code must have a hash of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (
        "FACTOR = 3\n"
        "def helper(x):\n    return x + 1\n"
        "class Shape:\n    rows = 4\n    def size(self, x):\n        return (x - 1) * self.rows\n"
        "    @staticmethod\n    def six(x):\n        return x * 6\n"
        "def kernel(x):\n    return helper(x) * FACTOR + Shape().size(x)\n"
    )
    assert old in text
    module = load(tmp_path, text, f"edited_{next(_numbers)}")
    file = Path(str(module.__file__))
    running = [content_hash(module.kernel), content_hash(module)]
    file.write_text(f"{text.replace(old, new)}# longer than it was\n", encoding="utf-8")
    edited = [content_hash(module.kernel), content_hash(module)]
    sys.modules.pop(module.__name__)
    importlib.invalidate_caches()
    fresh = importlib.import_module(module.__name__)
    assert new in inspect.getsource(fresh)
    for of_old, of_both, of_new in zip(running, edited, [content_hash(fresh.kernel), content_hash(fresh)], strict=True):
        assert of_new not in (of_old, of_both)


def test_a_comment_that_is_added_while_it_runs_makes_it_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = load(tmp_path, SOURCE, f"commented_{next(_numbers)}")
    before = content_hash(module.kernel), content_hash(module)
    Path(str(module.__file__)).write_text(SOURCE + "# one more comment\n", encoding="utf-8")
    assert (content_hash(module.kernel), content_hash(module)) == before


def test_counters_of_a_module_are_nothing_to_be_told_apart_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = load(tmp_path, f"calls = 0\n{SOURCE}", f"counting_{next(_numbers)}")
    monkeypatch.setattr(running_code, "_is_newer", lambda _: False)
    before = content_hash(module)
    module.calls = 7
    assert content_hash(module) == before


def test_a_file_saved_by_halves_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = load(tmp_path, SOURCE, f"halved_{next(_numbers)}")
    before = content_hash(module.kernel), content_hash(module)
    Path(str(module.__file__)).write_text(SOURCE + "def broken(", encoding="utf-8")
    assert content_hash(module.kernel) != before[0]
    assert content_hash(module) != before[1]


def test_bytecode_knows_no_file_and_no_line() -> None:
    text = "def f(x):\n    y = x + 1\n    return [y for _ in range(3) if x in {'a', 'b'}]\n"
    first, second = (compile(t, name, "exec") for t, name in ((text, "one.py"), (f"# a comment\n\n{text}", "two.py")))
    assert running_code.bytecode(first) == running_code.bytecode(second)
    assert running_code.bytecode(first) != running_code.bytecode(compile(text.replace("+ 1", "+ 2"), "one.py", "exec"))


def test_a_cell_of_a_notebook_counts_by_its_text() -> None:
    """IPython keeps the text of its cells for `inspect`; the future of one cell holds for the next."""

    def cell(text: str) -> Any:
        name, flags = f"<ipython-input-{next(_numbers)}>", __future__.annotations.compiler_flag
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, name, "exec", flags), namespace)
        return namespace["kernel"]

    text = "def kernel(a):\n    def inner(b: int) -> int:\n        return b\n    return inner(a)\n"
    assert running_code.text_of(cell(text).__code__) == text
    assert content_hash(cell(text)) == content_hash(cell(f"# a comment\n{text}")) != content_hash(cell(text.replace("(a)\n", "(2 * a)\n")))
