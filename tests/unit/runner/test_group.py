"""Kernels of several devices, on a processor: ranks are threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from tests.support.group_kernels import cpu_pair, sum_candidate
from tests.unit.runner.test_measure import FAST
from tilesight.builder.build import build_kernel
from tilesight.errors import FailureKind, InputError
from tilesight.problem.candidate import Candidate
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult, Measurement
from tilesight.runner.group import group_bench
from tilesight.runner.group.collectives import collective_call
from tilesight.runner.group.group_bench import by_rank, group_bench_for, of_all
from tilesight.runner.group.ranks import ThreadRanks
from tilesight.runner.measure import measure_kernel, measure_together
from tilesight.target.spec import Target, load_target
from tilesight.workers.worker import _State

RIGHT: Mapping[str, dict[str, object]] = {
    "pull": {"way": "pull"},
    "push": {"way": "push"},
    "library": {"way": "library"},
}
FAULTY: Mapping[str, dict[str, object]] = {
    "wrong": {"way": "pull", "factor": 2},
    "reads before it was sent": {"way": "push", "first": "only raises"},
    "ends while others read": {"way": "pull", "last": "only raises"},
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


def test_a_rank_that_others_still_read_must_not_end(
    kernels: dict[str, tuple[BuildResult, Candidate]],
) -> None:
    """Without a late rank this kernel is right."""
    found = measure(kernels["ends while others read"])
    assert found.failure is not None
    assert found.failure.message.startswith("with rank ")
    assert " late by " in found.failure.message


def test_finalists_are_compared_with_the_library(kernels: dict[str, tuple[BuildResult, Candidate]]) -> None:
    found = measure_together([kernels[name] for name in ("pull", "wrong", "push")], FAST)
    assert [m.failure is None for m in found.measurements] == [True, False, True]
    assert [baseline.name for baseline in found.baselines] == ["torch, then torch"]
    assert found.notes == ()
    assert found.decision is not None


def test_each_rank_has_inputs_of_its_own(pair: Target) -> None:
    candidate = sum_candidate(pair)
    bench = group_bench_for(pair, FAST)
    case = bench.case(candidate.template.operator, candidate.workload, FAST)
    first, second = by_rank(case.sets[0].inputs, 2)
    assert not torch.equal(first["x"], second["x"])
    assert set(case.outputs()) == {"y of rank 0", "y of rank 1"}
    case.sets[0].inputs["x of rank 1"][0] += 1
    assert case.overwritten() == "x of rank 1"
    case.restore()
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


def test_ranks_run_at_once_and_their_errors_are_raised() -> None:
    ranks, seen = ThreadRanks(2), []

    def refuse() -> None:
        raise RuntimeError("rank 1 has no memory")

    ranks.together([lambda: seen.append(0), lambda: seen.append(1)])()
    assert sorted(seen) == [0, 1]
    seen.clear()
    ranks.together([lambda: seen.append(0), lambda: seen.append(1)], late=0, late_us=20_000)()
    assert seen == [1, 0]
    with pytest.raises(RuntimeError, match="rank 1 has no memory"):
        ranks.together([lambda: None, refuse])()
