"""Definitions compute what operators compute, both ways; solutions give results as definitions want them."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilesight import kernels
from tilesight.kernels._page_lists import PageListOperator
from tilesight.problem.workload import Workload
from tilesight.tracesets.definition import DefinitionError, TraceTensor, read_definition
from tilesight.tracesets.matches import (
    MATCHES,
    KernelProblem,
    match_of_definition,
    match_of_operator,
)

ATTENTION = "batch=3,heads=4,tokens=37,head_dim=16,tokens_kv=50,causal=true,group=2,lse=true"
# operator, shape, dtype, dimensions that calls state, the name of the definition
CASES = [
    ("matmul", "m=5,n=16,k=32,layout=nt", "float32", ("m",), "gemm_n16_k32"),
    ("matmul", "m=5,n=16,k=32,layout=nt", "bfloat16", ("m",), "gemm_n16_k32"),
    ("rms_norm", "m=5,n=64", "bfloat16", ("m",), "rmsnorm_h64"),
    ("rms_norm", "m=5,n=64,residual=true", "float16", ("m",), "fused_add_rmsnorm_h64"),
    (
        "flash_attention_varlen",
        ATTENTION,
        "bfloat16",
        ("batch", "tokens", "tokens_kv"),
        "gqa_ragged_prefill_causal_h4_kv2_d16",
    ),
]


PAGED = [
    (
        "flash_decoding_paged",
        f"batch=3,heads=4,kv_heads=2,head_dim=16,pages=70,indices=50,page={page}",
        "bfloat16",
        ("batch", "pages", "indices"),
        f"gqa_paged_decode_h4_kv2_d16_ps{page}",
    )
    for page in (1, 16)
] + [
    (
        "mla_decode_paged",
        f"batch=3,heads=4,dim=64,rope_dim=32,pages=70,indices=50,page={page}{scale}",
        "bfloat16",
        ("batch", "pages", "indices"),
        f"mla_paged_decode_h4_ckv64_kpe32_ps{page}",
    )
    for page, scale in ((1, ""), (64, f",scale={160**-0.5}"))
]


def workload_of(case: tuple[str, str, str, tuple[str, ...], str]) -> tuple[Workload, KernelProblem]:
    name, shape, dtype, free, _ = case
    operator = kernels.operator(name)
    workload = operator.workload(shape, dtype)
    fixed = {dim: size for dim, size in workload.dims.items() if dim not in free}
    return workload, KernelProblem(operator, dtype, workload.attrs, fixed)


def run_of(code: str, **names: Any) -> Any:
    found: dict[str, Any] = {"torch": torch, **names}
    exec(code, found)
    return found["run"]


def as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[4]}-{case[2]}")
def test_definition_and_solution_compute_what_the_operator_does(case: Any) -> None:
    workload, problem = workload_of(case)
    match = match_of_operator(case[0])
    definition = match.definition(problem)
    assert definition.name == case[4]
    operator = problem.operator
    inputs = operator.inputs(workload, "cpu", 3)
    wanted = operator.reference(workload, inputs)
    numbers = [workload.dims["head_dim"] ** -0.5] if "sm_scale" in definition.inputs else []
    by_name = {"x": "hidden_states", "r": "residual", "w": "weight"}
    given = dict(inputs)
    assert len(given) + len(numbers) == len(definition.inputs)
    if case[0] == "rms_norm":
        assert list(definition.inputs) == [by_name[name] for name in given]
    found = as_tuple(run_of(definition.reference)(*given.values(), *numbers))
    exact = [wanted[name] for name in list(wanted)[: len(found)]]
    if numbers:  # the operator has heads first, and natural logarithms
        exact[1] = wanted["LSE"].T / math.log(2)
    bound = operator.max_relative_error(workload)
    for one, right, tensor in zip(found, exact, definition.outputs.values(), strict=True):
        assert str(one.dtype) == f"torch.{tensor.dtype}"
        assert one.shape == right.shape
        assert (one.float() - right).norm() <= bound * right.norm()

    def call(*tensors: torch.Tensor, out: Any) -> None:
        assert all(torch.equal(tensor, right) for tensor, right in zip(tensors, given.values(), strict=True))
        for place, right in zip(as_tuple(out), wanted.values(), strict=True):
            place.copy_(right)

    run = run_of(match.run(problem, "module"), module=SimpleNamespace(call=call))
    places = [torch.empty(one.shape, dtype=one.dtype) for one in found]
    assert run(*given.values(), *numbers, *places) is None
    for place, right in zip(places, exact, strict=True):
        torch.testing.assert_close(place.float(), right.float(), atol=2e-2, rtol=2e-2)


def test_a_solution_refuses_another_scale() -> None:
    _, problem = workload_of(CASES[-1])
    run = run_of(match_of_operator("flash_attention_varlen").run(problem, "module"))
    with pytest.raises(ValueError, match=r"sm_scale=0.5: these kernels have 0.25"):
        run(*[None] * 5, 0.5, None, None)


@pytest.mark.parametrize("case", [*CASES, *PAGED], ids=lambda case: f"{case[4]}-{case[2]}")
def test_a_definition_is_read_as_the_shape_that_it_was_made_of(case: Any) -> None:
    workload, problem = workload_of(case)
    made = match_of_operator(case[0]).definition(problem)
    definition = read_definition(json.loads(json.dumps(made.fields())))
    assert definition == made
    match = match_of_definition(definition)
    stated = {"sm_scale": paged_scale(problem)} if case in PAGED else {}
    found = match.shape(definition, match.axes(workload.dims), stated)
    match.check_dtypes(definition, found)
    assert match.dtype(definition) == case[2]
    text = ",".join(f"{name}={str(value).lower()}" for name, value in found.items())
    assert problem.operator.workload(text, case[2]).key == workload.key


def test_every_match_has_a_case() -> None:
    assert {match.operator for match in MATCHES} == {case[0] for case in [*CASES, *PAGED]}


def paged_inputs(problem: KernelProblem, ends: list[int], last: list[int]) -> dict[str, torch.Tensor]:
    """The tensors of a definition for items whose lists of pages have these ends; pages in any order."""
    sizes = {**problem.fixed, "batch": len(ends) - 1, "pages": 70, "indices": max(1, ends[-1])}
    operator = problem.operator
    dims = {dim: sizes[dim] for dim in operator.dims}
    found = operator.inputs(Workload(operator.name, dims, problem.dtype, problem.attrs), "cpu", 3)
    found["kv_indptr"] = torch.tensor(ends, dtype=torch.int32)
    found["kv_indices"] = found["kv_indices"][: ends[-1]]
    if "kv_last_page_len" in found:
        found["kv_last_page_len"] = torch.tensor(last, dtype=torch.int32)
    return found


def paged_scale(problem: KernelProblem) -> float:
    width = 96 if problem.operator.name == "mla_decode_paged" else problem.fixed["head_dim"]
    return float(problem.attribute("scale")) or width**-0.5


@pytest.mark.parametrize(
    ("ends", "last"), [([0, 20, 23, 23], [16, 5, 99]), ([0, 0, 0], [0, 0]), ([0, 1], [1])]
)
@pytest.mark.parametrize("case", PAGED, ids=lambda case: case[4])
def test_lists_of_pages_are_read_as_they_are(case: Any, ends: list[int], last: list[int]) -> None:
    """The solution calls the kernels with what gives the reference of the definition; items may be empty."""
    _, problem = workload_of(case)
    match = match_of_operator(case[0])
    given = paged_inputs(problem, ends, last)
    scale = paged_scale(problem)
    output, lse = run_of(match.definition(problem).reference)(*given.values(), scale)
    operator, seen = problem.operator, []
    assert isinstance(operator, PageListOperator)

    def call(*tensors: Any, out: Any) -> None:
        inputs = dict(zip(given, tensors, strict=True))
        listed, pools = inputs["kv_indices"], inputs[operator.pools[0]]
        sizes = {**problem.fixed, "batch": len(ends) - 1, "pages": len(pools), "indices": len(listed)}
        workload = Workload(operator.name, {d: sizes[d] for d in operator.dims}, case[2], problem.attrs)
        for name, tensor in inputs.items():
            assert str(tensor.dtype) == f"torch.{operator.dtype_of(name, workload)}"
        assert operator.index_fault(workload, inputs) is None
        found = operator.reference(workload, inputs)
        for place, right in zip(out, found.values(), strict=True):
            place.copy_(right)
        seen.append(len(listed))

    run = run_of(match.run(problem, "module"), module=SimpleNamespace(call=call))
    places = [torch.empty_like(output), torch.empty_like(lse)]
    run(*given.values(), scale, *places)
    assert seen == [max(1, ends[-1])]
    torch.testing.assert_close(places[0].float(), output.float(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(places[1], lse, atol=1e-3, rtol=1e-3)
    for item, (begin, end) in enumerate(itertools.pairwise(ends)):
        assert bool((lse[item] == -math.inf).all()) == (begin == end)
        assert bool((output[item] == 0).all()) == (begin == end)


@pytest.mark.parametrize("case", PAGED, ids=lambda case: case[4])
def test_definitions_of_other_paged_attention_are_refused(case: Any) -> None:
    _, problem = workload_of(case)
    match = match_of_operator(case[0])
    made, axes = match.definition(problem), {"batch_size": 2, "num_pages": 9, "len_indptr": 3}
    keys = {**axes, "num_kv_indices": 7}
    prefill = {**made.inputs, "qo_indptr": TraceTensor(("len_indptr",), "int32")}
    last = {**made.inputs, "kv_last_page_len": TraceTensor(("batch_size",), "int32")}
    if "kv_last_page_len" in made.inputs:
        del last["kv_last_page_len"]
    for changed, stated, reason in (
        (replace(made, inputs=prefill), keys, "not the attention of one query of each item"),
        (replace(made, inputs=last), keys, "not the attention of one query of each item"),
        (
            replace(made, axes={**made.axes, "page_size": 8}),
            keys,
            "page_size=8 must be one of: 1, 16, 32, 64",
        ),
        (made, {**keys, "len_indptr": 4}, "len_indptr=4 must be 3, one more than batch_size=2"),
        (made, axes, "axis num_kv_indices has no size"),
    ):
        with pytest.raises(DefinitionError, match=reason):
            match.shape(changed, stated, {})
    assert match.shape(made, keys, {"sm_scale": 0.5})["scale"] == 0.5
    assert match.shape(made, keys, {"sm_scale": paged_scale(problem) * (1 + 1e-7)})["scale"] in (
        0.0,
        paged_scale(problem),
    )
    fixed = {dim: size for dim, size in problem.fixed.items() if dim != "heads"}
    with pytest.raises(DefinitionError, match="heads must be fixed"):
        match.definition(replace(problem, fixed=fixed))


def test_heads_of_paged_attention_share_kv_heads_evenly() -> None:
    _, problem = workload_of(PAGED[0])
    match = match_of_operator("flash_decoding_paged")
    made = match.definition(problem)
    axes = {"batch_size": 2, "num_pages": 9, "len_indptr": 3, "num_kv_indices": 7}
    with pytest.raises(DefinitionError, match="num_qo_heads=4 is no multiple of num_kv_heads=3"):
        match.shape(replace(made, axes={**made.axes, "num_kv_heads": 3}), axes, {})


@pytest.mark.parametrize(
    ("operator", "shape", "dtype", "free", "message"),
    [
        ("matmul", "m=5,n=16,k=32", "bfloat16", ("m",), "needs layout=nt, and these kernels have layout=nn"),
        ("matmul", "m=5,n=16,k=32,layout=nt,fuse=relu", "bfloat16", ("m",), "needs fuse=none"),
        ("matmul", "m=5,n=16,k=32,layout=nt,scales=row", "float8_e4m3fn", ("m",), "needs scales=none"),
        ("matmul", "m=5,n=16,k=32,layout=nt", "int8", ("m",), "has no int8 without scales"),
        ("matmul", "m=5,n=16,k=32,layout=nt", "float16", ("m", "n"), "n must be fixed"),
        ("flash_attention_varlen", ATTENTION.replace(",lse=true", ""), "float16", ("tokens",), "lse=true"),
        ("flash_attention_varlen", f"{ATTENTION},window=8", "float16", ("tokens",), "needs window=0"),
        (
            "softmax",
            "m=5,n=16",
            "float16",
            ("m",),
            r"operators that have one: matmul \(gemm\), rms_norm \(rmsnorm\), flash_attention_varlen",
        ),
    ],
)
def test_what_no_definition_computes_is_refused(
    operator: str, shape: str, dtype: str, free: tuple[str, ...], message: str
) -> None:
    _, problem = workload_of((operator, shape, dtype, free, ""))
    with pytest.raises(DefinitionError, match=message):
        match_of_operator(operator).definition(problem)


def test_other_definitions_are_no_operators() -> None:
    _, problem = workload_of(CASES[1])
    gemm = match_of_operator("matmul").definition(problem)
    scaled = replace(gemm, inputs={**gemm.inputs, "A_scale": TraceTensor(("M",), "float32")})
    alpha = replace(gemm, inputs={**gemm.inputs, "alpha": TraceTensor(None, "float32")})
    _, attention = workload_of(CASES[-1])
    ragged = match_of_operator("flash_attention_varlen").definition(attention)
    of_gemm, of_ragged = {"M": 3}, {"len_indptr": 2, "total_q": 3, "total_kv": 3}
    for definition, message in (
        (scaled, "not the plain product"),
        (alpha, "not the plain product"),
        (replace(gemm, axes={**gemm.axes, "N": None}), "axis N has no size"),
        (replace(gemm, op_type="dsa_paged"), "op_type dsa_paged: it has the two parts of queries"),
        (replace(gemm, op_type="relu"), "op_type relu: no operator is known for it"),
        (replace(ragged, name="gqa_ragged_prefill_h4_kv2_d16"), "does not say that it is causal"),
        (replace(ragged, axes={**ragged.axes, "num_kv_heads": 3}), "no multiple of num_kv_heads=3"),
    ):
        with pytest.raises(DefinitionError, match=message):
            match_of_definition(definition).shape(
                definition, of_ragged if definition.name.startswith("gqa") else of_gemm, {}
            )


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"M": 3, "N": 17}, "its workload states N=17, and it has N=16"),
        ({"M": 3, "L": 2}, "its workload states axis L, which it does not have"),
        ({}, "axis M has no size"),
    ],
)
def test_a_workload_keeps_the_axes_of_its_definition(axes: dict[str, int], message: str) -> None:
    match = match_of_operator("matmul")
    definition = match.definition(workload_of(CASES[1])[1])
    assert match.shape(definition, {"M": 3, "N": 16}, {}) == match.shape(definition, {"M": 3}, {})
    with pytest.raises(DefinitionError, match=f"^{message}$"):
        match.shape(definition, axes, {})


@pytest.mark.parametrize(
    ("given", "result", "message"),
    [
        ("float8_e4m3fn", "bfloat16", ""),
        ("int8", "int32", ""),
        (
            "float8_e4m3fn",
            "float8_e4m3fn",
            "its C is float8_e4m3fn, and that of matmul float8_e4m3fn is bfloat16",
        ),
        ("int8", "int8", "its C is int8, and that of matmul int8 is int32"),
        ("bfloat16", "float32", "its C is float32, and that of matmul bfloat16 is bfloat16"),
    ],
)
def test_dtypes_of_results_are_those_of_the_operator(given: str, result: str, message: str) -> None:
    match = match_of_operator("matmul")
    gemm = match.definition(workload_of(CASES[1])[1])
    definition = replace(
        gemm,
        inputs={name: replace(tensor, dtype=given) for name, tensor in gemm.inputs.items()},
        outputs={"C": TraceTensor(("M", "N"), result)},
    )
    shape = match.shape(definition, {"M": 3}, {})
    if not message:
        match.check_dtypes(definition, shape)
        return
    with pytest.raises(DefinitionError, match=f"^{message}$"):
        match.check_dtypes(definition, shape)


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [("k", "float16"), ("v", "float32"), ("qo_indptr", "int64"), ("output", "float32"), ("lse", "bfloat16")],
)
def test_dtypes_of_attention(tensor: str, dtype: str) -> None:
    match = match_of_operator("flash_attention_varlen")
    ragged = match.definition(workload_of(CASES[-1])[1])
    shape = match.shape(ragged, {"len_indptr": 2, "total_q": 3, "total_kv": 3}, {})
    places = {"inputs": ragged.inputs, "outputs": ragged.outputs}
    [(place, tensors)] = [(place, found) for place, found in places.items() if tensor in found]
    changed = {**tensors, tensor: replace(tensors[tensor], dtype=dtype)}
    with pytest.raises(
        DefinitionError, match=f"^its {tensor} is {dtype}, and that of flash_attention_varlen"
    ):
        match.check_dtypes(replace(ragged, **{place: changed}), shape)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends", "scale", "message"),
    [
        (1, 0.5, "len_indptr=1 must be at least 2"),
        *((2, wrong, "sm_scale=.* must be a number above 0") for wrong in (0.0, -1.0, math.inf, math.nan)),
    ],
)
def test_numbers_of_attention(ends: int, scale: float, message: str) -> None:
    match = match_of_operator("flash_attention_varlen")
    ragged = match.definition(workload_of(CASES[-1])[1])
    with pytest.raises(DefinitionError, match=f"^{message}"):
        match.shape(ragged, {"len_indptr": ends, "total_q": 3, "total_kv": 3}, {"sm_scale": scale})


def test_an_unusual_scale_is_an_attribute_of_the_shape() -> None:
    _, problem = workload_of(CASES[-1])
    match = match_of_operator("flash_attention_varlen")
    definition = match.definition(problem)
    axes = {"len_indptr": 2, "total_q": 3, "total_kv": 3}
    assert match.shape(definition, axes, {"sm_scale": 0.25})["scale"] == 0.0
    assert match.shape(definition, axes, {"sm_scale": 0.1})["scale"] == 0.1


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {"name": "x"},
        {
            "name": "x",
            "op_type": "gemm",
            "axes": {"M": {"type": "const", "value": "7"}},
            "inputs": {},
            "outputs": {},
        },
        {
            "name": "x",
            "op_type": "gemm",
            "axes": {"M": {"type": "odd", "value": 7}},
            "inputs": {},
            "outputs": {},
        },
        {"name": "x", "op_type": "gemm", "axes": {}, "inputs": {"A": {"dtype": "int8"}}, "outputs": {}},
    ],
)
def test_what_is_no_definition_is_refused(fields: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^it is no definition: "):
        read_definition(fields)
