"""Which values the figures of a target may have, alone and together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilesight.calibration.document import target_text
from tilesight.errors import TargetFileError
from tilesight.target.checks import ORDERS, check_together, checked_value
from tilesight.target.fields import FIGURES, LEVELS
from tilesight.target.spec import Target, load_target, parse_target, target_names

ROOT = Path(__file__).parents[3]
CALIBRATED = sorted((ROOT / "experiments" / "calibration").glob("*.toml"))


def with_figures(name: str, **values: float) -> Target:
    """Target `name` after it was written with other values and read again; `__` stands for a dot."""
    base = load_target(name)
    changed = {path.replace("__", "."): value for path, value in values.items()}
    assert set(changed) <= set(base.figures)
    figures = {
        path: replace(figure, value=changed.get(path, figure.value)) for path, figure in base.figures.items()
    }
    return parse_target(target_text(replace(base, figures=figures), ""), "chip.toml")


@pytest.mark.parametrize(
    ("target", "path", "value", "message"),
    [
        ("h200", "core.clock_mhz", 1.955, "1.955 MHz is below 100; was it meant in GHz? give it in MHz"),
        (
            "h200",
            "core.clock_mhz",
            1955000,
            "1955000 MHz is above 10000; was it meant in kHz or Hz? give it in MHz",
        ),
        ("h200", "core.clock_matrix_mhz", 1.565, "1.565 MHz is below 100"),
        (
            "h200",
            "core.count",
            0.5,
            "0.5 cores is below 1; it is 'SMs, CUs or CPU cores on the device', from 1 to 2048",
        ),
        ("h200", "core.count", 132.5, "132.5 cores must be a whole number; nearest: 132"),
        (
            "h200",
            "core.count",
            16896,
            "16896 cores is above 2048; was it meant in CUDA cores or stream processors? give it in SMs, CUs "
            "or CPU cores",
        ),
        ("h200", "warp.threads", 0.5, "0.5 threads must be 32 or 64"),
        ("h200", "warp.threads", 16, "16 threads must be 32 or 64"),
        (
            "h200",
            "core.memory.shared.bytes",
            228,
            "228 bytes is below 1024; was it meant in KiB, MiB or GiB? give it in bytes",
        ),
        (
            "h200",
            "device.memory.l2.bytes",
            60,
            "60 bytes is below 65536; was it meant in KiB, MiB or GiB? give it in bytes",
        ),
        (
            "h200",
            "device.memory.dram.bytes",
            141,
            "141 bytes is below 16777216; was it meant in KiB, MiB or GiB?",
        ),
        (
            "h200",
            "device.memory.dram.gb_per_s",
            2.99,
            "2.99 GB/s is below 10; was it meant in TB/s? give it in GB/s",
        ),
        (
            "h200",
            "device.memory.dram.gb_per_s",
            2990000,
            "2990000 GB/s is above 1000000; was it meant in MB/s or bytes/s?",
        ),
        ("h200", "device.memory.l2.gb_per_s", 9.691, "9.691 GB/s is below 50; was it meant in TB/s?"),
        (
            "h200",
            "core.unit.matrix.mma_sync_share",
            66.7,
            "66.7 share is above 1; was it meant in %? give it as a share of 1",
        ),
        ("h200", "device.launch_us", 1800, "1800 us is above 1000; was it meant in ns? give it in us"),
        (
            "h200",
            "device.memory.l2.latency_ns",
            0.142,
            "0.142 ns is below 1; was it meant in us? give it in ns",
        ),
        (
            "h200",
            "thread.max_registers",
            255.5,
            "255.5 32-bit registers must be a whole number; nearest: 256",
        ),
        ("h200", "core.memory.shared.reserved_bytes", -1, "value -1 must be greater than zero, in bytes"),
        ("cpu", "core.count", 0, "value 0 must be greater than zero, in cores"),
        ("cpu", "core.memory.l2.bytes", 1024, "1024 bytes is below 16384"),
        ("cpu", "device.memory.dram.gb_per_s", 0.012, "0.012 GB/s is below 0.1; was it meant in TB/s?"),
    ],
)
def test_a_value_in_another_unit_is_refused(target: str, path: str, value: float, message: str) -> None:
    with pytest.raises(TargetFileError) as caught:
        with_figures(target, **{path.replace(".", "__"): value})
    assert f"target file 'chip.toml': figure '{path}': {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"core__memory__shared__block_bytes": 233472},
            "'core.memory.shared.block_bytes': 233472 bytes, with the 1024 of "
            "'core.memory.shared.reserved_bytes', is more than "
            "'core.memory.shared.bytes' allows, which is 233472",
        ),
        (
            {"core__max_block_threads": 4096},
            "'core.max_block_threads': 4096 threads is more than 'core.max_threads' allows, which is 2048",
        ),
        (
            {"core__memory__registers__bytes": 16384},
            "'core.max_block_threads': 1024 threads is more than 'core.memory.registers.bytes'",
        ),
        (
            {"core__clock_matrix_mhz": 1900},
            "'core.clock_matrix_mhz': 1900 MHz is more than 'core.clock_mixed_mhz' allows, which is 1780",
        ),
        (
            {"core__clock_mixed_mhz": 2100},
            "'core.clock_mixed_mhz': 2100 MHz is more than 'core.clock_mhz' allows, which is 1955",
        ),
        (
            {"device__memory__dram__read_gb_per_s": 3000},
            "is more than 'device.memory.dram.read_gb_per_s' allows, which is 3000",
        ),
        (
            {"device__memory__l2__shared_gb_per_s": 5000},
            "is more than 'device.memory.l2.shared_gb_per_s' allows, which is 5000",
        ),
        (
            {"device__memory__l2__gb_per_s": 2000},
            "is more than 'device.memory.l2.gb_per_s' allows, which is 2000",
        ),
        (
            {"device__memory__dram__spec_gb_per_s": 335},
            "is more than 'device.memory.dram.spec_gb_per_s' allows, which is 335",
        ),
        (
            {"device__memory__dram__latency_ns": 33},
            "'device.memory.l2.latency_ns': 142 ns is more than 'device.memory.dram.latency_ns'",
        ),
        (
            {"device__memory__dram__bytes": 1 << 25},
            "a cache is smaller than the memory behind it; correct one of them",
        ),
        (
            {"cluster__cores": 133},
            "'cluster.cores': 133 cores is more than 'core.count' allows, which is 132",
        ),
    ],
)
def test_figures_that_contradict_each_other_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(TargetFileError) as caught:
        with_figures("h200", **values)
    assert message in str(caught.value)
    assert "chip.toml" in str(caught.value)


def test_measured_figures_may_exceed_a_limit_slightly() -> None:
    assert with_figures("h200", core__clock_mixed_mhz=1975)["core.clock_mixed_mhz"] == 1975
    assert (
        with_figures("h200", device__memory__dram__read_gb_per_s=4200)["device.memory.dram.read_gb_per_s"]
        == 4200
    )


@pytest.mark.parametrize("count", [132, 132.0])
def test_a_count_may_be_written_either_way(count: float) -> None:
    text = target_text(load_target("h200"), "").replace(
        "count = { value = 132,", f"count = {{ value = {count!r},"
    )
    assert parse_target(text, "chip.toml").int("core.count") == 132


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1" + "0" * 400, "2^1328 or more MHz is above 10000"),
        ("1" + "0" * 5000, "has a line of 5208 characters; the limit is 2000"),
    ],
)
def test_numbers_beyond_all_bounds(text: str, message: str) -> None:
    whole = target_text(load_target("h200"), "")
    assert "clock_mhz = { value = 1955," in whole
    with pytest.raises(TargetFileError) as caught:
        parse_target(
            whole.replace("clock_mhz = { value = 1955,", f"clock_mhz = {{ value = {text},"), "chip.toml"
        )
    assert message in str(caught.value)


@pytest.mark.parametrize("name", target_names())
def test_shipped_targets_hold_together(name: str) -> None:
    target = load_target(name)
    check_together(target.figures, name)
    for path, figure in target.figures.items():
        assert checked_value(path, figure.value, target.kind, path) == figure.value


@pytest.mark.parametrize("path", CALIBRATED, ids=lambda path: path.stem)
def test_calibrated_targets_hold_together(path: Path) -> None:
    assert load_target(str(path)).kind == "cuda"


def test_a_slow_processor_is_accepted() -> None:
    slow = with_figures(
        "cpu",
        device__memory__dram__gb_per_s=2,
        device__memory__llc__gb_per_s=4,
        core__unit__special__lanes=0.1,
    )
    assert slow.dram_gb_per_s == 2


def test_rules_are_about_existing_figures() -> None:
    for path, rule in FIGURES.items():
        assert path.split(".")[0] in LEVELS
        assert 0 < rule.least <= rule.most, path
        assert rule.cpu_least is None or rule.cpu_least <= rule.least, path
    for order in ORDERS:
        assert {order.path, order.limit} <= set(FIGURES)
        assert order.plus is None or order.plus in FIGURES
        assert (
            FIGURES[order.path].unit == FIGURES[order.limit].unit
            or order.slack < 1
            or "warp" in order.path
            or "count" in order.path
        )
