"""Profiles as JSON: what comes back is what went in, and what is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tilesight.errors import InputError
from tilesight.problem.rasterization import Rasterization
from tilesight.profile.codec import plain_profile, profiles_of, profiles_text
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


def rich_profile() -> KernelProfile:
    """Every field away from its default at least once."""
    matrix = MatrixWork("wgmma.m64n64k16", 32.0, 131072.0, 4096.0, 4.0, "float16")
    access = Access(
        Space.SHARED,
        "t0",
        True,
        "ldmatrix",
        1 / 3,
        1e300,
        5e-324,
        vector_bytes=16,
        asynchronous=True,
        slots=4,
        box_bytes=7.5,
        axes=frozenset({"y", "x"}),
        loop_dependent=True,
        levels=((2048.0, 64.0), (16.0, 1.0)),
        gaps=(4096.0, 0.0),
        footprint_bytes=0.1,
    )
    work = Work(
        (matrix,), (access,), 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5, {"T.b": 2.0, "T.a": 1.0}
    )
    phase = Phase(Trips((3.0, 2.0, 1.0), frozenset({"z"})), work, 4, is_loop=True, copies_ahead=1.25)
    role = Role("consumer", 256, (phase,), 240, 63.5)
    return KernelProfile(
        "cuda",
        "sm_90a",
        (8, 16, 1),
        384,
        2,
        196672,
        (role,),
        (Tensor("t0", 1 << 40, 2),),
        Rasterization("row", 8),
        ("tl.ü",),
        ("a note",),
        min_blocks_per_core=2,
    )


def bare_profile() -> KernelProfile:
    return KernelProfile("cpu", "native", (1, 1, 1), 1, 1, 0, (), ())


def test_round_trip_is_exact() -> None:
    kernels = (rich_profile(), bare_profile())
    assert profiles_of(profiles_text(kernels)) == kernels
    assert profiles_of(profiles_text(())) == ()


def test_equal_profiles_make_equal_texts() -> None:
    mirrored = rich_profile()
    text = profiles_text([rich_profile()])
    assert profiles_text(profiles_of(text)) == text == profiles_text([mirrored])


def test_defaults_are_left_out() -> None:
    assert set(plain_profile(bare_profile())) == {
        "kind", "arch", "grid", "block_threads", "cluster", "shared_bytes", "roles", "tensors",
    }  # fmt: skip


def test_numpy_numbers_become_plain_ones() -> None:
    kernel = KernelProfile(
        "cpu",
        "native",
        (np.int64(3), 1, 1),
        1,
        1,
        0,
        (Role("all", 1, (Phase(Trips((np.float32(0.5),)), Work()),)),),
        (),
    )
    (back,) = profiles_of(profiles_text([kernel]))
    assert back.grid == (3, 1, 1)
    assert type(back.grid[0]) is int
    assert back.roles[0].phases[0].trips.mean == 0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_lacks_are_named(value: float) -> None:
    kernel = KernelProfile("cpu", "native", (1, 1, 1), 1, 1, 0, (Role("all", 1, (), None, value),), ())
    with pytest.raises(ValueError, match=r"kernel\.roles\[0\]\.local_registers=(nan|inf) must be finite"):
        profiles_text([kernel])


def _work(kernel: Any) -> Any:
    return kernel["roles"][0]["phases"][0]["work"]


def _broken(change: Any) -> str:
    found = json.loads(profiles_text([rich_profile()]))
    change(found[0])
    return json.dumps(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: k.pop("grid"), r"kernels\[0\]\.grid is missing"),
        (lambda k: k.update(grid=[1, 2]), r"kernels\[0\]\.grid must have 3 members, not 2"),
        (lambda k: k.update(grid=[1, 2, True]), r"kernels\[0\]\.grid\[2\] must be a whole number, not true"),
        (lambda k: k.update(colour="red"), r"kernels\[0\]\.colour is no field of KernelProfile"),
        (lambda k: k["roles"][0].update(phases={}), r"kernels\[0\]\.roles\[0\]\.phases must be a list"),
        (
            lambda k: k["roles"][0]["phases"][0]["trips"].update(per_block=["a"]),
            r"phases\[0\]\.trips\.per_block\[0\] must be a number",
        ),
        (
            lambda k: _work(k)["accesses"][0].update(space="moon"),
            r"accesses\[0\]\.space='moon' is not one of global",
        ),
        (lambda k: _work(k).update(unknown=[1]), r"work\.unknown must be an object"),
        (lambda k: k["roles"].append(3), r"roles\[1\] must be an object \(Role\), not 3"),
    ],
)
def test_what_is_wrong_is_named(change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        profiles_of(_broken(change))


@pytest.mark.parametrize("text", ["", "{", '{"kind": "cuda"}', "3"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"profile: (not JSON text|must be a list)"):
        profiles_of(text)
