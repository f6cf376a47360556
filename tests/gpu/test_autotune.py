"""Users' own kernels under `autotune`. No `from __future__`: TileLang reads annotations."""

# ruff: noqa: N803, N806, N812
import os
from pathlib import Path
from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch

from tilesight.decorator import TunedSource, autotune
from tilesight.decorator.launched_call import LaunchedCall
from tilesight.errors import InputError
from tilesight.records.trial import Status
from tilesight.target.spec import Target

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("places")]

CONFIGS = [{"block_m": m, "block_n": n, "stages": s} for m in (64, 128) for n in (64, 128) for s in (0, 2)]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/performance.db")
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@tilelang.jit(out_idx=[-1], pass_configs={"tl.enable_fast_math": True})
def matmul(m, n, k, block_m=64, block_n=64, block_k=32, stages=2, dtype="float16"):  # type: ignore[no-untyped-def]
    @T.prim_func
    def main(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), dtype)):  # type: ignore[no-untyped-def, valid-type]
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=128) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), dtype)
            b_shared = T.alloc_shared((block_k, block_n), dtype)
            c_local = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(c_local)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a_shared)
                T.copy(B[ko * block_k, bx * block_n], b_shared)
                T.gemm(a_shared, b_shared, c_local)
            T.copy(c_local, C[by * block_m, bx * block_n])

    return main


def persistent(m: int, n: int, k: int, stages: int = 2) -> Any:
    """A block makes several tiles: what its producer counts goes on from tile to tile."""
    blocks = 32

    @T.prim_func
    def main(A: T.Tensor((m, k), "float16"), B: T.Tensor((k, n), "float16"), C: T.Tensor((m, n), "float16")):
        with T.Kernel(blocks, threads=128) as (block,):
            a_shared = T.alloc_shared((64, 64), "float16")
            b_shared = T.alloc_shared((64, 64), "float16")
            c_local = T.alloc_fragment((64, 64), "float32")
            for bx, by in T.Persistent([n // 64, m // 64], blocks, block):
                T.clear(c_local)
                for ko in T.Pipelined(k // 64, num_stages=stages):
                    T.copy(A[by * 64, ko * 64], a_shared)
                    T.copy(B[ko * 64, bx * 64], b_shared)
                    T.gemm(a_shared, b_shared, c_local)
                T.copy(c_local, C[by * 64, bx * 64])

    return main


@tilelang.jit
def doubled(A, block: int = 1024):  # type: ignore[no-untyped-def]
    N = T.const("N")
    A: T.Tensor[[N], T.float32]  # type: ignore[no-redef]
    B = T.empty([N], T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
        part = T.alloc_fragment((block,), "float32")
        T.copy(A[bx * block], part)
        for i in T.Parallel(block):
            part[i] = part[i] * 2
        T.copy(part, B[bx * block])
    return B


def added_factory(n: int, block: int = 1024) -> Any:
    """S += X."""

    @T.prim_func
    def added(S: T.Tensor((n,), "float32"), X: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
            for i in T.Parallel(block):
                T.atomic_add(S[bx * block + i], X[bx * block + i])

    return added


def test_tuned_checked_recorded_and_callable(gpu_target: Target) -> None:
    kernel = autotune(configs=CONFIGS, ref_prog=product)(matmul)(512, 768, 256)
    assert isinstance(kernel, tilelang.JITKernel)
    facts = kernel.tilesight
    assert (facts.source, facts.status, facts.target) == (
        TunedSource.SESSION,
        Status.VERIFIED,
        gpu_target.name,
    )
    a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((512, 256), (256, 768)))
    torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-2, atol=1e-2)
    assert kernel.latency == pytest.approx(facts.latency_us / 1e3)
    assert kernel.ref_latency > 0
    assert dict(kernel.config) in CONFIGS
    assert isinstance(kernel.torch_function, LaunchedCall), "the library that was measured"
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        there = kernel(a, b)
    stream.synchronize()
    torch.testing.assert_close(there, kernel(a, b))
    with pytest.raises(Exception):  # noqa: B017, PT011 - TileLang's own error
        kernel(a, b[:, ::2])
    kernel.get_profiler().assert_allclose(product, rtol=1e-2, atol=1e-2)
    again = autotune(configs=CONFIGS, ref_prog=product)(matmul)(512, 768, 256)
    assert again.tilesight.source is TunedSource.DATABASE
    assert dict(again.config) == dict(kernel.config)


def test_eager_kernels_agree_with_each_other() -> None:
    double = autotune(configs=[{"block": b} for b in (512, 1024, 2048)])(doubled)
    a = torch.randn(1 << 20, device="cuda")
    torch.testing.assert_close(double(a), 2 * a)
    kernel = double.compile(a)
    assert kernel.tilesight.status is Status.VERIFIED
    assert double.compile(N=1 << 20).tilesight.source is TunedSource.DATABASE


def test_kernels_that_update_a_tensor() -> None:
    add = autotune(
        configs=[{"block": b} for b in (1024, 4096)], supply_type=tilelang.TensorSupplyType.Uniform
    )(added_factory)
    kernel = add(1 << 16)
    assert kernel.tilesight.status is Status.VERIFIED
    x, s = torch.rand(1 << 16, device="cuda"), torch.full((1 << 16,), 5.0, device="cuda")
    kernel(s, x)
    torch.testing.assert_close(s, x + 5)


def rows_factory(width: int, block: int = 8) -> Any:
    """B = A * s + offset, for any number of rows."""
    m = T.dynamic("m")

    @T.prim_func
    def rows(
        A: T.Tensor((m, width), "float32"), s: T.float32, offset: T.int32, B: T.Tensor((m, width), "float32")
    ):
        with T.Kernel(T.ceildiv(m, block), threads=128) as bx:
            for i, j in T.Parallel(block, width):
                if bx * block + i < m:
                    B[bx * block + i, j] = A[bx * block + i, j] * s + offset

    return rows


def test_sizes_and_numbers_of_run_time() -> None:
    made = autotune(
        configs=[{"block": b} for b in (4, 8, 16)],
        out_idx=[-1],
        ref_prog=lambda a, s, offset: a * s + offset,
        measured_at={"m": 4096, "s": 0.5, "offset": -3},
    )(rows_factory)
    kernel = made(256)
    assert kernel.tilesight.status is Status.VERIFIED
    for m, s, offset in ((1, 2.0, 7), (4096, -0.25, 0), (1001, 1e-3, -(2**31))):
        a = torch.randn(m, 256, device="cuda")
        torch.testing.assert_close(kernel(a, s, offset), a * s + offset)


def test_a_config_that_asks_the_driver_or_crashes_while_it_is_traced() -> None:
    """A copy of this process cannot use CUDA, which is initialised here."""
    torch.cuda.init()

    def factory(n: int, block: int = 1024) -> Any:
        if block == 512:
            os.abort()
        assert torch.cuda.get_device_properties(0).multi_processor_count > 0
        return added_factory(n, block)

    kernel = autotune(configs=[{"block": b} for b in (512, 1024, 4096)])(factory)(1 << 16)
    assert kernel.tilesight.status is Status.VERIFIED
    assert kernel.config["block"] != 512


def test_persistent_kernels() -> None:
    kernel = autotune(configs=[{"stages": s} for s in (2, 3, 4)], out_idx=[-1], ref_prog=product)(persistent)(
        512, 768, 512
    )
    assert kernel.tilesight.status is Status.VERIFIED
    a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((512, 512), (512, 768)))
    torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-2, atol=1e-2)


def test_inputs_of_the_users_own() -> None:
    def supply(parameters: Any) -> list[torch.Tensor]:
        return [torch.ones(p.shape, dtype=p.torch_dtype(), device="cuda") for p in parameters]

    kernel = autotune(configs=CONFIGS[:2], supply_prog=supply, ref_prog=product)(matmul)(256, 256, 128)
    assert kernel.tilesight.status is Status.VERIFIED
    with tilelang.autotuner.set_autotune_inputs(
        *(torch.ones(128, 128, device="cuda", dtype=torch.float16) for _ in range(2))
    ):
        held = autotune(configs=CONFIGS[:2], ref_prog=product)(matmul)(128, 128, 128)
    assert held.tilesight.status is Status.VERIFIED


def test_nothing_is_tuned_inside_a_capture() -> None:
    tuned = autotune(configs=CONFIGS[:2], ref_prog=product)(matmul)
    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    tuned(256, 256, 256)(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = tuned(256, 256, 256)(a, b)
        with pytest.raises(InputError, match="inside a CUDA-graph capture"):
            tuned(512, 512, 512)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-2)
