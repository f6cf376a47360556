"""Figures of experiments/bench: which rows are taken, and in which order."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "bench"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("figures")
    sys.modules.pop("figures", None)


def row(operator: str, shape: str | None, ours: float | None, vendors: dict[str, float], **more: str) -> str:
    known = {"dtype": "bfloat16", "status": "verified", **more}
    return json.dumps({"operator": operator, "shape": shape, "ours_us": ours, "vendors_us": vendors, **known})


def written(folder: Path, *rows: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_the_last_measured_row_of_a_workload_stands(figures: Any, tmp_path: Path) -> None:
    first = written(
        tmp_path / "h100",
        row("matmul", "M1", 10.0, {"cuBLAS": 5.0}),
        row("matmul", "M10", 10.0, {"cuBLAS": 5.0}),
        row("matmul", "M0", 10.0, {"cuBLAS": 20.0, "other": 40.0}),
        row("matmul", "M1", 10.0, {"cuBLAS": 80.0}),
        row("matmul", "M2", 10.0, {}),
        row("matmul", "M3", None, {"cuBLAS": 5.0}, status="compile"),
        row("matmul", None, 10.0, {"cuBLAS": 5.0}),
        row("matmul", "M4", 10.0, {"cuBLAS": 10.0}, dtype="float16"),
    )
    second = written(tmp_path / "h200", row("matmul", "M0", 10.0, {"cuBLAS": 30.0}))
    rows = figures.read([first, second])
    assert sorted(set(rows["machine"])) == ["h100", "h200"]
    table = figures.ratios_of(figures.GROUPS["matmul"], rows[rows["machine"] == "h100"])
    assert list(table.index) == ["M0", "M1", "M4\nfloat16", figures.MEAN]
    assert list(table["cuBLAS"][:3]) == [2.0, 8.0, 1.0]
    assert table["cuBLAS"].iloc[3] == pytest.approx(16 ** (1 / 3))
    assert table["other"].iloc[3] == pytest.approx(4)
    assert math.isnan(table["other"].iloc[1])


def test_operators_of_a_group_have_means_of_their_own(figures: Any, tmp_path: Path) -> None:
    path = written(
        tmp_path / "h200",
        *(row("chunk_state", f"CT{i}", 1.0, {"Triton": 2.0 + i}) for i in (1, 0)),
        *(row("chunk_scan", f"CC{i}", 1.0, {"Triton": 8.0}) for i in (0, 1)),
    )
    rows = figures.read([path])
    table = figures.ratios_of(figures.GROUPS["linear-attention"], rows)
    means = [f"{figures.MEAN}\nchunk_scan", f"{figures.MEAN}\nchunk_state"]
    assert list(table.index) == ["CC0", "CC1", means[0], "CT0", "CT1", means[1]]
    assert table["Triton"][means[0]] == pytest.approx(8)
    assert table["Triton"][means[1]] == pytest.approx(math.sqrt(6))
    assert figures.ratios_of(figures.GROUPS["mla"], rows).empty


def test_a_figure_is_drawn(figures: Any, tmp_path: Path) -> None:
    path = written(
        tmp_path / "h200", *(row("chunk_scan", f"CC{i}", 1.0, {"a": 30.0, "b": 2.0}) for i in (0, 1))
    )
    group = figures.GROUPS["linear-attention"]
    picture = tmp_path / "figure.png"
    figures.draw(picture, "linear attention", figures.ratios_of(group, figures.read([path])), group.stated)
    assert picture.read_bytes().startswith(b"\x89PNG")
