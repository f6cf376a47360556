"""The result of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..dispatch.table.table_file import DispatchTable, Evidence


@dataclass(frozen=True)
class PlanResult:
    """`table` is the file of `tilesight plan`.

    `expected_mean` and `expected_worst` are losses over the whole range, by the corrected model; the table's
    evidence has those of the sampled sizes. `default_us`: times of the default config at the sampled sizes,
    measured or predicted.
    """

    label: str
    table: DispatchTable
    weights: Mapping[int, float]  # of the sampled sizes
    expected_mean: float
    expected_worst: float
    default_us: Mapping[int, float] = field(default_factory=dict)
    looked_at: int = 0  # configs that were predicted
    built: int = 0  # in this call
    measured: int = 0  # kernels at sizes, in this call
    recalled: int = 0  # measurements that the database had
    compared: int = 0  # pairwise tests of a chosen and a default config
    seconds: float = 0.0
    is_cut: bool = False  # a time budget ended it early
    messages: tuple[str, ...] = ()

    @property
    def is_measured(self) -> bool:
        return any(piece.chosen_measured for piece in self.table.evidence)

    @property
    def mean_loss(self) -> float:
        """The weighted mean loss at the sampled sizes."""
        total = sum(self.weights.get(piece.size, 0.0) for piece in self.table.evidence)
        return (
            sum(self.weights.get(piece.size, 0.0) * piece.loss for piece in self.table.evidence) / total
            if total
            else 0.0
        )

    @property
    def worst(self) -> Evidence | None:
        """The evidence with the largest loss."""
        return max(self.table.evidence, key=lambda piece: piece.loss, default=None)
