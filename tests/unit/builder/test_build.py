"""The parts of building: launch plans, launchers, the cache, and the output of compilers."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.sample_kernels import product, scale, two_kernels
from tilesight.builder.build import build_kernel, device_source
from tilesight.builder.compiler import CompileError, compile_in, first_error
from tilesight.builder.cuda import build_cuda, cuda_flags
from tilesight.builder.cuda import resources as cuda_resources
from tilesight.builder.hip import resources as hip_resources
from tilesight.builder.kernel_cache import KernelCache, cache_key, check_folder
from tilesight.builder.launch_plan import (
    Argument,
    KernelLaunch,
    LaunchPlan,
    PixelBox,
    TensorMap,
    UnsupportedLaunchError,
    read_plan,
)
from tilesight.builder.launcher import cuda_launcher, hip_launcher, host_launcher
from tilesight.builder.loaded_kernel import LaunchError, LoadedKernel
from tilesight.errors import ToolchainError
from tilesight.executor.tasks import preload_compiler
from tilesight.lowering.lower import lower
from tilesight.machine.owner import this_process
from tilesight.machine.toolchain import find_cxx, find_nvcc
from tilesight.problem.template import RunTimeNumber
from tilesight.target.spec import load_target
from tilesight.workers import Done, WorkerPool

PLAN = LaunchPlan(
    tensors=3,
    descriptors=(TensorMap(1, 9, (512, 256), (1024,), (64, 128), (1, 1), 0, 3, 2, 0),),
    launches=(
        KernelLaunch(
            "first",
            (Argument("descriptor", 0), Argument("tensor", 2)),
            (4, 8, 1),
            (384, 1, 1),
            (2, 1, 1),
            65536,
            programmatic=True,
        ),
        KernelLaunch(
            "second", (Argument("tensor", 0), Argument("integer", 7, "int32")), (5, 1, 1), (128, 1, 1)
        ),
    ),
)


def plan_of(candidate: Any) -> LaunchPlan:
    return read_plan(lower(candidate.template.build(candidate.workload, candidate.config), candidate.target))


# launch plans, read off lowered IR


def test_a_hopper_kernel_has_descriptors_and_dynamic_shared_memory() -> None:
    plan = plan_of(product("h100", tile=128, stages=2))
    (launch,) = plan.launches
    assert plan.tensors == 3
    a, b = plan.descriptors
    assert (a.tensor, b.tensor) == (0, 1)
    assert (a.dims, a.strides, a.box) == ((512, 512), (1024,), (64, 128))
    assert [argument.kind for argument in launch.arguments] == ["descriptor", "descriptor", "tensor"]
    assert launch.arguments[2].index == 2
    assert launch.grid == (4, 4, 1)
    assert launch.shared_bytes == 2 * (128 * 64 + 64 * 128) * 2


@pytest.mark.parametrize(("target", "shared"), [("a100", 32768), ("mi300x", 16384)])
def test_kernels_without_descriptors(target: str, shared: int) -> None:
    plan = plan_of(product(target, tile=64, stages=2))
    (launch,) = plan.launches
    assert plan.descriptors == ()
    assert [a.index for a in launch.arguments] == [0, 1, 2]
    assert (launch.grid, launch.block, launch.shared_bytes) == ((8, 8, 1), (128, 1, 1), shared)


def test_two_kernels_in_one_function_keep_their_order() -> None:
    first, second = read_plan(lower(two_kernels(), load_target("h100"))).launches
    assert [a.index for a in first.arguments] == [0, 2]
    assert sorted(a.index for a in second.arguments) == [1, 2]
    assert (first.grid[0], second.grid[0]) == (8, 4)
    (together,) = read_plan(lower(two_kernels(), load_target("cpu"))).launches
    assert [a.index for a in together.arguments] == [0, 1, 2], "the C backend makes one function of them"


def convolution() -> Any:
    """3 x 3 over 4 padded images of 28 x 28 with 64 channels."""
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(
        x: T.Tensor((4, 28, 28, 64), "float16"),
        w: T.Tensor((576, 128), "float16"),
        y: T.Tensor((3136, 128), "float16"),
    ):  # type: ignore
        with T.Kernel(1, T.ceildiv(3136, 128), threads=256) as (bx, by):
            x_tile = T.alloc_shared((128, 64), "float16")
            w_tile = T.alloc_shared((64, 128), "float16")
            y_tile = T.alloc_fragment((128, 128), "float32")
            T.clear(y_tile)
            for k in T.Pipelined(9, num_stages=3):
                T.im2col(x, x_tile, by, k, 3, 1, 1, 1)
                T.copy(w[k * 64, bx * 128], w_tile)
                T.gemm(x_tile, w_tile, y_tile)
            T.copy(y_tile, y[by * 128, bx * 128])

    return main


def test_the_windows_of_a_convolution_are_read() -> None:
    image, *others = read_plan(lower(convolution(), load_target("h100"))).descriptors
    assert (image.tensor, image.dims, image.strides) == (
        0,
        (64, 28, 28, 4),
        (64 * 2, 28 * 64 * 2, 28 * 28 * 64 * 2),
    )
    assert image.box == PixelBox(lower=(-1, -1), upper=(-1, -1), channels=64, pixels=128)
    assert image.element_strides == (1, 1, 1, 1)
    assert all(isinstance(other.box, tuple) for other in others)


def test_a_convolution_is_built(tmp_path: Path) -> None:
    nvcc, cxx = find_nvcc(), find_cxx()
    if nvcc is None or cxx is None:
        pytest.skip("needs nvcc")
    target = load_target("h100")
    lowered = lower(convolution(), target)
    files, resources = build_cuda(
        tmp_path, device_source(lowered, target), read_plan(lowered), cuda_flags(target.arch, ()), nvcc, cxx
    )
    assert files[0].read_bytes().startswith(b"\x7fELF")
    assert resources["registers"] > 0


def in_a_cluster() -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((1024,), "float32"), y: T.Tensor((1024,), "float32")):  # type: ignore
        with T.ClusterKernel(8, threads=128, cluster_dims=(2, 1, 1)) as b:
            for i in T.Parallel(128):
                y[b * 128 + i] = x[b * 128 + i]

    return main


def test_clusters_are_read() -> None:
    (launch,) = read_plan(lower(in_a_cluster(), load_target("h100"))).launches
    assert (launch.cluster, launch.grid) == ((2, 1, 1), (8, 1, 1))


def with_a_number() -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((1024,), "float32"), n: T.float32):  # type: ignore
        with T.Kernel(8, threads=128) as b:
            for i in T.Parallel(128):
                x[b * 128 + i] = x[b * 128 + i] * n

    return main


def with_a_half() -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(x: T.Tensor((1024,), "float32"), n: T.float16):  # type: ignore
        with T.Kernel(8, threads=128) as b:
            for i in T.Parallel(128):
                x[b * 128 + i] = x[b * 128 + i] * n

    return main


def test_numbers_are_passed_as_they_are() -> None:
    plan = read_plan(lower(with_a_number(), load_target("h100")))
    (launch,) = plan.launches
    assert (plan.tensors, plan.sizes, plan.numbers) == (1, (), ("n",))
    assert launch.arguments == (Argument("tensor", 0), Argument("number", 1, "float32"))
    source = cuda_launcher(plan)
    assert "tilesight_sizes(void) { return 1; }" in source
    assert "given[] = {&arguments[0], &arguments[1]};" in source
    with pytest.raises(UnsupportedLaunchError, match="argument 'n' is a float16; numbers are of bool, int8"):
        read_plan(lower(with_a_half(), load_target("h100")))


@pytest.mark.parametrize(
    ("dtype", "value", "slot"),
    [("float32", 1.0, 0x3F800000), ("int8", -1, 0xFF), ("int64", -1, 2**64 - 1), ("bool", True, 1)],
)
def test_slots_of_numbers(dtype: str, value: float, slot: int) -> None:
    assert RunTimeNumber("n", dtype, value).slot == slot


# launchers: the CUDA launcher runs against a fake driver that prints its calls

FAKE_DRIVER = r"""
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void print_call(const char *format, ...) {
  va_list list;
  va_start(list, format);
  FILE *log = fopen("calls", "a");
  vfprintf(log, format, list);
  fclose(log);
  va_end(list);
}
extern "C" {
CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)(getenv("NO_CONTEXT") ? 0 : 1);
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  *module = (CUmodule)1;
  print_call("load %s\n", (const char *)image);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { print_call("unload\n"); return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule, const char *name) {
  *f = (CUfunction)strdup(name);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int value) {
  print_call("set %s %d %d\n", (char *)f, a, value);
  return value > 232448 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char **text) { *text = "invalid argument"; return CUDA_SUCCESS; }
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
      const cuuint64_t *dims,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
      CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  print_call("encode %d %d %d: %d %d, %d, %d %d, %d %d, %d %d %d %d\n", (int)type, (int)rank,
      (int)(size_t)address, (int)dims[0], (int)dims[1],
      (int)strides[0], (int)box[0], (int)box[1], (int)steps[0], (int)steps[1], (int)interleave,
      (int)swizzle, (int)promotion, (int)fill);
  if ((size_t)map % 64) return CUDA_ERROR_INVALID_VALUE;
  ((long *)map)[0] = 4242;
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
      const cuuint64_t *dims,
    const cuuint64_t *strides, const int *lower, const int *upper, cuuint32_t channels, cuuint32_t pixels,
      const cuuint32_t *steps,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
      CUtensorMapFloatOOBfill fill) {
  print_call("window %d %d %d: %d %d %d %d, %d, %d %d to %d %d, %d channels %d pixels, %d, %d %d %d %d\n",
      (int)type, (int)rank,
      (int)(size_t)address, (int)dims[0], (int)dims[1], (int)dims[2], (int)dims[3], (int)strides[2],
      lower[0], lower[1], upper[0],
      upper[1], (int)channels, (int)pixels, (int)steps[3], (int)interleave, (int)swizzle, (int)promotion,
      (int)fill);
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **) {
  print_call("launch %s %ux%ux%u %ux%ux%u %u stream %d: %ld %d", (char *)f, c->gridDimX, c->gridDimY,
      c->gridDimZ, c->blockDimX, c->blockDimY,
      c->blockDimZ, c->sharedMemBytes, (int)(size_t)c->hStream, *(long *)parameters[0],
      *(int *)parameters[1]);
  for (unsigned i = 0; i < c->numAttrs; i++) {
    if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      print_call(" cluster %ux%ux%u", c->attrs[i].value.clusterDim.x, c->attrs[i].value.clusterDim.y,
      c->attrs[i].value.clusterDim.z);
    else
      print_call(" attribute %d", (int)c->attrs[i].id);
  }
  print_call("\n");
  return CUDA_SUCCESS;
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
    call = kernel.bind([Tensor(100), Tensor(200), Tensor(300)], stream=77)
    call()
    kernel.close()
except LaunchError as error:
    print(error)
"""


@pytest.fixture
def fake_cuda(tmp_path: Path) -> Path:
    """A folder with a fake libcuda.so.1 and what a launcher is compiled with; needs no CUDA toolkit."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++: apt-get install g++")
    (tmp_path / "driver.cpp").write_text("#include <stdarg.h>\n" + FAKE_DRIVER)
    (tmp_path / "kernel.cubin").write_bytes(b"an image")
    compile_in(tmp_path, ["g++", "-shared", "-fPIC", *header(), "driver.cpp", "-o", "libcuda.so.1"])
    return tmp_path


def header() -> list[str]:
    """TileLang's wheel carries a cuda.h."""
    from tilelang.env import TILELANG_TEMPLATE_PATH

    return ["-D_TILELANG_CUDA_STUB_INCLUDE_GUARD", f"-I{TILELANG_TEMPLATE_PATH}/cuda/stubs/vendor"]


def run_launcher(folder: Path, plan: LaunchPlan, **environment: str) -> tuple[list[str], str]:
    """(the calls of the driver, the output of the caller)."""
    (folder / "launcher.cpp").write_text(cuda_launcher(plan))
    compile_in(
        folder,
        [
            "g++",
            "-O1",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            *header(),
            "launcher.cpp",
            "-ldl",
            "-o",
            "kernel.so",
        ],
    )
    variables = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": ":".join(sys.path), **environment}
    done = subprocess.run(
        [sys.executable, "-c", CALLER], cwd=folder, env=variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    log = folder / "calls"
    return log.read_text().splitlines() if log.exists() else [], done.stdout.strip()


def test_the_launcher_makes_the_calls_of_the_plan(fake_cuda: Path) -> None:
    driver_calls, printed = run_launcher(fake_cuda, PLAN)
    assert printed == ""
    assert driver_calls == [
        "load an image",
        "set first 8 65536",  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        "encode 9 2 200: 512 256, 1024, 64 128, 1 1, 0 3 2 0",
        "launch first 4x8x1 384x1x1 65536 stream 77: 4242 300 cluster 2x1x1 attribute 6",
        "launch second 5x1x1 128x1x1 0 stream 77: 100 7",
        "unload",
    ]


def test_the_launcher_encodes_windows(fake_cuda: Path) -> None:
    box = PixelBox((-1, -2), (3, 4), channels=64, pixels=128)
    image = TensorMap(2, 6, (64, 28, 27, 4), (128, 3584, 96768), box, (1, 2, 2, 1), 0, 3, 2, 0)
    launch = KernelLaunch("f", (Argument("descriptor", 0), Argument("tensor", 1)))
    driver_calls, printed = run_launcher(fake_cuda, LaunchPlan(3, (image,), (launch,)))
    assert printed == ""
    assert (
        "window 6 4 300: 64 28 27 4, 96768, -1 -2 to 3 4, 64 channels 128 pixels, 1, 0 3 2 0" in driver_calls
    )


def test_a_refusal_of_the_driver_is_reported(fake_cuda: Path) -> None:
    launch = KernelLaunch("big", (Argument("tensor", 0), Argument("tensor", 1)), shared_bytes=300_000)
    _, printed = run_launcher(fake_cuda, LaunchPlan(3, (), (launch,)))
    assert printed == "big: invalid argument (CUDA error 1)"


def test_a_device_without_a_context_is_reported(fake_cuda: Path) -> None:
    driver_calls, printed = run_launcher(fake_cuda, PLAN, NO_CONTEXT="1")
    assert "no CUDA context is current" in printed
    assert driver_calls == []


def test_a_machine_without_a_driver_is_reported(fake_cuda: Path) -> None:
    (fake_cuda / "libcuda.so.1").unlink()
    (fake_cuda / "libcuda.so.1").write_text("not a library")
    _, printed = run_launcher(fake_cuda, PLAN)
    assert "there is no CUDA driver" in printed


def test_the_hip_launcher_launches_in_order() -> None:
    launches = tuple(
        KernelLaunch(name, (Argument("tensor", 1), Argument("integer", 3, "int32")), (2, 1, 1), (64, 1, 1))
        for name in ("a", "b")
    )
    text = hip_launcher(LaunchPlan(2, (), launches))
    assert text.index("&a, dim3(2, 1, 1), dim3(64, 1, 1), given, 0") < text.index("&b, dim3")
    assert "int32_t integer_1 = 3;" in text


def test_the_host_launcher_converts_pointers(tmp_path: Path) -> None:
    source = """
        extern "C" int add(const float *x, float *y, int n) {
          for (int i = 0; i < n; i++) y[i] += x[i];
          return 0;
        }
        extern "C" int refuse(float *) { return 3; }
    """
    add = KernelLaunch("add", (Argument("tensor", 0), Argument("tensor", 1), Argument("integer", 4, "int32")))
    for name, launches in (
        ("add", (add, add)),
        ("refuse", (KernelLaunch("refuse", (Argument("tensor", 0),)),)),
    ):
        (tmp_path / f"{name}.cpp").write_text(
            textwrap.dedent(source) + host_launcher(LaunchPlan(2, (), launches))
        )
        compile_in(tmp_path, ["g++", "-shared", "-fPIC", f"{name}.cpp", "-o", f"{name}.so"])
    import torch

    x, y = torch.ones(4), torch.zeros(4)
    LoadedKernel(str(tmp_path / "add.so"), "tilesight_call").bind([x, y])()
    assert y.tolist() == [2.0] * 4
    with pytest.raises(LaunchError, match="error code"):
        LoadedKernel(str(tmp_path / "refuse.so"), "tilesight_call").bind([x, y])()


# loading


def test_a_kernel_checks_its_arguments(tmp_path: Path) -> None:
    import torch

    artifact = build_kernel(scale(), tmp_path).artifact
    assert artifact is not None
    kernel = LoadedKernel(artifact, "tilesight_call")
    x = torch.ones(4096)
    with pytest.raises(ValueError, match="takes 2 tensors"):
        kernel.bind([x])
    with pytest.raises(ValueError, match="contiguous"):
        kernel.bind([x, torch.ones(4096, 2)[:, 0]])
    y = torch.zeros(4096)
    kernel.bind([x, y])()
    assert y.sum().item() == 3 * 4096
    kernel.close()


@pytest.mark.parametrize("content", [b"not a library", b""])
def test_a_damaged_artifact_is_a_launch_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kernel.so").write_bytes(content)
    with pytest.raises(LaunchError, match=r"kernel\.so"):
        LoadedKernel(str(tmp_path / "kernel.so"), "tilesight_call")
    with pytest.raises(LaunchError):
        LoadedKernel(str(tmp_path / "absent.so"), "tilesight_call")


# output of compilers


def test_ptxas_output_is_read() -> None:
    text = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    32 bytes stack frame, 24 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem
ptxas info    : (C7510) Performance Loss: wgmma.mma_async instructions are serialized in function 'a'
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""
    found = cuda_resources(text, PLAN)
    assert found == {
        "registers": 168,
        "spill_bytes": 40,
        "stack_bytes": 32,
        "smem_bytes": 65536 + 1024,
        "wgmma_serialized": 1,
    }


def test_clang_remarks_are_read() -> None:
    text = """kernel.cpp:3:0: remark: Function Name: main_kernel [-Rpass-analysis=kernel-resource-usage]
kernel.cpp:3:0: remark:     TotalSGPRs: 22 [-Rpass-analysis=kernel-resource-usage]
kernel.cpp:3:0: remark:     VGPRs: 100 [-Rpass-analysis=kernel-resource-usage]
kernel.cpp:3:0: remark:     AGPRs: 28 [-Rpass-analysis=kernel-resource-usage]
kernel.cpp:3:0: remark:     ScratchSize [bytes/lane]: 16 [-Rpass-analysis=kernel-resource-usage]
kernel.cpp:3:0: remark:     Occupancy [waves/SIMD]: 4 [-Rpass-analysis=kernel-resource-usage]
kernel.cpp:3:0: remark:     SGPRs Spill: 0 [-Rpass-analysis=kernel-resource-usage]
kernel.cpp:3:0: remark:     VGPRs Spill: 4 [-Rpass-analysis=kernel-resource-usage]
kernel.cpp:3:0: remark:     LDS Size [bytes/block]: 256 [-Rpass-analysis=kernel-resource-usage]
"""
    launch = KernelLaunch("main_kernel", (), shared_bytes=16384)
    found = hip_resources(text, LaunchPlan(3, (), (launch,)))
    assert found == {"registers": 128, "spill_bytes": 16, "smem_bytes": 16640, "waves_per_simd": 4}


def test_the_line_with_the_error_is_found() -> None:
    expected = "kernel.cu(20): error: identifier 'f' is undefined"
    assert first_error(f"note: x\n{expected}\nerror: second") == expected
    assert (
        first_error("x.o: in function f:\nundefined reference to `g'\ncollect2: error: ld failed")
        == "undefined reference to `g'"
    )
    assert first_error("Segmentation fault\n") == "Segmentation fault"
    assert first_error("") == "no output"


def test_a_killed_compiler_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="killed by signal 9"):
        compile_in(tmp_path, ["sh", "-c", "kill -9 $$"])
    with pytest.raises(CompileError, match="exit code 127"):
        compile_in(tmp_path, ["no-such-compiler"])


# the cache


def entry_files(folder: Path) -> list[Path]:
    files = [folder / "kernel.so", folder / "kernel.cpp"]
    for file in files:
        file.write_text("content")
    return files


def test_a_stored_entry_is_found(tmp_path: Path) -> None:
    cache, key = KernelCache(tmp_path), cache_key("source", "flags")
    assert cache.find(key) is None
    with cache.building(key) as folder:
        stored = cache.store(key, entry_files(folder), {"registers": 3}, "g++ 12")
    assert not folder.exists()
    assert cache.find(key) == stored
    assert stored.library.read_text() == "content"


def test_the_parts_of_a_key_are_separated() -> None:
    assert cache_key("ab", "c") != cache_key("a", "bc")


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"resources": {"registers": "x"}, "compiler": "", "binary": ""}',
        '{"resources": 3, "binary": ""}',
    ],
)
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    cache, key = KernelCache(tmp_path), cache_key("source")
    with cache.building(key) as folder:
        cache.store(key, entry_files(folder), {}, "g++")
    (cache.folder / f"{key}.json").write_text(damage)
    assert cache.find(key) is None


def test_an_entry_without_its_library_is_built_again(tmp_path: Path) -> None:
    cache, key = KernelCache(tmp_path), cache_key("source")
    with cache.building(key) as folder:
        cache.store(key, entry_files(folder), {}, "g++").library.unlink()
    assert cache.find(key) is None


def test_folders_of_killed_builds_are_removed(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    old, young = (cache.folder / name for name in ("building-old", "building-young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
    subprocess.run(["touch", "-d", "2 days ago", str(old)], check=True)
    dead, ours = (cache.folder / name for name in ("building-dead", "building-ours"))
    host, pid, _ = this_process().rsplit("|", 2)
    for folder, owner in ((dead, f"{host}|{pid}|1"), (ours, this_process())):
        folder.mkdir()
        (folder / "owner").write_text(owner)
    with cache.building(cache_key("source")):
        assert [folder.exists() for folder in (old, young, dead, ours)] == [False, True, False, True]


@pytest.mark.full
def test_several_processes_compile_equal_sources_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, log = tmp_path / "counting-g++", tmp_path / "log"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *kernel.cpp*) echo built >> {log}; sleep 0.3;; esac\nexec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with WorkerPool(2, timeout_s=120, preload=preload_compiler) as pool:
        outcomes = [
            outcome for _, outcome in pool.run(partial(build_kernel, cache_dir=tmp_path), [scale(), scale()])
        ]
    results = [outcome.value for outcome in outcomes if isinstance(outcome, Done)]
    assert len(results) == 2
    assert results[0].artifact
    assert results[0].artifact == results[1].artifact
    assert log.read_text() == "built\n"


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(KernelCache, "store", full)
    failure = build_kernel(scale(), tmp_path).failure
    assert failure is not None
    assert failure.message.startswith(f"no space left for the kernel cache '{tmp_path}'")
    assert list(tmp_path.rglob("building-*")) == []


def test_a_compiler_without_disk_space_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "full-g++"
    text = "fatal error: error writing to /tmp/x.s: No space left on device"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) echo "g++ 12"; exit 0;; esac\necho "{text}"\nexit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    failure = build_kernel(scale(), tmp_path / "cache").failure
    assert failure is not None
    assert failure.message.startswith("no space left for the kernel cache")


def test_the_metadata_of_an_entry_is_json(tmp_path: Path) -> None:
    artifact = build_kernel(scale(), tmp_path).artifact
    assert artifact is not None
    assert set(json.loads(Path(artifact).with_suffix(".json").read_text())) == {
        "resources",
        "compiler",
        "binary",
        "sha256",
    }


@pytest.mark.parametrize("size", [0, *(pytest.param(size, marks=pytest.mark.full) for size in (100, 4096))])
def test_a_truncated_library_is_built_again(tmp_path: Path, size: int) -> None:
    """Loading it would end the process by a bus error."""
    first = build_kernel(scale(), tmp_path)
    assert first.artifact is not None
    whole = Path(first.artifact).stat().st_size
    assert whole > 4096
    with Path(first.artifact).open("r+b") as library:
        library.truncate(size)
    again = build_kernel(scale(), tmp_path)
    assert again.artifact == first.artifact
    assert Path(first.artifact).stat().st_size == whole


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_changed_library_is_built_again(at: int, tmp_path: Path) -> None:
    first = build_kernel(scale(), tmp_path)
    assert first.artifact is not None
    library = Path(first.artifact)
    whole = library.read_bytes()
    changed = bytearray(whole)
    changed[at] ^= 1
    library.write_bytes(changed)
    assert build_kernel(scale(), tmp_path).artifact == first.artifact
    assert library.read_bytes() == whole


def test_a_cache_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_kernel(scale(), tmp_path).failure is None
    (tmp_path / "kernels").chmod(0o777)
    with pytest.raises(ToolchainError, match=r"kernels' can be written by all users, .* chmod -R o-w"):
        build_kernel(scale(), tmp_path)
    (tmp_path / "kernels").chmod(0o755)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    if tmp_path.stat().st_uid:  # root's folders are everybody's
        with pytest.raises(ToolchainError, match="belongs to another user"):
            check_folder(tmp_path)


def test_an_entry_without_a_binary_identity_is_built_again(tmp_path: Path) -> None:
    first = build_kernel(scale(), tmp_path)
    assert first.artifact is not None
    note = Path(first.artifact).with_suffix(".json")
    metadata = json.loads(note.read_text())
    del metadata["binary"]  # as older versions wrote it
    note.write_text(json.dumps(metadata))
    again = build_kernel(scale(), tmp_path)
    assert again.binary == first.binary
    assert json.loads(note.read_text())["binary"] == first.binary


@pytest.mark.parametrize(
    "how", ["kill -9 $$", "echo 'nvcc error: cudafe++ died due to signal 9 (Kill signal)'; exit 1"]
)
def test_a_killed_compiler_is_no_fault_of_the_source(tmp_path: Path, how: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_in(tmp_path, ["sh", "-c", how])
    assert caught.value.is_killed
    with pytest.raises(CompileError) as refused:
        compile_in(tmp_path, ["sh", "-c", "echo 'error: no such thing'; exit 1"])
    assert not refused.value.is_killed
