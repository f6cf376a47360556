"""`tilesight db`: commands for the performance database."""

from __future__ import annotations

import click

from ..group import Group
from . import contents, files, misses, plans, tools, upkeep, why


@click.group(cls=Group)
def db() -> None:
    """Look into the performance database, move it, and keep it well."""


for command in (
    *contents.COMMANDS,
    *files.COMMANDS,
    *upkeep.COMMANDS,
    *tools.COMMANDS,
    misses.misses,
    plans.plans,
    why.why,
):
    db.add_command(command)

__all__ = ["db"]
