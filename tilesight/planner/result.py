"""The result of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..dispatch.table.table_file import DispatchTable, Evidence
from ..problem.space import Config
from ..reports.numbers import percent
from ..reports.report import Report, Reported

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class PlanResult(Reported):
    """`table` is the file of `tilesight plan`. `print` shows the plan as that command does.

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
    # predicted times in microseconds by size, of the configs that were to be built, in their order
    listed: Mapping[Config, Mapping[int, float]] = field(default_factory=dict)
    messages: tuple[str, ...] = ()

    def __repr__(self) -> str:
        known = "measured" if self.is_measured else "predicted"
        loss = f"{known} mean loss {percent(self.mean_loss)}"
        return f"PlanResult({self.label}: {len(self.table.kernels)} kernels, {loss})"

    def report(self) -> Report:
        """The report of `tilesight plan`."""
        from .plan_report import plan_report

        return plan_report(self)

    def to_frame(self) -> DataFrame:
        """One row for each sampled size: the chosen kernel, its time, the best known time, and the loss.

        Columns: the varied dimension, `kernel` (its number in the table), `chosen_us`, `best_us`, `loss` (a
        share), `default_us` (of the default config, if known), `chosen_is_measured`, `best_is_measured`,
        `weight`, and one for each parameter of the chosen config.
        """
        import pandas as pd

        return pd.DataFrame(
            {
                self.table.vary: piece.size,
                "kernel": piece.kernel,
                "chosen_us": piece.chosen_us,
                "best_us": piece.best_us,
                "loss": piece.loss,
                "default_us": self.default_us.get(piece.size),
                "chosen_is_measured": piece.chosen_measured,
                "best_is_measured": piece.best_measured,
                "weight": self.weights.get(piece.size),
                **self.table.kernels[piece.kernel],
            }
            for piece in self.table.evidence
        )

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
