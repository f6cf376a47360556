"""The entry point. It imports little, so that Ctrl-C is handled before the slow imports begin."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from .interrupts import Interrupts

EXIT_BROKEN_PIPE = 141
INTERRUPTED = "interrupted: finished results are recorded; run the same command again to continue"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 0 done, 1 internal error, 2 wrong input, 3 no candidate, 4 database, 5 toolchain, 130
    interrupted by Ctrl-C, 141 standard output was closed by its reader, 143 ended by SIGTERM.
    """
    if arguments is None:
        _accept_any_name()
    interrupts = Interrupts()
    try:
        interrupts.install()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # a file name need not be UTF-8, and a terminal need not have every character
                stream.reconfigure(errors="backslashreplace")
        from ..settings import completion_request
        from .commands import cli, run

        if arguments is None and (asked := completion_request()):
            from .suggestions import answer

            code = answer(cli, asked)
        else:
            code = run(list(sys.argv[1:] if arguments is None else arguments))
        interrupts.is_finished = True
    except BrokenPipeError:
        interrupts.is_finished = True
        code = EXIT_BROKEN_PIPE
    except KeyboardInterrupt as interrupt:
        interrupts.is_finished = True
        code = interrupts.exit_code
        with suppress(OSError):
            # a command that has other words for its end raises them
            print(str(interrupt) or INTERRUPTED, file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    if code == EXIT_BROKEN_PIPE:
        # Python flushes standard output once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if arguments is None:
        interrupts.ignore()
        # Python kills its process by SIGINT at the end if Ctrl-C came while a string was executed, e.g. as a
        # dataclass was made, although that was handled here. The next string executed makes it forget.
        exec("")
    else:  # called by a program, which goes on
        interrupts.uninstall()
    sys.exit(code)


def _accept_any_name() -> None:
    """Let standard output show names of files that are not UTF-8, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
