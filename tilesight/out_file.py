"""The file that a long command writes in the end: what can go wrong with it is said before the work begins."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

from .errors import InputError


def check_out(out: Path, suffix: str, what: str) -> None:
    """Raise `InputError` for a file that does not end in `suffix`, as `what` do, or that cannot be written. Leaves nothing."""
    if out.suffix != suffix:
        raise InputError(f"--out {out} must end in {suffix}, as {what} do")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder '{out.parent}'; make it, or name another file")
    if out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file in it")
    try:
        with TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise InputError(
            f"--out {out}: nothing can be written in folder '{out.parent}': {error.strerror or error}; name another file"
        ) from error
