"""Search space of flash_attention_varlen: that of flash_attention over the tokens of all items."""

from __future__ import annotations

from ..problem.space import SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from . import flash_attention


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    return flash_attention.space(workload, target, positions="tokens")
