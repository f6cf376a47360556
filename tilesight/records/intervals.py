"""Confidence intervals of the median from order statistics, valid for every distribution of the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import median

from ..settings import load_settings

CONFIDENCE = 0.95


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval between two samples that contains the distribution's median with at least this confidence.

    Infinite if there are too few samples (fewer than six for 95 %).

    The number of samples below the median is binomial with p = 1/2, whatever the distribution (Conover,
    Practical Nonparametric Statistics, section 3.2).
    """
    rank = _rank(len(samples), confidence)
    if not rank:
        return -math.inf, math.inf
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


def half_width(samples: Sequence[float]) -> float:
    """Half of the median's 95 % interval, relative to the median."""
    low, high = median_interval(samples)
    return (high - low) / 2 / median(samples) if math.isfinite(high) else math.inf


def spread(samples: Sequence[float]) -> float:
    """`half_width`; of fewer than six samples, half of their range, relative to the median."""
    if not median(samples):
        return 0.0  # no real time
    width = half_width(samples)
    return width if math.isfinite(width) else (max(samples) - min(samples)) / 2 / median(samples)


def is_noise(width: float) -> bool:
    """Whether an interval whose half is this share of the median is too wide for a time to be used."""
    return width > load_settings().max_noise


@lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int:
    """The largest k whose interval (k-th smallest to k-th largest) has the confidence; 0 if there is none."""
    outside, rank = 0.0, 0
    while rank < (count + 1) // 2:
        # logarithms, since 2^count leaves the range of floats
        log_ways = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        outside += 2 * math.exp(log_ways - count * math.log(2))
        if outside > 1 - confidence:
            break
        rank += 1
    return rank
