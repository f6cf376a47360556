"""What ships with TileSight: sessions of published workloads, profiles of their candidates, and plans.

They are files of this package, made by `experiments/shipped/build.py`, and only read. The sessions are a
database (`shipped.db`), the lowest layer. They were measured with other software than that of a user, so they
hold less exactly than the user's own records: `Shipped.session` leaves out the driver, the compilers and the
model where it compares contexts, and the answer says what differs.
"""

from __future__ import annotations

import json
import lzma
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from sqlalchemy import select

from ..errors import DatabaseCorruptError
from ..profile.parametric import DECODE_ERRORS, ParametricProfile, ProfileKey, parametric_profile_of
from ..records.recorded_session import RecordedSession, SessionSummary
from ..records.session import Context, Effort, SessionState
from .schema import tables as schema
from .shipped_files import REINSTALL, archive_member
from .shipped_plans import PlanArchive
from .store import Store

SESSIONS, PROFILES = "shipped.db", "profiles.zip"  # files in this package, if the release has them
_KEYS = "keys.json"  # member of the archive: what each other member is of


class ProfileArchive:
    """Parametric profiles in one file, with a compressed member for each key.

    Profiles of one search space differ little, so they are compressed together: a hundredth of their size.
    """

    def __init__(self, path: Path) -> None:
        """Raise `DatabaseCorruptError` if `path` is no such archive."""
        try:
            with zipfile.ZipFile(path) as archive:
                self.keys: Mapping[str, Mapping[str, object]] = json.loads(archive.read(_KEYS))
        except (OSError, KeyError, ValueError, EOFError, lzma.LZMAError, zipfile.BadZipFile) as error:
            raise DatabaseCorruptError(f"'{path}' has no profiles ({error}); {REINSTALL}") from error
        self.path = path

    def cached_profiles(self, key: ProfileKey) -> list[ParametricProfile]:
        """All profiles under `key`. Those that cannot be read are left out, and lowered anew."""
        if key.digest not in self.keys:
            return []
        try:
            with zipfile.ZipFile(self.path) as archive:
                text = archive.read(key.digest).decode()
            return [parametric_profile_of(line) for line in text.splitlines()]
        except (OSError, KeyError, EOFError, lzma.LZMAError, zipfile.BadZipFile, *DECODE_ERRORS):
            return []


def write_archive(path: Path, found: Mapping[ProfileKey, Iterable[ParametricProfile]]) -> None:
    """Write profiles to an archive, in place of one that is there."""
    keys: dict[str, Mapping[str, object]] = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for key in sorted(found, key=lambda key: (key.template, key.arch, key.shape_class)):
            texts = sorted(profile.text() for profile in found[key])
            archive.writestr(archive_member(key.digest), "\n".join(texts))
            keys[key.digest] = {
                "template": key.template,
                "template_version": key.template_version,
                "arch": key.arch,
                "shape_class": key.shape_class,
                "reader": key.reader,
                "profiles": len(texts),
            }
        archive.writestr(archive_member(_KEYS), json.dumps(keys, indent=1))


@dataclass(frozen=True)
class Shipped:
    """The sessions, profiles and plans that ship with TileSight; None where the release has none."""

    store: Store | None = None
    profiles: ProfileArchive | None = None
    plans: PlanArchive | None = None

    def session(self, context: Context, efforts: Sequence[Effort]) -> RecordedSession | None:
        """The latest measured session of the context's template, workload, target, device and protocol that
        made one of these efforts.

        Software, model, figures of the target and the search space may be others.
        """
        if self.store is None:
            return None
        for summary in _alike(self.store, context):
            is_answer = summary.is_measured and summary.state is SessionState.COMPLETE
            if is_answer and summary.effort in efforts:
                return self.store.recorded_session(summary.id)
        return None

    @cached_property
    def software(self) -> list[Mapping[str, str]]:
        """The versions with which the sessions were measured."""
        if self.store is None:
            return []
        statement = select(schema.software.c.versions)
        found = self.store.database.read(lambda connection: connection.execute(statement).all())
        return [row.versions for row in found]


def has_session(store: Store, context: Context) -> bool:
    """Whether a session like one that ships is in `store`, complete or not."""
    return any(_alike(store, context))


def _alike(store: Store, context: Context) -> Iterator[SessionSummary]:
    """The sessions of `store` of the same kernel, workload and device, under any software; latest first."""
    wanted = _what_counts(context)
    found = store.session_summaries(context.template, context.target, workload=context.workload.key)
    return (summary for summary in found if _what_counts(summary.context) == wanted)


def _what_counts(context: Context) -> tuple[object, ...]:
    return (
        context.template,
        context.template_version,
        context.workload.key,
        context.target,
        context.arch,
        context.device,
        context.protocol,
        context.dynamic,
    )


def shipped_file(name: str) -> Path | None:
    """A file of this package; None if the release has none of that name."""
    found = Path(str(resources.files(__package__) / name))
    return found if found.is_file() else None
