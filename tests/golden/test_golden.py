from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilesight.costmodel import analytical

from . import golden

ANEW = "write them anew: python tests/golden/golden.py"
KEPT = golden.kept_predictions()


@pytest.mark.parametrize("case", golden.CASES)
def test_profile_is_what_it_was(case: str) -> None:
    kept = (golden.PROFILES / f"{case}.json").read_text(encoding="utf-8")
    assert golden.current(case)[0] == kept, f"where this is intended, {ANEW}"


@pytest.mark.parametrize("case", golden.CASES)
def test_predictions_move_only_with_the_version(case: str) -> None:
    now = golden.predictions(case)
    assert not golden.moved(KEPT[case], now), (
        "predictions moved under the same version, and stored ones would go on to hold: raise CODE_VERSION in costmodel/analytical.py "
        f"(and train the learned model for it); then {ANEW}"
    )
    assert not golden.outdated(KEPT[case], now), f"the golden predictions are those of another version or target: {ANEW}"


def test_every_kept_file_has_its_case() -> None:
    assert {p.stem for p in golden.PROFILES.glob("*.json")} == set(KEPT) == set(golden.CASES)


def test_a_changed_rule_is_seen_and_a_raised_version_is_not_held_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = "matmul-M0-h200"
    before = golden.predictions(case)
    monkeypatch.setattr(analytical, "p_norm", lambda values, _norm: 1.001 * max(values))
    after = golden.predictions(case)
    assert len(golden.moved(before, after)) == 3
    assert not golden.outdated(before, after)
    monkeypatch.setattr(analytical, "CODE_VERSION", analytical.CODE_VERSION + 1)
    raised = golden.predictions(case)
    assert golden.moved(before, raised) == []
    assert golden.outdated(before, raised)


def test_the_command_refuses_what_moved_under_the_same_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = "matmul-S512-cpu"
    monkeypatch.setattr(golden, "CASES", {case: golden.CASES[case]})
    monkeypatch.setattr(golden, "PROFILES", tmp_path)
    monkeypatch.setattr(golden, "PREDICTIONS", tmp_path / "predictions.json")
    assert golden.main() == golden.main() == 0
    kept: dict[str, Any] = golden.kept_predictions()
    kept[case]["analytical"]["latency_us"] *= 1.01
    golden.PREDICTIONS.write_text(json.dumps(kept))
    assert golden.main() == 1
    assert "raise CODE_VERSION" in capsys.readouterr().err
    assert golden.kept_predictions() == kept
