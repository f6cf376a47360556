"""`tune --workloads DIR`: what of a data set is tuned on a target, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.tracesets.test_reading import GEMM, line, write
from tilesight import tune_workloads
from tilesight.cli.main import main
from tilesight.errors import InputError, NoCandidateError
from tilesight.problem.operator import Operator
from tilesight.problem.workload import Workload


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    narrow = {**GEMM, "name": "gemm_wide", "axes": {**GEMM["axes"], "N": {"type": "var"}}}  # type: ignore[dict-item]
    other = {**GEMM, "name": "rope_x", "op_type": "rope"}
    lines = [
        *(line("gemm_n16_k32", {"M": m}) for m in (3, 5, 5)),
        *(line("gemm_wide", {"M": m, "N": 2**31}) for m in (3, 5)),
        line("rope_x", {"M": 3}),
    ]
    return write(tmp_path / "set", [GEMM, narrow, other], lines)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[Workload]:
    """Workloads that would be tuned."""
    found: list[Workload] = []

    def tune(work: tuple[tuple[Operator, Workload], ...], *_: object) -> list[object]:
        found.extend(workload for _, workload in work)
        return []

    monkeypatch.setattr("tilesight.api.trace_workloads.tune_work", tune)
    return found


def test_workloads_that_kernels_take_are_tuned(data_set: Path, tuned: list[Workload]) -> None:
    found = tune_workloads(data_set, "h200", effort="predict")
    assert [workload.key for workload in tuned] == [
        f"matmul(m={m},n=16,k=32;layout=nt,dtype=float16)" for m in (5, 3)
    ]
    names = [one.name for one in found.left_out]
    assert names == ["rope_x", "gemm_wide (2 shapes)"]
    assert "must lie in 1 .." in found.left_out[1].reason


def test_kernel_and_limit_choose(data_set: Path, tuned: list[Workload]) -> None:
    tune_workloads(data_set, "h200", "matmul", limit=1, effort="predict")
    assert [workload.dims["m"] for workload in tuned] == [5]
    message = (
        r"^--workloads .*set has no workload of rms_norm that can be tuned; left out: rope_x: .*; "
        r"leave KERNEL out, or name a data set with definitions of gemm \(matmul\), rmsnorm"
    )
    with pytest.raises(InputError, match=message):
        tune_workloads(data_set, "h200", "rms_norm", effort="predict")
    with pytest.raises(InputError, match=r"^--workloads is empty; name the folder"):
        tune_workloads("", "h200", effort="predict")
    with pytest.raises(InputError, match="limit=0 must be at least 1"):
        tune_workloads(data_set, "h200", limit=0, effort="predict")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["tune", *arguments, "--target", "h200", "--effort", "predict"])
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


def test_the_command_prints_what_is_left_out(
    data_set: Path, tuned: list[Workload], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command(capsys, "--workloads", str(data_set))
    assert code == 0
    assert [text.split(": ")[:2] for text in out.splitlines()] == [
        ["left out", "rope_x"],
        ["left out", "gemm_wide (2 shapes)"],
    ]
    code, out, _ = command(capsys, "--workloads", str(data_set), "--json")
    assert code == 0
    assert [one["name"] for one in json.loads(out)["left_out"]] == ["rope_x", "gemm_wide (2 shapes)"]
    assert len(tuned) == 4


def test_json_has_what_is_left_out_where_nothing_is_tuned(
    data_set: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(capsys, "rms_norm", "--workloads", str(data_set), "--json")
    assert code == 2
    fields = json.loads(out)
    assert fields["sessions"] == []
    assert [one["name"] for one in fields["left_out"]] == ["rope_x"]
    assert "has no workload of rms_norm that can be tuned" in err


def test_json_has_what_is_left_out_where_a_shape_fails(
    data_set: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune(*given: Any) -> None:
        given[-1].answered(SimpleNamespace(from_database=True))
        raise NoCandidateError("nothing works for the second shape")

    monkeypatch.setattr("tilesight.api.trace_workloads.tune_work", tune)
    monkeypatch.setattr("tilesight.cli.printed_results.session_fields", lambda *_: {"one": 1})
    code, out, err = command(capsys, "--workloads", str(data_set), "--json")
    assert code == 3
    assert len(json.loads(out)["left_out"]) == 2
    assert "nothing works for the second shape" in err


def test_wrong_options(data_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (("--misses",), ("--shapes", "x"), ("--shape", "m=3"), ("--dtype", "float16")):
        code, _, err = command(capsys, "--workloads", str(data_set), *more)
        assert code != 0
        assert f"--workloads takes its shapes from the data set: leave out {more[0]}" in err
