"""Tiles that a rank adds beside the product: which, in which order, and their flags."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.rank_programs import pointers, run_program
from tests.support.recorded_ir import only_text
from tilesight.executor.tasks import Profiled, lower_and_profile
from tilesight.kernels import template_for
from tilesight.kernels._rank_sums import TileSums, tile_functions
from tilesight.kernels._rank_tiles import RankTiles
from tilesight.kernels._ranks import barrier_function
from tilesight.lowering.dynamic import lower_candidate
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import ANNOUNCE_TILE, AWAIT_TILE
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

NODE = load_target("h100x2")
WORLD, NUMBER = 2, 6  # ranks, and tiles of each, of two words
# Each rank has a thread that sends and a block of two lanes that waits and adds. Words are plain numbers, so
# the thread sanitizer sees reads that nothing orders.
PROGRAM = """
static int flags[WORLD][WORLD + 1], arrived[WORLD][WORLD * NUMBER], words[WORLD][WORLD][2 * NUMBER];
static thread_local std::barrier<> *block;
static void __syncthreads() { block->arrive_and_wait(); }
FUNCTIONS
static void delay(int rank, int call) {
  if ((rank * 7 + call * 5) % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
}
static void send(int rank, int call) {
  for (int i = 0; i < WORLD * NUMBER; ++i) {
    int peer = (i + rank + 1) % WORLD, tile = i / WORLD;
    for (int lane = 0; lane < 2; ++lane) words[peer][rank][2 * tile + lane] = 1000 * call + 10 * rank + tile;
    delay(rank, call + i);
    announce_tile(rank, peer, tile, FLAGS, ARRIVED);
  }
}
static int add(int rank, int lane, int call) {
  int wrong = 0;
  for (int tile = 0; tile < NUMBER; ++tile) {
    WAIT;
    for (int from = 0; from < WORLD; ++from)
      wrong += words[rank][from][2 * tile + lane] != 1000 * call + 10 * from + tile;
  }
  return wrong;
}
int main() {
  std::vector<std::thread> threads;
  static std::atomic<int> wrong{0};
  for (int rank = 0; rank < WORLD; ++rank) {
    for (int &flag : flags[rank]) flag = FIRST;
    for (int &flag : arrived[rank]) flag = FIRST;
  }
  for (int rank = 0; rank < WORLD; ++rank) {
    auto *adding = new std::barrier<>(WORLD), *kernel = new std::barrier<>(WORLD + 1);
    for (int lane = 0; lane < WORLD + 1; ++lane) {
      threads.emplace_back([=] {
        bool adds = lane < WORLD;
        threadIdx.x = lane;
        warp = block = adding;
        for (int call = 1; call <= 12; ++call) {
          delay(rank, call);
          if (adds) meet_ranks(rank, FLAGS);
          kernel->arrive_and_wait();
          if (adds) wrong += add(rank, lane, call);
          else send(rank, call);
          kernel->arrive_and_wait();
        }
      });
    }
  }
  for (auto &thread : threads) thread.join();
  std::printf("%d", wrong.load());
}
"""
WAIT = "await_tile(rank, tile, FLAGS, ARRIVED)"


def run(tmp_path: Path, functions: str, wait: str = WAIT, first: int = 0) -> bool:
    """Whether all ranks add what was sent to them."""
    values = {
        "WAIT": wait,
        "FLAGS": pointers("flags", WORLD),
        "ARRIVED": pointers("arrived", WORLD),
        "WORLD": WORLD,
        "NUMBER": NUMBER,
        "FIRST": first,
    }
    done = run_program(tmp_path, barrier_function(WORLD) + functions, PROGRAM, values)
    return (done.returncode, done.stdout) == (0, "0")


@pytest.mark.parametrize("first", [0, 2**31 - 5])
def test_tiles_are_added_when_they_are_there(tmp_path: Path, first: int) -> None:
    """In many calls, one after the other; numbers may pass the largest whole number."""
    assert run(tmp_path, tile_functions(WORLD, NUMBER), first=first)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("  __syncthreads();\n", ""),  # a lane goes on when the tile of its own rank is there
        ("(unsigned int)number) < 0", "(unsigned int)number) < -1"),  # that of the call before is taken
        ("threadIdx.x * 6 + tile", "threadIdx.x * 6"),  # the first tile is waited for
    ],
)
def test_faults_of_the_functions_show(tmp_path: Path, right: str, wrong: str) -> None:
    functions = tile_functions(WORLD, NUMBER)
    assert right in functions
    assert not run(tmp_path, functions.replace(right, wrong))


def test_a_missing_wait_shows(tmp_path: Path) -> None:
    assert not run(tmp_path, tile_functions(WORLD, NUMBER), wait="")


def made(swizzle: int, rows: int, columns: int, world: int, summers: int) -> TileSums:
    config = Config(
        {"block_m": 128, "block_n": 64, "block_k": 64, "swizzle": swizzle, "order": "spread", "persistent": 8}
    )
    return TileSums(RankTiles(rows, columns, 64, world, config, "bfloat16"), summers, to_all=False)


@pytest.mark.parametrize(("swizzle", "world"), [(0, 2), (4, 2), (8, 2), (0, 4), (4, 4), (8, 4), (16, 8)])
@pytest.mark.parametrize(("rows", "columns"), [(600, 200), (1280, 384)])
def test_tiles_are_added_in_the_order_in_which_they_are_sent(
    swizzle: int, world: int, rows: int, columns: int
) -> None:
    """Those that are added beside the product are not the last ones of a block of any rank."""
    sums = made(swizzle, rows, columns, world, summers=2)
    tiles, end = sums.tiles, sums.tiles.tiles - sums.workers
    orders = [
        [tuple(int(part) for part in tiles.place(tile, rank)) for tile in range(tiles.tiles)]
        for rank in range(world)
    ]
    for own in range(world):
        places = [sums.place(index, min) for index in range(sums.number)]
        assert places == [(column, row) for column, shard, row in orders[own] if shard == own]
        positions = [[order.index((c, own, r)) for order in orders] for c, r in places]
        assert [max(found) for found in positions] == [found[own] for found in positions]
        assert [found[own] < end for found in positions] == [
            index < sums.early for index in range(sums.number)
        ]


@cache
def candidate(name: str, way: str, summers: int = 8) -> Candidate:
    template = template_for(name, NODE, "bfloat16")
    workload = template.operator.workload_on(NODE, "m=4096,n=4096,k=512")
    wanted = {"algorithm": way, "block_m": 128, "block_n": 128, "summers": summers, "order": "spread"}
    config = next(
        c for c in template.space(workload, NODE).configs() if wanted.items() <= dict(c.items()).items()
    )
    return Candidate(workload, NODE, template, config)


WAYS = [("matmul_reduce_scatter", "push"), ("matmul_all_reduce", "two_shot")]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_flags_follow_complete_tiles_and_sums_follow_flags(name: str, way: str) -> None:
    with only_text():
        lowered = lower_candidate(candidate(name, way), only_read=True)
    [text] = (one.script() for one in lowered.device.functions.values() if "T.tma_store(" in one.script())
    assert (text.count(f'"{ANNOUNCE_TILE}"'), text.count(f'"{AWAIT_TILE}"')) == (1, 1)
    lines = [line.strip() for line in text.splitlines()]
    (at,) = (i for i, line in enumerate(lines) if ANNOUNCE_TILE in line)
    # by the thread that has issued the copies, when they are complete
    assert lines[at - 2 : at] == ["if T.tl_shuffle_elect(256):", "T.tma_store_wait(0, T.bool(False))"]
    stores = [i for i, line in enumerate(lines) if line.startswith("T.tma_store(")]
    elected = {next(line for line in reversed(lines[:i]) if "tl_shuffle_elect" in line) for i in stores}
    assert elected == {"if T.tl_shuffle_elect(256):"}
    assert at < stores[0]  # of the tile before
    waits, loads = text.index(AWAIT_TILE), [found.start() for found in re.finditer(r"= staging_\d_1\[", text)]
    assert loads
    assert waits < min(loads)
    # what peers write is neither constant nor alone in its memory
    head = text.partition("\n    bx")[0].partition("\n    block")[0]
    free = re.search(r'"tl.non_restrict_params": \[([^\]]*)\]', head)
    assert free is not None
    assert all(f"staging_{rank}" in free[1] for rank in range(2)), free[1]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_each_tile_is_added_once_beside_the_product_or_after_it(name: str, way: str) -> None:
    summers = 8
    found = lower_and_profile(candidate(name, way, summers))
    assert isinstance(found, Profiled)
    assert all(not kernel.unknown_calls and not kernel.notes for kernel in found.kernels)
    product = next(k for k in found.kernels if any(p.work.matrix for r in k.roles for p in r.phases))
    assert product.blocks <= NODE.int("core.count")
    size = 2 * 2048 * 4096 * 2  # bytes of the parts of all ranks
    read = sum(
        access.bytes * phase.trips.mean * kernel.blocks
        for kernel in found.kernels
        for role in kernel.roles
        for phase in role.phases
        for access in phase.work.accesses
        if access.mechanism == "ld" and access.space == "global"
    )
    assert read == pytest.approx(size, rel=0.05)  # conditions of the last words are sampled
    for phase in (phase for role in product.roles for phase in role.phases if phase.is_loop):
        sums = any(access.mechanism == "ld" for access in phase.work.accesses)
        some = [count > 0 for count in phase.trips.per_block]
        assert some == [sums] * summers + [not sums] * (product.blocks - summers)
