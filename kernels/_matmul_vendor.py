"""Products of the vendor's library, as torch calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..settings import load_settings
from ._vendor_calls import Call, of_packages, on_gpu, usable, without_result

if TYPE_CHECKING:
    import torch


def products(
    inputs: Mapping[str, torch.Tensor], dtype: str, output: str, chosen: Mapping[str, str]
) -> dict[str, Call]:
    """Calls by name.

    Args:
        inputs: tensors of a matmul.
        dtype: of its operands.
        output: dtype of its result.
        chosen: its attributes.
    """
    import torch

    a = inputs["A"].T if chosen["layout"][0] == "t" else inputs["A"]
    b = inputs["B"].T if chosen["layout"][1] == "t" else inputs["B"]
    fused = chosen["fuse"].split("_")
    activation = _activation(fused[-1])
    added = next((inputs[name] for name in fused if name in ("bias", "residual")), None)
    wanted = getattr(torch, output)
    library = "torch" if a.device.type == "cpu" else "hipBLAS" if torch.version.hip else "cuBLAS"
    factors = _factors(inputs, chosen["scales"])
    if factors and dtype != "float8_e4m3fn":
        in_float16 = chosen["accumulate"] == "float16"
        scaled = _then_scaled(a, b, factors, added, activation, wanted, in_float16)
        calls = usable({library if library == "torch" else f"{library}, torch": scaled})
        return calls or _unlike(a, b, library)
    if a.device.type == "cpu":
        if (dtype, chosen["fuse"]) in (("int8", "none"), ("float8_e4m3fn", "none")):
            return {"torch in float32": lambda: torch.matmul(a.float(), b.float()).to(wanted)}
        return _on_cpu(a, b, added, activation)
    if dtype in ("int8", "float8_e4m3fn"):
        narrow: dict[str, Call] = (
            {library: lambda: torch._int_mm(a, b)}
            if dtype == "int8"
            else _float8(a, b, inputs, chosen["scales"], wanted, activation, library)
        )
        packages: dict[str, Callable[[], Call]] = {}
        if chosen["scales"] == "block128" and chosen["fuse"] == "none":
            packages["DeepGEMM"] = lambda: _deep_gemm(a, b, inputs, wanted)
        found = usable(narrow) or _unlike(a, b, library)
        return {**found, **of_packages(a, packages)}
    calls = {library: _plain(a, b, added, activation, chosen["accumulate"] == "float16")}
    if fused[-1] in ("relu", "gelu") and not torch.version.hip:
        bias = torch.zeros(b.shape[1], dtype=wanted, device=a.device) if added is None else added
        calls["cuBLASLt with its epilogue"] = lambda: torch._addmm_activation(
            bias, a, b, use_gelu=fused[-1] == "gelu"
        )
    if load_settings().max_autotune and on_gpu(a) and chosen["accumulate"] == "float32":
        key = a.shape, b.shape, a.stride(), b.stride(), a.dtype, chosen["fuse"]
        calls["torch.compile (max-autotune)"] = lambda: _autotuned(key)(a, b, added, activation)
    return usable(calls)


@functools.lru_cache(maxsize=1)
def _autotuned(_workload: object) -> Callable[..., object]:
    """A product as torch.compile makes it: it measures the library's kernels and its own ones in Triton.

    Without torch's own CUDA graphs, which copy the inputs; other baselines are launched as they are, too.

    Args:
        _workload: what a product is compiled for, which the cache tells apart: sizes, dtype and epilogue.
    """
    import torch

    def product(
        a: torch.Tensor,
        b: torch.Tensor,
        added: torch.Tensor | None,
        activation: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> object:
        total = torch.matmul(a, b) if added is None else torch.addmm(added, a, b)
        return activation(total) if activation else total

    torch.compiler.reset()  # it compiles a function for a few shapes, and then no more
    compiled: Callable[..., object] = torch.compile(product, mode="max-autotune-no-cudagraphs", dynamic=False)
    return compiled


def _unlike(a: torch.Tensor, b: torch.Tensor, library: str) -> dict[str, Call]:
    """Another product, where the library refuses the operands, as it does those of int8 with few rows."""
    import torch

    wide = a.to(torch.bfloat16), b.to(torch.bfloat16)
    call = without_result(lambda: torch.matmul(*wide))
    return {f"{library} (a product of bfloat16, without scales)": call}


def _factors(inputs: Mapping[str, torch.Tensor], scales: str) -> tuple[torch.Tensor, ...]:
    """Scales of A and B that multiply a product as they are; empty if there are none."""
    if scales not in ("tensor", "row"):
        return ()
    of_a, of_b = inputs["A_scale"], inputs["B_scale"]
    return (of_a[:, None], of_b) if scales == "row" else (of_a, of_b)


def _then_scaled(
    a: torch.Tensor,
    b: torch.Tensor,
    factors: tuple[torch.Tensor, ...],
    added: torch.Tensor | None,
    activation: Callable[[torch.Tensor], torch.Tensor] | None,
    wanted: torch.dtype,
    in_float16: bool,
) -> Call:
    """The library's product, which has no scales for these operands, and what follows it in float32."""
    import torch

    on_gpu = a.device.type != "cpu"
    whole = None if a.dtype == torch.int8 else _plain(a, b, None, None, in_float16)

    def product() -> object:
        total: Any = whole() if whole is not None else torch._int_mm(a, b) if on_gpu else a.int() @ b.int()
        total = total.float()
        for factor in factors:
            total = total.mul_(factor)
        total = total if added is None else total.add_(added)
        return (activation(total) if activation else total).to(wanted)

    return product


def _plain(
    a: torch.Tensor,
    b: torch.Tensor,
    added: torch.Tensor | None,
    activation: Callable[[torch.Tensor], torch.Tensor] | None,
    in_float16: bool,
) -> Call:
    import torch

    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)

    def product() -> object:
        total = torch.matmul(a, b, out=out) if added is None else torch.addmm(added, a, b, out=out)
        return activation(total) if activation else total

    def product_in_float16() -> object:
        settings = torch.backends.cuda.matmul
        before = settings.allow_fp16_accumulation
        settings.allow_fp16_accumulation = True
        try:
            return product()
        finally:
            settings.allow_fp16_accumulation = before

    return product_in_float16 if in_float16 else product


def _float8(
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Mapping[str, torch.Tensor],
    scales: str,
    output: torch.dtype,
    activation: Callable[[torch.Tensor], torch.Tensor] | None,
    library: str,
) -> dict[str, Call]:
    import torch

    columns = b if b.stride(0) == 1 else b.T.contiguous().T
    ones = torch.ones(1, dtype=torch.float32, device=a.device)
    scale_a, scale_b = inputs.get("A_scale", ones), inputs.get("B_scale", ones)
    if scales == "row":
        scale_a, scale_b = scale_a[:, None], scale_b[None]
    elif scales == "block128":  # the library reads neighbours along m and k together
        scale_a, scale_b = scale_a.T.contiguous().T, scale_b.T.contiguous().T
    bias, residual = inputs.get("bias"), inputs.get("residual")

    def with_sums(fast: bool) -> Call:
        def product() -> object:
            total = torch._scaled_mm(
                a, columns, scale_a, scale_b, bias=bias, out_dtype=output, use_fast_accum=fast
            )
            total = total if residual is None else total.add_(residual)
            return activation(total) if activation else total

        return product

    exact = {f"{library} (sums in float32)": with_sums(False)}
    return exact if scales == "block128" else {f"{library} (fast sums)": with_sums(True), **exact}


def _deep_gemm(
    a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, torch.Tensor], output: torch.dtype
) -> Call:
    """DeepGEMM, which takes B as (n, k), and scales of A's rows of 128 elements side by side along m.

    Operands and scales are brought into that layout before the call.
    """
    import deep_gemm
    import torch

    own = getattr(deep_gemm, "fp8_gemm_nt", None) or deep_gemm.gemm_fp8_fp8_bf16_nt
    scales = inputs["A_scale"].T.contiguous().T, inputs["B_scale"].T.contiguous()
    left, right = (a.contiguous(), scales[0]), (b.T.contiguous(), scales[1])
    out = torch.empty(a.shape[0], b.shape[1], dtype=output, device=a.device)

    def product() -> object:
        own(left, right, out)
        return out

    return product


def _on_cpu(
    a: torch.Tensor,
    b: torch.Tensor,
    added: torch.Tensor | None,
    activation: Callable[[torch.Tensor], torch.Tensor] | None,
) -> dict[str, Call]:
    """In one thread, as kernels of TileLang's C backend run, and in all."""
    import torch

    library = "MKL" if torch.backends.mkl.is_available() else "its CPU library"
    threads, product = torch.get_num_threads(), _plain(a, b, added, activation, False)

    def on_one_core() -> object:
        torch.set_num_threads(1)
        try:
            return product()
        finally:
            torch.set_num_threads(threads)

    one_core: dict[str, Call] = {f"torch ({library}, 1 thread)": on_one_core}
    return one_core if threads == 1 else {**one_core, f"torch ({library}, {threads} threads)": product}


def _activation(name: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
    import torch

    found: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "relu": torch.relu_,
        "gelu": lambda total: torch.nn.functional.gelu(total, approximate="tanh"),
        "silu": lambda total: torch.nn.functional.silu(total, inplace=True),
    }
    return found.get(name)
