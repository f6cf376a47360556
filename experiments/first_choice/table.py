"""Tables of one run of measure.py, as Markdown.

    python experiments/first_choice/table.py rows.csv experiments/first_choice/choices-h200.json

A tool's time of a shape is the fastest of its forms, which favours Helion: it has two of causal attention,
and does not choose between them. The vendor's time is that of the fastest library of the shape, which favours
the vendor. A ratio above 1 says that the tool's kernel is slower. Means are geometric and over the shapes
where both were measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from shapes import SHAPES
from stand_in import CARDS, COMPARED

OURS, VENDOR = "tilesight", "vendor"
TOOLS = (OURS, "nvMatmulHeuristics", "roller", "Helion", "torch.compile")
GROUPS: Mapping[str, Callable[[str, Sequence[str]], bool]] = {
    "matmul, published shapes": lambda shape, _: shape[0] == "M",
    "matmul, few rows or odd": lambda shape, _: shape[0] in "DO",
    "attention": lambda shape, _: shape[:2] == "FA",
    "rms_norm": lambda shape, _: shape[0] == "R",
    "all in the datasets": lambda shape, seen: shape in seen,
    "all others": lambda shape, seen: shape not in seen,
}
Row = dict[str, str]


@dataclass(frozen=True)
class Run:
    """Rows by shape and tool; of several forms or libraries the fastest. `failed` has the others."""

    best: Mapping[str, Mapping[str, Row]]
    failed: Sequence[Row]
    seen: Sequence[str]

    @property
    def shapes(self) -> list[str]:
        return [shape for shapes in SHAPES.values() for shape, _ in shapes if shape in self.best]

    def groups(self) -> Iterator[tuple[str, list[str]]]:
        for group, belongs in GROUPS.items():
            yield group, [shape for shape in self.shapes if belongs(shape, self.seen)]

    def time(self, shape: str, tool: str) -> float | None:
        row = self.best[shape].get(tool)
        return float(row["median_us"]) if row else None


def read(path: Path, seen: Sequence[str]) -> Run:
    best: dict[str, dict[str, Row]] = defaultdict(dict)
    failed = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            own = best[row["shape"]]
            if row["status"] != "measured":
                failed.append(row)
                continue
            tool = row["tool"] if row["tool"] in TOOLS else VENDOR
            if tool not in own or float(row["median_us"]) < float(own[tool]["median_us"]):
                own[tool] = row
    return Run(best, failed, seen)


def ratios(run: Run, shapes: Iterable[str], tool: str, base: str) -> dict[str, float]:
    """Time of `tool` over that of `base`, by shape."""
    found = {}
    for shape in shapes:
        one, other = run.time(shape, tool), run.time(shape, base)
        if one is not None and other is not None:
            found[shape] = one / other
    return found


def summary(run: Run) -> list[list[str]]:
    lines = []
    for group, shapes in run.groups():
        for tool in (*TOOLS, VENDOR):
            to_ours, to_vendor = ratios(run, shapes, tool, OURS), ratios(run, shapes, tool, VENDOR)
            count = sum(run.time(shape, tool) is not None for shape in shapes)
            if count:
                line = [group, tool, f"{count} of {len(shapes)}", mean(to_ours), worst(to_ours)]
                lines.append([*line, mean(to_vendor), worst(to_vendor)])
    return lines


def errors(run: Run) -> list[list[str]]:
    """Errors of predicted times, |predicted / measured - 1|."""
    lines = []
    for group, shapes in run.groups():
        for tool, base in ((OURS, OURS), (TOOLS[1], TOOLS[1]), (TOOLS[1], VENDOR)):
            found = {}
            for shape in shapes:
                row, time = run.best[shape].get(tool), run.time(shape, base)
                if row and row["predicted_us"] and time is not None:
                    found[shape] = float(row["predicted_us"]) / time - 1
            if found:
                sizes = [abs(error) for error in found.values()]
                far = max(found, key=lambda shape: abs(found[shape]))
                what = "its own kernel" if tool == base == OURS else "its tile in our kernel"
                line = [group, tool, what if tool == base else "cuBLAS", str(len(found))]
                figures = [f"{sum(sizes) / len(sizes):.1%}", f"{median(sizes):.1%}"]
                lines.append([*line, *figures, f"{found[far]:+.1%} ({far})"])
    return lines


def times(run: Run) -> list[list[str]]:
    lines = []
    for shape in run.shapes:
        line = [shape]
        for tool in TOOLS:
            time = run.time(shape, tool)
            line.append("" if time is None else f"{time:.1f}")
        vendor = run.best[shape].get(VENDOR)
        lines.append([*line, f"{float(vendor['median_us']):.1f} ({vendor['tool']})" if vendor else ""])
    return lines


def expressed(choices: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """How much of the tools' choices the project's template can express."""
    lines = []
    for tool in TOOLS[1:3]:
        mine = [choice for choice in choices if choice["tool"] == tool]
        chosen = [choice for choice in mine if choice["config"]]
        whole = [choice for choice in chosen if not choice["changed"] and not choice["dropped"]]
        sizes = [choice for choice in chosen if not choice["changed"]]
        lines.append([tool, *map(str, (len(mine), len(chosen), len(whole), len(sizes) - len(whole)))])
        lines[-1].append(str(len(chosen) - len(sizes)))
    return lines


def mean(found: Mapping[str, float]) -> str:
    if not found:
        return ""
    return f"{math.exp(sum(map(math.log, found.values())) / len(found)):.3f}"


def worst(found: Mapping[str, float]) -> str:
    if not found:
        return ""
    shape = max(found, key=lambda one: found[one])
    return f"{found[shape]:.2f} ({shape})"


def show(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    for line in (head, ["---"] * len(head), *lines):
        print("| " + " | ".join(line) + " |")
    print()


def main(given: argparse.Namespace) -> None:
    content = json.loads(given.choices.read_text())
    run = read(given.rows, content["in_datasets"])
    to_ours, to_vendor = ("time over ours, mean", "worst"), ("time over the vendor's, mean", "worst")
    show(("shapes", "tool", "measured", *to_ours, *to_vendor), summary(run))
    show(("shapes", "tool", "estimate of", "n", "mean error", "median", "largest"), errors(run))
    show(("shape", *(f"{tool}, us" for tool in TOOLS), "vendor, us"), times(run))
    head = ("tool", "shapes", "with a choice", "expressed wholly", "parts dropped", "sizes changed")
    show(head, expressed(content["choices"]))
    same, of = same_helion(run, content["choices"])
    print(f"Helion's configs on the card equal those of choose.py for {same} of {of} shapes.\n")
    card_path = given.rows.with_name(f"{given.rows.stem}-card.json")
    if card_path.exists():
        card, assumed = json.loads(card_path.read_text()), CARDS[content["target"]]
        unlike = [name for name in COMPARED if card[name] != getattr(assumed, name)]
        print(f"Card: {card['name']}; figures unlike the stand-in's: {', '.join(unlike) or 'none'}.\n")
    show(
        ("shape", "tool", "status", "reason"),
        [[r["shape"], f"{r['tool']} {r['form']}", r["status"], r["failure"][:110]] for r in run.failed],
    )


def same_helion(run: Run, choices: Sequence[Mapping[str, object]]) -> tuple[int, int]:
    """(shapes whose config on the card is the one chosen beforehand, shapes)."""
    beforehand = {(c["shape"], c["form"]): c["own"] for c in choices if c["tool"] == "Helion"}
    same = of = 0
    for shape in run.shapes:
        row = run.best[shape].get("Helion")
        if row is None:
            continue
        expected = beforehand.get((shape, row["form"]), {})
        assert isinstance(expected, dict)
        own = json.loads(row["own"])
        of += 1
        same += all(
            own.get(name) == expected.get(name) for name in ("block_sizes", "num_warps", "num_stages")
        )
    return same, of


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tables of one run of measure.py.")
    parser.add_argument("rows", type=Path)
    parser.add_argument("choices", type=Path)
    main(parser.parse_args())
