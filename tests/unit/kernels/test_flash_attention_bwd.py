"""flash_attention_bwd: results of its tile programs on a CPU, and properties of the operator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.lowering.lower import lower
from tilesight.problem.space import Config, Value
from tilesight.problem.workload import Workload
from tilesight.runner.vendors import vendor_fault
from tilesight.target.spec import load_target

BACKWARD = operator("flash_attention_bwd")
(TEMPLATE,) = templates("flash_attention_bwd")


def fp32(seq_len: int, head_dim: int, **attrs: Value) -> Workload:
    return Workload(
        "flash_attention_bwd",
        {"batch": 2, "heads": 4, "seq_len": seq_len, "head_dim": head_dim},
        "float32",
        {"causal": False, "group": 1, "window": 0, **attrs},
    )


@pytest.mark.parametrize(
    ("workload", "dq"),
    [
        (fp32(64, 32), "add"),
        pytest.param(fp32(70, 24, causal=True, group=2, window=20), "add", marks=pytest.mark.full),
        pytest.param(fp32(70, 24, group=2), "separate", marks=pytest.mark.full),  # padded keys and rows
        (fp32(70, 24, causal=True, window=20), "separate"),
        (fp32(70, 24, causal=True, group=2, softcap=2, sinks=True), "add"),
        pytest.param(fp32(70, 24, softcap=2, sinks=True), "separate", marks=pytest.mark.full),
        (fp32(70, 24, lengths="mixed", sinks=True), "separate"),
        pytest.param(fp32(70, 24, group=2, lengths="mixed"), "add", marks=pytest.mark.full),
        pytest.param(fp32(70, 24, causal=True, window=20, lengths="mixed"), "add", marks=pytest.mark.full),
    ],
)
def test_tile_programs_are_right(workload: Workload, dq: str, tmp_path: Path) -> None:
    assert_right(workload, {"dq": dq}, tmp_path)


@pytest.mark.parametrize(
    ("workload", "dq", "split"),
    [
        (fp32(40, 136, causal=True, group=2, window=20, softcap=2), "add", "columns"),  # padded columns
        (fp32(40, 192, group=2, lengths="mixed", sinks=True), "separate", "columns"),
        pytest.param(fp32(40, 256, causal=True), "separate", "columns", marks=pytest.mark.full),
        pytest.param(fp32(40, 256, group=4, lengths="mixed"), "add", "columns", marks=pytest.mark.full),
        pytest.param(fp32(40, 192, causal=True, sinks=True), "add", "keys", marks=pytest.mark.full),
    ],
)
def test_tile_programs_of_wide_rows_are_right(
    workload: Workload, dq: str, split: str, tmp_path: Path
) -> None:
    assert_right(workload, {"dq": dq, "split": split}, tmp_path)


def assert_right(workload: Workload, choices: dict[str, Value], tmp_path: Path) -> None:
    config = Config(
        {"block_m": 16, "block_n": 32, "num_stages": 1, "threads": 32}
        | {"overlap": False, "block_order": "by_length"}
        | choices
    )
    inputs = BACKWARD.inputs(workload, "cpu", 5)
    if "length" in inputs:
        inputs["length"][1] = 9  # blocks of keys without a query
        inputs["O"][1, 9:], inputs["LSE"][1, :, 9:] = 0, -torch.inf  # as of queries that see nothing
    outputs = {name: torch.full(size, torch.nan) for name, size in BACKWARD.outputs(workload).items()}
    scratch = {
        name: torch.full(size, torch.nan) for name, (size, _) in TEMPLATE.scratch(workload, config).items()
    }
    with on_cpu():
        run_c(TEMPLATE.build(workload, config), {**inputs, **outputs, **scratch}, tmp_path)
    for name, expected in BACKWARD.reference(workload, inputs).items():
        if "length" in inputs and name != "dsink":
            assert (outputs[name][1, 9:] == 0).all()
        assert (outputs[name] - expected).norm() / expected.norm() < 1e-5, name


@pytest.mark.parametrize(
    "workload",
    [
        fp32(50, 16),
        fp32(50, 16, causal=True, group=4),
        fp32(50, 16, causal=True, window=9),
        fp32(50, 16, causal=True, group=2, softcap=2, sinks=True),
        fp32(50, 16, group=2, sinks=True, lengths="mixed"),
    ],
)
def test_reference_is_the_gradient_of_attention(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = BACKWARD.inputs(workload, "cpu", 1)
    q, k, v = (inputs[n].double().transpose(1, 2).requires_grad_() for n in ("Q", "K", "V"))
    ago = torch.arange(50)[:, None] - torch.arange(50)
    seen = (ago >= 0) & (ago < (workload.attrs["window"] or 50)) if workload.attrs["causal"] else ago < 50
    inside = torch.arange(50) < inputs.get("length", torch.full((2,), 50))[:, None]
    both = (inside[:, None] & inside[:, :, None])[:, None]
    wide_k, wide_v = (t.repeat_interleave(int(workload.attrs["group"]), 1) for t in (k, v))
    scores = q @ wide_k.transpose(2, 3) / 4
    if cap := workload.attrs.get("softcap"):
        assert isinstance(cap, int)
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~seen | ~both, -torch.inf)
    wanted = [q, k, v]
    if "sink" in inputs:  # one more key, without a value
        wanted.append(inputs["sink"].double().requires_grad_())
        scores = torch.cat([scores, wanted[-1].view(1, -1, 1, 1).expand(2, 4, 50, 1)], 3)
    weights = scores.softmax(3)[..., :50]
    out = torch.where(inside[:, None, :, None], weights, 0) @ wide_v
    torch.testing.assert_close(inputs["O"].double().transpose(1, 2), out, rtol=1e-4, atol=1e-5)
    lse = torch.where(inside[:, None], scores.logsumexp(3), 0)
    torch.testing.assert_close(inputs["LSE"].double(), lse, rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad(out, wanted, inputs["dO"].double().transpose(1, 2))
    monkeypatch.setattr("tilesight.kernels._attention_weights.SCORE_BYTES", 4 * 4 * 50 * 7)  # panels
    found = BACKWARD.reference(workload, inputs)
    for name, gradient in zip(found, expected, strict=True):
        ours = found[name].double()
        ours = ours if name == "dsink" else ours.transpose(1, 2)
        torch.testing.assert_close(ours, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,heads=8,seq_len=64,head_dim=264", "head_dim=264 must be a multiple of 8.*at most 256"),
        ("batch=1,heads=8,seq_len=64,head_dim=64,group=3", "group=3 must divide heads=8"),
        ("batch=1,heads=8,seq_len=64,head_dim=64,window=8", "window=8 must be 0.*take causal=true"),
        (
            "batch=1,heads=8,seq_len=64,head_dim=64,softcap=-1",
            "softcap=-1 must not be negative",
        ),
    ],
)
def test_refusals_say_what_to_do(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        BACKWARD.workload(shape)


def test_costs_count_pairs_in_the_window() -> None:
    shape = "batch=1,heads=1,seq_len=8,head_dim=8,causal=true"
    assert BACKWARD.flops(BACKWARD.workload(shape)) == 10 * 36 * 8
    assert BACKWARD.flops(BACKWARD.workload(f"{shape},window=3")) == 10 * (1 + 2 + 6 * 3) * 8


def test_products_overlap_only_where_wgmma_computes_all_of_them() -> None:
    for target, block_n, rule in (("h100", 32, "no multiple of its 64 rows"), ("a100", 64, "needs wgmma")):
        space = TEMPLATE.space(BACKWARD.workload("FB0"), load_target(target))
        config = Config(
            {"block_m": 64, "block_n": block_n, "num_stages": 1, "threads": 128}
            | {"dq": "add", "overlap": True, "block_order": "by_head"}
        )
        assert rule in "; ".join(violation.reason for violation in space.violations(config))


@pytest.mark.full
@pytest.mark.parametrize("changes", [{"dq": "add", "num_stages": 2}, {"overlap": False}, {"dq": "separate"}])
def test_warpgroups_wait_for_the_weights_of_each_other(changes: dict[str, Value]) -> None:
    """All threads meet between a write of P or dS and the products that read it, and before the next one."""
    workload, target = BACKWARD.workload("FB8"), load_target("h200")
    default = TEMPLATE.default_config(workload, target)
    assert default is not None
    config = Config({**default, **changes})
    assert config in TEMPLATE.space(workload, target)
    functions = lower(TEMPLATE.build(workload, config), target, only_read=True).device.functions.values()
    (kernel,) = (text for function in functions if "p_cast" in (text := function.script()))
    loop = kernel[kernel.rindex("for step in") : kernel.index(" out_tile, tx")]
    found = re.findall(r'stmatrix.*?"\), (\w+), tx|(storage_sync)|wgmma_descriptor.*?"\), (\w+),', loop)
    steps = [f"write {w}" if w else f"read {r}" if r else "meet" for w, _, r in found]
    for name in ("p_cast", "ds_cast" if changes.get("dq") == "separate" else "ds_tile"):
        write, reads = steps.index(f"write {name}"), [i for i, s in enumerate(steps) if s == f"read {name}"]
        assert "meet" in steps[write : reads[0]]
        assert "meet" in steps[reads[-1] :] + steps[:write]


def test_costs_count_the_positions_of_the_lengths() -> None:
    shape = "batch=2,heads=4,seq_len=64,head_dim=16,group=2"
    full, mixed = BACKWARD.workload(shape), BACKWARD.workload(f"{shape},lengths=mixed")
    assert BACKWARD.contents(mixed)["length"].tolist() == [64, 48]
    assert BACKWARD.flops(full) == 10 * 4 * 2 * 64**2 * 16
    assert BACKWARD.flops(mixed) == 10 * 4 * (64**2 + 48**2) * 16
    rows = 4 * 16  # queries that are not read: Q, O, dO of 4 heads, K and V of 2, and LSE
    assert BACKWARD.min_bytes(full) - BACKWARD.min_bytes(mixed) == rows * 16 * 4 * 2 + rows * 4


def test_what_is_timed_beside_kernels_is_compared() -> None:
    workload = BACKWARD.workload("batch=1,heads=2,seq_len=40,head_dim=16,softcap=5,sinks=true")
    inputs = BACKWARD.inputs(workload, "cpu", 2)
    reference = BACKWARD.reference(workload, inputs)
    ((name, call),) = BACKWARD.vendor(workload, inputs).items()
    result = call()
    assert isinstance(result, tuple)
    assert name == "torch"
    assert not vendor_fault(BACKWARD, workload, result, reference)
    assert vendor_fault(BACKWARD, workload, tuple(0 * part for part in result), reference)
    assert "is a dict, and must be" in vendor_fault(BACKWARD, workload, {"dQ": result[0]}, reference)
