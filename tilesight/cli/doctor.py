"""`tilesight doctor`: check packages, compilers, GPUs and the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..errors import InputError, TileSightError
from ..extras import EXTRAS
from ..settings import SETTINGS, Settings, in_use, usable_settings
from . import options, output

if TYPE_CHECKING:
    from ..machine.toolchain import Check


@click.command()
@options.with_options(options.database, options.as_json, options.debug)
def doctor(database: str | None, as_json: bool) -> None:
    """Check packages, compilers, GPUs and the database, and show how to install what is missing.

    Also shows the extras with the commands that need them, and each setting with its source: an environment
    variable, a settings file, or the default.

    The exit code is 5 if a requirement of every command is missing.
    """
    from ..machine.toolchain import report

    settings, faults = usable_settings()
    with in_use(settings):
        checks = [
            *report(),
            *_settings_check(faults),
            _database_check(database or settings.database_url),
            *_target_check(settings),
        ]
    known = _settings(settings, database)
    extras = [
        {"name": e.name, "package": e.package, "found": e.version or None, "needed_for": e.needed_for}
        | {"hint": None if e.is_installed else e.install}
        for e in EXTRAS.values()
    ]
    fatal = [check for check in checks if not check.ok and check.needed_for == "everything"]
    if as_json:
        fields = [
            {"name": c.name, "ok": c.ok, "found": c.found, "needed_for": c.needed_for, "hint": c.hint or None}
            for c in checks
        ]
        output.print_json("doctor", ok=not fatal, checks=fields, extras=extras, settings=known)
    else:
        rows = [["ok" if c.ok else c.problem, c.name, c.found, c.needed_for] for c in checks]
        output.print_table(["", "check", "found", "needed for"], rows, folded=["found", "needed for"])
        hints = [c for c in checks if not c.ok and c.hint]
        if hints:
            output.print_text()
        for check in hints:
            output.print_line(f"{check.name}: {check.hint}")
        output.print_text()
        columns = ["extra", "installed", "needed for", "to add it"]
        extra_rows = [[e["name"], e["found"] or "no", e["needed_for"], e["hint"]] for e in extras]
        output.print_table(columns, extra_rows, folded=columns[2:3])
        output.print_text()
        columns = ["setting", "value", "from"]
        output.print_table(
            columns,
            [[row[name] for name in ("setting", "value", "source")] for row in known],
            folded=columns[1:],
        )
    if fatal:
        raise click.exceptions.Exit(5)


def _settings(settings: Settings, database: str | None) -> list[dict[str, str]]:
    """Each setting with its value and where it comes from."""
    rows = []
    for setting in SETTINGS:
        value, source = getattr(settings, setting.name), settings.sources[setting.key]
        if setting.name == "database_url":
            value, source = _without_password(database or value), "--db" if database else source
        if isinstance(value, tuple):
            value = ", ".join(value)
        shown = "none" if value in (None, "") else str(value)
        rows.append({"setting": setting.key, "variable": setting.variable, "value": shown, "source": source})
    return rows


def _settings_check(faults: Sequence[InputError]) -> list[Check]:
    """What is wrong with the settings, if anything is. Every other command refuses to start then."""
    from ..machine.toolchain import Check

    if not faults:
        return []
    count = len(faults)
    found = "a setting is refused" if count == 1 else f"{count} settings are refused"
    hint = "; ".join(map(str, faults))
    return [Check("settings", False, f"{found}; the other checks do without", "everything", hint, "wrong")]


def _target_check(settings: Settings) -> list[Check]:
    """What is wrong with the target of the settings, if anything is."""
    from ..machine.toolchain import Check
    from ..target.spec import load_target

    if settings.target == "auto":
        return []
    try:
        load_target(settings.target)
    except TileSightError as error:
        where = f"setting target, from {settings.sources['target']}"
        needed_for, hint = "commands without --target", f"{error} ({where})"
        return [Check("target", False, settings.target, needed_for, hint, "wrong")]
    return []


def _without_password(url: str) -> str:
    from ..database.engine.connection import parse_url
    from ..database.engine.faults import display_name

    try:
        return display_name(parse_url(url))
    except TileSightError:  # the check of the database gives the reason
        return "unusable"


def _database_check(url: str) -> Check:
    """Open the database for writing, as a session does. A database that does not exist is not created."""
    from ..database.engine.connection import exists, parse_url
    from ..database.engine.faults import display_name
    from ..machine.toolchain import Check

    try:
        parsed = parse_url(url)
        name = display_name(parsed)
        if not exists(parsed):
            return Check(
                "database", True, f"{name}: does not exist yet; the first session creates it", "recording"
            )
        from ..database import open_store

        with open_store(parsed, busy_seconds=1.0):
            return Check("database", True, name, "recording")
    except TileSightError as error:
        return Check("database", False, "unusable", "recording", str(error))
