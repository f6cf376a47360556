"""Texts as HTML that shows them as they are, and the styles and scripts of pages."""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files


def text(content: str) -> str:
    """A text as HTML, in elements and in attributes. Characters that cannot be seen become spaces."""
    return html.escape("".join(c if c.isprintable() else " " for c in content))


def breaking(content: str) -> str:
    """A text that may be wrapped after commas, as configs have them."""
    return text(content).replace(",", ",<wbr>")


@cache
def asset(name: str) -> str:
    """A style sheet or script of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def digest(content: str) -> str:
    """The source of a policy that allows this script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
