"""Operators on rows and without sums: results of their tile programs on a CPU, formulas, and messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import built_c, on_cpu
from tilesight.errors import WorkloadError
from tilesight.kernels import _row_tiles, operator, quantize, templates
from tilesight.problem.space import Config, Value
from tilesight.problem.workload import Workload
from tilesight.runner.verify import check_outputs

# two rows a thread, several trips, and rows and columns left over
ROWS = {"block_m": 4, "threads": 64, "reduce_threads": 32, "vector": 4, "unroll": 1}
GROUPS = {**ROWS, "block_m": 16, "reduce_threads": 8}  # four steps of a group of 128
GATE = {"block_m": 4, "threads": 32, "reduce_threads": 16, "vector": 4}
PAIRS = {"block_m": 8, "block_h": 4, "threads": 32, "vector": 4}
TILE = {"block_m": 2, "block_n": 128, "threads": 32, "vector": 4}


def workload(name: str, shape: str) -> Workload:
    """In float32, which the CPU computes as a GPU does."""
    found = operator(name).workload(shape)
    return Workload(name, found.dims, "float32", found.attrs)


CI = pytest.mark.full


@pytest.mark.parametrize(
    ("name", "shape", "config"),
    [
        pytest.param("layer_norm", "m=7,n=200", {**ROWS, "keep": "global"}, marks=CI),
        pytest.param("layer_norm", "m=7,n=1", {**ROWS, "vector": 1, "keep": "registers"}, marks=CI),
        ("layer_norm", "m=7,n=200,residual=true", {**ROWS, "keep": "shared"}),
        pytest.param(
            "layer_norm", "m=7,n=200,residual=true", {**ROWS, "keep": "global", "unroll": 2}, marks=CI
        ),
        pytest.param("layer_norm", "m=7,n=200,residual=true", {**ROWS, "keep": "registers"}, marks=CI),
        ("softmax", "m=7,n=200", {**ROWS, "keep": "shared"}),
        pytest.param("softmax", "m=7,n=1000", {**ROWS, "keep": "both", "unroll": 2}, marks=CI),
        pytest.param("cross_entropy", "m=35,n=300", {**ROWS, "keep": "global", "unroll": 2}, marks=CI),
        pytest.param("rms_norm", "m=7,n=200,residual=true", {**ROWS, "keep": "shared"}, marks=CI),
        pytest.param(
            "rms_norm", "m=7,n=200,residual=true", {**ROWS, "keep": "global", "unroll": 2}, marks=CI
        ),
        ("quantize", "m=17,n=200,group=128,residual=true", {**GROUPS, "keep": "shared"}),
        pytest.param(
            "quantize", "m=7,n=300,group=128,residual=true", {**GROUPS, "keep": "registers"}, marks=CI
        ),
        pytest.param(
            "quantize", "m=7,n=200,residual=true", {**ROWS, "keep": "global", "unroll": 2}, marks=CI
        ),
        pytest.param("silu_mul", "m=7,n=200", TILE, marks=CI),
        pytest.param("rope", "tokens=7,heads=6,head_dim=24", PAIRS, marks=CI),
        pytest.param("topk_gate", "m=7,experts=60,topk=6", GATE, marks=CI),
        pytest.param("topk_gate", "m=7,experts=60,topk=4,score=sigmoid,renormalize=true", GATE, marks=CI),
    ],
)
def test_tile_program_is_right(
    name: str, shape: str, config: dict[str, Value], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tilelang.language as T  # noqa: N812

    monkeypatch.setattr(T, "annotate_layout", lambda _: None)  # local arrays have none
    monkeypatch.setattr(T, "async_copy", T.copy)
    monkeypatch.setattr(T, "ptx_wait_group", lambda _: None)
    # TileLang's C backend has neither of these
    monkeypatch.setattr(quantize, "NARROW", "float32")
    monkeypatch.setattr(T, "abs", lambda number: T.max(number, -number))
    ours, asked = operator(name), workload(name, shape)
    with on_cpu():
        run = built_c(templates(name)[0].build(asked, Config(config)), tmp_path)
    extreme = ours.second_inputs(asked, "cpu", 7)
    assert extreme is not None
    for inputs in (ours.inputs(asked, "cpu", 7), extreme.tensors):
        outputs = {
            key: torch.full(size, 77, dtype=getattr(torch, ours.dtype_of(key, asked)))
            for key, size in ours.outputs(asked).items()
        }
        run({**inputs, **outputs})
        for key, right in ours.reference(asked, inputs).items():
            if right.is_floating_point():
                torch.testing.assert_close(outputs[key], right, rtol=2e-5, atol=1e-5)
            else:
                assert torch.equal(outputs[key], right)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layer_norm", "m=64,n=1024"),
        ("layer_norm", "m=33,n=57"),
        ("layer_norm", "m=33,n=57,residual=true"),
        ("softmax", "m=33,n=570"),
        ("cross_entropy", "m=64,n=1024"),
        ("rms_norm", "m=33,n=57,residual=true"),
        ("quantize", "m=64,n=1000"),
        ("quantize", "m=64,n=1000,group=128"),
        ("quantize", "m=64,n=1000,group=128,residual=true"),
        ("rope", "tokens=64,heads=4,head_dim=6"),
    ],
)
def test_bounds_accept_results_that_are_rounded_once(name: str, shape: str, second: bool) -> None:
    ours = operator(name)
    asked = ours.workload(shape)
    extreme = ours.second_inputs(asked, "cpu", 3)
    assert extreme is not None
    inputs = extreme.tensors if second else ours.inputs(asked, "cpu", 3)
    reference = ours.reference(asked, inputs)
    rounded = {key: value.to(getattr(torch, ours.dtype_of(key, asked))) for key, value in reference.items()}
    verdict = check_outputs(ours, asked, rounded, reference, ours.magnitude(asked, inputs), extreme.is_exact)
    assert verdict.failure is None
    other = {key: torch.roll(value, 1, 0) for key, value in rounded.items()}  # the results of other rows
    assert check_outputs(ours, asked, other, reference).failure is not None


def test_layer_norm_keeps_its_variance_where_means_are_large() -> None:
    ours = operator("layer_norm")
    asked = ours.workload("m=64,n=512")
    extreme = ours.second_inputs(asked, "cpu", 1)
    assert extreme is not None
    x = extreme.tensors["x"].double()
    mean, spread = x.mean(1), x.std(1, correction=0)
    assert (mean.abs() / spread).max() > 16
    y = (x - mean[:, None]) / (spread.square() + 1e-5).sqrt()[:, None]
    expected = y * extreme.tensors["w"].double() + extreme.tensors["b"].double()
    found = ours.reference(asked, extreme.tensors)["y"].double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_references_are_the_same_for_any_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = operator("softmax")
    asked = ours.workload("m=50,n=30")
    inputs = ours.inputs(asked, "cpu", 1)
    e = inputs["x"].double().exp()
    for panel in (1 << 26, 210, 1):
        monkeypatch.setattr(_row_tiles, "PANEL", panel)
        found = ours.reference(asked, inputs)["y"].double()
        torch.testing.assert_close(found, e / e.sum(1, keepdim=True), rtol=1e-5, atol=1e-7)


def test_a_negative_label_is_ignored() -> None:
    ours = operator("cross_entropy")
    asked = ours.workload("m=32,n=50")
    inputs = ours.inputs(asked, "cpu", 1)
    assert inputs["labels"][15] == inputs["labels"][31] == -100
    expected = torch.nn.functional.cross_entropy(
        inputs["x"].double(), inputs["labels"].long(), reduction="none"
    )
    loss = ours.reference(asked, inputs)["loss"]
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    assert loss[15] == 0


def test_a_group_of_zeros_has_a_scale_and_the_last_group_may_be_short() -> None:
    ours = operator("quantize")
    asked = ours.workload("m=3,n=200,group=128")
    extreme = ours.second_inputs(asked, "cpu", 1)
    assert extreme is not None
    found = ours.reference(asked, extreme.tensors)
    assert found["s"].shape == (3, 2)
    torch.testing.assert_close(found["s"][0], torch.full((2,), 1e-4 / 448))
    largest = extreme.tensors["x"][1:, 128:].float().abs().amax(1)
    torch.testing.assert_close(found["s"][1:, 1], largest / 448)
    assert found["q"][1:].abs().amax() == pytest.approx(448)


def test_a_residual_is_rounded_before_rows_are_quantised() -> None:
    ours = operator("quantize")
    asked, plain = (ours.workload(f"m=9,n=300,group=128{more}") for more in (",residual=true", ""))
    assert plain.key == "quantize(m=9,n=300;group=128,dtype=bfloat16)"  # keys of recorded measurements hold
    inputs = ours.inputs(asked, "cpu", 1)
    found = ours.reference(asked, inputs)
    h = inputs["x"] + inputs["r"]
    assert torch.equal(found.pop("h").to(torch.bfloat16), h)
    assert not torch.equal(h.float(), inputs["x"].float() + inputs["r"].float())
    alone = ours.reference(plain, {"x": h})
    assert all(torch.equal(found[name], alone[name]) for name in ("q", "s"))
    assert ours.min_bytes(asked) == ours.min_bytes(plain) + 2 * 2 * 9 * 300
    assert ours.flops(asked) == ours.flops(plain) + 9 * 300
    (baseline,) = ours.vendor(asked, inputs).values()
    for output, right in zip(baseline(), (*alone.values(), h), strict=True):
        assert torch.equal(output, right.to(output.dtype))


@pytest.mark.parametrize(("name", "weights"), [("rms_norm", 1), ("layer_norm", 2)])
def test_a_residual_is_rounded_before_the_norm_and_written_back(name: str, weights: int) -> None:
    ours = operator(name)
    asked, plain = ours.workload("m=9,n=64,residual=true"), ours.workload("m=9,n=64")
    assert "residual" not in plain.attrs  # keys of recorded measurements hold
    assert plain.key == f"{name}(m=9,n=64;dtype=bfloat16)"
    inputs = ours.inputs(asked, "cpu", 1)
    found = ours.reference(asked, inputs)
    h = inputs["x"] + inputs["r"]
    assert torch.equal(found["h"].to(torch.bfloat16), h)
    shared = {key: value for key, value in inputs.items() if key not in ("x", "r")}
    assert torch.equal(found["y"], ours.reference(plain, {"x": h, **shared})["y"])
    assert ours.min_bytes(asked) == 2 * (4 * 9 * 64 + weights * 64)
    assert ours.flops(asked) == ours.flops(plain) + 9 * 64


def test_equal_logits_come_in_the_order_of_experts() -> None:
    ours = operator("topk_gate")
    asked = ours.workload("m=4,experts=9,topk=3,renormalize=true")
    x = torch.tensor([[0, 2, 1, 2, 0, 2, 0, 2, 0]] * 4, dtype=torch.float32)
    found = ours.reference(asked, {"x": x})
    assert found["chosen"].tolist() == [[1, 3, 5]] * 4
    torch.testing.assert_close(found["weights"], torch.full((4, 3), 1 / 3))
    swapped = {**found, "chosen": found["chosen"][:, [1, 0, 2]].contiguous()}
    assert check_outputs(ours, asked, found, found).failure is None
    failure = check_outputs(ours, asked, swapped, found).failure
    assert failure is not None
    assert "output 'chosen': 8 of 12 elements differ" in failure.message


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("softmax", "m=100000,n=100000", r"m\*n=10000000000 elements.*split the rows"),
        ("silu_mul", "m=100000,n=20000", r"2\*m\*n=4000000000 elements.*split the rows"),
        ("quantize", "m=4,n=256,group=64", "group=64 must be one of: -1, 128"),
        ("rope", "tokens=4,heads=2,head_dim=63", "head_dim=63 must be even.*nearest legal value: 64"),
        ("rope", "tokens=4,heads=2,head_dim=1024", "at most 512.*nearest legal value: 512"),
        ("topk_gate", "m=4,experts=2048", "experts=2048 exceeds 1024"),
        ("topk_gate", "m=4,experts=6,topk=8", "topk=8 must be 1 to 6: there are 6 experts"),
        ("topk_gate", "m=4,experts=64,topk=17", "topk=17 must be 1 to 16"),
    ],
)
def test_bad_workloads_are_refused(name: str, shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        operator(name).workload(shape)
