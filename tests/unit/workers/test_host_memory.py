"""Available host memory, read from the files of /proc and of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilesight.workers.host_memory import available_bytes

GIB = 2**30


def machine(root: Path, files: dict[str, str]) -> int:
    for name, text in {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {16 * 2**20} kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_bytes(root)


def test_a_machine_without_limits(tmp_path: Path) -> None:
    assert machine(tmp_path, {"proc/self/cgroup": "0::/\n"}) == 16 * GIB


@pytest.mark.parametrize("folder", ["sys/fs/cgroup", "sys/fs/cgroup/a", "sys/fs/cgroup/a/b"])
def test_the_tightest_of_the_groups_above_counts(tmp_path: Path, folder: str) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        f"{folder}/memory.max": f"{8 * GIB}\n",
        f"{folder}/memory.current": f"{5 * GIB}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file {GIB}\n",
    }
    assert machine(tmp_path, files) == 5 * GIB


def test_the_older_kind_of_groups(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "9:cpu:/x\n4:memory:/job\n0::/\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{GIB}\n",
    }
    assert machine(tmp_path, files) == 3 * GIB


def test_a_group_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "100\n",
        "sys/fs/cgroup/memory.current": "200\n",
    }
    assert machine(tmp_path, files) == 0


def test_a_machine_that_tells_nothing_has_no_limit(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > 2**60
    assert machine(tmp_path, {"proc/meminfo": "nonsense\n", "proc/self/cgroup": "nonsense\n"}) > 2**60


def test_this_machine() -> None:
    assert available_bytes() > 2**20
