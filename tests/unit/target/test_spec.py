from __future__ import annotations

import pickle
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from statistics import median

import pytest

from tilesight.errors import TargetFileError, UnknownNameError
from tilesight.target.spec import FIGURES, LEVELS, RETIRED, load_target, parse_target, target_names

TARGET_FILES = Path(__file__).parents[3] / "tilesight" / "target"
H100_CALIBRATIONS = Path(__file__).parents[3] / "experiments" / "calibration" / "h100"


def text_of(name: str) -> str:
    return (TARGET_FILES / f"{name}.toml").read_text(encoding="utf-8")


def test_shipped_targets() -> None:
    assert {"h100", "h200", "a100", "mi300x", "cpu"} <= set(target_names())


@pytest.mark.parametrize("name", target_names())
def test_shipped_target_is_complete(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert all(figure.source for figure in target.figures.values()), "every figure says where it comes from"
    assert all(path in FIGURES for path in target.figures)
    assert target.matrix_tflops(target.dtypes[0]) > 0
    assert target.dram_gb_per_s > 0
    assert pickle.loads(pickle.dumps(target)) == target


@pytest.mark.parametrize(("name", "tflops"), [("h100", 989), ("h200", 989), ("a100", 312), ("mi300x", 1307)])
def test_matrix_rate_is_below_the_data_sheet_and_near_it(name: str, tflops: float) -> None:
    assert 0.7 * tflops < load_target(name).matrix_tflops("bfloat16") < tflops


def test_matrix_rates_of_one_byte() -> None:
    """Matrix units of an A100 take int8 and no float8; others take both at one rate."""
    a100, h200, mi300x = map(load_target, ("a100", "h200", "mi300x"))
    assert 0.7 * 624 < a100.matrix_tflops("int8") < 624
    assert a100.matrix_flops_per_cycle("int8") == 2 * a100.matrix_flops_per_cycle("fp16")
    assert a100.matrix_tflops("float8_e4m3fn") == a100.matrix_flops_per_cycle("fp8") == 0
    assert "int8" in a100.dtypes
    assert "float8_e4m3fn" not in a100.dtypes
    rate = "core.unit.matrix.int8_flops_per_cycle"
    none = replace(h200, figures={**h200.figures, rate: replace(a100.figures[rate], value=0.0)})
    assert none.matrix_flops_per_cycle("int8") == 0 < none.matrix_flops_per_cycle("fp8")
    for chip in (h200, mi300x):
        assert chip.matrix_tflops("int8") == chip.matrix_tflops("float8_e4m3fn") > 0


def test_no_two_targets_share_a_device_name() -> None:
    names = [device for target in map(load_target, target_names()) for device in target.device_names]
    assert len(set(names)) == len(names)


def test_tvm_targets() -> None:
    assert load_target("H100").tvm_target() == {"kind": "cuda", "arch": "sm_90a"}
    assert load_target("mi300x").tvm_target() == {"kind": "hip", "mcpu": "gfx942"}
    assert load_target("cpu").tvm_target() == {"kind": "c"}


def test_unknown_name_offers_near_ones_and_a_file() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown target 'h1000'; did you mean h100.*--target ./mychip.toml"
    ):
        load_target("h1000")


def test_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mychip.toml"
    path.write_text(
        text_of("a100").replace('name = "a100"', 'name = "mychip"').replace("value = 108", "value = 96")
    )
    chip = load_target(str(path))
    assert (chip.name, chip.int("core.count")) == ("mychip", 96)
    assert chip.fingerprint != load_target("a100").fingerprint


def test_fingerprint_covers_what_predictions_depend_on() -> None:
    base = parse_target(text_of("a100"), "a")
    assert parse_target(text_of("a100") + "\n# a remark\n", "b").fingerprint == base.fingerprint
    assert (
        parse_target(text_of("a100").replace("NVIDIA A100 SXM4 80 GB", "another title"), "c").fingerprint
        == base.fingerprint
    )
    assert (
        parse_target(text_of("a100").replace("value = 1410", "value = 1411"), "d").fingerprint
        != base.fingerprint
    )


@pytest.mark.parametrize("path", sorted(RETIRED))
def test_retired_figures_in_a_file_are_ignored(path: str) -> None:
    assert path not in FIGURES
    heading, name = path.rsplit(".", 1)
    table = f"[{heading}]\n"
    assert table in text_of("a100")
    for given in ('{ value = 7, provenance = "measured" }', "7", "-1.5", '"seven"', "{ source = 3 }"):
        again = parse_target(text_of("a100").replace(table, f"{table}{name} = {given}\n"), "older.toml")
        assert again == parse_target(text_of("a100"), "a100.toml")
        assert path not in again.figures


def test_missing_file() -> None:
    with pytest.raises(TargetFileError, match=r"target file 'nowhere/chip.toml' cannot be read"):
        load_target("nowhere/chip.toml")


CLOCK = 'clock_mhz = { value = 1410, provenance = "spec"'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "cuda"', 'kind = "cuda', "'chip.toml' is not TOML"),
        ('kind = "cuda"', 'kind = "gpu"', "kind 'gpu' must be one of cuda, hip, cpu"),
        ('kind = "cuda"\n', "", "field 'kind' must be a non-empty text"),
        ('kind = "cuda"', 'kind = "cuda"\ncores = 3', "unknown field 'cores'; did you mean core"),
        (
            CLOCK,
            CLOCK.replace("clock_mhz", "clock_mzh"),
            "figure 'core.clock_mzh' is unknown; did you mean 'core.clock_mhz'",
        ),
        (
            CLOCK,
            CLOCK.replace("1410", '"fast"'),
            "figure 'core.clock_mhz': value 'fast' must be a number, in MHz",
        ),
        (
            CLOCK,
            CLOCK.replace("1410", "0"),
            "figure 'core.clock_mhz': value 0 must be greater than zero, in MHz",
        ),
        (CLOCK, CLOCK.replace("1410", "-1"), "value -1 must be greater than zero"),
        (CLOCK, CLOCK.replace("1410", "inf"), "value inf must be a number"),
        (
            CLOCK,
            CLOCK.replace('"spec"', '"guess"'),
            "provenance 'guess' must be one of spec, measured, derived, public",
        ),
        (
            CLOCK,
            CLOCK.replace("value", "valve"),
            "figure 'core.clock_mhz' has no value, but an unknown part 'valve'",
        ),
        (
            CLOCK,
            CLOCK.replace("{ value = 1410, provenance", "{ provenance"),
            "figure 'core.clock_mhz' has no value; give { value = ...",
        ),
        (
            CLOCK,
            CLOCK.replace("{ value = 1410,", "{ value = 1410, unit = 3,"),
            "figure 'core.clock_mhz' has an unknown part 'unit'",
        ),
        (
            CLOCK,
            CLOCK.replace("clock_mhz = {", "clock_mhz = 1410\nold = {"),
            "'core.clock_mhz' must be a table or a figure like { value = 132",
        ),
        (
            "[thread]\n",
            "[thread]\nvalue = 3\n",
            "'thread' is a table of figures and has no value of its own; its figures are "
            "'thread.max_registers'",
        ),
        (
            "[core.unit.matrix]\n",
            '[core.unit.matrix]\nsource = "a paper"\n',
            "'core.unit.matrix' is a table of figures and has no source of its own",
        ),
        ("[warp]\n", "warp = 32\n[wrap]\n", "unknown field 'wrap'; did you mean warp"),
        (
            "[warp]\nthreads",
            "[warp]\nthraeds",
            "figure 'warp.thraeds' is unknown; did you mean 'warp.threads'",
        ),
        ("[cluster]\n", "[core.speed]\n[cluster]\n", "figure 'core.speed' is unknown"),
        (
            'name = "a100"',
            'name = "a 100"',
            "field 'name': 'a 100' must be letters, digits, '.', '_' and '-'",
        ),
        ('name = "a100"', 'name = "../a100"', "field 'name': '../a100' must be letters"),
        (
            'kind = "cuda"',
            'kind = "cuda"\ndtypes = ["fp16"]',
            "field 'dtypes': 'fp16' is not known; did you mean float16?",
        ),
        (
            'kind = "cuda"',
            'kind = "cuda"\ndtypes = ["decimal"]',
            "field 'dtypes': 'decimal' is not known; known: float16, bfloat16, float32",
        ),
        (
            'kind = "cuda"',
            'kind = "cuda"\ndtypes = []',
            "field 'dtypes' is empty; name one of float16, bfloat16, float32",
        ),
        (
            'device_names = ["NVIDIA A100-SXM4-80GB"]',
            'device_names = "A100"',
            "field 'device_names' must be a list of texts",
        ),
    ],
)
def test_malformed_files_name_the_place(old: str, new: str, message: str) -> None:
    assert old in text_of("a100")
    with pytest.raises(TargetFileError) as caught:
        parse_target(text_of("a100").replace(old, new, 1), "chip.toml")
    assert message in str(caught.value)
    assert "chip.toml" in str(caught.value)


def test_a_missing_figure_is_explained() -> None:
    lines = [line for line in text_of("a100").splitlines() if not line.startswith("clock_mhz")]
    message = (
        r"figure 'core.clock_mhz' is missing: clock of single launches without matrix instructions, in MHz"
    )
    with pytest.raises(TargetFileError, match=message):
        parse_target("\n".join(lines), "chip.toml")


def test_unknown_figure_is_a_key_error_or_a_default() -> None:
    cpu = load_target("cpu")
    with pytest.raises(KeyError):
        cpu["thread.max_registers"]
    assert cpu.get("thread.max_registers", 7.0) == 7.0


def test_an_unsupported_architecture_is_refused(tmp_path: Path) -> None:
    text = (files("tilesight.target") / "h200.toml").read_text()
    own = tmp_path / "mychip.toml"
    own.write_text(text.replace('"sm_90a"', '"sm_999"').replace('name = "h200"', 'name = "mychip"'))
    with pytest.raises(TargetFileError, match="arch 'sm_999' is not known for kind cuda; use one of"):
        load_target(str(own))


def test_a_file_with_the_name_of_a_shipped_target_is_refused(tmp_path: Path) -> None:
    text = (files("tilesight.target") / "h200.toml").read_text()
    own = tmp_path / "mychip.toml"
    own.write_text(text)
    assert load_target(str(own)).name == "h200"  # unchanged, it is the same target
    own.write_text(text.replace("value = 132", "value = 64"))
    with pytest.raises(TargetFileError, match="name 'h200' is that of a shipped target"):
        load_target(str(own))
    own.write_text(text.replace("value = 132", "value = 64").replace('name = "h200"', 'name = "mychip"'))
    assert load_target(str(own)).int("core.count") == 64


GPUS = [name for name in target_names() if load_target(name).is_gpu]


@pytest.mark.parametrize("name", GPUS)
def test_every_level_of_a_gpu_is_described(name: str) -> None:
    target = load_target(name)
    paths = set(target.figures)
    for level in LEVELS:
        assert any(path.startswith(f"{level}.") for path in paths), level
    for part in ("core.unit.", "core.memory.", "device.memory.l2.", "device.memory.dram.", "node.network."):
        assert any(path.startswith(part) for path in paths), part


def test_the_dies_of_mi300x_have_an_l2_each_and_a_cache_behind_them() -> None:
    chip = load_target("mi300x")
    assert chip["cluster.count"] * chip["cluster.cores"] == chip["core.count"]
    assert chip["cluster.count"] * chip["cluster.memory.l2.bytes"] == chip["device.memory.l2.bytes"]
    assert chip["device.memory.llc.bytes"] == 256 << 20
    assert (
        chip["device.memory.dram.gb_per_s"]
        < chip["device.memory.llc.gb_per_s"]
        < chip["device.memory.l2.gb_per_s"]
    )


def test_measured_figures_name_the_card_and_the_calibrations() -> None:
    for name in ("h100", "h200"):
        measured = {p: f for p, f in load_target(name).figures.items() if f.provenance == "measured"}
        assert len(measured) > 12
        for path, figure in measured.items():
            assert name.upper() in figure.source, path
            assert re.search(r"20\d\d-\d\d", figure.source), path


def test_measured_figures_of_the_h100_are_the_medians_of_its_calibrations() -> None:
    calibrations = [load_target(str(file)) for file in sorted(H100_CALIBRATIONS.glob("h100-*.toml"))]
    assert len(calibrations) >= 3
    for path, figure in load_target("h100").figures.items():
        if figure.provenance == "measured" and "experiments/calibration" in figure.source:
            found = median(one[path] for one in calibrations)
            assert figure.value == pytest.approx(found, rel=1e-3), path


@pytest.mark.parametrize("name", GPUS)
def test_memories_are_slower_the_further_away_they_are(name: str) -> None:
    chip = load_target(name)
    shared_ns = chip["core.memory.shared.latency_cycles"] / chip["core.clock_mhz"] * 1e3
    assert shared_ns < chip["device.memory.l2.latency_ns"] < chip["device.memory.dram.latency_ns"]
    assert chip["device.memory.dram.gb_per_s"] < chip["device.memory.l2.gb_per_s"]
    assert chip["device.memory.dram.gb_per_s"] < chip["device.memory.dram.spec_gb_per_s"]
    assert chip["core.clock_matrix_mhz"] <= chip["core.clock_mhz"]
