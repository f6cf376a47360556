from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilesight.calibration.cpu import (
    STREAM_BYTES,
    CacheSizes,
    _timed,
    compile_probes,
    disturbed_notes,
)
from tilesight.calibration.readings import Reading
from tilesight.errors import ToolchainError
from tilesight.target.spec import load_target


def test_cache_sizes_are_those_of_the_system(tmp_path: Path) -> None:
    for number, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "1024K"), (3, "Unified", "32768K")]
    ):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("level", str(level)), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert CacheSizes.of_this_machine(tmp_path) == CacheSizes(48 * 1024, 2**20, 32 * 2**20)


def test_a_system_that_says_nothing_of_its_caches(tmp_path: Path) -> None:
    (tmp_path / "index0").mkdir()
    assert CacheSizes.of_this_machine(tmp_path) == CacheSizes(0, 0, 0)
    assert CacheSizes.of_this_machine(tmp_path / "nowhere") == CacheSizes(0, 0, 0)


def test_probes_that_do_not_compile_name_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesight.calibration.cpu.cpu_flags", lambda _: ("--no-such-flag",))
    with pytest.raises(ToolchainError, match="the probes cannot be built"):
        compile_probes(load_target("cpu"), tmp_path)


class Core:
    """Loops whose times are given: those of streams by the bytes that they move in a second."""

    def __init__(self, bytes_per_s: dict[int, float]) -> None:
        self.bytes_per_s = bytes_per_s  # by the largest working set

    def warm_up(self) -> None:
        pass

    def clock_mhz(self) -> float:
        return 1000.0

    def chain_seconds(self, count: int) -> float:
        return count * 4e-9

    def call_seconds(self) -> float:
        return 1e-7

    def seconds(self, name: str, count: int) -> float:
        if name != "stream":
            return count * 1e-9
        size = count * STREAM_BYTES
        return size / next(rate for most, rate in self.bytes_per_s.items() if size <= most)


@pytest.mark.parametrize(("cache", "expected"), [(30e9, 30.0), (15e9, 20.0)])
def test_a_cache_is_no_slower_than_the_memory_behind_it(cache: float, expected: float) -> None:
    core: Any = Core({2**19: 60e9, 2**23: cache, 2**28: 20e9})
    sizes = {"l1": 2**15, "l2": 2**20, "llc": 2**24}
    found = {reading.path: reading.value for reading in _timed(core, sizes, 2**28, lambda _: None)}
    assert found["device.memory.llc.gb_per_s"] == pytest.approx(expected)
    assert found["device.memory.dram.gb_per_s"] == pytest.approx(20.0)
    assert found["core.memory.l2.bytes_per_cycle"] == pytest.approx(60.0)


def test_figures_that_other_work_disturbed_are_named() -> None:
    calm = Reading("core.clock_mhz", 1000.0, 0.1, "", samples=(1000.0, 960.0, 910.0, 500.0))
    counted = Reading("core.memory.l1.bytes", 2.0**15, 0.0, "")
    disturbed = Reading("device.launch_us", 0.1, 3.0, "", samples=(0.1, *[0.4] * 39))
    assert disturbed_notes([calm, counted]) == []
    assert disturbed_notes([calm, counted, disturbed]) == [
        "other work disturbed device.launch_us: fewer than 25% of the samples are within 10% of the best; "
        "calibrate again when the machine is idle"
    ]
