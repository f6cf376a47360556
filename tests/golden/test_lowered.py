"""The record of what was lowered answers for a candidate only while nothing of it has changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.golden import lowered
from tilesight.kernels import templates
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

CASE = "softmax on h100"


@pytest.fixture
def candidate() -> Candidate:
    return lowered.static_candidate(templates("softmax")[0], load_target("h100"))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Candidate]]:
    """The candidates that are lowered, instead of lowering them."""
    found: list[Candidate] = []
    monkeypatch.setattr(lowered, "check", found.append)
    return found


def test_every_case_is_in_the_file_and_no_other() -> None:
    assert lowered.stored().keys() == lowered.cases().keys(), "run python tests/golden/lowered.py"


def test_what_is_known_is_not_lowered_again_and_what_has_changed_is(
    candidate: Candidate, checked: list[Candidate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowered, "FILE", tmp_path / "lowered.json")
    assert lowered.check_unless_known(CASE, candidate), "there is no record"
    lowered.FILE.write_text(json.dumps({CASE: lowered.hash_of(candidate)}))
    assert not lowered.check_unless_known(CASE, candidate)
    assert len(checked) == 1
    ours = candidate.template.operator
    changed: list[Candidate] = [
        replace(candidate, config=Config({**candidate.config, "threads": 1})),
        replace(candidate, target=load_target("h200")),
        replace(candidate, workload=ours.workload("m=77,n=770", candidate.workload.dtype)),
        replace(candidate, dynamic=candidate.template.dynamic_dims),
    ]
    for other in changed:
        assert lowered.check_unless_known(CASE, other)
    assert checked[1:] == changed


@pytest.mark.parametrize("of", ["definition_hash", "lowering_version", "version"])
def test_other_code_is_lowered(
    of: str, candidate: Candidate, checked: list[Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lowered.stored()[CASE] == lowered.hash_of(candidate) or lowered.check_unless_known(CASE, candidate)
    checked.clear()
    before = lowered.hash_of(candidate)

    def other(*_: Any, **__: Any) -> str:
        return "another"

    monkeypatch.setattr(lowered, of, other)
    assert lowered.hash_of(candidate) != before
    assert lowered.check_unless_known(CASE, candidate)
    assert checked == [candidate]


def test_a_candidate_that_cannot_be_lowered_fails(candidate: Candidate) -> None:
    broken = replace(candidate, config=Config({**candidate.config, "threads": 7}))
    with pytest.raises(Exception, match=r"\S"):
        lowered.check_unless_known(CASE, broken)
