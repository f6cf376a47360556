"""How much host memory is to be had: of the machine, or of the container where that allows less."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_UNKNOWN = sys.maxsize


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that processes may still take before the kernel must kill one. A very large number where nothing tells it."""
    free = [_machine(root / "proc/meminfo"), *(_group(folder) for folder in _groups(root))]
    return min(free)


def _machine(meminfo: Path) -> int:
    with suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _UNKNOWN


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the control groups that this process is in: its own and all above it, in both versions."""
    mount = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            base = mount if number == "0" else mount / "memory" if "memory" in controllers.split(",") else None
            if base is not None:
                own = base / path.strip("/")
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(base))


def _group(folder: Path) -> int:
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with suppress(OSError, ValueError):  # "max" is no number
            allowed = int((folder / limit).read_text())
            return max(0, allowed - int((folder / used).read_text()) + _cached(folder))
    return _UNKNOWN


def _cached(folder: Path) -> int:
    """What the kernel would give back: pages of files, which count as used."""
    with suppress(OSError, ValueError):
        counts = dict(line.split(None, 1) for line in (folder / "memory.stat").read_text().splitlines())
        return int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0))
    return 0
