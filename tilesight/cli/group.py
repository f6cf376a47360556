"""Commands with subcommands."""

from __future__ import annotations

import click

from ..errors import UnknownNameError


class Group(click.Group):
    """A command with subcommands; an unknown one is an `UnknownNameError` that offers the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            raise UnknownNameError("command", args[0], names, f"`{ctx.command_path} --help` lists them.")
        return super().resolve_command(ctx, args)
