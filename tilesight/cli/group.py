"""Commands with subcommands."""

from __future__ import annotations

import re
from typing import Any

import click

from ..errors import UnknownNameError


class Group(click.Group):
    """A command with subcommands; an unknown one is an `UnknownNameError` that offers the nearest.

    With `default`, the name of a subcommand, other arguments are those of this subcommand.
    """

    def __init__(self, *arguments: Any, default: str | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.default = default
        if default:
            self.context_settings = {**self.context_settings, "ignore_unknown_options": True}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each subcommand with its whole first sentence; click cuts sentences."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(c.help or "")) for name, c in commands if c])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if self.default and args and args[0] not in names:
            args = [self.default, *args]
        if args and not args[0].startswith("-") and args[0] not in names:
            raise UnknownNameError("command", args[0], names, f"`{ctx.command_path} --help` lists them.")
        return super().resolve_command(ctx, args)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s+(?=[A-Z])", paragraph)[0]
