"""One process tunes, others know it: a lock on a file in the kernel cache for each context.

It ends with its owner, however that ends. It holds on one machine: on several that share a database, each tunes for its own
device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import file_lock
from ..errors import ToolchainError

_FOLDER = "tuning"


@contextmanager
def right_to_tune(cache_dir: Path, context_key: str, *, wait: bool) -> Iterator[bool]:
    """Hold the right to tune in that context. False: another process has it, and `wait` is not wanted. Raises `ToolchainError`
    where the folder cannot be written or knows no locks."""
    descriptor = _open(cache_dir, context_key)
    try:
        with _told(cache_dir):
            ours = file_lock.take(descriptor, wait=wait)
        yield ours
    finally:
        os.close(descriptor)


def who_tunes(cache_dir: Path, context_key: str) -> int | None:
    """Process id of whoever tunes in that context now; None where nobody does, or it is not known."""
    descriptor = _open(cache_dir, context_key)
    try:
        with _told(cache_dir):
            return file_lock.holder(descriptor)
    finally:
        os.close(descriptor)


def _open(cache_dir: Path, context_key: str) -> int:
    folder = cache_dir / _FOLDER
    with _told(cache_dir):
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / f"{context_key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


@contextmanager
def _told(cache_dir: Path) -> Iterator[None]:
    """What the system says of the folder, as an error that a user can mend."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ToolchainError(
            f"kernel cache '{cache_dir}': {reason}; set TILESIGHT_CACHE_DIR to a folder that can be written and locked"
        ) from error
