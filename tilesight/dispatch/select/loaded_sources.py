"""What a dispatcher has loaded to choose from: recorded winners and a dispatch table, with a digest"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...bounded_dict import BoundedDict
from ...records.winners import Winner
from .winner_index import WinnerIndex

if TYPE_CHECKING:
    from ..problem import ShapeKey
    from ..shape import Shape
    from ..table.table_file import DispatchTable
    from .choice import Choice
    from .shipped_tables import ShippedTables

MOST_NAMED = 1024  # records that are named one by one; further ones are in the digest alone
SHAPE_LIMIT = 8192  # shapes in memory


@dataclass(frozen=True)
class LoadedSources:
    """Recorded winners and a table, read at one moment, and what a dispatcher has made of them since.

    A dispatcher replaces the whole value when it reads them again, so no thread sees choices of one reading
    beside the records or the digest of another.

    Attributes:
        winners: of the problem.
        table: None if there is none.
        notes: how the table differs from the conditions here.
        shipped: the plans that ship with TileSight; None: none are used.
        choices: made from them so far, by shape.
        shapes: that were called since, with their kernels.
    """

    winners: WinnerIndex
    table: DispatchTable | None = None
    notes: tuple[str, ...] = ()
    shipped: ShippedTables | None = None
    choices: BoundedDict[ShapeKey, Choice] = field(
        default_factory=lambda: BoundedDict(SHAPE_LIMIT), compare=False, repr=False
    )
    shapes: BoundedDict[ShapeKey, Shape] = field(
        default_factory=lambda: BoundedDict(SHAPE_LIMIT), compare=False, repr=False
    )

    def with_winner(self, winner: Winner) -> LoadedSources:
        """The same with a further winner. Choices that were made stay."""
        return replace(self, winners=self.winners.with_winner(winner))

    def facts(self) -> dict[str, str]:
        """The loaded choices by name, equal where the same was loaded; beyond `MOST_NAMED` as a digest."""
        records = sorted(self._records().items())
        found = {f"the record of {shape}": text for shape, text in records[:MOST_NAMED]}
        found["the table"] = self._table()
        if self.shipped is not None and self.shipped.plans:
            found["the plans that ship with TileSight"] = self.shipped.digest
        if len(records) > MOST_NAMED:
            found["the digest of all records"] = f"{self.digest()} ({len(records)} shapes)"
        return found

    def digest(self) -> str:
        """16 hex digits, equal in every process and on every machine that has loaded the same choices.

        They depend on the problem with its template and target, on the configs of each recorded shape in the
        order in which they are preferred, on the table, and on the plans that ship with TileSight. Measured
        times, dates and places of records do not count.
        """
        problem = self.winners.problem
        parts = [
            [problem.operator.name, problem.template.name, problem.template.version],
            [problem.target.name, problem.target.fingerprint],
            [problem.dtype, sorted(problem.attrs.items()), sorted(problem.fixed.items()), problem.dynamic],
            sorted(self._records().items()),
            self._table(),
        ]
        if self.shipped is not None and self.shipped.plans:
            parts.append(self.shipped.digest)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _records(self) -> dict[str, str]:
        """The configs of each shape, the preferred one first."""
        problem = self.winners.problem
        found: dict[str, list[str]] = {}
        for winner in self.winners.all():
            key = problem.key_of(winner.workload.dims)
            sizes = " ".join(f"{name}={size}" for name, size in zip(problem.free, key, strict=True))
            at_run_time = f" with any {','.join(winner.dynamic)}" if winner.dynamic else ""
            found.setdefault(sizes or "all calls", []).append(f"{winner.config}{at_run_time}")
        return {shape: " or ".join(configs) for shape, configs in found.items()}

    def _table(self) -> str:
        if self.table is None:
            return "none"
        return hashlib.sha256(self.table.text().encode()).hexdigest()[:12]
