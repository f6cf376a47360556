"""`tilesight completion`: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from . import options, output, suggestions


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@options.with_options(options.debug)
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, kernels, targets, shapes and dtypes.

    \b
    bash  eval "$(tilesight completion bash)" in ~/.bashrc
    zsh   eval "$(tilesight completion zsh)" in ~/.zshrc
    fish  tilesight completion fish > ~/.config/fish/completions/tilesight.fish
    """
    script = get_completion_class(shell)
    assert script is not None  # the choices are those that click knows
    made = script(context.find_root().command, {}, suggestions.PROGRAM, suggestions.VARIABLE)
    output.print_line(made.source())
