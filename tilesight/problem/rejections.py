"""Why configs of a search space are illegal: the rules that they break, with counts and examples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .space import SearchSpace


@dataclass(frozen=True, slots=True)
class Rejection:
    """A constraint, the number of configs that break it first, and the reason given for one of them."""

    constraint: str
    count: int
    example: str


def rejections(space: SearchSpace) -> list[Rejection]:
    """The constraints that make configs of the space illegal, most frequent first."""
    missing = dict(space.census().rejected)
    counts = Counter(missing)
    examples: dict[str, str] = {}
    for config in space.points():
        if not missing:
            break
        for violation in space.violations(config)[:1]:
            if missing.pop(violation.constraint, None):
                examples[violation.constraint] = violation.reason
    return [Rejection(name, count, examples[name]) for name, count in counts.most_common()]
