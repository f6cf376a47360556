"""A new folder that appears as a whole: it is written beside its place and then renamed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError


def check_new_folder(out: Path) -> None:
    """Raise `InputError` unless a new folder can be made at `out`. An empty folder may be there."""
    try:
        if out.is_symlink() or (out.exists() and not out.is_dir()):
            raise InputError(f"--out {out} is no folder; name a new one")
        if out.is_dir() and any(out.iterdir()):
            raise InputError(f"--out {out} is a folder with files in it; name a new folder, or empty it")
        if not out.parent.is_dir():
            raise InputError(f"--out {out}: there is no folder '{out.parent}'; make it, or name another one")
        probe = _sibling(out)
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise _refusal(out, error) from error


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yields a folder to write in, which becomes `out` at the end. After an error nothing of it stays.

    Raises `InputError` if the file system refuses, or `out` was filled meanwhile.
    """
    made = _sibling(out)
    try:
        made.mkdir()
        yield made
        os.rename(made, out)  # takes the place of an empty folder only
    except OSError as error:
        raise _refusal(out, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _sibling(out: Path) -> Path:
    return out.absolute().with_name(f".{out.absolute().name}.{secrets.token_hex(8)}.partial")


def _refusal(out: Path, error: OSError) -> InputError:
    reason = error.strerror or error
    return InputError(f"--out {out} cannot be written: {reason}; name a folder in one that can be written")
