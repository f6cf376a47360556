"""How the tensors of a grouped product are indexed, in every layout."""

from dataclasses import dataclass
from typing import Any

from ._float8 import BLOCK


@dataclass(frozen=True)
class GroupedTensors:
    """Which dimensions the tensors have.

    Attributes:
        is_nt: whether weights are contiguous along k.
        masked: whether each group has rows of a matrix of its own.
        fused: whether each group has two matrices of weights.
        scales: those of float8 operands: none, tensor, row or block128.
    """

    is_nt: bool
    masked: bool
    fused: bool
    scales: str

    def rows_of(self, tensor: Any, group: Any, row: Any, *more: Any) -> Any:
        """An element or a part of A, C, or the scales of A."""
        return tensor[(group, row, *more) if self.masked else (row, *more)]

    def weights_of(self, tensor: Any, group: Any, half: int, columns: slice, depths: slice) -> Any:
        """A part of B."""
        halves = (half,) if self.fused else ()
        return tensor[(group, *halves, columns, depths) if self.is_nt else (group, depths, *halves, columns)]

    def begin_of(self, ends: Any, group: Any) -> Any:
        """The first row of a group."""
        return 0 if self.masked else ends[group]

    def end_of(self, ends: Any, group: Any) -> Any:
        """The row after a group's last one."""
        return ends[group] if self.masked else ends[group + 1]

    def factor_of(self, a_scale: Any, b_scale: Any, group: Any, half: int, row: Any, col: Any) -> Any:
        """What an element of a product is multiplied by, with scales of tensors or rows."""
        halves = (half,) if self.fused else ()
        if self.scales == "tensor":
            return a_scale[0] * b_scale[(group, *halves)]
        return self.rows_of(a_scale, group, row) * b_scale[(group, *halves, col)]

    def block_of_columns(self, b_scale: Any, group: Any, half: int, col: Any, ko: Any) -> Any:
        """The scale of a block of weights."""
        return b_scale[(group, *((half,) if self.fused else ()), col // BLOCK, ko)]
