"""The C library of an export: what programs need of it, what it chooses, what it refuses."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.exports import WARNINGS, compile_program, compiler, run_program
from tests.unit.exporter.conftest import CPU_SEGMENTS, GPU_SEGMENTS, Sample

# computes products of ones, prints what is refused
C_PROGRAM = r"""
#include "product.h"
#include <stdio.h>
#include <stdlib.h>

static void refused(const char *what, int status) { printf("%s: %d %s\n", what, status, product_error()); }

int main(void) {
  const int64_t n = 48, k = 32;
  float *A = calloc(200 * 32, 4), *B = calloc(32 * 48, 4), *C = calloc(200 * 48, 4);
  if (!A || !B || !C) return 1;
  for (int64_t i = 0; i < 200 * k; i++) A[i] = (float)(i % 7);
  for (int64_t i = 0; i < k * n; i++) B[i] = (float)(i % 5);
  product_args args = {.device = 0, .m = 5, .A = A, .B = B, .C = C};
  refused("not ready", product_call(&args, NULL));
  refused("device 1", product_init(1));
  refused("device -1", product_init(-1));
  if (product_init(0) || product_init(0)) return 2;
  const int64_t sizes[] = {1, 16, 17, 41, 100};
  for (int one = 0; one < 5; one++) {
    args.m = sizes[one];
    if (product_call(&args, NULL)) return 3;
    for (int64_t row = 0; row < args.m; row++)
      for (int64_t column = 0; column < n; column++) {
        float wanted = 0;
        for (int64_t i = 0; i < k; i++) wanted += A[row * k + i] * B[i * n + column];
        if (C[row * n + column] != wanted) return 4;
      }
  }
  printf("right\n");
  refused("null", product_call(NULL, NULL));
  args.m = 0;
  refused("m=0", product_call(&args, NULL));
  args.m = 101;
  refused("m=101", product_call(&args, NULL));
  args.m = 7, args.A = NULL;
  refused("no A", product_call(&args, NULL));
  args.A = A, args.C = (void *)16;
  refused("bad C", product_call(&args, NULL));
  args.C = A + 7 * 32 - 1;
  refused("overlap", product_call(&args, NULL));
  args.C = C, args.device = 64;
  refused("device 64", product_call(&args, NULL));
  free(A), free(B), free(C);
  return 0;
}
"""

CPP_PROGRAM = r"""
#include "product.h"
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

int main() {
  std::vector<std::thread> threads;
  std::vector<int> status(8, -1);
  for (std::size_t i = 0; i < status.size(); i++)
    threads.emplace_back([i, &status] {
      std::vector<float> a(32 * 50, 1.0F), b(32 * 48, static_cast<float>(i)), c(48 * 50);
      product_args args{};
      args.A = a.data(), args.B = b.data(), args.C = c.data();
      status[i] = product_init(0);
      for (args.m = 1; args.m <= 50 && status[i] == 0; args.m++) {
        status[i] = product_call(&args, nullptr);
        for (float value : std::vector<float>(c.begin(), c.begin() + 48 * args.m))
          if (value != 32.0F * static_cast<float>(i)) status[i] = 1;
      }
      args.m = 1000 + static_cast<int64_t>(i);
      if (product_call(&args, nullptr) != -1) status[i] = 2;
      const std::string text = product_error(), wanted = "m=" + std::to_string(args.m);
      if (text.find(wanted) == std::string::npos) status[i] = 3;
    });
  for (auto &one : threads) one.join();
  for (int one : status) std::printf("%d", one);
}
"""

RUST_PROGRAM = r"""
#![deny(warnings)]
mod product;

fn main() {
    let (a, b) = (vec![2f32; 9 * 32], vec![3f32; 32 * 48]);
    let mut c = vec![0f32; 9 * 48];
    let args = product::product_args {
        device: 0, m: 9, A: a.as_ptr().cast(), B: b.as_ptr().cast(), C: c.as_mut_ptr().cast(),
    };
    unsafe {
        assert_eq!(product::product_init(0), 0);
        assert_eq!(product::product_call(&args, core::ptr::null_mut()), 0);
        assert_eq!(product::product_select(41), 0);
        assert_eq!(product::product_workspace(41), 0);
        let wrong = product::product_args { m: 0, ..args };
        assert_eq!(product::product_call(&wrong, core::ptr::null_mut()), -1);
        let text = std::ffi::CStr::from_ptr(product::product_error());
        println!("{} {}", c.iter().all(|value| *value == 192.0), text.to_str().unwrap());
    }
}
"""


def link_flags(folder: Path) -> list[str]:
    return [f"-I{folder}", f"-L{folder}", "-lproduct", f"-Wl,-rpath,{folder}"]


def test_a_program_in_c_computes_and_is_told_what_it_does_wrong(cpu_sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(C_PROGRAM, encoding="utf-8")
    flags = ["-std=c11", *WARNINGS, "program.c", *link_flags(cpu_sample.folder)]
    compile_program([compiler("gcc"), *flags, "-o", "program"], tmp_path)
    assert run_program([tmp_path / "program"]).splitlines() == [
        "not ready: -1 product: device 0 is not initialised: call product_init(0) first",
        "device 1: -1 product: device 1: the kernels run on the processor, which is device 0",
        "device -1: -1 product: device -1: a device is 0 .. 63",
        "right",
        "null: -1 product: args is a null pointer",
        "m=0: -1 product: m=0 is outside of the plan, which covers m = 1 .. 100",
        "m=101: -1 product: m=101 is outside of the plan, which covers m = 1 .. 100",
        "no A: -1 product: A is a null pointer",
        "bad C: -1 product: C is no address",
        "overlap: -1 product: C shares memory with A, which the kernel uses meanwhile",
        "device 64: -1 product: device 64 is not initialised: call product_init(64) first",
    ]


def test_threads_of_a_program_in_cpp_compute_at_once(cpu_sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(CPP_PROGRAM, encoding="utf-8")
    flags = ["-std=c++17", *WARNINGS, "-pthread", "program.cpp", *link_flags(cpu_sample.folder)]
    compile_program([compiler("g++"), *flags, "-o", "program"], tmp_path)
    assert run_program([tmp_path / "program"]) == "0" * 8


def test_a_program_in_rust(cpu_sample: Sample, tmp_path: Path) -> None:
    rustc = compiler("rustc")
    shutil.copy(cpu_sample.folder / "product.rs", tmp_path)
    (tmp_path / "program.rs").write_text(RUST_PROGRAM, encoding="utf-8")
    libraries = ["-L", cpu_sample.folder, "-l", "product", "-C", f"link-arg=-Wl,-rpath,{cpu_sample.folder}"]
    compile_program([rustc, "--edition=2021", "program.rs", *libraries], tmp_path)
    found = run_program([tmp_path / "program"])
    assert found == "true product: m=0 is outside of the plan, which covers m = 1 .. 100\n"


def test_a_program_with_cmake(cpu_sample: Sample, tmp_path: Path) -> None:
    cmake = compiler("cmake")
    (tmp_path / "program.c").write_text(C_PROGRAM, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(program LANGUAGES C)\n"
        f'add_subdirectory("{cpu_sample.folder}" product)\n'
        "add_executable(program program.c)\ntarget_link_libraries(program PRIVATE product)\n",
        encoding="utf-8",
    )
    for step in ((cmake, "-S", ".", "-B", "made"), (cmake, "--build", "made")):
        done = subprocess.run(step, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "right" in run_program([tmp_path / "made" / "program"])


@pytest.mark.parametrize("sample", ["cpu_sample", "gpu_sample"])
def test_every_symbol_resolves_with_the_c_library_alone(sample: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(sample).folder
    for library in (folder / "libproduct.so", *sorted((folder / "kernels").iterdir())):
        needed = run_program([compiler("readelf"), "-d", library])
        names = {line.split("[")[1].split("]")[0] for line in needed.splitlines() if "(NEEDED)" in line}
        assert {name.split(".")[0] for name in names} <= {
            "libc",
            "libm",
            "ld-linux-x86-64",
            "libdl",
            "libpthread",
        }
        ctypes.CDLL(str(library), mode=2)  # RTLD_NOW: all symbols are looked up


@pytest.mark.parametrize("sample", ["cpu_sample", "gpu_sample"])
def test_the_selector_is_the_table_at_every_size(sample: str, request: pytest.FixtureRequest) -> None:
    made: Sample = request.getfixturevalue(sample)
    library = ctypes.CDLL(str(made.folder / "libproduct.so"))
    library.product_select.argtypes = [ctypes.c_int64]
    table = made.table
    for size in range(table.first, table.last + 1):
        assert library.product_select(size) == table.choose(size).segment.kernel, size
    for size in (table.first - 1, table.last + 1, -5, 2**40, -(2**63), 2**63 - 1):
        assert library.product_select(size) == -1
    assert [s[2] for s in (CPU_SEGMENTS if sample == "cpu_sample" else GPU_SEGMENTS)] == [
        library.product_select(s.first) for s in table.segments
    ]


def test_the_source_is_the_librarys_and_compiles_without_warnings(gpu_sample: Sample, tmp_path: Path) -> None:
    shutil.copytree(gpu_sample.folder, tmp_path / "made")
    library = tmp_path / "made" / "libproduct.so"
    library.unlink()
    flags = ["-std=c11", "-O2", *WARNINGS, "-Wconversion", "-Wshadow", "-fPIC", "-shared", "product.c"]
    compile_program([compiler("gcc"), *flags, "-o", library, "-ldl", "-lpthread"], tmp_path / "made")
    exported = run_program([compiler("nm"), "-D", "--defined-only", library]).split()[2::3]
    assert {"product_init", "product_call", "product_select", "product_workspace", "product_error"} <= set(
        exported
    )
