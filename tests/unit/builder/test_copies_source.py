"""The calls of the driver by which a launcher starts copies to peers, and their order."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.builder.test_binary_identity import KERNEL, elf
from tests.unit.builder.test_build import FAKE_DRIVER, header
from tilesight.builder.binary_identity import binary_identity
from tilesight.builder.compiler import compile_in
from tilesight.builder.copies_source import begin_copies, copy_functions, end_copies
from tilesight.builder.launch_plan import Argument, KernelLaunch, LaunchPlan
from tilesight.builder.launcher import cuda_launcher, hip_launcher, host_launcher
from tilesight.builder.planned_copies import PlannedCopies
from tilesight.kernels._engine_chunks import copies_of_chunks
from tilesight.kernels._rank_chunks import Chunks, SharedRows

WORLD, CHUNKS = 3, 2
# 8 rows of 16 elements of each rank, in chunks of 4
CHUNKS_OF_ROWS = Chunks(SharedRows(8, 16, WORLD, "bfloat16", 384), height=4, senders=0)
CHUNK_BYTES = 4 * 16 * 2
ARGUMENTS = (Argument("tensor", 0), Argument("number", 12, "int32"))
# tensors: rows of each rank, flags, flags of chunks, gathered rows
PLAN = LaunchPlan(
    4 * WORLD,
    (),
    (KernelLaunch("meet", ARGUMENTS), KernelLaunch("product", ARGUMENTS), KernelLaunch("after", ARGUMENTS)),
    numbers=("rank",),
    copies=PlannedCopies(
        source=0, target=9, flags=3, arrived=6, world=WORLD, chunks=CHUNKS, chunk_bytes=CHUNK_BYTES, beside=1
    ),
)
WITHOUT = replace(PLAN, copies=None)
STREAMS = """
extern "C" {
static bool fails(const char *name) { return getenv("FAILS") && !strcmp(getenv("FAILS"), name); }
CUresult cuFuncLoad(CUfunction) { return CUDA_SUCCESS; }
CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  print_call("create a stream %u\\n", flags);
  *stream = (CUstream)88;
  return fails("cuStreamCreate") ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) {
  print_call("destroy stream %d\\n", (int)(size_t)stream);
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent *event, unsigned flags) {
  static int made = 0;
  *event = (CUevent)(size_t)++made;
  print_call("create event %d %u\\n", made, flags);
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
  print_call("destroy event %d\\n", (int)(size_t)event);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  print_call("record event %d on %d\\n", (int)(size_t)event, (int)(size_t)stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  print_call("%d waits for event %d %u\\n", (int)(size_t)stream, (int)(size_t)event, flags);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  print_call("copy %d %d %d on %d\\n", (int)target, (int)source, (int)bytes, (int)(size_t)stream);
  return fails("cuMemcpyAsync") ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
}
"""
CALLER = """
import sys
from tilesight.builder.loaded_kernel import LaunchError, LoadedKernel

class Tensor:  # the part that a launcher reads
    def __init__(self, address): self.address = address
    def data_ptr(self): return self.address
    def is_contiguous(self): return True

try:
    kernel = LoadedKernel("./kernel.so", "tilesight_call")
    print(kernel.copy_stream)
    for rank in map(int, sys.argv[1:]):
        kernel.bind([Tensor(10_000 * (i + 1)) for i in range(12)], stream=77, sizes=[rank])()
    kernel.close()
except LaunchError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a driver that writes down its calls, and what a launcher is compiled with."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text("#include <stdarg.h>\n" + FAKE_DRIVER + STREAMS)
    (folder / "kernel.cubin").write_bytes(b"an image")
    compile_in(folder, ["g++", "-shared", "-fPIC", *header(), "driver.cpp", "-o", "libcuda.so.1"])
    return folder


def calls_of_ranks(folder: Path, plan: LaunchPlan, *ranks: int, **environment: str) -> tuple[list[str], str]:
    """(calls of the driver, what the caller prints) of a call of each rank."""
    (folder / "launcher.cpp").write_text(cuda_launcher(plan))
    flags = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", *header()]
    compile_in(folder, ["g++", *flags, "launcher.cpp", "-ldl", "-o", "kernel.so"])
    (folder / "calls").unlink(missing_ok=True)
    variables = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": ":".join(sys.path), **environment}
    done = subprocess.run(
        [sys.executable, "-c", CALLER, *map(str, ranks)],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    log = folder / "calls"
    return log.read_text().splitlines() if log.exists() else [], done.stdout.strip()


def copies(rank: int) -> list[str]:
    """The copies of a rank, in the order in which blocks would send: `Chunks.place`."""
    found = []
    own, number = 10_000 * (1 + rank), 10_000 * (4 + rank) + 4 * WORLD
    for index in range(CHUNKS_OF_ROWS.sent):
        peer, chunk = CHUNKS_OF_ROWS.place(index, rank)
        there = 10_000 * (10 + peer) + (rank * CHUNKS + chunk) * CHUNK_BYTES
        flag = 10_000 * (7 + peer) + 4 * (rank * CHUNKS + chunk)
        found.append(f"copy {there} {own + chunk * CHUNK_BYTES} {CHUNK_BYTES} on 88")
        found.append(f"copy {flag} {number} 4 on 88")
    return found


def launched(name: str, rank: int) -> str:
    return f"launch {name} 1x1x1 1x1x1 0 stream 77: 10000 {rank}"


def test_copies_begin_after_the_barrier_and_the_stream_waits_for_their_end(driver: Path) -> None:
    found, printed = calls_of_ranks(driver, PLAN, 0, 1, 2)
    assert printed == "88"
    assert found[:4] == ["load an image", "create a stream 1", "create event 1 2", "create event 2 2"]
    of_calls = [
        [
            launched("meet", rank),
            "record event 1 on 77",
            "88 waits for event 1 0",
            *copies(rank),
            "record event 2 on 88",
            launched("product", rank),
            launched("after", rank),
            "77 waits for event 2 0",
        ]
        for rank in range(WORLD)
    ]
    assert found[4:-4] == [call for calls in of_calls for call in calls]
    assert found[-4:] == ["destroy event 2", "destroy event 1", "destroy stream 88", "unload"]


def test_each_chunk_comes_before_its_flag_at_each_peer() -> None:
    for rank in range(WORLD):
        texts = [line.split() for line in copies(rank)]
        assert len(texts) == 2 * (WORLD - 1) * CHUNKS
        assert {int(size) for _, _, _, size, *_ in texts[1::2]} == {4}
        peers = [(int(target) - 10_000) // 10_000 - 9 for _, target, *_ in texts[::2]]
        assert peers == [(rank - step) % WORLD for step in (1, 1, 2, 2)]
    planned = copies_of_chunks(CHUNKS_OF_ROWS, "A", "gathered", beside=1)
    assert (planned.chunks, planned.chunk_bytes, planned.world) == (CHUNKS, CHUNK_BYTES, WORLD)


def test_an_error_of_a_copy_is_told_and_nothing_is_launched_behind_it(driver: Path) -> None:
    found, printed = calls_of_ranks(driver, PLAN, 1, FAILS="cuMemcpyAsync")
    assert printed.splitlines()[1] == "a copy to a peer: invalid argument (CUDA error 1)"
    assert found[-1] == copies(1)[0]
    found, printed = calls_of_ranks(driver, PLAN, 1, FAILS="cuStreamCreate")
    assert printed == "a stream for copies: invalid argument (CUDA error 1)"
    found, printed = calls_of_ranks(driver, PLAN, 3)
    assert printed.splitlines()[1] == "rank=3 must lie in 0 .. 2"
    assert not [line for line in found if line.startswith("copy")]


def test_launchers_without_copies_have_no_second_stream(driver: Path) -> None:
    found, printed = calls_of_ranks(driver, WITHOUT, 1)
    assert printed == "0"
    names = ["meet", "product", "after"]
    assert found == ["load an image", *(launched(name, 1) for name in names), "unload"]
    assert (copy_functions(WITHOUT), begin_copies(WITHOUT, 1), end_copies(WITHOUT)) == ([], [], [])


def test_a_plan_without_copies_has_the_text_that_it_had() -> None:
    """Keys of the kernel cache and identities of recorded kernels are made of it."""
    names = [
        keyword.arg
        for keyword in ast.parse(repr(WITHOUT), mode="eval").body.keywords  # type: ignore[attr-defined]
    ]
    assert names == ["tensors", "descriptors", "launches", "sizes", "extents", "numbers"]
    assert repr(PLAN) == f"{repr(WITHOUT)[:-1]}, copies={PLAN.copies!r})"
    data = elf(KERNEL)
    assert binary_identity(data, PLAN) != binary_identity(data, WITHOUT)


@pytest.mark.parametrize("launcher", [host_launcher, hip_launcher])
def test_other_launchers_start_no_copies(launcher: object) -> None:
    with pytest.raises(AssertionError, match="started by the CUDA driver only"):
        launcher(PLAN)  # type: ignore[operator]
