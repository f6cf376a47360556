"""Cached parametric profiles, as rows and back."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from sqlalchemy import Connection, select

from ...profile.parametric import DECODE_ERRORS, ParametricProfile, ProfileKey, parametric_profile_of
from ..schema import tables as schema
from .rows import Row, content_id, now
from .strict_json import MAX_TEXT, StrictJsonError, parse

MAX_BODY = 4 << 20  # bytes of a profile before compression


def parametric_profile_rows(key: ProfileKey, profiles: Iterable[ParametricProfile]) -> list[Row]:
    """One row for each profile.

    It replaces an earlier row of the same key and config. A profile beyond the limits of `check` and `import`
    gets no row and is lowered anew each time: `check` would report its row as damage, and an export with it
    could not be imported.
    """
    columns = {
        "profile_key": key.digest,
        "template": key.template,
        "template_version": key.template_version,
        "arch": key.arch,
        "shape_class": key.shape_class,
        "reader": key.reader,
    }
    moment = now()
    rows: list[Row] = []
    for profile in profiles:
        body = _packed(profile.text().encode())
        if body is not None:
            row_id = content_id("profile_families", key.digest, profile.config.key)
            rows.append(
                {"id": row_id, **columns, "config": profile.config.key, "body": body, "created_at": moment}
            )
    return rows


def cached_profiles(connection: Connection, key: ProfileKey) -> list[ParametricProfile]:
    """All profiles that are cached under `key`.

    A profile that cannot be read is left out and will be lowered anew.
    """
    table = schema.parametric_profiles
    found = []
    for (body,) in connection.execute(select(table.c.body).where(table.c.profile_key == key.digest)):
        try:
            found.append(parametric_profile_of(zlib.decompressobj().decompress(body, MAX_BODY).decode()))
        except (*DECODE_ERRORS, zlib.error):
            continue
    return found


def _packed(text: bytes) -> bytes | None:
    """The text as the column stores it; None if `check` and `import` would refuse it."""
    try:
        parse(text)
    except StrictJsonError:
        return None
    body = zlib.compress(text, 6)
    in_file = -(-len(body) // 3) * 4  # as base64
    return body if len(text) <= MAX_BODY and in_file <= MAX_TEXT else None
