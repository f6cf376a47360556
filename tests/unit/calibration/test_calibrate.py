from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.calibration import fake_gpu
from tests.unit.calibration.fake_gpu import FakeGpu
from tests.unit.calibration.readers import KERNELS, figures_read
from tilesight.calibration import calibrate, check_name, loads
from tilesight.calibration.calibration import compile_probes, rounded
from tilesight.calibration.document import target_text
from tilesight.calibration.loads import LOADS, SUSTAINED
from tilesight.calibration.probes import PROBES
from tilesight.calibration.readings import INFORMATIVE
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.errors import InputError, ToolchainError
from tilesight.machine.devices import Device
from tilesight.machine.toolchain import missing_compiler
from tilesight.target.spec import FIGURES, load_target, parse_target, target_names

H200 = Device("NVIDIA H200", "GPU-1", "580.159.04", "cuda", 0, 141 << 30)
SOURCE = Path(loads.__file__).with_name("probes.cu")


@pytest.fixture(autouse=True)
def short_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOAD_S", "MATRIX_LOAD_S", "PAUSE_S", "WARM_UP_S"):
        monkeypatch.setattr(loads, name, 0.0)


def test_every_figure_is_found() -> None:
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
    assert (target.name, target.arch, target.device_names, target.dtypes) == (
        "mine",
        base.arch,
        base.device_names,
        base.dtypes,
    )
    assert target.fingerprint != base.fingerprint
    for figure_path, figure in target.figures.items():
        if figure_path in fake_gpu.FIGURES:
            assert figure.provenance == "measured"
            assert re.match(
                r"tilesight calibrate, NVIDIA H200, driver 580.159.04, .*: .*; spread \d", figure.source
            ), figure.source
        else:
            assert figure == base.figures[figure_path]


def test_counts_of_the_driver_replace_those_of_the_base() -> None:
    found = calibrate(load_target("h200"), H200, "mine", gpu=FakeGpu(cores=114, l2_bytes=48 << 20))
    assert found.target["core.count"] == 114
    assert found.target["device.memory.l2.bytes"] == 48 << 20


def test_probes_without_code_on_this_chip_are_left_out_with_a_note() -> None:
    base = load_target("a100")
    found = calibrate(base, H200, "mine", gpu=FakeGpu(absent=("mma_latency",)))
    assert found.notes == ("warp-level matrix instructions: not measured, sm_80 has no code for it",)
    assert (
        found.target.figures["core.unit.matrix.warp_issue_cycles"]
        == base.figures["core.unit.matrix.warp_issue_cycles"]
    )


def test_an_invalid_reading_is_left_out_with_a_note() -> None:
    gpu = FakeGpu()
    gpu.figures["core.clock_mixed_mhz"] = 0.0  # the watch saw nothing
    base = load_target("h200")
    found = calibrate(base, H200, "mine", gpu=gpu)
    assert found.target.figures["core.clock_mixed_mhz"] == base.figures["core.clock_mixed_mhz"]
    assert found.notes == ("left out: core.clock_mixed_mhz: value 0 must be greater than zero, in MHz",)


def test_launch_and_start_add_up_to_an_empty_kernel_and_keep_their_proportion() -> None:
    """The model adds both: an empty kernel's whole time under one name would be counted twice."""
    base, gpu = load_target("a100"), FakeGpu()
    gpu.figures.update({"device.launch_us": 4.0, "device.block_start_us": 1.5})
    target = calibrate(base, H200, "mine", gpu=gpu).target
    assert target["device.launch_us"] + target["device.block_start_us"] == pytest.approx(5.5, rel=1e-3)
    before = base["device.launch_us"] / base["device.block_start_us"]
    assert target["device.launch_us"] / target["device.block_start_us"] == pytest.approx(before, rel=2e-3)
    assert "5.5 us, of which 79 % as in target a100" in target.figures["device.launch_us"].source


def test_clocks_are_those_of_single_launches_not_of_a_sustained_load() -> None:
    found = calibrate(load_target("h200"), H200, "mine", gpu=FakeGpu())
    clocks = {r.path: r.value for r in found.readings if "clock" in r.path}
    assert clocks == {
        "core.clock_mhz": 1905.0,
        "core.clock_mixed_mhz": 1770.0,
        "core.clock_matrix_mhz": 1590.0,
    }
    held = found.target.figures["device.sustained_matrix_tflops"]
    assert held.value == 781.0
    assert "at 1310 MHz; no prediction reads it" in held.source


@pytest.mark.parametrize(("reached", "stays"), [(125.0, True), (123.0, False), (133.0, False)])
def test_a_rate_by_design_that_is_nearly_reached_stays(reached: float, stays: bool) -> None:
    base, gpu = load_target("h200"), FakeGpu()
    gpu.figures["core.unit.vector.fp32_lanes"] = reached
    figure = calibrate(base, H200, "mine", gpu=gpu).target.figures["core.unit.vector.fp32_lanes"]
    if stays:
        assert (figure.value, figure.provenance) == (128, "spec")
        assert figure.source.startswith(base.figures["core.unit.vector.fp32_lanes"].source)
        assert figure.source.endswith(f"fused multiply-adds: {reached:g} reached")
    else:
        assert figure.value == pytest.approx(reached, rel=1e-3)
        assert figure.provenance == "measured"


def test_a_guess_is_replaced_however_near_it_is() -> None:
    base, gpu = load_target("h200"), FakeGpu()
    guess = replace(base.figures["core.unit.special.lanes"], provenance="derived", value=15.2)
    base = replace(base, figures={**base.figures, "core.unit.special.lanes": guess})
    figure = calibrate(base, H200, "mine", gpu=gpu).target.figures["core.unit.special.lanes"]
    assert (figure.value, figure.provenance) == (15.0, "measured")


def test_every_figure_is_read_by_the_model_or_marked_as_informative() -> None:
    """An unread figure would suggest accuracy that the model does not have."""
    found = calibrate(load_target("h200"), H200, "mine", gpu=FakeGpu())
    without = {p: f for p, f in found.target.figures.items() if p != "device.memory.l2.shared_gb_per_s"}
    # the rate of L2 without sharing is read where a target does not give the other one
    read = {*figures_read(found.target), *figures_read(replace(found.target, figures=without))}
    for r in found.readings:
        assert (r.path in read) != (INFORMATIVE in r.method), r.path
    assert {"core.clock_mixed_mhz", "core.clock_matrix_mhz", "device.block_start_us"} <= read


def test_readings_of_an_h200_predict_as_the_shipped_target_does() -> None:
    """The model's constants were fitted with the shipped figures: a calibration of the same card must fit
    them.
    """
    base = load_target("h200")
    target = calibrate(base, H200, "mine", gpu=FakeGpu(figures=dict(fake_gpu.H200_FIGURES))).target
    # how far blocks that read the same lines drift apart differs from run to run: this one read less than the
    # shipped figure
    shared = "device.memory.l2.shared_gb_per_s"
    slower = base[shared] / target[shared]
    assert 1.1 < slower < 1.15
    alike = replace(target, figures={**target.figures, shared: base.figures[shared]})
    model = AnalyticalModel()
    for kernel in KERNELS:
        shipped = model.predict([kernel], base).latency_us
        # clocks under matrix work are 3 % above those that the datasets' counters saw
        assert model.predict([kernel], alike).latency_us / shipped == pytest.approx(1, abs=0.035)
        assert 0.965 < model.predict([kernel], target).latency_us / shipped < slower


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
def test_invalid_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_name(name)


def test_amd_gpus_are_refused() -> None:
    with pytest.raises(InputError, match=r"target mi300x cannot be calibrated.*none in HIP"):
        calibrate(load_target("mi300x"), H200, "mine", gpu=FakeGpu())


@pytest.mark.parametrize("name", target_names())
def test_a_target_written_and_read_is_the_same(name: str) -> None:
    target = load_target(name)
    again = parse_target(target_text(target, "a\nheading"), "again.toml")
    assert again == target
    assert again.fingerprint == target.fingerprint


def test_any_text_survives_the_file() -> None:
    target = replace(load_target("h200"), title='a "quoted" \\ text\x7f\n\t with ü and \u2028')
    assert parse_target(target_text(target, ""), "x.toml").title == target.title


@pytest.mark.parametrize(
    ("value", "expected"), [(0.61849, 0.6185), (4312.46, 4312.0), (62914560.0, 62914560.0), (1905.0, 1905.0)]
)
def test_rounding(value: float, expected: float) -> None:
    assert rounded(value) == expected


def test_probes_and_source_agree() -> None:
    kernels = set(re.findall(r'extern "C" __global__ void (\w+)\(', SOURCE.read_text())) - {"name"}
    kernels |= set(re.findall(r"^THROUGHPUT\((\w+),", SOURCE.read_text(), re.MULTILINE))
    wanted = {kernel for probe in (*LOADS, *PROBES, *SUSTAINED) for kernel in probe.kernels}
    assert wanted <= kernels
    gpu = FakeGpu()
    calibrate(load_target("h200"), H200, "mine", gpu=gpu)
    assert gpu.ran | {"clock_rate"} == wanted == kernels, "and no kernel is left over"
    assert set(fake_gpu.FIGURES) <= set(FIGURES)


@pytest.mark.skipif(missing_compiler(load_target("h200")) is not None, reason="no nvcc here")
@pytest.mark.parametrize("target", ["h200", "a100"])
def test_the_probes_build(target: str) -> None:
    cubin = compile_probes(load_target(target))
    assert cubin.startswith(b"\x7fELF")
    assert b"fp32_fma" in cubin
    assert b"mma_rate" in cubin


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho 'probes.cu(1): error: no' >&2; exit 2\n")
    compiler.chmod(0o755)
    monkeypatch.setattr("tilesight.builder.device_code.find_nvcc", lambda: compiler)
    monkeypatch.setattr("tilesight.builder.device_code.missing_compiler", lambda _: None)
    with pytest.raises(
        ToolchainError,
        match=r"probes.cu cannot be built: nvcc ended with exit code 2: probes.cu\(1\): error: no",
    ):
        compile_probes(load_target("h200"))
