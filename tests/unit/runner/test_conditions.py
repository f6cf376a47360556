"""The state of a device during a measurement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tilesight.runner.conditions import (
    Conditions,
    DeviceState,
    NvmlSensor,
    Sensor,
    SensorOfAll,
    sensor_for,
)

POWER_CAP, HEAT, IDLE = 0x4, 0x40, 0x1
GONE = 2**22 + 1  # beyond any process id


class Fixed(Sensor):
    """A sensor with prepared states and figures."""

    def __init__(
        self,
        states: list[DeviceState | None],
        power: float | None = None,
        others: list[int] | None = None,
        shares: dict[int, float] | None = None,
    ) -> None:
        self.states, self.power, self.others, self.shares = iter(states), power, others, shares

    def read_state(self) -> DeviceState | None:
        return next(self.states)

    def power_w(self) -> float | None:
        return self.power

    def temperature_c(self) -> float | None:
        return None

    def processes(self) -> list[int] | None:
        return self.others

    def busy_shares(self, seconds: float) -> dict[int, float] | None:
        assert seconds >= 1
        return self.shares


def seen(*states: DeviceState | None) -> Conditions:
    found = Conditions(Fixed(list(states)))
    for _ in states:
        found.sample()
    return found


@pytest.mark.parametrize(
    ("last", "disturbed"),
    [
        (DeviceState(1700.0), False),
        (DeviceState(1400.0), False),  # another kernel may draw more power
        (DeviceState(900.0), True),
        (DeviceState(900.0, POWER_CAP), False),  # the power limit explains it
        (DeviceState(1700.0, POWER_CAP), False),
        (DeviceState(1650.0, HEAT), True),
        (DeviceState(345.0, IDLE), False),  # the device had finished before the sample
        (None, False),  # the sensor has failed
    ],
)
def test_a_drop_below_the_usual_clock_is_a_disturbance(last: DeviceState | None, disturbed: bool) -> None:
    assert seen(*[DeviceState(1700.0)] * 5, last).disturbed() is disturbed


def test_a_card_that_is_always_hot_is_measured_as_it_is() -> None:
    assert not seen(*[DeviceState(1200.0, HEAT)] * 5).disturbed()


def test_nothing_is_known_before_the_first_sample() -> None:
    assert not Conditions().disturbed()
    assert Conditions().observed() == {}


def test_figures_are_of_the_current_measurement() -> None:
    found = Conditions(
        Fixed(
            [
                DeviceState(1000.0),
                DeviceState(1700.0, POWER_CAP),
                DeviceState(1710.0),
                DeviceState(1720.0),
                DeviceState(300.0, IDLE),
            ],
            power=512.5,
        )
    )
    found.sample()
    found.begin()
    for _ in range(4):
        found.sample()
    assert found.observed() == {
        "sm_clock_mhz": 1710.0,
        "power_capped": pytest.approx(1 / 3),
        "braked": 0.0,
        "power_w": 512.5,
    }


def test_only_processes_of_other_sessions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess as s; c = s.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    stranger = int(parent.stdout.readline())
    try:
        found = Conditions(Fixed([], others=[os.getpid(), os.getppid(), stranger, GONE]))
        assert found.observed() == {"other_processes": 1.0}
        elsewhere = Conditions(Fixed([], others=[stranger, GONE]))
        assert elsewhere.observed() == {}, "in a container the numbers may be those of the host"
        me = os.getpid()
        turns = [parent.pid]  # of the session that started it
        monkeypatch.setattr("tilesight.runner.conditions.taking_turns", lambda *uuids: turns if uuids else [])
        for uuids, load in (((), 0.6), (("GPU-1",), 0.0)):
            taking = Conditions(Fixed([], others=[me, GONE], shares={me: 0.4, stranger: 0.6}), uuids=uuids)
            assert taking.observed()["other_gpu_load"] == load
        for shares, load in (({me: 0.9}, 0.0), ({me: 0.4, stranger: 0.6, GONE: 0.7}, 0.6), ({}, 0.0)):
            busy = Conditions(Fixed([], others=[me, GONE], shares=shares))
            assert busy.observed() == {"other_processes": 0.0, "other_gpu_load": load}
    finally:
        os.kill(stranger, signal.SIGKILL)
        parent.wait()


def test_a_sibling_belongs_to_the_session() -> None:
    imports = "import sys; from tilesight.runner.conditions import _is_another"
    program = f"{imports}; print(_is_another(int(sys.argv[1])))"
    sibling = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        printed = subprocess.run(
            [sys.executable, "-c", program, str(sibling.pid)], capture_output=True, text=True, check=True
        ).stdout
        assert printed.strip() == "False"
    finally:
        sibling.kill()
        sibling.wait()


# NVIDIA's library


class NVMLError(Exception):
    pass


def library(**answers: Any) -> Any:
    """A management library that knows GPU-1, and raises where an answer is an exception."""

    def answer(value: Any) -> Any:
        def call(*_: object) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return call

    def by_uuid(uuid: str) -> str:
        if uuid != "GPU-1":
            raise NVMLError("Not Found")
        return uuid

    usual = {
        "GetClockInfo": 1755,
        "GetPowerUsage": 698_500,
        "GetTemperature": 61,
        "GetComputeRunningProcesses": [],
    }
    functions = {f"nvmlDevice{name}": answer(value) for name, value in {**usual, **answers}.items()}
    functions.setdefault("nvmlDeviceGetCurrentClocksThrottleReasons", answer(POWER_CAP))
    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=by_uuid,
        **functions,
    )


def test_units_of_the_figures() -> None:
    sensor = NvmlSensor(library(GetComputeRunningProcesses=[SimpleNamespace(pid=7)]), "1")
    assert sensor.read_state() == DeviceState(1755.0, POWER_CAP)
    assert sensor.power_w() == 698.5
    assert sensor.temperature_c() == 61.0
    assert sensor.processes() == [7]
    samples = [SimpleNamespace(pid=pid, smUtil=percent) for pid, percent in ((7, 40), (8, 0), (7, 98))]
    assert NvmlSensor(library(GetProcessUtilization=samples), "1").busy_shares(1.0) == {7: 0.98, 8: 0.0}
    refused = NVMLError("Not Found")  # no process used it
    assert NvmlSensor(library(GetProcessUtilization=refused), "1").busy_shares(1.0) is None


def test_the_newer_name_of_the_reasons_is_preferred() -> None:
    assert NvmlSensor(library(GetCurrentClocksEventReasons=HEAT), "GPU-1").read_state() == DeviceState(
        1755.0, HEAT
    )


def test_figures_that_the_driver_refuses_are_absent() -> None:
    refused = NVMLError("Not Supported")
    sensor = NvmlSensor(
        library(GetPowerUsage=refused, GetComputeRunningProcesses=refused, GetClockInfo=refused), "GPU-1"
    )
    found = Conditions(sensor)
    found.sample()
    assert not found.disturbed()
    assert found.observed() == {"temperature_c": 61.0}


def test_without_the_package_or_the_device_there_is_no_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert sensor_for("GPU-1") is None
    monkeypatch.setitem(sys.modules, "pynvml", library())
    assert sensor_for("GPU-2") is None
    assert sensor_for("") is None
    assert isinstance(sensor_for("1"), NvmlSensor)


def test_several_devices_are_as_the_slowest_and_busy_as_any() -> None:
    both = SensorOfAll(
        [
            Fixed([DeviceState(1900, IDLE), DeviceState(1800)], 300, [1, 2], {1: 0.1, 2: 0.5}),
            Fixed([DeviceState(1700, HEAT), DeviceState(1980, IDLE)], 200, [2, 3], {1: 0.3}),
            Fixed([None, None]),
        ]
    )
    assert both.read_state() == DeviceState(1700, HEAT)
    assert both.read_state() == DeviceState(1800), "one of them works"
    assert both.power_w() == 500
    assert both.temperature_c() is None
    assert both.processes() == [1, 2, 3]
    assert both.busy_shares(1.0) == {1: 0.3, 2: 0.5}
    idle = SensorOfAll([Fixed([DeviceState(400, IDLE)]), Fixed([DeviceState(300, IDLE)])])
    assert idle.read_state() == DeviceState(300, IDLE)
    unknown = SensorOfAll([Fixed([None])])
    assert (unknown.read_state(), unknown.power_w(), unknown.processes()) == (None, None, None)
    assert unknown.busy_shares(1.0) is None
