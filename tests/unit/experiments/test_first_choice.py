"""experiments/first_choice: configs put onto the project's template, and tables from rows."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tilesight.kernels import template_for
from tilesight.target.spec import load_target

FOLDER = Path(__file__).parents[3] / "experiments" / "first_choice"
REST = {"policy": ("square", "full_row"), "epilogue": ("shared",), "swizzle": (0,)}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("nearest", "shapes", "stand_in", "table")
    yield lambda name: importlib.import_module(name)
    for name in names:
        sys.modules.pop(name, None)


def taken(load: Any, shape: str, **wanted: int) -> tuple[Any, dict[str, str]]:
    target = load_target("h200")
    template = template_for("matmul", target, "bfloat16")
    workload = template.operator.workload(shape, "bfloat16")
    found: tuple[Any, dict[str, str]] = load("nearest").nearest(template, workload, target, wanted, REST)
    return found


def test_a_config_that_the_template_has_is_taken_as_it_is(load: Any) -> None:
    wanted = {"block_m": 256, "block_n": 128, "block_k": 64, "num_stages": 4, "threads": 256}
    config, changed = taken(load, "M0", **wanted)
    assert {name: config[name] for name in wanted} == wanted
    assert config["policy"] == "square"
    assert changed == {}


def test_sizes_that_the_template_lacks_are_changed_and_named(load: Any) -> None:
    config, changed = taken(load, "M0", block_m=60, block_n=24, block_k=256, num_stages=8, threads=128)
    assert changed == {
        "block_m": "60 -> 64",
        "block_n": f"24 -> {config['block_n']}",
        "block_k": "256 -> 128",
        "num_stages": f"8 -> {config['num_stages']}",
    }


def test_a_wasteful_tile_is_no_reason_to_change_it(load: Any) -> None:
    wanted = {"block_m": 64, "block_n": 64, "block_k": 128, "num_stages": 5, "threads": 128}
    config, changed = taken(load, "m=17,n=8192,k=8192", **wanted)
    template = template_for("matmul", load_target("h200"), "bfloat16")
    workload = template.operator.workload("m=17,n=8192,k=8192", "bfloat16")
    assert changed == {}
    assert config not in template.space(workload, load_target("h200"))


def test_the_table_takes_the_fastest_form_and_library_of_a_shape(load: Any, tmp_path: Path) -> None:
    rows = [
        ("M0", "tilesight", "", "measured", "100"),
        ("M0", "Helion", "", "measured", "150"),
        ("M0", "Helion", "all keys", "measured", "120"),
        ("M0", "cuBLAS", "", "measured", "80"),
        ("M0", "roller", "", "failed", ""),
        ("D16", "tilesight", "", "measured", "10"),
        ("D16", "Helion", "", "measured", "20"),
        ("D16", "cuBLAS", "", "measured", "10"),
    ]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["shape", "tool", "form", "status", "median_us", "predicted_us", "failure"])
        writer.writerows([*row, "110" if row[:2] == ("M0", "tilesight") else "", ""] for row in rows)
    table = load("table")
    run = table.read(path, ["M0"])
    assert run.time("M0", "Helion") == 120
    assert [row["tool"] for row in run.failed] == ["roller"]
    lines = {(line[0], line[1]): line[2:] for line in table.summary(run)}
    assert lines["all in the datasets", "Helion"] == ["1 of 1", "1.200", "1.20 (M0)", "1.500", "1.50 (M0)"]
    assert lines["all others", "vendor"] == ["1 of 1", "1.000", "1.00 (D16)", "1.000", "1.00 (D16)"]
    own = [line for line in table.errors(run) if line[0] == "all in the datasets"]
    assert own == [
        ["all in the datasets", "tilesight", "its own kernel", "1", "10.0%", "10.0%", "+10.0% (M0)"]
    ]
