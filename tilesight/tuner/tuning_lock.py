"""A lock for each context, on a file in the kernel cache: one process tunes, others can see it.

The lock ends with its process, however that ends. It holds on one machine: machines that share a database
each tune for their own device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..builder.kernel_cache import cache_errors
from ..files import lock_holder, take_lock

_FOLDER = "tuning"


@contextmanager
def tuning_lock(
    cache_dir: Path, context_key: str, *, wait: bool, notice: Callable[[str], None] | None = None
) -> Iterator[bool]:
    """Hold the lock of a context.

    Args:
        cache_dir: the kernel cache.
        context_key: `Context.key`.
        wait: wait for another process that holds it.
        notice: receives a text for the user before it waits.

    Yields:
        Whether this process holds it; always True with `wait`.

    Raises:
        ToolchainError: the folder cannot be written, or its file system has no locks.
    """
    descriptor = _open(cache_dir, context_key)
    try:
        with cache_errors(cache_dir):
            is_held = take_lock(descriptor, wait=False)
        if wait and not is_held:
            process = tuning_process(cache_dir, context_key)
            if notice is not None and process is not None:
                notice(f"waiting for process {process}, which tunes the same")
            with cache_errors(cache_dir):
                is_held = take_lock(descriptor)
        yield is_held
    finally:
        os.close(descriptor)


def tuning_process(cache_dir: Path, context_key: str) -> int | None:
    """Id of the process that holds a context's lock; None if no process does, or it is not known."""
    descriptor = _open(cache_dir, context_key)
    try:
        with cache_errors(cache_dir):
            return lock_holder(descriptor)
    finally:
        os.close(descriptor)


def _open(cache_dir: Path, context_key: str) -> int:
    folder = cache_dir / _FOLDER
    with cache_errors(cache_dir):
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / f"{context_key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
