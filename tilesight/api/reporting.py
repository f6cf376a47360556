"""`write_report`: a session, kernel, dispatch table, dataset or model card as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..files import check_out, check_replaces, replacing
from ..settings import load_settings
from ..target.spec import Target
from .run_time_facts import RunTimeFacts

if TYPE_CHECKING:
    from ..database.store import Store
    from ..dispatch.table.dispatch_table import DispatchTable
    from ..pages.values import Page

DEFAULT_OUT = "report.html"
MODEL = "model"  # the subject that stands for the model that ships
_HEAD = 2048  # characters of a file that tell whether it is a page of ours
KINDS = (
    "a session's id, the name of a kernel, kernel.py:name, a dispatch table (.json), a dataset (a "
    ".parquet file or "
    "a folder of them), a folder of a trained model, or the word model"
)


def write_report(
    subject: str | int | Path,
    out: str | Path = DEFAULT_OUT,
    *,
    target: str | Target | None = None,
    arguments: Mapping[str, Any] | None = None,
    dims: str | Mapping[str, int] | None = None,
    database: str | None = None,
) -> Path:
    """Write a report: one HTML file that loads nothing, so that it can be mailed and opened offline.

    Args:
        subject: What it is about: the id of a session, the name of a kernel (its best records), a kernel in
            a file (`kernel.py:name`, what limits it), the path of a dispatch table or dataset, the folder of
            a trained model, or "model" for the model that ships.
        out: The file, which ends in .html. A report that is there already is replaced; other files are not.
        target, arguments, dims: Of a kernel in a file, as for `explain`.
        database: As for `tune`.

    Returns:
        `out` as a path.

    Raises:
        InputError: there is no such subject, it is empty, or `out` cannot be written.
        DatabaseError: the database cannot be read, or does not exist.
        ToolchainError: a package that the subject needs is missing.
    """
    from ..pages.render import html

    path = Path(out)
    check_report_out(path)
    text = html(report_page(subject, target=target, arguments=arguments, dims=dims, database=database))
    with replacing(path, f"report '{path}' cannot be written") as partial_path:
        partial_path.write_text(text, encoding="utf-8")
    return path


def check_report_out(path: Path) -> None:
    """Raise `InputError` if no report can be written there, or if another file is there."""
    from ..pages.render import is_page

    check_out(path, ".html", "reports")
    check_replaces(path, is_page, "report", _HEAD)


def report_page(
    subject: str | int | Path,
    *,
    target: str | Target | None = None,
    arguments: Mapping[str, Any] | None = None,
    dims: str | Mapping[str, int] | None = None,
    database: str | None = None,
) -> Page:
    """The page of a subject. Arguments and exceptions are those of `write_report`."""
    text = str(subject)
    of_file = ".py:" in text
    given = {"target": target, "arguments": arguments or None, "dims": dims}
    if not of_file and (unused := [name for name, value in given.items() if value is not None]):
        raise InputError(
            f"report of {text} takes no {', '.join(unused)}: these are for a kernel in a file, kernel.py:name"
        )
    if text.isdecimal():
        return _session(int(text), database)
    if of_file:
        return _file_kernel(text, target, arguments, dims)
    path = Path(text)
    if text == MODEL or (path / "card.json").is_file():
        return _model(None if text == MODEL else path)
    if path.suffix == ".json":
        return _table(path, database)
    if path.suffix == ".parquet" or path.is_dir():
        return _dataset(path)
    if path.exists() or "/" in text:
        raise InputError(f"'{text}' is nothing that a report can show: give {KINDS}")
    return _kernel(text, database)


def _session(session_id: int, database: str | None) -> Page:
    from ..pages.session_page import session_page
    from .history import undescribed_session

    return session_page(undescribed_session(session_id, database))


def _table(path: Path, database: str | None) -> Page:
    from ..database.engine.connection import exists, parse_url
    from ..dispatch.table.table_file import read_table
    from ..pages.table_page import table_page
    from .history import opened

    table = read_table(path)
    if not exists(parse_url(database or load_settings().database_url)):
        return table_page(table, {})
    with opened(database) as store:
        return table_page(table, vendor_sizes(table, store))


def vendor_sizes(table: DispatchTable, store: Store) -> dict[int, float]:
    """The times of the fastest other implementation under the conditions of a dispatch table, in
    microseconds, by size, as far as they are recorded.
    """
    sizes = {table.workload(piece.size).key: piece.size for piece in table.evidence}
    found = store.vendor_times(sizes, table.target, table.device, table.protocol)
    return {sizes[key]: us for key, us in found.items()}


def _dataset(path: Path) -> Page:
    from ..costmodel import default_model
    from ..pages.dataset_page import dataset_page
    from ..records.dataset import read_dataset

    return dataset_page(path.name or str(path), read_dataset(path), default_model())


def _model(folder: Path | None) -> Page:
    from ..costmodel.learned.model_file import read_card, shipped
    from ..pages.card_page import card_page

    return card_page(read_card(folder or shipped()))


def _kernel(name: str, database: str | None) -> Page:
    from ..kernels import operators
    from ..pages.kernel_page import records_page
    from ..tuner.resolve import find_operator
    from .history import best_records

    records = best_records(name, None, database)
    if not records and name not in operators():
        try:
            find_operator(name)  # a template, or a name that offers the nearest ones
        except InputError as error:
            raise InputError(f"{error} A report can show {KINDS}.") from error
    return records_page(name, records)


def _file_kernel(
    place: str,
    target: str | Target | None,
    arguments: Mapping[str, Any] | None,
    dims: str | Mapping[str, int] | None,
) -> Page:
    from ..pages.kernel_page import explanation_page
    from .kernel_files import explanation_of, profiles_in_file
    from .timelines import profiles_timeline

    found = profiles_in_file(place, target, RunTimeFacts(dims), arguments)
    given = found.name, found.kernels, found.target, found.names
    timeline = profiles_timeline(*given) if found.target.is_gpu else None
    return explanation_page(explanation_of(found), timeline)
