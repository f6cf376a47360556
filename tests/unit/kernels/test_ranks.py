from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.rank_programs import pointers, run_program
from tests.support.recorded_ir import only_text
from tilesight.kernels import template_for
from tilesight.kernels._rank_tiles import RankTiles
from tilesight.kernels._ranks import RAISE_AND_WAIT, barrier_function
from tilesight.lowering.dynamic import lower_candidate
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import MEET
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

# each rank writes a number for every peer, and reads those for it between two barriers
PROGRAM = """
FUNCTIONS
static int flags[WORLD][WORLD + 1], sent[WORLD][WORLD];
static void delay(int rank, int call) {
  if ((rank * 7 + call * 5) % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
}
int main() {
  std::vector<std::thread> threads;
  static std::atomic<int> wrong{0};
  for (int rank = 0; rank < WORLD; ++rank) {
    for (int i = 0; i <= WORLD; ++i) flags[rank][i] = FIRST;
  }
  for (int rank = 0; rank < WORLD; ++rank) {
    auto *own = new std::barrier<>(WORLD);
    for (int lane = 0; lane < WORLD; ++lane) {
      threads.emplace_back([=] {
        threadIdx.x = lane;
        warp = own;
        for (int call = 1; call <= 20; ++call) {
          if (lane == 0) {
            delay(rank, call);
            for (int peer = 0; peer < WORLD; ++peer) sent[peer][rank] = call;
          }
          FIRST_BARRIER;
          __syncwarp();
          if (lane == 0) {
            delay(rank + 3, call);
            for (int peer = 0; peer < WORLD; ++peer) wrong += sent[rank][peer] != call;
          }
          meet_ranks(rank, POINTERS);
          __syncwarp();
        }
      });
    }
  }
  for (auto &thread : threads) thread.join();
  std::printf("%d", wrong.load());
}
"""


def run(tmp_path: Path, world: int, first: int, barrier: str) -> subprocess.CompletedProcess[str]:
    values = {"FIRST_BARRIER": barrier, "WORLD": world, "POINTERS": pointers("flags", world), "FIRST": first}
    return run_program(tmp_path, barrier_function(world), PROGRAM, values)


@pytest.mark.parametrize(("world", "first"), [(2, 0), (4, 2**31 - 5)])
def test_a_barrier_orders_what_ranks_write_and_read(tmp_path: Path, world: int, first: int) -> None:
    """Numbers of barriers may pass the largest whole number."""
    done = run(tmp_path, world, first, f"{MEET}(rank, POINTERS)".replace("meet_ranks", MEET))
    assert (done.returncode, done.stdout) == (0, "0"), done.stderr


def test_a_missing_barrier_shows(tmp_path: Path) -> None:
    done = run(tmp_path, 2, 0, "")
    assert done.returncode != 0 or done.stdout != "0"


def test_flags_have_release_and_acquire_of_system_scope() -> None:
    assert "st.release.sys" in RAISE_AND_WAIT
    assert "ld.acquire.sys" in RAISE_AND_WAIT


@pytest.mark.parametrize("order", ["last", "spread"])
@pytest.mark.parametrize("swizzle", [0, 4])
@pytest.mark.parametrize("rank", [0, 2])
def test_every_tile_is_at_one_place_and_the_own_ones_come_last(order: str, swizzle: int, rank: int) -> None:
    config = Config(
        {"block_m": 128, "block_n": 64, "block_k": 64, "swizzle": swizzle, "order": order, "persistent": 4}
    )
    tiles = RankTiles(rows=300, columns=200, depth=100, world=3, config=config, dtype="bfloat16")
    assert (tiles.shard_tiles, tiles.tile_columns, tiles.tiles, tiles.depths) == (3, 4, 36, 2)
    places = [tuple(int(part) for part in tiles.place(tile, rank)) for tile in range(36)]
    assert set(places) == {(c, s, r) for c in range(4) for s in range(3) for r in range(3)}
    shards = [shard for _, shard, _ in places]
    assert shards[0] != rank
    if order == "last" and swizzle == 0:
        assert shards[-12:] == [rank] * 12
    if order == "spread":
        assert set(shards[:12]) == {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("all_gather_matmul", "pull"),
        ("all_gather_matmul", "push"),
        ("matmul_all_reduce", "one_shot"),
        ("matmul_all_reduce", "two_shot"),
        ("matmul_reduce_scatter", "add"),
        ("matmul_reduce_scatter", "push"),
    ],
)
def test_a_product_ends_when_all_that_it_sent_is_there(name: str, way: str) -> None:
    """A kernel without that wait may end before its bulk stores do, and the barrier then comes too early."""
    node = load_target("h100x2")
    template = template_for(name, node, "bfloat16")
    workload = template.operator.workload_on(node, "m=1024,n=2048,k=512")
    config = next(
        c
        for c in template.space(workload, node).configs()
        if (c["algorithm"], c["block_m"], c["block_n"]) == (way, 128, 128)
    )
    with only_text():
        lowered = lower_candidate(Candidate(workload, node, template, config), only_read=True)
    kernels = [function.script() for function in lowered.device.functions.values()]
    products = [
        [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        for text in kernels
        if "T.tma_store(" in text
    ]
    assert len(products) == 1
    (launch,) = (line for line in products[0] if '"blockIdx.x"' in line and "launch_thread" in line)
    outermost = launch[: len(launch) - len(launch.lstrip())]
    assert products[0][-1] == f"{outermost}T.tma_store_wait(0, T.bool(False))"
