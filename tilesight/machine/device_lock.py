"""A lock for each GPU and one for the processor, shared by all users of a machine.

A process that measures has the device for itself.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..errors import ToolchainError
from ..files import HOLDER_BYTES, lock_holder, take_lock

PROCESSOR_LOCK = "processor"  # in place of a GPU's UUID
_SHARED = "tilesight-devices"
_BASE = Path("/tmp")  # not TMPDIR, which may differ between users or jobs
TURN_S = 60.0  # after the end of its turn a process is listed for so long


@contextmanager
def alone_on(*uuids: str) -> Iterator[None]:
    """Wait for the locks of the GPUs with these UUIDs, or of `PROCESSOR_LOCK`, and hold them.

    Several are taken in one order by all processes, so that none waits for another for ever. Raises
    `ToolchainError` if no folder is usable.
    """
    with ExitStack() as held:
        for uuid in sorted(uuids):
            descriptor = _open(uuid)
            held.callback(os.close, descriptor)
            take_lock(descriptor)
            _list_turn(descriptor)
            held.callback(_list_turn, descriptor)
        yield


def holder_of(uuid: str) -> int | None:
    """Id of the process that holds the lock of that GPU now; None if there is none, or it is unknown."""
    descriptor = _open(uuid)
    try:
        return lock_holder(descriptor)
    finally:
        os.close(descriptor)


def taking_turns(*uuids: str) -> frozenset[int]:
    """Ids of the processes that have held the lock of one of these GPUs lately.

    They compute on it in their turns only. The driver's figures of a GPU's use are means over a second, so
    they show turns that ended before.
    """
    found: set[int] = set()
    for uuid in uuids:
        with suppress(ToolchainError):
            descriptor = _open(uuid)
            try:
                found |= _turns(descriptor).keys()
            finally:
                os.close(descriptor)
    return frozenset(found)


def _list_turn(descriptor: int) -> None:
    """List this process, which holds the lock, in its file: behind the holder's id are those that had it."""
    turns = {**_turns(descriptor), os.getpid(): time.monotonic()}
    text = "".join(f"{pid} {at:.1f}\n" for pid, at in turns.items())
    with suppress(OSError):  # a full disk
        os.ftruncate(descriptor, HOLDER_BYTES)
        os.pwrite(descriptor, text.encode(), HOLDER_BYTES)


def _turns(descriptor: int) -> dict[int, float]:
    """When the last turn of each listed process was, by the monotonic clock."""
    text = os.pread(descriptor, 1 << 16, HOLDER_BYTES).decode(errors="replace")
    lines = (line.split() for line in text.splitlines())
    now, found = time.monotonic(), {}
    for line in lines:
        with suppress(ValueError):
            pid, at = line
            if -1.0 < now - float(at) < TURN_S:  # a later time is of an earlier start of the machine
                found[int(pid)] = float(at)
    return found


def _open(uuid: str) -> int:
    name = re.sub(r"[^A-Za-z0-9.-]", "_", uuid) + ".lock"
    refused: list[str] = []
    for folder in _folders():
        try:
            return _lock_file(folder, name)
        except OSError as error:
            refused.append(f"{folder}: {error.strerror or error}")
    raise ToolchainError(
        f"no lock can be had for {uuid}: {'; '.join(refused)}; make one of these folders writable"
    )


def _folders() -> tuple[Path, ...]:
    """Folders for lock files, in the order in which they are tried: all processes must take the same one."""
    own = f"{_SHARED}-{os.getuid()}"
    return _BASE / _SHARED, _BASE / own, Path(tempfile.gettempdir()) / own


def _lock_file(folder: Path, name: str) -> int:
    """A descriptor of the lock file, which is created if it is missing.

    Raises `OSError` if the folder or the file is not as expected: another user may have created it.
    """
    shared = folder.name == _SHARED
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777 if shared else 0o700)  # the umask reduces the mode of mkdir
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(errno.ENOTDIR, "is not a folder")
    if found.st_uid not in (0, os.getuid()) and not (shared and found.st_mode & stat.S_ISVTX):
        raise OSError(errno.EPERM, "belongs to somebody else")
    path = folder / name
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # without O_CREAT, which the kernel refuses for another user's file in a shared folder
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666 if shared else 0o600)
        except FileExistsError:  # another process has just created it
            descriptor = os.open(path, flags)
    opened = os.fstat(descriptor)
    if not stat.S_ISREG(opened.st_mode) or opened.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EPERM, f"'{name}' is not a plain file of its own")
    return descriptor
