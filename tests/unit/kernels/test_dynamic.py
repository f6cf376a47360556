"""Templates with dynamic dimensions: one tile program, lowered once, is right at every edge (on a CPU)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden import lowered
from tests.support.cpu_programs import built_c, on_cpu
from tilesight.errors import InputError
from tilesight.kernels import operator, operators, templates
from tilesight.lowering.dynamic import DynamicWorkload
from tilesight.problem.space import Config
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload

ATTENTION: Mapping[str, Any] = {"block_m": 32, "block_n": 16, "num_stages": 1, "threads": 32}
MATMUL = {
    "block_m": 32,
    "block_n": 32,
    "block_k": 16,
    "num_stages": 1,
    "threads": 32,
    "policy": "square",
    "epilogue": "shared",
    "swizzle": 0,
}
STATE = {
    "block_p": 16,
    "block_n": 32,
    "block_k": 16,
    "num_stages": 1,
    "threads": 64,
    "policy": "square",
    "scaled_x": "registers",
    "copies": "threads",
}
WEIGHTS = {
    "block_m": 16,
    "block_n": 32,
    "block_k": 64,
    "num_stages": 1,
    "threads": 64,
    "policy": "square",
    "decode": "convert",
    "swizzle": 0,
}
NSA = {"block_m": 16, "block_n": 16, "num_stages": 1, "threads": 64, "copies": "threads"}
ROWS = {"threads": 32, "reduce_threads": 8, "vector": 4, "unroll": 2}

# operator, config, workload, values of its dynamic dimensions, attributes
CASES = [
    pytest.param("matmul", MATMUL, "m=1,n=40,k=24", {"m": (1, 31, 32, 33, 100)}, {}, id="matmul"),
    pytest.param(
        "gemv", {**ROWS, "block_n": 8, "num_stages": 0}, "n=1,k=100", {"n": (1, 7, 8, 9, 50)}, {}, id="gemv"
    ),
    pytest.param(
        "dequant_matmul",
        {**WEIGHTS, "weights": "registers"},
        "m=1,n=40,k=128",
        {"m": (1, 15, 16, 17, 40)},
        {"group": 32},
        id="dequant",
        marks=pytest.mark.full,
    ),
    pytest.param(
        "rms_norm",
        {**ROWS, "block_m": 8, "keep": "registers"},
        "m=1,n=100",
        {"m": (1, 7, 8, 9, 30)},
        {},
        id="rms_norm",
        marks=pytest.mark.full,
    ),
    pytest.param(
        "flash_attention",
        {**ATTENTION, "block_order": "by_length"},
        "batch=1,heads=1,seq_len=1,head_dim=16",
        {"seq_len": (1, 15, 32, 33, 70), "batch": (1, 2, 1, 2, 1), "heads": (3, 1, 2, 1, 2)},
        {"causal": True},
        id="attention by_length causal",
    ),
    *(
        pytest.param(
            "flash_attention_varlen",
            {**ATTENTION, "block_order": order},
            "batch=1,heads=2,tokens=1,head_dim=16,group=2",
            {"tokens": (1, 15, 32, 64, 200), "batch": (1, 2, 1, 2, 5), "tokens_kv": (1, 40, 32, 70, 260)},
            {"causal": causal, "window": 20 * causal},
            id=f"packed attention {order}{' causal' if causal else ''}",
            marks=[pytest.mark.full] * (not causal),
        )
        for order, causal in (("by_head", False), ("by_length", True))
    ),
    pytest.param(
        "native_sparse_attention",
        {**NSA, "weights": "shared"},
        "batch=1,heads=6,seq_len=1,head_dim=16",
        {"seq_len": (1, 16, 31, 65, 200), "batch": (1, 2, 1, 2, 1)},
        {"group": 3, "block": 32, "topk": 4},
        id="selected blocks",
        marks=pytest.mark.full,
    ),
    pytest.param(
        "chunk_state",
        STATE,
        "batch=1,seq_len=1,nheads=1,head_dim=20,d_state=24",
        {"seq_len": (1, 31, 32, 33, 100), "batch": (1, 2, 1, 2, 1), "nheads": (1, 2, 3, 1, 2)},
        {"chunk": 32},
        id="chunk_state",
        marks=pytest.mark.full,
    ),
]


def gpu_template(name: str) -> KernelTemplate:
    return next(t for t in templates(name) if "cuda" in t.target_kinds)


def opened(workload: Workload, dims: tuple[str, ...]) -> DynamicWorkload:
    import tilelang.language as T  # noqa: N812

    return DynamicWorkload(
        workload.operator,
        {**workload.dims, **{d: T.dynamic(d) for d in dims}},
        workload.dtype,
        workload.attrs,
    )


@pytest.mark.parametrize(("name", "config", "shape", "values", "attrs"), CASES)
def test_one_program_is_right_at_every_edge(
    name: str,
    config: dict[str, Any],
    shape: str,
    values: dict[str, tuple[int, ...]],
    attrs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tilelang.language as T  # noqa: N812

    monkeypatch.setattr(T, "annotate_layout", lambda _: None)  # local arrays have none
    template, op = gpu_template(name), operator(name)
    text = ",".join([shape, *(f"{k}={str(v).lower()}" for k, v in attrs.items())])
    found = op.workload(text)
    base = Workload(name, found.dims, "float32", found.attrs)
    with on_cpu():
        call = built_c(template.build(opened(base, tuple(values)), Config(config)), tmp_path)
    for place in range(len(next(iter(values.values())))):
        sizes = {dim: of_dim[place] for dim, of_dim in values.items()}
        workload = Workload(name, {**base.dims, **sizes}, "float32", base.attrs)
        inputs = op.inputs(workload, "cpu", 3)
        (output,) = op.outputs(workload)
        # what lies behind a tensor must stay as it is
        elements = torch.Size(op.outputs(workload)[output]).numel()
        memory = torch.full((elements + 64,), torch.nan)
        memory[elements:] = 7.0
        out = memory[:elements].view(op.outputs(workload)[output])
        call({**inputs, output: out, **sizes})
        reference = op.reference(workload, inputs)[output]
        assert (out - reference).norm() / reference.norm() < 1e-5, sizes
        assert (memory[elements:] == 7.0).all(), sizes


@pytest.mark.parametrize(
    "template", [t for name in operators() for t in templates(name)], ids=lambda t: t.name
)
def test_every_dimension_can_be_dynamic_or_has_a_reason(template: KernelTemplate) -> None:
    assert {*template.dynamic_dims, *template.static_reasons} == set(template.operator.dims)
    assert not {*template.dynamic_dims} & {*template.static_reasons}
    template.check_dynamic(template.dynamic_dims)
    for dim, reason in template.static_reasons.items():
        with pytest.raises(
            InputError,
            match=f": {dim} cannot be dynamic in {template.name}: {reason}; (take|none) ",
        ):
            template.check_dynamic((dim,))


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (("m", "m"), "m is given twice"),
        (("q",), "unknown matmul dimension 'q'"),
        (("M",), "unknown matmul dimension 'M'"),
    ],
)
def test_unknown_names_cannot_be_dynamic(dims: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        gpu_template("matmul").check_dynamic(dims)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in operators() if not operator(name).communicates])
def test_all_dynamic_dimensions_at_once_lower(name: str) -> None:
    """The default config on Hopper, with every dimension taken at run time that the template declares."""
    lowered.check_unless_known(lowered.dynamic_case(name), lowered.dynamic_candidate(name))
