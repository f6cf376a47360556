"""The hybrid model, its files, and the default model."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilesight.costmodel.learned.model_file as model_file
from tests.unit.costmodel.measured_samples import FAST as TREES
from tests.unit.costmodel.measured_samples import H200, dataset, hidden_factor, kernel
from tilesight.costmodel import default_model
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.learned.estimator import LatencyCorrection
from tilesight.costmodel.learned.features import NAMES, feature_matrix
from tilesight.costmodel.learned.hybrid import CORRECTION, MOST_SIGMA, HybridModel, NotedModel
from tilesight.costmodel.model import was_trained_on
from tilesight.costmodel.training.card import OUTSIDE_FIGURES, facts, text, with_outside
from tilesight.costmodel.training.evaluation import evaluate
from tilesight.costmodel.training.measured import measured_rows
from tilesight.costmodel.training.train import describe, train_correction
from tilesight.errors import InputError
from tilesight.records.dataset import Dataset
from tilesight.records.trial import ORDER_TERM, Prediction
from tilesight.target.spec import load_target

FAST = {**TREES, "network_share": 0.2, "epochs": 4}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "new"
    data = dataset(shapes=2)
    rows = measured_rows(data)
    analytical = AnalyticalModel()
    estimator = train_correction(rows, describe(rows, analytical), **FAST)
    judged = [evaluate(rows, "shape", most_folds=2, yardsticks=False, **FAST)]
    model_file.save(folder, estimator, facts(data, rows, analytical.version, judged), text)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained model that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "model"))


def hybrid(folder: Path) -> HybridModel:
    return HybridModel(AnalyticalModel(), model_file.load(folder))


def test_predictions_are_corrected_and_list_the_correction(trained: Path) -> None:
    model = hybrid(trained)
    profile = kernel("summing", 1 << 20, 8, syncs=5)
    before, after = AnalyticalModel().predict([profile], H200), model.predict([profile], H200)
    truth = before.latency_us * hidden_factor(5)
    assert abs(after.latency_us / truth - 1) < 0.5 * abs(before.latency_us / truth - 1)
    assert after.terms_us[CORRECTION] == pytest.approx(after.latency_us - before.latency_us)
    assert {k: v for k, v in after.terms_us.items() if k not in (CORRECTION, ORDER_TERM)} == before.terms_us
    factor = after.latency_us / before.latency_us
    for resource, share in before.utilization.items():
        assert after.utilization[resource] == pytest.approx(min(1.0, share / factor))
    assert 0 < after.uncertainty < 0.5
    assert after.model == model.version == f"{before.model}+{model.learned.version}"


def test_many_predictions_equal_single_ones_and_misfits_are_values(trained: Path) -> None:
    model = hybrid(trained)
    profiles = [
        kernel(operator, 1 << 20, block, 2) for operator in ("copying", "multiplying") for block in (2, 8)
    ]
    unfit = kernel("copying", 1 << 20, 1024)  # a megabyte of shared memory
    found = model.predict_many([[profiles[0]], [unfit], *([p] for p in profiles[1:])], H200)
    assert isinstance(found[1], ValueError)
    assert "shared memory" in str(found[1])
    alone = [model.predict([p], H200) for p in profiles]
    together = [p for p in found if isinstance(p, Prediction)]
    assert [p.latency_us for p in together] == pytest.approx([p.latency_us for p in alone])
    with pytest.raises(ValueError, match="shared memory"):
        model.predict([unfit], H200)
    assert model.predict_many([], H200) == []


def test_files_give_the_model_back(trained: Path) -> None:
    rows = measured_rows(dataset(shapes=2))
    described = describe(rows, AnalyticalModel())
    original = train_correction(rows, described, **FAST)
    assert all(member.network for member in original.members_)
    read = model_file.load(trained).correction
    mine, theirs = original.correction_.apply(described.features), read.apply(described.features)
    for part in ("time", "sigma", "trust", "order"):
        np.testing.assert_allclose(getattr(mine, part), getattr(theirs, part), rtol=1e-3, atol=1e-4)


def test_the_card_has_data_protocol_and_errors(trained: Path) -> None:
    card = model_file.read_card(trained)
    assert card["data"]["rows"] == 144
    assert card["data"]["operators"]["copying"] == {"cases": 2, "rows": 48}
    assert card["data"]["devices"] == ["NVIDIA H200"]
    assert set(card["importances"]) == set(NAMES)
    assert math.isclose(sum(card["importances"].values()), 1, rel_tol=1e-6)
    assert card["held_out"][0]["models"]["both"]["cases"] == 6
    written = (trained / "card.md").read_text(encoding="utf-8")
    assert "| shape | all | both | 6 |" in written
    assert AnalyticalModel().version in written


def test_card_names_the_runs_that_trained_it(trained: Path, folder: Path) -> None:
    model = hybrid(trained)
    assert model_file.read_card(trained)["data"]["runs"] == ["made"]
    assert was_trained_on(model, "made")
    assert not was_trained_on(model, "another")
    assert not was_trained_on(AnalyticalModel(), "made")
    assert not was_trained_on(NotedModel(AnalyticalModel(), "alone"), "made")
    card = model_file.read_card(folder)
    del card["data"]["runs"]  # a card of before
    (folder / "card.json").write_text(json.dumps(card))
    assert not was_trained_on(hybrid(folder), "made")


def test_runs_without_a_training_row_are_not_in_the_card() -> None:
    data = dataset(("copying",), shapes=1)
    frame = data.frame.copy()
    frame.loc[0, ["run", "profile"]] = ["failed", None]
    frame.loc[1, ["run", "target"]] = ["elsewhere", "cpu"]
    runs = {**data.runs, "failed": {"date": "2026-11-21"}, "elsewhere": {"date": "2026-11-21"}}
    other = Dataset(frame, {**data.metadata, "runs": runs})
    assert facts(other, measured_rows(other), "x", [])["data"]["runs"] == ["made"]


def test_the_card_counts_cases_without_scores(trained: Path) -> None:
    card = model_file.read_card(trained)
    assert card["held_out"][0]["unjudged"] == 0
    assert "not judged" not in text(card)
    card["held_out"][0]["unjudged"] = 3
    assert "Cases with fewer than 12 candidates, which are not judged in the split by shape: 3." in text(card)


def test_the_card_shows_kernels_of_others_before_held_out_shapes(trained: Path) -> None:
    figures = dict.fromkeys(OUTSIDE_FIGURES, 0.5) | {"kernels": 121, "cases": 741, "bias": 0.1}
    card = model_file.read_card(trained)
    operators = {**card["held_out"][0], "split": "operator"}
    card["held_out"] = [*(e for e in card["held_out"] if e["split"] == "shape"), operators]
    card = with_outside(with_outside(card, "Card One", figures), "Card Two", {**figures, "kernels": 9})
    written = text(card)
    assert "bias" not in card["outside"]["Card One"]
    assert "| Card One | 121 | 741 | 0.500 | 0.500 | 50% | 50% | 50%, 50% | 0.500 (0.50) |" in written
    assert written.index("| Card Two | 9 |") < written.index("## Held out")
    assert written.rindex("| operator |") < written.rindex("| shape |")
    assert "others wrote" not in text(model_file.read_card(trained))


def test_kernels_of_another_chip_are_left_to_the_analytical_model(trained: Path) -> None:
    a100 = load_target("a100")
    profile = kernel("copying", 1 << 20, 4, arch="sm_80")
    found = hybrid(trained).predict([profile], a100)
    assert found.latency_us == AnalyticalModel().predict([profile], a100).latency_us
    assert any("sm_90a only" in note for note in found.notes)


def test_version_changes_with_the_training(trained: Path, tmp_path: Path) -> None:
    data = dataset(shapes=2)
    rows = measured_rows(data)
    estimator = train_correction(rows, describe(rows, AnalyticalModel()), **{**FAST, "rounds": 41})
    card = model_file.save(
        tmp_path / "other", estimator, facts(data, rows, AnalyticalModel().version, []), text
    )
    assert card["version"] != model_file.read_card(trained)["version"]
    estimator.spread_ = replace(estimator.spread_, level=tuple(2 * v for v in estimator.spread_.level))
    wider = model_file.save(
        tmp_path / "wider", estimator, facts(data, rows, AnalyticalModel().version, []), text
    )
    assert wider["version"] != card["version"]


def test_sigma_is_that_of_the_spread_and_is_limited(trained: Path) -> None:
    model = hybrid(trained)
    profile = kernel("summing", 1 << 20, 8, syncs=4000)  # far from all rows, and its time is that of waits
    analytical = AnalyticalModel().predict([profile], H200)
    found = model.predict([profile], H200)
    (sigma,) = model.learned.correction.apply(feature_matrix([([profile], H200, analytical)])).sigma
    assert found.uncertainty == pytest.approx(math.expm1(min(sigma, MOST_SIGMA)))
    assert found.uncertainty > 2 * model.predict([kernel("summing", 1 << 20, 8, syncs=5)], H200).uncertainty


@pytest.mark.parametrize("name", ["correction-0.ubj", "spread.ubj", "gate.json", "references.bin"])
def test_damaged_and_missing_files_are_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=rf"'{name}' is damaged .*tilesight model train"):
        model_file.load(folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"'{name}' cannot be read"):
        model_file.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "has format 99"),
        ({"feature_digest": "0"}, "other features"),
        ({"members": None}, "does not hold together"),
        ({"level": "x"}, "does not hold together"),
        ({"files": []}, "does not hold together"),
        ({"data": {}}, "does not hold together"),
    ],
)
def test_wrong_cards_are_refused(folder: Path, change: dict[str, object], message: str) -> None:
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, **change}))
    with pytest.raises(InputError, match=message):
        model_file.load(folder)


def test_a_folder_without_a_model_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no card.json: no model is there; train it anew"):
        model_file.load(tmp_path / "nowhere")
    (folder / "card.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        model_file.load(folder)
    (folder / "card.json").write_text("{}")
    with pytest.raises(InputError, match="lacks analytical"):
        model_file.load(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        model_file.save(tmp_path / "file", LatencyCorrection(), {}, text)


def test_the_default_model_uses_the_shipped_model_only_if_it_fits(
    trained: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profile = kernel("copying", 1 << 20, 4)
    monkeypatch.setattr(model_file, "shipped", lambda: folder)
    assert isinstance(default_model(), HybridModel)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "analytical": "analytical-0.old"}))
    outdated = default_model()
    assert isinstance(outdated, NotedModel)
    assert outdated.version == AnalyticalModel().version
    assert any("analytical-0.old" in note for note in outdated.predict([profile], H200).notes)
    (folder / "card.json").write_text(json.dumps(card))
    for name, content, named in (
        ("spread.ubj", "", f"{card['version']}, the learned model"),
        ("card.json", "{", "the learned model that ships"),
    ):
        (folder / name).write_text(content)
        (note,) = (note for note in default_model().predict([profile], H200).notes if "learned" in note)
        assert note.startswith(f"{named}")
        assert "`tilesight model show` says why" in note
        assert str(folder) not in note
    monkeypatch.setattr(model_file, "shipped", lambda: tmp_path / "empty")
    assert isinstance(default_model(), AnalyticalModel)
    with pytest.raises(ValueError, match="corrects"):
        HybridModel(
            AnalyticalModel(),
            model_file.LearnedModel(model_file.load(trained).correction, {**card, "analytical": "x"}),
        )
