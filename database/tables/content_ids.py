"""Ids of stored facts, computed from their rows as `rows` computed them from values.

`check` compares them with the stored ids, and `import` finds changed rows by them. A test compares both
computations.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .rows import content_id

# former names of tables and columns, under which the ids were first computed
_FIRST_NAMES = {"parametric_profiles": "profile_families", "dynamic": "open"}

# table -> columns that make the id, in order; columns added later, which count only if they are set
NATURAL: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "software": (("versions",), ()),
        "environments": (("device", "software_id", "observed"), ()),
        "templates": (("name", "version"), ()),
        "targets": (("name", "fingerprint", "arch"), ()),
        "workloads": (("key",), ()),
        "candidates": (("template_id", "workload_id", "arch", "config"), ("dynamic",)),
        "predictions": (
            (
                *(
                    "candidate_id",
                    "target_id",
                    "software_id",
                    "model",
                    "stated_model",
                    "latency_us",
                    "limiting",
                    "uncertainty",
                ),
                *("utilization", "terms_us", "notes"),
            ),
            (),
        ),
        "failure_reasons": (("kind", "message", "detail"), ()),
        "builds": (
            (
                "candidate_id",
                "software_id",
                "artifact",
                "entry",
                "resources",
                "compiler",
                "seconds",
                "failure_id",
            ),
            ("binary",),
        ),
        "measurements": (
            (
                *(
                    "candidate_id",
                    "environment_id",
                    "samples_us",
                    "sample_count",
                    "latency_us",
                    "relative_error",
                    "protocol",
                ),
                "failure_id",
            ),
            ("protocol_key", "observed"),
        ),
        "parametric_profiles": (("profile_key", "config"), ()),
        "calibrations": (
            ("name", "base", "device", "uuid", "fingerprint", "figures", "readings", "notes", "software_id"),
            (),
        ),
    }
)
_REPLACEMENT = "\ufffd"  # replaces text that databases cannot hold; ids are computed before that


def expected_id(table: str, row: Mapping[str, Any]) -> int | None:
    """The id that a row should have; None if it is unknown: ids of sessions are times, and replaced text is
    lost."""
    if table not in NATURAL:
        return None
    natural, added = NATURAL[table]
    if any(isinstance(row[name], str) and _REPLACEMENT in row[name] for name in (*natural, *added)):
        return None
    return id_of(table, row)


def id_of(table: str, row: Mapping[str, Any]) -> int:
    """The id of a row with the content of `row`."""
    natural, added = NATURAL[table]
    later = [(_FIRST_NAMES.get(name, name), row[name]) for name in added if row.get(name)]
    return content_id(_FIRST_NAMES.get(table, table), *(row[name] for name in natural), *later)
