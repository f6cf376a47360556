"""The arguments that a dispatcher gives to the kernel of each rank, for ranks that are threads."""

from __future__ import annotations

import ctypes
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.gpu.test_virtual_ranks import OPERATORS
from tests.support.group_kernels import cpu_pair, sum_candidate
from tests.support.virtual_dispatch import Pool, VirtualRank, bind, check_calls, exchanges
from tests.unit.runner.test_measure import FAST
from tests.unit.runner.test_virtual_ranks import of_operator
from tilesight.builder.build import build_kernel
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import argument_names
from tilesight.runner.group import group_bench
from tilesight.runner.group.group_bench import communicating, group_bench_for
from tilesight.runner.group.group_run import GroupRun

WORLD = 4


class NotedLibrary:
    """Stands for the library of a rank: notes the arguments that it is called with."""

    def __init__(self, tensors: int, numbers: int) -> None:
        self.arity, self.sizes = tensors, numbers
        self.given: list[tuple[int, ...]] = []

    def launch(self, packed: bytes, stream: int) -> int:
        self.given.append(struct.unpack(f"={self.arity + self.sizes}Q", packed))
        return 0


def called(
    candidate: Candidate, names: int
) -> list[tuple[VirtualRank, NotedLibrary, dict[str, torch.Tensor]]]:
    """Each rank has called the kernel twice, with ordinary tensors and with the same ones again."""
    kind = communicating(candidate.template.operator)
    exchanged, pool = exchanges(WORLD), Pool(WORLD, torch.device("cpu"))

    def of_rank(rank: int) -> tuple[VirtualRank, NotedLibrary, dict[str, torch.Tensor]]:
        library = NotedLibrary(names, len(candidate.slots_of_rank(rank)))
        own = bind(library, candidate, pool, exchanged[rank])  # type: ignore[arg-type]
        inputs = kind.rank_inputs(candidate.workload, rank, "cpu", 1)
        for _ in range(2):
            own.call(tuple(inputs[name] for name in own.problem.inputs), None)
        return own, library, inputs

    with ThreadPoolExecutor(WORLD) as threads:
        return list(threads.map(of_rank, range(WORLD)))


def bytes_at(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


@pytest.mark.parametrize("name", OPERATORS)
def test_each_rank_gets_its_own_addresses_and_the_shared_ones_of_all(name: str) -> None:
    for label, candidate in of_operator(name, WORLD).items():
        template, workload, config = candidate.template, candidate.workload, candidate.config
        kind = communicating(template.operator)
        shared = template.shared_scratch(workload, config)
        names = argument_names(kind, workload, shared, template.scratch(workload, config))
        ranks = called(candidate, len(names))
        for rank, (own, library, inputs) in enumerate(ranks):
            for given in library.given:
                assert given[len(names) :] == candidate.slots_of_rank(rank), label
                for (key, owner), address in zip(names, given, strict=False):
                    what = f"{label}: {key} of rank {owner}, given to rank {rank}"
                    if key in shared:
                        assert address == own.scratch[key].addresses[owner or 0], what
                        assert address == ranks[owner or 0][0].scratch[key].tensor(*shared[key]).data_ptr(), (
                            what
                        )
                    elif key in inputs and owner is None:
                        assert address == inputs[key].data_ptr(), what
                    elif key in inputs:
                        of_owner = ranks[owner or 0][2][key]
                        wanted = bytes_at(of_owner.data_ptr(), of_owner.nbytes)
                        assert bytes_at(address, of_owner.nbytes) == wanted, f"{what}: the copy of its tensor"
        for index, (key, owner) in enumerate(names):
            places = {library.given[0][index] for _, library, _ in ranks}
            assert len(places) == (WORLD if owner is None else 1), f"{label}: {key} of rank {owner}"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"way": "pull"}, None),
        ({"way": "push"}, None),
        ({"way": "pull", "factor": 2}, "rank 0, call 1 with rank 0 late: output 'y'"),
        ({"way": "push", "first": "only raises"}, "rank 0, call "),
    ],
)
def test_calls_are_checked_with_threads_as_on_a_gpu(
    changes: dict[str, object], fault: str | None, tmp_path: Path
) -> None:
    candidate = sum_candidate(cpu_pair(tmp_path), **changes)
    build = build_kernel(candidate, tmp_path)
    group_bench._group_bench.cache_clear()
    bench = group_bench_for(candidate.target, FAST)
    run = GroupRun(build, candidate, bench, FAST)
    found = check_calls(run, bench.case(candidate.template.operator, candidate.workload, FAST))
    run.close()
    assert found is None if fault is None else found is not None and found.message.startswith(fault)
