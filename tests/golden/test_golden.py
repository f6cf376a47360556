from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden import golden
from tilesight.costmodel.analytical import analytical_model as analytical
from tilesight.costmodel.analytical import kernel_terms
from tilesight.target.spec import load_target

REWRITE = "rewrite the files: python tests/golden/golden.py"
STORED = golden.stored_predictions()


@pytest.fixture
def synchronized(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes the pass ThreadSync run twice: with the shortcut of kernels that are only read, and without it.
    The IR must be the same. A list of the scopes for which it ran.
    """
    import tilelang
    import tvm

    make, scopes = tilelang.transform.ThreadSync, []

    def both(scope: str) -> Callable[[Any], Any]:
        def synchronize(module: Any) -> Any:
            context = tvm.transform.PassContext.current()
            shortcut = list(context.instruments)
            assert shortcut
            copied = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
            context.override_instruments([])
            whole = make(scope)(copied)
            context.override_instruments(shortcut)
            short = make(scope)(module)
            tvm.ir.assert_structural_equal(short, whole, map_free_vars=True)
            assert short.script() == whole.script()
            scopes.append(scope)
            return short

        return synchronize

    monkeypatch.setattr(tilelang.transform, "ThreadSync", both)
    return scopes


@pytest.mark.parametrize("case", golden.CASES)
def test_profiles_are_unchanged_and_read_from_the_ir_that_is_compiled(
    case: str, synchronized: list[str]
) -> None:
    stored = (golden.PROFILES / f"{case}.json").read_text(encoding="utf-8")
    assert golden.current(case)[0] == stored, f"if this is intended, {REWRITE}"
    assert bool(synchronized) == load_target(golden.CASES[case][0]).is_gpu


@pytest.mark.parametrize("case", golden.CASES)
def test_predictions_change_only_with_the_version(case: str) -> None:
    now = golden.predictions(case)
    assert not golden.changed_under_same_version(STORED[case], now), (
        "predictions changed under the same version, so stored ones would be reused: raise CODE_VERSION in "
        f"costmodel/analytical/analytical_model.py (and train the learned model for it); then {REWRITE}"
    )
    assert not golden.outdated(STORED[case], now), (
        f"the golden predictions are those of another version or target: {REWRITE}"
    )


def test_every_stored_file_has_a_case() -> None:
    assert {p.stem for p in golden.PROFILES.glob("*.json")} == set(STORED) == set(golden.CASES)


def test_a_changed_rule_is_reported_only_under_the_same_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = "matmul-M0-h200"
    before = golden.predictions(case)
    monkeypatch.setattr(kernel_terms, "p_norm", lambda values, _norm: 1.001 * max(values))
    after = golden.predictions(case)
    assert len(golden.changed_under_same_version(before, after)) == 3
    assert not golden.outdated(before, after)
    monkeypatch.setattr(analytical, "CODE_VERSION", analytical.CODE_VERSION + 1)
    raised = golden.predictions(case)
    assert golden.changed_under_same_version(before, raised) == []
    assert golden.outdated(before, raised)


def test_the_command_refuses_changes_under_the_same_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = "matmul-S512-cpu"
    monkeypatch.setattr(golden, "CASES", {case: golden.CASES[case]})
    monkeypatch.setattr(golden, "PROFILES", tmp_path)
    monkeypatch.setattr(golden, "PREDICTIONS", tmp_path / "predictions.json")
    assert golden.main() == golden.main() == 0
    stored: dict[str, Any] = golden.stored_predictions()
    stored[case]["analytical"]["latency_us"] *= 1.01
    golden.PREDICTIONS.write_text(json.dumps(stored))
    assert golden.main() == 1
    assert "raise CODE_VERSION" in capsys.readouterr().err
    assert golden.stored_predictions() == stored
