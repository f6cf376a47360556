"""Files that commands write: what can go wrong with one is said before a long work begins, and none is left half written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def replacing(path: Path, complaint: str) -> Iterator[Path]:
    """A path beside `path` to write to: it takes that one's place once all of it is there, and is gone otherwise.

    Raises `InputError` that begins with `complaint` where the file system refuses.
    """
    partial_path = path.with_name(path.name + ".partial")
    try:
        try:
            yield partial_path
            os.replace(partial_path, path)
        finally:
            partial_path.unlink(missing_ok=True)
    except OSError as error:
        # pyarrow's own texts repeat paths and numbers
        reason = os.strerror(error.errno) if error.errno else error
        raise InputError(f"{complaint}: {reason}; name a file in a folder that exists and has space") from error
