from __future__ import annotations

import pytest

from . import golden


@pytest.mark.parametrize("case", golden.CASES)
def test_profile_is_what_it_was(case: str) -> None:
    kept = (golden.PROFILES / f"{case}.json").read_text(encoding="utf-8")
    assert golden.current(case) == kept, "where this is intended, write them anew: python tests/golden/golden.py"


def test_every_kept_profile_has_its_case() -> None:
    assert {p.stem for p in golden.PROFILES.glob("*.json")} == set(golden.CASES)
