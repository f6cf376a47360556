"""What the shell offers for an unfinished word: kernels, targets, shapes, dimensions and dtypes.

These functions are quick: they load neither torch nor TileLang. An error offers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, shell_complete

from ..dtypes import DTYPE_ALIASES, DTYPE_BYTES
from ..errors import TileSightError
from ..problem.operator import Operator
from ..target.spec import node_names, target_names

PROGRAM, VARIABLE = "tilesight", "_TILESIGHT_COMPLETE"  # the variable by which the shell's script asks
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def answer(cli: click.Command, instruction: str) -> int:
    """Answer the shell's script; the exit code. An error offers nothing."""
    try:
        return shell_complete(cli, {}, PROGRAM, VARIABLE, instruction)
    except TileSightError:
        return 0


class BashWords(BashComplete):
    """Bash ends a word at `=`. Here `m=4096,n` is one word again, as in the other shells."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in [*args, incomplete]:
            is_continued = bool(words) and (word == "=" or (words[-1].endswith("=") and bool(word)))
            if is_continued:
                words[-1] += word
            else:
                words.append(word)
        self._before = len(words[-1]) - len(incomplete.removeprefix("="))
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Only what follows the last `=` that bash has seen."""
        before = self._before if len(item.value) >= self._before else 0
        return super().format_completion(CompletionItem(item.value[before:], type=item.type))


add_completion_class(BashWords, "bash")


def _kernels(_known: Sequence[Operator], _incomplete: str) -> Iterable[str]:
    from ..kernels import operators

    return operators()


def _shapes(known: Sequence[Operator], incomplete: str) -> Iterable[str]:
    """Published names, and dimensions that are not given yet."""
    before, comma, last = incomplete.rpartition(",")
    if "=" in last:
        return
    given = {part.partition("=")[0] for part in before.split(",")}
    for operator in known:
        if not comma:
            yield from operator.named
        for dim in (*operator.stated_dims, *operator.attrs):
            if dim not in given:
                yield f"{before}{comma}{dim}="


def _dimensions(known: Sequence[Operator], _incomplete: str) -> Iterable[str]:
    return (dim for operator in known for dim in operator.dims)


def _ranges(known: Sequence[Operator], _incomplete: str) -> Iterable[str]:
    return (f"{dim}=" for operator in known for dim in operator.dims)


def _dtypes(known: Sequence[Operator], _incomplete: str) -> Iterable[str]:
    """Of the kernels; all before a kernel is named."""
    return [d for operator in known for d in operator.dtypes] or [*DTYPE_BYTES, *DTYPE_ALIASES]


def _completes(suggest: Callable[[Sequence[Operator], str], Iterable[str]]) -> Complete:
    """A function for click. `suggest` gets the operators of the command line, and the unfinished word."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = dict.fromkeys(suggest(_operators(context), incomplete))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def _operators(context: click.Context) -> list[Operator]:
    """The operators of the kernels that the command line names so far."""
    from ..kernels import operator

    # click has not assigned arguments yet if the last option still lacks its value
    given = context.params.get("kernel") or context.params.get("kernels")
    names = (given,) if isinstance(given, str) else given if isinstance(given, tuple) else context.args
    found = []
    for name in names or context.args:
        with suppress(TileSightError):
            found.append(operator(name))
    return found


def targets(_context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of targets; where none fits, files."""
    names = [name for name in ("auto", *target_names(), *node_names()) if name.startswith(incomplete)]
    return [*map(CompletionItem, names)] or [CompletionItem(incomplete, type="file")]


kernels, shapes, dtypes = _completes(_kernels), _completes(_shapes), _completes(_dtypes)
dimensions, ranges = _completes(_dimensions), _completes(_ranges)
