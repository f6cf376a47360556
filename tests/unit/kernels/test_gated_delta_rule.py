"""gated_delta_rule and its decoding step: results of their tile programs on a CPU, and properties."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.problem.operator import Tensors
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.search_spaces import gated_delta_rule as search_space
from tilesight.target.spec import load_target

RULE, STEP = operator("gated_delta_rule"), operator("gated_delta_rule_decode")
PREFILL = {"chunk": 32, "sub_block": 16, "block_v": 16, "num_stages": 1, "threads": 32}


def computed(name: str, shape: str, config: dict[str, int], folder: Path) -> tuple[Tensors, Tensors]:
    """Outputs of the tile program in float32, and the reference."""
    import tilelang.language as T  # noqa: N812

    op, (template,) = operator(name), templates(name)
    workload = op.workload(shape)
    workload = Workload(name, workload.dims, "float32", workload.attrs)
    inputs = op.inputs(workload, "cpu", 5)
    found = {key: torch.full(size, torch.nan) for key, size in op.outputs(workload).items()}
    with on_cpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(T, "annotate_layout", lambda _: None)  # local arrays have none
        run_c(template.build(workload, Config(config)), {**inputs, **found}, folder)
    return found, op.reference(workload, inputs)


@pytest.mark.parametrize(
    ("name", "shape", "config"),
    [
        pytest.param(
            RULE.name, "batch=2,seq_len=40,heads=2,head_k=24,head_v=20", PREFILL, marks=pytest.mark.full
        ),
        (
            RULE.name,
            "batch=1,seq_len=70,heads=1,head_k=16,head_v=16",
            {**PREFILL, "chunk": 64, "sub_block": 32, "threads": 64},
        ),
        pytest.param(
            STEP.name,
            "batch=2,heads=3,head_k=24,head_v=20",
            {"block_v": 16, "threads": 64, "vector": 4},
            marks=pytest.mark.full,
        ),
    ],
)
def test_tile_program_is_right(name: str, shape: str, config: dict[str, int], tmp_path: Path) -> None:
    found, reference = computed(name, shape, config, tmp_path)
    for key, tensor in found.items():
        assert (tensor - reference[key]).norm() / reference[key].norm() < 2e-6, key


def test_a_key_without_decay_reads_what_was_written_last() -> None:
    """With beta = 1, the state returns a key's last value exactly, and so does decoding after prefill."""
    workload = RULE.workload("batch=1,seq_len=50,heads=2,head_k=8,head_v=4")
    second = RULE.second_inputs(workload, "cpu", 1)
    assert second is not None
    inputs = second.tensors
    state = RULE.reference(workload, inputs)["state"]
    places, values = inputs["k"].argmax(-1)[0], inputs["v"][0].float()
    for head in range(2):
        for token in range(50):
            place = places[token, head]
            if (places[token + 1 :, head] != place).all():
                assert torch.equal(state[0, head, place], values[token, head])


def test_decoding_continues_a_sequence() -> None:
    whole = RULE.workload("batch=2,seq_len=21,heads=3,head_k=8,head_v=4")
    inputs = RULE.inputs(whole, "cpu", 1)
    before = RULE.workload("batch=2,seq_len=20,heads=3,head_k=8,head_v=4")
    state = RULE.reference(before, {name: tensor[:, :20] for name, tensor in inputs.items()})["state"]
    last = {name: tensor[:, 20] for name, tensor in inputs.items()}
    step = STEP.reference(STEP.workload("batch=2,heads=3,head_k=8,head_v=4"), {**last, "state": state})
    expected = RULE.reference(whole, inputs)
    torch.testing.assert_close(step["new_state"], expected["state"])
    torch.testing.assert_close(step["o"], expected["o"][:, 20])


def test_chunks_agree_with_the_recurrence() -> None:
    workload = RULE.workload("batch=1,seq_len=150,heads=2,head_k=16,head_v=8")
    inputs = RULE.inputs(workload, "cpu", 1)
    found = RULE.vendor(workload, inputs)["torch (chunks)"]()
    assert isinstance(found, tuple)
    for tensor, expected in zip(found, RULE.reference(workload, inputs).values(), strict=True):
        assert (tensor.float() - expected).norm() / expected.norm() < RULE.max_relative_error(workload)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,seq_len=64,heads=2,head_k=300,head_v=16", "head_k=300 exceeds 256"),
        ("batch=1,seq_len=64,heads=70000,head_k=1,head_v=1", "heads=70000 exceeds the 65535 blocks"),
        ("batch=64,seq_len=65536,heads=64,head_k=64,head_v=16", "a tensor of head_k.*split the batch"),
    ],
)
def test_bad_workloads_are_refused(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        RULE.workload(shape)


TWO_WARPS = {"chunk": 32, "sub_block": 16, "threads": 64}


@pytest.mark.parametrize(
    ("head_k", "changes", "message"),
    [
        (64, {"block_v": 64}, "block_v=64 races with head_k=64.*take block_v=32"),
        (128, {"sub_block": 16}, "chunk=64 has more than two blocks of sub_block=16: take sub_block=32"),
        (128, {"block_v": 16, "threads": 256}, "64x16 leaves each of 2 warpgroups.*take threads=128"),
        (128, {"block_v": 32, "threads": 256}, None),
        (
            128,
            {**TWO_WARPS, "num_stages": 3},
            "num_stages=3 with threads=64 .*take num_stages=2 or threads=128",
        ),
        (128, {**TWO_WARPS, "num_stages": 2}, None),
        (128, {**TWO_WARPS, "num_stages": 3, "threads": 128}, None),
    ],
)
def test_rules_of_the_space(head_k: int, changes: dict[str, int], message: str | None) -> None:
    workload = RULE.workload(f"batch=1,seq_len=2048,heads=32,head_k={head_k},head_v=128")
    base = {"chunk": 64, "sub_block": 32, "block_v": 32, "num_stages": 2, "threads": 128}
    found = search_space.space(workload, load_target("h100")).violations(Config({**base, **changes}))
    reasons = "; ".join(violation.reason for violation in found)
    if message is None:
        assert not reasons
    else:
        assert re.search(message, reasons), reasons
