"""Search spaces of attention over a cache that is spread over ranks: that of one device, and the exchange."""

from __future__ import annotations

from collections.abc import Mapping

from ..problem.space import SearchSpace
from ..target.spec import Target
from .ways import PUSH, SEQUENTIAL, with_ways

WAYS: Mapping[str, str] = {
    SEQUENTIAL: "the library's all-gather of the results of ranks, between two kernels",
    PUSH: "1 kernel stores results at the ranks that own their heads, waits for flags, and combines them",
}


def space(alone: SearchSpace, target: Target) -> SearchSpace:
    """The search space on `target`, from that of the kernel of one rank."""
    return with_ways(alone, WAYS, target)
