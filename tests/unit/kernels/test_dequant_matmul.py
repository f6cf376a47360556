"""dequant_matmul: quantised inputs, and what its template computes, with a CPU in place of the GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.builder.build import build_kernel, device_source
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.kernels._float8_activations import TABLES, UNIT, float8_of_int4, permuted_float8, spread
from tilesight.kernels._packed import (
    E2M1,
    FORMATS,
    LAYOUTS,
    NF4,
    UNITS,
    byte_tables,
    codes_of,
    packed_codes,
    permuted,
    word_of,
)
from tilesight.kernels._weight_fragments import SIXTEEN, interleaved, operand_words
from tilesight.kernels.dequant_matmul import RUNS, dequantised
from tilesight.lowering.lower import lower
from tilesight.machine.toolchain import missing_compiler
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.search_spaces import dequant_matmul as search_space
from tilesight.target.spec import load_target

DEQUANT = operator("dequant_matmul")
(TEMPLATE,) = templates("dequant_matmul")
WHOLE = slice(None)


def config(weights: str, decode: str) -> Config:
    return Config(
        {
            "block_m": 16,
            "block_n": 32,
            "block_k": 64,
            "num_stages": 2,
            "threads": 1,
            "weights": weights,
            "decode": decode,
            "policy": "square",
            "swizzle": 0,
        }
    )


@pytest.mark.parametrize(
    ("m", "n", "k", "group", "weights", "decode"),
    [
        pytest.param(64, 64, 128, 32, "registers_linear", "bits", marks=pytest.mark.full),  # whole tiles
        (33, 40, 77, 32, "shared", "bits"),
        (17, 50, 130, 64, "shared_wide", "convert"),
        (20, 70, 300, -1, "registers_linear", "convert"),
        (1, 1, 1, 128, "shared", "bits"),
    ],
)
def test_tile_program_is_right_for_any_shape(
    m: int,
    n: int,
    k: int,
    group: int,
    weights: str,
    decode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tilelang.language as T  # noqa: N812

    workload = Workload("dequant_matmul", {"m": m, "n": n, "k": k}, "float32", {"group": group})
    inputs = DEQUANT.inputs(workload, "cpu", 7)
    out = torch.full((m, n), torch.nan)
    monkeypatch.setattr(T, "get_thread_binding", lambda *_: 0)  # the C backend runs one thread
    with on_cpu():
        run_c(TEMPLATE.build(workload, config(weights, decode)), {**inputs, "C": out}, tmp_path)
    reference = DEQUANT.reference(workload, inputs)["C"]
    assert (out - reference).norm() / reference.norm() < 1e-6


@pytest.mark.parametrize(
    ("attrs", "weights", "decode"),
    [
        pytest.param({"format": "fp4", "group": 64}, "shared_wide", "table", marks=pytest.mark.full),
        ({"format": "mxfp4", "group": 32}, "registers_linear", "table"),
        ({"format": "nf4", "group": 32}, "registers_linear", "table"),
        pytest.param({"zeros": True, "group": 32}, "registers_linear", "bits", marks=pytest.mark.full),
        ({"zeros": True, "group": -1}, "shared", "convert"),
        ({"format": "int2", "group": -1}, "shared", "words"),
        pytest.param({"format": "int2", "group": -1}, "registers_linear", "words", marks=pytest.mark.full),
    ],
)
def test_tile_program_is_right_for_each_format(
    attrs: dict[str, int | str | bool],
    weights: str,
    decode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tilelang.language as T  # noqa: N812

    workload = Workload("dequant_matmul", {"m": 17, "n": 37, "k": 133}, "float32", attrs)
    inputs = DEQUANT.inputs(workload, "cpu", 7)
    out = torch.full((17, 37), torch.nan)
    monkeypatch.setattr(T, "get_thread_binding", lambda *_: 0)  # the C backend runs one thread
    with on_cpu():
        run_c(TEMPLATE.build(workload, config(weights, decode)), {**inputs, "C": out}, tmp_path)
    reference = DEQUANT.reference(workload, inputs)["C"]
    assert (out - reference).norm() / reference.norm() < 1e-6


@pytest.mark.full
def test_gathered_bfloat16_scales_build(tmp_path: Path) -> None:
    """For several groups in an iteration, TileLang packs two scales by a function that its headers lack."""
    target = load_target("h200")
    if missing := missing_compiler(target):
        pytest.skip(missing)
    workload = DEQUANT.workload("m=64,n=64,k=512", "bfloat16")
    tile: dict[str, int | str] = {"block_m": 64, "block_k": 256, "threads": 64}
    chosen = Config({**config("registers", "convert"), **tile})
    assert not TEMPLATE.space(workload, target).violations(chosen)
    assert "__pack_bfloat162" in device_source(
        lower(TEMPLATE.build(workload, chosen), target, only_read=True), target
    ), "else the test tests nothing"
    assert build_kernel(Candidate(workload, target, TEMPLATE, chosen), tmp_path).failure is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_bits_of_a_power_of_two_and_four_more_are_their_sum(dtype: str) -> None:
    power, bits = UNITS[dtype]
    kind = getattr(torch, dtype)
    q = torch.arange(16)
    written = (q | bits).to(torch.int32 if dtype == "float32" else torch.int16).view(kind)
    assert torch.equal(written.double(), q.double() + power)
    assert torch.equal((written - torch.tensor(power + 8, dtype=kind)).double(), q.double() - 8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("format_name", ["int4", "fp4", "mxfp4"])
def test_words_have_the_numbers_of_a_byte(format_name: str, dtype: str) -> None:
    """As a kernel computes them in uint32, for all bytes."""
    raw = torch.arange(256, dtype=torch.int64)
    words = (word_of(format_name, dtype)(raw) & 0xFFFFFFFF).to(torch.uint32)
    numbers = words.view(torch.int16).view(getattr(torch, dtype)).view(256, 2)
    shift, factor = (
        (UNITS[dtype][0] + 8, 1.0) if format_name == "int4" else (0, 2.0 ** (LAYOUTS[dtype][1] - 1))
    )
    found = (numbers.double() - shift) * factor
    values = torch.tensor(FORMATS[format_name].values, dtype=torch.float64)
    assert torch.equal(found, torch.stack([values[raw & 15], values[raw >> 4]], dim=1))


def test_words_of_int2_have_four_numbers() -> None:
    raw = torch.arange(256, dtype=torch.int64)
    words = (word_of("int2", "int8")(raw) & 0xFFFFFFFF).to(torch.uint32)
    found = words.view(torch.int8).view(256, 4)
    assert torch.equal(found.long(), torch.stack([(raw >> shift & 3) - 2 for shift in (0, 2, 4, 6)], dim=1))


@pytest.mark.parametrize(
    ("format_name", "dtype"),
    [("int4", "float16"), ("int4", "bfloat16"), ("fp4", "float16"), ("int2", "int8")],
)
def test_operands_of_codes_and_of_a_have_one_order(format_name: str, dtype: str) -> None:
    """As a kernel computes them in uint32: operand word `j` has the elements j, j + 4, ... of four words."""
    packing, kind = FORMATS[format_name], getattr(torch, dtype)
    count = 32 // packing.bits
    codes = torch.randint(0, 1 << packing.bits, (64, count), dtype=torch.uint8)
    raw = packed_codes(packing, codes).contiguous().view(torch.int32)[:, 0].long() & 0xFFFFFFFF
    a = torch.randint(-99, 99, (64, count)).to(kind)
    a_words = (a.view(torch.int32).long() & 0xFFFFFFFF).T
    word = operand_words(format_name, dtype)
    sixteen = SIXTEEN[dtype][1] * 0x10001 if format_name == "int4" else 0
    for j in range(4):
        found, of_a = (
            (words & 0xFFFFFFFF).to(torch.uint32).view(kind).view(64, -1)
            for words in (word(raw, j, sixteen), interleaved(a_words, 0, j, 8 * a.element_size()))
        )
        assert torch.equal(of_a, a[:, j::4])
        numbers = torch.tensor(packing.values, dtype=torch.float64)[codes[:, j::4].int()]
        scale, offset = {"int4": (1, 16 + 8), "fp4": (2**14, 0), "int2": (1, 2)}[format_name]
        assert torch.equal(found.double() * scale - offset, numbers)


def test_integers_of_int4_are_exact_in_float8() -> None:
    """As a kernel computes them in uint32, for all codes of two bytes, in their order."""
    raw = torch.arange(1 << 16, dtype=torch.int64)
    words = (float8_of_int4(spread(raw)) & 0xFFFFFFFF).to(torch.uint32)
    numbers = words.view(torch.uint8).view(torch.float8_e4m3fn).float().view(-1, 4) * UNIT
    wanted = torch.stack([(raw >> shift & 15) - 8 for shift in (0, 4, 8, 12)], dim=1)
    assert torch.equal(numbers, wanted.float())


def bytes_at(signs: bool) -> Callable[[int, int, int], int]:
    """PTX's prmt, or CUDA's function for it, which does not replicate signs."""

    def permute(low: int, high: int, places: int) -> int:
        source, found = (high << 32 | low).to_bytes(8, "little"), []
        for at in range(4):
            place = places >> 4 * at & 0xF
            byte = source[place & 7]
            found.append((255 if byte & 128 else 0) if signs and place & 8 else byte)
        return int.from_bytes(bytes(found), "little")

    return permute


def test_permuted_bytes_are_the_numbers_of_int4_in_float8() -> None:
    codes = torch.randint(0, 1 << 16, (4096,), generator=torch.Generator().manual_seed(1)).tolist()
    for four in codes:
        word = permuted_float8(four, TABLES, bytes_at(signs=True))
        numbers = torch.tensor(list(word.to_bytes(4, "little")), dtype=torch.uint8).view(torch.float8_e4m3fn)
        assert (numbers.float() * UNIT).tolist() == [float((four >> 4 * i & 15) - 8) for i in range(4)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_permuted_bytes_are_the_numbers_of_four_codes(dtype: str) -> None:
    numbers = torch.tensor(NF4).to(getattr(torch, dtype))
    for four in (0x3210, 0x7654, 0xBA98, 0xFEDC, 0x1F08):
        words = permuted(four, byte_tables(NF4, dtype), bytes_at(signs=False))
        found = torch.tensor([w >> s & 0xFFFF for w in words for s in (0, 16)], dtype=torch.uint16)
        assert torch.equal(found.view(numbers.dtype), numbers[[four >> 4 * i & 15 for i in range(4)]])


@pytest.mark.parametrize("scales", ["none", "tensor", "row"])
def test_activations_of_float8_are_scaled(scales: str) -> None:
    workload = DEQUANT.workload(f"m=24,n=40,k=300,group=64,scales={scales}", "float8_e4m3fn")
    inputs = DEQUANT.inputs(workload, "cpu", 4)
    assert list(inputs) == ["A", "B", "S"] + ["A_scale"] * (scales != "none")
    assert inputs["S"].dtype == torch.bfloat16
    factor = inputs.get("A_scale", torch.ones(1)).expand(24)
    a = inputs["A"].double() * factor[:, None]
    assert 0.9 < a.std() < 1.1
    expected = a @ dequantised(workload, inputs, WHOLE).double().T
    assert torch.allclose(DEQUANT.reference(workload, inputs)["C"].double(), expected, rtol=1e-5, atol=1e-4)
    if scales != "none":
        assert inputs["A"].float().abs().max() == 448


@pytest.mark.parametrize(
    ("shape", "dtype", "default", "warps"),
    [
        ("m=1,n=64,k=2048", "float16", "words", 8),
        ("m=16,n=64,k=2048", "bfloat16", "words", 8),
        ("m=1,n=64,k=896", "float16", "words", 4),  # too few steps for eight
        ("m=8,n=64,k=512,format=fp4", "bfloat16", "table", 4),
        ("m=1,n=64,k=510", "float16", "", None),  # rows of W do not begin at whole 16 bytes
        ("m=17,n=64,k=512", "float16", "", None),
    ],
)
def test_weights_go_from_memory_to_registers_for_few_rows_of_a(
    shape: str, dtype: str, default: str, warps: int | None
) -> None:
    workload, target = DEQUANT.workload(shape, dtype), load_target("h100")
    space = TEMPLATE.space(workload, target)
    other = TEMPLATE.space(workload, load_target("mi300x"))
    assert any("reduce_warps" in found for found in space.configs()) == bool(default)
    assert not any("reduce_warps" in found for found in other.configs())
    found = TEMPLATE.default_config(workload, target)
    assert found is not None
    assert found.get("reduce_warps") == warps
    assert not default or found["decode"] == default


@pytest.mark.parametrize(
    ("shape", "dtype", "changes", "copies"),
    [
        ("m=1,n=4096,k=4096,zeros=true", "float16", {}, 3),  # of W, S and Z
        ("m=16,n=4096,k=8192,group=64", "bfloat16", {"block_m": 16, "reduce_warps": 4}, 3),  # A, W and S
        ("m=3,n=9001,k=4160,format=int2,group=-1", "float16", {"block_k": 256}, 1),
        ("m=1,n=4096,k=4096,format=mxfp4,group=32", "bfloat16", {"decode": "table"}, 2),
    ],
)
def test_weights_stream_through_stages_that_are_read_before_they_are_free(
    shape: str, dtype: str, changes: dict[str, int | str], copies: int
) -> None:
    workload, target = DEQUANT.workload(shape, dtype), load_target("h200")
    tile: dict[str, int | str] = {"block_m": 8, "block_k": 128, "num_stages": 3, "threads": 256}
    stays: dict[str, int | str] = {"reduce_warps": 8, "persistent": 132}
    chosen = Config({**config("registers", "words"), **tile, **stays, **changes})
    assert not TEMPLATE.space(workload, target).violations(chosen)
    source = device_source(lower(TEMPLATE.build(workload, chosen), target, only_read=True), target)
    assert source.count("tl::tma_load(") == copies
    assert len(re.findall(r"fence_proxy_async\(\);\s*__syncwarp\(\);\s*if [^;]*\.arrive\(\);", source)) == 1
    # the copying warp waits as a whole before it copies
    assert re.search(r"\.wait\(\(1 - .*\);\s*__syncwarp\(\);\s*if \(tl::tl_shuffle_elect<32>", source)
    assert source.count("__syncthreads()") == 1, "the copying warp waits for no other after the begin"


def test_formats_have_the_numbers_that_they_are_defined_by() -> None:
    quantile = NormalDist().inv_cdf
    # eight steps above the median and seven below, from the same tail, which becomes 1
    tail = (1 - 1 / 32 + 1 - 1 / 30) / 2
    above = [quantile(0.5 + (tail - 0.5) * step / 8) for step in range(1, 9)]
    below = [-quantile(0.5 + (tail - 0.5) * step / 7) for step in range(7, 0, -1)]
    wanted = [value / above[-1] for value in (*below, 0.0, *above)]
    assert torch.tensor(NF4).sub(torch.tensor(wanted)).abs().max() < 1e-6
    e2m1 = [significand / 2 for significand in range(2)]
    e2m1 += [(1 + significand / 2) * 2**exponent for exponent in range(3) for significand in range(2)]
    assert list(E2M1) == e2m1
    for packing in FORMATS.values():
        codes = torch.arange(1 << packing.bits, dtype=torch.uint8).repeat(3, 1)[
            :, : 15 if packing.bits == 4 else 3
        ]
        assert torch.equal(codes_of(packing, packed_codes(packing, codes), codes.shape[1]), codes)
        assert packing.values[packing.zero] == 0


@pytest.mark.parametrize(
    "shape",
    [
        "m=2,n=48,k=301,format=nf4",
        "m=2,n=48,k=300,format=fp4,group=32",
        "m=2,n=48,k=301,format=mxfp4,group=32",
        "m=2,n=48,k=300,zeros=true",
        "m=2,n=48,k=301,format=int2,group=-1",
    ],
)
def test_quantised_weights_are_near_those_before(shape: str) -> None:
    workload = DEQUANT.workload(shape)
    inputs = DEQUANT.inputs(workload, "cpu", 0)
    weights = dequantised(workload, inputs, WHOLE)
    deviation = float(weights.std()) * (127 / 4 if "int2" in shape else 1)
    assert 0.7 < deviation < 1.3
    axes = DEQUANT.tensor_axes(workload.attrs)
    assert list(axes) == [*inputs, "C"]
    assert ("Z" in inputs) == ("zeros" in shape)
    second = DEQUANT.second_inputs(workload, "cpu", 0)
    assert second.is_exact == ("nf4" not in shape)
    out = DEQUANT.reference(workload, inputs)["C"]
    for call in DEQUANT.vendor(workload, inputs).values():
        found = call()
        assert isinstance(found, torch.Tensor)
        assert (found.float() - out).norm() / out.norm() < 2 * DEQUANT.max_relative_error(workload)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ("format=mxfp4", "format=mxfp4 has one scale for 32 weights, not group=128; take group=32"),
        ("format=int2", "format=int2 has one scale for a row, not group=128; take group=-1"),
        ("format=nf4,zeros=true", "zeros=true is for format=int4.*take zeros=false"),
        ("k=64,dtype=float8,format=nf4", "dtype=float8_e4m3fn multiplies.*format=nf4.*take dtype=bfloat16"),
        ("k=64,dtype=float8,group=32", "at least 64 by one scale, not.*group=32; take dtype=bfloat16"),
        ("scales=row", "scales=row is for dtype=float8_e4m3fn.*take scales=none"),
        ("format=int3", "format=int3 must be one of: int4, nf4, fp4, mxfp4, int2"),
        ("k=8388608,format=int2,group=-1", "k=8388608 products.*split k into parts of at most 8388607"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(attrs: str, message: str) -> None:
    dtype = "float8_e4m3fn" if "dtype=float8" in attrs else None
    attrs = attrs.replace("dtype=float8,", "")
    with pytest.raises(WorkloadError, match=message):
        DEQUANT.workload("m=1,n=64," + (attrs if attrs.startswith("k=") else f"k=64,{attrs}"), dtype)


def test_workloads_of_int4_keep_their_keys() -> None:
    workload = DEQUANT.workload("m=1,n=64,k=64,format=int4,zeros=false")
    assert workload.key == "dequant_matmul(m=1,n=64,k=64;group=128,dtype=float16)"


def test_decoders_are_those_of_the_search_space() -> None:
    assert {name: packing.decoders for name, packing in FORMATS.items()} == search_space.DECODERS


@pytest.mark.parametrize(
    "shape", ["m=2,n=48,k=300", "m=2,n=48,k=77,group=32", "m=2,n=48,k=512,group=-1", "m=2,n=48,k=1"]
)
def test_weights_are_packed_as_documented(shape: str) -> None:
    workload = DEQUANT.workload(shape)
    n, k, group = workload.dims["n"], workload.dims["k"], int(workload.attrs["group"])
    inputs = DEQUANT.inputs(workload, "cpu", 0)
    weights = dequantised(workload, inputs, WHOLE)
    assert weights.shape == (n, k)
    for row, column in [(0, 0), (n - 1, k - 1), (n // 2, k // 3)]:
        byte = int(inputs["B"][row, column // 2])
        q = byte >> 4 if column % 2 else byte & 15
        scale = float(inputs["S"][0 if group == -1 else column // group, row])
        assert float(weights[row, column]) == (q - 8) * scale
    if k > 1:
        assert 0.8 < weights.std() < 1.2, "what was quantised has unit variance"
        assert {int(inputs["B"].min() & 15), int(inputs["B"].max() >> 4)} <= set(range(16))


def test_the_accepted_error_is_above_rounding_and_below_a_missing_term() -> None:
    workload = DEQUANT.workload("m=32,n=64,k=28672", "bfloat16")
    inputs = DEQUANT.inputs(workload, "cpu", 0)
    reference = DEQUANT.reference(workload, inputs)["C"]
    weights = dequantised(workload, inputs, WHOLE)
    rounded = (inputs["A"].float() @ weights.bfloat16().float().T).bfloat16().float()
    without_one = reference - inputs["A"][:, :1].float() @ weights[:, :1].T
    limit = DEQUANT.max_relative_error(workload)
    assert (rounded - reference).norm() / reference.norm() < 0.5 * limit
    assert (without_one - reference).norm() / reference.norm() > limit


def test_wrong_halves_and_groups_exceed_the_limit() -> None:
    workload = DEQUANT.workload("m=8,n=64,k=1024")
    inputs = DEQUANT.inputs(workload, "cpu", 0)
    reference = DEQUANT.reference(workload, inputs)["C"]
    packed = inputs["B"]
    for wrong in (
        {"B": packed >> 4 | packed << 4},
        {"S": inputs["S"].roll(1, 0)},
        {"S": inputs["S"].roll(1, 1)},
    ):
        other = DEQUANT.reference(workload, {**inputs, **wrong})["C"]
        assert (other - reference).norm() / reference.norm() > 20 * DEQUANT.max_relative_error(workload)


def test_costs() -> None:
    workload = DEQUANT.workload("D0")
    k = n = 16384
    assert DEQUANT.flops(workload) == 2 * n * k
    assert DEQUANT.min_bytes(workload) == n * k // 2 + 2 * n * (k // 128) + 2 * (k + n)
    odd = DEQUANT.workload("m=3,n=5,k=7,group=-1")
    assert DEQUANT.min_bytes(odd) == 2 * (3 * 7 + 5 + 3 * 5) + 5 * 4


@pytest.mark.parametrize("group", [0, -2, 48, 16])
def test_other_groups_are_refused(group: int) -> None:
    with pytest.raises(
        WorkloadError, match=rf"group={group} is not supported; take 32.*or -1 for one scale a row"
    ):
        DEQUANT.workload(f"m=1,n=64,k=64,group={group}")


def test_runs_are_those_of_the_search_space() -> None:
    assert RUNS == search_space.RUNS


def test_the_vendor_s_name_mentions_the_dequantisation() -> None:
    workload = DEQUANT.workload("m=4,n=16,k=128", "fp16")
    assert list(DEQUANT.vendor(workload, DEQUANT.inputs(workload, "cpu", 0))) == [
        "torch fp16 (weights dequantised beforehand)"
    ]


def test_published_shapes_are_those_of_the_paper() -> None:
    matmul = operator("matmul")
    for index in range(8):
        assert dict(DEQUANT.workload(f"D{index + 8}").dims) == dict(matmul.workload(f"M{index}").dims)
        assert DEQUANT.workload(f"D{index}").dims["m"] == 1
