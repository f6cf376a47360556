"""The id that the content of a stored fact gives: what `rows` computed when it was written, computed again from the row.

So databases can be checked, and rows of a file can be told from forged ones. A test holds this table and `rows` together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .rows import content_id

# table -> columns that make the id, in order; columns of later versions, which count where they say something
NATURAL: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "software": (("versions",), ()),
        "environments": (("device", "software_id", "observed"), ()),
        "templates": (("name", "version"), ()),
        "targets": (("name", "fingerprint", "arch"), ()),
        "workloads": (("key",), ()),
        "candidates": (("template_id", "workload_id", "arch", "config"), ("open",)),
        "predictions": (
            (
                *("candidate_id", "target_id", "software_id", "model", "stated_model", "latency_us", "limiting", "uncertainty"),
                *("utilization", "terms_us", "notes"),
            ),
            (),
        ),
        "failure_reasons": (("kind", "message", "detail"), ()),
        "builds": (
            ("candidate_id", "software_id", "artifact", "entry", "resources", "compiler", "seconds", "failure_id"),
            ("binary",),
        ),
        "measurements": (
            (
                *("candidate_id", "environment_id", "samples_us", "sample_count", "latency_us", "relative_error", "protocol"),
                "failure_id",
            ),
            ("protocol_key", "observed"),
        ),
        "profile_families": (("family_key", "config"), ()),
        "calibrations": (("name", "base", "device", "uuid", "fingerprint", "figures", "readings", "notes", "software_id"), ()),
    }
)
_REPLACEMENT = "\ufffd"  # stands for what databases cannot hold: the id was taken before that


def expected_id(table: str, row: Mapping[str, Any]) -> int | None:
    """None where it cannot be told: ids of sessions are times, and text that was replaced on its way in is lost."""
    if table not in NATURAL:
        return None
    natural, added = NATURAL[table]
    if any(isinstance(row[name], str) and _REPLACEMENT in row[name] for name in (*natural, *added)):
        return None
    return id_of(table, row)


def id_of(table: str, row: Mapping[str, Any]) -> int:
    """The id of a row with this content."""
    natural, added = NATURAL[table]
    told = [(name, row[name]) for name in added if row.get(name)]
    return content_id(table, *(row[name] for name in natural), *told)
