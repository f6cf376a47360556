"""The entry point: finds the command, and turns exceptions into one message and an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

import click

from ..errors import TileSightError
from ..version import __version__

ISSUES = "report it with the output of the same command with --debug, and that of `tilesight doctor`"
EXIT_INTERNAL, EXIT_INTERRUPT, EXIT_BROKEN_PIPE, EXIT_TERMINATED = 1, 130, 141, 143

# name -> summary in `tilesight --help`, which loads no command
COMMANDS = {
    "tune": "Search for the fastest config of a kernel and measure the best candidates.",
    "rank": "Rank configs by predictions alone; needs no GPU.",
    "plan": "Choose a few kernels that cover a range of sizes.",
    "build": "Compile a config for any target and show the compiler's figures.",
    "calibrate": "Measure the GPU of this machine and write a target file.",
    "collect": "Measure a sample of a search space and write it to a dataset.",
    "replay": "Compare search strategies on recorded measurements.",
    "explain": "Show what limits a config and why it is slower than the best one.",
    "kernels": "List kernels and their shapes.",
    "targets": "List targets, or show one with all its figures.",
    "space": "Show a search space, or why a config is not in it.",
    "model": "Train, evaluate and show the learned cost model.",
    "db": "Query, move and maintain the performance database.",
    "doctor": "Check packages, compilers, GPUs and the database.",
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from ..errors import UnknownNameError

            raise UnknownNameError("command", args[0], COMMANDS, "`tilesight --help` lists them.")
        return super().resolve_command(ctx, args)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tilesight")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Tune GPU kernels written in TileLang: predict many candidates, measure only the best."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 0 done, 1 internal error, 2 wrong input, 3 no candidate, 4 database, 5 toolchain, 130
    interrupted by Ctrl-C, 141 standard output was closed by its reader, 143 ended by SIGTERM.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a file name need not be UTF-8, and a terminal need not have every character
            stream.reconfigure(errors="backslashreplace")
    code = _run(given)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    if code == EXIT_BROKEN_PIPE:
        # Python flushes standard output once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


class _Terminated(KeyboardInterrupt):
    """SIGTERM ends a command as Ctrl-C does: work is recorded, processes are ended."""


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end is under way
    raise _Terminated


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
    except (KeyboardInterrupt, click.Abort) as request:
        click.echo(
            "interrupted: finished results are recorded; run the same command again to continue", err=True
        )
        return EXIT_TERMINATED if isinstance(request, _Terminated) else EXIT_INTERRUPT
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
