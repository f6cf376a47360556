"""Settings from the environment; no other module reads environment variables."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path, user_data_path


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults that a user sets once for a machine; options of a command override them."""

    database_url: str  # any SQLAlchemy URL
    cache_dir: Path  # built kernels; safe to delete
    workers: int  # processes that lower and build
    layers: tuple[str, ...] = ()  # SQLite files of read-only databases below the user's own, the upper first
    max_noise: float = 0.1  # a time whose 95 % interval is wider, half of it relative to the median, is noisy
    kernel_modules: tuple[str, ...] = ()  # modules with the user's operators and templates
    cuda_home: Path | None = None  # a CUDA toolkit instead of that of the nvcc on PATH; TileLang reads it too
    rocm_home: Path | None = None
    cxx: str | None = None  # a C++ compiler instead of g++, clang++ or c++
    cuda_visible: str | None = None  # GPUs that programs may use, in the driver's notation; None for all
    hip_visible: str | None = None


def load_settings(environ: dict[str, str] | None = None) -> Settings:
    """Read the settings from environment variables; missing ones have defaults.

    TileSight: `TILESIGHT_DB`, `TILESIGHT_LAYERS`, `TILESIGHT_CACHE_DIR`, `TILESIGHT_WORKERS`,
    `TILESIGHT_MAX_NOISE`, `TILESIGHT_KERNELS`.
    Compilers: `CUDA_HOME` or `CUDA_PATH`, `ROCM_PATH` or `ROCM_HOME`, `CXX`. GPUs: `CUDA_VISIBLE_DEVICES`,
    `HIP_VISIBLE_DEVICES`.

    Args:
        environ: None for the environment of the process.

    Raises:
        InputError: `TILESIGHT_WORKERS` or `TILESIGHT_MAX_NOISE` is malformed.
    """
    from .errors import InputError

    env = os.environ if environ is None else environ
    cuda_home = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    rocm_home = env.get("ROCM_PATH") or env.get("ROCM_HOME")
    default_db = user_data_path("tilesight", appauthor=False) / "performance.db"
    raw_workers = env.get("TILESIGHT_WORKERS", "")
    if raw_workers and (not raw_workers.isdecimal() or not 1 <= int(raw_workers) <= 1024):
        raise InputError(
            f"TILESIGHT_WORKERS='{raw_workers}' must be a whole number from 1 to 1024; unset it for one "
            "process per core"
        )
    raw_noise = env.get("TILESIGHT_MAX_NOISE") or "0.1"
    try:
        max_noise = float(raw_noise)
    except ValueError:
        max_noise = math.nan
    if not max_noise > 0:
        raise InputError(
            f"TILESIGHT_MAX_NOISE='{raw_noise}' must be a number above 0, or inf to accept every time; unset "
            "it for 0.1"
        )
    return Settings(
        database_url=env.get("TILESIGHT_DB") or f"sqlite:///{default_db}",
        cache_dir=Path(env.get("TILESIGHT_CACHE_DIR") or user_cache_path("tilesight", appauthor=False)),
        workers=int(raw_workers) if raw_workers else available_cores(),
        max_noise=max_noise,
        layers=tuple(path for path in env.get("TILESIGHT_LAYERS", "").split(os.pathsep) if path),
        kernel_modules=tuple(name for name in env.get("TILESIGHT_KERNELS", "").split(os.pathsep) if name),
        cuda_home=Path(cuda_home) if cuda_home else None,
        rocm_home=Path(rocm_home) if rocm_home else None,
        cxx=env.get("CXX") or None,
        cuda_visible=env.get("CUDA_VISIBLE_DEVICES"),
        hip_visible=env.get("HIP_VISIBLE_DEVICES"),
    )


def available_cores() -> int:
    """Number of cores that this process may use, by its affinity mask or container limit."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
