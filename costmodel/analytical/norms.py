"""How the times of units combine that work beside each other."""

from __future__ import annotations


def p_norm(values: list[float], power: float) -> float:
    """(sum of v^p)^(1/p): the maximum, and slightly more if other values are close to it."""
    top = max(values, default=0.0)
    if top <= 0:
        return 0.0
    return float(top * sum((v / top) ** power for v in values) ** (1 / power))
