"""The plans that ship with TileSight and fit a problem, for the choices of a dispatcher."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..table.table_reader import parse_table

if TYPE_CHECKING:
    from ...database.shipped_plans import PlanArchive, ShippedPlan
    from ...problem.workload import Workload
    from ...records.session import Context
    from ..problem import DispatchProblem
    from ..table.dispatch_table import DispatchTable


@dataclass(frozen=True)
class ShippedTable:
    """A table, and one sentence on where it comes from and what differs here."""

    table: DispatchTable
    origin: str


class ShippedTables:
    """Tables are read when a shape needs them.

    A plan fits if operator, template and its version, target, architecture, card, dtype, attributes and fixed
    dimensions are the same. Other differences, such as those of software, are told with its choices.
    """

    def __init__(
        self, problem: DispatchProblem, context: Context, archive: PlanArchive | None = None
    ) -> None:
        self._context, self._archive = context, archive
        self.plans = [
            plan
            for plan in (archive.plans if archive else ())
            if plan.fits(context)
            and plan.vary in problem.free
            and all(problem.fixed.get(name, size) == size for name, size in plan.fixed.items())
        ]
        self._read: dict[str, ShippedTable] = {}

    def find(self, workload: Workload, *, nearest: bool = False) -> ShippedTable | None:
        """The table with this workload, or with that of its nearest size. Raises `DatabaseError`."""
        for plan in self.plans:
            if plan.covers(workload, nearest=nearest):
                return self._table(plan)
        return None

    @property
    def digest(self) -> str:
        """Of all tables that fit."""
        found = " ".join(sorted(plan.digest for plan in self.plans))
        return hashlib.sha256(found.encode()).hexdigest()[:12]

    def _table(self, plan: ShippedPlan) -> ShippedTable:
        if plan.digest not in self._read:
            assert self._archive is not None
            table = parse_table(self._archive.text(plan))
            dims = {**self._context.workload.dims, **table.fixed}
            here = replace(self._context, workload=replace(self._context.workload, dims=dims))
            differences = table.mismatches(here)
            origin = plan.origin
            if differences:
                origin += f" ({'; '.join(differences)})"
            self._read[plan.digest] = ShippedTable(table, origin)
        return self._read[plan.digest]
