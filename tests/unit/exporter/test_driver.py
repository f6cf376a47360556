"""What an export of GPU kernels asks of the driver: our own launcher's launches; nothing if it is wrong."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.exports import WARNINGS, compile_program, compiler, run_program
from tests.unit.exporter.conftest import GPU_SEGMENTS, Sample
from tests.unit.exporter.test_c import link_flags

A, B, C, WORKSPACE, STREAM = 0x700000000000, 0x700100000000, 0x700200000000, 0x700300000000, 0x77
SIZES = [1, 64, 65, 77, 300, 301, 400, 401, 4096]

# DEVICE SIZE ...: calls each size on the device, in a thread that has no context
PROGRAM = r"""
#include "product.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int device, count;
static char **sizes;

static void *calls(void *unused) {
  (void)unused;
  product_args args = {.device = device, .workspace = (void *)WORKSPACE};
  args.A = (void *)ADDRESS_A, args.B = (void *)ADDRESS_B, args.C = (void *)ADDRESS_C;
  for (int i = 0; i < count; i++) {
    args.m = atoll(sizes[i]);
    args.workspace_bytes = product_workspace(args.m);
    const int status = product_call(&args, (void *)STREAM);
    if (status) printf("%d %s\n", status, product_error());
  }
  return NULL;
}

int main(int given, char **words) {
  device = atoi(words[1]), sizes = words + 2, count = given - 2;
  const int status = product_init(device);
  if (status) return printf("%d %s\n", status, product_error()), 0;
  pthread_t thread;
  return pthread_create(&thread, NULL, calls, NULL) || pthread_join(thread, NULL);
}
"""
DEFINED = {"ADDRESS_A": A, "ADDRESS_B": B, "ADDRESS_C": C, "WORKSPACE": WORKSPACE, "STREAM": STREAM}

# the same calls by TileSight's own launcher, in a process whose context it is
OWN = """
import ctypes, json, struct, sys
from tilesight.builder.loaded_kernel import LoadedKernel

driver = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
context = ctypes.c_void_p()
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxPushCurrent_v2(context)
libraries, calls, stream = json.loads(sys.argv[1])
kernels = [LoadedKernel(library, "tilesight_call") for library in libraries]
for kernel, size, addresses in calls:
    assert kernels[kernel].arity == len(addresses)
    packed = struct.pack(f"={len(addresses)}Qq", *addresses, size)
    kernels[kernel].check(kernels[kernel].launch(packed, stream))
"""


@pytest.fixture(scope="module")
def program(gpu_sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.c").write_text(PROGRAM, encoding="utf-8")
    defined = [f"-D{name}={value}" for name, value in DEFINED.items()]
    flags = ["-std=c11", *WARNINGS, *defined, "-pthread", "program.c", *link_flags(gpu_sample.folder)]
    compile_program([compiler("gcc"), *flags, "-o", "program"], folder)
    return folder / "program"


def log(environment: Mapping[str, str], event: str = "launch") -> list[str]:
    path = Path(environment["STUB_LOG"])
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if line.startswith(event)]


def kernel_of(size: int) -> int:
    return next(kernel for first, last, kernel in GPU_SEGMENTS if first <= size <= last)


def test_launches_are_those_of_our_own_launcher(
    program: Path, gpu_sample: Sample, stub_environment: dict[str, str], tmp_path: Path
) -> None:
    assert run_program([program, "0", *map(str, SIZES)], stub_environment) == ""
    found = log(stub_environment)
    own_environment = {**stub_environment, "STUB_LOG": str(tmp_path / "own")}
    addresses = [[A, B, C], [A, B, C, WORKSPACE]]
    calls = [(kernel_of(size), size, addresses[kernel_of(size)]) for size in SIZES]
    given = json.dumps([[str(library) for library in gpu_sample.libraries], calls, STREAM])
    root = Path(__file__).resolve().parents[3]
    run_program([sys.executable, "-c", OWN, given], {**own_environment, "PYTHONPATH": str(root)})
    assert found == log(own_environment)
    # a size of the second kernel makes two launches; each has its parameters
    assert len(found) == sum(1 + kernel_of(size) for size in SIZES)
    assert all(len(line.split()) >= 10 and hex(STREAM) in line for line in found)


def test_every_device_has_its_own_module(program: Path, stub_environment: dict[str, str]) -> None:
    script = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
class Args(ctypes.Structure):
    _fields_ = [("device", ctypes.c_int), ("m", ctypes.c_int64),
                *((name, ctypes.c_void_p) for name in "ABCW"), ("bytes", ctypes.c_size_t)]
for device in (1, 0, 1, 2):
    assert library.product_init(device) == 0
for device in (0, 2, 1):
    args = Args(device, 80, 0x700000000000, 0x700100000000, 0x700200000000)
    assert library.product_call(ctypes.byref(args), None) == 0
"""
    environment = {**stub_environment, "STUB_DEVICES": "3"}
    run_program([sys.executable, "-c", script, export_library(program)], environment)
    assert [line.split()[1] for line in log(environment)] == ["0", "2", "1"]
    assert [line.split()[1] for line in log(environment, "retain")] == ["1", "0", "2"]


THREADS = r"""
#include "product.h"
#include <pthread.h>
#include <stdio.h>

static void *work(void *device) {
  product_args args = {.device = *(int *)device, .workspace = (void *)WORKSPACE};
  args.A = (void *)ADDRESS_A, args.B = (void *)ADDRESS_B, args.C = (void *)ADDRESS_C;
  if (product_init(args.device)) return printf("%s\n", product_error()), NULL;
  for (args.m = 1; args.m <= 4096; args.m += 41) {
    args.workspace_bytes = product_workspace(args.m);
    if (product_call(&args, NULL)) printf("%s\n", product_error());
  }
  return NULL;
}

int main(void) {
  pthread_t threads[9];
  int devices[9];
  for (int i = 0; i < 9; i++) devices[i] = i % 3, pthread_create(threads + i, NULL, work, devices + i);
  for (int i = 0; i < 9; i++) pthread_join(threads[i], NULL);
  return 0;
}
"""


def test_threads_initialise_and_call_several_devices_at_once(
    gpu_sample: Sample, stub_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "threads.c").write_text(THREADS, encoding="utf-8")
    defined = [f"-D{name}={value}" for name, value in DEFINED.items()]
    flags = ["-std=c11", *WARNINGS, *defined, "-pthread", "threads.c", *link_flags(gpu_sample.folder)]
    compile_program([compiler("gcc"), *flags, "-o", "threads"], tmp_path)
    environment = {**stub_environment, "STUB_DEVICES": "3"}
    assert run_program([tmp_path / "threads"], environment) == ""
    sizes = range(1, 4097, 41)
    launches = sum(1 + kernel_of(size) for size in sizes)
    found = [line.split()[1] for line in log(environment)]
    assert {device: found.count(device) for device in set(found)} == dict.fromkeys("012", 3 * launches)
    assert sorted(log(environment, "retain")) == ["retain 0", "retain 1", "retain 2"]


def export_library(program: Path) -> Path:
    """The library of the export that a program is linked with."""
    found = run_program([compiler("ldd"), program])
    return Path(found.partition("libproduct.so => ")[2].split()[0])


@pytest.mark.parametrize(
    ("settings", "device", "message"),
    [
        (
            {"STUB_CARD": "NVIDIA H100 80GB HBM3"},
            "0",
            "'NVIDIA H100 80GB HBM3', and these kernels were chosen for",
        ),
        (
            {"STUB_CAPABILITY": "80", "STUB_CARD": "NVIDIA A100"},
            "0",
            "'NVIDIA A100' of compute capability 8.0, and",
        ),
        ({"STUB_CAPABILITY": "120"}, "0", "compute capability 12.0, and the kernels are for sm_90a"),
        ({"STUB_VERSION": "11040"}, "0", "the driver supports CUDA 11.4 and the kernels need CUDA"),
        ({"STUB_DEVICES": "1"}, "1", "there is no device 1: the driver shows 1"),
        ({"STUB_DEVICES": "0"}, "0", "there is no device 0: the driver shows 0"),
        ({"STUB_FAILS": "cuModuleLoadData"}, "0", "loading the kernel: invalid argument (CUDA error 1)"),
        ({"STUB_FAILS": "cuLaunchKernelEx"}, "0", "matmul_kernel: invalid argument (CUDA error 1)"),
        ({"LD_LIBRARY_PATH": "/nowhere"}, "0", "there is no CUDA driver"),
    ],
)
def test_wrong_drivers_and_devices_are_refused(
    settings: dict[str, str], device: str, message: str, program: Path, stub_environment: dict[str, str]
) -> None:
    if "LD_LIBRARY_PATH" in settings and has_driver():
        pytest.skip("there is a driver")
    environment = stub_environment | settings
    found = run_program([program, device, "77"], environment)
    assert message in found
    assert found.count("\n") == 1
    assert log(environment) == []
    if settings.get("STUB_FAILS") == "cuModuleLoadData":
        assert log(environment, "release") == ["release 0"]


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


CALLS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.product_error.restype = ctypes.c_char_p
library.product_workspace.restype = ctypes.c_size_t
class Args(ctypes.Structure):
    _fields_ = [("device", ctypes.c_int), ("m", ctypes.c_int64),
                *((name, ctypes.c_void_p) for name in "ABCW"), ("bytes", ctypes.c_size_t)]
addresses = dict(A=0x700000000000, B=0x700100000000, C=0x700200000000, W=0x700300000000)
right = dict(device=0, m=7, **addresses, bytes=1 << 20)
assert library.product_init(0) == 0
for wrong in (dict(A=0x700000000008), dict(C=0x700200000001), dict(B=None), dict(C=16),
              dict(C=0x700000000000), dict(C=0x700000000000 + 7 * 2048 - 16), dict(m=0), dict(m=4097),
              dict(device=1), dict(device=-1), dict(W=None), dict(W=0x700300000004),
              dict(bytes=library.product_workspace(7) - 1)):
    status = library.product_call(ctypes.byref(Args(**{**right, **wrong})), None)
    print(status, library.product_error().decode())
assert library.product_workspace(7) == 2 * 16 * 256 * 4, library.product_workspace(7)
assert library.product_workspace(65) == 0 and library.product_workspace(5000) == 0
assert library.product_call(ctypes.byref(Args(**right)), None) == 0
assert library.product_call(ctypes.byref(Args(**{**right, "m": 65, "W": None, "bytes": 0})), None) == 0
"""


def test_wrong_calls_are_refused_before_any_launch(program: Path, stub_environment: dict[str, str]) -> None:
    found = run_program([sys.executable, "-c", CALLS, export_library(program)], stub_environment)
    vectors = "off a multiple of 16, where kernels read whole vectors"
    assert found.splitlines() == [
        f"-1 product: A starts 8 bytes {vectors}",
        f"-1 product: C starts 1 bytes {vectors}",
        "-1 product: B is a null pointer",
        "-1 product: C is no address",
        "-1 product: C shares memory with A, which the kernel uses meanwhile",
        "-1 product: C shares memory with A, which the kernel uses meanwhile",
        "-1 product: m=0 is outside of the plan, which covers m = 1 .. 4096",
        "-1 product: m=4097 is outside of the plan, which covers m = 1 .. 4096",
        "-1 product: device 1 is not initialised: call product_init(1) first",
        "-1 product: device -1 is not initialised: call product_init(-1) first",
        "-1 product: workspace is a null pointer",
        f"-1 product: workspace starts 4 bytes {vectors}",
        "-1 product: workspace has 32767 bytes and needs 32768, see product_workspace",
    ]
    assert len(log(stub_environment)) == 3


@pytest.mark.parametrize("fault", ["missing", "altered", "truncated", "of another export"])
def test_missing_and_altered_libraries_are_refused_by_name(
    fault: str, gpu_sample: Sample, stub_environment: dict[str, str], tmp_path: Path
) -> None:
    copied = tmp_path / "copied"
    subprocess.run(["cp", "-r", gpu_sample.folder, copied], check=True)
    victim = copied / "kernels" / "product_1.so"
    content = victim.read_bytes()
    if fault == "missing":
        victim.unlink()
    elif fault == "altered":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif fault == "truncated":
        victim.write_bytes(content[: len(content) // 2])
    else:
        victim.write_bytes((copied / "kernels" / "product_0.so").read_bytes())
    script = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1])\n"
        "library.product_error.restype = ctypes.c_char_p\n"
        "print(library.product_init(0), library.product_error().decode())"
    )
    found = run_program([sys.executable, "-c", script, copied / "libproduct.so"], stub_environment)
    reason = "cannot be read: No such file" if fault == "missing" else "was altered since it was exported"
    assert found.startswith(f"-1 product: '{victim}' {reason}")
    assert log(stub_environment, "unload") == ["unload 0"]  # of the first kernel
    assert log(stub_environment, "release") == ["release 0"]
