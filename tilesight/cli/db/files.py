"""`tilesight db export`, `import`, `merge` and `backup`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...errors import InputError
from ...settings import load_settings
from .. import options, output
from .opening import counts, open_for_reading, url_of

if TYPE_CHECKING:
    from ...database.exchange.t4_reader import ImportSubject

FILE = click.argument("file", type=click.Path(path_type=Path))


@click.command()
@FILE
@click.option("--view", metavar="NAME", help="View or table to write.  [default: records]")
@click.option(
    "--everything",
    is_flag=True,
    help="All rows of all tables, as JSON lines that `tilesight db import` reads.",
)
@click.option(
    "--session",
    metavar="ID",
    type=int,
    help="For .json (T4): this session. [default: the latest that measured]",
)
@options.with_options(options.database, options.as_json, options.debug)
def export(
    file: Path, view: str | None, everything: bool, session: int | None, database: str | None, as_json: bool
) -> None:
    """Write a view to FILE: .csv, .jsonl (JSON lines) or .parquet, by its ending; or the results of a session
    as T4, the format of Kernel Tuner: .json.
    """
    from ...database import export as write
    from ...database.exchange.json_lines import export_everything
    from ...database.exchange.t4_writer import export_t4

    is_t4 = file.suffix.lower() == ".json"
    given = [
        name for name, is_given in (("--view", view is not None), ("--everything", everything)) if is_given
    ]
    if len(given) > 1 or (is_t4 and given):
        raise InputError(
            f"{' and '.join(given)}{' and a .json file (T4)' if is_t4 else ''} exclude each other; leave one "
            "out"
        )
    if session is not None and not is_t4:
        raise InputError(f"--session is for T4; name a file that ends in .json, not '{file.suffix}'")
    with open_for_reading(url_of(database)) as store:
        if everything:
            what, written = "everything", sum(export_everything(store, file).values())
        elif is_t4:
            what, written = "T4", export_t4(store, file, session)
        else:
            what, written = view or "records", write(store, file, view=view or "records")
    if as_json:
        output.print_json("db_export", file=str(file), exported=what, rows=written)
        return
    output.print_line(f"{written} rows of {what} written to {file}")


@click.command("import")
@FILE
@click.option("--trust", is_flag=True, help="The file is your own: its results count as measured here.")
@click.option(
    "--origin",
    metavar="TEXT",
    help="Where the file comes from; its rows are marked with it. [default: its name]",
)
@click.option("--kernel", metavar="K", help="For T4 files of others: what was tuned,")
@click.option("--shape", metavar="S", help="its shape,")
@options.dtype
@click.option("--target", metavar="T", help="the target,")
@click.option("--device", metavar="NAME", help="and the device that measured.")
@options.with_options(options.database, options.as_json, options.debug)
def import_(
    file: Path,
    trust: bool,
    origin: str | None,
    kernel: str | None,
    shape: str | None,
    dtype: str | None,
    target: str | None,
    device: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Read FILE: JSON lines of `tilesight db export --everything`, or T4 results (.json).

    Every field is checked and nothing is executed; all of the file is imported, or nothing. What comes in is
    marked as imported: views show it, but it decides nothing here, unless you --trust the file.
    """
    from ...database import open_store
    from ...database.exchange.json_lines import import_everything
    from ...database.exchange.t4_reader import import_t4

    is_t4 = file.suffix.lower() == ".json"
    about = {"--kernel": kernel, "--shape": shape, "--dtype": dtype, "--target": target, "--device": device}
    given = [name for name, value in about.items() if value is not None]
    if given and not is_t4:
        raise InputError(f"{given[0]} is for T4 files, which end in .json; '{file}' names its subject itself")
    if trust and is_t4:
        raise InputError(
            "--trust is for files of `tilesight db export --everything`; T4 has too little in it to be "
            "re-used"
        )
    if trust and origin is not None:
        raise InputError("--trust and --origin exclude each other: rows of a trusted file are not marked")
    subject = _subject(about) if is_t4 and given else None
    with open_store(url_of(database)) as store:
        found = (
            import_t4(store, file, subject, origin)
            if is_t4
            else import_everything(store, file, trusted=trust, origin=origin)
        )
    if as_json:
        output.print_json(
            "db_import",
            file=str(file),
            trusted=trust,
            origin=found.origin,
            written=found.written,
            skipped=found.skipped,
        )
        return
    output.print_text(f"{file}: {_rows(found.written)}")
    if found.skipped:
        output.print_text(
            f"left out, since they would act beyond the file's own sessions: {counts(dict(found.skipped))}"
        )
    if found.origin and sum(found.written.values()):
        output.print_text(
            f"marked as imported from '{found.origin}': views show it, and nothing here is decided by it"
        )


@click.command()
@click.argument("others", metavar="OTHER...", nargs=-1, required=True)
@options.with_options(options.database, options.as_json, options.debug)
def merge(others: tuple[str, ...], database: str | None, as_json: bool) -> None:
    """Add all rows of OTHER databases: files or URLs, which are only read. Merging again changes nothing.

    What they hold counts as measured here: merge databases of people you trust, and import the others'
    exports.
    """
    from ...database import open_store
    from ...database.exchange.merge import merge as add
    from ...database.readable import open_readable

    merged: list[tuple[str, dict[str, int]]] = []
    with open_store(url_of(database)) as store:
        for other in others:
            way_out = "repair it, or leave it out"
            with open_readable(
                url_of(other), "database to merge", way_out, load_settings().cache_dir
            ) as source:
                merged.append((source.name, add(store, source)))
    if as_json:
        output.print_json(
            "db_merge", merged=[{"database": name, "written": written} for name, written in merged]
        )
        return
    for name, written in merged:
        output.print_text(f"{name}: {_rows(written)}")


@click.command()
@FILE
@options.with_options(options.database, options.as_json, options.debug)
def backup(file: Path, database: str | None, as_json: bool) -> None:
    """Copy the database, as it is at one moment, to FILE; others may write meanwhile."""
    from ...database.maintenance.check import backup as copy

    with open_for_reading(url_of(database)) as store:
        size = copy(store, file)
    if as_json:
        output.print_json("db_backup", file=str(file), size_bytes=size)
        return
    output.print_line(f"{size / 1e6:.1f} MB written to {file}")


def _rows(written: Mapping[str, int]) -> str:
    total = sum(written.values())
    return (
        f"{total} rows are new: {counts(dict(written))}"
        if total
        else "nothing is new: all of it was here already"
    )


def _subject(about: dict[str, str | None]) -> ImportSubject:
    from ...database.exchange.t4_reader import ImportSubject
    from ...target.spec import load_target
    from ...tuner.resolve import find_operator, find_workloads

    missing = [name for name in ("--kernel", "--shape", "--target", "--device") if about[name] is None]
    if missing:
        raise InputError(
            f"a T4 file does not name what was tuned; add the options: {', '.join(missing)} missing"
        )
    operator = find_operator(str(about["--kernel"]))
    found = load_target(str(about["--target"])).device_target
    workload = find_workloads(operator, found, about["--shape"], about["--dtype"])[0]
    return ImportSubject(
        workload,
        found.name,
        found.arch,
        str(about["--device"]),
        operator.flops(workload),
        operator.min_bytes(workload),
    )


COMMANDS = (export, import_, merge, backup)
