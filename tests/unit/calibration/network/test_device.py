"""What a rank launches and in which order; CUDA and the other ranks are simulated."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

from tilesight.calibration.network import device
from tilesight.calibration.network.device import RankSetup, time_steps
from tilesight.calibration.network.steps import Kind, NetworkStep, Times, plan
from tilesight.machine.devices import Device
from tilesight.machine.group_environment import GROUP_ENVIRONMENT

WORLD, RANK = 4, 1
DEVICES = tuple(Device("NVIDIA H200", f"GPU-{n}", "1", "cuda", n, 1 << 30) for n in range(WORLD))


class Log:
    """What was called and launched, in order."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, int, tuple[Any, ...]]] = []
        self.calls: list[str] = []


class FakeGpu:
    log = Log()

    def __init__(self, *_: object) -> None: ...

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: Any, **_: object) -> None:
        self.log.launches.append((kernel, blocks, tuple(getattr(a, "value", a) for a in arguments)))
        self.log.calls.append(kernel)

    def sink(self) -> int:
        return 0

    def synchronize(self, what: str) -> None: ...


class FakeEvent:
    def __init__(self, **_: object) -> None: ...

    def record(self) -> None:
        FakeGpu.log.calls.append("event")

    def elapsed_time(self, _: object) -> float:
        return 0.25


class FakeStream:
    cuda_stream = 7

    def wait_stream(self, _: object) -> None: ...


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    FakeGpu.log = Log()

    def named(name: str) -> Any:
        return lambda *_, **__: FakeGpu.log.calls.append(name)

    def empty(size: tuple[int, ...], dtype: Any, **_: object) -> torch.Tensor:
        return torch.ones(size, dtype=dtype)

    peers = SimpleNamespace(get_buffer=lambda _, size, dtype: torch.zeros(size, dtype=dtype))
    cuda = torch.cuda
    for owner, name, value in (
        (device, "CudaGpu", FakeGpu),
        (device, "WINDOW_BYTES", 1 << 12),
        (device, "torch_index", lambda _: 0),
        (torch, "device", lambda *_: torch.zeros(1).device),
        (cuda, "Event", FakeEvent),
        (cuda, "Stream", FakeStream),
        (cuda, "stream", lambda _: contextlib.nullcontext()),
        (cuda, "current_stream", FakeStream),
        (cuda.nccl, "version", lambda: (2, 28, 9)),
        (cuda, "set_device", named("set_device")),
        (cuda, "synchronize", named("synchronize")),
        (symmetric, "empty", empty),
        (symmetric, "rendezvous", lambda *_: peers),
        *((dist, name, named(name)) for name in (
            "init_process_group", "barrier", "destroy_process_group", "all_reduce", "all_to_all_single",
            "all_gather_into_tensor", "reduce_scatter_tensor",
        )),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, value)
    for name in GROUP_ENVIRONMENT:
        monkeypatch.setenv(name, "as before")
    return FakeGpu.log


def run(*steps: NetworkStep) -> list[Times]:
    sent: list[Times] = []
    time_steps(RANK, RankSetup(DEVICES, b"", 1, steps), sent.append)
    return sent


def test_every_step_sends_its_samples(log: Log) -> None:
    steps = [step for step in plan(132, WORLD, True) if step.kind is not Kind.PRODUCT]
    small = [step if step.size_bytes < 1 << 20 else replace(step, size_bytes=1 << 12) for step in steps]
    started, *found = run(*small)
    assert started == Times(library="NCCL 2.28.9")
    assert found == [Times((250.0,) * step.samples) for step in small]
    assert log.calls[-3:] == ["synchronize", "barrier", "destroy_process_group"]


@pytest.mark.usefixtures("log")
def test_multicast_is_off() -> None:
    run()
    assert {name: os.environ[name] for name in GROUP_ENVIRONMENT} == {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    }


def test_each_sample_begins_after_a_barrier_on_the_device(log: Log) -> None:
    run(NetworkStep("t", Kind.MOVE, "store", blocks=2, rounds=3, samples=2))
    expected = ["barrier", "event", "move_store", "event"] * (2 + device.WARM_UPS)
    first = log.calls.index("event") - 1
    assert log.calls[first : first + len(expected)] == expected
    barriers = [arguments for kernel, _, arguments in log.launches if kernel == "barrier"]
    assert [value for _, _, value, _, _ in barriers] == list(range(1, len(barriers) + 1)), (
        "flags count upwards, equally on all ranks"
    )
    assert {(rank, rounds, delay) for _, rank, _, rounds, delay in barriers} == {(RANK, 1, device.HOST_NS)}


def test_no_sample_waits_for_the_first_call_of_a_collective(log: Log) -> None:
    """It connects the ranks, which can take a second: all end it before the first sample is launched."""
    run(NetworkStep("t", Kind.LIBRARY, "all_to_all", size_bytes=1 << 14, samples=1))
    first = log.calls.index("all_to_all_single")
    sample = ["barrier", "event", "all_to_all_single", "event"]
    # the barrier of the host, then samples, each with one of the device
    assert log.calls[first + 1 : first + 6] == ["barrier", *sample]
    assert log.calls.count("all_to_all_single") == 2 + device.WARM_UPS


def test_flags_never_repeat(log: Log) -> None:
    run(*(NetworkStep("t", kind, rounds=100, samples=1) for kind in (Kind.FLAG, Kind.BARRIER, Kind.FLAG)))
    passed = [arguments for kernel, _, arguments in log.launches if kernel == "pass_flag"]
    assert [(first, rounds) for _, _, first, rounds, _ in passed] == [
        (1 + 100 * place, 100) for place in range(2 * (2 + device.WARM_UPS))
    ]
    assert {leads for *_, leads in passed} == {0}, "of ranks 0 and 1 the first leads"
    used = [(first, rounds) for _, _, first, rounds, _ in
            (arguments for kernel, _, arguments in log.launches if kernel == "barrier")]  # fmt: skip
    for (first, rounds), (following, _) in pairwise(used):
        assert following == first + rounds


@pytest.mark.parametrize(("blocks", "name"), [(0, "idle"), (20, "idle"), (20, "push")])
def test_cores_are_occupied_before_the_product_and_released_after_it(
    log: Log, monkeypatch: pytest.MonkeyPatch, blocks: int, name: str
) -> None:
    monkeypatch.setattr(device._Rank, "_loaded_product", lambda _: lambda: log.calls.append("product"))
    _, found = run(NetworkStep("t", Kind.PRODUCT, name, blocks, peers=WORLD - 1, samples=2))
    assert len(found.us) == 2
    assert len(found.pushed_gb_per_s) == (2 if name == "push" else 0)
    occupy = ["occupy"] if blocks else []
    sample = ["barrier", *occupy, "await_occupied", "event", "product", "event", "release_cores"]
    shown = [call for call in log.calls if call not in ("synchronize",)]
    end = len(shown) - 2  # the barrier and the end of the process group
    assert shown[end - 2 * len(sample) : end] == 2 * sample
    assert {arguments[-1] for kernel, _, arguments in log.launches if kernel == "await_occupied"} == {blocks}
