"""Output files that are checked before long work and never left half written, and advisory file locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources.abc import Traversable
from pathlib import Path
from tempfile import TemporaryFile

from .errors import InputError

_ABANDONED_S = 24 * 3600  # age without a change after which a partial file counts as abandoned


def check_out(out: Path, suffix: str, what: str, option: str = "--out") -> None:
    """Check an output file, without creating it.

    Args:
        out: The file.
        suffix: The suffix that it must have.
        what: The kind of files, in the plural, for messages.
        option: That names the file, for messages.

    Raises:
        InputError: The suffix is wrong, or the file cannot be written.
    """
    if out.suffix != suffix:
        raise InputError(f"{option} {out} must end in {suffix}, as {what} do")
    if not out.parent.is_dir():
        raise InputError(f"{option} {out}: there is no folder '{out.parent}'; make it, or name another file")
    if out.is_dir():
        raise InputError(f"{option} {out} is a folder; name a file in it")
    try:
        with TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise InputError(
            f"{option} {out}: nothing can be written in folder '{out.parent}': {error.strerror or error}; "
            "name another file"
        ) from error


def check_replaces(out: Path, is_ours: Callable[[str], bool], what: str, most: int = -1) -> None:
    """Check the file that is at `out`, if any, before another one takes its place. An empty one may go.

    Args:
        out: The file.
        is_ours: Whether a file with this text may be replaced.
        what: What it must be, for the message.
        most: Characters of its beginning that tell; -1 for all.

    Raises:
        InputError: Another file is there, or it cannot be read.
    """
    try:
        with out.open(encoding="utf-8", errors="replace") as file:
            text = file.read(most)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"--out {out}: the file there cannot be read: {error.strerror or error}") from error
    if text and not is_ours(text):
        raise InputError(f"--out {out} is there and no {what} of TileSight; name another file, or remove it")


def may_write(folder: Path) -> bool:
    """Whether this user may make files in `folder`, or `folder` itself if it is not there yet.

    Root may not on a file system that is mounted for reading only.
    """
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    return os.access(nearest, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def others_who_write(path: Path) -> str:
    """What makes a file or folder one that another user may have written, for a message; "" if nothing does.

    A link counts with what it leads to. Raises `OSError` if it does not exist.
    """
    for found in (path.lstat(), path.stat()):
        if found.st_uid not in (0, os.getuid()):
            return f"belongs to another user (id {found.st_uid})"
        if found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode):
            return "can be written by all users"
    return ""


def file_hash(path: Path) -> str:
    """The SHA-256 of a file's content, as hexadecimal digits. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bounded(path: Path | Traversable, most_bytes: int) -> bytes:
    """The content of a file of at most `most_bytes`; devices and pipes that never end are read no further.

    Raises `OSError`, for a larger file with `errno.EFBIG`.
    """
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        size = f"{most_bytes >> 20} MiB" if most_bytes >= 1 << 20 else f"{most_bytes >> 10} KiB"
        raise OSError(errno.EFBIG, f"it is larger than {size}, the limit for such files")
    return content


def read_text(
    path: Path, what: str, most_bytes: int = 1 << 20, error_type: type[InputError] = InputError
) -> str:
    """The text of a file that the user named.

    Raises an `error_type` that begins with `what`, if the file cannot be read, is too large, or is not UTF-8.
    """
    try:
        return read_bounded(path, most_bytes).decode("utf-8")
    except (OSError, ValueError) as error:  # ValueError: also a path with a null character
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise error_type(f"{what} cannot be read: {reason}") from error


def flush(path: Path) -> None:
    """Wait until a file or folder is on disk, so that a power failure leaves it whole. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, complaint: str) -> Iterator[Path]:
    """Write a file as a whole: yields a new path beside `path` to write to, which replaces `path` at the end.

    After an error the new file is removed. If several processes write one `path` at once, the last complete
    file stays. If the file system refuses, `InputError` is raised, with a message that begins with
    `complaint`.
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
        # messages of pyarrow repeat paths and numbers
        reason = os.strerror(error.errno) if error.errno else error
        raise InputError(
            f"{complaint}: {reason}; name a file in a folder that exists and has space"
        ) from error


def _remove_abandoned(path: Path) -> None:
    """Remove old partial files of `path` that killed processes left, with their SQLite journals.

    Only age shows that a file is abandoned: its process may have run on another machine.
    """
    name = re.compile(
        rf"{re.escape(path.stem)}\.[0-9a-f]{{16}}{re.escape(path.suffix)}\.partial(-journal|-wal|-shm)?"
    )
    with suppress(OSError):
        for entry in os.scandir(path.parent):
            if name.fullmatch(entry.name):
                with suppress(OSError):  # another process has removed it
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S:
                        os.unlink(entry.path)


HOLDER_BYTES = 20  # at the beginning of a locked file: the id of the process that holds it


def take_lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock an open file (`flock`) until its descriptor is closed, and write this process's id into it.

    Returns False if another process holds the lock and `wait` is False. The lock also ends with the process.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    with suppress(OSError):  # on a full disk the holder is unknown
        os.pwrite(descriptor, f"{os.getpid():<{HOLDER_BYTES}}".encode(), 0)
    return True


def release_lock(descriptor: int) -> None:
    """End a lock now; it would last as long as a forked child has the descriptor, too."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_holder(descriptor: int) -> int | None:
    """Id of the process that holds the lock now; None if there is none, or it is unknown."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, HOLDER_BYTES, 0).strip()
        return int(text) if text.isdigit() else None
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return None
