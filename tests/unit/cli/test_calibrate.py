from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.calibration.fake_gpu import FIGURES, FakeGpu
from tests.unit.calibration.network.fake_network import FakeNetwork
from tests.unit.cli.documented import check_fields
from tilesight.calibration import Calibration, calibration, cpu, loads
from tilesight.calibration.network import calibrate_network, rows_of
from tilesight.calibration.network.steps import SAMPLES, plan
from tilesight.cli.calibrate import calibrate
from tilesight.database import open_store
from tilesight.errors import DatabaseError, InputError, TileSightError, ToolchainError
from tilesight.machine.devices import Device
from tilesight.settings import load_settings
from tilesight.target.spec import Target, load_target

H200 = Device("NVIDIA H200", "GPU-1", "580.159.04", "cuda", 0, 141 << 30)
OTHER = Device("NVIDIA H100 80GB HBM3", "GPU-2", "580.159.04", "cuda", 1, 80 << 30)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Device]:
    """An empty folder, and a machine whose devices are those in the list."""
    devices = [H200]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/performance.db")
    for name in ("LOAD_S", "MATRIX_LOAD_S", "PAUSE_S", "WARM_UP_S"):
        monkeypatch.setattr(loads, name, 0.0)
    monkeypatch.setattr("tilesight.machine.devices.find_devices", lambda: devices)
    monkeypatch.setattr("tilesight.machine.placement.find_devices", lambda: devices)
    monkeypatch.setattr(calibration, "compile_probes", lambda _: b"")
    monkeypatch.setattr(calibration, "torch_index", lambda device: device.index)
    fake = FakeGpu(figures={**FIGURES, "core.unit.special.lanes": 15.9})
    monkeypatch.setattr(calibration, "CudaGpu", lambda *_: fake)
    return devices


def run(*arguments: str) -> Result:
    return CliRunner().invoke(calibrate, list(arguments))


def refused(*arguments: str) -> TileSightError:
    error = run(*arguments).exception
    assert isinstance(error, TileSightError), error
    return error


@pytest.mark.usefixtures("machine")
def test_the_gpu_at_hand_is_measured_and_the_file_is_a_target() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    target = load_target("./h200-calibrated.toml")
    assert target["core.clock_matrix_mhz"] == 1590
    lines = result.stdout.splitlines()
    assert any(
        line.startswith("core.clock_matrix_mhz") and "1590" in line and "MHz" in line for line in lines
    )
    assert "new" in result.stdout
    assert lines[-1] == "written to h200-calibrated.toml; use it: --target ./h200-calibrated.toml"
    assert max(map(len, lines)) <= 100
    assert "measuring: sustained matrix load" in result.stderr


@pytest.mark.usefixtures("machine")
def test_json() -> None:
    result = run("--target", "h200", "--name", "mine", "--out", "there.toml", "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["kind"], found["file"], found["target"], found["base"]) == (
        "calibration",
        "there.toml",
        "mine",
        "h200",
    )
    figures = {figure["path"]: figure for figure in found["figures"]}
    dram = figures["device.memory.dram.gb_per_s"]
    assert (dram["value"], dram["before"], dram["unit"]) == (
        4310,
        load_target("h200")["device.memory.dram.gb_per_s"],
        "GB/s",
    )
    sustained = figures["device.sustained_matrix_tflops"]
    assert sustained["before"] == load_target("h200").get("device.sustained_matrix_tflops", None)
    lanes = figures["core.unit.special.lanes"]
    assert (lanes["value"], lanes["measured"]) == (16, pytest.approx(15.9, rel=1e-3)), (
        "a rate by design that is nearly reached stays"
    )
    assert load_target("./there.toml").name == "mine"
    check_fields("calibrate", [found])


def test_no_gpu(machine: list[Device]) -> None:
    machine.clear()
    error = refused("--target", "h200")
    assert isinstance(error, ToolchainError)
    assert error.exit_code == 5
    assert "no GPU was found here" in str(error)
    error = refused()  # --target auto
    assert isinstance(error, ToolchainError)
    assert str(error).endswith("target 'cpu' measures kernels for processors on this machine")


def test_an_unknown_gpu_is_not_sent_to_predictions(machine: list[Device]) -> None:
    machine[:] = [replace(OTHER, name="NVIDIA T4")]
    assert str(refused()).endswith(
        "('NVIDIA T4'); describe it in a file and give its path as the target (./mychip.toml)"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.txt"], "must end in .toml"),
        (["--out", "nowhere/x.toml"], "there is no folder 'nowhere'"),
        (["--name", "a b"], "target name 'a b' must be letters"),
    ],
)
def test_wrong_input_is_said_before_a_gpu_is_looked_for(
    machine: list[Device], arguments: list[str], message: str
) -> None:
    machine.clear()
    assert message in str(refused(*arguments))


def test_a_gpu_of_another_target(machine: list[Device]) -> None:
    machine[:] = [OTHER]
    error = refused("--target", "h200")
    assert isinstance(error, ToolchainError)
    assert "use --target h100" in str(error)


def test_the_network_of_several_gpus(machine: list[Device], monkeypatch: pytest.MonkeyPatch) -> None:
    machine[:] = [replace(H200, uuid=f"GPU-{number}", index=number) for number in range(4)]
    seen: list[Device] = []

    def measured(
        base: Target, devices: list[Device], name: str, progress: Any, observe: Any = None
    ) -> Calibration:
        seen.extend(devices)
        return calibrate_network(base, devices, name, progress, observe, FakeNetwork(2).run)

    monkeypatch.setattr("tilesight.calibration.network.calibrate_network", measured)
    result = run("--target", "h200x2", "--name", "mine", "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    check_fields("calibrate", [found])
    assert seen == machine[:2]
    figures = {figure["path"]: figure for figure in found["figures"]}
    flag, point = figures["node.network.flag_us"], figures["node.network.library.all_reduce.us.1MiB"]
    assert (flag["value"], flag["before"], flag["unit"]) == (0.7, 1.185, "us")
    assert point["before"] == load_target("h200x2")["node.network.library.all_reduce.us.1MiB"]
    target = load_target("./mine.toml")
    assert (target.world, target["node.network.flag_us"]) == (2, 0.7)
    with open_store(load_settings().database_url) as store:
        (recorded,) = store.calibrations("mine")
    assert recorded.figures["node.network.flag_us"] == 0.7
    result = run("--target", "h200x2", "--name", "mine")
    assert result.stdout.splitlines()[0].startswith("2 x NVIDIA H200, driver 580.159.04")
    assert run("--target", "h200x2", "--name", "mine", "--rows", "samples.jsonl").exit_code == 0
    rows = rows_of(Path("samples.jsonl").read_text(encoding="utf-8").splitlines())
    steps = plan(132, 2, True)
    assert list(rows) == [replace(step, title="", samples=SAMPLES) for step in steps]
    assert [len(row[1].us) for row in rows.values()] == [step.samples for step in steps]


def test_rows_are_those_of_several_gpus(machine: list[Device]) -> None:
    machine[:] = [H200]
    assert "--rows is for several GPUs, and target h200 is one device: leave it out" in str(
        refused("--target", "h200", "--rows", "samples.jsonl")
    )
    assert "--rows samples.txt must end in .jsonl, as files of samples do" in str(
        refused("--target", "h200x2", "--rows", "samples.txt")
    )


def test_networks_that_cannot_be_measured_here(machine: list[Device]) -> None:
    machine[:] = [H200]
    assert str(refused("--target", "h200x4")) == (
        "nothing to calibrate: target h200x4 is 4 devices, and this machine has 1 of them"
    )
    assert "--device 0 is one GPU, and target h200x4 is 4" in str(
        refused("--target", "h200x4", "--device", "0")
    )
    assert "use --target h200" in str(refused("--target", "h100x2"))


def test_one_of_several_gpus(machine: list[Device]) -> None:
    machine.append(OTHER)
    assert "is not a GPU of this machine and target; its GPUs are 0 (NVIDIA H200), 1 (NVIDIA H100" in str(
        refused("--target", "h200", "--device", "2")
    )
    assert "is measured on 'NVIDIA H200' only" in str(refused("--target", "h200", "--device", "1"))
    assert run("--target", "h100", "--device", "1").exit_code == 0


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "mi300x"], "there are none in HIP"),
        (["--target", "cpu", "--device", "0"], "--device 0 numbers GPUs"),
        (["--name", "h200"], "is that of a shipped target"),
        (["--out", "x.txt"], "must end in .toml"),
        (["--out", "nowhere/x.toml"], "there is no folder 'nowhere'"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_measured(arguments: list[str], message: str) -> None:
    error = refused(*arguments)
    assert isinstance(error, InputError)
    assert message in str(error)
    assert not list(Path().iterdir())


@pytest.mark.usefixtures("machine")
def test_a_file_of_something_else_is_not_written_over() -> None:
    Path("mine.toml").write_text("precious = true\n")
    assert "exists and is not target 'mine'" in str(refused("--name", "mine"))
    assert Path("mine.toml").read_text() == "precious = true\n"
    assert run("--name", "ours").exit_code == 0
    assert run("--name", "ours").exit_code == 0, "a new calibration takes the place of the old one"


@pytest.mark.usefixtures("machine")
def test_what_was_measured_is_recorded() -> None:
    for _ in range(2):
        assert run("--target", "h200", "--name", "mine").exit_code == 0
    assert run("--target", "h200", "--name", "yours", "--db", "elsewhere.db").exit_code == 0
    with open_store(load_settings().database_url, read_only=True) as store:
        assert store.calibrations("yours") == []
        found = store.calibrations()[0]
    target = load_target("./mine.toml")
    assert (found.name, found.base, found.device, found.uuid) == ("mine", "h200", H200.name, H200.uuid)
    assert found.fingerprint == target.fingerprint
    assert found.software["driver"] == H200.driver
    assert {path: target[path] for path in found.figures} == found.figures
    assert found.figures.keys() == found.readings.keys() >= {"core.clock_mhz", "device.launch_us"}
    lanes = found.readings["core.unit.special.lanes"]
    assert (found.figures["core.unit.special.lanes"], lanes["value"]) == (16, pytest.approx(15.9, rel=1e-3))
    assert len(lanes["samples"]) > 1
    assert median(lanes["samples"]) == lanes["value"]
    assert lanes["method"]


@pytest.mark.usefixtures("machine")
def test_a_database_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "x.db").mkdir()
    result = run("--target", "h200", "--db", str(tmp_path / "x.db"))
    assert isinstance(result.exception, DatabaseError)
    assert "measuring" not in result.output
    assert not list(tmp_path.glob("*.toml"))


@pytest.mark.usefixtures("machine")
def test_the_processor_is_measured_and_the_file_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SAMPLE_S", 2e-3),
        ("REPETITIONS", 20),  # the fastest counts: other tests share the cores
        ("LEAST_MEMORY", 2**20),
        ("BEYOND", 0.1),
        ("WARM_UP_S", 0.01),
    ):
        monkeypatch.setattr(cpu, name, value)
    result = run("--target", "cpu")
    assert result.exit_code == 0, result.output
    target = load_target("./cpu-calibrated.toml")
    measured = {path for path, figure in target.figures.items() if figure.provenance == "measured"}
    assert {"core.clock_mhz", "core.unit.vector.fp32_lanes", "core.memory.l2.bytes_per_cycle"} <= measured
    assert {"device.launch_us", "device.memory.llc.gb_per_s", "device.memory.dram.gb_per_s"} <= measured
    assert 500 < target["core.clock_mhz"] < 10_000
    with open_store(load_settings().database_url) as store:
        (record,) = store.calibrations("cpu-calibrated")
    assert record.fingerprint == target.fingerprint
