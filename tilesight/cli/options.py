"""Options that several commands share."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

from ..errors import InputError, headline
from ..records.protocol import PROTOCOLS
from ..settings import read_seconds
from . import suggestions
from .output import Verbosity

F = TypeVar("F", bound=Callable[..., Any])

_SAME_NAME = ("effort", "dynamic", "protocol", "cluster", "database", "seed", "workers", "remeasure")
_SESSION_FIELDS = {"budget": "budget_s", **{name: name for name in _SAME_NAME}}


def read_time(text: str) -> float:
    """Convert `600`, `90s`, `10m` or `1.5h` to seconds. Raises `InputError`."""
    try:
        return read_seconds(text)
    except ValueError:
        raise InputError(
            f"--budget '{text}' must be a time above 0: seconds (600, 90s), minutes (10m) or hours (1h)"
        ) from None


def budget_for(purpose: str) -> Callable[[F], F]:
    """The option `--budget`; the command receives seconds. `purpose` begins the help text."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
        return None if text is None else read_time(text)

    help_text = f"{purpose}: 600, 90s, 10m, 1h. [default: TILESIGHT_BUDGET, or none]"
    return click.option("--budget", metavar="TIME", callback=read, help=help_text)


def verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """The options `--quiet` and `--verbose`; the command receives one `Verbosity`."""
    return _one_verbosity(command, ("verbose", "quiet"))


def live(command: Callable[..., None]) -> Callable[..., None]:
    """The options `--live`, `--quiet` and `--verbose`; the command receives one `Verbosity`."""
    return _one_verbosity(command, ("live", "verbose", "quiet"))


_VERBOSITIES = {
    "live": "Show the best so far, what limits it, what is tried and what is left, drawn in place.",
    "verbose": "Show each event: every candidate that is predicted, built or measured.",
    "quiet": "Show the result alone, no progress.",
}


def _one_verbosity(command: Callable[..., None], names: Sequence[str]) -> Callable[..., None]:
    @wraps(command)
    def run(**given: Any) -> None:
        chosen = [name for name in names if given.pop(name)]
        if len(chosen) > 1:
            listed = " and ".join(f"--{name}" for name in reversed(chosen))
            raise InputError(f"{listed} exclude each other: give one of them")
        command(**given, verbosity=Verbosity(chosen[0]) if chosen else Verbosity.NORMAL)

    for name in names:
        letters = () if name == "live" else (f"-{name[0]}",)
        run = click.option(f"--{name}", *letters, is_flag=True, help=_VERBOSITIES[name])(run)
    return run


def read_arguments(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> Any:
    """Values by name from several `NAME=VALUE`: Python literals; what is no literal is text."""
    found: dict[str, Any] = {}
    for pair in given:
        name, sign, text = pair.partition("=")
        if not sign or not name.strip().isidentifier():
            raise InputError(f"--arg '{pair}' is not of the form NAME=VALUE, such as --arg block_M=128")
        if name.strip() in found:
            raise InputError(f"--arg {name.strip()} is given twice")
        try:
            found[name.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            found[name.strip()] = text
    return found


def read_inputs(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> Any:
    """Arrays by name from several `NAME=FILE`; None if there are none."""
    found: dict[str, Any] = {}
    for pair in given:
        name, sign, file = pair.partition("=")
        if not sign or not name.strip().isidentifier():
            raise InputError(
                f"--input '{pair}' is not of the form NAME=FILE, such as --input lengths=lengths.npy"
            )
        if name.strip() in found:
            raise InputError(f"--input {name.strip()} is given twice")
        import numpy as np

        name, file = name.strip(), file.strip()
        try:
            found[name] = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"--input {name}: '{file}' is no file that numpy.save wrote ({headline(str(error))})"
            ) from None
    return found or None


def file(*, required: bool) -> Callable[[F], F]:
    """The option `--file`."""
    return click.option(
        "--file",
        metavar="FILE:NAME",
        required=required,
        help="A kernel in a Python file: a PrimFunc, or a function that returns one (kernel.py:matmul).",
    )


def refuse_without_file(stated: Mapping[str, object]) -> None:
    """Raise `InputError` if a shipped kernel gets any of these options of kernels in files."""
    if given := [name for name, value in stated.items() if value is not None]:
        raise InputError(f"{', '.join(given)} is for a kernel in --file; shipped kernels take --shape")


own_config = click.option(
    "--config",
    metavar="C",
    help="A config of the own @autotune of the function in --file: its number, or k=v,...",
)
arguments = click.option(
    "--arg",
    "arguments",
    metavar="NAME=VALUE",
    multiple=True,
    callback=read_arguments,
    help="An argument of the function in --file, a Python literal or text; may be repeated.",
)
dims = click.option(
    "--dims",
    metavar="D",
    help=(
        "Of the kernel in --file: sizes that it takes at run time (T.dynamic), and values of its variables "
        "that depend on data, as k=v,..."
    ),
)
inputs = click.option(
    "--input",
    "inputs",
    metavar="NAME=FILE",
    multiple=True,
    callback=read_inputs,
    help=(
        "Of the kernel in --file: an example tensor (.npy), from which loops, branches and addresses follow; "
        "may be repeated."
    ),
)
density = click.option(
    "--density",
    type=float,
    metavar="SHARE",
    help="Of the kernel in --file: share of the data-dependent branches that are taken, 0 to 1.",
)
calls = click.option(
    "--calls",
    metavar="CALLS",
    help=(
        "Of the kernel in --file: operations per thread of one call of a device function, by its name, where "
        "the kernel does not import its text."
    ),
)
kernel = click.argument("kernel", shell_complete=suggestions.kernels)
target = click.option(
    "--target",
    shell_complete=suggestions.targets,
    metavar="T",
    help=(
        "h100, h200, a100, mi300x, cpu, the path of a target file, or auto for the GPU of this machine. "
        "[default: TILESIGHT_TARGET, or auto]"
    ),
)
world = click.option(
    "--world",
    type=int,
    metavar="N",
    help=(
        "Number of devices: --world 4 of h100 is the target h100x4, --world 32 of a pod four of its hosts. "
        "[default: those of the target]"
    ),
)
shapes = click.option(
    "--shape",
    "shapes",
    shell_complete=suggestions.shapes,
    metavar="S",
    multiple=True,
    help="Published name (M0) or k=v,...; may be repeated. [default: the kernel's default shapes]",
)
shape = click.option(
    "--shape",
    shell_complete=suggestions.shapes,
    metavar="S",
    help="Published name (M0) or k=v,... [default: the first of the kernel's default shapes]",
)
dtype = click.option(
    "--dtype",
    shell_complete=suggestions.dtypes,
    metavar="D",
    help="Element type, e.g. bfloat16. [default: the first that kernel and target support]",
)
budget = budget_for("Stop after this time and report the results so far")
top = click.option(
    "--top",
    metavar="N",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Number of candidates to show.",
)
variants = click.option(
    "--variants",
    is_flag=True,
    help="Show configs that differ only in the order of blocks as rows of their own.",
)
config = click.option("--config", metavar="C", help="A config as k=v,... or a JSON object.")
database = click.option(
    "--db",
    "database",
    metavar="URL",
    help="Database: SQLAlchemy URL or SQLite file. [default: TILESIGHT_DB, or a file in your data directory]",
)
seed = click.option(
    "--seed", metavar="N", type=int, default=0, show_default=True, help="Seed of the random choices."
)


def workers_that(work: str) -> Callable[[F], F]:
    """The option `--workers` of a command whose processes do `work`."""
    return click.option(
        "--workers",
        metavar="N",
        type=click.IntRange(1, 1024),
        help=f"Number of processes that {work}. [default: TILESIGHT_WORKERS, or one per core]",
    )


workers = workers_that("lower and build")
protocol = click.option(
    "--protocol",
    type=click.Choice(list(PROTOCOLS)),
    default="default",
    show_default=True,
    help=(
        "Conditions of measurements: `default` times single launches with a cold cache, `serving` times "
        "launches in a CUDA graph with a warm cache."
    ),
)
cluster = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Run on a Ray cluster: auto, local, host:port or ray://host:port. [default: this machine]",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Write one JSON object to standard output.")
debug = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """A decorator that adds several options; the help shows them in this order."""

    def apply(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def as_session_options(command: Callable[..., None]) -> Callable[..., None]:
    """A decorator that gives a command its session options as one value, the argument `session`.

    Place it directly above the command: `--effort`, `--dynamic`, `--protocol`, `--cluster`, `--budget`,
        `--db`, `--seed` and `--workers`, those that the command has, become a `TuneOptions`.
    """

    @wraps(command)
    def run(**given: Any) -> None:
        from ..tuner.options import TuneOptions

        chosen = {field: given.pop(name) for name, field in _SESSION_FIELDS.items() if name in given}
        command(**given, session=TuneOptions.of(**chosen))

    return run
