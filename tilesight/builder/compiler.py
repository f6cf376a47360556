"""Runs compilers, and raises their failures as `CompileError`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..workers.worker import end_with_parent

_DETAIL_TAIL = 4000


class CompileError(Exception):
    """The compiler refused the source, or was killed.

    Attributes:
        detail: The tail of the compiler's output.
        is_killed: The compiler was killed, mostly for lack of memory; the source is not at fault.
    """

    def __init__(self, message: str, detail: str, *, is_killed: bool = False) -> None:
        super().__init__(message)
        self.detail, self.is_killed = detail, is_killed


def compile_in(folder: Path, command: Sequence[str | Path]) -> str:
    """Run a compiler in `folder`, which also holds its temporary files, and return its output.

    There is no time limit besides that of the worker process. Raises `CompileError`.
    """
    try:
        done = subprocess.run(
            ["env", f"TMPDIR={folder}", *map(str, command)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=partial(end_with_parent, os.getpid()),  # a killed worker leaves no compiler behind
            check=False,
        )
    except OSError as error:
        raise CompileError(f"{command[0]} cannot be run: {error}", "") from error
    if done.returncode:
        name = Path(command[0]).name
        ended = (
            f"was killed by signal {-done.returncode}"
            if done.returncode < 0
            else f"ended with exit code {done.returncode}"
        )
        # compiler drivers report killed subprocesses in their output
        is_killed = (
            done.returncode == -signal.SIGKILL
            or re.search(r"died due to signal 9|Killed signal terminated", done.stdout) is not None
        )
        raise CompileError(
            f"{name} {ended}: {first_error(done.stdout)}", done.stdout[-_DETAIL_TAIL:], is_killed=is_killed
        )
    return done.stdout


def first_error(output: str) -> str:
    """The line of a compiler's output that best explains its failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for pattern in (
        r"undefined reference|No space left",
        r"\b(error|fatal)\b",
    ):  # first: the final error line of a linker names no symbol
        for line in lines:
            if re.search(pattern, line, re.IGNORECASE):
                return line
    return lines[-1] if lines else "no output"
