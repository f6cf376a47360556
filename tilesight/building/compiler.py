"""Running a compiler, and what its failure means."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..workers.process import end_with_parent

_DETAIL_TAIL = 4000


class CompileError(Exception):
    """The compiler refused the source, or was killed (`is_killed`: mostly for want of memory), which says nothing against the
    source. `detail` is the tail of what it printed."""

    def __init__(self, message: str, detail: str, *, is_killed: bool = False) -> None:
        super().__init__(message)
        self.detail, self.is_killed = detail, is_killed


def compile_in(folder: Path, command: Sequence[str | Path]) -> str:
    """Run a compiler in its working folder, where its temporary files go too; returns what it printed.

    Raises `CompileError`. It has no time limit of its own: the worker process that runs it has one.
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
        ended = f"was killed by signal {-done.returncode}" if done.returncode < 0 else f"ended with exit code {done.returncode}"
        # drivers of compilers say so of the programs that they start
        is_killed = (
            done.returncode == -signal.SIGKILL or re.search(r"died due to signal 9|Killed signal terminated", done.stdout) is not None
        )
        raise CompileError(f"{name} {ended}: {first_error(done.stdout)}", done.stdout[-_DETAIL_TAIL:], is_killed=is_killed)
    return done.stdout


def first_error(output: str) -> str:
    """The line that says most of why a compiler failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for telling in (r"undefined reference|No space left", r"\b(error|fatal)\b"):  # a linker's own error names nothing
        for line in lines:
            if re.search(telling, line, re.IGNORECASE):
                return line
    return lines[-1] if lines else "no output"
