"""`tilesight completion`: the script by which a shell completes commands, options and names.

`tilesight --install-completion` puts it where the user's shell finds it.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from ..errors import InputError
from ..files import replacing
from ..settings import login_shell
from . import options, output, suggestions

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@options.with_options(options.debug)
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, kernels, targets, shapes and dtypes.

    \b
    bash  eval "$(tilesight completion bash)" in ~/.bashrc
    zsh   eval "$(tilesight completion zsh)" in ~/.zshrc
    fish  tilesight completion fish > ~/.config/fish/completions/tilesight.fish
    """
    output.print_line(script_of(shell, context.find_root().command))


def script_of(shell: str, command: click.Command) -> str:
    """The script of a shell."""
    script = get_completion_class(shell)
    assert script is not None  # the choices are those that click knows
    return script(command, {}, suggestions.PROGRAM, suggestions.VARIABLE).source()


def install(context: click.Context) -> None:
    """What the option `--install-completion` does: set up completion for the user's shell, and end.

    Raises `InputError` if the shell is unknown or its file cannot be written.
    """
    shell = Path(login_shell()).name
    if shell not in SHELLS:
        raise InputError(
            f"the shell '{shell or 'of no name'}' (SHELL) is none of {', '.join(SHELLS)}; `tilesight "
            "completion SHELL` prints the script of each"
        )
    try:
        file, text, is_new = _set_up(shell, context.find_root().command)
    except OSError as error:
        raise InputError(f"'{error.filename}' cannot be read: {error.strerror or error}") from error
    if is_new:
        _write(file.resolve(), text)
    done = "completion is set up in" if is_new else "completion was set up already in"
    output.print_text(f"{done} {file}; it works in each new {shell}")
    context.exit()


def _set_up(shell: str, command: click.Command) -> tuple[Path, str, bool]:
    """The file of a shell that sets up completion, its text with that, and whether that is new."""
    if shell == "fish":
        file = Path.home() / ".config" / "fish" / "completions" / f"{suggestions.PROGRAM}.fish"
        text = script_of(shell, command)
        return file, text, not file.exists() or _read(file) != text
    file, line = Path.home() / f".{shell}rc", _line(shell)
    before = _read(file) if file.exists() else ""
    separator = "" if not before or before.endswith("\n") else "\n"
    return file, f"{before}{separator}{line}\n", line not in before.splitlines()


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="surrogateescape")  # a user's file may have other bytes


def _line(shell: str) -> str:
    program = suggestions.PROGRAM
    return f'command -v {program} >/dev/null && eval "$({program} completion {shell})"'


def _write(file: Path, text: str) -> None:
    complaint = f"'{file}' cannot be written"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        mode = file.stat().st_mode if file.exists() else None
    except OSError as error:
        raise InputError(f"{complaint}: {error.strerror or error}") from error
    with replacing(file, complaint) as partial:
        partial.write_text(text, encoding="utf-8", errors="surrogateescape")
        if mode is not None:
            os.chmod(partial, mode)
