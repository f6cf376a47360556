"""Dispatch in process groups, on a processor: real processes with gloo, and memory that they share."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_programs import LIMIT_S, results, start, start_torchrun
from tilesight import dispatcher
from tilesight.errors import InputError
from tilesight.kernels import template_for
from tilesight.problem.space import Config
from tilesight.target.spec import load_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs share the kernel cache in it."""
    return tmp_path_factory.mktemp("groups")


@pytest.fixture(scope="module")
def said(folder: Path) -> list[dict[str, Any]]:
    """What each rank says of calls, tables and disagreements."""
    return results(start("all_of_them", folder / "all"))


@pytest.fixture(scope="module")
def called(said: list[dict[str, Any]]) -> list[Any]:
    return [found["calls"] for found in said]


@pytest.fixture(scope="module")
def refused(said: list[dict[str, Any]]) -> list[Any]:
    return [found["disagreements"] for found in said]


@pytest.mark.parametrize("way", ["pull", "push", "library"])
def test_calls_are_right_with_ordinary_tensors_shared_ones_and_parts_of_them(
    way: str, called: list[Any]
) -> None:
    assert [said[way] for said in called] == [[True] * 8] * 2


def test_all_ranks_have_the_kernel_that_rank_0_chose(called: list[Any]) -> None:
    assert called[0]["choices"] == called[1]["choices"]
    assert len(called[0]["choices"]) == 2
    assert called[1]["explained"].endswith("rank 1 of 2; shared memory: 2.0 MiB of each rank; rank 0 chooses")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "shape",
            "GroupError: sum_of_ranks: call: refused by all ranks, because they disagree: the shape is ",
        ),
        ("own fault", "GroupError: sum_of_ranks: call: refused by all ranks, because rank 1 failed: "),
        ("all at fault", "WorkloadError: sum_of_ranks: x has 2 axes"),
        (
            "other call",
            "GroupError: rank 1 does this: sum_of_ranks: allocate x; and rank 0: sum_of_ranks: call; ",
        ),
        ("place", "GroupError: sum_of_ranks n=64 world=2 float32: x: refused by all ranks, "),
        ("part of it", "GroupError: sum_of_ranks n=64 world=2 float32: x: refused by all ranks, "),
        (
            "out",
            "GroupError: sum_of_ranks: call: refused by all ranks, because rank 1 failed: sum_of_ranks: out",
        ),
        ("not shared", "InputError: sum_of_ranks: y is reached by its own rank only"),
        ("improve", "InputError: sum_of_ranks: a dispatcher in a process group measures nothing"),
        ("refresh", "InputError: sum_of_ranks: a dispatcher in a process group reads records when"),
    ],
)
def test_all_ranks_refuse_a_call_with_the_same_message(what: str, message: str, called: list[Any]) -> None:
    first, second = (said["refused"][what] for said in called)
    assert first == second
    assert first.startswith(message)


def test_calls_go_on_after_a_refusal(called: list[Any]) -> None:
    assert [said["goes on"] for said in called] == [True, True]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("config", "they disagree: config is code=cpu,factor=2"),
        ("fixed", "they disagree: fixed dimensions is {'n': 513, 'world': 2} on rank 1 and {'n': 512, "),
        ("table", "they disagree: table is "),
        ("version", "they disagree: version of tilesight is 9.1 on rank 1 and 9.0 on rank 0; give all ranks"),
        ("argument", "because rank 1 failed: unknown on_miss 'never'"),
        ("serve", "on_miss='serve' would let ranks go on with different kernels"),
        ("explore", "explore would let ranks go on with different kernels"),
        ("world", "world=3, and the process group has 2 processes; leave world out"),
        ("one device", "matmul runs on one device, so its dispatcher has no group"),
        (
            "target",
            "target h100x4 is 4 devices, and the process group has 2 processes: start 4 with `torchrun",
        ),
        ("table of another world", "is for sum_of_ranks world=2 float32 for any n"),
    ],
)
def test_all_ranks_refuse_to_make_a_dispatcher(what: str, message: str, refused: list[Any]) -> None:
    first, second = (said[what] for said in refused)
    assert first == second
    assert message in first


def test_a_group_must_have_this_process_in_it(refused: list[Any]) -> None:
    assert "target cpux2 is 2 devices, and the process group has 1 processes" in refused[0]["other group"]
    assert "is no process group with this process in it" in refused[1]["other group"]
    assert all("group='world' is no process group" in said["text"] for said in refused)


@pytest.mark.ci
def test_records_of_rank_0_decide(folder: Path) -> None:
    first, second = results(start("recorded", folder / "recorded"))
    assert first == second
    assert first["source"] == "record"
    assert first["is best"]
    assert first["right"]
    assert first["other"] == "neighbour"


def test_a_table_decides(said: list[dict[str, Any]]) -> None:
    first, second = (found["tabled"] for found in said)
    assert first == second
    assert first["choices"] == [["table", "push"], ["table", "pull"]]
    assert first["right"] == [True, True]


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


@pytest.mark.ci
def test_under_torchrun(folder: Path) -> None:
    process = start_torchrun("calls", folder / "under torchrun")
    output, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, error
    assert output.count('"goes on": true') == 2


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
