"""Why configs of a search space are illegal: the rules that they break, with counts and examples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .space import SearchSpace


@dataclass(frozen=True, slots=True)
class Rejection:
    """A constraint, the number of configs that break it first, and the reason given for one of them."""

    constraint: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """What an enumeration of a space rejects, by the constraint that each config breaks first.

    Attributes:
        counts: configs by constraint.
        examples: the reason given for one of them, by constraint.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, constraint: str, count: int, example: str) -> None:
        """Count further configs; the first example of a constraint stays."""
        if count:
            self.counts[constraint] += count
            self.examples.setdefault(constraint, example)


def rejections(space: SearchSpace) -> list[Rejection]:
    """The constraints that make configs of the space illegal, most frequent first."""
    found = space.rejected()
    return [Rejection(name, count, found.examples[name]) for name, count in found.counts.most_common()]
