"""flash_attention: results of its tile program on a CPU, and properties of the operator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tests.support.rounded import right_outputs
from tilesight.errors import WorkloadError
from tilesight.kernels import _attention_weights as module
from tilesight.kernels import operator, templates
from tilesight.lowering.dynamic import lower_candidate
from tilesight.lowering.lower import lower
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.runner.verify import check_outputs
from tilesight.target.spec import load_target

ATTENTION = operator("flash_attention")
(TEMPLATE,) = templates("flash_attention")


def fp32(seq_len: int, head_dim: int, causal: bool) -> Workload:
    return Workload(
        "flash_attention",
        {"batch": 2, "heads": 3, "seq_len": seq_len, "head_dim": head_dim},
        "float32",
        {"causal": causal},
    )


def config(block_m: int, block_n: int, order: str) -> Config:
    return Config(
        {"block_m": block_m, "block_n": block_n, "num_stages": 1, "threads": 32, "block_order": order}
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("seq_len", "head_dim", "block_m", "block_n", "order"),
    [
        pytest.param(64, 16, 32, 32, "by_head", marks=pytest.mark.full),  # whole tiles
        pytest.param(
            64, 16, 16, 32, "by_length", marks=pytest.mark.full
        ),  # several queries' blocks share a diagonal tile
        (70, 16, 32, 16, "by_length"),  # padded queries and keys
        pytest.param(37, 20, 16, 32, "by_head", marks=pytest.mark.full),  # and padded rows
        (1, 8, 16, 16, "by_length"),  # less than a tile
    ],
)
def test_tile_program_is_right(
    seq_len: int, head_dim: int, block_m: int, block_n: int, order: str, causal: bool, tmp_path: Path
) -> None:
    workload = fp32(seq_len, head_dim, causal)
    inputs = ATTENTION.inputs(workload, "cpu", 5)
    out = torch.full(ATTENTION.outputs(workload)["O"], torch.nan)
    with on_cpu():
        run_c(TEMPLATE.build(workload, config(block_m, block_n, order)), {**inputs, "O": out}, tmp_path)
    reference = ATTENTION.reference(workload, inputs)["O"]
    assert (out - reference).norm() / reference.norm() < 1e-5


ATTRIBUTES = [
    *(
        pytest.param(one, marks=pytest.mark.full)
        for one in (
            "causal=true,group=3",
            "causal=true,window=5",
            "causal=true,window=40,sinks=true,lse=true",
            "sinks=true,lse=true",
            "causal=true,softcap=2,lse=true",
        )
    ),
    "lengths=mixed,lse=true",
    "causal=true,window=7,lengths=mixed,sinks=true,group=3,softcap=3,lse=true",
]


def attended(workload: Workload, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each query by itself, in float64."""
    attrs = {name: ATTENTION.attribute(workload.attrs, name) for name in ATTENTION.attrs}
    q, k, v = (inputs[name].double() for name in ("Q", "K", "V"))
    batch, seq_len, heads, head_dim = q.shape
    out, logarithms = torch.zeros_like(q), torch.zeros(batch, heads, seq_len, dtype=torch.float64)
    for b in range(batch):
        length = int(inputs["length"][b]) if "length" in inputs else seq_len
        for head in range(heads):
            shared = head // int(attrs["group"])
            for i in range(length):
                end = i + 1 if attrs["causal"] else length
                begin = max(0, end - int(attrs["window"])) if attrs["window"] else 0
                scores = k[b, begin:end, shared] @ q[b, i, head] / head_dim**0.5
                if attrs["softcap"]:
                    scores = (scores / attrs["softcap"]).tanh() * attrs["softcap"]
                total = scores.exp().sum()
                if attrs["sinks"]:
                    total += inputs["sink"][head].double().exp()
                out[b, i, head] = scores.exp() @ v[b, begin:end, shared] / total
                logarithms[b, head, i] = total.log()
    return {"O": out, "LSE": logarithms} if attrs["lse"] else {"O": out}


@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_attributes_change_what_counts(attributes: str, tmp_path: Path) -> None:
    small = ATTENTION.workload(f"batch=2,heads=3,seq_len=45,head_dim=16,{attributes}")
    workload = Workload(small.operator, small.dims, "float32", small.attrs)
    inputs = ATTENTION.inputs(workload, "cpu", 5)
    outputs = {name: torch.full(size, torch.nan) for name, size in ATTENTION.outputs(workload).items()}
    with on_cpu():
        run_c(TEMPLATE.build(workload, config(32, 16, "by_length")), {**inputs, **outputs}, tmp_path)
    expected, reference = attended(workload, inputs), ATTENTION.reference(workload, inputs)
    assert list(outputs) == list(expected) == list(reference)
    for name, right in expected.items():
        torch.testing.assert_close(reference[name].double(), right, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(outputs[name].double(), right, rtol=1e-5, atol=1e-5)
    for call in ATTENTION.vendor(workload, inputs).values():
        result = call()
        found = result[0] if isinstance(result, tuple) else result
        assert isinstance(found, torch.Tensor)
        found = found if found.shape == expected["O"].shape else found.transpose(1, 2)
        torch.testing.assert_close(found.double(), expected["O"], rtol=1e-5, atol=1e-5)


def test_costs_of_attributes() -> None:
    def workload(more: str) -> Workload:
        return ATTENTION.workload(f"batch=4,heads=8,seq_len=100,head_dim=64{more}")

    pairs = ATTENTION.flops(workload(",causal=true,window=30")) / (4 * 4 * 8 * 64)
    assert pairs == sum(min(i + 1, 30) for i in range(100))
    mixed = workload(",lengths=mixed")
    assert ATTENTION.contents(mixed)["length"].tolist() == [100, 75, 50, 25]
    assert ATTENTION.flops(mixed) == 4 * 8 * 64 * (100**2 + 75**2 + 50**2 + 25**2)
    assert ATTENTION.min_bytes(mixed) == 2 * 8 * 64 * (3 * 250 + 400)
    grouped = ATTENTION.min_bytes(workload(",group=4"))
    assert grouped == 2 * 64 * 4 * 100 * (8 + 2 + 2 + 8)
    assert ATTENTION.min_bytes(workload(",group=4,sinks=true,lse=true")) == grouped + 4 * 8 * (1 + 4 * 100)


def test_later_attributes_change_no_key_of_the_records() -> None:
    assert dict(ATTENTION.workload("FA4").attrs) == {"causal": True}
    assert ATTENTION.workload("batch=1,heads=2,seq_len=9,head_dim=8,group=1,window=0").key == (
        "flash_attention(batch=1,heads=2,seq_len=9,head_dim=8;causal=false,dtype=bfloat16)"
    )


@pytest.mark.parametrize("causal", [False, True])
def test_reference_is_softmax_attention_for_any_panels(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = fp32(50, 16, causal)
    inputs = ATTENTION.inputs(workload, "cpu", 1)
    q, k, v = (inputs[name].double().transpose(1, 2) for name in ("Q", "K", "V"))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
    for score_bytes in (1 << 30, 4 * 3 * 50 * 7):
        monkeypatch.setattr(module, "SCORE_BYTES", score_bytes)
        torch.testing.assert_close(
            ATTENTION.reference(workload, inputs)["O"].double(), expected, rtol=1e-5, atol=1e-6
        )


def test_causal_costs_count_visible_pairs() -> None:
    full, causal = ATTENTION.workload("FA3"), ATTENTION.workload("FA2")
    assert ATTENTION.flops(full) == 4 * 32 * 1024**2 * 128
    assert ATTENTION.flops(causal) == 4 * 32 * (1024 * 1025 // 2) * 128
    assert ATTENTION.min_bytes(full) == ATTENTION.min_bytes(causal) == 4 * 32 * 1024 * 128 * 2


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,heads=8,seq_len=1024,head_dim=512", "head_dim=512 exceeds 256"),
        ("batch=70000,heads=1,seq_len=16,head_dim=16", "batch=70000 exceeds the 65535 blocks of a grid axis"),
        ("batch=64,heads=64,seq_len=65536,head_dim=128", "split the batch"),
        ("batch=1,heads=8,seq_len=1024,head_dim=64,causal=2", "causal=2 must be true or false"),
        ("batch=1,heads=8,seq_len=1024,head_dim=64,group=3", "group=3 must be at least 1 and divide heads=8"),
        ("batch=1,heads=8,seq_len=1024,head_dim=64,window=9", "window=9 needs causal=true"),
        ("batch=1,heads=8,seq_len=1024,head_dim=64,softcap=-1", "softcap=-1 must not be negative"),
        ("batch=1,heads=8,seq_len=1024,head_dim=64,lengths=odd", "lengths=odd must be one of: full, mixed"),
    ],
)
def test_impossible_workloads_have_a_reason(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        ATTENTION.workload(shape)


def test_vendor_backends_that_are_missing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = ATTENTION.workload("batch=1,heads=2,seq_len=32,head_dim=16")
    calls = ATTENTION.vendor(workload, ATTENTION.inputs(workload, "cpu", 0))
    assert list(calls) == ["torch attention on the CPU"]
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    assert ATTENTION.vendor(workload, ATTENTION.inputs(workload, "cpu", 0)) == {}


def test_products_of_overlapped_schedules_are_not_awaited_at_once() -> None:
    """Two are in flight: the first wait leaves the second one running, while the softmax is computed."""
    workload, target = ATTENTION.workload("FA2"), load_target("h100")
    tile = {"block_m": 128, "block_n": 64, "num_stages": 2, "threads": 256, "block_order": "by_length"}
    for more in ({"schedule": "overlapped"}, {"schedule": "ping_pong", "persistent": 132}):
        chosen = Config({**tile, **more})
        assert chosen in TEMPLATE.space(workload, target)
        (kernel,) = lower(TEMPLATE.build(workload, chosen), target, only_read=True).device.functions.values()
        waits = re.findall(r"wait_wgmma\((\d)\)", kernel.script())
        assert waits == ["0", "1", "0", "0"]  # the first tile, the loop, the last product
        assert ("named_barrier_arrive" in kernel.script()) == ("persistent" in more)


@pytest.mark.full
def test_blocks_stay_only_where_all_sizes_are_known() -> None:
    workload, target = ATTENTION.workload("FA4"), load_target("h100")
    tile = {"block_m": 128, "block_n": 64, "num_stages": 2, "threads": 256, "block_order": "by_length"}
    chosen = Config({**tile, "schedule": "ping_pong", "persistent": 132})
    for dynamic, is_known in (((), True), (TEMPLATE.dynamic_dims, False)):
        lowered = lower_candidate(Candidate(workload, target, TEMPLATE, chosen, dynamic), only_read=True)
        (kernel,) = lowered.device.functions.values()
        assert (str(kernel.attrs["thread_extent"].get("blockIdx.x")) == "132") == is_known


def test_published_winner_of_the_h200_is_legal() -> None:
    space = TEMPLATE.space(ATTENTION.workload("FA4"), load_target("h200"))
    winner = Config(
        {"block_m": 128, "block_n": 256, "num_stages": 1, "threads": 256, "block_order": "by_head"}
    )
    assert winner in space


def test_weights_below_the_normal_numbers_of_float16_are_within_the_bound() -> None:
    """Their rounding errors are not relative to them; they show where the values of other keys are small."""
    workload = ATTENTION.workload("batch=1,heads=4,seq_len=512,head_dim=64", "float16")
    second = ATTENTION.second_inputs(workload, "cpu", 1)
    assert second is not None
    inputs = dict(second.tensors)
    inputs["V"][:, ::2] *= 2.0**-20
    reference, magnitude = ATTENTION.reference(workload, inputs), ATTENTION.magnitude(workload, inputs)
    found = check_outputs(ATTENTION, workload, right_outputs(workload, inputs), reference, magnitude)
    assert found.failure is None
    assert found.element_ratio is not None
    assert found.element_ratio < 0.8
