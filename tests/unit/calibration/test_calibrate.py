from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilesight.calibration import calibrate, check_name, loads
from tilesight.calibration.document import target_text
from tilesight.calibration.loads import LOADS
from tilesight.calibration.measuring import compile_probes, rounded
from tilesight.calibration.probes import PROBES
from tilesight.device import Device
from tilesight.errors import InputError, ToolchainError
from tilesight.target import FIGURES, load_target, parse_target, target_names
from tilesight.toolchain import missing_compiler

from . import fake_gpu
from .fake_gpu import FakeGpu

H200 = Device("NVIDIA H200", "GPU-1", "580.159.04", "cuda", 0, 141 << 30)
SOURCE = Path(loads.__file__).with_name("probes.cu")


@pytest.fixture(autouse=True)
def short_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "LOAD_S", 0.0)


def test_every_figure_is_what_the_gpu_does() -> None:
    found = calibrate(load_target("h200"), H200, "mine", gpu=FakeGpu())
    assert {r.path: r.value for r in found.readings} == pytest.approx(fake_gpu.FIGURES, rel=1e-3)
    assert found.notes == ()


def test_the_calibrated_target_is_read_back_and_differs_only_where_it_was_measured(tmp_path: Path) -> None:
    base = load_target("h200")
    found = calibrate(base, H200, "mine", gpu=FakeGpu())
    path = tmp_path / "mine.toml"
    path.write_text(found.text())
    target = load_target(str(path))
    assert target == found.target
    assert (target.name, target.arch, target.device_names, target.dtypes) == ("mine", base.arch, base.device_names, base.dtypes)
    assert target.fingerprint != base.fingerprint
    for figure_path, figure in target.figures.items():
        if figure_path in fake_gpu.FIGURES:
            assert figure.provenance == "measured"
            assert re.match(r"tilesight calibrate, NVIDIA H200, driver 580.159.04, .*: .*; spread \d", figure.source), figure.source
        else:
            assert figure == base.figures[figure_path]


def test_what_the_driver_counts_differently_is_taken_from_it() -> None:
    found = calibrate(load_target("h200"), H200, "mine", gpu=FakeGpu(cores=114, l2_bytes=48 << 20))
    assert found.target["core.count"] == 114
    assert found.target["device.memory.l2.bytes"] == 48 << 20


def test_probes_without_code_on_this_chip_are_left_out_with_a_note() -> None:
    gpu = FakeGpu(absent=("barrier_wait", "bulk_copy"))
    found = calibrate(load_target("a100"), H200, "mine", gpu=gpu)
    assert len(found.notes) == 2
    assert all("sm_80 has no code for it" in note for note in found.notes)
    assert "core.bulk_copy_cycles" not in found.target.figures


def test_a_reading_that_means_nothing_is_left_out_with_a_note() -> None:
    gpu = FakeGpu()
    gpu.figures["device.block_turnover_us"] = 0.0
    found = calibrate(load_target("h200"), H200, "mine", gpu=gpu)
    assert "device.block_turnover_us" not in found.target.figures
    assert found.notes == ("device.block_turnover_us: left out, 0 was measured",)


def test_the_faster_of_two_copies_counts() -> None:
    gpu = FakeGpu()
    gpu.figures["device.memory.dram.gb_per_s"] = 3000.0  # slower than the driver's copy
    found = calibrate(load_target("h200"), H200, "mine", gpu=gpu)
    assert found.target["device.memory.dram.gb_per_s"] == pytest.approx(4000)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h200", "is that of a shipped target"),
        ("H100", "is that of a shipped target"),
        ("a b", "must be letters"),
        ("../x", "must be letters"),
    ],
)
def test_names_that_cannot_be(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_name(name)


@pytest.mark.parametrize(("target", "why"), [("mi300x", "no probes in HIP, since no AMD GPU was at hand"), ("cpu", "none for processors")])
def test_targets_that_are_no_nvidia_gpu(target: str, why: str) -> None:
    with pytest.raises(InputError, match=f"target {target} cannot be calibrated.*{why}"):
        calibrate(load_target(target), H200, "mine", gpu=FakeGpu())


@pytest.mark.parametrize("name", target_names())
def test_a_target_written_and_read_is_the_same(name: str) -> None:
    target = load_target(name)
    again = parse_target(target_text(target, "a\nheading"), "again.toml")
    assert again == target
    assert again.fingerprint == target.fingerprint


def test_any_text_survives_the_file() -> None:
    from dataclasses import replace

    target = replace(load_target("h200"), title='a "quoted" \\ text\x7f\n\t with ü and \u2028')
    assert parse_target(target_text(target, ""), "x.toml").title == target.title


@pytest.mark.parametrize(("value", "expected"), [(0.61849, 0.6185), (4312.46, 4312.0), (62914560.0, 62914560.0), (1905.0, 1905.0)])
def test_rounding(value: float, expected: float) -> None:
    assert rounded(value) == expected


def test_probes_and_source_agree() -> None:
    kernels = set(re.findall(r'extern "C" __global__ void (\w+)\(', SOURCE.read_text())) - {"name"}
    kernels |= set(re.findall(r"^THROUGHPUT\((\w+),", SOURCE.read_text(), re.MULTILINE))
    wanted = {kernel for probe in (*LOADS, *PROBES) for kernel in probe.kernels}
    assert wanted <= kernels
    gpu = FakeGpu()
    calibrate(load_target("h200"), H200, "mine", gpu=gpu)
    assert gpu.ran | {"clock_rate"} == wanted
    assert set(fake_gpu.FIGURES) <= set(FIGURES)


@pytest.mark.skipif(missing_compiler(load_target("h200")) is not None, reason="no nvcc here")
@pytest.mark.parametrize("target", ["h200", "a100"])
def test_the_probes_build(target: str) -> None:
    cubin = compile_probes(load_target(target))
    assert cubin.startswith(b"\x7fELF")
    assert b"fp32_fma" in cubin
    assert (b"bulk_copy" in cubin) == (target == "h200")


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho 'probes.cu(1): error: no' >&2; exit 2\n")
    compiler.chmod(0o755)
    monkeypatch.setattr("tilesight.calibration.measuring.find_nvcc", lambda: compiler)
    monkeypatch.setattr("tilesight.calibration.measuring.missing_compiler", lambda _: None)
    with pytest.raises(ToolchainError, match=r"probes cannot be built: nvcc ended with exit code 2: probes.cu\(1\): error: no"):
        compile_probes(load_target("h200"))
