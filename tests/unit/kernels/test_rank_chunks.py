"""Chunks that blocks copy to peers beside a product that waits for them: order, flags, waits."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.support.rank_programs import FENCE, pointers, run_program
from tests.support.recorded_ir import only_text
from tests.support.sending_blocks import check_senders
from tilesight.builder.launch_plan import UnsupportedLaunchError, read_plan
from tilesight.builder.planned_copies import PlannedCopies, UnsupportedCopiesError, planned_copies
from tilesight.executor.tasks import lower_and_profile
from tilesight.kernels import template_for
from tilesight.kernels._rank_chunks import Chunks, SharedRows, chunk_functions
from tilesight.kernels._ranks import barrier_function
from tilesight.lowering.dynamic import lower_candidate
from tilesight.lowering.lower import Lowered
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import ANNOUNCE, ANNOUNCE_TILE, AWAIT, MEET
from tilesight.problem.peer_copies import PeerCopies, peer_copies, with_peer_copies
from tilesight.target.spec import load_target

NODE = load_target("h100x2")
NUMBER = 6  # chunks of a rank, of two words each
# Each rank has a block of two lanes that sends, and a warp of two lanes that waits and reads. A kernel ends
# when both are done. Words are plain numbers, so the thread sanitizer sees reads that nothing orders.
PROGRAM = """
static int flags[WORLD][WORLD + 1], arrived[WORLD][WORLD * NUMBER], words[WORLD][WORLD][2 * NUMBER];
static thread_local std::barrier<> *block;
static void __syncthreads() { block->arrive_and_wait(); }
FUNCTIONS
static void delay(int rank, int call) {
  if ((rank * 7 + call * 5) % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
}
static void send(int rank, int lane, int call) {
  for (int i = 0; i < (WORLD - 1) * NUMBER; ++i) {
    int peer = (rank + WORLD - 1 - i / NUMBER) % WORLD, chunk = i % NUMBER;
    words[peer][rank][2 * chunk + lane] = 1000 * call + 10 * rank + chunk;
    delay(rank + lane, call + i);
    announce_chunk(rank, peer, chunk, FLAGS, ARRIVED);
  }
}
static int read(int rank, int call) {
  int wrong = 0;
  for (int step = 1; step < WORLD; ++step) {
    int from = (rank + step) % WORLD;
    for (int chunk = 0; chunk < NUMBER; chunk += 2) {
      WAIT;
      for (int i = 2 * chunk; i < 2 * chunk + 4; ++i)
        wrong += words[rank][from][i] != 1000 * call + 10 * from + i / 2;
    }
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
    auto *sending = new std::barrier<>(WORLD), *reading = new std::barrier<>(2);
    auto *kernel = new std::barrier<>(WORLD + 2);
    for (int lane = 0; lane < WORLD + 2; ++lane) {
      threads.emplace_back([=] {
        bool sends = lane < WORLD;
        threadIdx.x = sends ? lane : lane - WORLD;
        warp = block = sends ? sending : reading;
        for (int call = 1; call <= 12; ++call) {
          delay(rank, call);
          if (sends) meet_ranks(rank, FLAGS);
          kernel->arrive_and_wait();
          if (sends) send(rank, lane, call);
          else wrong += read(rank, call);
          kernel->arrive_and_wait();
        }
      });
    }
  }
  for (auto &thread : threads) thread.join();
  std::printf("%d", wrong.load());
}
"""
WAIT = "await_chunks(rank, from, chunk, 2, FLAGS, ARRIVED)"
WORLD = 2  # lanes of a block that sends are those of a barrier between ranks


def run(tmp_path: Path, functions: str, wait: str = WAIT, first: int = 0) -> subprocess.CompletedProcess[str]:
    values = {
        "WAIT": wait,
        "FLAGS": pointers("flags", WORLD),
        "ARRIVED": pointers("arrived", WORLD),
        "WORLD": WORLD,
        "NUMBER": NUMBER,
        "FIRST": first,
    }
    return run_program(tmp_path, barrier_function(WORLD) + functions, PROGRAM, values)


def is_right(done: subprocess.CompletedProcess[str]) -> bool:
    return (done.returncode, done.stdout) == (0, "0")


@pytest.mark.parametrize("first", [0, 2**31 - 5])
def test_chunks_are_read_when_they_are_there(tmp_path: Path, first: int) -> None:
    """In many calls, one after the other; numbers may pass the largest whole number."""
    done = run(tmp_path, chunk_functions(WORLD, NUMBER), first=first)
    assert is_right(done), done.stderr


def test_a_missing_wait_shows(tmp_path: Path) -> None:
    assert not is_right(run(tmp_path, chunk_functions(WORLD, NUMBER), wait=""))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("  __syncthreads();\n", ""),  # the flag is raised when one lane is done
        ("(unsigned int)number) < 0", "(unsigned int)number) < -1"),  # that of the call before is taken
        ("chunk + i)", "chunk)"),  # the first of the chunks is waited for
    ],
)
def test_faults_of_the_functions_show(tmp_path: Path, right: str, wrong: str) -> None:
    functions = chunk_functions(WORLD, NUMBER)
    assert right in functions
    assert not is_right(run(tmp_path, functions.replace(right, wrong)))


def test_what_tma_reads_is_fenced_after_the_wait() -> None:
    """What peers stored is not visible to TMA without it."""
    body = chunk_functions(WORLD, NUMBER).partition(f"void {AWAIT}")[2]
    assert body.index("read_flag(here") < body.index("__syncwarp();") < body.index(FENCE)


def chunks_of(rows: int, world: int, height: int) -> Chunks:
    return Chunks(SharedRows(rows, 64, world, "bfloat16", 384), height, senders=3)


@pytest.mark.parametrize(("world", "rank"), [(2, 0), (2, 1), (4, 0), (4, 3)])
def test_each_chunk_goes_to_each_peer_once_and_to_one_peer_at_a_time(world: int, rank: int) -> None:
    chunks = chunks_of(256, world, 64)
    order = [chunks.place(index, rank) for index in range(chunks.sent)]
    assert len(set(order)) == len(order) == (world - 1) * 4
    peers = [(rank - step) % world for step in range(1, world)]
    assert order == [(peer, chunk) for peer in peers for chunk in range(4)]
    for index in range(chunks.sent):  # no two ranks send to one peer
        assert len({chunks.place(index, sender)[0] for sender in range(world)}) == world


@pytest.mark.parametrize("height", [32, 64, 160])
def test_tiles_wait_for_all_chunks_that_have_rows_of_theirs(height: int) -> None:
    chunks = chunks_of(320, 2, height)
    for first in range(0, 320, 192):
        begin, number = (int(value) for value in chunks.of_rows(first, 192))
        wanted = {row // height for row in range(first, min(first + 192, 320))}
        assert set(range(begin, begin + number)) == wanted


@cache
def candidate(senders: int = 8, mechanism: str = "store") -> Candidate:
    template = template_for("all_gather_matmul", NODE, "bfloat16")
    workload = template.operator.workload_on(NODE, "m=4096,n=2048,k=512")
    wanted = {"algorithm": "push", "block_m": 128, "block_n": 128, "chunk_rows": 128}
    config = next(
        c
        for c in template.space(workload, NODE).configs()
        if wanted.items() <= dict(c.items()).items()
        and c.get("mechanism", "store") == mechanism
        and c.get("senders", 0) == (0 if mechanism == "copy_engine" else senders)
    )
    return Candidate(workload, NODE, template, config)


@cache
def product(mechanism: str) -> str:
    """The kernel that sends and multiplies."""
    with only_text():
        lowered = lower_candidate(candidate(mechanism=mechanism), only_read=True)
    [text] = (
        function.script() for function in lowered.device.functions.values() if MEET not in function.script()
    )
    return text


def test_no_tile_of_a_peer_is_read_without_a_wait() -> None:
    text = product("store")
    assert text.index(ANNOUNCE) < text.index(AWAIT) < text.index("T.tma_load(")
    assert (text.count(f'"{ANNOUNCE}"'), text.count(f'"{AWAIT}"')) == (1, 1)
    reads = re.findall(r"T\.tma_load\((\w+)_desc", text)
    assert sorted(reads) == ["A_0", "A_1", "B", "gathered_0", "gathered_1"]


def test_boxes_are_complete_at_the_peer_when_their_flag_is_raised() -> None:
    text = product("tma")
    lines = [line.strip() for line in text.partition(AWAIT)[0].splitlines()]
    (at,) = (i for i, line in enumerate(lines) if ANNOUNCE_TILE in line)
    # by the thread that has issued the copies
    assert lines[at - 2 : at] == ["if T.tl_shuffle_elect(32):", "T.tma_store_wait(0, T.bool(False))"]
    stores = [i for i, line in enumerate(lines) if line.startswith("T.tma_store(gathered_")]
    assert len(stores) == 2
    for store in stores:
        assert lines[store - 1] == "if T.tl_shuffle_elect(32):"
        assert lines[store + 1] == "T.tma_store_arrive()"
        assert store < at
    # a slot is read again when the store from it has read it: two slots fewer than there are are read ahead
    ahead = candidate(mechanism="tma").config.int("num_stages") - 2
    (wait,) = (i for i, line in enumerate(lines) if line == "T.tma_store_wait(1, T.bool(True))")
    assert f"if {ahead} <= step:" in lines
    # one warp runs this loop: a barrier of all threads of the block would wait for ever
    loop = lines[lines.index("if 128 <= thread:") : at]
    syncs = {line for line in loop if "storage_sync" in line}
    assert all(line.endswith(", 32)") for line in syncs), syncs
    assert wait < min(i for i, line in enumerate(lines) if line.startswith("T.tma_load("))
    reads = re.findall(r"T\.tma_load\((\w+)_desc", text)
    assert sorted(reads) == ["A_0", "A_0", "A_1", "A_1", "B", "gathered_0", "gathered_1"]


def test_tiles_wait_for_what_copy_engines_bring_and_no_block_sends() -> None:
    text = product("copy_engine")
    assert ANNOUNCE not in text.replace(
        "TILESIGHT_ANNOUNCE", ""
    )  # no call: the launcher's copies raise flags
    assert text.index(AWAIT) < text.index("T.tma_load(")
    assert text.count(f'"{AWAIT}"') == 1
    reads = re.findall(r"T\.tma_load\((\w+)_desc", text)
    assert sorted(reads) == ["A_0", "A_1", "B", "gathered_0", "gathered_1"]
    assert f'T.launch_thread("blockIdx.x", {NODE.int("core.count")})' in text


@cache
def with_copies() -> Lowered:
    # not as recorded IR, which has no tensors of the function at hand: plans look for these
    return lower_candidate(candidate(mechanism="copy_engine"), only_read=True)


def test_a_kernel_has_its_copies_beside_the_product() -> None:
    lowered = with_copies()
    own_bytes = 2048 * 512 * 2
    wanted = PeerCopies("A", "gathered", "flags", "arrived", 2, 16, own_bytes // 16, 1)
    assert peer_copies(lowered.traced) == wanted
    plan = read_plan(lowered)
    # A_0 A_1 B C flags_0 flags_1 arrived_0 arrived_1 gathered_0 gathered_1
    assert plan.copies == PlannedCopies(0, 8, 4, 6, 2, 16, own_bytes // 16, 1)
    assert [launch.grid[0] for launch in plan.launches] == [1, NODE.int("core.count")]
    other = replace(lowered, traced=with_peer_copies(lowered.traced, replace(wanted, chunks=8)))
    assert other.fingerprint != lowered.fingerprint, "kernels with other copies are not the same kernel"
    assert read_plan(replace(other, traced=lowered.traced)) == plan


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"beside": 0}, "run beside launch 0 of 2, and one before it must be a barrier of all ranks"),
        ({"beside": 2}, "run beside launch 2 of 2"),
        ({"source": "B"}, "need B_0, B_1 among its tensors, in order"),
        ({"chunks": 17}, "need 2228224 bytes of 'A_0'"),
        ({"target": "arrived"}, "need 4194304 bytes of 'arrived_0'"),
        ({"arrived": "flags"}, "need 128 bytes of 'flags_0'"),
        ({"world": 3}, "need A_0, A_1, A_2 among its tensors, in order"),
    ],
)
def test_copies_that_a_launcher_cannot_make_are_refused(changes: dict[str, int | str], reason: str) -> None:
    lowered = with_copies()
    copies = peer_copies(lowered.traced)
    assert copies is not None
    wrong = with_peer_copies(lowered.traced, replace(copies, **changes))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedLaunchError, match=f"copies to peers {re.escape(reason)}"):
        read_plan(replace(lowered, traced=wrong))


@pytest.mark.parametrize("numbers", [(), ("rank", "launches")])
def test_copies_need_a_rank_and_whole_calls(numbers: tuple[str, ...]) -> None:
    from tvm import tirx

    traced = with_copies().traced
    tensors = [p for p in traced.params if p in traced.buffer_map]
    params = [*tensors, *(tirx.Var(name, "int32") for name in numbers)]
    other = tirx.PrimFunc(params, traced.body, traced.ret_type, traced.buffer_map, traced.attrs)
    with pytest.raises(UnsupportedCopiesError, match="need the rank, and a call that makes all"):
        planned_copies(other, 2)


@pytest.mark.parametrize("mechanism", ["store", "tma", "copy_engine"])
def test_what_peers_write_is_not_read_as_constant(mechanism: str) -> None:
    """TileLang makes parameters that a kernel only reads `const __restrict__`, so loads may miss writes."""
    text = product(mechanism)
    parameters = re.findall(r"(\w+): T\.", re.search(r"def \w+\((.*)\):", text)[1])  # type: ignore[index]
    found = re.search(r'"tl.readonly_param_indices": \[([\d, ]*)\]', text)
    assert found is not None
    constant = {parameters[int(index)] for index in found[1].split(",")}
    read = {name for name in constant if not name.endswith("_desc")}
    assert read == ({"A_0", "A_1"} if mechanism == "store" else set())


@pytest.mark.parametrize(("senders", "mechanism"), [(4, "store"), (8, "store"), (8, "tma")])
def test_blocks_send_or_compute_and_all_of_them_are_resident(senders: int, mechanism: str) -> None:
    found = lower_and_profile(candidate(senders, mechanism))
    size, peers = check_senders(found, senders, NODE.int("core.count"))
    assert size == pytest.approx(2048 * 512 * 2, rel=0.05)
    assert peers == {"store" if mechanism == "store" else "tma_store"}
