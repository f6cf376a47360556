"""A lock for each context, on a file in the kernel cache: one process tunes, others can see it.

The lock ends with its process, however that ends. It holds on one machine: machines that share a database
each tune for their own device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..builder.kernel_cache import cache_errors
from ..files import lock_holder, release_lock, take_lock

_FOLDER = "tuning"
_held: set[int] = set()  # descriptors of locks of this process


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
    process, descriptor = os.getpid(), _open(cache_dir, context_key)
    _held.add(descriptor)
    is_held = False
    try:
        with cache_errors(cache_dir):
            is_held = take_lock(descriptor, wait=False)
        if wait and not is_held:
            holder = tuning_process(cache_dir, context_key)
            if notice is not None and holder is not None:
                notice(f"waiting for process {holder}, which tunes the same")
            with cache_errors(cache_dir):
                is_held = take_lock(descriptor)
        yield is_held
    finally:
        if process == os.getpid():  # a fork inside has closed it
            _held.discard(descriptor)
            if is_held:
                release_lock(descriptor)
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


def _close_in_fork() -> None:
    """A lock lasts until no process has its descriptor: a forked child would hold the locks of its parent."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_close_in_fork)
