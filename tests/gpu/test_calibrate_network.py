"""Calibration of a network on the GPUs at hand.

One GPU suffices to see what the probes write and that they end: its memory stands for that of peers, and its
streams for ranks. The calibration itself needs two GPUs of one kind.
"""

from __future__ import annotations

import ctypes

import pytest
import torch

from tilesight.calibration.calibration import compile_probes, torch_index
from tilesight.calibration.gpu import CudaGpu, u32, u64
from tilesight.calibration.network import calibrate_network, device
from tilesight.calibration.network.steps import SLICE_BYTES, NetworkStep, Times
from tilesight.costmodel.network.collectives import predict_collective
from tilesight.machine.devices import NoDevice, devices_for, find_devices
from tilesight.target.network import COLLECTIVES
from tilesight.target.spec import Target, load_target, node_names, parse_target

pytestmark = pytest.mark.gpu

BEFORE = 0x55  # in all bytes of the windows
MECHANISMS = ("store", "load", "tma_store", "tma_load", "tma_add")


@pytest.fixture(scope="module")
def gpu(gpu_target: Target) -> CudaGpu:
    if gpu_target.kind != "cuda":
        pytest.skip("the probes are for NVIDIA GPUs")
    found = devices_for(gpu_target, find_devices())
    assert not isinstance(found, NoDevice)
    code = compile_probes(gpu_target, "tilesight.calibration.network", "network_probes.cu")
    return CudaGpu(torch_index(found[0]), code)


def windows(count: int) -> list[torch.Tensor]:
    return [
        torch.full((device.WINDOW_BYTES,), BEFORE, dtype=torch.uint8, device="cuda") for _ in range(count)
    ]


def peers(tensors: list[torch.Tensor]) -> ctypes.Structure:
    return device._Rank._peers([tensor.data_ptr() for tensor in tensors])


def move(gpu: CudaGpu, name: str, blocks: int, rounds: int, into: list[torch.Tensor]) -> None:
    if not gpu.has(f"move_{name}"):
        pytest.skip("this GPU has no bulk copies")
    lanes, shared = (device.BULK_LANES, device.BULK_SHARED) if "tma" in name else (device.LANES, 0)
    arguments = (peers(into), u32(len(into)), u32(rounds), gpu.sink())
    gpu.launch(f"move_{name}", blocks, lanes, *arguments, shared=shared)
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("rounds", [0, 1, 3, 4, 5, 9])
def test_blocks_write_their_slices_and_no_others(gpu: CudaGpu, name: str, rounds: int) -> None:
    into = windows(2)
    move(gpu, name, 5, rounds, into)
    for window, blocks in zip(into, (3, 2), strict=True):
        end = blocks * rounds * SLICE_BYTES if name in ("store", "tma_store") else 0
        assert bool((window[end:] == BEFORE).all())
        if name == "store":
            words = window[:end].view(torch.int32).reshape(-1, SLICE_BYTES // 16, 4)
            assert bool((words[..., 1] == ~words[..., 0]).all())
        elif name == "tma_store":
            assert not bool(window[:end].any())


@pytest.mark.parametrize("name", MECHANISMS)
def test_windows_begin_again_at_their_end(gpu: CudaGpu, name: str) -> None:
    whole = torch.full((3 * device.WINDOW_BYTES,), BEFORE, dtype=torch.uint8, device="cuda")
    move(gpu, name, gpu.cores, 64, [whole[device.WINDOW_BYTES : 2 * device.WINDOW_BYTES]])
    assert bool((whole[: device.WINDOW_BYTES] == BEFORE).all())
    assert bool((whole[2 * device.WINDOW_BYTES :] == BEFORE).all())
    if name == "tma_store":
        assert not bool(whole[device.WINDOW_BYTES : 2 * device.WINDOW_BYTES].any())


def test_barriers_and_flags_between_streams(gpu: CudaGpu) -> None:
    """If a wait were never satisfied this test would not end."""
    world, rounds = 4, 1000
    flags = [torch.zeros(device.FLAG_BYTES, dtype=torch.uint8, device="cuda") for _ in range(world)]
    streams = [torch.cuda.Stream() for _ in range(world)]
    torch.cuda.synchronize()
    first = 1
    for _ in range(2):
        for rank, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                arguments = (peers(flags), u32(rank), u32(first), u32(rounds), u64(10_000 * rank))
                gpu.launch("barrier", 1, world, *arguments)
        first += rounds
        torch.cuda.synchronize()
    for flag in flags:
        raised = flag.view(torch.int32)[: 32 * world : 32].tolist()
        assert raised == [first - 1] * world
    places = [ctypes.c_void_p(flag.data_ptr() + device.PASSED_FLAG) for flag in flags[:2]]
    for rank, stream in enumerate(streams[:2]):
        with torch.cuda.stream(stream):
            leads = u32(rank == 0)
            gpu.launch("pass_flag", 1, 1, places[rank], places[1 - rank], u32(1), u32(rounds), leads)
    torch.cuda.synchronize()
    assert [int(flag[device.PASSED_FLAG :].view(torch.int32)[0]) for flag in flags[:2]] == [rounds] * 2


@pytest.mark.parametrize("pushes", [0, 1])
def test_cores_stay_occupied_until_they_are_released(gpu: CudaGpu, pushes: int) -> None:
    state = torch.zeros(2, dtype=torch.int32, device="cuda")
    out, into, side = torch.zeros(128, dtype=torch.int64, device="cuda"), windows(1), torch.cuda.Stream()

    def occupy() -> None:
        with torch.cuda.stream(side):
            arguments = (peers(into), u32(1), u32(pushes), state)
            gpu.launch("occupy", 8, device.LANES, *arguments, shared=device.OCCUPIED_SHARED, out=out)

    main = torch.cuda.Stream()
    with torch.cuda.stream(main):
        state[1:].fill_(1)  # all kernels are loaded while nothing waits
        torch.cuda.synchronize()
        occupy()
        gpu.launch("await_occupied", 1, 1, state, u32(0))
        gpu.launch("release_cores", 1, 1, state)
        torch.cuda.synchronize()
        state.zero_()
        torch.cuda.synchronize()
        occupy()
        gpu.launch("await_occupied", 1, 1, state, u32(8))
        main.synchronize()
        assert not side.query()
        gpu.launch("release_cores", 1, 1, state)
        torch.cuda.synchronize()
    assert side.query()
    moved = out[:16].reshape(-1, 2)[:, 0]
    assert bool((moved > 0).all()) == bool(pushes)


def _node(chip: Target, count: int) -> Target | None:
    fitting = [load_target(name) for name in node_names()]
    return next((node for node in fitting if node.chip == chip and node.world == count), None)


def test_calibration_of_the_network(gpu_target: Target) -> None:
    found = devices_for(gpu_target, find_devices())
    count = 0 if isinstance(found, NoDevice) else len(found)
    node = next((node for size in (8, 4, 2) if size <= count and (node := _node(gpu_target, size))), None)
    if node is None or isinstance(found, NoDevice):
        pytest.skip(f"{count} GPU of this kind: there is no network")
    rows: dict[NetworkStep, tuple[Times, ...]] = {}
    result = calibrate_network(node, found[: node.world], "calibrated", print, rows.__setitem__)
    print(result.text())
    # small differences of times, and copies that may meet: what the samples do not settle is left out
    unsettled = ("half_bytes:", "copy_engine.gb_per_s:")
    assert all(note.startswith("left out") and any(one in note for one in unsettled) for note in result.notes)
    target = parse_target(result.text(), "calibrated.toml")
    assert target == result.target
    link = target["node.network.link_gb_per_s"]
    for name in (*MECHANISMS, "copy_engine"):
        assert 0.3 * link < target[f"node.network.{name}.gb_per_s"] < 1.05 * link, name
    assert 0.1 < target["node.network.flag_us"] < 5
    assert 0.5 * target["node.network.flag_us"] < target["node.network.barrier_us"] < 20
    assert 0.3 < target["node.network.product_share"] <= 1.1
    for name in COLLECTIVES:
        times = [predict_collective(target, name, 1 << power).latency_us for power in (16, 24, 28)]
        assert times == sorted(times)
        assert 3 < times[0] < 100
