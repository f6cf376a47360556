"""Dispatch in process groups on two real GPUs, one process for each, under `torchrun` and without it.

Run: python -m pytest tests/gpu/test_group_dispatch.py

This file is also the program that the processes run.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tilesight.builder.build import build_kernel
from tilesight.dispatch.group.group_dispatcher import GroupDispatcher
from tilesight.dispatch.make import dispatcher
from tilesight.errors import TileSightError
from tilesight.executor.local import LocalExecutor
from tilesight.kernels import operator, operators, template_for
from tilesight.machine.devices import NoDevice, find_devices, groups_for
from tilesight.machine.group_environment import GROUP_ENVIRONMENT
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import GroupOperator
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.settings import available_cores, load_settings
from tilesight.target.spec import Target, load_target, node_names
from tilesight.workers import Done, WorkerPool

pytestmark = pytest.mark.gpu

WORLD = 2
SHAPES = ((1024, 1024, 1024), (1000, 1016, 1000))  # m, n, k; the second one fills no tile
SAMPLED = 600  # configs of a space, among which all algorithms are
LIMIT_S = 300.0
ENDS_S = 30.0  # in which the other ranks of a killed one end
LATE_CYCLES = 2_000_000
ROOT = Path(__file__).resolve().parents[2]
Case = tuple[str, str, tuple[int, int, int], Config]  # operator, algorithm, shape, config


# ---- the tests


@pytest.fixture(scope="module")
def pair(gpu_target: Target) -> Target:
    """The target of two GPUs of this machine."""
    nodes = (load_target(name) for name in node_names())
    node = next((node for node in nodes if node.chip == gpu_target and node.world == WORLD), None)
    if node is None or isinstance(groups_for(node, find_devices()), NoDevice):
        pytest.skip("needs two GPUs of one kind, of which a shipped target describes two")
    return node


@pytest.fixture(scope="module")
def listed(pair: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the cases. Their kernels are in the kernel cache, built side by side."""
    found = all_cases(pair)
    wanted = [candidate(pair, case) for case in found]
    folder = load_settings().cache_dir
    with WorkerPool(min(len(wanted), available_cores()), timeout_s=120) as builders:
        for index, outcome in builders.run(partial(build_kernel, cache_dir=folder), wanted):
            assert isinstance(outcome, Done), (wanted[index].key, outcome)
            assert outcome.value.artifact, (wanted[index].key, outcome.value.failure)
    path = tmp_path_factory.mktemp("cases") / "cases.json"
    path.write_text(json.dumps([(*case[:3], dict(case[3])) for case in found]))
    return path


@pytest.fixture(scope="module")
def said(
    pair: Target,
    listed: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[dict[str, Any]]:
    """What the ranks of one program under `torchrun` say."""
    folder = tmp_path_factory.mktemp("torchrun")
    begin = time.monotonic()
    done = torchrun("right_calls", pair, folder, listed)
    output, _ = done.communicate(timeout=LIMIT_S)
    assert done.returncode == 0, output[-6000:]
    found = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]
    print(f"{time.monotonic() - begin:.0f} s;", found[0]["notes"])
    return found


def test_results_are_right(said: list[dict[str, Any]]) -> None:
    """With ordinary and shared tensors, in a row, with a late rank, in CUDA graphs."""
    for rank, found in enumerate(said):
        wrong = {name: checks for name, checks in found["right"].items() if not all(checks.values())}
        assert not wrong, f"rank {rank}"
    assert len(said[0]["right"]) >= 2 * 8, "each algorithm of each operator at each shape"


def test_kernels_that_are_built_start_no_process(said: list[dict[str, Any]]) -> None:
    """All kernels of the cases are in the kernel cache, so no dispatcher lowers them again."""
    assert [found["lowering"] for found in said] == [[], []]


def test_ranks_choose_the_same(said: list[dict[str, Any]]) -> None:
    assert said[0]["choices"] == said[1]["choices"]
    assert len(said[0]["choices"]) >= 3
    assert said[0]["digests"] == said[1]["digests"]


def test_wrong_calls_are_refused_by_all_with_one_message(said: list[dict[str, Any]]) -> None:
    expected = {
        "same GPU": "rank 1 uses the same GPU as rank 0",
        "other target": "make a dispatcher for that device's target",
        "shape": "they disagree: the shape is ",
        "version": "they disagree: version of tilesight is 9.1 on rank 1",
        "new while captured": "call it once before the capture",
        "rows": "cannot be divided evenly among world=2 devices",
    }
    for what, text in expected.items():
        first, second = (found["refused"][what] for found in said)
        assert first == second, what
        assert text in first, what


@pytest.mark.parametrize("program", ["killed_in_kernel", "killed_before_call", "killed_before_shape"])
def test_the_others_end_when_a_process_is_killed(
    program: str, pair: Target, listed: Path, tmp_path: Path
) -> None:
    first, second = start(program, pair, tmp_path, listed)
    second.communicate(timeout=LIMIT_S)
    begin = time.monotonic()
    output, _ = first.communicate(timeout=ENDS_S)
    print(program, f"{time.monotonic() - begin:.1f} s:", output[-300:])
    assert second.returncode == -signal.SIGKILL
    assert f"rank 1 of the group (process {second.pid}) has ended" in output
    if program != "killed_before_shape":  # which raises
        assert first.returncode == 1


def test_torchrun_ends_when_a_process_is_killed(pair: Target, listed: Path, tmp_path: Path) -> None:
    process = torchrun("killed_before_call", pair, tmp_path, listed)
    while not (tmp_path / "killed").exists():
        assert process.poll() is None, process.communicate()[0][-3000:]
        time.sleep(0.1)
    output, _ = process.communicate(timeout=ENDS_S)
    assert process.returncode != 0
    assert "SIGKILL" in output


def environment() -> dict[str, str]:
    return {**os.environ, **GROUP_ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}


def torchrun(program: str, pair: Target, folder: Path, listed: Path) -> subprocess.Popen[str]:
    options = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    return launched([*options, __file__, program, pair.name, str(folder), str(listed)], environment())


def start(program: str, pair: Target, folder: Path, listed: Path) -> list[subprocess.Popen[str]]:
    """The processes of a program, without `torchrun`, which would end the others of a killed one itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        launched(
            [__file__, program, pair.name, str(folder), str(listed)],
            {
                **environment(),
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            },
        )
        for rank in range(WORLD)
    ]


def launched(arguments: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=variables,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# ---- cases, the same in all processes


def all_cases(pair: Target) -> list[Case]:
    """A config of each algorithm of each operator of these dimensions, at each shape."""
    found: list[Case] = []
    for name, shape in itertools.product(operators(), SHAPES):
        one = operator(name)
        if not isinstance(one, GroupOperator) or one.dims != ("m", "n", "k", "world"):
            continue
        workload = workload_of(pair, name, shape)
        template = template_for(name, pair, workload.dtype)
        default, space = template.default_config(workload, pair), template.space(workload, pair)
        configs = {
            config.str("algorithm"): config
            for config in reversed([*([default] if default else []), *space.sample(SAMPLED)])
        }
        found += [(name, algorithm, shape, config) for algorithm, config in sorted(configs.items())]
    return found


@cache
def cases() -> list[Case]:
    """The cases of the file that this process was given."""
    found = json.loads(Path(sys.argv[4]).read_text())
    return [(name, way, (m, n, k), Config(config)) for name, way, (m, n, k), config in found]


def workload_of(pair: Target, name: str, shape: tuple[int, int, int]) -> Workload:
    m, n, k = shape
    return operator(name).workload_on(pair, f"m={m},n={n},k={k}")


def candidate(pair: Target, case: Case) -> Candidate:
    name, _, shape, config = case
    workload = workload_of(pair, name, shape)
    return Candidate(workload, pair, template_for(name, pair, workload.dtype), config)


# ---- the programs


def right_calls(rank: int, pair: Target, folder: Path) -> None:
    said: dict[str, Any] = {"right": {}, "refused": {}, "choices": [], "notes": {}}
    refused = said["refused"]
    torch.cuda.set_device(0)
    refused["same GPU"] = refusal(lambda: make(pair, "matmul_all_reduce", n=1024, k=1024))
    torch.cuda.set_device(rank)
    other = "a100x2" if "a100x2" in node_names() else next(n for n in node_names() if unlike(n, pair))
    refused["other target"] = refusal(lambda: make(load_target(other), "matmul_all_reduce", n=1024, k=1024))
    refused["version"] = refusal(lambda: of_version(f"9.{rank}", pair))
    said["lowering"] = []
    for case in cases():
        name, algorithm, (m, n, k), config = case
        with (
            lowering_noted(f"{name} {algorithm} m={m}", said["lowering"]),
            make(pair, name, n=n, k=k, config=config) as made,
        ):
            said["right"][f"{name} {algorithm} m={m}"] = checks(
                made, workload_of(pair, name, (m, n, k)), rank
            )
            said["notes"][f"{name} {algorithm} m={m}: us of the host for a call"] = host_us(made, m)
    m, n, k = SHAPES[0]
    for name in sorted({case[0] for case in cases()}):
        with make(pair, name, n=n, k=k) as made:
            said["choices"] += [str(choice.config) for choice in made.prepare(m=[m])]
    name = "matmul_reduce_scatter"
    with make(pair, name, n=n, k=k, frozen=True, on_unknown="default") as made:
        workload = workload_of(pair, name, SHAPES[0])
        said["right"][f"{name} frozen"] = checks(made, workload, rank)
        said["digests"] = [made.digest()]
        made.reload()
        inputs, wanted = drawn(made.problem.operator, workload, rank, 3)
        said["right"][f"{name} reloaded"] = {"a call": same(made(*inputs.values()), wanted)}
        said["digests"].append(made.digest())
    with make(pair, "matmul_reduce_scatter", n=n, k=k, config=config_of("matmul_reduce_scatter")) as made:
        b = torch.zeros(k, n, dtype=torch.bfloat16, device="cuda")

        def call(rows: int) -> Any:
            return made(torch.zeros(rows, k, dtype=torch.bfloat16, device="cuda"), b)

        refused["shape"] = refusal(lambda: call(m + 256 * rank))
        refused["rows"] = refusal(lambda: call(m + 1))
        call(m)

        def capture() -> None:
            a = torch.zeros(m + 128, k, dtype=torch.bfloat16, device="cuda")
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                made(a, b)

        refused["new while captured"] = refusal(capture)
    (folder / f"rank-{rank}.json").write_text(json.dumps(said))


@contextmanager
def lowering_noted(label: str, found: list[str]) -> Iterator[None]:
    """Add `label` to `found` for each executor that is made meanwhile: a kernel was missing."""
    make_executor = LocalExecutor.__init__

    def noted(*arguments: Any, **named: Any) -> None:
        found.append(label)
        make_executor(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalExecutor, "__init__", noted)
        yield


def unlike(name: str, pair: Target) -> bool:
    node = load_target(name)
    return node.world == WORLD and node.kind == "cuda" and node.chip != pair.chip


def config_of(name: str) -> Config:
    """A config in which tiles go to peers."""
    return next(config for n, way, _, config in cases() if n == name and way != "sequential")


def checks(made: GroupDispatcher, workload: Workload, rank: int) -> dict[str, bool]:
    """Whether calls are right on this rank."""
    one, m = made.problem.operator, workload.dims["m"]
    assert isinstance(one, GroupOperator)
    sets = [drawn(one, workload, rank, seed) for seed in range(3)]
    shared = {name: made.empty(name, m=m) for name in one.shared}
    inputs = {name: shared.get(name, torch.empty_like(tensor)) for name, tensor in sets[0][0].items()}
    [output] = one.outputs(workload)
    out = shared.get(output)
    found = {"ordinary tensors": same(made(*sets[0][0].values()), sets[0][1])}

    def fill(number: int) -> None:
        for name, tensor in sets[number][0].items():
            inputs[name].copy_(tensor)

    results = []
    for number in (0, 1, 2, 1, 0):
        fill(number)
        if number == 2 and rank:
            torch.cuda._sleep(LATE_CYCLES)
        results.append((made(*inputs.values(), out=out).clone(), number))
    found["in a row"] = all(same(result, sets[number][1]) for result, number in results)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = made(*inputs.values(), out=out)
    replayed = []
    for number in (2, 0, 1):
        fill(number)
        if number == 0 and not rank:
            torch.cuda._sleep(LATE_CYCLES)
        graph.replay()
        replayed.append((captured.clone(), number))
    found["in a graph"] = all(same(result, sets[number][1]) for result, number in replayed)
    found["after a graph"] = same(made(*sets[2][0].values()), sets[2][1])
    torch.cuda.synchronize()
    return found


def drawn(
    one: GroupOperator, workload: Workload, rank: int, seed: int
) -> tuple[dict[str, Any], torch.Tensor]:
    """Inputs of this rank whose sums are exact in any order, and the right output."""
    found = [one.rank_second_inputs(workload, other, "cuda", seed) for other in range(WORLD)]
    assert all(each is not None and each.is_exact for each in found)
    inputs = [dict(each.tensors) for each in found if each is not None]
    [wanted] = one.group_reference(workload, inputs)[rank].values()
    return inputs[rank], wanted


def same(result: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool(torch.equal(result.float(), wanted.to(result.dtype).float()))


def host_us(made: GroupDispatcher, m: int) -> float:
    """Microseconds of the host for a call that it has made before."""
    workload = made.problem.workload((m,))
    one = made.problem.operator
    assert isinstance(one, GroupOperator)
    rank = dist.get_rank()
    inputs = list(one.rank_inputs(workload, rank, "cuda", 0).values())
    for _ in range(3):
        made(*inputs)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(20):
        made(*inputs)
    us = (time.perf_counter() - begin) / 20 * 1e6
    torch.cuda.synchronize()
    return round(us, 1)


def of_version(version: str, pair: Target) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilesight.dispatch.make.__version__", version)
        return make(pair, "matmul_all_reduce", n=1024, k=1024)


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except TileSightError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def make(pair: Target, name: str, **given: Any) -> GroupDispatcher:
    found = dispatcher(name, pair, group=dist.group.WORLD, **given)
    assert isinstance(found, GroupDispatcher)
    return found


def ready(rank: int, pair: Target) -> tuple[GroupDispatcher, Callable[[int], torch.Tensor]]:
    """A dispatcher that was called, and a call for so many rows."""
    torch.cuda.set_device(rank)
    m, n, k = SHAPES[0]
    made = make(pair, "matmul_reduce_scatter", n=n, k=k, config=config_of("matmul_reduce_scatter"))
    b = torch.zeros(k, n, dtype=torch.bfloat16, device="cuda")

    def call(rows: int) -> torch.Tensor:
        return made(torch.zeros(rows, k, dtype=torch.bfloat16, device="cuda"), b)

    call(m)
    torch.cuda.synchronize()
    return made, call


def die(folder: Path) -> None:
    (folder / "killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in_kernel(rank: int, pair: Target, folder: Path) -> None:
    """Rank 1 is killed while its device is busy, and rank 0 waits for it in its kernel."""
    _, call = ready(rank, pair)
    if rank:
        torch.cuda._sleep(10_000 * LATE_CYCLES)
    call(SHAPES[0][0])
    if rank:
        time.sleep(1.0)
        die(folder)
    torch.cuda.synchronize()


def killed_before_call(rank: int, pair: Target, folder: Path) -> None:
    """Rank 1 is killed, and rank 0 calls."""
    _, call = ready(rank, pair)
    if rank:
        die(folder)
    call(SHAPES[0][0])
    torch.cuda.synchronize()


def killed_before_shape(rank: int, pair: Target, folder: Path) -> None:
    """Rank 1 is killed, and rank 0 comes to a new shape."""
    _, call = ready(rank, pair)
    if rank:
        time.sleep(1.0)
        die(folder)
    call(SHAPES[0][0] // 2)


PROGRAMS = (right_calls, killed_in_kernel, killed_before_call, killed_before_shape)


def main() -> None:
    program, target, folder, _ = sys.argv[1:]
    chosen = next(one for one in PROGRAMS if one.__name__ == program)
    dist.init_process_group("nccl", timeout=timedelta(seconds=LIMIT_S))
    try:
        chosen(dist.get_rank(), load_target(target), Path(folder))
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # a normal end could wait for the GPU
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
