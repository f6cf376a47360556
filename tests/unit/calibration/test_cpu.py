from __future__ import annotations

from pathlib import Path

import pytest

from tilesight.calibration.cpu import CacheSizes, compile_probes
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
