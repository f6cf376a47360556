"""Tables of benchmarks: rows of sessions, ratios, text, JSON lines and picture."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import tilesight
from tests.unit.cli.test_commands import Shell
from tests.unit.conftest import FakeLine
from tilesight.benchmarks.picture import write_picture
from tilesight.benchmarks.table import BenchRow, BenchTable, summary
from tilesight.errors import InputError
from tilesight.problem.workload import Workload


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], fake_line: FakeLine) -> Shell:
    return Shell(capsys, fake_line)


def row(m: int, ours_us: float | None, status: str = "verified", **vendors_us: float) -> BenchRow:
    workload = Workload("matmul", {"m": m, "n": 64, "k": 64}, "float16", {"fuse": "bias"})
    return BenchRow(workload, status, ours_us, "block_m=64", vendors_us, limit_us=1.0)


def table(*rows: BenchRow) -> BenchTable:
    return BenchTable("h200", "NVIDIA H200", "2026-11-25", "quick", {"tilelang": "0.1.15"}, rows)


def test_the_ratio_is_to_the_fastest_vendor_and_needs_two_measured_times() -> None:
    assert row(1, 4.0, cublas=8.0, other=6.0).ratio == 1.5
    assert row(1, 4.0).ratio is None
    assert row(1, 4.0, "predicted", cublas=8.0).ratio is None
    assert row(1, None, "wrong_result", cublas=8.0).ratio is None


def test_the_summary_is_a_geometric_mean_over_rated_rows() -> None:
    found = summary([row(1, 1.0, a=2.0), row(2, 2.0, a=1.0), row(3, 1.0, "predicted", a=9.0)])
    assert found["rated"] == 2
    assert math.isclose(float(found["mean"] or 0), 1.0)
    assert (found["worst"], found["best"]) == (0.5, 2.0)
    assert summary([row(1, 1.0)]) == {"rated": 0, "mean": None, "worst": None, "best": None}


def test_text_marks_predictions_and_names_failures() -> None:
    failed = BenchRow(row(3, None).workload, "wrong_result", message="output 'C' is off")
    text = str(table(row(1, 4.0, cuBLAS=8.0), row(2, 5.0, "predicted"), failed))
    assert "m=1,n=64,k=64,fuse=bias" in text
    assert "~5.000" in text
    assert "wrong_result" in text
    assert "output 'C' is off" in text
    assert "~: predicted, not measured" in text
    assert "2.00" in text


def test_the_command_writes_what_python_returns(shell: Shell, tmp_path: Path) -> None:
    out, plot = tmp_path / "rows.jsonl", tmp_path / "ratios.svg"
    given = ("bench", "axpy", "--target", "cpu", "--out", str(out), "--plot", str(plot))
    code, text, _ = shell(*given)
    assert code == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["shape"] for line in lines] == ["X0", "X1"], "all published shapes, not only the defaults"
    assert {line["status"] for line in lines} == {"verified"}
    assert plot.read_text().startswith("<?xml")
    found = tilesight.bench(["axpy"], target="cpu")
    assert str(found).splitlines()[2:6] == text.splitlines()[2:6]
    assert [r.ours_us for r in found.rows] == [line["ours_us"] for line in lines]


def test_workloads_that_share_a_time_budget_pay_alike_for_the_start_of_the_processes(
    fake_line: FakeLine,
) -> None:
    for kernels, budget_s, waited in ((["axpy:X0", "axpy:X1"], 60.0, True), (["axpy"], None, False)):
        tilesight.bench(kernels, target="cpu", budget_s=budget_s)
        assert fake_line.executor.waited is waited
        fake_line.executor.waited = False


def test_one_workload_is_named_with_its_kernel(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    assert shell("bench", "axpy:X1", "--target", "cpu", "--out", str(out))[0] == 0
    assert [json.loads(line)["shape"] for line in out.read_text().splitlines()] == ["X1"]


def test_bad_arguments(shell: Shell) -> None:
    assert "must end in .jsonl" in shell("bench", "axpy", "--target", "cpu", "--out", "x.csv")[2]
    assert "must end in .png or .svg" in shell("bench", "axpy", "--target", "cpu", "--plot", "x.pdf")[2]
    assert "no such" not in shell("bench", "nothing", "--target", "cpu")[1]
    with pytest.raises(InputError, match="shapes belong to one kernel"):
        tilesight.bench(["matmul", "gemv"], target="h100", shape="M0", effort="glance")


def test_a_picture_without_ratios_says_so(tmp_path: Path) -> None:
    write_picture(tmp_path / "none.svg", table(row(1, 4.0)))
    write_picture(tmp_path / "some.png", table(row(1, 4.0, cublas=8.0), row(2, 4.0, cublas=3.0, triton=5.0)))
    assert (tmp_path / "some.png").read_bytes().startswith(b"\x89PNG")


def test_kernels_of_one_device_and_of_several_are_not_mixed() -> None:
    with pytest.raises(InputError, match=r"matmul_reduce_scatter runs on several .* and matmul on one"):
        tilesight.bench(["matmul:M0", "matmul_reduce_scatter"], "h200x2", effort="predict")
