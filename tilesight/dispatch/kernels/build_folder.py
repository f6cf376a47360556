"""Where a dispatcher builds: in the kernel cache, or in a temporary folder if the cache cannot be written."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from ...builder.kernel_cache import cache_errors
from ...files import may_write
from ...machine.fork_locks import reset_in_forks
from ..notices import say_once


class BuildFolder:
    """The folder for the libraries that one dispatcher builds; a temporary one ends with this object."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._temporary: Path | None = None
        reset_in_forks(self)

    def path(self) -> Path:
        """The folder; a temporary one is made on the first call.

        Raises `ToolchainError` if neither the cache nor the system's temporary folder can be written.
        """
        if all(may_write(folder) for folder in (self._cache_dir, self._cache_dir / "kernels")):
            return self._cache_dir
        if self._temporary is None:
            with cache_errors(self._cache_dir):
                self._temporary = Path(tempfile.mkdtemp(prefix="tilesight-kernels-"))
            weakref.finalize(self, _remove, self._temporary, os.getpid())
            say_once(
                f"kernel cache '{self._cache_dir}' cannot be written: kernels that it lacks are built in a "
                "temporary folder, by each process again; set TILESIGHT_CACHE_DIR to a folder that can be "
                "written"
            )
        return self._temporary

    def reset_after_fork(self) -> None:
        """The parent removes its folder when it ends; a child makes one of its own."""
        self._temporary = None


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not at the end of a forked child
        shutil.rmtree(folder, ignore_errors=True)
