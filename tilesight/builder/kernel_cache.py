"""The kernel cache: built libraries on disk, under a hash of everything they are built from.

The folder may be deleted at any time. Files of an entry: <key>.so, the library (or <key>.hsaco, a code object
without a launcher); <key>.json, the compiler's figures; <key>.cu or .cpp, the source for readers. The .json
is written last and makes the entry valid. It has the hash of the library: one that was changed or damaged
later is built again. Files appear by rename when they are on disk: no half-written file is ever read.

Libraries are loaded into the process. So the folder must belong to this user or to root, and no other user
may write to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import ToolchainError
from ..files import file_hash, flush, others_who_write
from ..machine.owner import is_alive, this_process

CODE_OBJECT = ".hsaco"  # the suffix of AMD's tools
_STALE_S = 24 * 3600  # an older working folder is left from a killed build, on this machine or another
_OWNER = "owner"  # file in a working folder: the process that builds there


@dataclass(frozen=True, slots=True)
class KernelCacheEntry:
    """A built library, with the compiler's figures and version. `binary`: see `binary_identity.py`."""

    library: Path
    resources: Mapping[str, int]
    compiler: str
    binary: str = ""


def cache_key(*parts: str) -> str:
    """24 hex digits over `parts`."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part.encode())
    return digest.hexdigest()[:24]


@contextmanager
def cache_errors(folder: Path) -> Iterator[None]:
    """Turn `OSError` of the kernel cache into `ToolchainError` with a remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ToolchainError(
            f"kernel cache '{folder}': {reason}; "
            "set TILESIGHT_CACHE_DIR to a folder that can be written and locked"
        ) from error


def check_folder(folder: Path) -> None:
    """Raise `ToolchainError` if the kernel cache in `folder` cannot be written, or others may write to it."""
    with cache_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    check_owner(folder)


def check_owner(folder: Path) -> None:
    """Raise `ToolchainError` if another user owns a folder of the kernel cache, or all users may write to it.

    Such users could replace a library that this process will load. A folder that does not exist is no error.
    """
    for path in (folder, folder / "kernels", folder / "dispatch"):
        try:
            reason = others_who_write(path)
        except OSError:
            continue
        if reason:
            raise ToolchainError(
                f"kernel cache: '{path}' {reason}, so its libraries are not loaded; set TILESIGHT_CACHE_DIR "
                f"to a folder of your own, or: chown -R $(id -u) '{path}' && chmod -R o-w '{path}'"
            )


class KernelCache:
    """The entries below a folder. Every method may raise `OSError` (no space, no permission)."""

    def __init__(self, folder: Path) -> None:
        """Raises `ToolchainError` if other users may write to the folder."""
        check_owner(folder)
        self.folder = folder / "kernels"

    def find(self, key: str) -> KernelCacheEntry | None:
        """The entry of `key`, if it is present and undamaged."""
        libraries = [self.folder / f"{key}{suffix}" for suffix in (".so", CODE_OBJECT)]
        try:
            raw = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            found = next(library for library in libraries if library.exists())
            resources = {str(k): int(v) for k, v in raw["resources"].items()}
            entry = KernelCacheEntry(found, resources, str(raw["compiler"]), str(raw["binary"]))
            if file_hash(found) != raw["sha256"]:
                return None  # changed or truncated: loading it could end the process
        except (FileNotFoundError, StopIteration, ValueError, KeyError, TypeError, AttributeError):
            return None  # absent or damaged
        return entry

    @contextmanager
    def building(self, key: str) -> Iterator[Path]:
        """Lock `key` for building, and yield a working folder. Other processes that build `key` wait.

        The lock ends with the process that holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "ab") as lock:
            # each key locks one byte of the file
            fcntl.lockf(lock, fcntl.LOCK_EX, 1, int(key[:12], 16))
            self._sweep()
            folder = Path(tempfile.mkdtemp(prefix="building-", dir=self.folder))
            (folder / _OWNER).write_text(this_process(), encoding="utf-8")
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def store(
        self, key: str, files: Sequence[Path], resources: Mapping[str, int], compiler: str, binary: str = ""
    ) -> KernelCacheEntry:
        """Move `files` (the library first) from the working folder into the cache."""
        digest = file_hash(files[0])
        metadata = {"resources": dict(resources), "compiler": compiler, "binary": binary, "sha256": digest}
        metadata_file = files[0].with_suffix(".json")
        metadata_file.write_text(json.dumps(metadata, indent=1), encoding="utf-8")
        for file in (*files, metadata_file):
            flush(file)
            os.replace(file, self.folder / f"{key}{file.suffix}")
        flush(self.folder)
        return KernelCacheEntry(self.folder / f"{key}{files[0].suffix}", resources, compiler, binary)

    def _sweep(self) -> None:
        """Remove the working folders of killed builds."""
        for folder in self.folder.glob("building-*"):
            with suppress(FileNotFoundError, ValueError):
                owner = folder / _OWNER
                is_left = time.time() - folder.stat().st_mtime > _STALE_S
                if is_left or (owner.exists() and not is_alive(owner.read_text(encoding="utf-8"))):
                    shutil.rmtree(folder, ignore_errors=True)
