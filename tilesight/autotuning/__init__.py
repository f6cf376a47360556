"""`tilesight.autotune`: in place of `@tilelang.autotune` on a user's own TileLang kernel. docs/autotune.md is for its users."""

from .autotuned import Autotuned
from .decorator import autotune
from .tuned import Source, Tuned

__all__ = ["Autotuned", "Source", "Tuned", "autotune"]
