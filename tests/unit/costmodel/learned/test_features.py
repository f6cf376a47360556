from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.costmodel.measured_samples import kernel
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.learned.features import FEATURES, NAMES, feature_digest, feature_matrix, features
from tilesight.costmodel.learned.totals import totals
from tilesight.profile.values import (
    Access,
    KernelProfile,
    MatrixWork,
    Phase,
    Role,
    Space,
    Tensor,
    Trips,
    Work,
)
from tilesight.target.spec import load_target

H200 = load_target("h200")


def vector(profile: KernelProfile) -> dict[str, float]:
    found = features([profile], H200, AnalyticalModel().predict([profile], H200))
    return dict(zip(NAMES, map(float, found), strict=True))


def shared(write: bool, transactions: float, width: int = 4) -> Access:
    return Access(
        Space.SHARED,
        "s",
        write,
        "st" if write else "ld",
        4096.0,
        transactions,
        32,
        width,
        footprint_bytes=4096.0,
    )


def with_accesses(*accesses: Access) -> KernelProfile:
    base = kernel("copying", 1 << 20, 4)
    (role,) = base.roles
    (phase,) = role.phases
    return replace(
        base, roles=(replace(role, phases=(replace(phase, work=replace(phase.work, accesses=accesses)),)),)
    )


def test_every_feature_is_named_documented_and_finite() -> None:
    assert len(NAMES) == len(set(NAMES)) == len(FEATURES)
    assert all(len(meaning) > 10 for meaning in FEATURES.values())
    for operator in ("copying", "multiplying", "summing"):
        found = vector(kernel(operator, 1 << 22, 8, 3))
        assert set(found) == set(NAMES)
        assert np.isfinite(list(found.values())).all()


def test_names_of_tensors_change_nothing() -> None:
    base = kernel("copying", 1 << 20, 4)
    names = {"x": "q", "y": "r"}
    renamed = with_accesses(
        *(replace(a, tensor=names[a.tensor]) for a in base.roles[0].phases[0].work.accesses)
    )
    renamed = replace(renamed, tensors=tuple(replace(t, label=names[t.label]) for t in base.tensors))
    assert renamed != base
    assert vector(renamed) == vector(base)


def test_bank_conflicts_are_a_ratio_of_wavefronts() -> None:
    found = vector(with_accesses(shared(False, 128.0), shared(True, 32.0)))
    assert found["conflicts_load"] == pytest.approx(2.0)  # 128 for the 32 that 4096 bytes need
    assert found["conflicts_store"] == pytest.approx(0.0)


def test_width_and_coalescing() -> None:
    narrow = Access(
        Space.GLOBAL, "x", False, "ld", 1024.0, 128.0, 8, 4, axes=frozenset("x"), footprint_bytes=1024.0
    )
    found = vector(with_accesses(narrow))
    assert found["sectors_load"] == pytest.approx(2.0)
    assert found["wide_global"] == 0.0
    assert found["plain_loads"] == 1.0
    assert vector(with_accesses(shared(False, 32.0, width=16)))["wide_shared"] == 1.0


def test_tail_counts_empty_places() -> None:
    base = replace(kernel("copying", 1 << 20, 4), shared_bytes=200_000)  # one block on each of 132 cores
    assert vector(replace(base, grid=(132, 1, 1)))["tail"] == pytest.approx(0.0)
    assert vector(replace(base, grid=(198, 1, 1)))["tail"] == pytest.approx(0.25)
    assert vector(replace(base, grid=(66, 1, 1)))["busy_cores"] == pytest.approx(0.5)


def test_trip_spread_and_roles() -> None:
    work = Work(matrix=(MatrixWork("wgmma.m64n128k16", 4, 262144.0, 6144.0, 4),), barrier_waits=1)
    trips = Trips((2.0, 4.0, 6.0), frozenset("x"))
    roles = (
        Role("producer", 128, ()),
        Role("consumer", 256, (Phase(trips, work, 2, True),), local_registers=100),
    )
    profile = KernelProfile(
        "cuda", "sm_90a", (3, 1, 1), 384, 1, 50_000, roles, (Tensor("x", 1000, 2), Tensor("y", 1000, 4))
    )
    found = vector(profile)
    assert found["trip_spread"] == pytest.approx(1.0)
    assert found["producer_threads"] == pytest.approx(1 / 3)
    assert found["specialised"] == 1.0
    assert found["depth"] == pytest.approx(1.0)
    assert found["element_spread"] == pytest.approx(1.0)
    assert found["matrix_warp_level"] == 0.0


def test_totals_multiply_loops_out() -> None:
    found = totals(kernel("multiplying", 1 << 20, 4, syncs=3))
    assert found.matrix_flops == 4 * 40 * 4 * 4096
    assert found.block_syncs == 12
    assert found.loop_share == 1.0
    assert found.warp_matrix_flops == found.matrix_flops


def test_the_kernel_with_most_work_stands_for_several() -> None:
    small, large = kernel("copying", 1 << 12, 4), kernel("multiplying", 1 << 24, 8)
    model = AnalyticalModel()
    found = features([small, large], H200, model.predict([small, large], H200))
    assert found[NAMES.index("matrix_share")] == vector(large)["matrix_share"]
    assert found[NAMES.index("kernels")] == 1.0


def test_cpu_profiles_have_no_features() -> None:
    cpu = load_target("cpu")
    with pytest.raises(ValueError, match="GPU"):
        features(
            [kernel("copying", 1 << 20, 4)],
            cpu,
            AnalyticalModel().predict([kernel("copying", 1 << 20, 4)], H200),
        )
    assert feature_matrix([]).shape == (0, len(NAMES))


def test_digest_is_short_and_stable() -> None:
    assert feature_digest() == feature_digest()
    assert len(feature_digest()) == 8
