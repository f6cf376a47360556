"""The fixed parts of exported sources, with places `@NAME@` for what differs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files


def fill(name: str, values: Mapping[str, str]) -> str:
    """The text of a file in this folder, with `values` in its places."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z0-9_]+)@", lambda place: values[place[1]], text)
