"""Traces of kernels in files, as far as no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.api import kernels_of_a_user as user
from tilesight.api import file_traces
from tilesight.api.file_traces import FileBuild
from tilesight.api.foreign_kernel import profiles_of
from tilesight.api.kernel_files import ChosenKernel, FileKernel, choose_kernel
from tilesight.api.run_time_facts import RunTimeFacts
from tilesight.errors import Failure, FailureKind, InputError, NoCandidateError
from tilesight.lowering import lower as lowering
from tilesight.records.trial import BuildResult
from tilesight.target.spec import load_target
from tilesight.tracing.build_stamped import StampedBuild
from tilesight.tracing.trace_kernel import built

FILE = Path(user.__file__)


def item(name: str, **arguments: Any) -> FileKernel:
    return FileKernel(FILE, name, load_target("h200"), arguments, RunTimeFacts())


def not_built(lower: Any, *_: object) -> StampedBuild:
    """Instead of a compiler, which takes what is lowered twice: without and with stamps."""
    assert lower() is lower()
    failed = BuildResult(None, Failure(FailureKind.BUILD_ERROR, "no compiler here"))
    return StampedBuild(failed, failed, ())


def test_a_file_is_lowered_once_to_be_read_and_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = item("jitted", n=1 << 24)
    chosen = choose_kernel(given)
    assert isinstance(chosen, ChosenKernel)
    kernel = chosen.kernel
    read_alone = profiles_of(kernel, given.target)
    lowered = []

    def counted(*arguments: Any, **named: Any) -> lowering.Lowered:
        lowered.append(arguments)
        return original(*arguments, **named)

    original = lowering.lower
    monkeypatch.setattr(lowering, "lower", counted)
    monkeypatch.setattr(file_traces, "build_both", not_built)
    found = file_traces._build(given, tmp_path)
    assert isinstance(found, FileBuild)
    assert len(lowered) == 1
    assert found.profiles.kernels == read_alone
    assert found.profiles.name == kernel.name


def wrong(_item: object) -> str:
    return "has no name like that"


def failed(_item: object) -> StampedBuild:
    return not_built(lambda: None)


def test_what_the_user_can_correct_and_what_does_not_build() -> None:
    with pytest.raises(InputError, match=r"^kernel\.py:scale: has no name like that$"):
        built(wrong, None, "kernel.py:scale")
    with pytest.raises(NoCandidateError, match=r"^kernel\.py:scale cannot be traced: no compiler here"):
        built(failed, None, "kernel.py:scale")


def test_a_file_without_the_name(tmp_path: Path) -> None:
    found = file_traces._build(item("whol"), tmp_path)
    assert isinstance(found, str)
    assert "did you mean whole" in found
