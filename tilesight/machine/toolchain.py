"""Compilers, drivers and packages of this machine: their paths and versions, and hints for missing ones.

Compilers are searched in the places where TileLang searches, without importing TileLang, which takes seconds.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..settings import Settings, available_cores, load_settings
from ..target.spec import Target
from .devices import Device, cpu_name, find_devices, target_for
from .load import busy_text

BUILD_VERSION = "4"  # to be raised when a pass or launcher changes the library of the same candidate
CXX_NAMES = ("g++", "clang++", "c++")
CXX_HINT = "install a C++ compiler: apt-get install g++"
NVCC_HINT = (
    "install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads), "
    "or: pip install 'nvidia-cuda-nvcc>=13.0'"
)
HIPCC_HINT = "install ROCm 6.4 or newer (https://rocm.docs.amd.com), or set ROCM_PATH to where it is"
HIP_CLANG_HINT = (
    "or, to build without running: apt-get install clang-19 lld-19, "
    "and set ROCM_PATH to a folder with ROCm's headers "
    "(include/hip, from its package hip-dev) and device libraries (amdgcn/bitcode, from rocm-device-libs)"
)
CLANG_NAMES = ("clang++", "clang++-21", "clang++-20", "clang++-19")
OLDEST_CLANG = 19  # the first version tested with TileLang's HIP headers
OLDEST_NVCC = (12, 0)  # the first version with C++20, which TileLang's headers need
COMPILER_NAMES = {
    "cuda": "nvcc",
    "hip": "hipcc",
    "cpu": "c++",
}  # keys of `software_versions`, by kind of target


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `tilesight doctor`. `needed_for` names the work that fails unless it is `ok`."""

    name: str
    ok: bool
    found: str
    needed_for: str
    hint: str = ""  # the way out
    problem: str = "missing"  # in a word, if it is not `ok`


def find_cxx(settings: Settings | None = None) -> Path | None:
    """The C++ compiler: `CXX`, or the first of g++, clang++ and c++ on PATH."""
    named = (settings or load_settings()).cxx
    found = (shutil.which(name) for name in ((named,) if named else CXX_NAMES))
    return next((Path(path) for path in found if path), None)


def find_cuda_home(settings: Settings | None = None) -> Path | None:
    """The CUDA toolkit, in TileLang's order: CUDA_HOME, nvcc on PATH, PyPI package, /usr/local/cuda."""
    named = (settings or load_settings()).cuda_home
    if named:
        return named if named.exists() else None
    on_path = shutil.which("nvcc")
    if on_path:
        visible = Path(on_path).parent.parent
        return (
            visible
            if (visible / "include" / "cuda_runtime.h").exists()
            else Path(on_path).resolve().parent.parent
        )
    try:
        files = importlib.metadata.files("nvidia-cuda-nvcc") or []
    except importlib.metadata.PackageNotFoundError:
        usual = Path("/usr/local/cuda")
        return usual if usual.exists() else None
    return next((Path(str(file.locate())).parent.parent for file in files if file.name == "nvcc"), None)


def find_nvcc(settings: Settings | None = None) -> Path | None:
    """The nvcc of the CUDA toolkit."""
    home = find_cuda_home(settings)
    nvcc = home / "bin" / "nvcc" if home else None
    return nvcc if nvcc and nvcc.exists() else None


def find_hipcc(settings: Settings | None = None) -> Path | None:
    """ROCm's compiler: below ROCM_PATH, on PATH, or in /opt/rocm."""
    home = (settings or load_settings()).rocm_home
    paths = [home / "bin" / "hipcc"] if home else [shutil.which("hipcc"), Path("/opt/rocm/bin/hipcc")]
    return next((Path(path) for path in paths if path and Path(path).exists()), None)


@dataclass(frozen=True, slots=True)
class HipClang:
    """A clang that supports AMD GPUs, and the folder of HIP's headers and device libraries."""

    clang: Path
    rocm: Path


def find_hip_clang(settings: Settings | None = None) -> HipClang | None:
    """A compiler of code objects without hipcc: ROCm's or the system's clang, 19 or newer, with lld."""
    home = (settings or load_settings()).rocm_home or Path("/opt/rocm")
    if not ((home / "include/hip/hip_runtime.h").exists() and (home / "amdgcn/bitcode/ocml.bc").exists()):
        return None
    paths = [home / "llvm/bin/clang++", *(Path(path) for name in CLANG_NAMES if (path := shutil.which(name)))]
    found = next((path for path in paths if path.exists() and _supports_amd(path)), None)
    return HipClang(found, home) if found else None


@lru_cache(maxsize=16)
def _supports_amd(clang: Path) -> bool:
    try:
        outputs = [
            subprocess.run(
                [str(clang), option], capture_output=True, text=True, errors="replace", timeout=60, check=True
            ).stdout
            for option in ("-dumpversion", "--print-targets", "-print-prog-name=lld")
        ]
    except (OSError, subprocess.SubprocessError):
        return False
    version, targets, lld = outputs
    major = version.strip().split(".")[0]
    return (
        major.isdecimal()
        and int(major) >= OLDEST_CLANG
        and "amdgcn" in targets
        and Path(lld.strip()).is_absolute()
    )


@lru_cache(maxsize=16)
def compiler_version(compiler: Path) -> str:
    """Name and version, e.g.

    `nvcc 13.0.88` or `g++ (Debian 12.2.0-14+deb12u1) 12.2.0`; empty if it does not run.
    """
    try:
        done = subprocess.run(
            [str(compiler), "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return parse_version(compiler.name, done.stdout)


def parse_version(name: str, text: str) -> str:
    """Name and version from the output of `--version`."""
    if nvcc := re.search(r"release [\d.]+, V([\d.]+)", text):
        return f"nvcc {nvcc[1]}"
    if hip := re.search(r"HIP version: (\S+)", text):
        return f"hipcc {hip[1]}"
    first = text.strip().splitlines()[0].strip() if text.strip() else ""
    return first if first.startswith(name) else f"{name} ({first})"


def compiler_for(target: Target, settings: Settings | None = None) -> Path | None:
    """The compiler of generated source for `target`: nvcc, hipcc or the C++ compiler."""
    return {"cuda": find_nvcc, "hip": find_hipcc, "cpu": find_cxx}[target.kind](settings)


def missing_compiler(
    target: Target, settings: Settings | None = None, *, runnable: bool = True
) -> str | None:
    """Why kernels for `target` cannot be built on this machine, with a hint; None if they can.

    Without `runnable`, code objects for AMD GPUs are enough, which need no ROCm runtime.
    """
    settings = settings or load_settings()
    if target.kind == "hip" and not runnable and find_hipcc(settings) is None:
        return None if find_hip_clang(settings) else f"{missing_compiler(target, settings)}; {HIP_CLANG_HINT}"
    name, hint = {
        "cuda": ("nvcc", NVCC_HINT),
        "hip": ("hipcc", HIPCC_HINT),
        "cpu": ("a C++ compiler", CXX_HINT),
    }[target.kind]
    compiler = compiler_for(target, settings)
    if compiler is None:
        location = {"cuda": settings.cuda_home, "hip": settings.rocm_home, "cpu": settings.cxx}[target.kind]
        named = f" at '{location}', which the environment names" if location else ""
        return f"building for target {target.name} needs {name}, which was not found{named}; {hint}"
    if not compiler_version(compiler):
        return f"building for target {target.name} needs {name}, and '{compiler}' does not run; {hint}"
    if target.is_gpu and find_cxx(settings) is None:
        return f"building for target {target.name} needs a C++ compiler beside {name}; {CXX_HINT}"
    return None


def package_version(name: str) -> str:
    """Version of an installed package, found without importing it; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def software_versions(target: Target, device: Device | None = None) -> dict[str, str]:
    """Versions of the software on which code and times of `target` and of the vendor's library depend.

    Missing software is left out. `device` is the device that measures.
    """
    compiler = compiler_for(target)
    found = compiler_version(compiler) if compiler else ""
    return software_of(
        target, compiler=found, torch=package_version("torch"), driver=device.driver if device else ""
    )


def software_of(target: Target, *, compiler: str, torch: str, driver: str) -> dict[str, str]:
    """`software_versions` of machines with these versions and this machine's TileSight and TileLang.

    An empty text stands for missing software.
    """
    versions = {
        "tilesight-build": BUILD_VERSION,
        "tilelang": package_version("tilelang"),
        "torch": torch,  # contains the vendor's library
        COMPILER_NAMES[target.kind]: compiler,
        "driver": driver,
    }
    return {name: version for name, version in versions.items() if version}


def report() -> list[Check]:
    """All checks of `tilesight doctor`, in the order in which users need the software."""
    settings = load_settings()
    devices = find_devices()
    kinds = {device.kind for device in devices}
    cxx, nvcc, hipcc = find_cxx(settings), find_nvcc(settings), find_hipcc(settings)
    torch = package_version("torch")
    python_ok = (3, 11) <= sys.version_info[:2] <= (3, 13)
    checks = [
        Check(
            "Python", python_ok, platform.python_version(), "everything", "install Python 3.11, 3.12 or 3.13"
        ),
        _package("tilelang", "everything"),
        _package("torch", "checking and measuring kernels"),
        _package("optuna", "searching"),
        _package("sqlalchemy", "the performance database"),
        _compiler("C++ compiler", cxx, "building kernels", CXX_HINT),
        Check("processor", True, f"{cpu_name()}, {available_cores()} cores", "measuring for target cpu"),
    ]
    nvcc_check = _compiler("nvcc", nvcc, "building for NVIDIA GPUs", NVCC_HINT)
    version = re.search(r"(\d+)\.(\d+)", nvcc_check.found) if nvcc_check.ok else None
    if version and (int(version[1]), int(version[2])) < OLDEST_NVCC:
        nvcc_check = Check(
            "nvcc", False, nvcc_check.found, nvcc_check.needed_for, f"12.0 or newer is needed; {NVCC_HINT}"
        )
    checks.append(nvcc_check)
    if hipcc or "hip" in kinds:
        checks.append(_compiler("hipcc", hipcc, "building for AMD GPUs", HIPCC_HINT))
    for device in devices:
        target = target_for(device)
        fits = f"target {target}" if target else "no target"
        hint = "" if target else f"describe it in a target file whose device_names has '{device.name}'"
        checks.append(
            Check(
                "GPU",
                target is not None,
                f"{device.name}, driver {device.driver}: {fits}",
                "measuring on it",
                hint,
            )
        )
    if not devices:
        no_driver = "install the vendor's driver, so that nvidia-smi or rocm-smi lists the GPU"
        checks.append(Check("GPU", False, "none", "measuring on a GPU (predictions need none)", no_driver))
    if "cuda" in kinds and torch.endswith("+cpu"):
        hint = "install a CUDA build: pip install torch --index-url https://download.pytorch.org/whl/cu130"
        checks.append(Check("torch for CUDA", False, f"torch {torch}", "measuring on an NVIDIA GPU", hint))
    busy = busy_text(devices)
    idle_hint = "end the other work before you measure, or tune again with --remeasure"
    checks.append(Check("load", busy is None, busy or "idle", "undisturbed times", idle_hint, "busy"))
    return checks


def _package(name: str, needed_for: str) -> Check:
    version = package_version(name)
    return Check(
        name, bool(version), version or "not installed", needed_for, "" if version else f"pip install {name}"
    )


def _compiler(name: str, path: Path | None, needed_for: str, hint: str) -> Check:
    version = compiler_version(path) if path else ""
    found = f"{version} ({path})" if version else f"{path} does not run" if path else "not found"
    return Check(name, bool(version), found, needed_for, "" if version else hint)
