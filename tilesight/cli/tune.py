"""`tilesight tune`: search, measure, compare, record."""

from __future__ import annotations

import click

from ..errors import InputError
from ..known import Gain
from ..session import Effort
from . import options, output, report
from .output import number


@click.command()
@options.with_options(
    click.argument("kernel", required=False),
    options.target,
    options.shapes,
    options.dtype,
    click.option("--effort", type=click.Choice([e.value for e in Effort]), default="quick", show_default=True, help="How much to try."),
    click.option(
        "--dynamic", metavar="D", multiple=True, help="A dimension that the kernel takes at run time; may be repeated. One kernel for all."
    ),
    click.option("--misses", is_flag=True, help="Tune what dispatchers were asked for and had no record of, most costly first."),
    click.option("--limit", metavar="N", type=click.IntRange(min=1), help="With --misses: how many at most. [default: all]"),
    options.protocol,
    options.cluster,
    options.budget,
    options.top,
    options.as_json,
    options.database,
    options.seed,
    options.workers,
    options.debug,
)
def tune(
    kernel: str | None,
    target: str,
    shapes: tuple[str, ...],
    dtype: str | None,
    effort: str,
    dynamic: tuple[str, ...],
    misses: bool,
    limit: int | None,
    protocol: str,
    cluster: str | None,
    budget: float | None,
    top: int,
    as_json: bool,
    database: str | None,
    seed: int,
    workers: int | None,
) -> None:
    """Search the fastest config of KERNEL, measure the best where the target is at hand, and record all of it.

    Without a device of the target the result is the predicted ranking, marked so. Run again, it answers from the
    database; interrupted, it goes on where it stopped.

    \b
    --effort predict     the model only: nothing is built or measured
             quick       about 128 lowerings are looked at, at most 16 candidates are measured
             full        about 400 lowerings, up to 128 measured, each chosen by what was learned from those before
             exhaustive  every legal candidate is built and measured

    With --misses KERNEL may be left out. Workloads that were tuned and measured are forgotten as misses, and it is said what
    each gained over what served it.
    """
    from ..api import tune as run

    if misses:
        wrong = [name for name, given in (("--shape", shapes), ("--dtype", dtype), ("--cluster", cluster)) if given]
        if wrong:
            raise InputError(f"--misses says what is tuned, and where: leave out {' and '.join(wrong)}")
        _tune_misses(kernel, target, dynamic, limit, effort, protocol, budget, top, as_json, database, seed, workers)
        return
    if kernel is None:
        raise InputError("no kernel was named; `tilesight kernels` lists them, and --misses tunes what dispatchers were asked for")
    if limit is not None:
        raise InputError("--limit goes with --misses")
    name = kernel
    report.show(
        "tune",
        lambda observer: run(
            name,
            target,
            shapes or None,
            dtype=dtype,
            effort=effort,
            protocol=protocol,
            cluster=cluster,
            dynamic=dynamic,
            budget_s=budget,
            database=database,
            seed=seed,
            workers=workers,
            observer=observer,
        ),
        target,
        top,
        as_json,
    )


def _tune_misses(
    kernel: str | None,
    target: str,
    dynamic: tuple[str, ...],
    limit: int | None,
    effort: str,
    protocol: str,
    budget: float | None,
    top: int,
    as_json: bool,
    database: str | None,
    seed: int,
    workers: int | None,
) -> None:
    from ..api import tune_misses as run

    gains: list[Gain] = []
    report.show(
        "tune",
        lambda observer: gains.extend(
            run(
                kernel,
                target,
                limit=limit,
                effort=effort,
                budget_s=budget,
                database=database,
                seed=seed,
                workers=workers,
                protocol=protocol,
                dynamic=dynamic,
                observer=observer,
            )
        ),
        target,
        top,
        as_json,
        lambda: {"gains": [_gain_fields(gain) for gain in gains]},
    )
    if as_json:
        return
    if not gains:
        output.print_text(f"no misses are recorded{'' if kernel is None else f' of {kernel}'} on this target: nothing is left to be tuned")
        return
    output.print_text()
    columns = ["calls", "served us", "now us", "saved us", "workload"]
    output.print_table(columns, [_gain_row(gain) for gain in gains], right=columns[:4], folded=["workload"])


def _gain_row(gain: Gain) -> list[object]:
    served = f"{'' if gain.is_measured else '~'}{number(gain.served_us)}"
    saved = gain.saved_us
    return [
        gain.miss.count,
        served,
        number(gain.best_us),
        "-" if saved is None else number(gain.miss.count * saved),
        gain.miss.workload.label,
    ]


def _gain_fields(gain: Gain) -> dict[str, object]:
    return {
        "workload": gain.miss.workload.key,
        "calls": gain.miss.count,
        "served_by": dict(gain.miss.config),
        "served_us": gain.served_us,
        "served_is_measured": gain.is_measured,
        "best_us": gain.best_us,
        "saved_us": gain.saved_us,
    }
