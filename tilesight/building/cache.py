"""The kernel cache: built libraries on disk, under a hash of all that goes into them. Safe to delete at any time.

<key>.so, the library (<key>.hsaco: code for a GPU alone, without what calls it); <key>.json, what the compiler said of
it; <key>.cu or .cpp, its source, for people. An entry counts once its .json is there, which is written last; all appear by
rename, so no half-written file is ever read.
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

CODE_OBJECT = ".hsaco"  # as AMD's tools name it
_STALE_S = 24 * 3600  # a working folder this old belongs to a build that was killed


@dataclass(frozen=True, slots=True)
class Entry:
    library: Path
    resources: Mapping[str, int]
    compiler: str
    binary: str = ""  # see `identity.py`


def cache_key(*parts: str) -> str:
    """24 hex digits over `parts`."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part.encode())
    return digest.hexdigest()[:24]


@contextmanager
def told_of(folder: Path) -> Iterator[None]:
    """What the system says of the kernel cache, as an error that a user can mend: `ToolchainError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ToolchainError(
            f"kernel cache '{folder}': {reason}; set TILESIGHT_CACHE_DIR to a folder that can be written and locked"
        ) from error


def check_folder(folder: Path) -> None:
    """Raise `ToolchainError` where no kernel could be kept in `folder`, before any is looked for."""
    with told_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


class KernelCache:
    """Every method may raise `OSError` (no space, no permission)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "kernels"

    def find(self, key: str) -> Entry | None:
        libraries = [self.folder / f"{key}{suffix}" for suffix in (".so", CODE_OBJECT)]
        try:
            raw = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            found = next(library for library in libraries if library.exists())
            resources = {str(k): int(v) for k, v in raw["resources"].items()}
            entry = Entry(found, resources, str(raw["compiler"]), str(raw["binary"]))
            if found.stat().st_size != int(raw["bytes"]):
                return None  # cut off: loading it could end the process
        except (FileNotFoundError, StopIteration, ValueError, KeyError, TypeError, AttributeError):
            return None  # absent or damaged: it is built again
        return entry

    @contextmanager
    def building(self, key: str) -> Iterator[Path]:
        """Hold the sole right to build `key`, in the working folder that this yields. Another process waits here; the
        right ends with the process that holds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "ab") as lock:
            # one byte of the file stands for each key
            fcntl.lockf(lock, fcntl.LOCK_EX, 1, int(key[:12], 16))
            self._sweep()
            folder = Path(tempfile.mkdtemp(prefix="building-", dir=self.folder))
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def store(self, key: str, files: Sequence[Path], resources: Mapping[str, int], compiler: str, binary: str = "") -> Entry:
        """Move `files` out of the working folder into place, each under its own suffix."""
        for file in files:
            os.replace(file, self.folder / f"{key}{file.suffix}")
        note = files[0].with_suffix(".json")
        size = (self.folder / f"{key}{files[0].suffix}").stat().st_size
        said = {"resources": dict(resources), "compiler": compiler, "binary": binary, "bytes": size}
        note.write_text(json.dumps(said, indent=1), encoding="utf-8")
        os.replace(note, self.folder / f"{key}.json")
        return Entry(self.folder / f"{key}{files[0].suffix}", resources, compiler, binary)

    def _sweep(self) -> None:
        for folder in self.folder.glob("building-*"):
            with suppress(FileNotFoundError):
                if time.time() - folder.stat().st_mtime > _STALE_S:
                    shutil.rmtree(folder, ignore_errors=True)
