"""What is exported: kernels of one operator, and the sizes that each of them serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..dispatch.problem import DispatchProblem
from ..dispatch.select.choice import Choice
from ..dispatch.table.dispatch_table import DispatchTable, Segment


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """A dimension that a call states, and its smallest and largest size."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class KernelSet:
    """Kernels of one operator.

    Attributes:
        name: of the export: prefix of its functions, and name of its files.
        problem: the operator, template and target. Its free dimensions are those that a call states.
        sizes: the free dimensions with their ranges; segments are ranges of the first one.
        kernels: config and workload of each kernel. A static kernel's workload is the one that it serves.
        segments: ascending and without overlap; sizes between them have no kernel. Empty if no dimension is
            free: kernel 0 then serves all calls.
        table: the dispatch table that it was made from, if any.
        notes: what the user should know.
    """

    name: str
    problem: DispatchProblem
    sizes: tuple[SizeLimits, ...]
    kernels: tuple[Choice, ...]
    segments: tuple[Segment, ...] = ()
    table: DispatchTable | None = None
    notes: tuple[str, ...] = ()

    @property
    def bounds(self) -> list[Mapping[str, int]]:
        """Sizes at which formulas are checked: the ends of all segments, and of all ranges."""
        ends = {one.name: {one.first, one.last, min(one.first + 1, one.last)} for one in self.sizes}
        if self.sizes:
            ends[self.sizes[0].name] |= {end for s in self.segments for end in (s.first, s.last)}
        found: list[dict[str, int]] = [{}]
        for name, values in ends.items():
            found = [{**sizes, name: value} for sizes in found for value in sorted(values)]
        return list(found)

    def kernel_at(self, size: int) -> int | None:
        """Index of the kernel for a size of the first free dimension; None outside of all segments."""
        return next((s.kernel for s in self.segments if s.first <= size <= s.last), None)
