"""Rows on their way to experts and back: the kernels' own code on a processor, where a block is threads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.rank_programs import SHIM, run_threads
from tests.support.recorded_ir import only_text
from tilesight.builder.build import device_source
from tilesight.kernels import template_for
from tilesight.kernels._expert_rows import ExpertRows
from tilesight.kernels._rank_flags import WAITING
from tilesight.kernels._ranks import RAISE_AND_WAIT
from tilesight.lowering.dynamic import lower_candidate
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import AWAIT_ALL, AWAIT_RESULTS, GroupOperator
from tilesight.problem.space import Config
from tilesight.search_spaces.ways import LEAST_CORES
from tilesight.target.spec import load_target

NAME = "all_to_all_grouped_matmul"
SHARED = ("rows_of_all", "choices_of_all", "weights_of_all", "sums", "flags", "flags_of_sums")
OF_CUDA = """
#define __global__
#define __restrict__
#define __launch_bounds__(...)
static thread_local Lane blockIdx;
static thread_local int *block_memory;
static void __syncthreads() { warp->arrive_and_wait(); }
struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  bfloat16_t(float value) {
    uint32_t whole;
    std::memcpy(&whole, &value, 4);
    bits = (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
  }
  operator float() const {
    uint32_t whole = (uint32_t)bits << 16;
    float value;
    std::memcpy(&value, &whole, 4);
    return value;
  }
};
#define PACKED __attribute__((packed))
struct PACKED int4 { int x, y, z, w; };
struct PACKED int2 { int x, y; };
struct PACKED uint4 { unsigned x, y, z, w; };
struct PACKED uint2 { unsigned x, y; };
struct PACKED float4 { float x, y, z, w; };
struct PACKED float2 { float x, y; };
struct PACKED __nv_bfloat162 { bfloat16_t x, y; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static unsigned __pack_nv_bfloat162(bfloat16_t x, bfloat16_t y) { return (unsigned)y.bits << 16 | x.bits; }
static float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
static __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {bfloat16_t(v.x), bfloat16_t(v.y)}; }
static int AtomicAddRet(int *place, int more) { return std::atomic_ref<int>(*place).fetch_add(more); }
static void AtomicAdd(int *place, int more) { std::atomic_ref<int>(*place).fetch_add(more); }
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
"""
# products are replaced by a factor of each expert, so that all results are exact
PROGRAM = """
enum { ROWS = WORLD * TOKENS, CAPACITY = ROWS * TOPK, ALL = WORLD * EXPERTS };
alignas(16) static bfloat16_t A[CALLS][WORLD][TOKENS * HIDDEN], C[WORLD][TOKENS * HIDDEN];
alignas(16) static int Ids[CALLS][WORLD][TOKENS * TOPK];
alignas(16) static float Weights[CALLS][WORLD][TOKENS * TOPK];
alignas(16) static bfloat16_t rows_of_all[WORLD][ROWS * HIDDEN], sums[WORLD][ROWS * HIDDEN];
alignas(16) static int choices_of_all[WORLD][CAPACITY], flags[WORLD][FLAGS], flags_of_sums[WORLD][FLAGS];
alignas(16) static float weights_of_all[WORLD][CAPACITY], weight_of[WORLD][CAPACITY];
alignas(16) static int places[WORLD][CAPACITY], ends[WORLD][EXPERTS + 1], row_of[WORLD][CAPACITY];
alignas(16) static bfloat16_t by_expert[WORLD][CAPACITY * HIDDEN];
static std::atomic<int> wrong{0};
static int factor(int expert) { return 1 + expert % 4; }

template <typename Kernel> static void launch(int blocks, int threads, Kernel kernel) {
  std::barrier<> together(threads);
  static thread_local int memory[64];
  int *shared = memory;
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < threads; ++lane) lanes.emplace_back([&, lane] {
    threadIdx.x = lane;
    blockDim.x = threads;
    warp = &together;
    block_memory = shared;
    for (int block = 0; block < blocks; ++block) {
      blockIdx.x = block;
      kernel();
      together.arrive_and_wait();
    }
  });
  for (auto &lane : lanes) lane.join();
}
static void multiply(int rank) {
  for (int expert = 0; expert < EXPERTS; ++expert)
    for (int row = ends[rank][expert]; row < ends[rank][expert + 1]; ++row)
      for (int c = 0; c < HIDDEN; ++c) {
        bfloat16_t &value = by_expert[rank][row * HIDDEN + c];
        value = bfloat16_t((float)value * factor(rank * EXPERTS + expert));
      }
}
static void spoil(bfloat16_t *begin, int count) { std::fill(begin, begin + count, bfloat16_t(1e9f)); }
static float expected(int call, int rank, int token, int c, int home) {
  float total = 0;
  for (int j = 0; j < TOPK; ++j) {
    const int expert = Ids[call][rank][token * TOPK + j];
    if (expert < 0 || (home >= 0 && expert / EXPERTS != home)) continue;
    total += Weights[call][rank][token * TOPK + j] * factor(expert) * A[call][rank][token * HIDDEN + c];
  }
  return total;
}
static void one_rank(int rank) {
  for (int call = 0; call < CALLS; ++call) {
    if ((rank + call) % 2) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    spoil(by_expert[rank], CAPACITY * HIDDEN);
    spoil(C[rank], TOKENS * HIDDEN);
    RUN
  }
}
int main() {
  unsigned state = 1;
  auto draw = [&](int limit) { return (int)((state = state * 1664525u + 1013904223u) >> 8) % limit; };
  for (int call = 0; call < CALLS; ++call) for (int rank = 0; rank < WORLD; ++rank)
    for (int token = 0; token < TOKENS; ++token) {
      for (int c = 0; c < HIDDEN; ++c) A[call][rank][token * HIDDEN + c] = bfloat16_t(draw(5) - 2);
      const int first = call == 1 ? 0 : draw(ALL);  // in one call all have the same experts
      for (int j = 0; j < TOPK; ++j) {
        // in another some have none, and some fewer
        const bool none = call == 2 && draw(3) == 0;
        Ids[call][rank][token * TOPK + j] = none ? -1 : (first + j * (call + 1)) % ALL;
        Weights[call][rank][token * TOPK + j] = 0.5f * (1 + draw(2));
      }
    }
  for (auto &one : rows_of_all) spoil(one, ROWS * HIDDEN);
  for (auto &one : sums) spoil(one, ROWS * HIDDEN);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < WORLD; ++rank) ranks.emplace_back(one_rank, rank);
  for (auto &rank : ranks) rank.join();
  std::printf("%d", wrong.load());
}
"""
PUSHED = """
    SEND;
    SPREAD;
    multiply(rank);
    LAST;
    for (int token = 0; token < TOKENS; ++token) for (int c = 0; c < HIDDEN; ++c)
      wrong += (float)C[rank][token * HIDDEN + c] != expected(call, rank, token, c, -1);
"""
GATHERED = """
    for (int other = 0; other < WORLD; ++other) {
      std::copy_n(A[call][other], TOKENS * HIDDEN, rows_of_all[rank] + other * TOKENS * HIDDEN);
      std::copy_n(Ids[call][other], TOKENS * TOPK, choices_of_all[rank] + other * TOKENS * TOPK);
      std::copy_n(Weights[call][other], TOKENS * TOPK, weights_of_all[rank] + other * TOKENS * TOPK);
    }
    SEND;
    SPREAD;
    multiply(rank);
    LAST;
    for (int row = 0; row < ROWS; ++row) for (int c = 0; c < HIDDEN; ++c)
      wrong += (float)sums[rank][row * HIDDEN + c] != expected(call, row / TOKENS, row % TOKENS, c, rank);
"""
FUNCTION = r'extern "C" __global__ void (?:__launch_bounds__\(\d+, \d+\) )?{name}\(([^)]*)\) {{.*?\n}}\n'


def program(way: str, dims: dict[str, int], world: int) -> str:
    """The program of a way with these dimensions, from the code that TileLang makes for a GPU."""
    node = load_target(f"h100x{world}")
    template = template_for(NAME, node, "bfloat16")
    assert isinstance(template.operator, GroupOperator)
    shape = ",".join(f"{key}={size}" for key, size in dims.items())
    workload = template.operator.workload_on(node, f"{shape},inner=32")
    default = template.default_config(workload, node)
    assert default is not None
    config = Config({**default, "algorithm": way})
    with only_text():
        lowered = lower_candidate(Candidate(workload, node, template, config), only_read=True)
    source = device_source(lowered, node)
    kernels = list(lowered.device.functions.items())
    texts, calls = [], []
    for place in (0, 1, 4):
        name, function = str(kernels[place][0].name_hint), kernels[place][1]
        found = re.search(FUNCTION.format(name=name), source, re.DOTALL)
        assert found is not None
        text = re.sub(r"extern __shared__ \S+ int (\w+)\[\];", r"int *\1 = block_memory;", found[0])
        texts.append(text.replace("#pragma unroll", ""))
        extents = function.attrs["thread_extent"]
        given = [parameter.split()[-1] for parameter in found[1].split(",")]
        calls.append(
            f"launch({int(extents['blockIdx.x'])}, {int(extents['threadIdx.x'])}, "
            f"[&] {{ {name}({', '.join(map(argument, given))}); }})"
        )
    functions = source.partition("#if defined(_MSC_VER)")[0].replace(RAISE_AND_WAIT, "")
    run = (PUSHED if way == "push" else GATHERED).replace("SEND", calls[0])
    run = run.replace("SPREAD", calls[1]).replace("LAST", calls[2])
    main = PROGRAM.replace("RUN", run)
    shared = template.shared_scratch(workload, config)
    numbers = {
        **{key.upper(): size for key, size in dims.items()},
        "WORLD": world,
        "CALLS": 3,
        "FLAGS": max([1, *(math_size for name, ((math_size, *_), _) in shared.items() if "flags" in name)]),
    }
    constants = "".join(f"#define {key} {value}\n" for key, value in numbers.items())
    # names of the program's arrays, which the kernels have as parameters
    return SHIM + OF_CUDA + functions + "".join(texts) + constants + main


def argument(name: str) -> str:
    base, _, number = name.rpartition("_")
    if base in SHARED and number.isdigit():
        return f"{base}[{number}]"
    if name == "rank":
        return name
    return f"{name}[call][rank]" if name in ("A", "Ids", "Weights") else f"{name}[rank]"


# each rank is a thread that runs calls one after the other, each block of a kernel is `WORLD` threads; what
# is sent is the number of the call, so that something of another call shows
FLAGS_PROGRAM = """
static int sent[WORLD][FLAGS], returned[WORLD][FLAGS];
static int rows[WORLD][WORLD][TILES], sums[WORLD][WORLD][TILES];
static std::atomic<int> wrong{0};
static void __syncthreads() { warp->arrive_and_wait(); }
FUNCTIONS
static void delay(int rank, int call) {
  if ((rank * 7 + call * 5) % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
}
static void send(int (*memory)[WORLD][TILES], int rank, int call, int index, int *flags_0, int *flags_1) {
  const int owner = (index / TILES + rank + 1) % WORLD, tile = index % TILES;
  const int number = number_of_call(rank, (WORLD + owner) * TILES + tile, flags_0, flags_1);
  if (threadIdx.x == 0) {
    delay(rank + index, call);
    memory[owner][rank][tile] = call;
  }
  announce_result(rank, owner, tile, number, flags_0, flags_1);
}
static void skip(int, int, int, int *, int *) {}
static void first(int rank, int call, int index) {
  if (index < WORLD * TILES) return send(rows, rank, call, index, sent[0], sent[1]);
  const int reader = index - WORLD * TILES;
  const int number = number_of_call(rank, 2 * WORLD * TILES + reader, sent[0], sent[1]);
  AWAIT_FIRST(rank, reader, number, sent[0], sent[1]);
  if (threadIdx.x == 0) {
    delay(rank + index + 3, call);
    for (auto &of_rank : rows[rank]) for (int found : of_rank) wrong += found != call;
  }
}
static void second(int rank, int call, int index) {
  if (index < WORLD * TILES) return send(sums, rank, call, index, returned[0], returned[1]);
  const int tile = index - WORLD * TILES;
  const int number = number_of_call(rank, 2 * WORLD * TILES + tile, returned[0], returned[1]);
  AWAIT_SECOND(rank, tile, number, returned[0], returned[1]);
  if (threadIdx.x == 0) {
    delay(rank + index + 3, call);
    for (auto &of_rank : sums[rank]) wrong += of_rank[tile] != call;
  }
}
template <typename Block> static void launch(int blocks, Block block) {
  std::vector<std::thread> lanes;
  for (int index = 0; index < blocks; ++index) {
    auto *own = new std::barrier<>(WORLD);
    for (int lane = 0; lane < WORLD; ++lane) lanes.emplace_back([=] {
      threadIdx.x = lane;
      blockDim.x = WORLD;
      warp = own;
      block(index);
    });
  }
  for (auto &lane : lanes) lane.join();
}
int main() {
  for (auto *all : {sent, returned}) for (int rank = 0; rank < WORLD; ++rank)
    for (int &flag : *(int(*)[FLAGS])all[rank]) flag = FIRST;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < WORLD; ++rank) ranks.emplace_back([=] {
    for (int call = 1; call <= 12; ++call) {
      delay(rank + 5, call);
      launch(WORLD * TILES + READERS, [=](int index) { first(rank, call, index); });
      launch(WORLD * TILES + TILES, [=](int index) { second(rank, call, index); });
    }
  });
  for (auto &rank : ranks) rank.join();
  std::printf("%d", wrong.load());
}
"""


def exchanges(first: int, awaits: tuple[str, str] = (AWAIT_ALL, AWAIT_RESULTS)) -> str:
    """The program of calls of two exchanges each, without the memory in turns that one exchange needs."""
    rows = ExpertRows(tokens=3, hidden=8, experts=2, topk=1, world=2, dtype="bfloat16")
    functions = rows.sent.functions().replace(RAISE_AND_WAIT, "")
    assert functions == rows.returned.functions().replace(RAISE_AND_WAIT, "")
    assert "asm" not in functions
    text = FLAGS_PROGRAM.replace("FUNCTIONS", functions)
    numbers = {
        "FLAGS": max(rows.sent.tensor[0][0], rows.returned.tensor[0][0]),
        "WORLD": 2,
        "TILES": rows.tiles,
        "READERS": rows.finding,
        "FIRST": first,
        "AWAIT_FIRST": awaits[0],
        "AWAIT_SECOND": awaits[1],
    }
    constants = "".join(f"#define {name} {value}\n" for name, value in numbers.items())
    return SHIM + constants + text


@pytest.mark.parametrize("first", [0, 2**31 - 5])
def test_what_a_call_sent_is_there_and_nothing_is_written_over(tmp_path: Path, first: int) -> None:
    """Calls follow each other with nothing between them; their numbers may pass the largest whole number."""
    done = run_threads(tmp_path, exchanges(first), "-fsanitize=thread")
    assert (done.returncode, done.stdout) == (0, "0"), done.stderr


@pytest.mark.parametrize("awaits", [("skip", AWAIT_RESULTS), (AWAIT_ALL, "skip")])
def test_a_missing_wait_shows(tmp_path: Path, awaits: tuple[str, str]) -> None:
    done = run_threads(tmp_path, exchanges(0, awaits), "-fsanitize=thread")
    assert done.returncode != 0 or done.stdout != "0"


FEW = {"tokens": 5, "hidden": 24, "experts": 3, "topk": 3}
# 12 choices, of which a thread reads 4 at once
OF_FOUR = {"tokens": 3, "hidden": 16, "experts": 2, "topk": 1}


@pytest.mark.parametrize(
    ("way", "dims", "world"), [("push", FEW, 2), ("push", OF_FOUR, 4), ("sequential", FEW, 2)]
)
def test_every_row_comes_to_its_experts_and_back(
    way: str, dims: dict[str, int], world: int, tmp_path: Path
) -> None:
    done = run_threads(tmp_path, program(way, dims, world))
    assert (done.returncode, done.stdout) == (0, "0"), done.stderr


def test_blocks_that_wait_leave_room_for_others() -> None:
    assert WAITING < LEAST_CORES
    many = ExpertRows(tokens=4096, hidden=8, experts=200, topk=1, world=2, dtype="bfloat16")
    assert (many.finding, many.adding) == (WAITING, WAITING)
    few = ExpertRows(tokens=3, hidden=8, experts=5, topk=1, world=2, dtype="bfloat16")
    assert (few.finding, few.adding) == (5, 3)
