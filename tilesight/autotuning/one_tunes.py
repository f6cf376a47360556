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
from ..building.cache import told_of

_FOLDER = "tuning"


@contextmanager
def right_to_tune(cache_dir: Path, context_key: str, *, wait: bool) -> Iterator[bool]:
    """Hold the right to tune in that context. False: another process has it, and `wait` is not wanted. Raises `ToolchainError`
    where the folder cannot be written or knows no locks."""
    descriptor = _open(cache_dir, context_key)
    try:
        with told_of(cache_dir):
            ours = file_lock.take(descriptor, wait=wait)
        yield ours
    finally:
        os.close(descriptor)


def who_tunes(cache_dir: Path, context_key: str) -> int | None:
    """Process id of whoever tunes in that context now; None where nobody does, or it is not known."""
    descriptor = _open(cache_dir, context_key)
    try:
        with told_of(cache_dir):
            return file_lock.holder(descriptor)
    finally:
        os.close(descriptor)


def _open(cache_dir: Path, context_key: str) -> int:
    folder = cache_dir / _FOLDER
    with told_of(cache_dir):
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / f"{context_key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
