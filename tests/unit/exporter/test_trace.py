"""An export as a data set of FlashInfer-Bench: its files, its solution as an engine calls it, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.exports import matmul_table, unpack_solution
from tests.unit.exporter.conftest import exports_by
from tilesight.api.exporting import export
from tilesight.dispatch.table.table_file import write_table
from tilesight.errors import InputError
from tilesight.executor.local import LocalExecutor
from tilesight.files import file_hash

NAME = "gemm_n48_k32"
SOLUTION = f"solutions/tilesight/gemm/{NAME}/tilesight_{NAME}_float32_cpu.json"


@pytest.fixture(scope="module")
def data_set(
    export_cache: Path, session_executor: LocalExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One kernel, and a gap in its sizes."""
    del export_cache
    folder = tmp_path_factory.mktemp("trace")
    table = matmul_table("cpu", "float32", {"n": 48, "k": 32}, [{}], [(1, 16, 0), (17, 40, 0)], layout="nt")
    write_table(table, folder / "product.json")
    with exports_by(session_executor):
        export(folder / "product.json", folder / "made", format="flashinfer-trace")
    return folder / "made"


@pytest.fixture(scope="module")
def entry(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return unpack_solution(data_set / SOLUTION, tmp_path_factory.mktemp("packages"))


def read(data_set: Path, path: str) -> Any:
    return json.loads((data_set / path).read_text(encoding="utf-8"))


def test_the_folder_is_a_data_set(data_set: Path) -> None:
    files = {path.relative_to(data_set).as_posix() for path in data_set.rglob("*") if path.is_file()}
    assert files == {
        f"definitions/gemm/{NAME}.json",
        SOLUTION,
        f"workloads/gemm/{NAME}.jsonl",
        "manifest.json",
    }
    manifest = read(data_set, "manifest.json")
    assert manifest["kind"] == "flashinfer-trace"
    assert manifest["files"] == {path: file_hash(data_set / path) for path in files - {"manifest.json"}}
    definition, solution = read(data_set, f"definitions/gemm/{NAME}.json"), read(data_set, SOLUTION)
    assert definition["axes"] == {
        "M": {"type": "var"},
        "N": {"type": "const", "value": 48},
        "K": {"type": "const", "value": 32},
    }
    assert solution["definition"] == definition["name"] == NAME
    assert solution["spec"] == {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "_main.py::run",
        "dependencies": [],
        "destination_passing_style": True,
    }
    paths = [source["path"] for source in solution["sources"]]
    assert {"_main.py", "product.py", "libproduct.so.packed", "kernels/product_0.so.packed"} <= set(paths)
    assert {"LICENSE.txt", "manifest.json"} <= set(paths)
    assert len(set(paths)) == len(paths)
    assert all(source["content"] for source in solution["sources"])


def test_manifests_list_the_files_that_are_there(data_set: Path, tmp_path: Path) -> None:
    assert all("file" not in kernel for kernel in read(data_set, "manifest.json")["kernels"])
    unpack_solution(data_set / SOLUTION, tmp_path)
    [package] = tmp_path.iterdir()
    files = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    files = {path for path in files if path != "manifest.json" and "__pycache__" not in path}
    inside = read(package, "manifest.json")
    assert inside["files"] == {path: file_hash(package / path) for path in files}
    assert {kernel["file"] for kernel in inside["kernels"]} <= files


def test_an_export_called_main_keeps_its_entry(data_set: Path, tmp_path: Path) -> None:
    del data_set
    table = matmul_table("cpu", "float32", {"n": 48, "k": 32}, [{}], [(1, 16, 0), (17, 40, 0)], layout="nt")
    export(table, tmp_path / "made", format="flashinfer-trace", name="main")
    paths = [source["path"] for source in read(tmp_path / "made", SOLUTION)["sources"]]
    assert len(set(paths)) == len(paths)
    module = unpack_solution(tmp_path / "made" / SOLUTION, tmp_path / "main_packages")
    assert callable(module.run)


def test_workloads_are_the_last_sizes_of_the_segments(data_set: Path) -> None:
    text = (data_set / "workloads" / "gemm" / f"{NAME}.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["workload"]["axes"] for line in lines] == [{"M": 16}, {"M": 40}]
    assert {line["definition"] for line in lines} == {NAME}
    assert all(line["solution"] is None and line["evaluation"] is None for line in lines)
    assert len({line["workload"]["uuid"] for line in lines}) == 2
    assert lines[0]["workload"]["inputs"] == {"A": {"type": "random"}, "B": {"type": "random"}}


@pytest.mark.parametrize("m", [1, 16, 17, 40])
def test_the_solution_writes_what_the_reference_returns(entry: Any, data_set: Path, m: int) -> None:
    a, b, c = torch.randn(m, 32), torch.randn(48, 32), torch.empty(m, 48)
    assert entry.run(a, b, c) is None
    names: dict[str, Any] = {}
    exec(read(data_set, f"definitions/gemm/{NAME}.json")["reference"], names)
    torch.testing.assert_close(c, names["run"](a, b), atol=1e-4, rtol=1e-4)
    entry.run(a.T.contiguous().T, b.T.contiguous().T, c)
    torch.testing.assert_close(c, a @ b.T, atol=1e-4, rtol=1e-4)


def test_sizes_outside_of_the_plan_are_refused(entry: Any) -> None:
    with pytest.raises(ValueError, match=r"^product: m=41 is outside of the plan"):
        entry.run(torch.randn(41, 32), torch.randn(48, 32), torch.empty(41, 48))


def test_processes_that_unpack_at_once_all_work(data_set: Path, tmp_path: Path) -> None:
    for source in read(data_set, SOLUTION)["sources"]:
        file = tmp_path / "package" / source["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source["content"], encoding="utf-8")
    # without torch, so that the first one is not done before the last one begins
    lines = (
        "import sys, types",
        "sys.modules['torch'] = types.ModuleType('torch')",
        "try: import package._main",
        "except AttributeError: pass",
    )
    running = [subprocess.Popen([sys.executable, "-c", "\n".join(lines)], cwd=tmp_path) for _ in range(4)]
    assert [one.wait() for one in running] == [0] * 4
    found = sorted(path.relative_to(tmp_path / "package").as_posix() for path in tmp_path.rglob("*.so*"))
    assert found == [
        "kernels/product_0.so",
        "kernels/product_0.so.packed",
        "libproduct.so",
        "libproduct.so.packed",
    ]


def test_an_altered_library_is_refused(data_set: Path, tmp_path: Path) -> None:
    fields = read(data_set, SOLUTION)
    fields["name"] = "altered"
    text = next(source for source in fields["sources"] if source["path"] == "product.py")
    text["content"] = text["content"].replace('"kernels/product_0.so": "', '"kernels/product_0.so": "0')
    (tmp_path / "altered.json").write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(ImportError, match="was altered since it was exported"):
        unpack_solution(tmp_path / "altered.json", tmp_path / "packages")


def test_kernels_without_a_definition_are_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesight.api.exporting.built_kernels", lambda *_: pytest.fail("built"))
    table = matmul_table("cpu", "float32", {"n": 48, "k": 32}, [{}], [(1, 16, 0)])
    message = (
        "^matmul cannot be exported as flashinfer-trace: its definition needs layout=nt, and these kernels "
        "have layout=nn; take --format python$"
    )
    with pytest.raises(InputError, match=message):
        export(table, tmp_path / "made", format="flashinfer-trace")
    with pytest.raises(InputError, match=r"^softmax cannot .* operators that have one: matmul \(gemm\)"):
        export(
            "softmax",
            tmp_path / "made",
            format="flashinfer-trace",
            target="h200",
            shape="m=64,n=2048",
            config="block_m=1,threads=256,reduce_threads=256,vector=8,keep=registers,unroll=1",
        )
    assert list(tmp_path.iterdir()) == []
