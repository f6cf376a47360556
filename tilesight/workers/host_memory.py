"""Available host memory: of the machine, or of the container if that allows less."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_UNKNOWN = sys.maxsize


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that processes may still allocate before the kernel kills one; `sys.maxsize` if unknown."""
    free = [_machine(root / "proc/meminfo"), *(_group(folder) for folder in _groups(root))]
    return min(free)


def _machine(meminfo: Path) -> int:
    with suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _UNKNOWN


def _groups(root: Path) -> Iterator[Path]:
    """Folders of this process's control group and all groups above it (cgroup v1 and v2)."""
    mount = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            base = (
                mount if number == "0" else mount / "memory" if "memory" in controllers.split(",") else None
            )
            if base is not None:
                own = base / path.strip("/")
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(base))


def _group(folder: Path) -> int:
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with suppress(OSError, ValueError):  # "max" is not a number
            allowed = int((folder / limit).read_text())
            return max(0, allowed - int((folder / used).read_text()) + _cached(folder))
    return _UNKNOWN


def _cached(folder: Path) -> int:
    """Pages of files: they count as used, but the kernel can free them."""
    with suppress(OSError, ValueError):
        counts = dict(line.split(None, 1) for line in (folder / "memory.stat").read_text().splitlines())
        return int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0))
    return 0
