"""Built libraries as bytes: out of one machine's kernel cache and into another's, under the same key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..building.cache import KernelCache


@dataclass(frozen=True, slots=True)
class Parcel:
    """One entry of a kernel cache: the bytes of its files by suffix, e.g. `.so`, `.cu` and `.json`."""

    key: str
    files: Mapping[str, bytes]


def key_of(artifact: str) -> str:
    return Path(artifact).stem


def pack(artifact: str) -> Parcel:
    """The entry that `artifact` is the library of. Raises `OSError` where it is gone."""
    library = Path(artifact)
    # what another process is replacing just now has the same content
    files = {file.suffix: file.read_bytes() for file in sorted(library.parent.glob(f"{library.stem}.*"))}
    if library.suffix not in files:
        raise FileNotFoundError(f"the built library '{artifact}' is no longer in the kernel cache")
    return Parcel(library.stem, files)


def stored_at(cache_dir: Path, key: str) -> str | None:
    """Where this machine has the entry's library, if it does."""
    entry = KernelCache(cache_dir).find(key)
    return str(entry.library) if entry is not None else None


def unpack(parcel: Parcel, cache_dir: Path) -> str:
    """Put the entry into the cache, unless it is there, and return where its library is. Raises `OSError`."""
    cache = KernelCache(cache_dir)
    if (known := stored_at(cache_dir, parcel.key)) is not None:
        return known
    with cache.building(parcel.key) as folder:
        # the note makes the entry count, so it comes last
        for suffix in sorted(parcel.files, key=lambda suffix: suffix == ".json"):
            file = folder / f"{parcel.key}{suffix}"
            file.write_bytes(parcel.files[suffix])
            os.replace(file, cache.folder / file.name)
    stored = stored_at(cache_dir, parcel.key)
    if stored is None:
        raise FileNotFoundError(f"the kernel cache '{cache_dir}' does not keep what is put into it")
    return stored
