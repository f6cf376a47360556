"""The Python module of an export, in this process: kernels for the processor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.exports import load
from tests.unit.exporter.conftest import Sample
from tilesight import export
from tilesight.kernels import operator, template_for
from tilesight.target.spec import load_target


@pytest.fixture(scope="module")
def product(cpu_sample: Sample) -> Any:
    return load(cpu_sample.folder)


def operands(m: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m)
    return torch.randn(m, 32, generator=generator), torch.randn(32, 48, generator=generator)


@pytest.mark.parametrize("m", [1, 16, 17, 41, 42, 100])
def test_call_computes_with_and_without_given_memory(product: Any, m: int) -> None:
    a, b = operands(m)
    wanted = a @ b
    torch.testing.assert_close(product.call(a, b), wanted, atol=1e-4, rtol=1e-4)
    out = torch.empty(m, 48)
    assert product.call(a, b, out=out) is out
    torch.testing.assert_close(out, wanted, atol=1e-4, rtol=1e-4)


def test_a_bound_call_computes_with_what_its_tensors_hold(product: Any) -> None:
    a, b = operands(20)
    out = torch.empty(20, 48)
    again = product.bind(a, b, out=out)
    for factor in (1, 2):
        a.mul_(factor)
        assert again() is out
        torch.testing.assert_close(out, a @ b, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("export_cache")
def test_a_kernel_of_one_shape(tmp_path: Path) -> None:
    """It has no free size, and is called as those that have one."""
    cpu, workload = load_target("cpu"), operator("matmul").workload("m=20,n=48,k=32", "float32")
    config = template_for("matmul", cpu, "float32").default_config(workload, cpu)
    assert config is not None
    export(
        "matmul",
        tmp_path / "made",
        format="python",
        target="cpu",
        name="product",
        shape="m=20,n=48,k=32",
        config=config,
    )
    single = load(tmp_path / "made")
    a, b = operands(20)
    torch.testing.assert_close(single.call(a, b), a @ b, atol=1e-4, rtol=1e-4)
    out = torch.empty(20, 48)
    assert single.bind(a, b, out=out)() is out
    torch.testing.assert_close(out, a @ b, atol=1e-4, rtol=1e-4)
    with pytest.raises(single.OutsideOfPlan, match=r"A has shape \(21, 32\) and must have \(20, 32\)"):
        single.call(*operands(21))


def test_select_is_the_table(product: Any) -> None:
    assert [product.select(m) for m in (0, 1, 16, 17, 41, 42, 100, 101)] == [-1, 0, 0, 1, 0, 1, 1, -1]


_, ROWS = operands(7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": 3}, "A is of type int and must be a torch.Tensor"),
        ({"A": torch.ones(7, 32).half()}, "A is torch.float16 and must be torch.float32"),
        ({"A": torch.ones(32)}, "A has 1 axes and must have 2"),
        ({"A": torch.randn(101, 32)}, "m=101 is outside of the plan, which covers m = 1 .. 100"),
        ({"A": torch.randn(0, 32)}, "m=0 is outside of the plan, which covers m = 1 .. 100"),
        ({"B": ROWS[:31]}, r"B has shape \(31, 48\) and must have \(32, 48\)"),
        ({"B": ROWS.T.contiguous().T}, r"B must be contiguous; give B.contiguous\(\)"),
        ({"B": ROWS.to("meta")}, "B lies on meta, and the kernels run on cpu"),
        (
            {"out": torch.empty(8, 48)},
            r"out \(C\) is torch.float32 \(8, 48\) on cpu and must be",
        ),
        ({"out": torch.empty(7, 48).half()}, r"out \(C\) is torch.float16 \(7, 48\) on cpu and"),
        ({"out": torch.empty(48, 7).T}, r"out \(C\) must be contiguous"),
        ({"out": 5}, r"out \(C\) is int and must be"),
        ({"B": ROWS, "out": ROWS[:7]}, "C shares memory with B"),
    ],
)
def test_wrong_tensors_are_refused(product: Any, changes: dict[str, Any], message: str) -> None:
    a, b = operands(7)
    given = {"A": a, "B": b, **changes}
    for function in (product.call, product.bind):
        with pytest.raises((TypeError, ValueError, RuntimeError), match=f"^product: {message}"):
            function(given["A"], given["B"], out=given.get("out"))()


def test_a_wrong_device_is_refused(product: Any) -> None:
    with pytest.raises(RuntimeError, match="device 1: the kernels run on the processor"):
        product.init(1)


def test_the_module_needs_torch_and_the_standard_library_alone(cpu_sample: Sample) -> None:
    script = (
        "import sys; import product, torch; c = product.call(torch.ones(3, 32), torch.ones(32, 48))\n"
        "assert bool((c == 32).all())\n"
        "print(*{name.split('.')[0] for name in sys.modules} & {'tilesight', 'tilelang', 'tvm'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=cpu_sample.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", ["libproduct.so", "kernels/product_1.so"])
@pytest.mark.parametrize("fault", ["missing", "altered"])
def test_missing_and_altered_files_are_refused_at_import(
    cpu_sample: Sample, name: str, fault: str, tmp_path: Path
) -> None:
    shutil.copytree(cpu_sample.folder, tmp_path / "copied")
    victim = tmp_path / "copied" / name
    if fault == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes() + b"\0")
    reason = "cannot be read: No such file" if fault == "missing" else "was altered since it was exported"
    with pytest.raises(ImportError, match=f"^'{victim}' {reason}.*; export again"):
        load(tmp_path / "copied")


def test_the_manifest_has_the_hash_of_every_file(cpu_sample: Sample, product: Any) -> None:
    import hashlib

    manifest = json.loads((cpu_sample.folder / "manifest.json").read_text(encoding="utf-8"))
    present = {
        path.relative_to(cpu_sample.folder).as_posix()
        for path in cpu_sample.folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(manifest["files"]) == present - {"manifest.json"}
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((cpu_sample.folder / name).read_bytes()).hexdigest() == digest
    assert product.FILES.items() <= manifest["files"].items()
    assert manifest["segments"] == [[1, 16, 0], [17, 40, 1], [41, 41, 0], [42, 100, 1]]
    assert [kernel["config"] for kernel in manifest["kernels"]] == [dict(c) for c in cpu_sample.table.kernels]
    assert manifest["table"] == json.loads(cpu_sample.table.text())
    assert {"tilelang", "c++"} <= set(manifest["software"]) or "tilelang" in manifest["software"]
    assert "Apache-2.0" in manifest["licence"]
