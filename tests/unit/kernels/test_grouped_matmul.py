"""grouped_matmul: what its tile program computes, with a CPU in place of the GPU, and what it promises."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload

GROUPED = operator("grouped_matmul")
(TEMPLATE,) = templates("grouped_matmul")
SMALL = Config(
    {
        "block_m": 16,
        "block_n": 32,
        "block_k": 32,
        "num_stages": 2,
        "threads": 64,
        "policy": "square",
        "swizzle": 0,
        "skip": "branch",
        "persistent": 0,
    }
)


def fp32(tokens: int, groups: int, n: int, k: int, **attrs: str) -> Workload:
    dims = {"tokens": tokens, "groups": groups, "n": n, "k": k}
    return Workload("grouped_matmul", dims, "float32", {**GROUPED.attrs, **attrs})


@pytest.mark.parametrize(
    ("workload", "ends", "persistent"),
    [
        (fp32(50, 5, 40, 36), [0, 0, 17, 33, 33, 50], 0),  # no rows, one row left over, a whole tile
        (fp32(50, 5, 40, 36), [0, 0, 17, 33, 33, 50], 3),
        pytest.param(fp32(3, 1, 32, 32, layout="nn"), [0, 3], 0, marks=pytest.mark.ci),
        pytest.param(
            fp32(40, 3, 33, 20, layout="nn", fuse="silu_mul"), [0, 1, 1, 40], 0, marks=pytest.mark.ci
        ),
        (fp32(20, 3, 40, 36, rows="masked", fuse="silu_mul"), [20, 0, 17], 0),
        pytest.param(
            fp32(20, 3, 40, 36, rows="masked", fuse="silu_mul"), [20, 0, 17], 5, marks=pytest.mark.ci
        ),
    ],
)
def test_tile_program_is_right(workload: Workload, ends: list[int], persistent: int, tmp_path: Path) -> None:
    """Rows of all groups are written, each with the weights of its group, and no others."""
    inputs = {**GROUPED.inputs(workload, "cpu", 5), "ends": torch.tensor(ends, dtype=torch.int32)}
    out = torch.full(GROUPED.outputs(workload)["C"], torch.nan)
    with on_cpu():
        run_c(
            TEMPLATE.build(workload, Config({**SMALL, "persistent": persistent})),
            {**inputs, "C": out},
            tmp_path,
        )
    a, weights = inputs["A"].double(), inputs["B"].double()
    weights = weights.mT if workload.attrs["layout"] == "nt" else weights
    if workload.attrs["fuse"] == "silu_mul" and workload.attrs["layout"] == "nn":
        weights = weights.transpose(1, 2)  # (groups, 2, k, n)
    expected = torch.full_like(out, torch.nan)
    for group in range(workload.dims["groups"]):
        masked = workload.attrs["rows"] == "masked"
        rows = (group, slice(ends[group])) if masked else slice(ends[group], ends[group + 1])
        if workload.attrs["fuse"] == "none":
            expected[rows] = (a[rows] @ weights[group]).float()
        else:
            gate, up = (a[rows] @ half for half in weights[group])
            expected[rows] = (gate * gate.sigmoid() * up).float()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("block_m", [1, 16, 64])
@pytest.mark.parametrize("shape", [(8192, 8), (4096, 128), (5, 33), (1, 1)])
def test_block_rows_have_room_for_every_tile(block_m: int, shape: tuple[int, int]) -> None:
    """The tiles of group g begin at ends[g] // block_m + g, as the template says."""
    workload = fp32(*shape, 16, 16)
    ends = GROUPED.contents(workload)["ends"].tolist()
    first = [end // block_m + group for group, end in enumerate(ends)]
    assert ends[0] == 0
    assert ends[-1] == shape[0]
    for group, (begin, end) in enumerate(itertools.pairwise(ends)):
        assert begin <= end
        assert first[group] - (begin - end) // block_m <= first[group + 1]  # minus the rounded-up tiles
    assert first[-1] == shape[0] // block_m + shape[1]


def test_sizes_of_groups_are_uneven_and_some_are_empty() -> None:
    ends = GROUPED.contents(GROUPED.workload("QW2"))["ends"]
    sizes = ends[1:] - ends[:-1]
    assert (sizes == 0).sum() == 8
    assert 2 < sizes.max() / sizes.mean() < 4


def test_rows_of_no_group_cost_nothing_and_stay_as_they_are() -> None:
    workload = fp32(64, 4, 32, 16, rows="masked")
    counts = GROUPED.contents(workload)["ends"]
    assert counts.max() == 64
    assert counts.min() < 32
    assert GROUPED.flops(workload) == 2 * int(counts.sum()) * 32 * 16
    outputs = {"C": torch.full(GROUPED.outputs(workload)["C"], torch.nan)}
    assert GROUPED.preset(workload, outputs)
    reference = GROUPED.reference(workload, GROUPED.inputs(workload, "cpu", 1))["C"]
    for group, count in enumerate(counts.tolist()):
        assert torch.equal(outputs["C"][group, count:], reference[group, count:])
        assert (reference[group, :count] != 0).all()


def test_activation_s_magnitude_bounds_the_change_of_c() -> None:
    """A change of each term by a relative amount changes C by about this amount times the magnitude."""
    workload = fp32(256, 2, 64, 128, fuse="silu_mul")
    inputs = GROUPED.inputs(workload, "cpu", 3)
    noisy = {**inputs, "B": inputs["B"] * (1 + 1e-3 * torch.randn(inputs["B"].shape))}
    change = GROUPED.reference(workload, noisy)["C"] - GROUPED.reference(workload, inputs)["C"]
    magnitude = GROUPED.magnitude(workload, inputs)["C"]
    assert 0.9 < change.norm() / (1e-3 * magnitude.norm()) < 1.1


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("tokens=64,groups=600,n=2048,k=2048", "B would have 2516582400 elements.*split the groups"),
        ("tokens=64,groups=2,n=64,k=64,layout=tn", "layout=tn must be one of: nt, nn"),
        ("tokens=64,groups=2,n=64,k=64,fuse=gelu", "fuse=gelu must be one of: none, silu_mul"),
    ],
)
def test_impossible_workloads_have_a_reason(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        GROUPED.workload(shape)
