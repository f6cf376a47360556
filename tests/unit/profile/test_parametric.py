"""Profile profiles: what a config shows where it was lowered, and what follows for other shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight import kernels
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.profile.parametric import (
    MAX_SAMPLES,
    ParametricProfile,
    ProfileKey,
    ProfileSample,
    Refusal,
    parametric_profile_of,
)
from tilesight.profile.tree import tree_of
from tilesight.profile.values import Access, KernelProfile, Phase, Role, Space, Tensor, Trips, Work

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
    load = Access(
        Space.GLOBAL,
        "A",
        False,
        "cp_async",
        moved,
        moved / 32,
        moved / 512,
        slots=stages,
        loop_dependent=True,
    )
    loop = Phase(
        Trips((float(-(-k // block_k) - stages + 1),)),
        Work(accesses=(load,), vector_ops=100.0 + extra),
        stages,
        is_loop=True,
    )
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


def sample_at(workload: Workload, config: Config, fingerprint: str = "code") -> ProfileSample:
    return ProfileSample(dict(workload.dims), fingerprint, tree_of(profile_of(workload, config)))


def test_a_profile_is_read_back_from_its_text() -> None:
    workload, config = MATMUL.workload("M5"), config_of()
    for refusal in (None, Refusal.CONFIG):
        profile = ParametricProfile(config, "structure", (sample_at(workload, config),), None, refusal)
        again = parametric_profile_of(profile.text())
        assert again == profile
        assert again.kernels(workload.dims) == profile_of(workload, config)
        assert again.fingerprint(workload.dims) == "code"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"config": {}}',
        '{"config": {}, "structure": "s", "seen": [], "rules": null, "refusal": null}',
    ],
)
def test_a_text_of_something_else_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        parametric_profile_of(text)


def test_the_latest_samples_are_remembered() -> None:
    config, shapes = config_of(), [MATMUL.workload(f"M{i}") for i in range(MAX_SAMPLES + 1)]
    profile = ParametricProfile(config, "structure", (sample_at(shapes[0], config),))
    for workload in [*shapes, shapes[1]]:
        profile = profile.with_samples_of(
            ParametricProfile(config, "structure", (sample_at(workload, config),))
        )
    assert len(profile.samples) == MAX_SAMPLES
    assert profile.kernels(shapes[0].dims) is None
    for workload in shapes[1:]:
        assert profile.kernels(workload.dims) == profile_of(workload, config)


def test_another_structure_replaces_a_profile_without_laws() -> None:
    config, (first, second) = config_of(), (MATMUL.workload("M0"), MATMUL.workload("M5"))
    other = ParametricProfile(config, "other", (sample_at(second, config),))
    without_laws = ParametricProfile(
        config, "structure", (sample_at(first, config),), None, Refusal.STRUCTURE
    )
    assert without_laws.with_samples_of(other) == other
    complete = ParametricProfile(config, "structure", (sample_at(first, config),), {})
    assert complete.with_samples_of(other) == complete


def test_fingerprints_differ_between_shapes_and_follow_the_first_sample() -> None:
    config, there = config_of(), MATMUL.workload("M5").dims
    codes = [
        ParametricProfile(config, "s", (sample_at(MATMUL.workload("M0"), config, code),), {}).fingerprint(
            there
        )
        for code in "aab"
    ]
    assert codes[0] == codes[1] != codes[2]
    assert codes[0] != "a"


def test_every_field_of_the_key_counts() -> None:
    key = ProfileKey("t", "1", "sm_90a", "class", "reader")
    others = [
        replace(key, **{name: "x"})
        for name in ("template", "template_version", "arch", "shape_class", "reader")
    ]
    assert len({key.digest, *(other.digest for other in others)}) == 6
