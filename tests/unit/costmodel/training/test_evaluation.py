from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.costmodel.measured_samples import FAST, OPERATORS, dataset, rows
from tilesight.costmodel.training import evaluation, yardsticks
from tilesight.costmodel.training import train as training
from tilesight.costmodel.training.card import facts
from tilesight.costmodel.training.evaluation import evaluate, folds
from tilesight.costmodel.training.fit_constants import ROUGH
from tilesight.costmodel.training.measured import MeasuredRow, measured_rows
from tilesight.errors import InputError
from tilesight.records.dataset import Dataset
from tilesight.target.spec import load_target


@pytest.fixture(scope="module")
def made() -> list[MeasuredRow]:
    return rows()


@pytest.mark.parametrize("split", ["shape", "operator", "dtype"])
def test_held_out_groups_are_whole_and_each_row_is_held_out_once(made: list[MeasuredRow], split: str) -> None:
    held = list(folds(made, split, most=5))
    assert (np.sum(held, axis=0) == 1).all()
    for test in held:
        inside = {row.group(split) for row, out in zip(made, test, strict=True) if out}
        outside = {row.group(split) for row, out in zip(made, test, strict=True) if not out}
        assert inside
        assert not inside & outside
    assert len(held) == {"shape": 5, "operator": 3, "dtype": 2}[split]


def test_all_dtypes_of_a_shape_are_held_out_together(made: list[MeasuredRow]) -> None:
    twins = [*made, *(replace(row, dtype="float32", case=row.case + "2") for row in made)]
    for test in folds(twins, "shape"):
        assert (test[: len(made)] == test[len(made) :]).all()


@pytest.mark.parametrize("split", ["shape", "operator", "dtype"])
def test_nothing_held_out_is_trained_on(
    made: list[MeasuredRow], split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks every fit of the learned model and of the yardsticks."""
    groups = {row.measured_us: row.group(split) for row in made}
    problems = {row.measured_us: row.problem for row in made}
    assert len(groups) == len(made)  # a time tells its row
    seen: list[tuple[str, set[float]]] = []

    class Watched(training.LatencyCorrection):  # type: ignore[misc]
        def fit(self, X: Any, y: Any, groups: Any = None, kinds: Any = None, offset: Any = None) -> Any:  # noqa: N803
            given = np.exp(np.asarray(y) + (0 if offset is None else offset))
            known = np.array(sorted(problems))
            seen.append(("fit", {float(known[np.abs(known / t - 1).argmin()]) for t in given}))
            return super().fit(X, y, groups=groups, kinds=kinds, offset=offset)

        def predict(self, X: Any) -> Any:  # noqa: N803
            return np.zeros(len(X))

    monkeypatch.setattr(training, "LatencyCorrection", Watched)
    monkeypatch.setattr(yardsticks, "LatencyCorrection", Watched)
    held = list(folds(made, split, most=4))

    def begun(_: str) -> None:
        seen.append(("fold", set()))

    found = evaluate(
        made, split, most_folds=4, constants=ROUGH, progress=begun, rounds=1, network_share=0.0, members=1
    )
    assert found.constants.startswith("round figures")
    fold = -1
    for what, times in seen:
        fold += what == "fold"
        out = {row.measured_us for row, test in zip(made, held[fold], strict=True) if test}
        if {groups[t] for t in times} & {groups[t] for t in out}:
            # only boosting on config values may see the held-out operator or dtype, and never the shape that
            # it predicts
            assert split == "operator"
            assert len({problems[t] for t in times}) == 3
        else:
            assert not times & out
    assert fold == len(held) - 1


def test_learns_what_the_analytical_model_misses(made: list[MeasuredRow]) -> None:
    found = evaluate(made, "shape", most_folds=4, **FAST)
    analytical, both = found.summary("analytical"), found.summary("both")
    assert both.mape is not None
    assert analytical.mape is not None
    assert both.mape < 0.3 * analytical.mape
    assert both.top1 >= analytical.top1
    assert {"analytical", "both", "learned alone", "config boosting", "random"} == set(found.models)
    assert found.summary("random").mape is None
    assert found.summary("random").spearman == 0
    assert found.constants.startswith("may have been fitted")
    assert 0.4 < found.coverage[0].one_sigma < 0.95
    text = json.dumps(found.plain(), allow_nan=False)
    assert len(json.loads(text)["cases"]) == 5 * len({row.case for row in made})


def test_objectives_are_compared_side_by_side(made: list[MeasuredRow]) -> None:
    some = [row for row in made if row.operator != OPERATORS[0]]
    found = evaluate(some, "operator", objectives=["regression", "ranking"], yardsticks=False, **FAST)
    assert found.models == ["analytical", "both, regression", "both, ranking", "random"]
    assert [c.model for c in found.coverage] == ["both, regression", "both, ranking"]


def test_an_order_learned_from_counts_alone_is_no_time(made: list[MeasuredRow]) -> None:
    some = [row for row in made if row.operator != OPERATORS[0]]
    found = evaluate(some, "operator", objectives=["ranking"], **FAST)
    assert found.summary(evaluation.ALONE).mape is None
    assert found.summary(evaluation.CONFIGS).mape is None
    assert found.summary(evaluation.BOTH).mape is not None


def test_a_refused_candidate_that_ran_ranks_last_and_is_counted(made: list[MeasuredRow]) -> None:
    some = [row for row in made if row.operator == OPERATORS[0]]
    fastest = min(some, key=lambda r: (r.case, r.measured_us))
    too_large = replace(fastest.kernels[0], shared_bytes=10**6)
    some = [replace(row, kernels=(too_large,)) if row is fastest else row for row in some]
    found = evaluate(some, "shape", yardsticks=False, **FAST)
    assert found.refused == 1
    assert min(c.scores.top1 for c in found.of("analytical") if c.case == fastest.case) < 1


def test_cases_with_few_rows_are_counted_and_not_scored(made: list[MeasuredRow]) -> None:
    some = [row for row in made if row.operator == OPERATORS[0]]
    few = some[-1].case
    some = [
        row
        for number, row in enumerate(some)
        if row.case != few or number >= len(some) - (evaluation.FEWEST_ROWS - 1)
    ]
    found = evaluate(some, "shape", yardsticks=False, **FAST)
    assert found.unjudged == found.plain()["unjudged"] == 1
    assert few not in {c.case for c in found.cases}
    assert found.rows == len(some)


def test_no_training_rows_are_an_error(made: list[MeasuredRow]) -> None:
    one = [row for row in made if row.operator == OPERATORS[0]]
    with pytest.raises(InputError, match=r"one operator only .*take another --split"):
        evaluate(one, "operator")
    with pytest.raises(InputError, match="split 'colour' is unknown; use one of shape, operator, dtype"):
        list(folds(made, "colour"))


def test_rows_without_a_time_are_left_out() -> None:
    whole = dataset(OPERATORS[:1], 1)
    frame = whole.frame.copy()
    frame.loc[0, "profile"] = None
    assert len(measured_rows(Dataset(frame, whole.metadata))) == len(frame) - 1
    with pytest.raises(InputError, match="no verified row"):
        measured_rows(whole.where(whole.frame["shape"] == "none"))


def test_config_boosting_needs_another_shape_of_the_operator(made: list[MeasuredRow]) -> None:
    some = [row for row in made if row.operator == OPERATORS[0] and row.shape == "N0"] + [
        r for r in made if r.operator == OPERATORS[1]
    ]
    found = evaluate(some, "operator", **FAST)
    assert {c.operator for c in found.of(evaluation.CONFIGS)} == {OPERATORS[1]}


def test_each_target_has_scores_of_its_own(made: list[MeasuredRow]) -> None:
    h100 = load_target("h100")
    # on the second target, times have nothing to do with the predictions
    disorder = [
        replace(
            row, target=h100, case=f"{row.case} again", measured_us=row.measured_us * (1 + 7 * number % 5)
        )
        for number, row in enumerate(made)
    ]
    found = evaluate([*made, *disorder], "shape", yardsticks=False, most_folds=2, **FAST)
    assert found.targets == ["h100", "h200"]
    ours, theirs = (found.summary("both", target=target) for target in ("h200", "h100"))
    assert ours.cases == theirs.cases == 12
    assert found.summary("both").cases == 24
    assert ours.top1 > theirs.top1
    assert ours.mape is not None
    assert theirs.mape is not None
    assert ours.mape < theirs.mape
    assert [c.target for c in found.coverage] == [None, "h100", "h200"]
    plain = found.plain()
    assert {(one["target"], one["model"]) for one in plain["targets"]} >= {("h100", "both"), ("h200", "both")}
    assert [one["target"] for one in plain["coverage"]] == [None, "h100", "h200"]
    entry = facts(dataset(), made, "analytical", [found])["held_out"][0]
    assert entry["targets"]["h100"]["models"]["both"]["mape"] == theirs.mape
    assert entry["models"]["both"]["cases"] == 24
    assert 0 < entry["targets"]["h200"]["coverage"]["one_sigma"] <= 1
