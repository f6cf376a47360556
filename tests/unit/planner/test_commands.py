"""`tilesight plan`, `tune --dynamic` and `tune --misses` as a user types them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import tilesight
from tests.unit.cli.documented import check_fields
from tests.unit.planner.conftest import RowsLine
from tests.unit.planner.rows_line import RowsExecutor, RowsTemplate, true_us
from tilesight.api.misses import tune_misses
from tilesight.api.tuning import tune
from tilesight.cli.db.misses import misses as db_misses
from tilesight.cli.options import read_time
from tilesight.cli.plan import plan, read_weights
from tilesight.cli.tune import tune as tune_command
from tilesight.database import open_store
from tilesight.dispatch.table.table_file import read_table
from tilesight.errors import Failure, FailureKind, InputError, NoCandidateError
from tilesight.problem.space import Config
from tilesight.records.winners import Miss

pytestmark = pytest.mark.usefixtures("rows_line")
PLAN = [
    "rows",
    "--vary",
    "m=1..512",
    "--shape",
    "n=1024",
    "--target",
    "cpu",
    "--kernels",
    "3",
    "--shapes",
    "6",
]
SERVED = Config({"block": 8, "width": 32, "stages": 1})

Run = Callable[..., Result]


def called(command: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def test_plan_prints_kernels_and_losses(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    result = called(plan, *PLAN, "--out", str(out))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("rows m=1..512 n=1024 float32: ")
    assert "kernels, measured on" in lines[0]
    heading = next(line for line in lines if line.split()[:2] == ["m", "kernel"])
    assert heading.split() == [
        "m",
        "kernel",
        "chosen",
        "us",
        "best",
        "us",
        "loss",
        "default",
        "us",
        "times",
    ]
    rows = lines[lines.index(heading) + 1 : lines.index(heading) + 7]
    assert [row.split()[-1] for row in rows] == ["measured"] * 6
    assert any(
        line.startswith("loss against the best known config at the 6 sizes of this table: mean ")
        for line in lines
    )
    assert lines[-1] == f"table: {out}"
    assert max(map(len, lines[:-1])) <= 100
    table = read_table(out)
    assert (table.first, table.last) == (1, 512)
    assert [str(piece.size) for piece in table.evidence] == [row.split()[0] for row in rows]


def test_a_plan_of_the_python_interface_prints_as_the_command_does() -> None:
    called(plan, *PLAN)
    shown = called(plan, *PLAN).stdout
    found = tilesight.plan("rows", "m=1..512", "cpu", "n=1024", kernels=3, shapes=6)
    printed, written = (text.splitlines() for text in (str(found), shown))
    for lines in (printed, written):
        assert "configs predicted" in lines.pop(1)  # and how many were recalled, and how long it took
    assert printed == written
    assert repr(found).startswith("PlanResult(rows m=1..512 n=1024 float32: ")
    frame = found.to_frame()
    assert list(frame["m"]) == [piece.size for piece in found.table.evidence]
    assert {"kernel", "chosen_us", "best_us", "loss", "default_us", "block", "width", "stages"} <= set(frame)


def test_plan_json_has_the_table_and_the_losses() -> None:
    result = called(plan, *PLAN, "--json", "--effort", "predict")
    found = json.loads(result.stdout)
    assert found["kind"] == "plan"
    check_fields("plan", [found])
    assert found["is_measured"] is False
    assert found["measured"] == found["built"] == 0
    assert found["table"]["segments"][0]["first"] == 1
    assert found["mean_loss"] >= 0
    assert set(found["default_us"]) <= {str(piece["size"]) for piece in found["table"]["evidence"]}


def test_plan_notes_that_nothing_was_measured() -> None:
    result = called(plan, *PLAN[:-6], "--target", "h200", "--kernels", "2", "--shapes", "5")
    assert "kernels, predicted for h200" in result.stdout
    assert "note: nothing is measured" in result.stdout


def test_weights_come_from_a_file_or_from_misses(tmp_path: Path) -> None:
    weights = tmp_path / "sizes.txt"
    weights.write_text("# served last week\n200 5\n300, 7.5\n\n")
    assert read_weights(weights) == {200: 5.0, 300: 7.5}
    assert called(plan, *PLAN, "--weights", str(weights)).exit_code == 0
    with pytest.raises(InputError, match="none are recorded of rows"):
        called(plan, *PLAN, "--weights", "misses")
    record_miss(200)
    assert called(plan, *PLAN, "--weights", "misses").exit_code == 0
    shapes = tmp_path / "shapes.txt"
    assert called(db_misses, "--out", str(shapes)).exit_code == 0
    assert called(plan, *PLAN, "--weights", str(shapes)).exit_code == 0
    shapes.write_text(shapes.read_text().replace("m=200", "m=0"))
    with pytest.raises(InputError, match="line 3"):
        called(plan, *PLAN, "--weights", str(shapes))


def test_weights_of_a_shapes_file_are_those_of_the_other_dimensions(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.txt"
    lines = ["rows m=200,n=1024 float32 5", "rows m=200,n=1024", "rows m=300,n=2048 float32 9"]
    shapes.write_text("\n".join(lines))
    given = {"shape": "n=1024", "kernels": 3, "shapes": 6, "effort": "predict"}
    listed = tilesight.plan("rows", "m=1..512", "cpu", weights=str(shapes), **given)  # type: ignore[arg-type]
    stated = tilesight.plan("rows", "m=1..512", "cpu", weights={200: 6.0}, **given)  # type: ignore[arg-type]
    assert listed.weights == stated.weights
    with pytest.raises(InputError, match="or the path of a shapes file"):
        tilesight.plan("rows", "m=1..512", "cpu", weights="last week", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["x 1\n", "3\n", "3 0\n", "3 -1\n", "0 1\n", "3 nan\n", "3 inf\n", "3 1 2\n", "", "# nothing\n"]
)
def test_wrong_weights_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    path.write_text(text)
    with pytest.raises(InputError, match="--weights"):
        read_weights(path)


def test_times_have_units() -> None:
    assert [read_time(text) for text in ("600", "90s", "10m", "1.5h")] == [600, 90, 600, 5400]
    for text in ("", "m", "0", "-3s", "3d", "nan", "inf", "1e400"):
        with pytest.raises(InputError, match="--budget"):
            read_time(text)


def test_a_path_that_cannot_be_written_is_refused_before_any_work(
    rows_line: RowsLine, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"must end in \.json"):
        called(plan, *PLAN, "--out", str(tmp_path / "t.txt"))
    with pytest.raises(InputError, match="there is no folder"):
        called(plan, *PLAN, "--out", str(tmp_path / "no" / "t.json"))
    assert not rows_line.executor.done["lower"]


# ---- tune


def test_tune_dynamic_builds_dynamic_kernels_and_has_results_of_its_own(rows_line: RowsLine) -> None:
    (dynamic,) = tune("rows", "cpu", "m=300,n=1024", dynamic="m")
    assert dynamic.context.dynamic == ("m",)
    assert all(candidate.dynamic == ("m",) for candidate in rows_line.executor.built_for)
    rows_line.executor = RowsExecutor()
    (static,) = tune("rows", "cpu", "m=300,n=1024")
    assert not static.from_database
    assert static.context.dynamic == ()
    (again,) = tune("rows", "cpu", "m=300,n=1024", dynamic=["m"])
    assert again.from_database


def test_tune_dynamic_gives_the_reason_why_a_dimension_must_be_static() -> None:
    with pytest.raises(InputError, match="n cannot be dynamic in rows: a row lies in registers; take m"):
        tune("rows", "cpu", "m=300,n=1024", dynamic="n")
    with pytest.raises(InputError, match="m is given twice"):
        called(
            tune_command, "rows", "--target", "cpu", "--shape", "m=3,n=4", "--dynamic", "m", "--dynamic", "m"
        )


def record_miss(
    m: int,
    count: int = 3,
    expected_us: float | None = 50.0,
    *,
    operator: str = "rows",
    target: str = "cpu",
    device: str = "",
    **dims: int,
) -> None:
    from tilesight.machine.placement import locate
    from tilesight.problem.workload import Workload

    placement = locate("cpu", measures=True)
    assert placement.device is not None
    now = datetime.now(UTC)
    workload = Workload(operator, {"m": m, "n": 1024, **dims}, "float32", {})
    miss = Miss(
        workload,
        target,
        device or placement.device.name,
        "rows",
        count,
        SERVED,
        "default",
        expected_us,
        now,
        now,
    )
    with open_store(os.environ["TILESIGHT_DB"]) as store:
        store.record_misses([miss])


def left() -> list[int]:
    with open_store(os.environ["TILESIGHT_DB"]) as store:
        return [miss.workload.dims["m"] for miss in store.misses()]


def test_misses_are_tuned_most_costly_first_and_forgotten() -> None:
    for m, count in ((100, 2), (700, 9), (300, 5)):
        record_miss(m, count)
    gains = tune_misses("rows", "cpu", limit=2)
    assert [gain.miss.workload.dims["m"] for gain in gains] == [700, 300]
    assert left() == [100]
    for gain in gains:
        dims = gain.miss.workload.dims
        assert gain.best_us == pytest.approx(min(true_us(c, dims) for c in space_of(dims)), rel=0.01)
        assert (
            gain.dispatched_us == pytest.approx(true_us(SERVED, dims), rel=0.01)
            if gain.is_measured
            else gain.dispatched_us == 50.0
        )
        assert gain.saved_us is not None
    assert [gain.miss.workload.dims["m"] for gain in tune_misses(None, "cpu")] == [100]
    assert left() == []
    assert tune_misses(None, "cpu") == []


def space_of(dims: dict[str, int] | object) -> tuple[Config, ...]:
    from tilesight.problem.workload import Workload
    from tilesight.target.spec import load_target

    return RowsTemplate().space(Workload("rows", dims, "float32"), load_target("cpu")).configs()  # type: ignore[arg-type]


def test_misses_of_other_targets_stay() -> None:
    record_miss(100)
    record_miss(100, target="h200", device="NVIDIA H200")
    assert [gain.miss.target for gain in tune_misses("rows", "cpu")] == ["cpu"]
    with open_store(os.environ["TILESIGHT_DB"]) as store:
        assert [miss.target for miss in store.misses()] == ["h200"]


def test_misses_of_other_devices_stay() -> None:
    record_miss(100, device="another chip")
    assert tune_misses(None, "cpu") == []
    assert left() == [100]


def test_misses_that_were_only_predicted_are_not_forgotten() -> None:
    record_miss(100)
    (gain,) = tune_misses(None, "cpu", effort="predict")
    assert gain.best_us is None
    assert gain.saved_us is None
    assert left() == [100]


def test_a_miss_that_cannot_be_tuned_does_not_stop_the_others(rows_line: RowsLine) -> None:
    record_miss(100, 99, operator="gone")
    record_miss(200, 1)
    with pytest.raises(InputError, match="unknown kernel 'gone'"):
        tune_misses(None, "cpu")
    assert left() == [100]  # the other one was tuned
    record_miss(300, 1)
    rows_line.executor = RowsExecutor(
        lambda stage, _: Failure(FailureKind.LOWER_ERROR, "refused") if stage == "lower" else None
    )
    with pytest.raises(NoCandidateError):
        tune_misses("rows", "cpu")
    assert set(left()) == {100, 300}


def test_tune_misses_prints_the_gains() -> None:
    assert "nothing to tune" in called(tune_command, "--misses", "--target", "cpu").stdout
    record_miss(300, 4)
    result = called(tune_command, "--misses", "--target", "cpu", "--top", "1")
    last = result.stdout.splitlines()[-1].split()
    assert last[0] == "4"
    assert last[-4:] == ["rows", "m=300", "n=1024", "float32"]
    record_miss(310, 4, None)
    found = json.loads(called(tune_command, "rows", "--misses", "--target", "cpu", "--json").stdout)
    (gain,) = found["gains"]
    assert gain["calls"] == 4
    assert gain["best_us"] > 0
    assert len(found["sessions"]) == 1
    check_fields("tune", [found])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "KERNEL is missing"),
        (["rows", "--limit", "3"], "--limit needs --misses"),
        (["--misses", "--shape", "R0"], "leave out --shape"),
        (["--misses", "--dtype", "float32", "--cluster", "local"], "leave out --dtype and --cluster"),
        (["nothing", "--misses"], "unknown kernel 'nothing'"),
    ],
)
def test_wrong_arguments_of_tune(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        called(tune_command, *arguments, "--target", "cpu")
