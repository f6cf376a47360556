"""`tilesight tune`: search for the fastest config, measure, compare and record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import InputError
from ..records.session import Effort
from ..records.winners import Gain
from . import options, output, printed_results, suggestions
from .output import number

if TYPE_CHECKING:
    from ..tuner.options import TuneOptions


@click.command()
@options.with_options(
    click.argument("kernel", required=False, shell_complete=suggestions.kernels),
    options.target,
    options.world,
    options.shapes,
    options.dtype,
    click.option(
        "--effort",
        type=click.Choice([e.value for e in Effort]),
        help="How many candidates to try. [default: TILESIGHT_EFFORT, or quick]",
    ),
    click.option(
        "--dynamic",
        shell_complete=suggestions.dimensions,
        metavar="D",
        multiple=True,
        help="A dimension that the kernel takes at run time; may be repeated. One kernel for all.",
    ),
    click.option(
        "--misses",
        is_flag=True,
        help="Tune the shapes that dispatchers were called with and had no record of, most costly first.",
    ),
    click.option(
        "--shapes",
        "shapes_file",
        metavar="FILE",
        help="Tune the shapes of a file of lines KERNEL SHAPE [DTYPE [WEIGHT]], as `db misses --out` writes.",
    ),
    click.option(
        "--workloads",
        metavar="DIR",
        help="Tune the workloads of a data set of FlashInfer-Bench (definitions/ and workloads/), those "
        "that occur most first.",
    ),
    click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(min=1),
        help="With --misses, --shapes or --workloads: largest number of shapes to tune. [default: all]",
    ),
    click.option(
        "--remeasure",
        is_flag=True,
        help="Take recorded measurements again instead of answering from the database.",
    ),
    options.protocol,
    options.cluster,
    options.budget,
    options.top,
    options.variants,
    options.live,
    options.as_json,
    options.database,
    options.seed,
    options.workers,
    options.debug,
)
@options.as_session_options
def tune(
    kernel: str | None,
    target: str | None,
    world: int | None,
    shapes: tuple[str, ...],
    dtype: str | None,
    misses: bool,
    shapes_file: str | None,
    workloads: str | None,
    limit: int | None,
    top: int,
    variants: bool,
    verbosity: output.Verbosity,
    as_json: bool,
    session: TuneOptions,
) -> None:
    """Search for the fastest config of KERNEL, measure the best candidates, and record all results.

    Without a device of the target the result is a predicted ranking, marked as predicted. The same command
    run again answers from the database; after an interruption it continues.

    \b
    --effort glance      predictions only, from the profile cache or 24 lowerings: seconds
             predict     predictions only: nothing is built or measured; lowers up to 192
             build       as predict, then builds 16 and predicts them again with the compiler's registers
                         and spills; needs a compiler and no GPU
             quick       lowers about 128 candidates, measures at most 16
             full        lowers about 400, measures up to 128; each measurement corrects the
                         predictions of the rest
             exhaustive  builds and measures every legal candidate

    With --misses KERNEL may be left out. The report compares the new best time of each shape with the time of
    the config that served it. Shapes that were tuned and measured are no longer misses. With --shapes KERNEL
    may be left out, too: the file has the kernels. So has a data set (--workloads); what of it no kernel
    computes is left out, with one line and the reason each.
    """
    from ..api.tuning import tune_shapes

    if misses or shapes_file is not None or workloads is not None:
        source = "--misses takes its shapes from the database"
        if shapes_file is not None:
            source = "--shapes takes its shapes from the file"
        if workloads is not None:
            source = "--workloads takes its shapes from the data set"
        needless = (
            ("--misses", misses and (shapes_file is not None or workloads is not None)),
            ("--shapes", shapes_file is not None and workloads is not None),
            ("--shape", shapes),
            ("--dtype", dtype),
            ("--cluster", session.cluster),
            ("--world", world),
        )
        wrong = [name for name, given in needless if given]
        if wrong:
            raise InputError(f"{source}: leave out {' and '.join(wrong)}")
    if shapes_file is not None:
        from ..api.shapes_files import tune_listed

        file = shapes_file
        printed_results.show(
            "tune",
            lambda observer: tune_listed(file, target, kernel, limit, session, observer),
            top,
            variants,
            verbosity,
            as_json,
        )
        return
    if workloads is not None:
        _tune_workloads(workloads, kernel, target, limit, top, variants, verbosity, as_json, session)
        return
    if misses:
        _tune_misses(kernel, target, limit, top, variants, verbosity, as_json, session)
        return
    if kernel is None:
        raise InputError(
            "KERNEL is missing: `tilesight kernels` lists the kernels; only --misses, --shapes and "
            "--workloads work without one"
        )
    if limit is not None:
        raise InputError("--limit needs --misses, --shapes or --workloads")
    name = kernel
    printed_results.show(
        "tune",
        lambda observer: tune_shapes(name, target, shapes or None, dtype, session, observer, world),
        top,
        variants,
        verbosity,
        as_json,
        budget_s=session.budget_s,
    )


def _tune_workloads(
    folder: str,
    kernel: str | None,
    target: str | None,
    limit: int | None,
    top: int,
    variants: bool,
    verbosity: output.Verbosity,
    as_json: bool,
    session: TuneOptions,
) -> None:
    from ..api.trace_workloads import find_work, tune_found
    from ..tracesets.reading import left_out_lines

    found = find_work(folder, target, kernel, limit, session)
    left_out = {"left_out": [{"name": one.name, "reason": one.reason} for one in found.left_out]}
    if not as_json:
        for line in left_out_lines(found.left_out):
            output.print_line(line)
    elif not found.work:  # an error follows
        output.print_json("tune", sessions=[], **left_out)
    printed_results.show(
        "tune",
        lambda observer: tune_found(found, session, observer),
        top,
        variants,
        verbosity,
        as_json,
        lambda: left_out,
        session.budget_s,
    )


def _tune_misses(
    kernel: str | None,
    target: str | None,
    limit: int | None,
    top: int,
    variants: bool,
    verbosity: output.Verbosity,
    as_json: bool,
    session: TuneOptions,
) -> None:
    from ..api.misses import tune_missed_workloads

    gains: list[Gain] = []
    printed_results.show(
        "tune",
        lambda observer: gains.extend(tune_missed_workloads(kernel, target, limit, session, observer)),
        top,
        variants,
        verbosity,
        as_json,
        lambda: {"gains": [_gain_fields(gain) for gain in gains]},
        session.budget_s,
    )
    if as_json:
        return
    if not gains:
        output.print_text(
            f"the database has no misses{'' if kernel is None else f' of {kernel}'} on this target: nothing "
            "to tune"
        )
        return
    output.print_text()
    columns = ["calls", "served us", "now us", "saved us", "workload"]
    output.print_table(columns, [_gain_row(gain) for gain in gains], right=columns[:4], folded=["workload"])


def _gain_row(gain: Gain) -> list[object]:
    mark = "" if gain.is_measured or gain.dispatched_us is None else "~"
    saved = gain.saved_us
    return [
        gain.miss.count,
        mark + number(gain.dispatched_us),
        number(gain.best_us),
        "-" if saved is None else number(gain.miss.count * saved),
        gain.miss.workload.label,
    ]


def _gain_fields(gain: Gain) -> dict[str, object]:
    return {
        "workload": gain.miss.workload.key,
        "calls": gain.miss.count,
        "served_by": dict(gain.miss.config),
        "served_us": gain.dispatched_us,
        "served_is_measured": gain.is_measured,
        "best_us": gain.best_us,
        "saved_us": gain.saved_us,
    }
