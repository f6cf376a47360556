"""matmul: what its kernels compute, with a CPU in place of the GPU for the GPU template's tile program."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.lowering.lower import lower
from tilesight.problem.axes import shape as shape_of
from tilesight.problem.space import Config, Value
from tilesight.problem.workload import Workload
from tilesight.runner.verify import check_outputs
from tilesight.target.spec import load_target

MATMUL = operator("matmul")
GPU, CPU = templates("matmul")
TILE: Mapping[str, Value] = {
    "block_m": 32,
    "block_n": 32,
    "block_k": 32,
    "num_stages": 2,
    "threads": 32,
    "policy": "square",
    "epilogue": "shared",
    "swizzle": 0,
}


def fp32(m: int, n: int, k: int) -> Workload:
    return Workload("matmul", {"m": m, "n": n, "k": k}, "float32")


def relative_error(
    workload: Workload,
    function: object,
    folder: Path,
    scratch: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
) -> float:
    generator = torch.Generator().manual_seed(11)
    inputs = {
        name: torch.randn(*shape_of(axes, workload.dims, {}), generator=generator)
        for name, axes in MATMUL.tensor_axes(workload.attrs).items()
        if name != "C"
    }
    out = torch.full(MATMUL.outputs(workload)["C"], torch.nan)
    spare = {name: torch.full(sizes, torch.nan) for name, (sizes, _) in (scratch or {}).items()}
    run_c(function, {**inputs, "C": out, **spare}, folder)
    reference = MATMUL.reference(workload, inputs)["C"]
    return float((out - reference).norm() / reference.norm())


@pytest.mark.parametrize(
    ("seed", "shape"),
    [*enumerate([(96, 128, 128), (1, 1, 1), (3, 130, 67), (97, 63, 129), (130, 257, 300)])],
    ids=str,
)
def test_cpu_kernel_is_right_for_any_shape(seed: int, shape: tuple[int, int, int], tmp_path: Path) -> None:
    workload = fp32(*shape)
    (config,) = CPU.space(workload, load_target("cpu")).sample(1, seed)
    assert relative_error(workload, CPU.build(workload, config), tmp_path) <= MATMUL.max_relative_error(
        workload
    )


def test_cpu_kernel_is_right_for_partial_blocks(tmp_path: Path) -> None:
    """No extent is a multiple of block or tile, and the last micro-kernel step is a part of `unroll`."""
    workload = fp32(101, 203, 305)
    config = Config({"block_m": 96, "block_n": 64, "block_k": 128, "tile_m": 12, "tile_n": 32, "unroll": 8})
    assert config in CPU.space(workload, load_target("cpu"))
    assert relative_error(workload, CPU.build(workload, config), tmp_path) <= MATMUL.max_relative_error(
        workload
    )


@pytest.mark.parametrize(
    ("shape", "epilogue"),
    [
        pytest.param((64, 64, 64), "shared", marks=pytest.mark.full),
        ((1, 1, 1), "direct"),
        ((100, 90, 70), "direct"),
        ((33, 17, 65), "shared"),
    ],
    ids=str,
)
def test_gpu_tile_program_is_right_for_any_shape(
    shape: tuple[int, int, int], epilogue: str, tmp_path: Path
) -> None:
    workload = fp32(*shape)
    config = Config({**TILE, "epilogue": epilogue})
    with on_cpu():
        assert relative_error(workload, GPU.build(workload, config), tmp_path) < 1e-6


FORMS: list[tuple[tuple[int, int, int], dict[str, Value], dict[str, Value]]] = [
    ((60, 130, 300), {"layout": "nt", "scales": "block128"}, {"block_k": 128, "swapped": True}),
    ((33, 17, 65), {"layout": "tn", "fuse": "bias_gelu"}, {"swapped": True, "split_k": 2}),
    ((33, 17, 65), {"scales": "row", "fuse": "silu"}, {"epilogue": "direct"}),
    ((100, 90, 70), {"layout": "nt", "fuse": "residual"}, {"persistent": 3, "swizzle": 2}),
]


@pytest.mark.parametrize(
    ("shape", "attrs", "changes"),
    [FORMS[0], *(pytest.param(*form, marks=pytest.mark.full) for form in FORMS[1:])],
    ids=str,
)
def test_gpu_tile_program_is_right_in_all_its_forms(
    shape: tuple[int, int, int], attrs: dict[str, Value], changes: dict[str, Value], tmp_path: Path
) -> None:
    workload = replace(fp32(*shape), attrs=attrs)
    config = Config({**TILE, **changes})
    with on_cpu():
        function = GPU.build(workload, config)
        assert relative_error(workload, function, tmp_path, GPU.scratch(workload, config)) < 1e-6


SCALED: list[dict[str, Value]] = [
    {},
    {"swapped": True, "split_k": 2},
    {"epilogue": "direct"},
    {"persistent": 3},
]


@pytest.mark.parametrize(
    "changes", [SCALED[0], *(pytest.param(one, marks=pytest.mark.full) for one in SCALED[1:])], ids=str
)
def test_scaled_sums_of_int8_are_no_integers(
    changes: dict[str, Value], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the C backend has no bfloat16
    monkeypatch.setattr(sys.modules[type(MATMUL).__module__], "SCALED_OUTPUT", "float32")
    workload = MATMUL.workload("m=33,n=40,k=65,scales=row,fuse=bias_gelu", "int8")
    inputs = MATMUL.inputs(workload, "cpu", 3)
    config, out = Config({**TILE, **changes}), torch.full((33, 40), torch.nan)
    scratch = {
        name: torch.full(sizes, 77, dtype=torch.int32)
        for name, (sizes, _) in GPU.scratch(workload, config).items()
    }
    with on_cpu():
        run_c(GPU.build(workload, config), {**inputs, "C": out, **scratch}, tmp_path)
    reference = MATMUL.reference(workload, inputs)["C"]
    assert (out - reference).norm() < 1e-6 * reference.norm()


@pytest.mark.parametrize("layout", ["nt", pytest.param("tn", marks=pytest.mark.full)])
def test_cpu_kernel_takes_transposed_operands(layout: str, tmp_path: Path) -> None:
    workload = replace(fp32(40, 70, 30), attrs={"layout": layout})
    config = CPU.default_config(workload, load_target("cpu"))
    assert config is not None
    assert relative_error(workload, CPU.build(workload, config), tmp_path) < 1e-6


def test_operands_of_one_byte_have_k_innermost_unless_the_shape_says_otherwise() -> None:
    h100 = load_target("h100")
    plain, named = MATMUL.workload("m=8,n=16,k=32", "int8"), MATMUL.workload("m1", "fp8")
    assert plain.attrs["layout"] == named.attrs["layout"] == "nt"
    assert MATMUL.tensor_axes(plain.attrs)["B"] == ("n", "k")
    turned = MATMUL.workload("m=8,n=16,k=32,layout=nn", "int8")
    assert not GPU.space(turned, h100).configs()
    (violation,) = GPU.space(turned, h100).violations(Config({**TILE, "threads": 64}))[:1]
    assert "take layout=nt" in violation.reason
    assert "layout" not in MATMUL.workload("M1").attrs


@pytest.mark.parametrize(
    ("attrs", "dtype", "message"),
    [
        ("accumulate=float16", "bfloat16", "accumulate=float16 needs dtype float16.* has bfloat16"),
        ("scales=row", "float32", "scales=row needs dtype bfloat16 or float16 or float8_e4m3fn or int8"),
        ("scales=block128", "int8", "scales=block128 needs dtype float8_e4m3fn, .* take scales=row or"),
        ("fuse=relu", "int8", "fuse=relu needs .* take fuse=none, or scales=row, which makes C bfloat16"),
        ("layout=tt", "bfloat16", "layout=tt must be one of: nn, nt, tn"),
    ],
)
def test_attributes_that_do_not_fit_the_dtype_are_refused(attrs: str, dtype: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        MATMUL.workload(f"m=8,n=16,k=32,{attrs}", dtype)


@pytest.mark.parametrize("scales", ["tensor", "row", "block128"])
@pytest.mark.parametrize("dims", ["m=40,n=24,k=16", "m=150,n=300,k=270"])
def test_float8_is_quantised_by_what_shares_a_scale(scales: str, dims: str) -> None:
    workload = MATMUL.workload(f"{dims},scales={scales},fuse=bias", "fp8")
    inputs = MATMUL.inputs(workload, "cpu", 5)
    m, n, k = workload.dims.values()
    a, b = inputs["A"].float(), inputs["B"].float().T
    assert a.abs().max() == b.abs().max() == 448
    a_scale, b_scale = inputs["A_scale"], inputs["B_scale"]
    if scales == "row":
        a_scale, b_scale = a_scale[:, None], b_scale[None]
    elif scales == "block128":
        a_scale = a_scale.repeat_interleave(128, 1)[:, :k]
        b_scale = b_scale.repeat_interleave(128, 0)[:k].repeat_interleave(128, 1)[:, :n]
    expected = (a * a_scale) @ (b * b_scale) + inputs["bias"].float()
    found = MATMUL.reference(workload, inputs)["C"]
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert 0.8 < (found - inputs["bias"].float()).std() < 1.2  # of N(0, 1)
    assert MATMUL.min_bytes(workload) == (m + n) * k + 2 * m * n + 2 * n + 4 * sum(
        inputs[name].numel() for name in ("A_scale", "B_scale")
    )


def test_int8_is_exact() -> None:
    workload = MATMUL.workload("m=20,n=30,k=4000", "int8")
    inputs = MATMUL.inputs(workload, "cpu", 0)
    exact = inputs["A"].long() @ inputs["B"].long().T
    assert torch.equal(MATMUL.reference(workload, inputs)["C"].long(), exact)
    assert int(exact.abs().max()) > 2**19


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16"])
@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_scales_multiply_the_product_of_other_dtypes(dtype: str, scales: str) -> None:
    """As after a quantisation of whole tensors, or of tokens and channels; C is then of 16 bits."""
    workload = MATMUL.workload(f"m=60,n=50,k=400,scales={scales},fuse=residual", dtype)
    inputs = MATMUL.inputs(workload, "cpu", 5)
    b = inputs["B"].double()
    product = inputs["A"].double() @ (b.T if workload.attrs.get("layout") == "nt" else b)
    columns = (-1, 1) if scales == "row" else (1, 1)
    scaled = product * inputs["A_scale"].double().view(columns) * inputs["B_scale"].double()
    expected = scaled + inputs["residual"].double()
    found = MATMUL.reference(workload, inputs)["C"]
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert MATMUL.dtype_of("C", workload) == ("float16" if dtype == "float16" else "bfloat16")
    if scales == "row":
        assert inputs["A_scale"].max() / inputs["A_scale"].min() > 2  # those of another row are found out
        assert 0.3 < scaled.std() < 3
    rounded = {"C": found.to(getattr(torch, MATMUL.dtype_of("C", workload)))}
    verdict = check_outputs(MATMUL, workload, rounded, {"C": found}, MATMUL.magnitude(workload, inputs))
    assert verdict.failure is None
    ((name, vendor),) = MATMUL.vendor(workload, inputs).items()
    assert name == "torch"
    torch.testing.assert_close(vendor(), rounded["C"], rtol=2e-2, atol=2e-2)
    without = {"C": (expected - scaled / 400).to(rounded["C"].dtype)}
    assert check_outputs(MATMUL, workload, without, {"C": found}).failure is not None


def test_costs() -> None:
    workload = MATMUL.workload("M0")
    assert MATMUL.flops(workload) == 2 * 4096 * 1024 * 8192
    assert MATMUL.min_bytes(workload) == 2 * (4096 * 8192 + 8192 * 1024 + 4096 * 1024)


def test_a_missing_term_exceeds_the_limit() -> None:
    """The accepted error is tight enough that leaving out one of 28672 terms fails in bfloat16."""
    workload = MATMUL.workload("m=64,n=64,k=28672")
    inputs = MATMUL.inputs(workload, "cpu", 0)
    reference = MATMUL.reference(workload, inputs)["C"]
    rounded = reference.to(torch.bfloat16).float()
    without_one = reference - inputs["A"][:, :1].float() @ inputs["B"][:1].float()
    limit = MATMUL.max_relative_error(workload)
    assert (rounded - reference).norm() / reference.norm() < 0.7 * limit
    assert (without_one - reference).norm() / reference.norm() > limit


def test_default_shapes_of_the_cpu_take_seconds() -> None:
    assert [w.name for w in MATMUL.default_workloads("float32")] == ["S512", "S1024"]
    assert all(MATMUL.flops(w) < 1e10 for w in MATMUL.default_workloads("float32"))
    assert [w.name for w in MATMUL.default_workloads()] == list(MATMUL.default_names)


def test_vendor_on_a_cpu_names_library_and_threads() -> None:
    workload = fp32(8, 8, 8)
    names = list(MATMUL.vendor(workload, MATMUL.inputs(workload, "cpu", 0)))
    assert "1 thread" in names[0]
    before = torch.get_num_threads()
    for call in MATMUL.vendor(workload, MATMUL.inputs(workload, "cpu", 0)).values():
        call()
    assert torch.get_num_threads() == before


def test_published_winner_of_the_h200_is_legal() -> None:
    config = Config(
        {
            "block_m": 256,
            "block_n": 128,
            "block_k": 64,
            "num_stages": 4,
            "threads": 256,
            "policy": "square",
            "epilogue": "shared",
            "swizzle": 0,
        }
    )
    for name in ("M0", "M7"):
        assert config in GPU.space(MATMUL.workload(name), load_target("h200"))


@pytest.mark.parametrize("n", [1004, 4100])
def test_scaled_int8_has_rows_of_results_of_16_bits(n: int) -> None:
    """Rows that TMA cannot store must not leave by parts."""
    h200 = load_target("h200")
    workload = MATMUL.workload(f"m=4096,n={n},k=4096,scales=row", "int8")
    space = GPU.space(workload, h200)
    assert not any(c["epilogue"] == "parts" or c.get("schedule") == "overlapped" for c in space.configs())
    config = GPU.default_config(workload, h200)
    assert config is not None
    lower(GPU.build(workload, config), h200, only_read=True)
    whole = GPU.space(MATMUL.workload("m=4096,n=4096,k=4096,scales=row", "int8"), h200)
    assert any(c["epilogue"] == "parts" for c in whole.configs())
