"""The operator of torch of an export: it compiles without warnings, computes, and can be traced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.exports import WARNINGS, compile_program, compiler
from tests.unit.exporter.conftest import Sample
from tilesight.exporter.interface import read_interface
from tilesight.exporter.table_source import kernels_of_table
from tilesight.exporter.torch_operator import torch_operator

TRACED = """
import sys, torch
torch.ops.load_library(sys.argv[1])
product, product_out = torch.ops.tilesight.product, torch.ops.tilesight.product_out
a, b = torch.randn(20, 32), torch.randn(32, 48)
torch.testing.assert_close(product(a, b), a @ b, atol=1e-4, rtol=1e-4)
out = torch.empty(20, 48)
product_out(a, b, out)
torch.testing.assert_close(out, a @ b, atol=1e-4, rtol=1e-4)
found = product(a.to("meta"), b.to("meta"))
assert found.shape == (20, 48) and found.device.type == "meta" and found.dtype == torch.float32

from torch.fx.experimental.proxy_tensor import make_fx
graph = make_fx(lambda a, b: product(a * 2, b) + 1, tracing_mode="symbolic")(a, b)
assert "tilesight.product" in graph.code, graph.code
for m in (1, 33, 100):
    a = torch.randn(m, 32)
    torch.testing.assert_close(graph(a, b), a @ b * 2 + 1, atol=1e-4, rtol=1e-4)

def refused(function):
    try:
        function()
    except (RuntimeError, NotImplementedError) as error:
        print(str(error).splitlines()[0])
    else:
        print("no error")

a = torch.randn(100, 32)
refused(lambda: product(torch.randn(101, 32), b))
refused(lambda: product(a.half(), b))
refused(lambda: product(a[0], b))
refused(lambda: product(a, b[:31]))
refused(lambda: product(a, torch.randn(48, 32).T))
refused(lambda: product_out(a, b, torch.empty(3, 48)))
refused(lambda: product_out(a, b, torch.empty(100, 48).half()))
refused(lambda: product(a.to("meta"), b[0].to("meta")))
"""

EXPORTED = """
import sys, torch
torch.ops.load_library(sys.argv[1])
product = torch.ops.tilesight.product
b = torch.randn(32, 48)

class Layer(torch.nn.Module):
    def forward(self, a, b):
        return product(a, b) + 1

sizes = {"a": {0: torch.export.Dim("m", min=2, max=100)}, "b": None}
program = torch.export.export(Layer(), (torch.randn(20, 32), b), dynamic_shapes=sizes)
for m in (2, 77):
    a = torch.randn(m, 32)
    torch.testing.assert_close(program.module()(a, b), a @ b + 1, atol=1e-4, rtol=1e-4)

compiled = torch.compile(lambda a, b: product(a, b).relu(), fullgraph=True, dynamic=True, backend="aot_eager")
for m in (3, 50):
    a = torch.randn(m, 32)
    torch.testing.assert_close(compiled(a, b), (a @ b).relu(), atol=1e-4, rtol=1e-4)
"""


def torch_flags() -> list[str]:
    import torch

    root = Path(torch.__file__).parent
    return [
        *("-isystem", f"{root}/include", "-isystem", f"{root}/include/torch/csrc/api/include"),
        *(f"-L{root}/lib", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root}/lib"),
    ]


@pytest.fixture(scope="module")
def operator_library(cpu_sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operator")
    kernels = kernels_of_table(cpu_sample.table, "product", None)
    source = torch_operator(kernels, read_interface(kernels))
    (folder / "product_torch.cpp").write_text(source, encoding="utf-8")
    own = [f"-I{cpu_sample.folder}", f"-L{cpu_sample.folder}", "-lproduct", f"-Wl,-rpath,{cpu_sample.folder}"]
    flags = ["-std=c++17", "-O0", *WARNINGS, "-fPIC", "-shared", "product_torch.cpp", *torch_flags(), *own]
    compile_program([compiler("g++"), *flags, "-ldl", "-o", "libproduct_torch.so"], folder)
    return folder / "libproduct_torch.so"


def test_the_operator_computes_and_is_traced(operator_library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRACED, str(operator_library)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "product: m=101 is outside of the plan, which covers m = 1 .. 100",
        "product: A is Half and must be Float",
        "product: A has 1 axes and must have 2",
        "product: B has shape [31, 48] and must have [32, 48]",
        "product: B must be contiguous and hold its own values; give .contiguous() of it",
        "product: C has shape [3, 48] and must have [100, 48]",
        "product: C is Half and must be Float",
        "product: B has 1 axes and must have 2",
    ]


@pytest.mark.full
def test_the_operator_is_exported_and_compiled(operator_library: Path) -> None:
    words = [sys.executable, "-c", EXPORTED, str(operator_library)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.full
def test_the_operator_of_a_gpu_compiles_without_its_headers(gpu_sample: Sample, tmp_path: Path) -> None:
    kernels = kernels_of_table(gpu_sample.table, "product", None)
    source = torch_operator(kernels, read_interface(kernels))
    (tmp_path / "product_torch.cpp").write_text(source, encoding="utf-8")
    flags = ["-std=c++17", *WARNINGS, "-fsyntax-only", f"-I{gpu_sample.folder}", *torch_flags()[:4]]
    compile_program([compiler("g++"), *flags, "product_torch.cpp"], tmp_path)


@pytest.mark.full
def test_the_operator_is_built_by_cmake(cpu_sample: Sample, tmp_path: Path) -> None:
    from tilesight.api.exporting import export

    cmake = compiler("cmake")
    export(cpu_sample.file, tmp_path / "made", format="torch")
    import torch

    root = Path(torch.__file__).parent
    configure = [cmake, "-S", "made", "-B", "built", f"-DTORCH_ROOT={root}"]
    for step in (configure, [cmake, "--build", "built"]):
        done = subprocess.run(step, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    script = (
        "import sys, torch; torch.ops.load_library(sys.argv[1]); "
        "print(torch.ops.tilesight.product(torch.ones(5, 32), torch.ones(32, 48)).sum().item())"
    )
    library = tmp_path / "built" / "libproduct_torch.so"
    done = subprocess.run(
        [sys.executable, "-c", script, str(library)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(5 * 48 * 32.0), done.stderr
