"""Recorded calibrations are read back, latest first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.database import samples
from tilesight.calibration import Calibration
from tilesight.calibration.readings import Reading
from tilesight.database import Store, open_store, overview
from tilesight.errors import InputError
from tilesight.machine.devices import Device
from tilesight.target.spec import load_target

SOFTWARE = {"nvcc": "nvcc 13.0.88", "driver": "580.159.04"}
CLOCK = Reading(
    "core.clock_mhz", 1903.26, 0.01, "SM clock of single launches", samples=(1900.0, 1903.26, 1919.0)
)
CORES = Reading("core.count", 114.0, 0.0, "as the driver reports it: 114")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "x.db")) as opened:
        yield opened


def calibration(name: str = "mine", *readings: Reading) -> Calibration:
    device = Device("NVIDIA H200", "GPU-5f7e", "580.159.04", "cuda", 0, 141 << 30)
    return Calibration(
        load_target("h200"),
        name,
        device,
        "nvcc 13.0.88",
        "2026-11-21",
        readings or (CLOCK, CORES),
        ("a note",),
    )


def test_what_was_measured_comes_back(store: Store) -> None:
    made = calibration()
    store.record_calibration(made, SOFTWARE)
    (found,) = store.calibrations()
    assert (found.name, found.base, found.device, found.uuid) == ("mine", "h200", "NVIDIA H200", "GPU-5f7e")
    assert found.fingerprint == made.target.fingerprint != load_target("h200").fingerprint
    assert found.figures == {"core.clock_mhz": 1903.0, "core.count": 114.0}
    assert found.readings["core.clock_mhz"] == {
        "value": 1903.26,
        "spread": 0.01,
        "samples": [1900.0, 1903.26, 1919.0],
        "method": "SM clock of single launches",
    }
    assert found.readings["core.count"]["samples"] == []
    assert (found.notes, found.software) == (("a note",), SOFTWARE)


def test_latest_first_and_by_name(store: Store) -> None:
    for name, clock in (("mine", 1900.0), ("other", 1800.0), ("mine", 1700.0)):
        store.record_calibration(calibration(name, replace(CLOCK, value=clock)), SOFTWARE)
    assert [found.figures["core.clock_mhz"] for found in store.calibrations()] == [1700.0, 1800.0, 1900.0]
    assert [found.figures["core.clock_mhz"] for found in store.calibrations("mine")] == [1700.0, 1900.0]
    assert store.calibrations("nobody's") == []


def test_the_same_calibration_is_one_row(store: Store) -> None:
    for _ in range(2):
        store.record_calibration(calibration(), SOFTWARE)
    assert overview(store).tables["calibrations"] == 1


@pytest.mark.parametrize(
    "bad",
    [
        replace(CLOCK, value=math.nan),
        replace(CLOCK, spread=math.inf),
        replace(CLOCK, samples=(1.0, -math.inf)),
    ],
)
def test_numbers_that_are_none_are_refused(store: Store, bad: Reading) -> None:
    with pytest.raises(InputError, match=r"calibration 'mine': .*core.clock_mhz.* must be finite"):
        store.record_calibration(calibration("mine", bad), SOFTWARE)
    assert overview(store).tables["software"] == 0


def test_a_name_too_long_for_an_index_is_refused(store: Store) -> None:
    store.record_calibration(calibration("m" * 200), SOFTWARE)
    with pytest.raises(InputError, match=r"calibration 'm{40}': the name of its target has 201 characters"):
        store.record_calibration(calibration("m" * 201), SOFTWARE)
    assert overview(store).tables["calibrations"] == 1
