"""The one reader of the process environment. Everything else takes these values as arguments."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path, user_data_path


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults that a user sets once for a machine; a command's own options win over them."""

    database_url: str  # any SQLAlchemy URL
    cache_dir: Path  # built kernels; safe to delete
    workers: int  # processes that lower and build
    layers: tuple[str, ...] = ()  # SQLite files of read-only databases below the user's own, the first on top
    kernel_modules: tuple[str, ...] = ()  # names of modules with operators and templates of the user's own
    cuda_home: Path | None = None  # a CUDA toolkit other than the one whose nvcc is on PATH; TileLang reads the same variables
    rocm_home: Path | None = None
    cxx: str | None = None  # a C++ compiler other than g++, clang++ or c++
    cuda_visible: str | None = None  # GPUs that the user lets programs see, as the drivers read it; None: all
    hip_visible: str | None = None


def load_settings(environ: dict[str, str] | None = None) -> Settings:
    """Read `TILESIGHT_DB`, `TILESIGHT_LAYERS`, `TILESIGHT_CACHE_DIR`, `TILESIGHT_WORKERS` and `TILESIGHT_KERNELS`, or their
    defaults, and where compilers are (`CUDA_HOME` or `CUDA_PATH`, `ROCM_PATH` or `ROCM_HOME`, `CXX`), and which GPUs may be used
    (`CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES`).

    A malformed `TILESIGHT_WORKERS` raises `InputError`.
    """
    from .errors import InputError

    env = os.environ if environ is None else environ
    cuda_home, rocm_home = env.get("CUDA_HOME") or env.get("CUDA_PATH"), env.get("ROCM_PATH") or env.get("ROCM_HOME")
    default_db = user_data_path("tilesight", appauthor=False) / "performance.db"
    raw_workers = env.get("TILESIGHT_WORKERS", "")
    if raw_workers and (not raw_workers.isdecimal() or not 1 <= int(raw_workers) <= 1024):
        raise InputError(f"TILESIGHT_WORKERS='{raw_workers}' must be a whole number from 1 to 1024; unset it for one process a core")
    return Settings(
        database_url=env.get("TILESIGHT_DB") or f"sqlite:///{default_db}",
        cache_dir=Path(env.get("TILESIGHT_CACHE_DIR") or user_cache_path("tilesight", appauthor=False)),
        workers=int(raw_workers) if raw_workers else available_cores(),
        layers=tuple(path for path in env.get("TILESIGHT_LAYERS", "").split(os.pathsep) if path),
        kernel_modules=tuple(name for name in env.get("TILESIGHT_KERNELS", "").split(os.pathsep) if name),
        cuda_home=Path(cuda_home) if cuda_home else None,
        rocm_home=Path(rocm_home) if rocm_home else None,
        cxx=env.get("CXX") or None,
        cuda_visible=env.get("CUDA_VISIBLE_DEVICES"),
        hip_visible=env.get("HIP_VISIBLE_DEVICES"),
    )


def available_cores() -> int:
    """Cores that this process may use (an affinity mask or container limit counts)."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
