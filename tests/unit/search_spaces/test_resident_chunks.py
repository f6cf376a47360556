"""Rules of blocks that keep what the heads of a chunk of Mamba-2 share."""

from __future__ import annotations

import re

import pytest

from tilesight.kernels import operator, templates
from tilesight.lowering.lower import lower
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

SCAN = {
    "block_m": 256,
    "block_n": 64,
    "block_k": 64,
    "num_stages": 2,
    "threads": 512,
    "copies": "bulk",
    "heads": 16,
}
STATE = {
    "block_p": 64,
    "block_n": 128,
    "block_k": 64,
    "num_stages": 4,
    "threads": 256,
    "policy": "square",
    "scaled_x": "shared",
    "copies": "bulk",
    "heads": 16,
}
BASE = {"chunk_scan": SCAN, "chunk_state": STATE}
FEW = "batch=1,seq_len=1000,nheads=5,head_dim=72,d_state=128"


def reasons(kernel: str, target: str, shape: str, **changes: int | str) -> dict[str, str]:
    chip = load_target(target)
    space = templates(kernel)[0].space(operator(kernel).workload(shape), chip)
    return {v.constraint: v.reason for v in space.violations(Config({**BASE[kernel], **changes}))}


@pytest.mark.parametrize(("kernel", "shape"), [("chunk_scan", "CC2"), ("chunk_state", "CT2")])
def test_base_is_legal_on_hopper_alone(kernel: str, shape: str) -> None:
    assert reasons(kernel, "h100", shape) == reasons(kernel, "h200", shape) == {}
    for target in ("a100", "mi300x"):
        space = templates(kernel)[0].space(operator(kernel).workload(shape), load_target(target))
        assert "heads" not in {parameter.name for parameter in space.parameters}


@pytest.mark.parametrize(
    ("kernel", "shape", "changes", "constraint", "message"),
    [
        ("chunk_scan", "CC2", {"block_m": 128}, "blocks that stay", "no block_m=128: take block_m=256"),
        ("chunk_scan", "CC2", {"threads": 256}, "blocks that stay", "no threads=256: take threads=512"),
        ("chunk_scan", "CC2", {"copies": "threads"}, "blocks that stay", "take copies=bulk"),
        ("chunk_scan", f"{FEW},chunk=512", {}, "blocks that stay", "64 to 256 tokens, and this one has 512"),
        ("chunk_scan", f"{FEW},chunk=32", {}, "blocks that stay", "64 to 256 tokens, and this one has 32"),
        ("chunk_scan", FEW, {}, "heads of a block", "wasted on nheads=5: 8 covers it"),
        ("chunk_scan", "CC2", {"heads": 1}, "stages within loop", "exceeds the 1 iterations"),
        ("chunk_scan", "CC2", {"num_stages": 3}, "shared memory", "one block on h100 has 232448"),
        (
            "chunk_scan",
            "batch=1,seq_len=1024,nheads=64,head_dim=64,d_state=256",
            {},
            "registers",
            "152 registers of each of 512 threads, which have at most 128",
        ),
        ("chunk_state", "CT2", {"block_p": 32}, "blocks that stay", "no block_p=32: take block_p=64"),
        ("chunk_state", "CT2", {"threads": 64}, "blocks that stay", "no threads=64: take threads=128"),
        ("chunk_state", "CT2", {"scaled_x": "registers"}, "blocks that stay", "take scaled_x=shared"),
        (
            "chunk_state",
            "CT2",
            {"heads": 1},
            "heads of a block",
            "some of 2 groups of threads without a head",
        ),
    ],
)
def test_reasons(
    kernel: str, shape: str, changes: dict[str, int | str], constraint: str, message: str
) -> None:
    found = reasons(kernel, "h100", shape, **changes)
    assert constraint in found, found
    assert re.search(message, found[constraint]), found[constraint]


@pytest.mark.parametrize(
    ("kernel", "shape", "changes"),
    [
        ("chunk_scan", "CC0", {"heads": 2, "num_stages": 3}),
        ("chunk_state", "CT0", {"heads": 2, "block_k": 128}),
    ],
)
def test_shared_memory_is_that_of_the_lowered_kernel(
    kernel: str, shape: str, changes: dict[str, int | str]
) -> None:
    """The rule adds up what TileLang lays out, and room for barriers, here of configs with too much."""
    (template,), workload = templates(kernel), operator(kernel).workload(shape)
    config = Config({**BASE[kernel], **changes})
    lowered = lower(template.build(workload, config), load_target("h100"), only_read=True)
    (function,) = lowered.device.functions.values()
    found = re.search(r"need (\d+) bytes", reasons(kernel, "h100", shape, **changes)["shared memory"])
    assert found is not None
    assert 0 <= int(found[1]) - int(function.attrs["dyn_shared_memory_buf"]) <= 2048


@pytest.mark.parametrize(
    ("kernel", "shape", "changes", "dtype"),
    [
        (
            "chunk_scan",
            "batch=2,seq_len=1000,nheads=3,head_dim=40,d_state=24,chunk=64",
            {"block_m": 64, "threads": 128, "heads": 2},
            "float16",
        ),
        (
            "chunk_state",
            "batch=2,seq_len=700,nheads=5,head_dim=72,d_state=136,chunk=128",
            {"heads": 4, "threads": 384, "block_k": 32, "num_stages": 3, "block_n": 64},
            "float16",
        ),
    ],
)
def test_edges_of_every_axis_can_be_lowered(
    kernel: str, shape: str, changes: dict[str, int | str], dtype: str
) -> None:
    (template,), chip = templates(kernel), load_target("h100")
    workload, config = operator(kernel).workload(shape, dtype), Config({**BASE[kernel], **changes})
    assert template.space(workload, chip).violations(config) == []
    assert lower(template.build(workload, config), chip, only_read=True).device.functions
