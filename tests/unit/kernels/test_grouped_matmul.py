"""grouped_matmul: what its tile program computes, with a CPU in place of the GPU, and what it promises."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from tests.support.cpu_programs import on_cpu, run_c
from tilesight.errors import WorkloadError
from tilesight.kernels import operator, templates
from tilesight.problem.axes import shape as extents
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
        pytest.param(fp32(3, 1, 32, 32, layout="nn"), [0, 3], 0, marks=pytest.mark.full),
        pytest.param(
            fp32(40, 3, 33, 20, layout="nn", fuse="silu_mul"), [0, 1, 1, 40], 0, marks=pytest.mark.full
        ),
        (fp32(20, 3, 40, 36, rows="masked", fuse="silu_mul"), [20, 0, 17], 0),
        pytest.param(
            fp32(20, 3, 40, 36, rows="masked", fuse="silu_mul"), [20, 0, 17], 5, marks=pytest.mark.full
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


@pytest.mark.parametrize(
    ("workload", "ends", "persistent"),
    [
        (fp32(50, 3, 140, 300, scales="block128"), [0, 17, 17, 50], 0),
        pytest.param(
            fp32(20, 2, 160, 130, scales="block128", rows="masked", fuse="silu_mul"),
            [20, 3],
            0,
            marks=pytest.mark.full,
        ),
        (fp32(50, 3, 40, 36, scales="row", fuse="silu_mul"), [0, 17, 17, 50], 2),
        pytest.param(fp32(20, 2, 40, 36, scales="tensor", rows="masked"), [20, 3], 0, marks=pytest.mark.full),
    ],
)
def test_tile_program_scales(workload: Workload, ends: list[int], persistent: int, tmp_path: Path) -> None:
    """Scales of float8, with operands of float32, against the reference, which has another way to them."""
    axes, generator = GROUPED.tensor_axes(workload.attrs), torch.Generator().manual_seed(2)
    inputs = GROUPED.inputs(workload, "cpu", 5)
    for name in ("A_scale", "B_scale"):
        inputs[name] = torch.rand(extents(axes[name], workload.dims, {}), generator=generator) + 0.5
    inputs["ends"] = torch.tensor(ends, dtype=torch.int32)
    out = torch.full(GROUPED.outputs(workload)["C"], torch.nan)
    depth = 128 if workload.attrs["scales"] == "block128" else 32
    chosen = Config({**SMALL, "persistent": persistent, "block_k": depth})
    with on_cpu():
        run_c(
            TEMPLATE.build(workload, chosen),
            {**inputs, "C": out},
            tmp_path,
        )
    for group in range(workload.dims["groups"]):
        masked = workload.attrs["rows"] == "masked"
        rows = (group, slice(ends[group])) if masked else slice(ends[group], ends[group + 1])
        expected = product_of(workload, inputs, group, rows)
        torch.testing.assert_close(out[rows], expected, rtol=1e-4, atol=1e-4)


def product_of(
    workload: Workload, inputs: dict[str, torch.Tensor], group: int, rows: slice | tuple[int, slice]
) -> torch.Tensor:
    """Rows of C, from scales that are looked up element by element."""
    n, k, scales = workload.dims["n"], workload.dims["k"], workload.attrs["scales"]
    of_a, of_b = inputs["A_scale"], inputs["B_scale"][group]
    row, col, depth = torch.arange(n)[:, None], torch.arange(k)[None], torch.arange(k) // 128
    a, b = inputs["A"][rows], inputs["B"][group]
    if scales == "tensor":
        a, b = a * of_a, b * of_b[..., None, None]
    elif scales == "row":
        a, b = a * of_a[rows][:, None], b * of_b[..., None]
    else:
        a, b = a * of_a[rows][:, depth], b * of_b[..., row // 128, col // 128]
    if workload.attrs["fuse"] == "none":
        return a @ b.T
    gate, up = a @ b[0].T, a @ b[1].T
    return gate * gate.sigmoid() * up


@pytest.mark.parametrize("scales", ["none", "tensor", "row", "block128"])
@pytest.mark.parametrize("attrs", ["", ",fuse=silu_mul", ",rows=masked"])
def test_operands_of_float8_are_quantised_by_what_shares_a_scale(scales: str, attrs: str) -> None:
    workload = GROUPED.workload(f"tokens=24,groups=3,n=136,k=272,scales={scales}{attrs}", "float8_e4m3fn")
    inputs = GROUPED.inputs(workload, "cpu", 1)
    assert inputs["A"].dtype == inputs["B"].dtype == torch.float8_e4m3fn
    reference = GROUPED.reference(workload, inputs)["C"]
    for group, rows in GROUPED._groups(workload):
        if scales != "none":
            assert inputs["B"][group].float().abs().max() == 448
            wide = {**inputs, "A": inputs["A"].float(), "B": inputs["B"].float()}
            expected = product_of(workload, wide, group, rows)
            torch.testing.assert_close(reference[rows], expected, rtol=1e-4, atol=1e-4)
            if not attrs:
                assert 0.8 < reference[rows].std() < 1.2
    (call,) = GROUPED.vendor(workload, inputs).values()
    found = call()
    assert isinstance(found, torch.Tensor)
    assert (found.float() - reference).norm() / reference.norm() < GROUPED.max_relative_error(workload)
    second = GROUPED.second_inputs(workload, "cpu", 1)
    assert list(second.tensors) == list(inputs)


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
        ("tokens=64,groups=2,n=64,k=64,scales=row", "scales=row needs dtype float8_e4m3fn.*take scales=none"),
        ("tokens=64,groups=2,n=64,k=64,layout=tn", "layout=tn must be one of: nt, nn"),
        ("tokens=64,groups=2,n=64,k=64,fuse=gelu", "fuse=gelu must be one of: none, silu_mul"),
    ],
)
def test_impossible_workloads_have_a_reason(shape: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        GROUPED.workload(shape)
