"""Cached profiles in the database."""

from __future__ import annotations

import json
import types
import zlib
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from sqlalchemy import text

from tests.golden.golden import CASES, PROFILES
from tests.unit.database import samples
from tests.unit.profile.test_parametric import MATMUL, config_of, sample_at
from tilesight.database import Store, open_store
from tilesight.database.exchange.json_lines import export_everything, import_everything
from tilesight.database.maintenance.check import check
from tilesight.database.tables.strict_json import MAX_DEPTH, MAX_MEMBERS
from tilesight.problem.space import Config
from tilesight.profile.codec import read_profile
from tilesight.profile.parametric import ParametricProfile, ProfileKey, ProfileSample
from tilesight.profile.tree import tree_of
from tilesight.profile.values import KernelProfile

KEY = ProfileKey("matmul", "abc", "sm_80", "class", "reader")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


def profile(stages: int, shape: str = "M0") -> ParametricProfile:
    config = config_of(stages=stages)
    return ParametricProfile(
        config, "structure", (sample_at(MATMUL.workload(shape), config, f"code {stages}"),)
    )


def spoiled(part: str, value: object) -> bytes:
    return json.dumps({**json.loads(profile(2).text()), part: value}).encode()


def test_profiles_come_back_under_their_key_alone(store: Store) -> None:
    kept = [profile(2), profile(3)]
    store.cache_profiles(KEY, kept)
    assert sorted(store.cached_profiles(KEY), key=str) == sorted(kept, key=str)
    assert store.cached_profiles(replace(KEY, reader="newer")) == []


def test_keeping_twice_or_nothing_changes_nothing(store: Store) -> None:
    store.cache_profiles(KEY, [])
    for _ in range(2):
        store.cache_profiles(KEY, [profile(2)])
    assert store.cached_profiles(KEY) == [profile(2)]


def test_what_is_known_later_takes_the_place_of_what_was_known(store: Store) -> None:
    store.cache_profiles(KEY, [profile(2), profile(3)])
    more = profile(2).with_samples_of(profile(2, "M5"))
    store.cache_profiles(KEY, [more])
    assert sorted(store.cached_profiles(KEY), key=str) == sorted([more, profile(3)], key=str)


BAD = {"config": "x", "rules": [[["grid"], ["rule", [], 10**400, 0]]], "seen": [], "refusal": "no such"}


@pytest.mark.parametrize(
    "body",
    [b"no zlib", *(zlib.compress(spoiled(part, value)) for part, value in BAD.items())],
    ids=["bytes", *BAD],
)
def test_a_profile_that_cannot_be_read_is_left_out(store: Store, body: bytes) -> None:
    store.cache_profiles(KEY, [profile(2), profile(3)])
    damage = text("UPDATE parametric_profiles SET body = :body WHERE config = :config")
    store.database.write(
        lambda connection: connection.execute(damage, {"body": body, "config": profile(2).config.key})
    )
    assert store.cached_profiles(KEY) == [profile(3)]


# ---- limits of what reads them


def depth(value: Any) -> int:
    """Of lists and objects in each other."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if members is None else 1 + max(map(depth, members), default=0)


def depth_of_type(kind: Any) -> int:
    """How deep JSON of the annotated type can get. A type that holds itself has no end."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return 1 + max(map(depth_of_type, get_type_hints(kind).values()))
    if origin in (Union, types.UnionType):
        return max(map(depth_of_type, parts))
    return 0 if origin is None else 1 + max(depth_of_type(part) for part in parts if part is not Ellipsis)


def golden_profile(case: str) -> ParametricProfile:
    """Of a kernel as it was lowered."""
    found = json.loads((PROFILES / f"{case}.json").read_text(encoding="utf-8"))
    sample = ProfileSample({"m": 1}, "code", tree_of([read_profile(kernel) for kernel in found["kernels"]]))
    return ParametricProfile(Config(found["config"]), "structure", (sample,))


def test_no_kernel_makes_a_profile_deeper_than_what_is_read() -> None:
    around = depth(json.loads(replace(profile(2), samples=(ProfileSample({"m": 1}, "code", []),)).text())) - 1
    deepest = around + 1 + depth_of_type(KernelProfile)
    assert max(depth(json.loads(golden_profile(case).text())) for case in CASES) == deepest == 14
    assert deepest + 4 <= MAX_DEPTH, "leave room: older versions must read what newer ones export"


def test_real_profiles_are_sound_and_survive_a_file(tmp_path: Path) -> None:
    kept = {replace(KEY, template=case): golden_profile(case) for case in CASES}
    with (
        open_store(samples.empty_database(tmp_path / "a.db")) as first,
        open_store(samples.empty_database(tmp_path / "b.db")) as second,
    ):
        for key, one in kept.items():
            first.cache_profiles(key, [one])
        found = check(first)
        assert (found.faults, found.rows["parametric_profiles"]) == ((), len(CASES))
        export_everything(first, tmp_path / "a.jsonl")
        import_everything(second, tmp_path / "a.jsonl", trusted=True)
        assert check(second).faults == ()
        for key, one in kept.items():
            assert second.cached_profiles(key) == [one]


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


@pytest.mark.parametrize("tree", [nested(MAX_DEPTH), [1] * (MAX_MEMBERS + 1)], ids=["deep", "long"])
def test_a_profile_that_a_check_would_refuse_is_not_kept(store: Store, tree: Any) -> None:
    store.cache_profiles(
        KEY, [replace(profile(2), samples=(ProfileSample({"m": 1}, "code", tree),)), profile(3)]
    )
    assert store.cached_profiles(KEY) == [profile(3)]
    assert check(store).faults == ()
