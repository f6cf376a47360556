"""Kept profiles in the database."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.unit.test_families import MATMUL, config_of, seen_at
from tilesight.database import Store, open_store
from tilesight.families import FamilyKey, ProfileFamily

KEY = FamilyKey("matmul", "abc", "sm_80", "class", "reader")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


def family(stages: int, shape: str = "M0") -> ProfileFamily:
    config = config_of(stages=stages)
    return ProfileFamily(config, "structure", (seen_at(MATMUL.workload(shape), config, f"code {stages}"),))


def spoiled(part: str, value: object) -> bytes:
    return json.dumps({**json.loads(family(2).text()), part: value}).encode()


def test_families_come_back_under_their_key_alone(store: Store) -> None:
    kept = [family(2), family(3)]
    store.keep_families(KEY, kept)
    assert sorted(store.kept_families(KEY), key=str) == sorted(kept, key=str)
    assert store.kept_families(replace(KEY, reader="newer")) == []


def test_keeping_twice_or_nothing_changes_nothing(store: Store) -> None:
    store.keep_families(KEY, [])
    for _ in range(2):
        store.keep_families(KEY, [family(2)])
    assert store.kept_families(KEY) == [family(2)]


def test_what_is_known_later_takes_the_place_of_what_was_known(store: Store) -> None:
    store.keep_families(KEY, [family(2), family(3)])
    more = family(2).with_seen(family(2, "M5"))
    store.keep_families(KEY, [more])
    assert sorted(store.kept_families(KEY), key=str) == sorted([more, family(3)], key=str)


BAD = {"config": "x", "rules": [[["grid"], ["rule", [], 10**400, 0]]], "seen": [], "refusal": "no such"}


@pytest.mark.parametrize("body", [b"no zlib", *(zlib.compress(spoiled(part, value)) for part, value in BAD.items())], ids=["bytes", *BAD])
def test_a_family_that_cannot_be_read_is_left_out(store: Store, body: bytes) -> None:
    store.keep_families(KEY, [family(2), family(3)])
    damage = text("UPDATE profile_families SET body = :body WHERE config = :config")
    store.database.write(lambda connection: connection.execute(damage, {"body": body, "config": family(2).config.key}))
    assert store.kept_families(KEY) == [family(3)]
