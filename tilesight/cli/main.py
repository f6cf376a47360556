"""The entry point: finds the command, and turns what goes wrong into one message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from ..errors import TileSightError
from ..version import __version__

ISSUES = "report it with the output of the same command with --debug, and that of `tilesight doctor`"
EXIT_INTERNAL, EXIT_INTERRUPT, EXIT_BROKEN_PIPE = 1, 130, 141

# name -> what `tilesight --help` says of it: no command is loaded for that
COMMANDS = {
    "tune": "Search the fastest config of a kernel and measure the best.",
    "rank": "Rank configs by the model alone; needs no GPU.",
    "plan": "Choose the few kernels that cover a range of shapes.",
    "build": "Build a config for any target, and show what its compiler says.",
    "calibrate": "Measure the GPU at hand and write a target file.",
    "collect": "Measure a sample of a space for a dataset.",
    "replay": "Compare search strategies on recorded measurements.",
    "explain": "Show what limits a config, and why it loses to the best.",
    "kernels": "List kernels and their shapes.",
    "targets": "List targets, or show one with all its figures.",
    "space": "Show a search space, and why a config is not in it.",
    "model": "Train, judge and show the learned cost model.",
    "db": "Look into the performance database, move it, and keep it well.",
    "doctor": "Check what is installed and what is missing.",
}


class _Lazy(click.Group):
    """Loads a command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from ..errors import UnknownNameError

            raise UnknownNameError("command", args[0], COMMANDS, "`tilesight --help` lists them.")
        return super().resolve_command(ctx, args)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tilesight")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Tune GPU kernels written in TileLang: look at the lowered IR of many candidates, measure only the best."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 internal error, 2 wrong input, 3 no candidate, 4 database, 5 toolchain,
    130 interrupted, 141 the reader of the output has gone."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    code = _run(given)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    if code == EXIT_BROKEN_PIPE:
        # Python would try to flush once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(given: list[str]) -> int:
    debug = "--debug" in given
    try:
        with cli.make_context("tilesight", given) as context:
            cli.invoke(context)
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except TileSightError as error:
        if debug:
            raise
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; what was finished is recorded, the same command goes on from there", err=True)
        return EXIT_INTERRUPT
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if debug:
            raise
        click.echo(f"error in TileSight itself: {type(error).__name__}: {error}\nPlease {ISSUES}.", err=True)
        return EXIT_INTERNAL
    return 0


if __name__ == "__main__":
    main()
