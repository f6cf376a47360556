"""Kept profiles: families of one shape class, as rows and back."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from sqlalchemy import Connection, select

from ..families import DAMAGE, FamilyKey, ProfileFamily, family_of
from . import schema
from .rows import Row, content_id, now


def family_rows(key: FamilyKey, families: Iterable[ProfileFamily]) -> list[Row]:
    """One row a family, which takes the place of an earlier one of its key and config: more is known of it now."""
    place = {
        "family_key": key.digest,
        "template": key.template,
        "template_version": key.template_version,
        "arch": key.arch,
        "shape_class": key.shape_class,
        "reader": key.reader,
    }
    moment = now()
    return [
        {
            "id": content_id("profile_families", key.digest, family.config.key),
            **place,
            "config": family.config.key,
            "body": zlib.compress(family.text().encode(), 6),
            "created_at": moment,
        }
        for family in families
    ]


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
