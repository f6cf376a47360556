"""`tilesight collect`: measure a sample of a space and write it to a dataset."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..version import __version__
from . import options, output

if TYPE_CHECKING:
    from ..collector import Collected


@click.command()
@options.with_options(
    click.argument("kernels", nargs=-1, metavar="KERNEL..."),
    click.option("--samples", metavar="N", type=click.IntRange(min=1), help="Candidates of each workload; all where there are no more."),
    click.option("--out", metavar="FILE", help="Parquet file to write; one that is there is continued."),
    options.target,
    click.option(
        "--shape",
        "shapes",
        metavar="S",
        multiple=True,
        help="Published name (M0), k=v,..., or all; may be repeated. [default: a set of the kernel]",
    ),
    click.option("--dtype", "dtypes", metavar="D", multiple=True, help="Element type; may be repeated. [default: the kernel's]"),
    click.option("--workloads", metavar="FILE", help="Instead of KERNEL, --shape and --dtype: lines of KERNEL SHAPE [DTYPE [SAMPLES]]."),
    click.option("--template", metavar="NAME", help="Which of a kernel's templates. [default: the target's first]"),
    options.protocol,
    options.budget_for("Stop after this time; the same command goes on from there"),
    click.option("--refresh", metavar="FILE", help="Read the profiles of this dataset anew instead; measures nothing."),
    options.seed,
    options.workers,
    options.as_json,
    options.debug,
)
def collect(
    kernels: tuple[str, ...],
    samples: int | None,
    out: str | None,
    target: str,
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    workloads: str | None,
    template: str | None,
    protocol: str,
    budget: float | None,
    refresh: str | None,
    seed: int,
    workers: int | None,
    as_json: bool,
) -> None:
    """Measure a stratified sample of each workload's space and write it to a dataset, a Parquet file of a row a candidate.

    Every value of every parameter is in the sample as often as the others, and every pair of values too, as far as the
    space allows. What fails is a row as well. The file is written every minute; stopped at any time, the same command
    goes on where it stopped.
    """
    if refresh is not None:
        if kernels or workloads or out or samples:
            raise InputError(
                "--refresh FILE takes no kernels, --workloads, --samples or --out: it reads the profiles of FILE's own rows anew"
            )
        _refresh(refresh, workers, as_json)
        return
    if not (kernels or workloads) or not (samples or workloads) or out is None:
        needed = (("KERNEL", kernels or workloads), ("--samples N", samples or workloads), ("--out FILE", out))
        missing = [name for name, given in needed if not given]
        raise InputError(f"collect needs {', '.join(missing)}, e.g. tilesight collect matmul --samples 100 --out matmul.parquet")
    from ..collect import collect as run

    with output.progress() as observer:
        found = run(
            kernels,
            out,
            samples,
            target,
            shapes=shapes,
            dtypes=dtypes,
            workloads=workloads,
            template=template,
            protocol=protocol,
            seed=seed,
            workers=workers,
            budget_s=budget,
            program=f"tilesight {__version__} collect",
            observer=observer,
        )
    _show(found, out, as_json)


def _show(found: Collected, out: str, as_json: bool) -> None:
    size = os.path.getsize(out)
    rows = [_case(found, case.workload.key, case.target.name) for case in found.cases]
    if as_json:
        output.print_json(
            "collect", file=out, bytes=size, rows=len(found.dataset), complete=found.complete, seconds=found.seconds, cases=rows
        )
        return
    names = ("case", "rows", "right", "same code", "failed", "fastest us", "vendor us", "vendor")
    table = []
    for row in rows:
        counts = (row["candidates"], row["verified"], row["duplicates"], sum(row["failures"].values()))
        times = (output.number(row["fastest_us"]), output.number(row["vendor_us"]))
        table.append((row["case"], *counts, *times, row["vendor"] or "-"))
    output.print_table(names, table, right=names[1:-1], folded=("case",))
    state = "" if found.complete else "; not complete, the same command goes on from here"
    output.print_text(f"{len(found.dataset)} rows in {out}, {size / 1024:.0f} KiB{state}")


def _case(found: Collected, workload: str, target: str) -> dict[str, Any]:
    """What the file knows of a case, over all calls."""
    frame = found.dataset.frame
    rows = frame[(frame["workload"] == workload) & (frame["target"] == target)]
    failures = Counter(rows["failure_kind"].dropna())
    duplicates = failures.pop("duplicate", 0)
    vendor = rows.dropna(subset=["vendor_us"])
    return {
        "case": workload,
        "candidates": len(rows),
        "verified": int(rows["measured_us"].notna().sum()),
        "duplicates": duplicates,
        "failures": dict(failures),
        "fastest_us": None if rows["measured_us"].isna().all() else float(rows["measured_us"].min()),
        "vendor": None if vendor.empty else str(vendor["vendor"].iloc[0]),
        "vendor_us": None if vendor.empty else float(vendor["vendor_us"].iloc[0]),
    }


def _refresh(path: str, workers: int | None, as_json: bool) -> None:
    from ..refresh import refresh as run

    with output.progress() as observer:
        found = run(path, workers=workers, observer=observer)
    if as_json:
        output.print_json("refresh", file=path, **found.counts())
        return
    output.print_text(f"{path}: {found.text()}")
