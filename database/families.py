"""Kept profiles: families of one shape class, as rows and back."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from sqlalchemy import Connection, select

from ..families import DAMAGE, FamilyKey, ProfileFamily, family_of
from . import schema
from .rows import Row, content_id, now
from .strict_json import MAX_TEXT, StrictJsonError, parse

MAX_BODY = 4 << 20  # bytes of a family, unpacked


def family_rows(key: FamilyKey, families: Iterable[ProfileFamily]) -> list[Row]:
    """One row a family, which takes the place of an earlier one of its key and config: more is known of it now.

    One beyond the limits of `check` and `import` has none, and is lowered anew each time: kept, it would make a healthy
    database a damaged one, and its export no file that can be imported.
    """
    place = {
        "family_key": key.digest,
        "template": key.template,
        "template_version": key.template_version,
        "arch": key.arch,
        "shape_class": key.shape_class,
        "reader": key.reader,
    }
    moment = now()
    rows: list[Row] = []
    for family in families:
        body = _packed(family.text().encode())
        if body is not None:
            id = content_id("profile_families", key.digest, family.config.key)
            rows.append({"id": id, **place, "config": family.config.key, "body": body, "created_at": moment})
    return rows


def kept_families(connection: Connection, key: FamilyKey) -> list[ProfileFamily]:
    """All that are kept under `key`. One that cannot be read is left out: it is lowered anew."""
    table = schema.profile_families
    found = []
    for (body,) in connection.execute(select(table.c.body).where(table.c.family_key == key.digest)):
        try:
            found.append(family_of(zlib.decompress(body).decode()))
        except (*DAMAGE, zlib.error):
            continue
    return found


def _packed(text: bytes) -> bytes | None:
    """The text as the column holds it; None where what reads it would refuse it."""
    try:
        parse(text)
    except StrictJsonError:
        return None
    body = zlib.compress(text, 6)
    in_file = -(-len(body) // 3) * 4  # as base64
    return body if len(text) <= MAX_BODY and in_file <= MAX_TEXT else None
