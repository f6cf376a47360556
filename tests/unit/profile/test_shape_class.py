"""Shape classes: which workloads share profiles, and the probes that stand for them."""

from __future__ import annotations

import math

import pytest

from tilesight import kernels
from tilesight.profile.shape_class import ShapeClass


def class_of(kernel: str, shape: str, dtype: str = "bfloat16") -> ShapeClass:
    template = next(t for t in kernels.templates(kernel) if t.scales)
    return ShapeClass(template, kernels.operator(kernel).workload(shape, dtype))


def test_the_class_names_divisors_of_free_dimensions_and_values_of_others() -> None:
    assert class_of("matmul", "m=4096,n=1536,k=8192").key == "matmul(m~256,n~768,k~128;dtype=bfloat16)"
    attention = class_of("flash_attention", "batch=1,heads=32,seq_len=4096,head_dim=128,causal=true")
    assert (
        attention.key
        == "flash_attention(batch=1,heads~1,seq_len~256,head_dim=128;causal=true,dtype=bfloat16)"
    )


def test_shapes_that_tiles_cut_alike_share_a_class() -> None:
    base = class_of("matmul", "m=4096,n=4096,k=4096")
    assert class_of("matmul", "m=8192,n=1024,k=28672").key == base.key
    for other in (
        "m=6144,n=4096,k=4096",
        "m=4096,n=4096,k=4104",
        "m=4096,n=100,k=4096",
    ):  # 192 cuts evenly; k is cut; few columns
        assert class_of("matmul", other).key != base.key
    assert class_of("matmul", "m=4096,n=4096,k=4096", "float16").key != base.key


def test_dimensions_of_one_tile_are_not_free() -> None:
    assert set(class_of("matmul", "m=16,n=4096,k=4096").free) == {"n", "k"}
    assert set(class_of("matmul", "m=257,n=256,k=129").free) == {"m", "k"}
    assert not class_of("matmul", "m=16,n=16,k=64").free


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        ("matmul", "M0"),
        ("matmul", "m=1000,n=1000,k=1001"),
        ("matmul", "m=16,n=768,k=4096"),
        ("flash_attention", "FA4"),
        ("flash_attention", "batch=3,heads=9,seq_len=1000,head_dim=64"),
    ],
)
def test_probes_are_members_that_tell_dimensions_apart(kernel: str, shape: str) -> None:
    found = class_of(kernel, shape)
    probes = [found.probe(number) for number in range(3)]
    for probe in probes:
        assert ShapeClass(found.template, probe).key == found.key
        kernels.operator(kernel).validate(probe)
    # no two dimensions go from one probe to the next by the same ratio, or a product could stand for another
    for other in probes[1:]:
        ratios = [other.dims[d] / probes[0].dims[d] for d in found.free]
        assert all(not math.isclose(a, b) for i, a in enumerate(ratios) for b in ratios[:i])
        assert all(ratio != 1 for ratio in ratios)


@pytest.mark.parametrize("shape", ["m=4096,n=6144,k=4096", "m=4096,n=1280,k=8192", "m=4096,n=5120,k=2880"])
def test_tiles_of_probes_can_be_dealt_to_parts(shape: str) -> None:
    """So parts of k and blocks of a cluster have the code that they have at most workloads."""
    found = class_of("matmul", shape)
    for number in range(3):
        dims = found.probe(number).dims
        assert any(dims["k"] // found.divisors["k"] % parts == 0 for parts in (2, 3))
        assert math.prod(sorted(dims.values())[-2:]) < 2**31, "indexed by 32 bits"
