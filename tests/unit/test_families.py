"""Profile families: what a config shows where it was lowered, and what follows for other shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight import kernels
from tilesight.families import MOST_SEEN, FamilyKey, ProfileFamily, Refusal, Seen, family_of
from tilesight.profile import Access, KernelProfile, Phase, Role, Space, Tensor, Trips, Work
from tilesight.profile_tree import tree_of
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


def seen_at(workload: Workload, config: Config, fingerprint: str = "code") -> Seen:
    return Seen(dict(workload.dims), fingerprint, tree_of(profile_of(workload, config)))


def test_a_family_outlives_its_process_as_text() -> None:
    workload, config = MATMUL.workload("M5"), config_of()
    for refusal in (None, Refusal.CONFIG):
        family = ProfileFamily(config, "structure", (seen_at(workload, config),), None, refusal)
        again = family_of(family.text())
        assert again == family
        assert again.kernels(workload.dims) == profile_of(workload, config)
        assert again.fingerprint(workload.dims) == "code"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"config": {}}', '{"config": {}, "structure": "s", "seen": [], "rules": null, "refusal": null}']
)
def test_what_is_no_family_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        family_of(text)


def test_the_latest_workloads_are_remembered() -> None:
    config, shapes = config_of(), [MATMUL.workload(f"M{i}") for i in range(MOST_SEEN + 1)]
    family = ProfileFamily(config, "structure", (seen_at(shapes[0], config),))
    for workload in [*shapes, shapes[1]]:
        family = family.with_seen(ProfileFamily(config, "structure", (seen_at(workload, config),)))
    assert len(family.seen) == MOST_SEEN
    assert family.kernels(shapes[0].dims) is None
    for workload in shapes[1:]:
        assert family.kernels(workload.dims) == profile_of(workload, config)


def test_another_structure_takes_the_place_of_what_has_no_rules() -> None:
    config, (first, second) = config_of(), (MATMUL.workload("M0"), MATMUL.workload("M5"))
    other = ProfileFamily(config, "other", (seen_at(second, config),))
    open_family = ProfileFamily(config, "structure", (seen_at(first, config),), None, Refusal.STRUCTURE)
    assert open_family.with_seen(other) == other
    complete = ProfileFamily(config, "structure", (seen_at(first, config),), {})
    assert complete.with_seen(other) == complete


def test_codes_differ_between_shapes_and_follow_the_first() -> None:
    config, there = config_of(), MATMUL.workload("M5").dims
    codes = [ProfileFamily(config, "s", (seen_at(MATMUL.workload("M0"), config, code),), {}).fingerprint(there) for code in "aab"]
    assert codes[0] == codes[1] != codes[2]
    assert codes[0] != "a"


def test_the_key_tells_everything_apart() -> None:
    key = FamilyKey("t", "1", "sm_90a", "class", "reader")
    others = [replace(key, **{name: "x"}) for name in ("template", "template_version", "arch", "shape_class", "reader")]
    assert len({key.digest, *(other.digest for other in others)}) == 6
