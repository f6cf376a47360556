"""Profile families: learned from a few configs of a structure, exact at other shapes, refused where nothing explains them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight import kernels
from tilesight.families import PROBES, Families, FamilyKey, family_of
from tilesight.profile import Access, KernelProfile, Phase, Role, Space, Tensor, Trips, Work
from tilesight.shape_class import ShapeClass
from tilesight.space import Config
from tilesight.workload import Workload

MATMUL = kernels.operator("matmul")
TEMPLATE = next(t for t in kernels.templates("matmul") if t.scales)


def config_of(block_m: int = 128, block_n: int = 128, block_k: int = 64, stages: int = 3) -> Config:
    return Config({"block_m": block_m, "block_n": block_n, "block_k": block_k, "num_stages": stages})


def profile_of(workload: Workload, config: Config, extra: float = 0.0) -> tuple[KernelProfile, ...]:
    """What a pipelined matmul would show: a shorter loop, tensors, and a grid."""
    m, n, k = (workload.dims[d] for d in ("m", "n", "k"))
    block_m, block_n, block_k = (config.int(f"block_{d}") for d in "mnk")
    stages = config.int("num_stages")
    moved = float(block_m * block_k * 2)
    load = Access(Space.GLOBAL, "A", False, "cp_async", moved, moved / 32, moved / 512, slots=stages, loop_dependent=True)
    loop = Phase(Trips((float(-(-k // block_k) - stages + 1),)), Work(accesses=(load,), vector_ops=100.0 + extra), stages, is_loop=True)
    return (
        KernelProfile(
            kind="cuda",
            arch="sm_80",
            grid=(-(-n // block_n), -(-m // block_m), 1),
            block_threads=128,
            cluster=1,
            shared_bytes=config.int("num_stages") * 4096,
            roles=(Role("all", 128, (Phase(Trips((1.0,)), Work(vector_ops=5.0)), loop)),),
            tensors=(Tensor("A", 2 * m * k, 2), Tensor("C", 2 * m * n, 2)),
        ),
    )


@pytest.fixture
def families() -> Families:
    return Families(ShapeClass(TEMPLATE, MATMUL.workload("M0")))


def probed(families: Families, config: Config, count: int) -> list[tuple[KernelProfile, ...]]:
    return [profile_of(families.shape_class.probe(number), config) for number in range(count)]


def test_the_first_of_a_structure_needs_all_probes_and_others_one(families: Families) -> None:
    first, other = config_of(), config_of(64, 256, 32, stages=4)
    assert families.needed(first, probed(families, first, 1)[0]) == PROBES
    assert families.make(first, "f", probed(families, first, 1)) is None  # nothing is learned from one
    assert families.make(first, "f", probed(families, first, PROBES)) is not None
    assert families.needed(other, probed(families, other, 1)[0]) == 1
    for config in (first, other):
        family = families.make(config, "f", probed(families, config, 1))
        assert family is not None
        for shape in ("M5", "m=1280,n=8448,k=640"):
            workload = MATMUL.workload(shape)
            assert family.kernels(workload.dims) == profile_of(workload, config)


def test_a_family_outlives_its_process_as_text(families: Families) -> None:
    family = families.make(config_of(), "f", probed(families, config_of(), PROBES))
    assert family is not None
    again = family_of(family.text())
    assert again == family
    assert again.kernels(MATMUL.workload("M5").dims) == profile_of(MATMUL.workload("M5"), config_of())
    with pytest.raises((ValueError, KeyError, TypeError)):
        family_of('{"config": {}}')


def test_shapes_that_make_another_ir_are_refused(families: Families) -> None:
    family = families.make(config_of(), "f", probed(families, config_of(), PROBES))
    assert family is not None
    dims = dict(MATMUL.workload("M5").dims)
    assert family.kernels({**dims, "k": 64 * 5}) is not None
    assert family.kernels({**dims, "k": 64 * 4}) is None  # the loop is shorter than its buffers are many
    assert family.kernels({**dims, "m": 128}) is None  # one block row: the axis is gone from the IR


def test_what_no_rule_explains_is_refused_with_its_structure(families: Families) -> None:
    config = config_of()
    odd = [profile_of(families.shape_class.probe(i), config, extra=50.0 * (i % 2)) for i in range(PROBES)]
    assert families.make(config, "f", odd) is None
    assert families.needed(config_of(64), probed(families, config_of(64), 1)[0]) == 0


def test_a_config_that_breaks_its_structures_rules_is_refused(families: Families) -> None:
    assert families.make(config_of(), "f", probed(families, config_of(), PROBES)) is not None
    other = config_of(256)
    (kernel,) = profile_of(families.shape_class.probe(0), other)
    assert families.make(other, "f", [(replace(kernel, grid=(kernel.grid[0], kernel.grid[1] + 1, 1)),)]) is None


def test_configs_that_cut_otherwise_learn_for_themselves(families: Families) -> None:
    assert families.make(config_of(), "f", probed(families, config_of(), PROBES)) is not None
    uneven = config_of(192)
    assert families.needed(uneven, probed(families, uneven, 1)[0]) == PROBES


def with_tiles(kernels: tuple[KernelProfile, ...], **tiles: object) -> tuple[KernelProfile, ...]:
    """The same kernels, their load's tiles numbered otherwise."""
    (kernel,) = kernels
    (role,) = kernel.roles
    straight, loop = role.phases
    access = replace(loop.work.accesses[0], **tiles)  # type: ignore[arg-type]
    phases = (straight, replace(loop, work=replace(loop.work, accesses=(access,))))
    return (replace(kernel, roles=(replace(role, phases=phases),)),)


def with_digits(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
    """Rows of blocks in pairs, as many columns as there are."""
    rows, columns = (-(-workload.dims[d] // config.int(f"block_{d}")) for d in "mn")
    return with_tiles(profile_of(workload, config), tile_digits=(("x", 1, columns), ("z", columns, 2), ("y", 2, rows)))


def test_digits_of_tiles_follow_the_shape(families: Families) -> None:
    first, other = config_of(), config_of(64, 256, 32, stages=4)
    family = families.make(first, "f", [with_digits(families.shape_class.probe(i), first) for i in range(PROBES)])
    next_family = families.make(other, "f", [with_digits(families.shape_class.probe(0), other)])
    assert family is not None
    assert next_family is not None
    there = MATMUL.workload("m=1280,n=8448,k=640")
    assert family.kernels(there.dims) == with_digits(there, first)
    assert next_family.kernels(there.dims) == with_digits(there, other)
    # a digit of one value is none: there the reader would leave it out
    assert family.kernels({**there.dims, "n": 128}) is None


def test_digits_that_no_rule_explains_are_refused(families: Families) -> None:
    odd = [with_tiles(profile_of(families.shape_class.probe(i), config_of()), tile_digits=(("x", 1, 5 + i * i),)) for i in range(PROBES)]
    assert families.make(config_of(), "f", odd) is None


@pytest.mark.parametrize(
    "tiles", [{"tile_ids": (0, 1, 0, 1)}, {"turns": 2, "tile_digits": (("x", 1, 8),)}, {"tile_digits": (("t", 1, 8),)}]
)
def test_tiles_that_are_listed_for_one_shape_are_lowered_anew(families: Families, tiles: dict[str, object]) -> None:
    config = config_of()
    found = [with_tiles(kernels, **tiles) for kernels in probed(families, config, PROBES)]
    assert families.needed(config, found[0]) == 0
    assert families.make(config, "f", found) is None
    assert families.make(config, "f", probed(families, config, PROBES)) is not None  # the others of the structure are not touched


def test_plain_loops_that_would_be_unrolled_are_refused(families: Families) -> None:
    def plain(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
        return with_tiles(profile_of(workload, config), mechanism="ld", slots=1)

    config = config_of(stages=1)
    family = families.make(config, "f", [plain(families.shape_class.probe(i), config) for i in range(PROBES)])
    assert family is not None
    dims = dict(MATMUL.workload("M5").dims)
    assert family.kernels({**dims, "k": 64 * 17}) is not None
    assert family.kernels({**dims, "k": 64 * 16}) is None


def test_the_key_tells_everything_apart() -> None:
    key = FamilyKey("t", "1", "sm_90a", "class", "reader")
    others = [replace(key, **{name: "x"}) for name in ("template", "template_version", "arch", "shape_class", "reader")]
    assert len({key.digest, *(other.digest for other in others)}) == 6
