"""Dispatch on a real GPU: all operators, streams, threads, graphs and compiled models.

Run: python -m pytest tests/gpu/test_dispatch.py
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tilesight import kernels
from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.make import dispatcher
from tilesight.dispatch.select.choice import ChoiceSource
from tilesight.errors import InputError
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target

pytestmark = pytest.mark.gpu

N, K = 512, 256
# for each free dimension a size of whole tiles and another one
PROBLEMS: dict[str, tuple[dict[str, int], list[dict[str, int]]]] = {
    "matmul": ({"n": N, "k": K}, [{"m": 256}, {"m": 77}]),
    "gemv": ({"k": 1024}, [{"n": 512}, {"n": 77}]),
    "rms_norm": ({"n": 1024}, [{"m": 64}, {"m": 77}]),
    "flash_attention": ({"batch": 1, "heads": 4, "head_dim": 64}, [{"seq_len": 256}, {"seq_len": 301}]),
    "dequant_matmul": ({"n": N, "k": K}, [{"m": 256}, {"m": 7}]),
    "chunk_state": (
        {"nheads": 4, "head_dim": 64, "d_state": 64},
        [{"batch": 1, "seq_len": 512}, {"batch": 2, "seq_len": 300}],
    ),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("dispatch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILESIGHT_CACHE_DIR", str(folder / "cache"))
        yield f"sqlite:///{folder}/performance.db"


@pytest.fixture(scope="module")
def static(places: str, gpu_target: Target) -> Iterator[Dispatcher]:
    with dispatcher("matmul", gpu_target, database=places, n=N, k=K) as made:
        made.prepare(m=[64, 100])
        yield made


def operands(m: int, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.randn(m, K, dtype=torch.bfloat16, device=device)
    return a, torch.randn(K, N, dtype=torch.bfloat16, device=device) / K**0.5


def is_product(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    wanted = a.float() @ b.float()
    return bool((found.float() - wanted).norm() < 5e-3 * wanted.norm())


@pytest.mark.parametrize("kernel", sorted(PROBLEMS))
def test_every_operator_matches_its_reference(kernel: str, places: str, gpu_target: Target) -> None:
    fixed, sizes = PROBLEMS[kernel]
    operator = kernels.operator(kernel)
    with dispatcher(kernel, gpu_target, database=places, **fixed) as made:  # type: ignore[arg-type]
        made.prepare(**{name: [size[name] for size in sizes] for name in sizes[0]})
        for size in sizes:
            workload = Workload(
                kernel,
                {d: {**fixed, **size}[d] for d in operator.dims},
                made.problem.dtype,
                made.problem.attrs,
            )
            inputs = operator.inputs(workload, "cuda", 3)
            found = made(*inputs.values()).float()
            [wanted] = operator.reference(workload, inputs).values()
            assert (found - wanted).norm() <= operator.max_relative_error(workload) * wanted.norm(), size


@pytest.mark.parametrize("kernel", sorted(PROBLEMS))
def test_kernels_with_dynamic_dimensions_match_the_reference(
    kernel: str, places: str, gpu_target: Target
) -> None:
    fixed, sizes = PROBLEMS[kernel]
    operator = kernels.operator(kernel)
    dynamic_dims = [
        dim
        for dim in kernels.template_for(kernel, gpu_target, operator.dtypes[0]).dynamic_dims
        if dim in sizes[0]
    ]
    if not dynamic_dims:
        pytest.skip(f"no free dimension of {kernel} can be dynamic")
    with dispatcher(kernel, gpu_target, database=places, dynamic=dynamic_dims, **fixed) as made:  # type: ignore[arg-type]
        for size in sizes:
            workload = Workload(
                kernel,
                {d: {**fixed, **size}[d] for d in operator.dims},
                made.problem.dtype,
                made.problem.attrs,
            )
            inputs = operator.inputs(workload, "cuda", 3)
            found = made(*inputs.values()).float()
            [wanted] = operator.reference(workload, inputs).values()
            assert (found - wanted).norm() <= operator.max_relative_error(workload) * wanted.norm(), size


def test_streams_and_threads(static: Dispatcher) -> None:
    a, b = operands(64)
    wanted = static(a, b)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        found = static(a, b)
    side.synchronize()
    assert torch.equal(found, wanted)

    def work(_: int) -> bool:  # a thread that has not used the device yet
        mine = [static(a, b) for _ in range(50)]
        torch.cuda.synchronize()
        return all(torch.equal(one, wanted) for one in mine)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_a_captured_call_is_replayed_on_new_inputs(static: Dispatcher) -> None:
    a, b = operands(64)
    static(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = static(a, b)
        second = static(a, b)
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(first, second)
    assert is_product(first, a, b)


def test_nothing_is_built_while_a_graph_is_captured(static: Dispatcher) -> None:
    a, b = operands(333)
    graph, refused = torch.cuda.CUDAGraph(), False
    with torch.cuda.graph(graph):
        kept = torch.empty(8, device="cuda").zero_()  # the graph must not be empty
        try:
            static(a, b)
        except InputError as error:
            refused = "before the capture call prepare(m=[333])" in str(error)
    graph.replay()
    assert refused
    assert kept.sum() == 0
    assert is_product(static(a, b), a, b)  # after the capture it is built


def test_a_capture_uses_a_loaded_kernel_with_dynamic_m(places: str, gpu_target: Target) -> None:
    template = kernels.template_for("matmul", gpu_target, "bfloat16")
    if "m" not in template.dynamic_dims:
        pytest.skip("m of matmul cannot be dynamic")
    with dispatcher("matmul", gpu_target, database=places, n=N, k=K, dynamic=("m",)) as made:
        made.prepare(m=[256])
        a, b = operands(250)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = made(a, b)
        graph.replay()
        torch.cuda.synchronize()
        assert is_product(found, a, b)


def test_compiled_by_torch(static: Dispatcher) -> None:
    torch._dynamo.reset()
    dynamic = torch.compile(lambda a, b: static(a * 2, b).relu(), fullgraph=True, dynamic=True)
    for m in (64, 100):
        a, b = operands(m)
        assert torch.equal(dynamic(a, b), static(a * 2, b).relu())
    replayed = torch.compile(lambda a, b: static(a, b) + 1, fullgraph=True, mode="reduce-overhead")
    a, b = operands(64)
    for _ in range(4):
        assert torch.equal(replayed(a, b), static(a, b) + 1)
    assert set(torch.library.opcheck(static.op, operands(64)).values()) == {"SUCCESS"}


def test_tensors_that_no_kernel_takes_are_refused(static: Dispatcher) -> None:
    a, b = operands(64)
    shifted = torch.empty(64 * K + 1, dtype=torch.bfloat16, device="cuda")[1:].view(64, K)
    for bad, message in (
        ((shifted, b), "starts 2 bytes off a multiple of 16"),
        ((a, b.t().contiguous().t()), "B has strides"),
        ((a.cpu(), b.cpu()), "A lies on cpu"),
        ((a, b.cpu()), "B lies on cpu"),
        ((a.half(), b), "A is float16 and must be bfloat16"),
    ):
        with pytest.raises(InputError, match=message):
            static(*bad)
    assert is_product(static(a, b), a, b)


def test_tensors_of_another_device_are_computed_there(static: Dispatcher) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    a, b = operands(64, "cuda:1")
    found = static(a, b)
    assert found.device == a.device
    assert is_product(found, a, b)
    here = operands(64)
    assert is_product(static(*here), *here)
    with torch.cuda.device(1):
        assert is_product(static(*here), *here)


def test_improve_replaces_the_kernel_by_a_measured_one(places: str, gpu_target: Target) -> None:
    with dispatcher("matmul", gpu_target, database=places, n=1024, k=1024) as made:
        a = torch.randn(512, 1024, dtype=torch.bfloat16, device="cuda")
        b = torch.randn(1024, 1024, dtype=torch.bfloat16, device="cuda") / 32
        made(a, b)
        found: Any = made.improve(m=512, challengers=2, budget_s=30)
        assert found.decision is not None, found.reason
        chosen = made.choose(m=512)
        assert (chosen.source, chosen.is_measured) == (ChoiceSource.RECORD, True)
        assert is_product(made(a, b), a, b)
    with dispatcher("matmul", gpu_target, database=places, n=1024, k=1024) as again:
        assert again.choose(m=512).config == chosen.config
        assert again.choose(m=500).source is ChoiceSource.NEIGHBOUR
