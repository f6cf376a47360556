"""Captures the kernels of one Python file, in a process of its own (`capture.py` forks it).

A test file runs under pytest, other files as programs, with their functions `run_regression_perf`, `test_*`
and `main` after that. What happens after a kernel was called is of no interest. The last line of the output
is a JSON object: why kernels and calls were left out, and the last errors.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

TESTS_OF_FUNCTION = 4  # parametrised cases of one test function
LONGEST_TEST_S = 15.0


def run_file(root: Path, path: Path, repository: str, folder: Path, seconds: float) -> None:
    """Capture one file into the corpus `folder`, in at most `seconds` on a core. Ends the process."""
    begin = time.process_time()  # a copy begins at 0
    os.environ["TILELANG_PRINT_ON_COMPILATION"] = "0"
    import tilelang  # noqa: F401
    from corpus import Corpus
    from recorder import Recorder
    from stand_ins import install, patience

    recorder = Recorder(Corpus(folder), root, repository)
    install(recorder.compile, lambda tuner, *args, **kwargs: recorder.tune(tuner, *args, **kwargs))
    errors: list[str] = []
    half = begin + 0.6 * seconds
    is_test = path.name.startswith(("test_", "bench_"))
    run = _run_tests if is_test else _run_program
    try:
        with patience(half - time.process_time()):
            run(path, half, errors)
    except BaseException as error:  # a program may raise anything, SystemExit included
        errors.append(_said(error))
    try:
        with patience(begin + seconds - time.process_time()):
            recorder.finish(begin + seconds - 2)
    except BaseException as error:
        errors.append(_said(error))
    sys.stdout.flush()
    print(
        "\n"
        + json.dumps(
            {"left_out": dict(recorder.failures), "made": len(recorder.kernels), "errors": errors[-3:]}
        )
    )
    sys.stdout.flush()
    os._exit(0)


def _run_program(path: Path, until: float, errors: list[str]) -> None:
    from stand_ins import patience

    sys.path.insert(0, str(path.parent))
    os.chdir(path.parent)
    sys.argv = [str(path)]
    found: dict[str, Any] = {}
    try:
        with patience((until - time.process_time()) * 0.7):
            found = runpy.run_path(str(path), run_name="__main__")
    except BaseException as error:
        errors.append(_said(error))
    if not found:
        found = runpy.run_path(str(path), run_name="captured")
    for name, value in found.items():
        if not inspect.isfunction(value) or not name.startswith(("run_regression", "test_", "main")):
            continue
        required = [p for p in inspect.signature(value).parameters.values() if p.default is p.empty]
        if required or value.__code__.co_filename != str(path):
            continue
        try:
            with patience(min(LONGEST_TEST_S, until - time.process_time())):
                value()
        except BaseException as error:
            errors.append(f"{name}: {_said(error)}")


def _run_tests(path: Path, until: float, errors: list[str]) -> None:
    import pytest
    from stand_ins import patience

    class Few:
        """At most some cases of each test function, each for a limited time."""

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            by_function: dict[str, list[Any]] = {}
            for item in items:
                by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
            few = []
            for mine in by_function.values():
                step = max(1, len(mine) / TESTS_OF_FUNCTION)
                few.append([mine[int(i * step)] for i in range(min(len(mine), TESTS_OF_FUNCTION))])
            rounds = max(map(len, few), default=0)
            items[:] = [mine[i] for i in range(rounds) for mine in few if i < len(mine)]

        @pytest.hookimpl(wrapper=True)
        def pytest_pyfunc_call(self, pyfuncitem: Any) -> Any:
            left = until - time.process_time()
            if left < 0.5:
                pytest.skip("no time left")
            try:
                with patience(min(LONGEST_TEST_S, left)):
                    return (yield)
            except Exception as error:
                errors.append(f"{pyfuncitem.name}: {_said(error)}")
                raise

    os.chdir(_root_of(path))
    sys.path.insert(0, str(path.parent))
    options = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:warnings",
        "--tb=no",
        "--import-mode=importlib",
    ]
    pytest.main([*options, "-p", "no:xdist", "--override-ini=addopts=", str(path)], plugins=[Few()])


def _root_of(path: Path) -> Path:
    for folder in path.parents:
        if (folder / "pyproject.toml").exists():
            return folder
    return path.parent


def _said(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error)[:200]} ({where})"
