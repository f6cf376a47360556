"""What a cluster needs of Ray's nodes, without Ray: `tests/contract` has what needs it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilesight.building.cache import KernelCache
from tilesight.device import Device, cpu_identity
from tilesight.distributed import RayExecutor
from tilesight.distributed.facts import Facts, facts, versions
from tilesight.distributed.parcels import Parcel, key_of, pack, stored_at, unpack
from tilesight.distributed.standard import Standard, refusal
from tilesight.errors import InputError, ToolchainError
from tilesight.target import load_target
from tilesight.toolchain import BUILD_VERSION, software_versions

H200, CPU = load_target("h200"), load_target("cpu")
GPU = Device("NVIDIA H200", "GPU-1", "580.1", "cuda", 0, 141 << 30)
NODE = Facts(
    "a", versions(), cpu_identity(), (GPU,), {"tilelang": "0.1.15", "torch": "2.11.0", "nvcc": "nvcc 13.0.88", "driver": "580.1"}, None
)


def test_the_standard_is_what_most_nodes_have() -> None:
    old = replace(NODE, devices=(replace(GPU, driver="570.9"),), software={**NODE.software, "driver": "570.9"})
    bare = replace(NODE, devices=(), software={"torch": "2.13.0", "nvcc": "nvcc 12.9.1"})
    standard = Standard.of(H200, [old, bare, NODE, NODE])
    assert standard.device == GPU
    assert standard.software == {
        "tilesight-build": BUILD_VERSION,
        "tilelang": versions()["tilelang"],
        "torch": "2.11.0",
        "nvcc": "nvcc 13.0.88",
        "driver": "580.1",
    }
    assert "another compiler: nvcc 12.9.1 where the other nodes have nvcc 13.0.88" in standard.why_no_builds(bare)
    assert "another device or driver: NVIDIA H200 with 570.9" in standard.why_no_measuring(old, 8, 1)
    assert standard.why_no_measuring(bare, 8, 0) == "no device of the target"
    assert standard.why_no_builds(NODE) == standard.why_no_measuring(NODE, 8, 1) == ""


def test_a_gpu_that_is_not_the_targets_is_not_measured() -> None:
    other = replace(NODE, devices=(replace(GPU, name="NVIDIA H100 80GB HBM3"),))
    assert Standard.of(H200, [other]).device is None
    assert Standard.of(H200, [NODE, other]).why_no_measuring(other, 8, 1) == "no device of the target"


def test_a_gpu_that_ray_does_not_know_of_is_said_to_be_there() -> None:
    assert "--num-gpus" in Standard.of(H200, [NODE]).why_no_measuring(NODE, 8, 0)


def test_a_processor_of_another_kind_neither_builds_nor_measures() -> None:
    here = facts(CPU)
    other = replace(here, cpu="x86_64 another one: sse2")
    standard = Standard.of(CPU, [here, other])
    assert standard.device is not None
    assert "not the driver's" in standard.why_no_builds(other)
    assert "not the driver's" in standard.why_no_measuring(other, 4, 0)
    assert standard.why_no_builds(here) == standard.why_no_measuring(here, 4, 0) == ""
    assert "without CPUs" in standard.why_no_measuring(here, 0, 0)


def test_where_nothing_is_measured_there_is_still_software() -> None:
    bare = replace(NODE, devices=(), software={"torch": "2.11.0"}, no_compiler="nvcc was not found")
    standard = Standard.of(H200, [bare])
    assert standard.device is None
    assert standard.software == {"tilesight-build": BUILD_VERSION, "tilelang": versions()["tilelang"], "torch": "2.11.0"}
    assert standard.why_no_builds(bare) == "nvcc was not found"


def test_a_cluster_of_this_machine_has_its_software() -> None:
    here = facts(CPU)
    standard = Standard.of(CPU, [here])
    assert standard.software == software_versions(CPU, standard.device)  # a code and a time key in common


def test_a_node_with_other_code_is_refused() -> None:
    assert refusal(NODE) == ""
    other = replace(NODE, versions=versions() | {"tilelang": "0.1.14"})
    assert "tilelang 0.1.14 where the driver has" in refusal(other)
    assert Standard.of(H200, [other]).device is None
    assert "TileSight none where" in refusal(replace(NODE, versions={"tilelang": versions()["tilelang"]}))


def stored(folder: Path, key: str = "0" * 24) -> str:
    cache = KernelCache(folder)
    with cache.building(key) as work:
        files = [work / "kernel.so", work / "kernel.cpp"]
        for file in files:
            file.write_bytes(file.suffix.encode() * 100)
        return str(cache.store(key, files, {"registers": 32}, "g++ 12").library)


def test_a_parcel_makes_the_same_entry_in_another_cache(tmp_path: Path) -> None:
    artifact = stored(tmp_path / "here")
    there = unpack(pack(artifact), tmp_path / "there")
    assert Path(there).parent == tmp_path / "there" / "kernels"
    assert Path(there).read_bytes() == Path(artifact).read_bytes()
    assert Path(there).with_suffix(".cpp").exists()
    entry = KernelCache(tmp_path / "there").find(key_of(artifact))
    assert entry is not None
    assert dict(entry.resources) == {"registers": 32}
    assert list((tmp_path / "there").rglob("building-*")) == []


def test_what_is_there_is_not_unpacked_again(tmp_path: Path) -> None:
    artifact = stored(tmp_path)
    before = Path(artifact).stat().st_mtime_ns
    assert unpack(pack(artifact), tmp_path) == artifact == stored_at(tmp_path, key_of(artifact))
    assert Path(artifact).stat().st_mtime_ns == before


def test_parcels_without_a_note_or_library_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not keep"):
        unpack(Parcel("1" * 24, {".so": b"library"}), tmp_path)
    assert stored_at(tmp_path, "1" * 24) is None
    with pytest.raises(FileNotFoundError, match="no longer in the kernel cache"):
        pack(str(tmp_path / "kernels" / "gone.so"))


def test_without_ray_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ToolchainError, match=r"cluster auto needs Ray.*pip install ray"):
        RayExecutor("auto", CPU, tmp_path)


def test_an_address_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ray://host:port"):
        RayExecutor("", CPU, tmp_path)


def test_an_address_where_nobody_listens_is_no_long_wait(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:port"):
        with pytest.raises(ToolchainError, match=f"cluster {address} cannot be reached"):
            RayExecutor(address, CPU, tmp_path)


def test_ray_is_imported_with_a_cluster_and_not_before() -> None:
    code = "import sys, tilesight, tilesight.api, tilesight.distributed\nprint({'ray', 'torch', 'tilelang'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
