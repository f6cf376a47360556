"""Exported kernels on a real GPU: results, streams, graphs, threads, two devices, C, torch's operator.

Run: python -m pytest tests/gpu/test_export.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.exports import WARNINGS, compile_program, compiler, load, matmul_table
from tilesight import kernels
from tilesight.api.exporting import export
from tilesight.dispatch.make import dispatcher
from tilesight.dispatch.table.dispatch_table import DispatchTable
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
N, K = 256, 1024
SEGMENTS = [(1, 64, 1), (65, 300, 0), (301, 400, 1), (401, 4096, 0)]
SIZES = [1, 63, 64, 65, 300, 301, 400, 401, 1000, 4096]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("export")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILESIGHT_CACHE_DIR", str(folder / "cache"))
        patch.setenv("TILESIGHT_DB", f"sqlite:///{folder}/performance.db")
        yield folder


@pytest.fixture(scope="module")
def table(gpu_target: Target) -> DispatchTable:
    """Two kernels: the second one adds parts of k, from scratch memory."""
    changes: list[dict[str, int | str]] = [{}, {"split_k": 2}]
    return matmul_table(gpu_target.name, "bfloat16", {"n": N, "k": K}, changes, SEGMENTS)


@pytest.fixture(scope="module")
def made(places: Path, table: DispatchTable) -> Path:
    export(table, places / "made", name="product", format="python")
    return places / "made"


@pytest.fixture(scope="module")
def product(made: Path) -> Any:
    return load(made)


def operands(m: int, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.randn(m, K, dtype=torch.bfloat16, device=device)
    return a, torch.randn(K, N, dtype=torch.bfloat16, device=device) / K**0.5


def is_product(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    wanted = a.float() @ b.float()
    return bool((found.float() - wanted).norm() < 5e-3 * wanted.norm())


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("m", SIZES)
def test_results_are_right_and_those_of_our_own_dispatcher(
    m: int, product: Any, table: DispatchTable, gpu_target: Target
) -> None:
    a, b = operands(m)
    out = torch.empty(m, N, dtype=a.dtype, device="cuda")
    found = product.call(a, b)
    assert is_product(found, a, b)
    assert product.call(a, b, out=out) is out
    assert torch.equal(out, found)
    out.zero_()
    assert product.bind(a, b, out=out)() is out
    assert torch.equal(out, found)
    with dispatcher("matmul", gpu_target, table=table, dynamic="m", misses=False, n=N, k=K) as own:
        assert torch.equal(own(a, b), found)


def test_a_call_follows_the_current_stream(product: Any) -> None:
    a, b = operands(200)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        scaled = a * 3
        found = product.call(scaled, b)
    stream.synchronize()
    assert is_product(found, a * 3, b)


@pytest.mark.parametrize("m", [40, 128])  # with scratch memory and without
def test_a_graph_repeats_a_call_on_other_values(product: Any, m: int) -> None:
    product.init(0)
    a, b = operands(m)
    out = torch.empty(m, N, dtype=a.dtype, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product.call(a, b, out=out)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        graph.replay()
        torch.cuda.synchronize()
        assert is_product(out, a, b)


def test_threads_call_at_once_on_streams_of_their_own(product: Any) -> None:
    def work(seed: int) -> bool:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            right = True
            for m in (1, 64, 65, 301, 700, 33):
                a, b = operands(m + seed)
                right &= is_product(product.call(a, b), a, b)
            stream.synchronize()
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_two_devices_in_turns(product: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for m in (40, 128, 40):
        for device in ("cuda:1", "cuda:0"):
            a, b = operands(m, device)
            found = product.call(a, b)
            assert found.device == torch.device(device)
            assert is_product(found, a, b)
    with torch.cuda.device(1):
        a, b = operands(500)
        assert is_product(product.call(a, b), a, b)
    a, b = operands(500, "cuda:1")[0], operands(500, "cuda:0")[1]
    with pytest.raises(ValueError, match="B lies on cuda:0 and the first input on cuda:1"):
        product.call(a, b)


def test_wrong_tensors_are_refused(product: Any) -> None:
    a, b = operands(64)
    flat = torch.empty(64 * N + 1, dtype=a.dtype, device="cuda")
    with pytest.raises(RuntimeError, match="C starts 2 bytes off a multiple of 16"):
        product.call(a, b, out=flat[1:].view(64, N))
    with pytest.raises(RuntimeError, match="C shares memory with B"):
        product.call(a, b, out=b[:64])
    with pytest.raises(ValueError, match="A lies on cpu, and the kernels run on cuda"):
        product.call(a.cpu(), b)
    with pytest.raises(ValueError, match="m=4097 is outside of the plan"):
        product.call(torch.empty(4097, K, dtype=a.dtype, device="cuda"), b)
    assert is_product(product.call(a, b), a, b)


def test_a_program_in_c_without_a_toolkit(made: Path, tmp_path: Path) -> None:
    source = ROOT / "experiments" / "export" / "program.c"
    flags = [
        "-std=c11",
        "-O1",
        *WARNINGS,
        "-DHAS_WORKSPACE",
        f"-DN={N}",
        f"-DK={K}",
        f"-I{made}",
        f"-L{made}",
    ]
    link = ["-lproduct", f"-Wl,-rpath,{made}", "-ldl", "-o", "program"]
    compile_program([compiler("gcc"), *flags, source, *link], tmp_path)
    for device in range(min(2, torch.cuda.device_count())):
        words = [str(tmp_path / "program"), "check", str(device), *map(str, SIZES)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(row["what"], row["device"], row["m"]) for row in rows] == [
            ("check", device, m) for m in SIZES
        ]


def test_the_module_alone_in_a_new_process(made: Path) -> None:
    script = (
        "import sys, torch, product\n"
        f"a = torch.ones(9, {K}, dtype=torch.bfloat16, device='cuda')\n"
        f"b = torch.ones({K}, {N}, dtype=torch.bfloat16, device='cuda')\n"
        f"assert bool((product.call(a, b) == {K}).all())\n"
        "print(*{name.split('.')[0] for name in sys.modules} & {'tilesight', 'tilelang', 'tvm'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=made, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_the_operator_of_torch(places: Path, table: DispatchTable) -> None:
    export(table, places / "operator", name="exported_product", format="torch")
    folder, root = places / "operator", Path(torch.__file__).parent
    headers = [
        "-isystem",
        root / "include",
        "-isystem",
        root / "include/torch/csrc/api/include",
        f"-I{folder}",
    ]
    link = [f"-L{root}/lib", "-ltorch", "-ltorch_cpu", "-lc10", f"-L{folder}", "-lexported_product", "-ldl"]
    paths = [f"-Wl,-rpath,{root}/lib", f"-Wl,-rpath,{folder}", "-o", "operator.so"]
    flags = ["-std=c++17", *WARNINGS, "-fPIC", "-shared", "exported_product_torch.cpp"]
    compile_program([compiler("g++"), *flags, *headers, *link, *paths], folder)
    torch.ops.load_library(str(folder / "operator.so"))
    operator = torch.ops.tilesight.exported_product
    compiled = torch.compile(lambda a, b: operator(a, b) + 1, fullgraph=True, dynamic=True)
    for m in (40, 128, 999):
        a, b = operands(m)
        assert is_product(operator(a, b), a, b)
        out = torch.empty(m, N, dtype=a.dtype, device="cuda")
        torch.ops.tilesight.exported_product_out(a, b, out)
        assert torch.equal(out, operator(a, b))
        assert torch.equal(compiled(a, b), out + 1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = operator(a * 2, b)
    stream.synchronize()
    assert is_product(found, a * 2, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = operator(a, b)
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    assert is_product(out, a, b)
    with pytest.raises(RuntimeError, match="m=4097 is outside of the plan"):
        operator(torch.empty(4097, K, dtype=a.dtype, device="cuda"), b)


@pytest.mark.parametrize(
    ("kernel", "shape", "dynamic"),
    [
        ("rms_norm", {"m": 128, "n": 1024}, "m"),
        ("flash_attention", {"batch": 1, "heads": 4, "seq_len": 256, "head_dim": 64}, "seq_len"),
        ("quantize", {"m": 64, "n": 1024}, "m"),  # two outputs
        ("grouped_matmul", {"tokens": 256, "groups": 4, "n": 256, "k": 256}, "tokens"),
    ],
)
def test_other_operators(
    kernel: str, shape: dict[str, int], dynamic: str, gpu_target: Target, places: Path
) -> None:
    operator = kernels.operator(kernel)
    template = kernels.template_for(kernel, gpu_target, kernels.default_dtype(kernel, gpu_target))
    words = ",".join(f"{name}={size}" for name, size in shape.items())
    workload = operator.workload_on(gpu_target, words, template.dtypes[0])
    config = (
        template.default_config(workload, gpu_target) or template.space(workload, gpu_target).sample(1)[0]
    )
    [made] = export(
        kernel,
        places / kernel,
        name=f"exported_{kernel}",
        format="python",
        target=gpu_target,
        shape=shape,
        dynamic=dynamic,
        config=config,
    )
    module = load(made.folder, made.name)
    for size in (shape[dynamic], shape[dynamic] - 3):
        asked = Workload(kernel, {**workload.dims, dynamic: size}, workload.dtype, workload.attrs)
        inputs = operator.inputs(asked, "cuda", 3)
        found = module.call(*inputs.values())
        outputs = found if isinstance(found, tuple) else (found,)
        for one, wanted in zip(outputs, operator.reference(asked, inputs).values(), strict=True):
            bound = max(operator.max_relative_error(asked), 1e-2)
            assert (one.float() - wanted.float()).norm() <= bound * wanted.float().norm(), size
