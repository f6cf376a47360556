"""`tilesight collect`: measure a sample of a search space and write it to a dataset."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..version import __version__
from . import options, output, suggestions

if TYPE_CHECKING:
    from ..datasets.collector import CollectionResult


@click.command()
@options.with_options(
    click.argument("kernels", nargs=-1, metavar="KERNEL...", shell_complete=suggestions.kernels),
    click.option(
        "--samples",
        metavar="N",
        type=click.IntRange(min=1),
        help="Candidates of each workload, or all legal ones if there are fewer.",
    ),
    click.option("--out", metavar="FILE", help="Parquet file to write; an existing one is continued."),
    options.target,
    click.option(
        "--shape",
        "shapes",
        shell_complete=suggestions.shapes,
        metavar="S",
        multiple=True,
        help="Published name (M0), k=v,..., or all; may be repeated. [default: the kernel's default shapes]",
    ),
    click.option(
        "--dtype",
        "dtypes",
        shell_complete=suggestions.dtypes,
        metavar="D",
        multiple=True,
        help="Element type; may be repeated. [default: the first that kernel and target support]",
    ),
    click.option(
        "--workloads",
        metavar="FILE",
        help="File of lines KERNEL SHAPE [DTYPE [SAMPLES]], instead of KERNEL, --shape and --dtype.",
    ),
    click.option(
        "--template", metavar="NAME", help="Template of the kernel. [default: the first for the target]"
    ),
    options.protocol,
    click.option(
        "--no-vendor",
        is_flag=True,
        help="Leave out the vendor's times; the same command without this option adds them later.",
    ),
    options.budget_for("Stop after this time; the same command continues later"),
    click.option(
        "--refresh", metavar="FILE", help="Only read the profiles of this dataset again; measures nothing."
    ),
    options.seed,
    options.workers,
    options.verbosity,
    options.as_json,
    options.debug,
)
def collect(
    kernels: tuple[str, ...],
    samples: int | None,
    out: str | None,
    target: str | None,
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    workloads: str | None,
    template: str | None,
    protocol: str,
    no_vendor: bool,
    budget: float | None,
    refresh: str | None,
    seed: int,
    workers: int | None,
    verbosity: output.Verbosity,
    as_json: bool,
) -> None:
    """Measure a stratified sample of each workload's space and write it to a dataset.

    A dataset is a Parquet file with one row per candidate. The sample has every value of a parameter equally
    often, and every pair of values too, as far as the space allows. Failed candidates are rows as well. The
    file is written every minute; the same command continues after it was stopped.
    """
    if refresh is not None:
        if kernels or workloads or out or samples:
            raise InputError(
                "--refresh FILE takes no kernels, --workloads, --samples or --out: it reads the profiles of "
                "FILE's own rows again"
            )
        _refresh(refresh, workers, verbosity, as_json)
        return
    if not (kernels or workloads) or not (samples or workloads) or out is None:
        needed = (
            ("KERNEL", kernels or workloads),
            ("--samples N", samples or workloads),
            ("--out FILE", out),
        )
        missing = [name for name, given in needed if not given]
        raise InputError(
            f"collect needs {', '.join(missing)}, e.g. tilesight collect matmul --samples 100 --out "
            "matmul.parquet"
        )
    from ..datasets.collect import collect as run

    with output.progress(verbosity) as observer:
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
            vendor=not no_vendor,
            seed=seed,
            workers=workers,
            budget_s=budget,
            program=f"tilesight {__version__} collect",
            observer=observer,
        )
    _show(found, out, as_json)


def _show(found: CollectionResult, out: str, as_json: bool) -> None:
    size = os.path.getsize(out)
    rows = [_case(found, case.workload.key, case.target.name) for case in found.cases]
    if as_json:
        output.print_json(
            "collect",
            file=out,
            bytes=size,
            rows=len(found.dataset),
            complete=found.complete,
            seconds=found.seconds,
            cases=rows,
        )
        return
    names = ("case", "rows", "right", "same code", "failed", "fastest us", "vendor us", "vendor")
    table = []
    for row in rows:
        counts = (row["candidates"], row["verified"], row["duplicates"], sum(row["failures"].values()))
        times = (output.number(row["fastest_us"]), output.number(row["vendor_us"]))
        table.append((row["case"], *counts, *times, row["vendor"] or "-"))
    output.print_table(names, table, right=names[1:-1], folded=("case",))
    state = "" if found.complete else "; not complete: run the same command again to continue"
    output.print_text(f"{len(found.dataset)} rows in {out}, {size / 1024:.0f} KiB{state}")


def _case(found: CollectionResult, workload: str, target: str) -> dict[str, Any]:
    """Counts and best times of one case in the file, over all calls."""
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


def _refresh(path: str, workers: int | None, verbosity: output.Verbosity, as_json: bool) -> None:
    from ..datasets.refresh import refresh as run

    with output.progress(verbosity) as observer:
        found = run(path, workers=workers, observer=observer)
    if as_json:
        output.print_json("refresh", file=path, **found.counts())
        return
    output.print_text(f"{path}: {found.text()}")
