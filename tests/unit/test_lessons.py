"""Lessons: learned from one config of a structure, exact at other shapes, refused where nothing explains the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.test_families import MATMUL, TEMPLATE, config_of, profile_of
from tilesight.families import ProfileFamily, Refusal, family_of
from tilesight.lessons import PROBES, Lessons
from tilesight.profile import KernelProfile
from tilesight.scaling import Rule
from tilesight.shape_class import ShapeClass
from tilesight.space import Config
from tilesight.workload import Workload

ASKED, THERE = MATMUL.workload("M0"), MATMUL.workload("m=1280,n=8448,k=640")
Read = Callable[[Workload, Config], tuple[KernelProfile, ...]]


@pytest.fixture
def lessons() -> Lessons:
    return Lessons(ShapeClass(TEMPLATE, ASKED))


def begun(lessons: Lessons, config: Config, read: Read = profile_of, workload: Workload = ASKED) -> ProfileFamily:
    return lessons.begin(config, workload.dims, "code", read(workload, config))


def learned(lessons: Lessons, config: Config, read: Read = profile_of) -> ProfileFamily:
    probed = [read(lessons.shape_class.probe(number), config) for number in range(PROBES)]
    return lessons.learn(begun(lessons, config, read), probed)


def test_before_a_lesson_a_family_answers_where_it_was_lowered(lessons: Lessons) -> None:
    family = lessons.place(begun(lessons, config_of()))
    assert family.rules is None
    assert family.kernels(ASKED.dims) == profile_of(ASKED, config_of())
    assert family.kernels(THERE.dims) is None


def test_what_one_config_shows_places_the_others_of_its_structure(lessons: Lessons) -> None:
    first, other = config_of(), config_of(64, 256, 32, stages=4)
    families = [learned(lessons, first), lessons.place(begun(lessons, other))]
    for config, family in zip((first, other), families, strict=True):
        for workload in (ASKED, MATMUL.workload("M5"), THERE):
            assert family.kernels(workload.dims) == profile_of(workload, config)


def test_lessons_outlive_their_process_in_the_families(lessons: Lessons) -> None:
    family = learned(lessons, config_of())
    again = family_of(family.text())
    assert again == family
    later = Lessons(lessons.shape_class)
    later.recall([again])
    assert later.place(begun(later, config_of(64))).kernels(THERE.dims) == profile_of(THERE, config_of(64))


def test_shapes_that_make_another_ir_are_refused(lessons: Lessons) -> None:
    family = learned(lessons, config_of())
    dims = dict(MATMUL.workload("M5").dims)
    assert family.kernels({**dims, "k": 64 * 5}) is not None
    assert family.kernels({**dims, "k": 64 * 4}) is None  # the loop is shorter than its buffers are many
    assert family.kernels({**dims, "m": 128}) is None  # one block row: the axis is gone from the IR


def test_what_no_rule_explains_is_refused_with_its_structure(lessons: Lessons) -> None:
    def odd(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
        return profile_of(workload, config, extra=float(workload.dims["m"] % 700))

    family = learned(lessons, config_of(), odd)
    assert family.refusal is Refusal.STRUCTURE
    assert family.kernels(ASKED.dims) == odd(ASKED, config_of())
    assert family.kernels(THERE.dims) is None
    assert lessons.place(begun(lessons, config_of(64))).refusal is Refusal.STRUCTURE
    later = Lessons(lessons.shape_class)
    later.recall([family_of(family.text())])
    assert later.place(begun(later, config_of(64))).refusal is Refusal.STRUCTURE


@pytest.mark.parametrize("count", range(PROBES))
def test_probes_that_fail_teach_that_nothing_is_known(lessons: Lessons, count: int) -> None:
    probed = [profile_of(lessons.shape_class.probe(number), config_of()) for number in range(count)]
    assert lessons.learn(begun(lessons, config_of()), probed).refusal is Refusal.STRUCTURE


def test_a_shape_with_an_ir_of_its_own_teaches_nothing_of_others(lessons: Lessons) -> None:
    def short(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
        found = profile_of(workload, config)
        return tuple(replace(k, roles=(replace(k.roles[0], phases=k.roles[0].phases[:1]),)) for k in found) if workload == ASKED else found

    family = learned(lessons, config_of(), short)
    assert family.refusal is Refusal.STRUCTURE
    again = family.with_seen(begun(lessons, config_of(), workload=THERE))  # a longer one, as the probes are
    assert again.refusal is None
    assert again.kernels(THERE.dims) == profile_of(THERE, config_of())


def test_a_config_that_breaks_its_structures_rules_is_refused(lessons: Lessons) -> None:
    learned(lessons, config_of())
    other = config_of(256)
    (kernel,) = profile_of(ASKED, other)
    broken = lessons.begin(other, ASKED.dims, "code", (replace(kernel, grid=(kernel.grid[0], kernel.grid[1] + 1, 1)),))
    assert lessons.place(broken).refusal is Refusal.CONFIG


def test_configs_that_cut_otherwise_learn_for_themselves(lessons: Lessons) -> None:
    learned(lessons, config_of())
    uneven = lessons.place(begun(lessons, config_of(192)))
    assert uneven.rules is None
    assert uneven.refusal is None


def sampled(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
    """A share of the iterations does more: a line over the number of blocks."""
    return profile_of(workload, config, extra=config.int("block_m") * (1 + 40.0 / -(-workload.dims["m"] // config.int("block_m"))))


def test_a_line_needs_two_workloads_of_each_config(lessons: Lessons) -> None:
    first = learned(lessons, config_of(), sampled)
    assert any(isinstance(rule, Rule) and rule.is_line for rule in (first.rules or {}).values())
    family = lessons.place(begun(lessons, config_of(64), sampled))
    assert family.rules is None
    assert family.refusal is None
    family = lessons.place(family.with_seen(begun(lessons, config_of(64), sampled, MATMUL.workload("M5"))))
    (found,), (expected,) = family.kernels(THERE.dims) or (), sampled(THERE, config_of(64))
    assert found.roles[0].phases[1].work.vector_ops == pytest.approx(expected.roles[0].phases[1].work.vector_ops)


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


def test_digits_of_tiles_follow_the_shape(lessons: Lessons) -> None:
    first, other = config_of(), config_of(64, 256, 32, stages=4)
    family = learned(lessons, first, with_digits)
    next_family = lessons.place(begun(lessons, other, with_digits))
    assert family.kernels(THERE.dims) == with_digits(THERE, first)
    assert next_family.kernels(THERE.dims) == with_digits(THERE, other)
    # a digit of one value is none: there the reader would leave it out
    assert family.kernels({**THERE.dims, "n": 128}) is None


def test_digits_that_no_rule_explains_are_refused(lessons: Lessons) -> None:
    def odd(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
        return with_tiles(profile_of(workload, config), tile_digits=(("x", 1, 5 + workload.dims["m"] % 700),))

    assert learned(lessons, config_of(), odd).refusal is Refusal.STRUCTURE


@pytest.mark.parametrize(
    "tiles", [{"tile_ids": (0, 1, 0, 1)}, {"turns": 2, "tile_digits": (("x", 1, 8),)}, {"tile_digits": (("t", 1, 8),)}]
)
def test_tiles_that_are_listed_for_one_shape_are_lowered_anew(lessons: Lessons, tiles: dict[str, object]) -> None:
    family = begun(lessons, config_of(), lambda workload, config: with_tiles(profile_of(workload, config), **tiles))
    assert family.refusal is Refusal.CONFIG
    assert learned(lessons, config_of()).rules is not None
    assert lessons.place(family) == family


def test_plain_loops_that_would_be_unrolled_are_refused(lessons: Lessons) -> None:
    def plain(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
        return with_tiles(profile_of(workload, config), mechanism="ld", slots=1)

    config = config_of(stages=1)
    family = learned(lessons, config, plain)
    dims = dict(MATMUL.workload("M5").dims)
    assert family.kernels({**dims, "k": 64 * 17}) is not None
    assert family.kernels({**dims, "k": 64 * 16}) is None
