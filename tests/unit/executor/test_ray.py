"""Facts of nodes, common software and artifacts; tests/contract has the tests that need Ray."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilesight.builder.kernel_cache import KernelCache
from tilesight.errors import InputError, ToolchainError
from tilesight.executor.ray import RayExecutor
from tilesight.executor.ray.artifacts import Artifact, key_of, pack, stored_at, unpack
from tilesight.executor.ray.common_software import CommonSoftware, refusal
from tilesight.executor.ray.node_facts import NodeFacts, collect_facts, versions
from tilesight.executor.ray.ray_connection import RayConnection
from tilesight.machine.devices import Device, cpu_identity
from tilesight.machine.toolchain import BUILD_VERSION, software_versions
from tilesight.target.spec import load_target

H200, CPU = load_target("h200"), load_target("cpu")
GPU = Device("NVIDIA H200", "GPU-1", "580.1", "cuda", 0, 141 << 30)
NODE = NodeFacts(
    "a",
    versions(),
    cpu_identity(),
    (GPU,),
    {"tilelang": "0.1.15", "torch": "2.11.0", "nvcc": "nvcc 13.0.88", "driver": "580.1"},
    None,
)


def test_the_common_software_is_that_of_most_nodes() -> None:
    old = replace(
        NODE, devices=(replace(GPU, driver="570.9"),), software={**NODE.software, "driver": "570.9"}
    )
    bare = replace(NODE, devices=(), software={"torch": "2.13.0", "nvcc": "nvcc 12.9.1"})
    common = CommonSoftware.of(H200, [old, bare, NODE, NODE])
    assert common.device == GPU
    assert common.software == {
        "tilesight-build": BUILD_VERSION,
        "tilelang": versions()["tilelang"],
        "torch": "2.11.0",
        "nvcc": "nvcc 13.0.88",
        "driver": "580.1",
    }
    assert "another compiler: nvcc 12.9.1 where the other nodes have nvcc 13.0.88" in common.why_no_builds(
        bare
    )
    assert "another device or driver: NVIDIA H200 with 570.9" in common.why_no_measuring(old, 8, 1)
    assert common.why_no_measuring(bare, 8, 0) == "no device of the target"
    assert common.why_no_builds(NODE) == common.why_no_measuring(NODE, 8, 1) == ""


def test_a_gpu_of_another_target_is_not_measured() -> None:
    other = replace(NODE, devices=(replace(GPU, name="NVIDIA H100 80GB HBM3"),))
    assert CommonSoftware.of(H200, [other]).device is None
    assert CommonSoftware.of(H200, [NODE, other]).why_no_measuring(other, 8, 1) == "no device of the target"


def test_a_gpu_that_ray_does_not_know_is_named_with_the_remedy() -> None:
    assert "--num-gpus" in CommonSoftware.of(H200, [NODE]).why_no_measuring(NODE, 8, 0)


def test_a_processor_of_another_kind_neither_builds_nor_measures() -> None:
    here = collect_facts(CPU)
    other = replace(here, cpu="x86_64 another one: sse2")
    common = CommonSoftware.of(CPU, [here, other])
    assert common.device is not None
    assert "not the driver's" in common.why_no_builds(other)
    assert "not the driver's" in common.why_no_measuring(other, 4, 0)
    assert common.why_no_builds(here) == common.why_no_measuring(here, 4, 0) == ""
    assert "without CPUs" in common.why_no_measuring(here, 0, 0)


def test_without_a_device_there_is_still_common_software() -> None:
    bare = replace(NODE, devices=(), software={"torch": "2.11.0"}, no_compiler="nvcc was not found")
    common = CommonSoftware.of(H200, [bare])
    assert common.device is None
    assert common.software == {
        "tilesight-build": BUILD_VERSION,
        "tilelang": versions()["tilelang"],
        "torch": "2.11.0",
    }
    assert common.why_no_builds(bare) == "nvcc was not found"


def test_a_cluster_of_this_machine_has_its_software() -> None:
    here = collect_facts(CPU)
    common = CommonSoftware.of(CPU, [here])
    assert common.software == software_versions(CPU, common.device)  # records of both have the same key


def test_a_node_with_other_code_is_refused() -> None:
    assert refusal(NODE) == ""
    other = replace(NODE, versions=versions() | {"tilelang": "0.1.14"})
    assert "tilelang 0.1.14 where the driver has" in refusal(other)
    assert CommonSoftware.of(H200, [other]).device is None
    assert "TileSight none where" in refusal(replace(NODE, versions={"tilelang": versions()["tilelang"]}))


def stored(folder: Path, key: str = "0" * 24) -> str:
    cache = KernelCache(folder)
    with cache.building(key) as work:
        files = [work / "kernel.so", work / "kernel.cpp"]
        for file in files:
            file.write_bytes(file.suffix.encode() * 100)
        return str(cache.store(key, files, {"registers": 32}, "g++ 12").library)


def test_an_artifact_makes_the_same_entry_in_another_cache(tmp_path: Path) -> None:
    artifact = stored(tmp_path / "here")
    there = unpack(pack(artifact), tmp_path / "there")
    assert Path(there).parent == tmp_path / "there" / "kernels"
    assert Path(there).read_bytes() == Path(artifact).read_bytes()
    assert Path(there).with_suffix(".cpp").exists()
    entry = KernelCache(tmp_path / "there").find(key_of(artifact))
    assert entry is not None
    assert dict(entry.resources) == {"registers": 32}
    assert list((tmp_path / "there").rglob("building-*")) == []


def test_a_stored_entry_is_not_unpacked_again(tmp_path: Path) -> None:
    artifact = stored(tmp_path)
    before = Path(artifact).stat().st_mtime_ns
    assert unpack(pack(artifact), tmp_path) == artifact == stored_at(tmp_path, key_of(artifact))
    assert Path(artifact).stat().st_mtime_ns == before


def test_artifacts_without_metadata_or_library_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not contain the entry"):
        unpack(Artifact("1" * 24, {".so": b"library"}), tmp_path)
    assert stored_at(tmp_path, "1" * 24) is None
    with pytest.raises(FileNotFoundError, match="no longer in the kernel cache"):
        pack(str(tmp_path / "kernels" / "gone.so"))


def test_without_ray_the_error_names_its_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ToolchainError, match=r"cluster auto needs ray, .*pip install 'ray\[client\]'"):
        RayExecutor("auto", CPU, tmp_path)


def test_an_address_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ray://host:port"):
        RayExecutor("", CPU, tmp_path)


def test_an_address_without_a_listener_fails_at_once(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:port"):
        with pytest.raises(ToolchainError, match=f"cluster {address} cannot be reached"):
            RayExecutor(address, CPU, tmp_path)


def test_ray_is_imported_only_with_a_cluster() -> None:
    imports = "import sys, tilesight, tilesight.api.tuning, tilesight.executor.ray"
    code = f"{imports}\nprint({{'ray', 'torch', 'tilelang'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def connected_to(
    monkeypatch: pytest.MonkeyPatch, head: socket.socket, nodes: Callable[[float], dict[str, Any]]
) -> RayConnection:
    """A connection whose Ray lists what `nodes` returns for a limit in seconds; the head listens there."""
    address = ":".join(map(str, head.getsockname()))
    context = SimpleNamespace(gcs_address=address)
    client = SimpleNamespace(get_all_node_info=lambda *, timeout: nodes(timeout))
    private = SimpleNamespace(worker=SimpleNamespace(global_worker=SimpleNamespace(gcs_client=client)))
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context, _private=private)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("tilesight.executor.ray.ray_connection.HEAD_TIMEOUT_S", 7.0)
    return RayConnection(address)


def test_a_head_that_is_not_there_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        limits: list[float] = []
        connection = connected_to(monkeypatch, head, lambda limit: limits.append(limit) or {})
        assert connection.node_rows() == []
        assert limits == [7.0]
    assert connection.node_rows() is None
    monkeypatch.setattr("tilesight.executor.ray.ray_connection.HEAD_TIMEOUT_S", 0.0)
    with pytest.raises(ToolchainError, match="its head is gone"):
        connection.node_rows()
