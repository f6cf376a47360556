"""A lock for each GPU that all users of a machine share, so that whoever measures is alone on it."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import file_lock
from .errors import ToolchainError

_SHARED = "tilesight-devices"
_BASE = Path("/tmp")  # not TMPDIR, which may be a user's or a job's own


@contextmanager
def alone_on(uuid: str) -> Iterator[None]:
    """Wait until no other process holds the lock of that GPU, and hold it. Raises `ToolchainError` where no folder can hold
    it."""
    descriptor = _open(uuid)
    try:
        file_lock.take(descriptor)
        yield
    finally:
        os.close(descriptor)


def holder_of(uuid: str) -> int | None:
    """Process id of whoever holds the lock of that GPU now; None where nobody does, or it is not known."""
    descriptor = _open(uuid)
    try:
        return file_lock.holder(descriptor)
    finally:
        os.close(descriptor)


def _open(uuid: str) -> int:
    name = re.sub(r"[^A-Za-z0-9.-]", "_", uuid) + ".lock"
    refused: list[str] = []
    for place in _folders():
        try:
            return _lock_file(place, name)
        except OSError as error:
            refused.append(f"{place}: {error.strerror or error}")
    raise ToolchainError(f"no lock can be had for {uuid}: {'; '.join(refused)}; make one of these folders writable")


def _folders() -> tuple[Path, ...]:
    base = _BASE if _BASE.is_dir() else Path(tempfile.gettempdir())
    return base / _SHARED, base / f"{_SHARED}-{os.getuid()}"


def _lock_file(folder: Path, name: str) -> int:
    """A descriptor of the lock's file, which is made where it is missing. Raises `OSError` where the folder or the file
    is not what it should be: others may have put it there."""
    shared = folder.name == _SHARED
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777 if shared else 0o700)  # what mkdir is told, the umask reduces
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(errno.ENOTDIR, "is not a folder")
    if found.st_uid not in (0, os.getuid()) and not (shared and found.st_mode & stat.S_ISVTX):
        raise OSError(errno.EPERM, "belongs to somebody else")
    path = folder / name
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # without O_CREAT: the kernel refuses it for a file of somebody else in a folder that all may write
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666 if shared else 0o600)
        except FileExistsError:  # somebody else has just made it
            descriptor = os.open(path, flags)
    opened = os.fstat(descriptor)
    if not stat.S_ISREG(opened.st_mode) or opened.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EPERM, f"'{name}' is not a plain file of its own")
    return descriptor
