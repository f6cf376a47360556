"""What the files that ship have in common: members of archives, and what to do about damage."""

from __future__ import annotations

import zipfile

REINSTALL = "install TileSight anew: pip install --force-reinstall tilesight"
_FIXED_TIME = (2020, 1, 1, 0, 0, 0)  # so that equal contents make an equal file


def archive_member(name: str) -> zipfile.ZipInfo:
    """A compressed member for an archive."""
    member = zipfile.ZipInfo(name, _FIXED_TIME)
    member.compress_type = zipfile.ZIP_LZMA
    return member
