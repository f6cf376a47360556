"""Assignments: the form `name=value,name=value` in which shapes, configs and sizes are given."""

from __future__ import annotations

import re

from ..errors import InputError


def parse_assignments(text: str, what: str) -> dict[str, str]:
    """Read `k=v,k=v`. Raises `InputError` that quotes the part that is not `name=value`; `what` begins it."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*([^=,]+?)\s*", part)
        if not match:
            raise InputError(f"{what} '{text}': '{part.strip()}' is not of the form name=value")
        if match[1] in pairs:
            raise InputError(f"{what} '{text}': {match[1]} is given twice")
        pairs[match[1]] = match[2]
    return pairs
