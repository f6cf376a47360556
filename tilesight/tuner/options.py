"""How sessions are run: one frozen value, made once from what the user gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..extras import require_extra
from ..records.session import Effort
from ..settings import load_settings
from .resolve import check_budget, check_workers, find_effort


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Options that apply to every workload of a call. Raises `InputError` for a value out of range.

    Attributes:
        effort: How many candidates are explored, built and measured: `glance`, `predict`, `build`, `quick`,
            `full` or `exhaustive`.
        budget_s: Wall-clock seconds for the whole call; None: no limit.
        seed: Seed of the search.
        sampler: Name of an Optuna sampler, a key of `tilesight.search.optuna_search.SAMPLERS`.
        protocol: Conditions of the measurements: `default` or `serving`.
        dynamic: Dimensions that kernels take at run time.
        database: SQLAlchemy URL or SQLite file; None: that of the settings.
        layers: Read-only databases below it, the first on top; None: those of the settings.
        workers: Processes that lower and build; None: that of the settings.
        cluster: Address of a Ray cluster that does the work in place of this machine; None: no cluster.
        remeasure: Take recorded measurements again.
    """

    effort: Effort = Effort.QUICK
    budget_s: float | None = None
    seed: int = 0
    sampler: str = "tpe"
    protocol: str = "default"
    dynamic: tuple[str, ...] = ()
    database: str | None = None
    layers: tuple[str, ...] | None = None
    workers: int | None = None
    cluster: str | None = None
    remeasure: bool = False

    def __post_init__(self) -> None:
        if self.sampler == "cmaes":
            require_extra("samplers", "sampler 'cmaes'")
        check_budget(self.budget_s)
        check_workers(self.workers)

    @classmethod
    def of(
        cls,
        *,
        effort: str | Effort | None = None,
        budget_s: float | None = None,
        dynamic: str | Sequence[str] = (),
        layers: Sequence[str] | None = None,
        **others: Any,
    ) -> TuneOptions:
        """Options from what a user gives: an effort by name, one or several dimensions, any sequence of
        layers. What is None comes from the settings.

        Raises `UnknownNameError` for an effort that does not exist, `InputError` for a value out of range.
        """
        settings = load_settings()
        return cls(
            effort=find_effort(settings.effort if effort is None else effort),
            budget_s=settings.budget_s if budget_s is None else budget_s,
            dynamic=(dynamic,) if isinstance(dynamic, str) else tuple(dynamic),
            layers=None if layers is None else tuple(layers),
            **others,
        )

    @property
    def measures(self) -> bool:
        """Whether the effort measures candidates."""
        return self.effort.measures
