"""The reports of tuning sessions, printed as they come: a table for people, fields for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import NoCandidateError
from ..records.session import SessionResult
from ..records.session_fields import session_fields
from ..tuner.observers import Observer, Observers
from . import output


class _Results(Observer):
    """Collects the fields of each result; prints the result at once unless JSON was requested."""

    def __init__(self, top: int, variants: bool, prints: bool) -> None:
        self._top, self._variants, self._prints = top, variants, prints
        self.fields: list[dict[str, Any]] = []
        self.is_new = False  # whether anything was recorded

    def answered(self, result: SessionResult) -> None:
        if self._prints:
            if self.fields:
                output.print_text()
            output.print_report(result.report(self._top, variants=self._variants))
        self.fields.append(session_fields(result, self._top))
        self.is_new = self.is_new or not result.from_database


def show(
    kind: str,
    run: Callable[[Observer], object],
    top: int,
    variants: bool,
    verbosity: output.Verbosity,
    as_json: bool,
    more: Callable[[], dict[str, Any]] = dict,
    budget_s: float | None = None,
) -> None:
    """Run sessions, show their progress and print their results.

    Args:
        kind: Value of the JSON field `kind`.
        run: Runs the sessions and reports them to the observer.
        top: Number of candidates to show of each session.
        variants: Show configs that differ only in the order of blocks as rows of their own.
        verbosity: How much of the progress to show.
        as_json: Print one JSON object instead of tables.
        more: Returns further JSON fields beside `sessions`.
        budget_s: The time limit of the command.
    """
    results = _Results(top, variants, prints=not as_json)
    try:
        with output.progress(verbosity, budget_s) as progress:
            run(Observers([progress, results]))
    except NoCandidateError:
        if as_json and results.fields:
            output.print_json(kind, sessions=results.fields, **more())
        raise
    if results.is_new and verbosity is not output.Verbosity.QUIET and not as_json:
        output.print_hint(
            "recorded: the same command is answered from the database now; with the same arguments, "
            "`tilesight explain` tells what limits the best config, and `tilesight space` lists the rules of "
            "the space"
        )
    if as_json:
        output.print_json(kind, sessions=results.fields, **more())
