"""`tilesight db plans`: the plans that ship with TileSight, as a list, or one of them as a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import InputError
from ...files import check_out, replacing
from .. import options, output

NONE = "no plan of this kernel, target and shape ships with this TileSight; `tilesight plan` makes one"

if TYPE_CHECKING:
    from ...database.shipped_plans import PlanArchive, ShippedPlan


@click.command()
@click.argument("kernel", required=False)
@click.option("--target", metavar="T", help="Only this target.")
@click.option("--shape", metavar="S", help="Only plans with these fixed dimensions, e.g. n=4096,k=4096.")
@click.option("--out", metavar="FILE", help="Write the dispatch table of the only plan to this .json file.")
@options.with_options(options.as_json, options.debug)
def plans(kernel: str | None, target: str | None, shape: str | None, out: str | None, as_json: bool) -> None:
    """Show the plans that ship with TileSight, of KERNEL or of all.

    --out writes one of them as a dispatch table, for `tilesight export` and for programs.
    """
    from ...problem.assignments import parse_assignments
    from ...target.spec import load_target
    from ...tuner.resolve import find_operator

    if out is not None:
        check_out(Path(out), ".json", "dispatch tables")
    if kernel is not None:
        find_operator(kernel)
    if target is not None:
        load_target(target)
    wanted = parse_assignments(shape, "--shape") if shape else {}
    archive = _archive()
    found = [plan for plan in archive.plans if _is_wanted(plan, kernel, target, wanted)] if archive else []
    if out is not None:
        if not found:
            raise InputError(f"{NONE}, so there is nothing to write to '{out}'")
        if len(found) > 1 or archive is None:
            raise InputError(
                f"{len(found)} plans match, and --out writes one: name its kernel, --target and --shape"
            )
        with replacing(Path(out), f"dispatch table '{out}' cannot be written") as partial:
            partial.write_text(archive.text(found[0]), encoding="utf-8")
    if as_json:
        output.print_json("db_plans", plans=[asdict(plan) for plan in found], out=out)
        return
    if not found:
        output.print_text(NONE)
        return
    columns = ["kernel", "target", "shape", "range", "kernels", "measured", "used by"]
    output.print_table(columns, [_row(plan) for plan in found], right=["kernels"], folded=["used by"])
    if out is not None:
        output.print_line(f"table: {out}")


def _archive() -> PlanArchive | None:
    """What the release has, also where the settings leave it out."""
    from ...database.shipped import shipped_file
    from ...database.shipped_plans import PLANS, PlanArchive

    path = shipped_file(PLANS)
    return PlanArchive(path) if path else None


def _is_wanted(plan: ShippedPlan, kernel: str | None, target: str | None, wanted: dict[str, str]) -> bool:
    parts = _parts(plan)
    if kernel not in (None, plan.operator) or target not in (None, plan.target):
        return False
    return all(parts.get(name) == value for name, value in wanted.items())


def _parts(plan: ShippedPlan) -> dict[str, str]:
    """Its fixed dimensions and attributes, with the layout of its operands also where that is the default."""
    from ...kernels import operator, operators

    defaults = operator(plan.operator).attrs if plan.operator in operators() else {}
    layout = {name: value for name, value in defaults.items() if name == "layout"}
    return {name: str(value) for name, value in {**plan.fixed, **layout, **plan.attrs}.items()}


def _row(plan: ShippedPlan) -> list[Any]:
    shape = [f"{name}={value}" for name, value in _parts(plan).items()]
    span = f"{plan.vary}={plan.first}..{plan.last}"
    used_by = "; ".join(plan.used_by) or "-"
    shown = [plan.operator, plan.target, " ".join([*shape, plan.dtype]), span]
    return [*shown, plan.kernels, f"{plan.made} {plan.device}", used_by]
