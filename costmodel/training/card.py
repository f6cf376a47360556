"""The card of a learned model: its training data, and its errors on held-out data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...records.dataset import Dataset
from .evaluation import FEWEST_ROWS, Evaluation
from .fold import ANALYTICAL, BOTH
from .measured import MeasuredRow

OUTSIDE_FIGURES = (
    "kernels",
    "cases",
    "mean_abs_log_error",
    "median_abs_log_error",
    "within_1.25x",
    "within_2x",
    "within_one_sigma",
    "within_two_sigma",
    "top1_geo",
    "top1_worst",
)


def facts(
    dataset: Dataset, rows: Sequence[MeasuredRow], analytical_version: str, held_out: Sequence[Evaluation]
) -> dict[str, Any]:
    """Facts on a model that its files do not contain: software, training data and results on held-out data.

    Args:
        dataset: the dataset of the training rows.
        rows: the training rows.
        analytical_version: version of the corrected analytical model.
        held_out: one evaluation for each split.
    """
    return {
        "analytical": analytical_version,
        "software": {
            name: version(name)
            for name in ("tilesight", "xgboost-cpu", "scikit-learn", "torch", "numpy")
            if _installed(name)
        },
        "data": data_facts(dataset, rows),
        "held_out": [
            {
                "split": e.split,
                "folds": e.folds,
                "constants": e.constants,
                "unjudged": e.unjudged,
                **_scores(e, None),
                "targets": {c.target: _scores(e, c.target) for c in e.coverage if c.target is not None},
            }
            for e in held_out
        ],
    }


def _scores(found: Evaluation, target: str | None) -> dict[str, Any]:
    """Scores over all targets, or of one."""
    summaries = {m: asdict(found.summary(m, target=target)) for m in (ANALYTICAL, BOTH)}
    covered = next(c for c in found.coverage if c.target == target)
    return {
        "models": {m: {k: v for k, v in s.items() if k != "model"} for m, s in summaries.items()},
        "coverage": {"one_sigma": covered.one_sigma, "two_sigma": covered.two_sigma},
    }


def data_facts(dataset: Dataset, rows: Sequence[MeasuredRow]) -> dict[str, Any]:
    """Facts on the training data: counts, targets, devices, runs and dates."""
    cases = {row.case: row for row in rows}
    runs = [dict(run) for run in dataset.runs.values() if isinstance(run, Mapping)]
    devices = sorted(
        {
            str(env["device"])
            for run in runs
            if isinstance(env := run.get("environment"), Mapping) and "device" in env
        }
    )
    return {
        "rows": len(rows),
        "cases": len(cases),
        "operators": {
            operator: {"cases": sum(c.operator == operator for c in cases.values()), "rows": count}
            for operator, count in sorted(Counter(row.operator for row in rows).items())
        },
        "dtypes": sorted({row.dtype for row in rows}),
        "targets": sorted({row.target.name for row in rows}),
        "archs": sorted({row.target.arch for row in rows}),
        "devices": devices,
        "runs": sorted(_training_runs(dataset, rows)),
        "dates": sorted({str(run["date"]) for run in runs if "date" in run}),
    }


def _training_runs(dataset: Dataset, rows: Sequence[MeasuredRow]) -> set[str]:
    """Ids of the runs that measured `rows`."""
    frame = dataset.verified().frame
    return set(frame["run"][frame["target"].isin({row.target.name for row in rows})])


def with_outside(card: Mapping[str, Any], device: str, figures: Mapping[str, float]) -> dict[str, Any]:
    """The card with the errors on kernels that others wrote, beside those of other devices.

    Args:
        card: the card of a model that saw none of these kernels.
        device: the device that measured them.
        figures: `OUTSIDE_FIGURES`, as experiments/outside/evaluate.py computes them; no top-1 if none has
            three configs.
    """
    own = {name: figures[name] for name in OUTSIDE_FIGURES if name in figures}
    return {**card, "outside": {**card.get("outside", {}), device: own}}


def text(card: Mapping[str, Any]) -> str:
    """The card as Markdown: unseen operators and kernels of others before unseen shapes."""
    data, share = card["data"], _order_share(card)
    outside = card.get("outside", {})
    lines = [
        "# The learned cost model",
        "",
        f"Corrects `{card['analytical']}`: predicts log(measured / analytical) "
        f"from {len(card['features'])} dimensionless features of a "
        f"kernel's profile. Boosted trees (XGBoost){_networks_text(card)}, "
        f"objective {card['parameters']['objective']}; "
        f"{card['members']} members, each trained without its share of the cases"
        + (
            f"; classification of the best of a case adds {share:.0%} of what it says of the order."
            if share
            else "."
        ),
        *_carried_over(card),
        "",
        "## Data",
        f"{data['rows']} verified candidates in {data['cases']} cases, "
        f"measured on {', '.join(data['devices'] or data['targets'])}; "
        f"dtypes {', '.join(data['dtypes'])}.",
        "",
        "| operator | cases | rows |",
        "|---|---|---|",
        *(f"| {name} | {of['cases']} | {of['rows']} |" for name, of in data["operators"].items()),
        "",
        *(_outside_lines(outside) if outside else ()),
        "## Held out",
        "Whole groups are left out of training, then predicted. "
        "Shares of the best measured time, geometric mean over cases (worst case).",
        "",
        "| split | target | model | cases | top-1 | top-8 | MAPE | within one, two sigma |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry in sorted(card["held_out"], key=lambda entry: entry["split"] != "operator"):
        for target, found in {"all": entry, **entry.get("targets", {})}.items():
            for name, of in found["models"].items():
                shares = (found["coverage"][sigmas] for sigmas in ("one_sigma", "two_sigma"))
                lines.append(
                    f"| {entry['split']} | {target} | {name} | {of['cases']} "
                    f"| {of['top1']:.3f} ({of['top1_worst']:.2f}) "
                    f"| {of['top8']:.4f} ({of['top8_worst']:.2f}) | {of['mape']:.1%} "
                    f"| {', '.join(f'{share:.0%}' for share in shares) if name == BOTH else ''} |"
                )
    lines += [
        "",
        *sorted(
            {
                f"Constants of the analytical model, {entry['split']}: {entry['constants']}."
                for entry in card["held_out"]
            }
        ),
        "",
        *(
            f"Cases with fewer than {FEWEST_ROWS} candidates, "
            f"which are not judged in the split by {entry['split']}: {entry['unjudged']}."
            for entry in card["held_out"]
            if entry.get("unjudged")
        ),
        "",
        "## Use",
        f"For kernels of {', '.join(data['archs'])} and this version of the analytical model only; "
        "elsewhere the analytical model "
        "answers alone. Corrections of the time fade with the distance from the training data. Versions: "
        + ", ".join(f"{name} {number}" for name, number in card["software"].items())
        + ".",
        "",
    ]
    return "\n".join(lines)


def _carried_over(card: Mapping[str, Any]) -> list[str]:
    """That the learned part was kept for another analytical version, if it was."""
    if "trained_with" not in card:
        return []
    return [
        "",
        f"It was trained and judged with `{card['trained_with']}`, which gives all training rows the same "
        "times. Other kernels may be predicted otherwise.",
    ]


def _outside_lines(outside: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [
        "## Kernels that others wrote",
        "Public kernels, none of them in the training data; nobody looked at them while this model was made. "
        "Errors are |log(predicted / measured)|; top-1 as below, of kernels with three configs or more.",
        "",
        "| device | kernels | candidates | mean | median | within 1.25x | within 2x | within one, two sigma "
        "| top-1 |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {device} | {of['kernels']} | {of['cases']} | {of['mean_abs_log_error']:.3f} "
            f"| {of['median_abs_log_error']:.3f} | {of['within_1.25x']:.0%} | {of['within_2x']:.0%} "
            f"| {of['within_one_sigma']:.0%}, {of['within_two_sigma']:.0%} "
            + (f"| {of['top1_geo']:.3f} ({of['top1_worst']:.2f}) |" if "top1_geo" in of else "| |")
            for device, of in outside.items()
        ),
        "",
    ]


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _networks_text(card: Mapping[str, Any]) -> str:
    if not card["networks"]:
        return ""
    return f" and neural networks (PyTorch, {card['parameters']['network_share']:.0%} of the weight)"


def _order_share(card: Mapping[str, Any]) -> float:
    return (
        float(card["parameters"]["order_share"])
        if any(name.startswith("order-") for name in card["trees"])
        else 0.0
    )
