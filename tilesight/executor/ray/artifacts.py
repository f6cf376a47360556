"""Built libraries as bytes: packed from one machine's kernel cache, unpacked into another's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...builder.kernel_cache import KernelCache


@dataclass(frozen=True, slots=True)
class Artifact:
    """One entry of a kernel cache: the bytes of its files by suffix, e.g. `.so`, `.cu` and `.json`."""

    key: str
    files: Mapping[str, bytes]


def key_of(library: str) -> str:
    """The cache key of a built library, given its path."""
    return Path(library).stem


def pack(library: str) -> Artifact:
    """The cache entry of a built library, given its path. Raises `OSError` if it is gone."""
    path = Path(library)
    # another process may be replacing these files, with the same content
    files = {file.suffix: file.read_bytes() for file in sorted(path.parent.glob(f"{path.stem}.*"))}
    if path.suffix not in files:
        raise FileNotFoundError(f"the built library '{library}' is no longer in the kernel cache")
    return Artifact(path.stem, files)


def stored_at(cache_dir: Path, key: str) -> str | None:
    """Path of the entry's library in this machine's cache; None if it has no such entry."""
    entry = KernelCache(cache_dir).find(key)
    return str(entry.library) if entry is not None else None


def unpack(artifact: Artifact, cache_dir: Path) -> str:
    """Put the entry into the cache, unless it is present, and return the path of its library.

    Raises `OSError`.
    """
    cache = KernelCache(cache_dir)
    if (known := stored_at(cache_dir, artifact.key)) is not None:
        return known
    with cache.building(artifact.key) as folder:
        # an entry is complete once its JSON file exists: that file comes last
        for suffix in sorted(artifact.files, key=lambda suffix: suffix == ".json"):
            file = folder / f"{artifact.key}{suffix}"
            file.write_bytes(artifact.files[suffix])
            os.replace(file, cache.folder / file.name)
    stored = stored_at(cache_dir, artifact.key)
    if stored is None:
        raise FileNotFoundError(
            f"the kernel cache '{cache_dir}' does not contain the entry that was put into it"
        )
    return stored
