"""docs/see.md: its Python runs, and pandas, DuckDB and polars read the same from a shipped dataset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "see.md").read_text(encoding="utf-8")
BLOCKS = {
    re.findall(r"^import (\w+)", text, re.MULTILINE)[0]: text
    for text in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a block of the page leaves, in the folder of the project."""
    monkeypatch.chdir(ROOT)
    return {}


def pandas_counts(names: dict[str, Any]) -> dict[str, int]:
    exec(BLOCKS["pandas"], names)
    return {str(operator): int(count) for operator, count in names["found"]["size"].items()}


def test_the_page_has_an_example_of_each() -> None:
    assert set(BLOCKS) == {"pandas", "duckdb", "polars"}


def test_duckdb_reads_what_pandas_reads(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    expected = pandas_counts(names)
    exec(BLOCKS["duckdb"], names)
    rows = names["found"].fetchall()
    assert {operator: kernels for operator, kernels, _ in rows} == expected
    assert all(ratio >= 1 for _, _, ratio in rows)
    assert "median_over_best" in capsys.readouterr().out


def test_polars_reads_what_pandas_reads(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    expected = pandas_counts(names)
    least = {str(operator): float(us) for operator, us in names["found"]["min"].items()}
    exec(BLOCKS["polars"], names)
    rows = names["found"].collect().rows()
    assert {operator: kernels for operator, kernels, _ in rows} == expected
    assert {operator: us for operator, _, us in rows} == least
    assert "kernels" in capsys.readouterr().out
