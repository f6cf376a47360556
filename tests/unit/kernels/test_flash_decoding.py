"""flash_decoding: results of its tile program on a CPU, and properties of the operator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config, Value
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

DECODING = operator("flash_decoding")
(TEMPLATE,) = templates("flash_decoding")
SMALL = "batch=3,heads=8,kv_heads=2,head_dim=16"


def results(shape: str, folder: Path, broken: bool = False, **given: Value) -> None:
    """Run the tile program in float32 and compare it with the reference; `broken` makes items short."""
    workload = DECODING.workload(shape)
    workload = Workload(workload.operator, workload.dims, "float32", workload.attrs)
    inputs = DECODING.inputs(workload, "cpu", 5)
    if broken:
        inputs["Lengths"][1:] = torch.tensor([0, 2])
        inputs["Table"][1], inputs["Table"][2, 1:] = -7, 10**6  # nothing of these entries is needed
    config = Config(
        {"block_m": 16, "block_n": 32, "num_stages": 1, "threads": 32, "weights": "registers", **given}
    )
    nothing = {
        name: torch.full(size, torch.nan)
        for name, size in [
            *DECODING.outputs(workload).items(),
            *((name, size) for name, (size, _) in TEMPLATE.scratch(workload, config).items()),
        ]
    }
    with on_cpu():
        run_c(TEMPLATE.build(workload, config), {**inputs, **nothing}, folder)
    for name, expected in DECODING.reference(workload, inputs).items():
        torch.testing.assert_close(nothing[name], expected, rtol=1e-4, atol=1e-5)
        if broken:
            assert (expected[1] == (0 if name == "O" else -torch.inf)).all()


@pytest.mark.parametrize(
    ("shape", "broken", "given"),
    [
        # the last part has no step with keys
        pytest.param(
            "kv_len=150,q_len=3,lse=true", False, {"split_k": 4, "gather": "by_page"}, marks=pytest.mark.full
        ),
        ("kv_len=64,page=16,q_len=4,lengths=mixed,lse=true", True, {"split_k": 2, "gather": "by_page"}),
        ("kv_len=50,page=1,lengths=mixed,lse=true", False, {"split_k": 2, "gather": "by_row"}),
        pytest.param(
            "kv_len=64,page=16,q_len=5,lengths=mixed,lse=true", True, {"split_k": 1, "gather": "by_row"},
            marks=pytest.mark.full,
        ),
    ],
)  # fmt: skip
def test_tile_program_is_right(shape: str, broken: bool, given: Mapping[str, Value], tmp_path: Path) -> None:
    results(f"{SMALL},{shape}", tmp_path, broken, **given)


def test_reference_is_torch_attention() -> None:
    workload = DECODING.workload(f"{SMALL},kv_len=48,page=16,lengths=mixed", "float16")
    inputs = DECODING.inputs(workload, "cpu", 1)
    out = DECODING.reference(workload, inputs)["O"]
    for item, length in enumerate(inputs["Lengths"].tolist()):
        k, v = (
            torch.cat([inputs[name][page] for page in inputs["Table"][item]])[:length]
            .transpose(0, 1)
            .double()
            for name in ("K", "V")
        )
        q = inputs["Q"][item].transpose(0, 1).double()
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        torch.testing.assert_close(out[item], wanted.transpose(0, 1).float(), rtol=1e-5, atol=1e-5)


def test_costs_count_the_keys_of_the_lengths() -> None:
    full, mixed = (
        DECODING.workload(f"{SMALL},kv_len=256,page=16,lengths={kind}") for kind in ("full", "mixed")
    )
    lengths = DECODING.contents(mixed)["Lengths"]
    assert DECODING.flops(full) == 4 * 3 * 8 * 16 * 256
    assert DECODING.flops(mixed) == 4 * 8 * 16 * lengths.sum()
    saved = DECODING.min_bytes(full) - DECODING.min_bytes(mixed)
    assert saved == 2 * 2 * 2 * 16 * (3 * 256 - lengths.sum())
    table = DECODING.contents(mixed)["Table"]
    assert sorted(table.ravel()) == list(range(48)), "every page once"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=1,heads=6,kv_heads=4,kv_len=64,head_dim=64", "heads=6 must be a multiple of kv_heads=4"),
        ("batch=1,heads=4,kv_heads=4,kv_len=64,head_dim=40", "head_dim=40 must be a multiple of 16"),
        ("batch=1,heads=4,kv_heads=4,kv_len=60,head_dim=64,page=16", "kv_len=60.*nearest legal kv_len: 64"),
        ("batch=2,heads=4,kv_heads=4,kv_len=64,head_dim=64,pages=3", "pages=3 must be batch=2 where page=0"),
        ("batch=70000,heads=4,kv_heads=4,kv_len=64,head_dim=64", "batch=70000 exceeds the 65535 blocks"),
        ("batch=1,heads=4,kv_heads=4,kv_len=64,head_dim=64,page=48", "page=48 must be one of"),
    ],
)
def test_impossible_workloads_have_a_reason(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        DECODING.workload(shape)


def test_lengths_at_run_time_have_a_pipeline_only_with_tma() -> None:
    stages: dict[tuple[str, Value], set[Value]] = {}
    for name in ("h100", "a100"):
        for config in TEMPLATE.space(DECODING.workload("FD5"), load_target(name)).configs():
            stages.setdefault((name, config["gather"]), set()).add(config["num_stages"])
    assert stages == {("h100", "by_page"): {1, 2, 3, 4}, ("h100", "by_row"): {1}, ("a100", "by_row"): {1}}
