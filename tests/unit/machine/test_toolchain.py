"""Compilers and packages: found ones, missing ones, and the messages about them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilesight.machine import toolchain
from tilesight.machine.devices import Device
from tilesight.machine.toolchain import (
    compiler_version,
    find_cxx,
    find_hipcc,
    find_nvcc,
    missing_compiler,
    parse_version,
    report,
    software_versions,
)
from tilesight.settings import Settings, load_settings
from tilesight.target.spec import load_target


def settings(**values: object) -> Settings:
    return Settings("sqlite://", Path("/nowhere"), 1, **values)  # type: ignore[arg-type]


def tool(folder: Path, name: str, output: str, exit_code: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {exit_code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with nothing on PATH but `cat`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "ROCM_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


NVCC = (
    "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"
    "Build cuda_13.0.r13.0/compiler.36424714_0"
)


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("nvcc", NVCC, "nvcc 13.0.88"),
        (
            "g++",
            "g++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022",
            "g++ (Debian 12.2.0-14+deb12u1) 12.2.0",
        ),
        ("clang++", "Debian clang version 19.1.7\nTarget: x86_64", "clang++ (Debian clang version 19.1.7)"),
        (
            "hipcc",
            "HIP version: 6.4.43482-0f2d60242\nAMD clang version 19.0.0git",
            "hipcc 6.4.43482-0f2d60242",
        ),
    ],
)
def test_versions_are_read(name: str, text: str, version: str) -> None:
    assert parse_version(name, text) == version


@pytest.mark.usefixtures("bare")
def test_without_cxx_the_message_has_a_hint() -> None:
    message = missing_compiler(load_target("cpu"))
    assert message is not None
    assert "apt-get install g++" in message


@pytest.mark.usefixtures("bare")
def test_without_nvcc_the_message_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_cuda_home", lambda *_: None)
    message = missing_compiler(load_target("h100"))
    assert message is not None
    assert "nvidia-cuda-nvcc" in message


def test_nvcc_needs_a_host_compiler(bare: Path, tmp_path: Path) -> None:
    tool(tmp_path / "cuda" / "bin", "nvcc", NVCC)
    message = missing_compiler(load_target("h100"), settings(cuda_home=tmp_path / "cuda"))
    assert message is not None
    assert "apt-get install g++" in message
    tool(bare, "g++", "g++ (Debian) 12.2.0")
    assert missing_compiler(load_target("h100"), settings(cuda_home=tmp_path / "cuda")) is None


def test_a_compiler_that_the_environment_names_wrongly(bare: Path) -> None:
    tool(bare, "g++", "g++ 12")
    message = missing_compiler(load_target("cpu"), settings(cxx="g++-99"))
    assert message is not None
    assert "'g++-99', which the environment names" in message


def test_a_compiler_that_does_not_run(bare: Path) -> None:
    tool(bare, "g++", "", exit_code=127)
    message = missing_compiler(load_target("cpu"))
    assert message is not None
    assert "does not run" in message


def test_the_environment_names_compilers() -> None:
    found = load_settings(
        {"CUDA_PATH": "/opt/cuda", "ROCM_HOME": "/opt/rocm-6.4", "CXX": "clang++", "HOME": "/root"}
    )
    assert (found.cuda_home, found.rocm_home, found.cxx) == (
        Path("/opt/cuda"),
        Path("/opt/rocm-6.4"),
        "clang++",
    )
    assert load_settings({"HOME": "/root"}).cuda_home is None


def test_compilers_on_the_path(bare: Path) -> None:
    clang = tool(bare, "clang++", "clang version 19")
    assert find_cxx() == clang
    gcc = tool(bare, "g++", "g++ 12")
    assert find_cxx() == gcc
    hipcc = tool(bare, "hipcc", "HIP version: 6.4.1")
    assert find_hipcc() == hipcc
    nvcc = tool(bare, "nvcc", NVCC)
    assert find_nvcc() == nvcc


def test_a_toolkit_behind_a_link_is_found_with_its_headers(bare: Path, tmp_path: Path) -> None:
    real = tool(tmp_path / "cuda-13" / "bin", "nvcc", NVCC)
    (bare / "nvcc").symlink_to(real)
    assert find_nvcc() == real


@pytest.mark.full
def test_tilelang_takes_the_same_toolkit() -> None:
    """TileSight searches without importing TileLang; both must find the same toolkit, or wrong versions are
    recorded.
    """
    ours = toolchain.find_cuda_home()
    code = "from tilesight.settings import load_settings; import tilelang.env; print(tilelang.env.CUDA_HOME)"
    theirs = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout.splitlines()[-1]
    assert (str(ours) if ours else "") == theirs


def test_software_versions() -> None:
    device = Device("NVIDIA H200", "GPU-1", "580.159.03", "cuda", 0, 1)
    on_gpu = software_versions(load_target("h200"), device)
    assert on_gpu["driver"] == "580.159.03"
    assert on_gpu["tilelang"]
    assert "c++" not in on_gpu
    on_cpu = software_versions(load_target("cpu"))
    assert set(on_cpu) == {"tilesight-build", "tilelang", "torch", "c++"}
    assert all(on_cpu.values())


@pytest.mark.usefixtures("bare")
def test_a_missing_compiler_is_left_out_of_the_versions() -> None:
    assert "c++" not in software_versions(load_target("cpu"))


def test_versions_cost_no_import() -> None:
    code = (
        "import sys; from tilesight.target.spec import load_target;"
        "from tilesight.machine.toolchain import *;"
        "software_versions(load_target('cpu')); report();"
        "print({'torch', 'tilelang', 'tvm'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        == "set()\n"
    )


@pytest.mark.usefixtures("bare")
def test_the_report_has_hints_for_missing_software(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "package_version", lambda name: "" if name == "torch" else "1.0")
    checks = {check.name: check for check in report()}
    assert not checks["C++ compiler"].ok
    assert checks["C++ compiler"].hint == "install a C++ compiler: apt-get install g++"
    assert checks["torch"].hint == "pip install torch"
    assert not checks["GPU"].ok
    assert checks["Python"].ok
    assert "hipcc" not in checks, "ROCm matters only where there is an AMD GPU"


def test_the_report_names_the_target_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [
        Device("NVIDIA H200", "GPU-1", "580.1", "cuda", 0, 1),
        Device("NVIDIA L4", "GPU-2", "580.1", "cuda", 1, 1),
    ]
    monkeypatch.setattr(toolchain, "find_devices", lambda: devices)
    monkeypatch.setattr(toolchain, "package_version", lambda _: "2.11.0+cpu")
    checks = report()
    known, unknown = (check for check in checks if check.name == "GPU")
    assert known.ok
    assert "target h200" in known.found
    assert not unknown.ok
    assert "device_names" in unknown.hint
    (torch,) = (check for check in checks if check.name == "torch for CUDA")
    assert "download.pytorch.org" in torch.hint


def test_an_old_nvcc_is_reported(bare: Path) -> None:
    tool(bare, "nvcc", "Cuda compilation tools, release 11.8, V11.8.89")
    (check,) = (check for check in report() if check.name == "nvcc")
    assert not check.ok
    assert "12.0 or newer" in check.hint


def test_a_version_is_read_once(bare: Path) -> None:
    gcc = tool(bare, "g++", "g++ 12.1")
    assert compiler_version(gcc) == "g++ 12.1"
    tool(bare, "g++", "g++ 12.2")
    assert compiler_version(gcc) == "g++ 12.1"
