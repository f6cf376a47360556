"""The values of the pages of dispatch tables, datasets, model cards and kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.pages.samples import card, dataset, explanation, table
from tests.unit.pages.test_session_page import facts, figures, warnings
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.errors import InputError
from tilesight.pages import predicted_rows
from tilesight.pages.card_page import card_page
from tilesight.pages.dataset_page import dataset_page
from tilesight.pages.kernel_page import explanation_page, records_page
from tilesight.pages.table_page import table_page
from tilesight.pages.values import Source
from tilesight.records.dataset import Dataset

MODEL = AnalyticalModel()


# --- dispatch tables ---


def test_a_table_shows_which_kernel_serves_which_sizes() -> None:
    page = table_page(table(), {})
    columns = page.tables["segments"].columns
    assert list(columns["size"].values) == [1, 64, 65, 1024, 1025, 8192]
    assert list(columns["kernel"].values) == [0, 0, 1, 1, 2, 2]
    assert list(columns["parameter block_m"].values) == [16, 16, 64, 64, 128, 128]
    assert facts(page, "Kernels")["kernel 1"] == str(table().kernels[1])


def test_losses_of_predictions_are_apart_from_measured_ones() -> None:
    page = table_page(table(), {})
    columns = page.tables["sizes"].columns
    assert columns["loss"].source is Source.MEASURED
    for piece, measured, predicted in zip(
        table().evidence, columns["loss"].values, columns["loss_predicted"].values, strict=True
    ):
        assert (measured is None) == (not piece.chosen_measured)
        assert (predicted is None) == piece.chosen_measured
    assert "4 of 7 sizes" in warnings(page)


def test_times_of_others_stand_beside_a_table() -> None:
    columns = table_page(table(), {16: 40.0}).tables["sizes"].columns
    assert list(columns["vendor_us"].values)[:3] == [None, 40.0, None]
    assert columns["ratio"].values[1] == pytest.approx(40.0 / table().evidence[1].chosen_us)
    assert "has no time" in figures(table_page(table(), {}))["times"].text


def test_a_table_without_evidence() -> None:
    page = table_page(replace(table(), evidence=()), {})
    assert list(figures(page)) == ["segments"]
    assert "no evidence" in warnings(page)


# --- datasets ---


def test_a_dataset_has_errors_by_operator_and_calibration() -> None:
    page = dataset_page("sample", dataset(), MODEL)
    operators = page.tables["operators"].columns
    assert list(operators["operator"].values) == ["matmul", "rms_norm"]
    # rows are measured at 0.9 to 1.08 of the prediction
    assert all(0 < float(str(v)) < 12 for v in operators["median"].values)
    assert list(operators["one"].values) == [100.0, 100.0]
    observed = [float(str(v)) for v in page.tables["sigma"].columns["observed"].values]
    assert observed == sorted(observed)
    assert observed[-1] == 100.0


def test_counters_stand_against_their_terms() -> None:
    page = dataset_page("sample", dataset(), MODEL)
    counted = page.tables["counted"].columns
    assert counted["counted l2 hit"].source is Source.MEASURED
    assert counted["predicted l2 hit"].source is Source.PREDICTED
    assert set(counted["counted l2 hit"].values) == {70.0}  # a share, shown in per cent
    assert "matrix busy" in figures(page)["counters"].charts


def test_a_dataset_without_counters_or_failures_leaves_them_out() -> None:
    whole = dataset()
    frame = whole.frame[whole.frame["status"] == "verified"].assign(counters=None)
    page = dataset_page("sample", Dataset(frame.reset_index(drop=True), whole.metadata), MODEL)
    assert not {"counters", "failures"} & figures(page).keys()


def test_failures_of_a_dataset() -> None:
    columns = dataset_page("sample", dataset(), MODEL).tables["failures"].columns
    assert list(columns["kind"].values) == ["build_error", "build_error"]
    assert sorted(map(str, columns["operator"].values)) == ["matmul", "rms_norm"]


def test_rows_of_unknown_targets_are_not_predicted() -> None:
    whole = dataset()
    frame = whole.frame.assign(target=["h200", "strange"] * (len(whole) // 2))
    page = dataset_page("sample", Dataset(frame, whole.metadata), MODEL)
    assert set(page.tables["rows"].columns["target"].values) == {"h200"}
    assert "targets that are unknown here" in warnings(page)
    nothing = dataset_page("sample", Dataset(frame.assign(target="strange"), whole.metadata), MODEL)
    assert "There is nothing to predict" in warnings(nothing)


def test_training_rows_are_named() -> None:
    class Trained(AnalyticalModel):
        def was_trained_on(self, run: str) -> bool:
            return run == "run-1"

    assert "trained on 22 of the 22 predicted rows" in warnings(dataset_page("sample", dataset(), Trained()))
    assert "trained" not in warnings(dataset_page("sample", dataset(), MODEL))


def test_rows_are_taken_in_turns_of_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_rows, "MOST_PREDICTED", 16)
    whole = dataset(40)
    chosen = predicted_rows.chosen_rows(whole).frame
    assert len(chosen) == 16
    monkeypatch.setattr(predicted_rows, "MOST_PREDICTED", 30)
    chosen = predicted_rows.chosen_rows(whole).frame
    assert chosen["counters"].notna().sum() == whole.verified().frame["counters"].notna().sum()
    assert len(chosen[["workload"]].drop_duplicates()) == len(whole.frame[["workload"]].drop_duplicates())
    assert "of 38 verified rows are predicted" in warnings(dataset_page("sample", whole, MODEL))


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(InputError, match="has no rows"):
        dataset_page("empty", Dataset.of([], {}), MODEL)


# --- cards ---


def test_the_shipped_card() -> None:
    page = card_page(card())
    assert list(figures(page)) == ["errors", "choices", "sigma", "data", "importances"]
    names = page.tables["held_out"].columns["name"].values
    assert {"by operator, all targets", "by shape, h200"} <= set(names)


def test_a_card_without_held_out_errors() -> None:
    page = card_page({**card(), "held_out": []})
    assert list(figures(page)) == ["data", "importances"]
    assert "no held-out errors" in warnings(page)


def test_a_card_that_lacks_something_is_refused() -> None:
    broken = {name: value for name, value in card().items() if name != "data"}
    with pytest.raises(InputError, match="'data' is missing"):
        card_page(broken)


# --- kernels ---


def test_an_explanation_shows_what_is_left_without_each_limit() -> None:
    found = explanation()
    page = explanation_page(found)
    left = page.tables["limits"].columns["left_us"]
    assert left.source is Source.PREDICTED
    assert all(float(str(us)) < found.this.prediction.latency_us for us in left.values)
    assert facts(page, "Result")["limiting, predicted"] == found.this.prediction.limiting
    assert all(
        each.source is not Source.MEASURED for t in page.tables.values() for each in t.columns.values()
    )


def test_a_kernel_without_records_is_refused() -> None:
    with pytest.raises(InputError, match="`tilesight tune matmul` makes some"):
        records_page("matmul", [])


def test_the_sample_dataset_can_be_written(tmp_path: Path) -> None:
    from tilesight.records.dataset import read_dataset, write_dataset

    write_dataset(tmp_path / "sample.parquet", dataset())
    assert len(read_dataset(tmp_path / "sample.parquet")) == len(dataset())
