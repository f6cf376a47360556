"""The page of a learned model's card: its errors on held-out data, its sigma, its training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InputError
from ..reports.numbers import number
from .values import Axis, Bar, BarChart, Facts, Page, PageColumn, PageFigure, PageTable, Source, Texts

HELD_OUT, DATA, FEATURES = "held_out", "data", "features"
EXPECTED = {"one_sigma": 68.3, "two_sigma": 95.4}  # per cent of a normal distribution


def card_page(card: Mapping[str, Any]) -> Page:
    """The page of a card. Raises `InputError` if the card lacks what it needs."""
    try:
        tables = {HELD_OUT: _held_out(card), DATA: _data(card), FEATURES: _features(card)}
        parts: list[PageFigure | Facts | Texts] = [_summary(card), *_figures(), _software(card)]
        title = f"Learned cost model {card['version']}"
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"the model's card cannot be shown: {error} is missing or of a wrong kind"
        ) from error
    if not len(tables[HELD_OUT]):
        parts = [part for part in parts if not (isinstance(part, PageFigure) and part.table == HELD_OUT)]
        parts.insert(1, Texts("What to know first", ["The card has no held-out errors."], is_warning=True))
    return Page(title, f"Corrects {card['analytical']}", parts, tables)


def _summary(card: Mapping[str, Any]) -> Facts:
    data = card["data"]
    return Facts(
        "Model",
        [
            ("training data", f"{data['rows']} verified candidates of {data['cases']} cases"),
            ("devices", ", ".join(data["devices"] or data["targets"])),
            ("instruction sets", ", ".join(data["archs"])),
            ("element types", ", ".join(data["dtypes"])),
            ("features", str(len(card["features"]))),
            ("members", str(card["members"])),
        ],
    )


def _held_out(card: Mapping[str, Any]) -> PageTable:
    """One row for each split and target."""
    rows: list[dict[str, Any]] = []
    for entry in card["held_out"]:
        for target, found in {"all targets": entry, **entry.get("targets", {})}.items():
            models, covered = found["models"], found["coverage"]
            rows.append(
                {
                    "name": f"by {entry['split']}, {target}",
                    "cases": models["both"]["cases"],
                    **{f"{m}_mape": 100 * models[m]["mape"] for m in ("analytical", "both")},
                    **{f"{m}_top1": 100 * models[m]["top1"] for m in ("analytical", "both")},
                    "worst": 100 * models["both"]["top1_worst"],
                    **{name: 100 * covered[name] for name in EXPECTED},
                    **{f"{name}_expected": expected for name, expected in EXPECTED.items()},
                }
            )
    titles = {
        "name": ("held out", "", Source.PLAIN),
        "cases": ("cases", "", Source.PLAIN),
        "analytical_mape": ("mean error, analytical model alone", "%", Source.PLAIN),
        "both_mape": ("mean error, with the learned correction", "%", Source.PREDICTED),
        "analytical_top1": ("first choice, analytical model alone", "%", Source.PLAIN),
        "both_top1": ("first choice, with the learned correction", "%", Source.PREDICTED),
        "worst": ("first choice in the worst case", "%", Source.PREDICTED),
        "one_sigma": ("within one sigma", "%", Source.PREDICTED),
        "two_sigma": ("within two sigma", "%", Source.PREDICTED),
        "one_sigma_expected": ("expected within one sigma", "%", Source.LIMIT),
        "two_sigma_expected": ("expected within two sigma", "%", Source.LIMIT),
    }
    columns = {
        key: PageColumn(title, [row[key] for row in rows], unit, source)
        for key, (title, unit, source) in titles.items()
    }
    return PageTable("held-out results", columns)


def _data(card: Mapping[str, Any]) -> PageTable:
    operators = card["data"]["operators"]
    return PageTable(
        "operators",
        {
            "operator": PageColumn("operator", list(operators)),
            "cases": PageColumn("cases", [of["cases"] for of in operators.values()]),
            "rows": PageColumn("candidates", [of["rows"] for of in operators.values()]),
        },
    )


def _features(card: Mapping[str, Any]) -> PageTable:
    found = sorted(card.get("importances", {}).items(), key=lambda item: -item[1])
    return PageTable(
        "features",
        {
            "feature": PageColumn("feature", [name for name, _ in found]),
            "share": PageColumn("importance", [100 * share for _, share in found], "%"),
        },
    )


def _figures() -> Iterator[PageFigure]:
    def compared(
        key: str, title: str, text: str, axis: str, of: str, extra: tuple[str, ...] = ()
    ) -> PageFigure:
        series = (
            Bar("analytical model alone", Source.PLAIN, f"analytical_{of}"),
            Bar("with the learned correction", Source.PREDICTED, f"both_{of}"),
        )
        columns = ("name", "cases", f"analytical_{of}", f"both_{of}", *extra)
        return PageFigure(
            key, title, text, HELD_OUT, {"": BarChart(Axis(axis, "%"), "name", series)}, columns
        )

    yield compared(
        "errors",
        "Errors on held-out data",
        "Mean absolute error of the predicted time as a share of the measured time, on groups of cases that "
        "were left out of training: whole operators, or whole shapes.",
        "mean absolute error",
        "mape",
    )
    yield compared(
        "choices",
        "The first choice",
        "Best measured time over the measured time of the candidate that is predicted to be fastest: "
        "geometric mean over the cases. 100 % is the best candidate.",
        "speed of the first choice",
        "top1",
        ("worst",),
    )
    covered = {
        f"{word} sigma": BarChart(
            Axis(f"candidates within {word} sigma", "%"),
            "name",
            (
                Bar("expected", Source.LIMIT, f"{word}_sigma_expected"),
                Bar("of held-out candidates", Source.PREDICTED, f"{word}_sigma"),
            ),
        )
        for word in ("one", "two")
    }
    yield PageFigure(
        "sigma",
        "Calibration of sigma",
        "The share of held-out candidates whose measured time lies within one or two sigma of the "
        "prediction. More than expected: sigma is too wide. Less: it is too narrow.",
        HELD_OUT,
        covered,
        ("name", "cases", "one_sigma", "one_sigma_expected", "two_sigma", "two_sigma_expected"),
        choice="within",
    )
    yield PageFigure(
        "data",
        "Training data by operator",
        "Verified candidates, by operator. Predictions for operators that are unlike all of these are less "
        "sure.",
        DATA,
        {
            name: BarChart(Axis(name), "operator", (Bar(name, Source.PLAIN, key),))
            for name, key in (("candidates", "rows"), ("cases", "cases"))
        },
        ("operator", "cases", "rows"),
        choice="count",
    )
    yield PageFigure(
        "importances",
        "What the correction looks at",
        "Importance of each feature of a kernel's profile in the trees.",
        FEATURES,
        {"": BarChart(Axis("importance", "%"), "feature", (Bar("importance", Source.PLAIN, "share"),))},
        ("feature", "share"),
    )


def _software(card: Mapping[str, Any]) -> Facts:
    constants = [
        (f"constants of the analytical model, by {entry['split']}", str(entry["constants"]))
        for entry in card["held_out"]
    ]
    parameters = ", ".join(
        f"{k}={number(v) if isinstance(v, float) else v}" for k, v in card["parameters"].items()
    )
    return Facts("How it was made", [*constants, ("parameters", parameters), *card["software"].items()])
