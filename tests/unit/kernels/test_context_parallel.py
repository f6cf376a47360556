"""Attention of ranks with a share of the keys each: its reference, and flags of the exchange on threads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.rank_programs import SHIM, run_threads
from tests.support.recorded_ir import only_text
from tilesight.kernels import operator, template_for
from tilesight.kernels._context_parallel import ContextParallelOperator
from tilesight.kernels._rank_flags import WAITING
from tilesight.kernels._rank_parts import SLOTS, RankParts
from tilesight.kernels._ranks import RAISE_AND_WAIT
from tilesight.lowering.dynamic import lower_candidate
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import ANNOUNCE_RESULT, AWAIT_RESULTS
from tilesight.problem.rejections import rejections
from tilesight.search_spaces.ways import LEAST_CORES
from tilesight.target.spec import load_target

NODE = load_target("h200x4")
SHAPES = {
    "context_parallel_flash_decoding": "batch=3,heads=8,kv_heads=2,kv_len=48,head_dim=32",
    "context_parallel_mla_decode": "batch=3,heads=8,kv_len=48,dim=64",
}
NAMES = tuple(SHAPES)


def ours(name: str) -> ContextParallelOperator:
    found = operator(name)
    assert isinstance(found, ContextParallelOperator)
    return found


@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_ranks_have_the_heads_of_attention_over_all_keys(name: str, q_len: int) -> None:
    """Keys of ranks follow each other, and the tokens of the queries are the last ones of the last rank."""
    import torch

    cp = ours(name)
    workload = cp.workload_on(NODE, f"{SHAPES[name]},q_len={q_len},lse=true")
    inputs = [cp.rank_inputs(workload, rank, "cpu", 1) for rank in range(4)]
    whole = cp.share(workload, kv_len=4 * 48)
    caches = {key: torch.cat([one[key] for one in inputs], 1) for key in inputs[0] if key != "Q"}
    given = {"Q": inputs[0]["Q"], **caches}
    for found, expected in (
        (cp.group_reference(workload, inputs), cp.alone.reference(whole, given)),
        (cp.group_magnitude(workload, inputs), cp.alone.magnitude(whole, given)),
    ):
        for key in ("O", "LSE"):
            heads = torch.cat([one[key] for one in found], 2)
            torch.testing.assert_close(heads, expected[key], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_may_have_no_keys_of_an_item(name: str) -> None:
    import torch

    cp = ours(name)
    workload = cp.workload_on(NODE, f"{SHAPES[name]},lengths=mixed,page=16,lse=true")
    inputs = [cp.rank_inputs(workload, rank, "cpu", 1) for rank in range(4)]
    assert [int(one["Lengths"][-1]) > 0 for one in inputs] == [True, False, True, False]
    for found in (cp.group_reference(workload, inputs), cp.group_magnitude(workload, inputs)):
        assert all(tensor.isfinite().all() for one in found for tensor in one.values())
    for one in inputs:
        one["Lengths"].zero_()
    for one in cp.group_reference(workload, inputs):
        assert not one["O"].any()
        assert torch.equal(one["LSE"], torch.full_like(one["LSE"], -torch.inf))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", ["q_len=3", "lengths=mixed,page=16,lse=true"])
def test_the_vendors_parts_are_the_reference(name: str, options: str) -> None:
    """Also of the last rank, whose queries do not see each other's later tokens."""
    import torch

    cp = ours(name)
    workload = cp.workload_on(NODE, f"{SHAPES[name]},{options}")
    shapes = {key: (sizes, "float32") for key, sizes in cp.outputs(workload).items()}
    wanted = {**shapes, **cp.vendor_scratch(workload)}
    inputs = [cp.rank_inputs(workload, rank, "cpu", 1) for rank in range(4)]
    tensors = [{**one, **{key: torch.empty(size) for key, (size, _) in wanted.items()}} for one in inputs]
    for rank, one in enumerate(tensors):
        cp.vendor_of_rank(workload, rank, one)()
    gathered = torch.cat([one["partial"].flatten() for one in tensors])
    for rank, one in enumerate(tensors):
        one["gathered"].flatten().copy_(gathered)
        cp.vendor_finish(workload, rank, one)()
    for one, expected in zip(tensors, cp.group_reference(workload, inputs), strict=True):
        for key, tensor in expected.items():
            error = (one[key] - tensor).norm() / tensor.norm()
            assert error < cp.max_relative_error(workload)


def test_heads_must_be_divided_among_the_ranks() -> None:
    with pytest.raises(Exception, match=r"heads=6 cannot be divided evenly among world=4"):
        ours(NAMES[0]).workload_on(NODE, "batch=1,heads=6,kv_heads=2,kv_len=64,head_dim=64")


def test_no_space_has_topk() -> None:
    assert "topk" not in ours("context_parallel_mla_decode").attrs


@pytest.mark.parametrize("name", NAMES)
def test_both_ways_have_the_schedules_of_one_device(name: str) -> None:
    template = template_for(name, NODE, "bfloat16")
    workload = template.operator.workload_on(NODE, next(iter(template.operator.named)))
    space = template.space(workload, NODE)
    alone = template.alone.space(ours(name).share(workload), NODE)  # type: ignore[attr-defined]
    assert space.census().legal == 2 * alone.census().legal
    assert {one.constraint for one in rejections(space)} == {one.constraint for one in rejections(alone)}
    assert template.default_config(workload, NODE) in space


def test_blocks_that_wait_leave_room_for_others() -> None:
    assert WAITING < LEAST_CORES
    template = template_for(NAMES[0], NODE, "bfloat16")
    workload = template.operator.workload_on(NODE, "batch=64,heads=64,kv_heads=8,kv_len=512,head_dim=64")
    config = template.default_config(workload, NODE)
    assert config is not None
    with only_text():
        lowered = lower_candidate(Candidate(workload, NODE, template, config), only_read=True)
    _, exchange = lowered.device.functions.values()
    assert int(exchange.attrs["thread_extent"]["blockIdx.x"]) == 64 * 64 // 4 + WAITING


# each rank is a thread that runs calls one after the other, each block of a call is `WORLD` threads; a result
# is the number of the call, so that one of another call shows
PROGRAM = """
static int flags[WORLD][FLAGS], staging[WORLD][SLOTS][WORLD][TILES];
static std::atomic<int> wrong{0};
static void delay(int rank, int call) {
  if ((rank * 7 + call * 5) % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
}
static void block(int rank, int call, int index) {
  if (index < WORLD * TILES) {
    const int owner = (index / TILES + rank + 1) % WORLD, tile = index % TILES;
    const int number = number_of_call(rank, (WORLD + owner) * TILES + tile, POINTERS);
    if (threadIdx.x == 0) {
      delay(rank + index, call);
      staging[owner][number & (SLOTS - 1)][rank][tile] = call;
    }
    announce_result(rank, owner, tile, number, POINTERS);
  } else {
    const int tile = index - WORLD * TILES;
    const int number = number_of_call(rank, 2 * WORLD * TILES + tile, POINTERS);
    await_results(rank, tile, number, POINTERS);
    if (threadIdx.x == 0) {
      delay(rank + index + 3, call);
      for (int source = 0; source < WORLD; ++source)
        wrong += staging[rank][number & (SLOTS - 1)][source][tile] != call;
    }
  }
}
int main() {
  for (auto &own : flags) for (int &flag : own) flag = FIRST;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < WORLD; ++rank) ranks.emplace_back([=] {
    for (int call = 1; call <= 12; ++call) {
      delay(rank + 5, call);
      std::vector<std::thread> lanes;
      for (int index = 0; index < (WORLD + 1) * TILES; ++index) {
        auto *own = new std::barrier<>(WORLD);
        for (int lane = 0; lane < WORLD; ++lane) lanes.emplace_back([=] {
          threadIdx.x = lane;
          warp = own;
          block(rank, call, index);
        });
      }
      for (auto &lane : lanes) lane.join();
    }
  });
  for (auto &rank : ranks) rank.join();
  std::printf("%d", wrong.load());
}
"""


def run(
    tmp_path: Path, world: int, first: int, slots: int, changes: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    parts = RankParts(batch=1, q_len=1, heads=8, columns=64, world=world)
    functions = parts.flags.functions().replace(RAISE_AND_WAIT, "")
    assert "asm" not in functions
    for old, new in changes.items():
        assert old in functions
        functions = functions.replace(old, new)
    program = PROGRAM
    for name, value in {
        "FLAGS": parts.flags.tensor[0][0],
        "WORLD": world,
        "TILES": parts.tiles,
        "SLOTS": slots,
        "FIRST": first,
        "POINTERS": ", ".join(f"flags[{rank}]" for rank in range(world)),
    }.items():
        program = program.replace(name, str(value))
    shim = SHIM + "static void __syncthreads() { warp->arrive_and_wait(); }\n"
    return run_threads(tmp_path, shim + functions + program, "-fsanitize=thread")


@pytest.mark.parametrize(("world", "first"), [(2, 0), (3, 2**31 - 5)])
def test_results_of_a_call_are_there_when_their_owner_reads_them(
    tmp_path: Path, world: int, first: int
) -> None:
    """Calls follow each other with nothing between them; their numbers may pass the largest whole number."""
    done = run(tmp_path, world, first, SLOTS, {})
    assert (done.returncode, done.stdout) == (0, "0"), done.stderr


STORED = "__syncthreads();\n  if (threadIdx.x == 0) {\n    int *peer"  # of a whole block


@pytest.mark.parametrize(
    ("slots", "changes"),
    [
        (1, {}),  # a peer writes over what was not read yet
        (SLOTS, {"while (": "while (false && "}),
        (
            SLOTS,
            {STORED: STORED.partition(";")[2]},
        ),
    ],
)
def test_a_missing_wait_shows(tmp_path: Path, slots: int, changes: dict[str, str]) -> None:
    done = run(tmp_path, 2, 0, slots, changes)
    assert done.returncode != 0 or done.stdout != "0"


def test_the_exchange_calls_what_the_model_knows() -> None:
    text = RankParts(1, 1, 8, 64, 2).flags.functions()
    assert f"void {ANNOUNCE_RESULT}(" in text
    assert f"void {AWAIT_RESULTS}(" in text
