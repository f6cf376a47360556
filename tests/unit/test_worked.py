"""docs/worked.md: its steps, run as they stand, give the terms of the model."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import tilesight

PAGE = (Path(__file__).parents[2] / "docs" / "worked.md").read_text(encoding="utf-8")
KERNEL, *STEPS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
# names in the steps, and where the target has their values
FIGURES = {
    "cores": "core.count",
    "clock_mhz": "core.clock_mhz",
    "read_rate": "device.memory.dram.read_gb_per_s",
    "copy_rate": "device.memory.dram.gb_per_s",
    "l2_bytes": "device.memory.l2.bytes",
    "launch_us": "device.launch_us",
    "fill_us": "device.block_start_us",
}


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    """The names that the steps of the page define."""
    found: dict[str, Any] = {}
    for step in STEPS:
        exec(step, found)
    return found


def test_the_steps_read_the_targets_figures(steps: dict[str, Any]) -> None:
    target = tilesight.load_target("h200")
    assert {name: steps[name] for name in FIGURES} == {
        name: pytest.approx(target[path]) for name, path in FIGURES.items()
    }


def test_the_steps_give_the_terms_of_the_model(steps: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "scale.py").write_text(KERNEL, encoding="utf-8")  # TileLang reads a kernel from its file
    spec = importlib.util.spec_from_file_location("scale", tmp_path / "scale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    predicted = tilesight.predict(module.scale(), "h200")
    terms = predicted.terms_us
    assert steps["dram_us"] == pytest.approx(terms["dram"], rel=1e-3)
    assert steps["makespan_us"] == pytest.approx(terms["makespan"], rel=1e-3)
    assert steps["latency_us"] == pytest.approx(predicted.latency_us - terms["learned correction"], rel=1e-3)
    assert predicted.limiting == "dram"


def test_the_page_states_what_its_steps_give(steps: dict[str, Any]) -> None:
    rows = dict(re.findall(r"^\| ([\w ]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE))
    stated = {
        "launch": "launch_us", "first blocks start": "fill_us", "full waves": "body_us",
        "last wave": "last_us", "together": "latency_us",
    }  # fmt: skip
    assert rows == {row: f"{steps[name]:.2f}" for row, name in stated.items()}
    assert f"{steps['makespan_us']:.1f} us" in PAGE
    assert f"{steps['dram_us']:.1f} us" in PAGE
    assert f"of {steps['latency_us']:.1f} us" in PAGE
