from __future__ import annotations

import re

import pytest

from tilesight.kernels import operator, templates
from tilesight.problem.space import Config, SearchSpace
from tilesight.search_spaces import flash_attention_bwd
from tilesight.target.spec import load_target

BACKWARD = operator("flash_attention_bwd")
(TEMPLATE,) = templates("flash_attention_bwd")
BASE = {
    "block_m": 64,
    "block_n": 64,
    "num_stages": 2,
    "threads": 256,
    "dq": "add",
    "overlap": True,
    "block_order": "by_length",
    "split": "columns",
}


def space_of(target: str, shape: str) -> SearchSpace:
    return flash_attention_bwd.space(BACKWARD.workload(shape), load_target(target))


def reasons(target: str, shape: str, **changes: int | str | bool) -> dict[str, str]:
    violations = space_of(target, shape).violations(Config({**BASE, **changes}))
    return {v.constraint: v.reason for v in violations}


@pytest.mark.parametrize(
    ("target", "shape", "changes", "constraint", "message"),
    [
        (
            "h200",
            "FB8",
            {"split": "keys", "block_m": 128},
            "registers",
            "392 registers of each of 256 threads, which have at most 240",
        ),
        ("h200", "FB8", {"block_m": 128}, "whole rows", "as many sums as split=keys does.*take block_m=64"),
        ("h200", "FB8", {"threads": 128}, "whole rows", "4 warps no columns of their own of a tile of 64x64"),
        ("h200", "FB8", {"threads": 384}, "whole rows", "cannot be divided evenly over 12 warps"),
        ("h200", "FB8", {"dq": "bulk_add"}, "shared memory", "need 280576 bytes.*232448: lower num_stages"),
        ("a100", "FB8", {"num_stages": 2}, "causal pipeline", "cannot be compiled for causal attention"),
        (
            "a100",
            "batch=2,heads=2,seq_len=500,head_dim=136,lengths=mixed",
            {"num_stages": 2},
            "causal pipeline",
            "cannot be compiled for items of different lengths",
        ),
        ("mi300x", "FB8", {"block_m": 32, "block_n": 32}, "shared memory", "need [0-9]+ bytes.*65536"),
    ],
)
def test_reasons_have_rule_and_numbers(
    target: str, shape: str, changes: dict[str, int | str], constraint: str, message: str
) -> None:
    assert re.search(message, reasons(target, shape, **changes)[constraint])


def test_two_warpgroups_share_the_columns_of_wide_rows() -> None:
    """K, V and two stages of Q and dO; P and dS; LSE and delta of two stages; barriers."""
    assert reasons("h200", "FB8") == {}
    needed = 2 * 64 * 256 * 2 + 2 * (2 * 64 * 256 * 2 + 2 * 64 * 4) + 2 * 64 * 64 * 2 + 1024
    assert needed == 215040  # what the built kernel has
    reason = reasons("h200", "FB8", num_stages=3)["shared memory"]
    assert f"need {needed + 2 * 64 * 256 * 2 + 2 * 64 * 4} bytes" in reason


@pytest.mark.parametrize("target", ["h100", "h200", "a100", "mi300x"])
@pytest.mark.parametrize("shape", ["FB8", "FB9", "batch=1,heads=2,seq_len=1000,head_dim=160,lengths=mixed"])
def test_wide_rows_have_kernels_everywhere(target: str, shape: str) -> None:
    """Both ways to add dQ are there, and the default is legal."""
    workload, chip = BACKWARD.workload(shape), load_target(target)
    space = flash_attention_bwd.space(workload, chip)
    assert {"add", "separate"} <= {config["dq"] for config in space.configs()}
    default = TEMPLATE.default_config(workload, chip)
    assert default is not None
    assert not space.violations(default)


@pytest.mark.parametrize("shape", ["FB8", "FB9"])
def test_the_default_of_wide_rows_has_a_kernel_for_dq(shape: str) -> None:
    default = TEMPLATE.default_config(BACKWARD.workload(shape), load_target("h200"))
    assert default == Config({**BASE, "dq": "separate", "num_stages": 2})


@pytest.mark.parametrize("target", ["h200", "a100", "mi300x"])
def test_narrow_rows_have_the_space_that_they_had(target: str) -> None:
    names = [parameter.name for parameter in space_of(target, "FB0").parameters]
    assert names == [name for name in BASE if name != "split"]
    assert [p.values for p in space_of(target, "FB0").parameters if p.name == "block_n"] == [
        flash_attention_bwd.QUERIES
    ]
