"""Kernels of several devices, on a processor: ranks are threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.group_kernels import SumOfRanks, cpu_pair, sum_candidate
from tests.unit.runner.test_measure import FAST
from tilesight.builder import device_code
from tilesight.builder.build import build_kernel
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.calibration.network import device as of_calibration
from tilesight.errors import FailureKind, InputError, LaunchError
from tilesight.kernels import _ranks as of_kernels
from tilesight.kernels import template_for
from tilesight.problem.candidate import Candidate
from tilesight.problem.rounding import SecondInputs
from tilesight.problem.workload import Workload
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.bench import new_tensors
from tilesight.runner.group import group_bench
from tilesight.runner.group import ranks as ranks_module
from tilesight.runner.group.collectives import collective_call
from tilesight.runner.group.group_bench import GroupBench, by_rank, communicating, group_bench_for, of_all
from tilesight.runner.group.group_run import GroupRun
from tilesight.runner.group.ranks import ThreadRanks
from tilesight.runner.kernel_run import DEVICE_LOST
from tilesight.runner.measure import measure_kernel, measure_together
from tilesight.runner.timers import Call, CpuTimer
from tilesight.target.spec import Target, load_target
from tilesight.workers.worker import _State

RIGHT: Mapping[str, dict[str, Any]] = {
    "pull": {"way": "pull"},
    "push": {"way": "push"},
    "library": {"way": "library"},
    "reads slowly": {"way": "push", "slow_us": 3000},
}
FAULTY: Mapping[str, dict[str, Any]] = {
    "wrong": {"way": "pull", "factor": 2},
    "reads before it was sent": {"way": "push", "first": "only raises"},
    "reads before others begin": {"way": "pull", "first": "only raises"},
    "ends while others read": {"way": "pull", "last": "only raises", "slow_us": 3000},
    "sends while others read": {"way": "push", "last": "only raises", "slow_us": 3000},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return cpu_pair(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def kernels(
    pair: Target, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[BuildResult, Candidate]]:
    folder, found = tmp_path_factory.mktemp("cache"), {}
    for name, changes in {**RIGHT, **FAULTY}.items():
        candidate = sum_candidate(pair, **changes)
        build = build_kernel(candidate, folder)
        assert build.artifact, build.failure
        found[name] = build, candidate
    return found


@pytest.fixture(autouse=True)
def fresh_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    group_bench._group_bench.cache_clear()
    monkeypatch.setattr(_State, "retires", False)


def measure(kernel: tuple[BuildResult, Candidate]) -> Measurement:
    return measure_kernel(*kernel, FAST)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_measured(name: str, kernels: dict[str, tuple[BuildResult, Candidate]]) -> None:
    found = measure(kernels[name])
    assert found.failure is None
    assert len(found.samples_us) == FAST.min_samples
    assert found.relative_error is not None
    assert found.environment["device"].startswith("2 x ")
    assert found.observed["late_us"] >= 100


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_kernel_is_found(name: str, kernels: dict[str, tuple[BuildResult, Candidate]]) -> None:
    found = measure(kernels[name])
    assert found.failure is not None
    assert found.failure.kind in (FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC)
    assert found.samples_us == ()
    if name == "wrong":
        assert found.failure.message.startswith("rank 0: output 'y': ")
    assert measure(kernels["pull"]).failure is None, "the next kernel is measured right"


@pytest.mark.parametrize("name", ["reads before others begin", "ends while others read"])
def test_inputs_are_read_only_while_their_rank_is_in_the_call(
    name: str, kernels: dict[str, tuple[BuildResult, Candidate]]
) -> None:
    found = measure(kernels[name])
    assert found.failure is not None
    assert found.failure.message.startswith("with rank ")
    assert " late by " in found.failure.message


def test_a_call_must_not_send_while_others_read_what_the_one_before_sent(
    kernels: dict[str, tuple[BuildResult, Candidate]],
) -> None:
    """Single calls of this kernel are right."""
    found = measure(kernels["sends while others read"])
    assert found.failure is not None
    assert found.failure.message.startswith("in call ")
    assert " of 6 in a row, with rank 0 late by " in found.failure.message


def test_an_operator_with_one_set_of_inputs_and_second_ones_is_checked_with_both(
    kernels: dict[str, tuple[BuildResult, Candidate]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def second(self: SumOfRanks, workload: Workload, rank: int, device: str, seed: int) -> SecondInputs:
        return SecondInputs(self.rank_inputs(workload, rank, device, seed))

    monkeypatch.setattr(SumOfRanks, "rank_second_inputs", second)
    one = replace(FAST, input_sets=1)
    found = measure_kernel(*kernels["sends while others read"], one)
    assert found.failure is not None
    assert found.failure.message.startswith("in call ")
    assert measure_kernel(*kernels["reads slowly"], one).failure is None


def test_finalists_are_compared_with_the_library(kernels: dict[str, tuple[BuildResult, Candidate]]) -> None:
    found = measure_together([kernels[name] for name in ("pull", "wrong", "push")], FAST)
    assert [m.failure is None for m in found.measurements] == [True, False, True]
    assert [baseline.name for baseline in found.baselines] == ["torch, then torch"]
    assert found.notes == ()
    assert found.decision is not None


def test_the_librarys_collective_stands_between_two_parts_of_a_call(pair: Target) -> None:
    """The same library is called twice, each time for some of its launches."""
    node = load_target("h100x2")
    template = template_for("context_parallel_flash_decoding", node, "bfloat16")
    cp = communicating(template.operator)
    workload = cp.workload_on(node, "batch=2,heads=8,kv_heads=2,kv_len=64,head_dim=64")
    config = next(c for c in template.space(workload, node).configs() if c["algorithm"] == "sequential")
    bench = group_bench_for(pair, FAST)
    run = GroupRun(BuildResult("none"), Candidate(workload, node, template, config), bench, FAST)
    run._scratch = of_all(new_tensors(template.scratch(workload, config), "cpu") for _ in range(2))
    called: list[tuple[int, ...]] = []

    class Kernel:
        def bind(self, tensors: Sequence[torch.Tensor], stream: int, slots: tuple[int, ...]) -> Call:
            return lambda: called.append(slots)

    run._kernels = [Kernel(), Kernel()]  # type: ignore[list-item]
    inputs = of_all(cp.rank_inputs(workload, rank, "cpu", 1) for rank in range(2))
    outputs = of_all(
        {name: torch.empty(size) for name, size in cp.outputs(workload).items()} for _ in range(2)
    )
    first, library, last = run._stages(inputs, outputs)
    assert callable(library)
    assert not callable(first)
    assert not callable(last)
    for call in (*first, *last):
        call()
    bits = (1 << 32) - 1
    assert called == [(0, 0b11), (1, 0b11), (0, bits - 0b11), (1, bits - 0b11)]
    for rank in range(2):
        run._scratch[f"partial of rank {rank}"].fill_(rank + 1)
    library()
    for rank in range(2):
        assert run._scratch[f"gathered of rank {rank}"].flatten().chunk(2)[0].unique().tolist() == [1.0]
        assert run._scratch[f"gathered of rank {rank}"].flatten().chunk(2)[1].unique().tolist() == [2.0]


def test_each_rank_has_inputs_of_its_own(pair: Target) -> None:
    candidate = sum_candidate(pair)
    bench = group_bench_for(pair, FAST)
    case = bench.case(candidate.template.operator, candidate.workload, FAST)
    first, second = by_rank(case.sets[0].inputs, 2)
    assert not torch.equal(first["x"], second["x"])
    assert set(case.outputs()) == {"y of rank 0", "y of rank 1"}
    case.sets[0].inputs["x of rank 1"][0] += 1
    assert case.overwritten() == "x of rank 1"
    bench.restore(case)
    assert case.overwritten() is None
    assert bench.case(candidate.template.operator, candidate.workload, FAST) is case


def test_an_operator_of_one_device_is_not_drawn_for_several(pair: Target) -> None:
    from tests.support.sample_kernels import Scale

    with pytest.raises(InputError, match="scale runs on one device"):
        group_bench_for(pair, FAST).case(Scale(), Scale().workload("n=8"), FAST)


def test_graphs_replay_on_one_gpu() -> None:
    with pytest.raises(InputError, match="replays graphs, each on one device, and target h200x2 is 2"):
        MeasurementProtocol.named("serving", load_target("h200x2"))
    with pytest.raises(InputError, match="measured with protocol default"):
        group_bench_for(load_target("h200x2"), replace(FAST, name="serving", launch="graph"))


def test_names_of_ranks_and_back() -> None:
    parts = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert of_all(parts) == {"a of rank 0": 1, "b of rank 0": 2, "a of rank 1": 3, "b of rank 1": 4}
    assert by_rank(of_all(parts), 2) == parts


@pytest.mark.parametrize(
    ("name", "size", "wanted"),
    [
        ("all_reduce", 4, [[10, 12, 14, 16]] * 2),
        ("reduce_scatter", 2, [[10, 12], [14, 16]]),
        ("all_gather", 8, [[1, 2, 3, 4, 9, 10, 11, 12]] * 2),
        ("all_to_all", 4, [[1, 2, 9, 10], [3, 4, 11, 12]]),
    ],
)
def test_collectives(name: str, size: int, wanted: list[list[int]]) -> None:
    sources = [torch.tensor([1.0, 2, 3, 4]), torch.tensor([9.0, 10, 11, 12])]
    results = [torch.zeros(size) for _ in range(2)]
    collective_call(name, sources, results)()
    assert [result.tolist() for result in results] == wanted


def test_ranks_run_at_once() -> None:
    ranks, seen = ThreadRanks(2), []

    def late() -> None:
        ranks.wait(0, 20_000)
        seen.append(0)

    ranks.together([lambda: seen.append(0), lambda: seen.append(1)])()
    assert sorted(seen) == [0, 1]
    seen.clear()
    ranks.together([late, lambda: seen.append(1)])()
    assert seen == [1, 0]


@pytest.mark.parametrize("copy_stream", [0, 88])
def test_copies_of_a_late_rank_come_later_still(copy_stream: int, pair: Target) -> None:
    """They have a stream of their own, and begin when all ranks have begun: a missing wait would not show."""
    waited: list[tuple[int, float, int | None]] = []

    class NotedRanks(ThreadRanks):
        def wait(self, rank: int, duration_us: float, stream: int | None = None) -> None:
            waited.append((rank, duration_us, stream))

    bench = GroupBench("cpu", CpuTimer(0.0, 0), {}, ranks=NotedRanks(2))
    run = GroupRun(BuildResult("none"), sum_candidate(pair), bench, FAST)
    run._kernels = [SimpleNamespace(copy_stream=copy_stream) for _ in range(2)]  # type: ignore[misc]
    stage = run._lateness(1)
    assert not callable(stage)
    for part in stage:
        part()
    late_us = run._late_us
    assert waited == [(1, late_us, None), *([(1, 2 * late_us, 88)] if copy_stream else [])]


def test_each_rank_has_a_thread_of_its_own() -> None:
    ranks, seen = ThreadRanks(2), []

    def note(rank: int) -> None:
        seen.append((rank, threading.get_ident()))

    for _ in range(4):
        ranks.together([partial(note, 0), partial(note, 1)])()
    assert len(set(seen)) == 2


def test_an_error_of_one_rank_is_raised_though_another_never_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "_GRACE_S", 0.01)
    ranks, returned = ThreadRanks(2), threading.Event()

    def refuse() -> None:
        raise LaunchError("rank 1 has no memory")

    try:
        with pytest.raises(LaunchError, match="rank 1 has no memory"):
            ranks.together([returned.wait, refuse])()
    finally:
        returned.set()
    with pytest.raises(LaunchError, match="rank 1 has no memory"):
        ranks.together([lambda: None, refuse])()


class Refusing(ThreadRanks):
    """Ranks, of which the last one refuses a launch; `touched` lists what is asked of them afterwards."""

    def __init__(self, refused: int) -> None:
        super().__init__(2)
        self.left, self.touched = refused, list[str]()

    def together(self, calls: Sequence[Call]) -> Call:
        def refuse() -> None:
            raise LaunchError("rank 1 has no memory")

        right, wrong = super().together(calls), super().together([lambda: None, refuse])

        def call() -> None:
            self.left -= 1
            if self.left < 0:
                self.touched.append("launch")
            (wrong if self.left == 0 else right)()

        return call

    def unload(self, rank: int, kernel: LoadedKernel) -> None:
        self.touched.append("unload")


@pytest.mark.parametrize("refused", [1, 8])
def test_devices_are_left_alone_after_a_launch_was_refused(
    refused: int,
    pair: Target,
    kernels: dict[str, tuple[BuildResult, Candidate]],
) -> None:
    """Kernels of the other ranks may wait for ever: the process is replaced, and the message is kept."""
    bench = group_bench_for(pair, FAST)
    bench.ranks = ranks = Refusing(refused)
    found = measure(kernels["pull"])
    assert found.failure is not None
    assert (found.failure.kind, found.failure.message) == (FailureKind.RUN_ERROR, "rank 1 has no memory")
    assert _State.retires
    assert ranks.touched == []
    assert not bench.is_usable()


def test_finalists_are_not_compared_after_a_launch_was_refused(
    pair: Target, kernels: dict[str, tuple[BuildResult, Candidate]]
) -> None:
    group_bench_for(pair, FAST).ranks = ranks = Refusing(1)
    found = measure_together([kernels["pull"], kernels["push"]], FAST)
    messages = [m.failure.message for m in found.measurements if m.failure]
    assert messages == ["rank 1 has no memory", DEVICE_LOST]
    assert (found.baselines, _State.retires, ranks.touched) == ((), True, [])


def test_a_kernel_that_cannot_be_loaded_costs_no_process(
    kernels: dict[str, tuple[BuildResult, Candidate]],
) -> None:
    build, candidate = kernels["pull"]
    found = measure_kernel(replace(build, entry="missing"), candidate, FAST)
    assert found.failure is not None
    assert not _State.retires
    assert measure(kernels["pull"]).failure is None


def test_all_agree_on_the_most_ranks() -> None:
    flags = Path(device_code.__file__).with_name("flags.cuh").read_text(encoding="utf-8")
    assert f"MOST_PEERS = {ranks_module.MOST_RANKS};" in flags
    assert ranks_module.MOST_RANKS == of_kernels.MOST_RANKS == of_calibration.MOST_RANKS
