"""Dispatch in process groups, on a processor: real processes with gloo, and memory that they share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.group_kernels import cpu_pair, sum_candidate
from tests.support.group_programs import LIMIT_S, N, results, start, start_torchrun
from tilesight import dispatcher
from tilesight.builder.build import build_kernel
from tilesight.errors import InputError
from tilesight.kernels import template_for
from tilesight.problem.space import Config
from tilesight.target.spec import load_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs share the kernel cache in it."""
    return tmp_path_factory.mktemp("groups")


OF_RANK_1 = "refused by all ranks, because rank 1 failed: "
DISAGREE = "refused by all ranks, because they disagree: "
REFUSED_CALLS = {
    "shape": "GroupError: sum_of_ranks: call: refused by all ranks, because they disagree: the shape is ",
    "own fault": "GroupError: sum_of_ranks: call: refused by all ranks, because rank 1 failed: ",
    "all at fault": "WorkloadError: sum_of_ranks: x has 2 axes",
    "other call": "GroupError: rank 1 does this: sum_of_ranks: allocate x; and rank 0: sum_of_ranks: call; ",
    "place": "GroupError: sum_of_ranks n=64 world=2 float32: x: refused by all ranks, because ",
    "part of it": "GroupError: sum_of_ranks n=64 world=2 float32: x: refused by all ranks, because they ",
    "out": "GroupError: sum_of_ranks: call: refused by all ranks, because rank 1 failed: ",
    "not shared": "InputError: sum_of_ranks: y is reached by its own rank only",
    "improve": "InputError: sum_of_ranks: a dispatcher in a process group measures nothing",
    "value": f"GroupError: sum_of_ranks: call: {OF_RANK_1}sum_of_ranks: x[3] is 9 and must be 0 to 8",
    "checked": f"GroupError: sum_of_ranks: check: {OF_RANK_1}sum_of_ranks: x[3] is 9 and must be 0 to 8",
    "value on all": "InputError: sum_of_ranks: x[3] is 9 and must be 0 to 8",
    "checked shapes": f"GroupError: sum_of_ranks: check: {DISAGREE}the shape is ",
    "checked and right": "nothing was refused",
    "built meanwhile": "0",
    "small out": f"GroupError: sum_of_ranks: call: {OF_RANK_1}sum_of_ranks: out has shape (85,) and must",
    "freed": f"GroupError: sum_of_ranks: call: {OF_RANK_1}sum_of_ranks: x has a storage of 40 bytes",
    "shorter": f"GroupError: sum_of_ranks: call: {DISAGREE}the shape is ",
    "unallocated": f"GroupError: allocate memory that all ranks reach: {OF_RANK_1}MemoryError: no memory",
}
REFUSED_GPUS = {
    "no GPU": "InputError: matmul_all_reduce: torch sees no GPU, and target h200x2 is of GPUs",
    "another GPU": f"{OF_RANK_1}matmul_all_reduce: this process uses cuda:1, a 'NVIDIA A100-SXM4-80GB', and "
    "target h200x2 is NVIDIA H200; make a dispatcher for that device's target",
    "one GPU": "InputError: rank 1 uses the same GPU as rank 0 (NVIDIA H200 uuid-0): each rank needs one",
    "no access from one": f"{OF_RANK_1}its GPU cuda:1 cannot reach the memory of GPU 0, that of rank 0",
    "no access": "because rank 0 failed: its GPU cuda:0 cannot reach the memory of GPU 1, that of rank 1",
    "hosts": "InputError: rank 1 runs on another host or in another container than rank 0",
    "torch": f"{DISAGREE}version of torch is 2.1 on rank 1 and 2.0 on rank 0; give all ranks the same",
    "dtype": f"{DISAGREE}dtype is float16 on rank 1 and bfloat16 on rank 0",
    "attribute": f"{DISAGREE}attributes is {{'routing': 'skewed'}} on rank 1 and {{'routing': 'even'}} on",
    "operator": "rank 1 does this: matmul_reduce_scatter: make a dispatcher; and rank 0: matmul_all_reduce: ",
    "after the end": "starts; it is None before torch.distributed.init_process_group()",
}
REFUSED_DISPATCHERS = {
    "config": "they disagree: config is code=cpu,factor=2",
    "fixed": "they disagree: fixed dimensions is {'n': 513, 'world': 2} on rank 1 and {'n': 512, ",
    "table": "they disagree: table is ",
    "version": "they disagree: version of tilesight is 9.1 on rank 1 and 9.0 on rank 0; give all ranks",
    "argument": "because rank 1 failed: unknown on_miss 'never'",
    "serve": "on_miss='serve' would let ranks go on with different kernels",
    "explore": "explore would let ranks go on with different kernels",
    "world": "world=3, and the process group has 2 processes; leave world out",
    "one device": "matmul runs on one device, so its dispatcher has no group",
    "target": "target h100x4 is 4 devices, and the process group has 2 processes: start 4 with `torchrun",
    "table of another world": "is for sum_of_ranks world=2 float32 for any n",
}


# One test for each program: tests that share what it says would let each process of pytest run it.


def test_calls(folder: Path) -> None:
    """With ordinary tensors, shared ones and parts of them; refused ones; kernels of a table."""
    said = results(start("calls", folder / "calls"))
    for found in said:
        assert {way: found[way] for way in ("pull", "push", "library")} == {
            way: [True] * 8 for way in ("pull", "push", "library")
        }
    assert said[0]["choices"] == said[1]["choices"], "all ranks have the kernel that rank 0 chose"
    assert len(said[0]["choices"]) == 2
    assert said[1]["explained"].endswith("rank 1 of 2; shared memory: 2.0 MiB of each rank; rank 0 chooses")
    for what, message in REFUSED_CALLS.items():
        assert said[0]["refused"][what] == said[1]["refused"][what]
        assert said[0]["refused"][what].startswith(message)
    assert [found["goes on"] for found in said] == [True, True], "calls go on after a refusal"
    tabled = {"choices": [["table", "push"], ["table", "pull"]], "right": [True, True]}
    assert [found["tabled"] for found in said] == [tabled, tabled]


def test_disagreements(folder: Path) -> None:
    first, second = results(start("disagreements", folder / "disagreements"))
    for what, message in REFUSED_DISPATCHERS.items():
        assert first[what] == second[what]
        assert message in first[what]
    assert "target cpux2 is 2 devices, and the process group has 1 processes" in first["other group"]
    assert "is no process group with this process in it" in second["other group"]
    assert all("group='world' is no process group" in found["text"] for found in (first, second))


def test_gpus_that_do_not_fit_together(folder: Path) -> None:
    """As the driver says it: no rank has a GPU here."""
    first, second = results(start("gpu_faults", folder / "gpu faults"))
    for what, message in REFUSED_GPUS.items():
        assert first[what] == second[what]
        assert message in first[what], what


def test_frozen_dispatchers_agree_by_what_they_have_loaded(tmp_path: Path) -> None:
    """Their kernels are built before: no rank starts a process that lowers them again."""
    for way in ("pull", "push"):
        found = build_kernel(sum_candidate(cpu_pair(tmp_path), N, way=way), tmp_path / "cache")
        assert found.failure is None
    first, second = results(start("frozen", tmp_path / "program"))
    assert first["started for a built kernel"] == second["started for a built kernel"] == []
    assert (first["started"], second["started"]) == ([0], []), "rank 0 alone, for a kernel that is missing"
    assert "a process was started to lower" in second["missing"]
    for what in ("digest", "reloaded", "unknown", "source", "right", "kept"):
        assert first[what] == second[what], what
    assert first["digest"] != first["reloaded"]
    assert first["source"] == ["table", "record"]
    assert first["right"] == [True, True]
    assert first["kept"] == [first["reloaded"], True], "a reload that one rank refuses changes nothing"
    assert first["unknown"].startswith("InputError: sum_of_ranks: n=2000 is not among what this frozen")
    text = {
        "refused reload": "sum_of_ranks: reload: refused by all ranks, because rank 1 failed: ",
        "other records at reload": "they disagree: the record of n=520 is code=cpu,factor=1",
        "other records": "because they disagree: the record of n=520",
        "other tables": "they disagree: table is ",
        "one frozen": "they disagree: on_unknown is not frozen on rank 1 and refuse on rank 0",
    }
    for what, part in text.items():
        assert first[what] == second[what], what
        assert part in first[what], what


@pytest.mark.full
def test_records_of_rank_0_decide(folder: Path) -> None:
    first, second = results(start("recorded", folder / "recorded"))
    assert first == second
    assert first["source"] == "record"
    assert first["is best"]
    assert first["right"]
    assert first["other"] == "neighbour"


def test_a_rank_that_waits_in_a_kernel_for_a_killed_one_ends(folder: Path) -> None:
    first, second = start("killed_in_call", folder / "killed in a call")
    _, error = first.communicate(timeout=LIMIT_S)
    second.communicate(timeout=LIMIT_S)
    assert (first.returncode, second.returncode) == (1, -signal.SIGKILL)
    assert f"tilesight: rank 1 of the group (process {second.pid}) has ended. Rank 0 waits for it" in error


def test_a_rank_that_waits_to_agree_with_a_killed_one_is_refused(folder: Path) -> None:
    first, second = start("killed_before_step", folder / "killed before a step")
    [message] = results([first])
    second.communicate(timeout=LIMIT_S)
    assert message.startswith(f"GroupError: rank 1 of the group (process {second.pid}) has ended")


def test_calls_of_different_shapes_end_with_one_message(folder: Path) -> None:
    first, second = start("other_calls", folder / "other calls")
    [message] = results([first])
    _, error = second.communicate(timeout=LIMIT_S)
    text = (
        "rank 0 does this: sum_of_ranks: call; and rank 1 waits in another call; all ranks must make the same"
    )
    assert message.startswith(f"GroupError: {text}")
    assert f"tilesight: {text}" in error
    assert second.returncode == 1


@pytest.mark.full
def test_under_torchrun(folder: Path) -> None:
    process = start_torchrun("one_call", folder / "under torchrun")
    output, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, error
    assert output.split() == ["true", "true"]


def test_the_line_of_python_of_a_config_has_the_group() -> None:
    target = load_target("h200x2")
    template = template_for("matmul_all_reduce", target, "bfloat16")
    workload = template.operator.workload_on(target, "m=16,n=8192,k=4096")
    line = template.usage(workload, target, Config({"algorithm": "sequential"}))
    assert line == (
        'matmul_all_reduce = tilesight.dispatcher("matmul_all_reduce", target="h200x2", dtype="bfloat16", '
        "m=16, n=8192, k=4096, group=torch.distributed.group.WORLD, config={'algorithm': 'sequential'})"
    )


def test_an_operator_of_several_devices_needs_a_group() -> None:
    with pytest.raises(InputError, match="give the process group of their processes, group="):
        dispatcher("matmul_all_reduce", "h100x2")


def test_without_torchrun_there_is_no_group() -> None:
    with pytest.raises(InputError, match="there is no process group: start the program with `torchrun"):
        dispatcher("matmul_all_reduce", "h100x2", group=object())
