"""The group of all commands: finds the called one, turns exceptions into one message and an exit code."""

from __future__ import annotations

from importlib import import_module

import click

from ..errors import TileSightError
from ..version import __version__
from .group import Group

ISSUES = "report it with the output of the same command with --debug, and that of `tilesight doctor`"
EXIT_INTERNAL = 1

# name -> summary in `tilesight --help`, which loads no command
COMMANDS = {
    "tune": "Search for the fastest config of a kernel and measure the best candidates.",
    "rank": "Rank configs by predictions alone; needs no GPU.",
    "predict": "Predict the time of a kernel in a file; needs no GPU.",
    "bench": "Tune workloads of several kernels and compare them with the vendor's libraries.",
    "plan": "Choose a few kernels that cover a range of sizes.",
    "recheck": "Measure recorded winners again after an upgrade of software.",
    "build": "Compile a config for any target and show the compiler's figures.",
    "export": "Write built kernels as a folder for C, Python or torch.",
    "calibrate": "Measure a GPU or the processor of this machine and write a target file.",
    "collect": "Measure a sample of a search space and write it to a dataset.",
    "replay": "Compare search strategies on recorded measurements.",
    "explain": "Show what limits a config and why it is slower than the best one.",
    "timeline": "Show the predicted pipeline of a kernel, or a session's stages, over time.",
    "kernels": "List kernels and their shapes.",
    "targets": "List targets, or show one with all its figures.",
    "space": "Show a search space, or why a config is not in it.",
    "model": "Train, evaluate and show the learned cost model.",
    "report": "Write a session, kernel, table, dataset or model as one HTML file.",
    "watch": "Show in the terminal how a running session comes on.",
    "serve": "Show the database and dispatch tables in the browser of this machine.",
    "sessions": "List recorded sessions, show one, compare two.",
    "db": "Query, move and maintain the performance database.",
    "doctor": "Check packages, compilers, GPUs and the database.",
    "completion": "Print the script by which a shell completes names.",
}


class _Lazy(Group):
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


def _install_completion(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from .completion import install

        install(context)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tilesight")
@click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_install_completion,
    help="Make your shell (bash, zsh or fish) complete commands, options and names, and exit.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Tune GPU kernels written in TileLang: predict many candidates, measure only the best."""


def run(given: list[str]) -> int:
    """Run a command and return its exit code. `KeyboardInterrupt` and `BrokenPipeError` are raised."""
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
    except click.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except Exception as error:
        if debug:
            raise
        click.echo(f"error in TileSight itself: {type(error).__name__}: {error}\nPlease {ISSUES}.", err=True)
        return EXIT_INTERNAL
    return 0
