"""Exports for engines on a real GPU: vLLM's operator and warm-up, Inductor's choice, FlashInfer's solutions.

No engine is needed. Run: python -m pytest tests/gpu/test_export_engines.py
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.exports import matmul_table, unpack_solution
from tilesight import kernels
from tilesight.api.exporting import export
from tilesight.dispatch.table.dispatch_table import DispatchTable
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target

pytestmark = pytest.mark.gpu

N, K = 256, 1024
SEGMENTS = [(1, 64, 1), (65, 512, 0)]  # each one more is a range that Inductor times
SIZES = [1, 64, 65, 300, 512]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILESIGHT_CACHE_DIR", str(folder / "cache"))
        patch.setenv("TILESIGHT_DB", f"sqlite:///{folder}/performance.db")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        yield folder


@pytest.fixture(scope="module")
def table(gpu_target: Target) -> DispatchTable:
    """Two kernels of C = A B^T: the second one adds parts of k, from scratch memory."""
    changes: list[dict[str, int | str]] = [{}, {"split_k": 2}]
    fixed = {"n": N, "k": K}
    return matmul_table(gpu_target.name, "bfloat16", fixed, changes, SEGMENTS, layout="nt")


@pytest.fixture(scope="module")
def engine(places: Path, table: DispatchTable) -> Iterator[Any]:
    export(table, places / "vllm", name="engine_gpu", format="vllm")
    sys.path.insert(0, str(places / "vllm"))
    yield importlib.import_module("engine_gpu_vllm")
    sys.path.remove(str(places / "vllm"))


def operands(m: int) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.randn(m, K, dtype=torch.bfloat16, device="cuda")
    return a, torch.randn(N, K, dtype=torch.bfloat16, device="cuda") / K**0.5


def is_close(found: torch.Tensor, wanted: torch.Tensor, bound: float = 5e-3) -> bool:
    return bool((found.float() - wanted.float()).norm() <= bound * wanted.float().norm())


def test_warming_up_launches_each_kernel_once(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["engine_gpu"]
    sizes, call = [], module.call
    monkeypatch.setattr(module, "call", lambda a, b: sizes.append(len(a)) or call(a, b))
    engine.KERNEL.warmup()
    assert sizes == []
    engine.KERNEL.warm_up()
    assert sorted(module.select(m) for m in sizes) == [0, 1]


@pytest.mark.parametrize("m", SIZES)
def test_the_operator(engine: Any, m: int) -> None:
    a, b = operands(m)
    operator = torch.ops.tilesight.engine_gpu
    found = operator(a, b)
    assert is_close(found, a.float() @ b.float().T)
    out = torch.empty_like(found)
    torch.ops.tilesight.engine_gpu_out(a, b, out)
    assert torch.equal(out, found)
    assert torch.equal(engine.KERNEL(a, b), found)
    assert engine.KERNEL.dispatch(m=m).kernel == sys.modules["engine_gpu"].select(m)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = operator(a, b)
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    assert is_close(captured, a.float() @ b.float().T)


@pytest.mark.usefixtures("engine")
def test_the_operator_in_a_compiled_model() -> None:
    operator = torch.ops.tilesight.engine_gpu_kernel  # which Inductor never replaces
    compiled = torch.compile(lambda a, b: operator(a, b) + 1, fullgraph=True, dynamic=True)
    for m in (40, 128):
        a, b = operands(m)
        assert torch.equal(compiled(a, b), operator(a, b) + 1)


@pytest.mark.usefixtures("engine")
def test_sizes_outside_of_the_plan_are_refused() -> None:
    a, b = operands(513)
    with pytest.raises(NotImplementedError, match="m=513 is outside of the plan"):
        torch.ops.tilesight.engine_gpu(a, b)


def test_inductor_chooses_by_ranges(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right results at sizes of all ranges; beyond the plan torch's own operators are what is left."""
    engine.register_inductor()
    module = sys.modules["engine_gpu"]
    sizes, call = [], module.call
    monkeypatch.setattr(module, "call", lambda a, b: sizes.append(len(a)) or call(a, b))
    compiled = torch.compile(lambda a, b: torch.ops.tilesight.engine_gpu(a * 2, b) + 1, fullgraph=True)
    for m in (*SIZES[1:], 700):
        a, b = operands(m)
        torch._dynamo.mark_dynamic(a, 0)
        assert is_close(compiled(a, b), 2 * a.float() @ b.float().T + 1, 1e-2), m
    assert {64, 512} <= set(sizes), "the ends of both segments were timed"
    assert 700 not in sizes


ATTENTION = {
    "batch": 3,
    "heads": 8,
    "tokens": 300,
    "head_dim": 128,
    "tokens_kv": 400,
    "causal": True,
    "group": 4,
    "lse": True,
}


PAGES = {"batch": 5, "indices": 40, "pages": 60, "lengths": "mixed"}
HEADS = {"heads": 8, "kv_heads": 2, "head_dim": 128}
LATENT = {"heads": 16, "dim": 512, "scale": 192**-0.5}


@pytest.mark.parametrize(
    ("kernel", "shape", "dynamic", "name"),
    [
        ("matmul", {"m": 128, "n": N, "k": K, "layout": "nt"}, ["m"], f"gemm_n{N}_k{K}"),
        ("rms_norm", {"m": 128, "n": 4096}, ["m"], "rmsnorm_h4096"),
        ("rms_norm", {"m": 128, "n": 4096, "residual": True}, ["m"], "fused_add_rmsnorm_h4096"),
        (
            "flash_attention_varlen",
            ATTENTION,
            ["batch", "tokens", "tokens_kv"],
            "gqa_ragged_prefill_causal_h8_kv2_d128",
        ),
        *(
            (
                "flash_decoding_paged",
                {**PAGES, **HEADS, "page": page},
                ["indices", "pages", "batch"],
                f"gqa_paged_decode_h8_kv2_d128_ps{page}",
            )
            for page in (1, 64)
        ),
        *(
            (
                "mla_decode_paged",
                {**PAGES, **LATENT, "page": page},
                ["indices", "pages", "batch"],
                f"mla_paged_decode_h16_ckv512_kpe64_ps{page}",
            )
            for page in (1, 64)
        ),
    ],
)
def test_solutions_write_what_references_return(
    kernel: str,
    shape: dict[str, Any],
    dynamic: list[str],
    name: str,
    gpu_target: Target,
    places: Path,
) -> None:
    operator = kernels.operator(kernel)
    template = kernels.template_for(kernel, gpu_target, "bfloat16")
    words = ",".join(f"{key}={str(value).lower()}" for key, value in shape.items())
    workload = operator.workload_on(gpu_target, words, "bfloat16")
    config = (
        template.default_config(workload, gpu_target) or template.space(workload, gpu_target).sample(1)[0]
    )
    folder = places / name
    export(
        kernel,
        folder,
        name=f"engine_{kernel}",
        format="flashinfer-trace",
        target=gpu_target,
        shape=words,
        dtype="bfloat16",
        dynamic=dynamic,
        config=config,
    )
    [file], [solution] = folder.glob(f"definitions/*/{name}.json"), folder.glob("solutions/*/*/*/*.json")
    definition = json.loads(file.read_text(encoding="utf-8"))
    entry = unpack_solution(solution, places / "packages")
    reference: dict[str, Any] = {}
    exec(definition["reference"], reference)
    rows = dynamic[-1] if kernel != "flash_attention_varlen" else "tokens"
    for size in (shape[rows], shape[rows] - 3):
        asked = Workload(kernel, {**workload.dims, rows: size}, workload.dtype, workload.attrs)
        given: list[Any] = list(operator.inputs(asked, "cuda", 3).values())
        if "sm_scale" in definition["inputs"]:
            given.append(shape.get("scale") or shape["head_dim"] ** -0.5)
        found = reference["run"](*given)
        wanted = found if isinstance(found, tuple) else (found,)
        places_for = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in wanted]
        assert entry.run(*given, *places_for) is None
        for place, right in zip(places_for, wanted, strict=True):
            assert place.dtype == right.dtype
            assert is_close(place, right, 1e-2), size
