"""Numbers and values as text."""

from __future__ import annotations

import math

WIDE = 0.5  # one sigma from which on it is said as a factor


def number(value: float | None, digits: int = 4) -> str:
    """Format with `digits` significant digits; powers of ten only from a million on. "-" if it is unknown."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    before = math.floor(math.log10(abs(value))) + 1
    return f"{value:.{max(0, digits - before)}f}" if -4 < before < 7 else f"{value:.{digits - 1}e}"


def rounded(value: float) -> str:
    """The same for a sentence: four digits without zeros at the end, whole from 10,000 on."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < math.inf else f"{value:.4g}"


def percent(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def sigma(uncertainty: float) -> str:
    """One sigma of a predicted time as a share of it, or as a factor where a share would mislead.

    The time lies within a factor of `1 + uncertainty` in either direction. Beyond `WIDE` a share would reach
    below zero or nearly so, and is far from the factor downwards.
    """
    if math.isnan(uncertainty) or uncertainty <= WIDE:
        return percent(uncertainty)
    return f"a factor of {1 + uncertainty:.1f}"


def spread(uncertainty: float) -> str:
    """The same behind a time: `give or take 12.0 % (one sigma)`."""
    if math.isnan(uncertainty) or uncertainty <= WIDE:
        return f"give or take {percent(uncertainty)} (one sigma)"
    return f"within {sigma(uncertainty)} in about two of three cases"


def duration(seconds: float) -> str:
    """Seconds, from two minutes on minutes, from two hours on hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def value(found: object) -> str:
    """Format the value of a parameter as `--config` reads it."""
    return str(found).lower() if isinstance(found, bool) else str(found)
