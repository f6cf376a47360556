"""Which tests run: those marked `gpu` need a GPU that can be built for, those marked `full` need the option
`--full`.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import recorded_ir
from tests.support.preloaded import preload_fork_servers
from tilesight.machine.devices import find_devices, target_for
from tilesight.machine.toolchain import missing_compiler
from tilesight.target.spec import Target, load_target

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts what runs in its background deaf to Ctrl-C, and the tests of Ctrl-C would wait for ever
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests run side by side: their times are noisy. What is tested of noise sets its own limit.
os.environ["TILESIGHT_MAX_NOISE"] = "inf"
# tests of lowering and of records begin with nothing; those of what ships set it to 1
os.environ["TILESIGHT_SHIPPED"] = "0"


@cache
def gpu_or_reason() -> Target | str:
    """The target of this machine's first GPU that can be built for and measured on, or why there is none."""
    devices = find_devices()
    if not devices:
        return "no GPU: neither nvidia-smi nor rocm-smi lists one"
    name = next((name for device in devices if (name := target_for(device))), None)
    if name is None:
        return f"no shipped target describes {', '.join(sorted({device.name for device in devices}))}"
    target = load_target(name)
    if missing := missing_compiler(target):
        return missing
    import torch

    return target if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


LEFT_OUT = pytest.StashKey[int]()
MOST_MISSES = 10  # that are shown
# tests that take long begin first: the last one of a process would keep the others waiting
LONG = (
    "tests/contract/test_cluster",
    "tests/unit/experiments/test_notebooks.py::test_runs_and_shows",
    "tests/unit/test_docs.py::test_the_tutorial_runs",
    "tests/unit/dispatch/test_read_only.py",
)

# tests of what TileLang's passes do, and of what is made of it
ALWAYS_LOWERED = ("tests/golden/", "tests/gpu/", "tests/unit/lowering/")


preload_fork_servers()


def pytest_configure(config: pytest.Config) -> None:
    """The process that reports gives all processes one file to note what recorded IR lacks."""
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.mkdtemp(prefix="tilesight-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ.setdefault(recorded_ir.MISSES, f"{folder}/misses")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked `full`, too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each of several processes first imports a share of the modules. pytest compiles the assertions of a
    module for several times as long as it imports what it compiled before, so each is compiled once.
    """
    given: dict[str, Any] = getattr(session.config, "workerinput", {})
    if not given or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    own, count = int(given["workerid"].removeprefix("gw")), int(given["workercount"])
    for path in sorted((session.config.rootpath / "tests").rglob("test_*.py"))[own::count]:
        name = ".".join(path.relative_to(session.config.rootpath).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):  # the collection reports it
            importlib.import_module(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))  # stable
    if not config.getoption("full"):
        left_out = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
        config.stash[LEFT_OUT] = len(left_out)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and isinstance(reason := gpu_or_reason(), str):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """What the processes do that lower candidates: TileLang parses a function once, and garbage is looked for
    among new objects only. Both are a part of the time of each lowering.
    """
    if "tilelang" in sys.modules:
        from tilesight.lowering.parsed_functions import parse_once

        parse_once()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    os.environ[recorded_ir.SWITCH] = "0" if item.nodeid.startswith(ALWAYS_LOWERED) else "1"
    if "tilelang" in sys.modules:
        recorded_ir.use_recorded_ir()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(
        session.config, "workeroutput"
    ):  # a worker of pytest-xdist: the process that reports does not collect
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(
            f"{count} tests marked `full` were left out; "
            "`make test TEST_ARGS=--full` or `pytest --full` runs them."
        )
    if missed := recorded_ir.misses(Path(os.environ[recorded_ir.MISSES])):
        terminalreporter.write_line(
            f"{len(missed)} functions are not in tests/golden/ir.zip, and their passes took "
            f"{sum(seconds for seconds, _ in missed):.0f} s; CONTRIBUTING.md tells how to record them. "
            "The longest:"
        )
        for seconds, test in missed[:MOST_MISSES]:
            terminalreporter.write_line(f"  {seconds:.1f} s in {test}")


@pytest.fixture(scope="session")
def gpu_target() -> Target:
    """The target of the GPU at hand; for tests marked `gpu`."""
    target = gpu_or_reason()
    assert isinstance(target, Target), target
    return target
