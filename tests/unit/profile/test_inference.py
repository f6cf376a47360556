"""Inference of scaling laws: exact at other shapes, refused if no law explains the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.profile.test_parametric import MATMUL, TEMPLATE, config_of, profile_of
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.profile.inference import PROBES, LawInference
from tilesight.profile.parametric import ParametricProfile, Refusal, parametric_profile_of
from tilesight.profile.scaling_laws import ScalingLaw
from tilesight.profile.shape_class import ShapeClass
from tilesight.profile.values import KernelProfile

ASKED, THERE = MATMUL.workload("M0"), MATMUL.workload("m=1280,n=8448,k=640")
Read = Callable[[Workload, Config], tuple[KernelProfile, ...]]


@pytest.fixture
def inference() -> LawInference:
    return LawInference(ShapeClass(TEMPLATE, ASKED))


def lowered_once(
    inference: LawInference, config: Config, read: Read = profile_of, workload: Workload = ASKED
) -> ParametricProfile:
    return inference.first_profile(config, workload.dims, "code", read(workload, config))


def inferred(inference: LawInference, config: Config, read: Read = profile_of) -> ParametricProfile:
    probed = [read(inference.shape_class.probe(number), config) for number in range(PROBES)]
    return inference.infer_laws(lowered_once(inference, config, read), probed)


def test_without_laws_a_profile_answers_only_where_it_was_lowered(inference: LawInference) -> None:
    profile = inference.apply_laws(lowered_once(inference, config_of()))
    assert profile.laws is None
    assert profile.kernels(ASKED.dims) == profile_of(ASKED, config_of())
    assert profile.kernels(THERE.dims) is None


def test_the_laws_of_one_config_hold_for_the_others_of_its_structure(inference: LawInference) -> None:
    first, other = config_of(), config_of(64, 256, 32, stages=4)
    profiles = [inferred(inference, first), inference.apply_laws(lowered_once(inference, other))]
    for config, profile in zip((first, other), profiles, strict=True):
        for workload in (ASKED, MATMUL.workload("M5"), THERE):
            assert profile.kernels(workload.dims) == profile_of(workload, config)


def test_laws_are_loaded_from_the_text_of_profiles(inference: LawInference) -> None:
    profile = inferred(inference, config_of())
    again = parametric_profile_of(profile.text())
    assert again == profile
    later = LawInference(inference.shape_class)
    later.load([again])
    assert later.apply_laws(lowered_once(later, config_of(64))).kernels(THERE.dims) == profile_of(
        THERE, config_of(64)
    )


def test_shapes_with_another_ir_are_refused(inference: LawInference) -> None:
    profile = inferred(inference, config_of())
    dims = dict(MATMUL.workload("M5").dims)
    assert profile.kernels({**dims, "k": 64 * 5}) is not None
    assert profile.kernels({**dims, "k": 64 * 4}) is None  # the loop is shorter than its buffers are many
    assert profile.kernels({**dims, "m": 128}) is None  # one block row: the axis is gone from the IR


def test_numbers_without_a_law_refuse_their_structure(inference: LawInference) -> None:
    def odd(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
        return profile_of(workload, config, extra=float(workload.dims["m"] % 700))

    profile = inferred(inference, config_of(), odd)
    assert profile.refusal is Refusal.STRUCTURE
    assert profile.kernels(ASKED.dims) == odd(ASKED, config_of())
    assert profile.kernels(THERE.dims) is None
    assert inference.apply_laws(lowered_once(inference, config_of(64))).refusal is Refusal.STRUCTURE
    later = LawInference(inference.shape_class)
    later.load([parametric_profile_of(profile.text())])
    assert later.apply_laws(lowered_once(later, config_of(64))).refusal is Refusal.STRUCTURE


@pytest.mark.parametrize("count", range(PROBES))
def test_a_failed_probe_refuses_the_structure(inference: LawInference, count: int) -> None:
    probed = [profile_of(inference.shape_class.probe(number), config_of()) for number in range(count)]
    assert inference.infer_laws(lowered_once(inference, config_of()), probed).refusal is Refusal.STRUCTURE


def test_a_shape_with_another_ir_gives_no_laws(inference: LawInference) -> None:
    def short(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
        found = profile_of(workload, config)
        return (
            tuple(replace(k, roles=(replace(k.roles[0], phases=k.roles[0].phases[:1]),)) for k in found)
            if workload == ASKED
            else found
        )

    profile = inferred(inference, config_of(), short)
    assert profile.refusal is Refusal.STRUCTURE
    again = profile.with_samples_of(
        lowered_once(inference, config_of(), workload=THERE)
    )  # a longer one, as the probes are
    assert again.refusal is None
    assert again.kernels(THERE.dims) == profile_of(THERE, config_of())


def test_a_config_that_contradicts_the_laws_of_its_structure_is_refused(inference: LawInference) -> None:
    inferred(inference, config_of())
    other = config_of(256)
    (kernel,) = profile_of(ASKED, other)
    broken = inference.first_profile(
        other, ASKED.dims, "code", (replace(kernel, grid=(kernel.grid[0], kernel.grid[1] + 1, 1)),)
    )
    assert inference.apply_laws(broken).refusal is Refusal.CONFIG


def test_configs_whose_tiles_divide_other_dimensions_have_another_structure(inference: LawInference) -> None:
    inferred(inference, config_of())
    uneven = inference.apply_laws(lowered_once(inference, config_of(192)))
    assert uneven.laws is None
    assert uneven.refusal is None


def sampled(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
    """A share of the iterations does more: a line over the number of blocks."""
    return profile_of(
        workload,
        config,
        extra=config.int("block_m") * (1 + 40.0 / -(-workload.dims["m"] // config.int("block_m"))),
    )


def test_a_line_needs_two_workloads_of_each_config(inference: LawInference) -> None:
    first = inferred(inference, config_of(), sampled)
    assert any(isinstance(law, ScalingLaw) and law.is_line for law in (first.laws or {}).values())
    profile = inference.apply_laws(lowered_once(inference, config_of(64), sampled))
    assert profile.laws is None
    assert profile.refusal is None
    profile = inference.apply_laws(
        profile.with_samples_of(lowered_once(inference, config_of(64), sampled, MATMUL.workload("M5")))
    )
    (found,), (expected,) = profile.kernels(THERE.dims) or (), sampled(THERE, config_of(64))
    assert found.roles[0].phases[1].work.vector_ops == pytest.approx(
        expected.roles[0].phases[1].work.vector_ops
    )


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
    return with_tiles(
        profile_of(workload, config), tile_digits=(("x", 1, columns), ("z", columns, 2), ("y", 2, rows))
    )


def test_digits_of_tiles_follow_the_shape(inference: LawInference) -> None:
    first, other = config_of(), config_of(64, 256, 32, stages=4)
    profile = inferred(inference, first, with_digits)
    other_profile = inference.apply_laws(lowered_once(inference, other, with_digits))
    assert profile.kernels(THERE.dims) == with_digits(THERE, first)
    assert other_profile.kernels(THERE.dims) == with_digits(THERE, other)
    # a digit of one value is none: there the reader would leave it out
    assert profile.kernels({**THERE.dims, "n": 128}) is None


def test_digits_without_a_law_are_refused(inference: LawInference) -> None:
    def odd(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
        return with_tiles(profile_of(workload, config), tile_digits=(("x", 1, 5 + workload.dims["m"] % 700),))

    assert inferred(inference, config_of(), odd).refusal is Refusal.STRUCTURE


@pytest.mark.parametrize(
    "tiles",
    [
        {"tile_ids": (0, 1, 0, 1)},
        {"turns": 2, "tile_digits": (("x", 1, 8),)},
        {"tile_digits": (("t", 1, 8),)},
    ],
)
def test_listed_tiles_are_lowered_at_every_shape(inference: LawInference, tiles: dict[str, object]) -> None:
    profile = lowered_once(
        inference, config_of(), lambda workload, config: with_tiles(profile_of(workload, config), **tiles)
    )
    assert profile.refusal is Refusal.CONFIG
    assert inferred(inference, config_of()).laws is not None
    assert inference.apply_laws(profile) == profile


def test_shapes_at_which_plain_loops_are_unrolled_are_refused(inference: LawInference) -> None:
    def plain(workload: Workload, config: Config) -> tuple[KernelProfile, ...]:
        return with_tiles(profile_of(workload, config), mechanism="ld", slots=1)

    config = config_of(stages=1)
    profile = inferred(inference, config, plain)
    dims = dict(MATMUL.workload("M5").dims)
    assert profile.kernels({**dims, "k": 64 * 17}) is not None
    assert profile.kernels({**dims, "k": 64 * 16}) is None
