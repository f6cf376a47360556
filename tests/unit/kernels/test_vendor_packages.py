"""Calls of packages that may be installed: stand-ins with their interfaces compute from what they get.

A stand-in reads its arguments as the package documents them, so that a wrong layout gives a wrong result.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tilesight.errors import CaptureError
from tilesight.kernels import _matmul_vendor, _vendor_calls, operator
from tilesight.kernels._packed import NF4
from tilesight.problem.workload import Workload
from tilesight.runner.vendors import vendor_fault

Tensor = torch.Tensor
Install = Callable[..., None]
REPLAYED = _vendor_calls.replayed


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vendor_calls, "on_gpu", lambda _: True)
    monkeypatch.setattr(_vendor_calls, "replayed", lambda call: call)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(name: str, **members: object) -> None:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            module = sys.modules.get(path)
            if module is None or not hasattr(module, "is_stand_in"):
                module = ModuleType(path)
                vars(module)["is_stand_in"] = True
                monkeypatch.setitem(sys.modules, path, module)
        vars(sys.modules[name]).update(members)

    return install


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        def find_spec(self, name: str, *_: object) -> None:
            if name in _vendor_calls.PACKAGES:
                raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    for name in _vendor_calls.PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])


def fault(name: str, shape: str, call: str, dtype: str = "bfloat16") -> str:
    """What is wrong with a call's result."""
    op = operator(name)
    workload = op.workload(shape, dtype)
    inputs = op.inputs(workload, "cpu", 3)
    result = op.vendor(workload, inputs)[call]()
    assert result is not None
    return vendor_fault(op, workload, result, op.reference(workload, inputs))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gated_delta_rule", "batch=1,seq_len=8,heads=1,head_k=16,head_v=16"),
        ("mla_decode", "batch=1,heads=2,kv_len=64"),
        ("dequant_matmul", "m=1,n=256,k=128"),
    ],
)
def test_absent_packages_are_left_out(name: str, shape: str) -> None:
    op = operator(name)
    workload = op.workload(shape)
    calls = op.vendor(workload, op.inputs(workload, "cpu", 0))
    assert calls
    assert all("torch" in call or "BLAS" in call for call in calls)


def test_a_package_that_fails_says_why_when_it_is_called(install: Install) -> None:
    def get_mla_metadata(*_: object) -> None:
        raise RuntimeError("no kernel image")

    install("flash_mla", get_mla_metadata=get_mla_metadata, flash_mla_with_kvcache=None)
    op = operator("mla_decode")
    workload = op.workload("batch=1,heads=2,kv_len=64")
    call = op.vendor(workload, op.inputs(workload, "cpu", 0))["FlashMLA"]
    with pytest.raises(RuntimeError, match="no kernel image"):
        call()


def test_a_package_that_lacks_another_one_says_so(install: Install) -> None:
    def needs(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'einops'", name="einops")

    install("flash_mla", get_mla_metadata=needs, flash_mla_with_kvcache=None)
    op = operator("mla_decode")
    workload = op.workload("batch=1,heads=2,kv_len=64")
    with pytest.raises(ModuleNotFoundError, match="einops"):
        op.vendor(workload, op.inputs(workload, "cpu", 0))["FlashMLA"]()


def test_a_failed_capture_gives_the_stream_back(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[object] = ["capture"]

    @contextmanager
    def capture(*_: object, **__: object) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "own")
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    with pytest.raises(CaptureError, match="not permitted"):
        REPLAYED(lambda: None)()
    assert streams[-1] == "own"


def test_calls_are_captured_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    state = SimpleNamespace(capturing=False)

    class Graph:
        def replay(self) -> None:
            log.append("replay")

    @contextmanager
    def capture(graph: Graph, capture_error_mode: str) -> Iterator[None]:
        assert isinstance(graph, Graph)
        assert capture_error_mode == "thread_local"  # other threads may use the device meanwhile
        log.append("capture")
        yield
        log.append("end")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "own")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    call = REPLAYED(lambda: log.append("call") or len(log))
    assert [call(), call()] == [3, 3], "the tensors of the capture hold the results"
    assert log == ["call", "capture", "call", "end", "replay", "replay"]
    state.capturing = True
    assert call() == 7
    assert log[6:] == ["call"]


# flash-linear-attention


def test_delta_rule_of_fla(install: Install) -> None:
    op = operator("gated_delta_rule")
    workload = op.workload("batch=2,seq_len=20,heads=3,head_k=16,head_v=32")

    def chunk_gated_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, output_final_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        assert (q.dtype, g.dtype, beta.dtype) == (torch.bfloat16, torch.float32, torch.float32)
        found = op.reference(workload, {"q": q, "k": k, "v": v, "g": g, "beta": beta})
        return found["o"].to(v.dtype), found["state"] if output_final_state else None

    install("fla.ops.gated_delta_rule", chunk_gated_delta_rule=chunk_gated_delta_rule)
    assert not fault(op.name, "batch=2,seq_len=20,heads=3,head_k=16,head_v=32", "flash-linear-attention")


def test_decoding_step_of_fla(install: Install) -> None:
    """Tokens have an axis of one token there; beta is not its fifth argument."""
    op = operator("gated_delta_rule_decode")
    workload = op.workload("batch=2,heads=3,head_k=16,head_v=32")

    def fused_recurrent_gated_delta_rule(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor | None = None,
        gk: Tensor | None = None,
        gv: Tensor | None = None,
        beta: Tensor | None = None,
        scale: float | None = None,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        assert gk is gv is scale is None
        assert g is not None
        assert beta is not None
        assert initial_state is not None
        assert q.shape == (2, 1, 3, 16)
        assert beta.shape == (2, 1, 3)
        tokens = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        given = {name: tensor[:, 0] for name, tensor in tokens.items()}
        found = op.reference(workload, {**given, "state": initial_state})
        return found["o"][:, None].to(v.dtype), found["new_state"] if output_final_state else None

    install("fla.ops.gated_delta_rule", fused_recurrent_gated_delta_rule=fused_recurrent_gated_delta_rule)
    assert not fault(op.name, "batch=2,heads=3,head_k=16,head_v=32", "flash-linear-attention")


def test_retention_of_fla(install: Install) -> None:
    def chunk_simple_gla(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float, g_gamma: Tensor
    ) -> tuple[Tensor, None]:
        assert g_gamma.dtype == torch.float32
        assert g_gamma.shape == q.shape[2:3]
        ages = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
        decays = (g_gamma[:, None, None] * ages).exp().tril() * scale
        scores = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * decays
        return torch.einsum("bhij,bjhd->bihd", scores, v.float()).to(v.dtype), None

    install("fla.ops.simple_gla", chunk_simple_gla=chunk_simple_gla)
    assert not fault("retention", "batch=2,seq_len=24,heads=4,head_k=16,head_v=32", "flash-linear-attention")


def test_selected_blocks_of_fla(install: Install) -> None:
    def parallel_nsa_fwd(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        block_indices: Tensor,
        block_counts: int,
        block_size: int,
        scale: float,
    ) -> tuple[Tensor, None]:
        assert block_counts == block_indices.shape[-1]
        group = q.shape[2] // k.shape[2]
        length = k.shape[1]
        starts = torch.arange(length) // block_size
        chosen = (block_indices[..., None] == starts).any(-2)  # (batch, queries, kv heads, keys)
        chosen &= (torch.arange(length) <= torch.arange(length)[:, None])[:, None]
        wide = [tensor.repeat_interleave(group, 2).float() for tensor in (k, v)]
        scores = torch.einsum("bihd,bjhd->bihj", q.float() * scale, wide[0])
        scores.masked_fill_(~chosen.repeat_interleave(group, 2), -torch.inf)
        return torch.einsum("bihj,bjhd->bihd", scores.softmax(-1), wide[1]).to(v.dtype), None

    install("fla.ops.nsa.parallel", parallel_nsa_fwd=parallel_nsa_fwd)
    shape = "batch=1,heads=32,seq_len=64,head_dim=16,group=16,block=16,topk=4"
    assert not fault("native_sparse_attention", shape, "flash-linear-attention")


# Mamba-2


@pytest.mark.parametrize("seq_len", [64, 50])
def test_mamba_kernels(install: Install, seq_len: int) -> None:
    shape = f"batch=2,seq_len={seq_len},nheads=3,head_dim=16,d_state=32,chunk=32"
    scan, state = operator("chunk_scan"), operator("chunk_state")

    def _chunk_scan_fwd(
        cb: Tensor, x: Tensor, dt: Tensor, sums: Tensor, c: Tensor, states: Tensor, **more: Tensor
    ) -> tuple[Tensor, None]:
        assert c.shape == (2, seq_len, 1, 32)
        assert cb.shape == (2, 2, 1, 32, 32)
        given = {"x": x, "cb": cb, "dt": dt, "dA_cumsum": sums, "C": c[:, :, 0], "prev_states": states}
        return scan.reference(scan.workload(shape), {**given, **more})["out"].to(x.dtype), None

    def _chunk_state_fwd(b: Tensor, x: Tensor, dt: Tensor, sums: Tensor, *, states: Tensor) -> Tensor:
        assert states.dtype == x.dtype  # its own default is float32
        assert b.shape == (2, seq_len, 1, 32)
        given = {"x": x, "B": b[:, :, 0], "dt": dt, "dA_cumsum": sums}
        return states.copy_(state.reference(state.workload(shape), given)["states"])

    install("mamba_ssm.ops.triton.ssd_chunk_scan", _chunk_scan_fwd=_chunk_scan_fwd)
    install("mamba_ssm.ops.triton.ssd_chunk_state", _chunk_state_fwd=_chunk_state_fwd)
    assert not fault("chunk_scan", shape, "mamba_ssm (Triton)")
    assert not fault("chunk_state", shape, "mamba_ssm (Triton)")


# FlashInfer and FlashMLA


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> Tensor:
    """q (queries, heads, columns), keys (length, kv heads, columns); the queries are the last tokens."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (tensor.repeat_interleave(group, 1).float() for tensor in (keys, values))
    scores = torch.einsum("qhd,khd->qhk", q.float(), keys) * scale
    if causal:
        ago = len(q) - 1 - torch.arange(len(q))
        hidden = torch.arange(len(keys)) >= len(keys) - ago[:, None]
        scores.masked_fill_(hidden[:, None], -torch.inf)
    return torch.einsum("qhk,khd->qhd", scores.softmax(-1), values)


class PagedWrapper:
    """`flashinfer.BatchPrefillWithPagedKVCacheWrapper`, from its documentation."""

    def __init__(self, workspace: Tensor, kv_layout: str = "NHD", backend: str = "auto") -> None:
        assert (workspace.dtype, kv_layout) == (torch.uint8, "NHD")

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        tables = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert {tensor.dtype for tensor in tables} == {torch.int32}
        self.tables, self.page_size, self.options = tables, page_size, (sm_scale, causal)
        self.heads = num_qo_heads, num_kv_heads, head_dim_qk

    def run(self, q: Tensor, cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
        heads, kv_heads, head_dim = self.heads
        assert q.shape[1:] == (heads, head_dim)
        assert all(pool.shape[1:] == (self.page_size, kv_heads, head_dim) for pool in cache)
        rows, pages, indices, last = self.tables
        for item in range(len(last)):
            used = indices[pages[item] : pages[item + 1]]
            length = (len(used) - 1) * self.page_size + int(last[item])
            keys, values = (pool[used].flatten(0, 1)[:length] for pool in cache)
            mine = slice(int(rows[item]), int(rows[item + 1]))
            out[mine] = attend(q[mine], keys, values, *self.options).to(out.dtype)
        return out


@pytest.mark.parametrize(
    "attrs",
    [
        "",
        "lengths=mixed",
        "page=16,lengths=mixed",
        "page=32,lengths=mixed,q_len=3",
        "page=16,lse=true,scale=0.2",
    ],
)
def test_flashinfer_reads_the_table(install: Install, attrs: str) -> None:
    install("flashinfer", BatchPrefillWithPagedKVCacheWrapper=PagedWrapper)
    shape = ",".join(filter(None, ["batch=3,heads=8,kv_heads=2,kv_len=96,head_dim=32", attrs]))
    assert not fault("flash_decoding", shape, "FlashInfer")


@pytest.mark.parametrize("lists", ["page=1,indices=70", "page=16,indices=21,pages=30"])
def test_flashinfer_reads_lists_of_pages(install: Install, lists: str) -> None:
    install("flashinfer", BatchPrefillWithPagedKVCacheWrapper=PagedWrapper)
    install("flashinfer.mla", BatchMLAPagedAttentionWrapper=LatentWrapper)
    for name, shape in (
        ("flash_decoding_paged", "batch=3,heads=8,kv_heads=2,head_dim=32"),
        ("mla_decode_paged", "batch=3,heads=4,dim=64,scale=0.1"),
    ):
        assert not fault(name, f"{shape},{lists},lengths=mixed", "FlashInfer")


class LatentWrapper:
    """`flashinfer.mla.BatchMLAPagedAttentionWrapper`, from its documentation."""

    def __init__(self, workspace: Tensor) -> None:
        assert workspace.dtype == torch.uint8

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len_arr: Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        self.tables = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        assert {tensor.dtype for tensor in self.tables} == {torch.int32}
        self.page_size, self.options = page_size, (sm_scale, causal)
        self.widths = (num_heads, head_dim_ckv, head_dim_kpe)

    def run(
        self, q_nope: Tensor, q_pe: Tensor, ckv_cache: Tensor, kpe_cache: Tensor, *, out: Tensor
    ) -> Tensor:
        heads, latent, rotated = self.widths
        assert q_nope.shape[1:] == (heads, latent)
        assert q_pe.shape[1:] == (heads, rotated)
        assert ckv_cache.shape[1:] == (self.page_size, latent)
        assert kpe_cache.shape[1:] == (self.page_size, rotated)
        rows, pages, indices, lengths = self.tables
        q, keys = torch.cat([q_nope, q_pe], -1), torch.cat([ckv_cache, kpe_cache], -1)
        for item, length in enumerate(lengths.tolist()):
            used = keys[indices[pages[item] : pages[item + 1]]].flatten(0, 1)[:length, None]
            mine = slice(int(rows[item]), int(rows[item + 1]))
            out[mine] = attend(q[mine], used, used[..., :latent], *self.options).to(out.dtype)
        return out


@pytest.mark.parametrize(
    "shape",
    [
        "batch=2,heads=4,kv_len=96,dim=64",
        "batch=3,heads=4,kv_len=128,dim=64,page=32,lengths=mixed",
        "batch=2,heads=4,kv_len=128,dim=64,page=64,q_len=2,lengths=mixed",
        "batch=2,heads=4,kv_len=600,dim=64,topk=512",
        "batch=2,heads=4,kv_len=600,dim=64,topk=512,q_len=2",
        "batch=2,heads=4,kv_len=640,dim=64,topk=512,q_len=2,page=64",
    ],
)
def test_flashinfer_reads_latent_vectors(install: Install, shape: str) -> None:
    install("flashinfer.mla", BatchMLAPagedAttentionWrapper=LatentWrapper)
    assert not fault("mla_decode", shape, "FlashInfer")


@pytest.mark.parametrize("attrs", ["", ",page=64,lengths=mixed", ",page=64,q_len=2"])
def test_flash_mla(install: Install, attrs: str) -> None:
    def flash_mla_with_kvcache(
        q: Tensor,
        k_cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        head_dim_v: int,
        tile_scheduler_metadata: object,
        num_splits: object,
        *,
        softmax_scale: float,
        causal: bool,
    ) -> tuple[Tensor, None]:
        assert (tile_scheduler_metadata, num_splits) == ("metadata", None)
        assert k_cache.shape[1:3] == (64, 1)
        assert block_table.dtype == cache_seqlens.dtype == torch.int32
        found = []
        for item, length in enumerate(cache_seqlens.tolist()):
            keys = k_cache[block_table[item]].flatten(0, 1)[:length]
            found.append(attend(q[item], keys, keys[..., :head_dim_v], softmax_scale, causal))
        return torch.stack(found).to(q.dtype), None

    install(
        "flash_mla",
        flash_mla_with_kvcache=flash_mla_with_kvcache,
        get_mla_metadata=lambda *_: ("metadata", None),
    )
    assert not fault("mla_decode", f"batch=2,heads=4,kv_len=128,dim=64{attrs}", "FlashMLA")


@pytest.mark.parametrize("attrs", ["", ",q_len=2", ",page=64"])
def test_flash_mla_with_chosen_keys(install: Install, attrs: str) -> None:
    def flash_mla_sparse_fwd(
        q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float, d_v: int
    ) -> tuple[Tensor, None, None]:
        assert kv.shape[:2] == (1280, 1)
        assert (indices.shape[1:], indices.dtype) == ((1, 512), torch.int32)
        found = []
        for query, places in zip(q, indices[:, 0], strict=True):
            keys = kv[places[places >= 0]]
            found.append(attend(query[None], keys, keys[..., :d_v], sm_scale, False)[0])
        return torch.stack(found).to(q.dtype), None, None

    install("flash_mla", flash_mla_sparse_fwd=flash_mla_sparse_fwd)
    assert not fault("mla_decode", f"batch=2,heads=4,kv_len=640,dim=64,topk=512{attrs}", "FlashMLA")


# packed weights


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bitsandbytes(install: Install, dtype: str) -> None:
    """The first weight of a byte is in its high bits, and blocks follow each other row by row."""

    def matmul_4bit(a: Tensor, b: Tensor, state: SimpleNamespace) -> Tensor:
        assert b.shape == (1, math.prod(state.shape) // 2)
        codes = torch.stack([b.flatten() >> 4, b.flatten() & 15], -1).flatten().int()
        weights = state.code[codes].view(-1, state.blocksize) * state.absmax[:, None]
        return (a.float() @ weights.view(state.shape).T).to(a.dtype)

    def quant_state(
        absmax: Tensor,
        shape: tuple[int, int],
        code: Tensor,
        blocksize: int,
        quant_type: str,
        dtype: torch.dtype,
    ) -> SimpleNamespace:
        assert (absmax.dtype, quant_type) == (torch.float32, "nf4")
        assert dtype in (torch.float16, torch.bfloat16)
        return SimpleNamespace(absmax=absmax, shape=shape, code=code, blocksize=blocksize)

    install("bitsandbytes", matmul_4bit=matmul_4bit)
    install(
        "bitsandbytes.functional",
        QuantState=quant_state,
        get_4bit_type=lambda name, device: {"nf4": torch.tensor(NF4, device=device)}[name],
    )
    assert not fault("dequant_matmul", "m=3,n=40,k=192,format=nf4,group=64", "bitsandbytes", dtype)


@pytest.mark.parametrize(
    "shape", ["m=2,n=256,k=256,zeros=true", "m=2,n=256,k=256,format=fp4", "m=2,n=64,k=256"]
)
def test_formats_that_no_package_has(install: Install, shape: str) -> None:
    install("bitsandbytes.functional")
    op = operator("dequant_matmul")
    workload = op.workload(shape, "float16")
    assert len(op.vendor(workload, op.inputs(workload, "cpu", 0))) == 1


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_deep_gemm(install: Install, layout: str) -> None:
    def gemm(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], out: Tensor) -> None:
        (a, of_a), (b, of_b) = left, right
        assert a.is_contiguous()
        assert b.is_contiguous()
        assert of_a.stride(0) == 1  # neighbours along m lie side by side
        assert of_b.is_contiguous()
        wide_a = a.float() * of_a.repeat_interleave(128, 1)
        wide_b = b.float() * of_b.repeat_interleave(128, 0).repeat_interleave(128, 1)
        out.copy_(wide_a @ wide_b.T)

    install("deep_gemm", gemm_fp8_fp8_bf16_nt=gemm)
    op = operator("matmul")
    workload = op.workload(f"m=48,n=256,k=384,layout={layout},scales=block128", "float8_e4m3fn")
    inputs = op.inputs(workload, "cpu", 1)
    b = inputs["B"].T if layout == "nt" else inputs["B"]
    result = _matmul_vendor._deep_gemm(inputs["A"], b, inputs, torch.bfloat16)()
    assert not vendor_fault(op, workload, result, op.reference(workload, inputs))


# results that do not count


def rule() -> tuple[Any, Workload, Mapping[str, Tensor]]:
    op = operator("gated_delta_rule")
    workload = op.workload("batch=1,seq_len=12,heads=4,head_k=8,head_v=8")
    return op, workload, op.reference(workload, op.inputs(workload, "cpu", 1))


def test_wrong_results_are_named() -> None:
    op, workload, reference = rule()
    o, state = reference["o"], reference["state"]
    assert not vendor_fault(op, workload, (o.bfloat16(), state), reference)
    assert not vendor_fault(op, workload, o.bfloat16().transpose(1, 2), reference)
    assert not vendor_fault(op, workload, (o, None), reference)
    assert not vendor_fault(op, workload, None, reference)
    assert "'o' has a relative error of 1" in vendor_fault(op, workload, torch.zeros_like(o), reference)
    assert "'state' has a relative error" in vendor_fault(op, workload, (o, state.mT), reference)
    assert "has the shape (1, 12, 4)" in vendor_fault(op, workload, o[..., 0], reference)
    assert "NaN" in vendor_fault(op, workload, (o, state.masked_fill(state > 0, math.nan)), reference)
