"""The module of an export for vLLM: the operator, the kernel to warm up, and Inductor's choice."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.exports import matmul_table, run_program
from tests.unit.exporter.conftest import GPU_SEGMENTS, Sample, exports_by
from tests.unit.exporter.test_interface import ALONE, kernel_set
from tilesight import kernels
from tilesight.api.exporting import export
from tilesight.dispatch.problem import make_problem
from tilesight.dispatch.table.dispatch_table import Segment
from tilesight.executor.local import LocalExecutor
from tilesight.exporter.interface import read_interface
from tilesight.exporter.kernel_set import KernelSet, SizeLimits
from tilesight.exporter.plain_torch import plain_torch
from tilesight.exporter.table_source import kernels_of_table
from tilesight.exporter.vllm_module import dispatch_expression, vllm_module
from tilesight.target.spec import load_target


@pytest.fixture(scope="module")
def made(
    cpu_sample: Sample, session_executor: LocalExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An export of its own name, since a process has each operator once."""
    folder = tmp_path_factory.mktemp("vllm") / "made"
    with exports_by(session_executor):
        export(cpu_sample.file, folder, name="engine_product", format="vllm")
    return folder


@pytest.fixture(scope="module")
def engine(made: Path) -> Iterator[Any]:
    sys.path.insert(0, str(made))
    yield importlib.import_module("engine_product_vllm")
    sys.path.remove(str(made))
    for name in ("engine_product", "engine_product_vllm"):
        sys.modules.pop(name)


def operands(m: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(m, 32), torch.randn(32, 48)


def expected(a: torch.Tensor, b: torch.Tensor) -> Any:
    return pytest.approx((a @ b).numpy(), abs=1e-4)


def test_the_operator_computes_and_is_traced(engine: Any) -> None:
    operator = torch.ops.tilesight.engine_product
    for m in (1, 17, 100):
        a, b = operands(m)
        assert operator(a, b).numpy() == expected(a, b)
        assert engine.KERNEL(a, b).numpy() == expected(a, b)
        out = torch.empty(m, 48)
        torch.ops.tilesight.engine_product_out(a, b, out)
        assert out.numpy() == expected(a, b)
    a, b = operands(20)
    assert operator(a.T.contiguous().T, b).numpy() == expected(a, b), "compilers may choose other layouts"
    found = operator(a.to("meta"), b.to("meta"))
    assert (found.shape, found.dtype, found.device.type) == ((20, 48), torch.float32, "meta")


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("m", [0, 101])
def test_sizes_outside_of_the_plan_are_refused(m: int) -> None:
    message = rf"^engine_product: m={m} is outside of the plan, which covers m = 1 \.\. 100"
    with pytest.raises(ValueError, match=message) as refused:
        torch.ops.tilesight.engine_product(torch.randn(m, 32), operands(1)[1])
    # Inductor leaves such a choice out, and goes on
    assert isinstance(refused.value, NotImplementedError)


def test_dispatch_is_the_selection_at_every_size(engine: Any) -> None:
    select = sys.modules["engine_product"].select
    found = [engine.KERNEL.dispatch(m=m).kernel for m in range(103)]
    assert found == [select(m) for m in range(103)]
    assert set(found) == {-1, 0, 1}


def test_dispatch_is_one_conditional_expression(made: Path) -> None:
    """As vLLM's tracer wants it: one return of a key whose fields are expressions of the arguments."""
    tree = ast.parse((made / "engine_product_vllm.py").read_text(encoding="utf-8"))
    [dispatch] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "dispatch"]
    [statement] = dispatch.body
    assert isinstance(statement, ast.Return)
    assert isinstance(statement.value, ast.Call)
    [field] = statement.value.keywords
    assert isinstance(field.value, ast.IfExp)
    assert {type(n) for n in ast.walk(field.value)} <= {
        *(ast.IfExp, ast.Compare, ast.LtE, ast.Name, ast.Load, ast.Constant, ast.UnaryOp, ast.USub)
    }


def test_warming_up_loads_each_kernel_and_launches_it_once(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["engine_product"]
    module.init(0)  # calls below need it, and no other test may have done so
    loaded: list[int] = []
    monkeypatch.setattr(module, "init", loaded.append)
    assert [key.kernel for key in engine.KERNEL.get_warmup_keys()] == [0, 1]
    assert engine.KERNEL.get_warmup_keys(vllm_config=object()) == engine.KERNEL.get_warmup_keys()
    engine.KERNEL.warmup()
    assert loaded == [0, 0]
    launched: list[tuple[int, ...]] = []
    call = module.call
    monkeypatch.setattr(module, "call", lambda a, b: launched.append(a.shape) or call(a, b))
    engine.KERNEL.warm_up()
    assert [module.select(m) for m, _ in launched] == [0, 1]
    with pytest.raises(ValueError, match="engine_product: there is no kernel 2; the last one is 1"):
        engine.KERNEL.compile(engine.KERNEL.CompileKey(kernel=2))


def test_a_speedup_must_be_above_0(engine: Any) -> None:
    for wrong in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(
            ValueError, match=rf"^engine_product: min_speedup={wrong} must be a number above 0$"
        ):
            engine.register_inductor(min_speedup=wrong)


@pytest.mark.usefixtures("engine")
def test_a_second_export_of_one_name_is_refused(made: Path) -> None:
    spec = importlib.util.spec_from_file_location("again", made / "engine_product_vllm.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(RuntimeError) as refused:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert str(refused.value) == (
        "engine_product: this process has operators torch.ops.tilesight.engine_product already; export one "
        "of them with --name"
    )
    a, b = operands(20)
    assert torch.ops.tilesight.engine_product(a, b).numpy() == expected(a, b), "the first one stays"
    assert "the last one is 1" in (made / "engine_product_vllm.py").read_text(encoding="utf-8")


WARM = """
import sys, torch
torch.cuda.current_device = lambda: 2
import product_vllm
print(*(key.kernel for key in product_vllm.KERNEL.get_warmup_keys()))
product_vllm.KERNEL.warmup()
print(*(product_vllm.KERNEL.dispatch(m=m).kernel for m in map(int, sys.argv[1:])))
"""


def test_gpu_kernels_are_loaded_for_the_current_device(
    gpu_sample: Sample,
    session_executor: LocalExecutor,
    stub_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    with exports_by(session_executor):
        export(gpu_sample.file, tmp_path / "made", format="vllm")
    sizes = sorted({end for first, last, _ in GPU_SEGMENTS for end in (first - 1, first, last, last + 1)})
    environment = {**stub_environment, "STUB_DEVICES": "3", "PYTHONPATH": str(tmp_path / "made")}
    out = run_program([sys.executable, "-c", WARM, *map(str, sizes)], environment)
    keys, chosen = out.splitlines()
    assert keys == "0 1"
    served = {size: kernel for first, last, kernel in GPU_SEGMENTS for size in range(first, last + 1)}
    assert chosen.split() == [str(served.get(size, -1)) for size in sizes]
    events = Path(environment["STUB_LOG"]).read_text(encoding="utf-8").splitlines()
    assert [event.split()[1] for event in events if event.startswith("retain")] == ["2"]
    assert not [event for event in events if event.startswith("launch")]


@pytest.mark.parametrize(
    "segments",
    [
        [(1, 9, 0)],
        [(5, 9, 0), (10, 10, 1), (30, 40, 0), (41, 50, 1)],
        [(16, 16, 0), (32, 32, 1), (64, 64, 2), (128, 128, 3), (129, 200, 3)],
        [(1 + 3 * i, 2 + 3 * i, i) for i in range(64)],
    ],
)
def test_the_expression_is_the_segments_at_every_size(segments: list[tuple[int, int, int]]) -> None:
    base = kernel_set("matmul")
    made = replace(
        base,
        sizes=(SizeLimits("m", segments[0][0], segments[-1][1]), SizeLimits("k", 8, 32)),
        segments=tuple(Segment(*segment) for segment in segments),
    )
    found = compile(dispatch_expression(made), "expression", "eval")
    for m in range(segments[-1][1] + 3):
        served = made.kernel_at(m)
        assert eval(found, {"m": m, "k": 32}) == (-1 if served is None else served), m
    assert eval(found, {"m": segments[0][0], "k": 33}) == -1


@pytest.mark.parametrize("name", ALONE)
def test_the_module_of_every_operator_is_python(name: str) -> None:
    made = kernel_set(name)
    text = vllm_module(made, read_interface(made))
    compile(text, "made_vllm.py", "exec")
    assert "@" not in text.replace("@dataclass", "").replace("(M @ ", "")
    assert text.count("def dispatch(self, *, ") == 1


def test_a_kernel_of_one_shape_has_no_sizes() -> None:
    base = kernel_set("matmul")
    problem = make_problem(
        base.problem.template,
        base.problem.target,
        base.problem.dtype,
        base.problem.attrs,
        base.kernels[0].workload.dims,
        (),
    )
    made = KernelSet("made", problem, (), (replace(base.kernels[0], dynamic=()),))
    text = vllm_module(made, read_interface(made))
    compile(text, "made_vllm.py", "exec")
    assert "def dispatch(self) -> CompileKey:\n        return self.CompileKey(kernel=0)" in text
    assert "SPLIT_POINTS: list[int] | None = None" in text


@pytest.mark.parametrize(
    ("operator", "shape", "dtype"),
    [
        *(("matmul", f"m=5,n=16,k=32,layout={layout}", "float16") for layout in ("nn", "nt", "tn")),
        *(
            ("matmul", f"m=5,n=16,k=32,fuse={fuse}", "bfloat16")
            for fuse in ("bias", "relu", "gelu", "silu", "bias_gelu", "residual")
        ),
        ("rms_norm", "m=5,n=64", "bfloat16"),
        ("silu_mul", "m=5,n=64", "float16"),
        ("softmax", "m=5,n=64", "float16"),
    ],
)
def test_torchs_own_expression_is_the_operator(operator: str, shape: str, dtype: str) -> None:
    found, target = kernels.operator(operator), load_target("h200")
    workload = found.workload(shape, dtype)
    problem = make_problem(
        kernels.template_for(operator, target, dtype), target, dtype, workload.attrs, workload.dims, ()
    )
    made = KernelSet("made", problem, (), ())
    inputs = found.inputs(workload, "cpu", 1)
    expression = plain_torch(problem, read_interface(made))
    assert expression is not None
    result = eval(expression, {"torch": torch, **inputs}).float()
    [wanted] = found.reference(workload, inputs).values()
    assert (result - wanted).norm() <= 2 * max(found.max_relative_error(workload), 4e-3) * wanted.norm()


@pytest.mark.parametrize(
    ("name", "attrs", "message"),
    [
        ("rms_norm", {"residual": True}, "Inductor chooses for operators with one result only"),
        ("rope", {}, "torch has no plain expression for rope bfloat16"),
        (
            "matmul",
            {"scales": "row", "layout": "nt"},
            "torch has no plain expression for matmul float8_e4m3fn",
        ),
    ],
)
def test_what_inductor_cannot_choose_is_said(name: str, attrs: dict[str, Any], message: str) -> None:
    base, target = kernel_set(name), load_target("h200")
    dtype = "float8_e4m3fn" if "scales" in attrs else base.problem.dtype
    problem = replace(
        base.problem, attrs=attrs, dtype=dtype, template=kernels.template_for(name, target, dtype)
    )
    made = replace(base, problem=problem, kernels=())
    assert f'raise RuntimeError("made: {message}")' in vllm_module(made, read_interface(made))


def test_ranges_are_those_of_the_segments() -> None:
    """Inductor resizes the first tensor alone: it gets ranges if no other one has the size."""
    table = matmul_table("h200", "bfloat16", {"n": 256, "k": 1024}, [{}, {"split_k": 2}], GPU_SEGMENTS)
    made = kernels_of_table(table, "made", None)
    text = vllm_module(made, read_interface(made))
    assert "= {'tensor_name': 'A', 'dim': 0, 'range_upper_bound': 4097}\n" in text
    assert "SPLIT_POINTS: list[int] | None = [64, 300, 400, 4096]\n" in text
    gap = replace(made, segments=(Segment(5, 9, 0), Segment(20, 30, 1)), sizes=(SizeLimits("m", 5, 30),))
    assert "= [4, 9, 19, 30]\n" in vllm_module(gap, read_interface(gap))
    text = vllm_module(replace(made, table=None), read_interface(made))
    assert "SPLIT_POINTS: list[int] | None = None\n" in text, "it serves any size"
    fused = replace(made, problem=replace(made.problem, attrs={"fuse": "residual"}))
    text = vllm_module(fused, read_interface(fused))
    assert "DISPATCH_ON: dict[str, Any] | None = None\n" in text


# without operations between products there is nothing that a C++ compiler would have to compile
INDUCTOR = """
import torch, engine_product, engine_product_vllm
engine_product_vllm.register_inductor(min_speedup=1000)
served, call = [], engine_product.call
def counted(a, b):
    served.append(len(a))
    return call(a, b)
engine_product.call = counted
compiled = torch.compile(lambda a, b: torch.ops.tilesight.engine_product(a, b), fullgraph=True)
b = torch.randn(32, 48)
for m in (20, 3, 100, 101):
    a = torch.randn(m, 32)
    torch._dynamo.mark_dynamic(a, 0)
    found = compiled(a, b)
    torch.testing.assert_close(found, a @ b, atol=1e-3, rtol=1e-3)
    print(m, "timed" if len(served) > 9 else served)
    served.clear()
"""


def test_a_compiled_model_calls_the_kernels_within_the_plan_and_torch_beyond(
    made: Path, tmp_path: Path
) -> None:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(made),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    out = run_program([sys.executable, "-c", INDUCTOR], environment)
    assert out.splitlines() == ["20 timed", "3 [3]", "100 [100]", "101 []"]
