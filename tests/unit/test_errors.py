"""Errors and failures: where they stand, and what they mean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilesight import errors
from tilesight.builder import loaded_kernel as artifact
from tilesight.errors import FailureKind, LaunchError, TileSightError
from tilesight.records.trial import NOT_MEASURED, Measurement

ROOT = Path(__file__).parents[2]


def test_every_exception_is_in_the_table_with_its_exit_code() -> None:
    table = dict(re.findall(r"-- (\w+) +(\d)", errors.__doc__ or ""))
    own = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TileSightError)
    ]
    assert {kind.__name__: str(kind.exit_code) for kind in own if kind is not TileSightError} == table


def test_one_exception_stands_elsewhere() -> None:
    names = "|".join(name for name in vars(errors) if name.endswith("Error"))
    folders = [ROOT / name for name in ("tilesight", "costmodel", "database", "kernels", "search_spaces")]
    files = [
        file
        for folder in folders
        for file in folder.rglob("*.py")
        if file != ROOT / "tilesight" / "errors.py"
    ]
    found = [
        name
        for file in files
        for name in re.findall(
            rf"^class (\w+)\((?:{names})\)", file.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert set(found) == {"ConnectionLostError"}


def test_a_launch_error_is_one_of_ours() -> None:
    assert artifact.LaunchError is LaunchError
    assert issubclass(LaunchError, TileSightError)


@pytest.mark.parametrize("kind", FailureKind)
def test_what_counts_as_wrong(kind: FailureKind) -> None:
    wrong = kind in (FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC)
    assert Measurement(failure=errors.Failure(kind, "it failed")).is_wrong is wrong


def test_neither_a_right_kernel_nor_an_unmeasured_one_is_wrong() -> None:
    assert not Measurement((1.0,), relative_error=0.0).is_wrong
    assert not Measurement(
        failure=errors.Failure(FailureKind.RUN_ERROR, f"{NOT_MEASURED}another one")
    ).is_wrong
