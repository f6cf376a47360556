"""What a plan found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..dispatch.table import DispatchTable, Evidence


@dataclass(frozen=True)
class Planned:
    """`table` is what `tilesight plan` writes. `expected_mean` and `expected_worst` are losses over the whole range, by the model as
    corrected by what was measured; those of the sampled sizes are in the table's evidence. `default_us` are the times of the
    config that the template starts from by default at the sampled sizes, measured or predicted as the table's are."""

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
    compared: int = 0  # times that the choice for a size was held against the default in turns
    seconds: float = 0.0
    is_cut: bool = False  # a time budget ended it early
    messages: tuple[str, ...] = ()

    @property
    def is_measured(self) -> bool:
        return any(piece.chosen_measured for piece in self.table.evidence)

    @property
    def mean_loss(self) -> float:
        """Over the sampled sizes, by their weights."""
        total = sum(self.weights.get(piece.size, 0.0) for piece in self.table.evidence)
        return sum(self.weights.get(piece.size, 0.0) * piece.loss for piece in self.table.evidence) / total if total else 0.0

    @property
    def worst(self) -> Evidence | None:
        return max(self.table.evidence, key=lambda piece: piece.loss, default=None)
