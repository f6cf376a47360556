"""Files that commands write: what can go wrong with one is said before a long work begins, and none is left half written."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from .errors import InputError

_ABANDONED_S = 24 * 3600  # without a change, and what is half written has nobody who writes it


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
    """A path beside `path` to write to, not there yet and no other call's: it takes that one's place once all of it is there,
    and is gone otherwise. Of several processes that write one `path` at once each writes all of it, and the last one's stays.

    Raises `InputError` that begins with `complaint` where the file system refuses.
    """
    partial_path = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{path.suffix}.partial")
    try:
        try:
            _remove_abandoned(path)
            yield partial_path
            os.replace(partial_path, path)
        finally:
            partial_path.unlink(missing_ok=True)
    except OSError as error:
        # pyarrow's own texts repeat paths and numbers
        reason = os.strerror(error.errno) if error.errno else error
        raise InputError(f"{complaint}: {reason}; name a file in a folder that exists and has space") from error


def _remove_abandoned(path: Path) -> None:
    """What killed processes left of `path`, and SQLite's journals of it. That they were killed only their age tells: they may
    have run on another machine."""
    name = re.compile(rf"{re.escape(path.stem)}\.[0-9a-f]{{16}}{re.escape(path.suffix)}\.partial(-journal|-wal|-shm)?")
    with suppress(OSError):
        for entry in os.scandir(path.parent):
            if name.fullmatch(entry.name):
                with suppress(OSError):  # another process was faster
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S:
                        os.unlink(entry.path)
