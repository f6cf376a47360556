"""Tensors whose contents are known while a kernel is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Contents(ABC):
    """Known contents of a tensor or a buffer."""

    @abstractmethod
    def at(self, index: Any) -> Any:
        """The elements at `index`. A kernel may compute an index beyond the end that it never uses."""


@dataclass(frozen=True)
class Table(Contents):
    """The known contents of an integer tensor, in one dimension."""

    values: NDArray[Any]

    def at(self, index: Any) -> Any:
        return self.values[np.clip(np.asarray(index).astype(np.int64), 0, len(self.values) - 1)]


def tables_of(function: Any, contents: Mapping[str, NDArray[Any]]) -> dict[int, Table]:
    """The known contents of the tensors that a device function only reads, by identity of the parameter.

    Args:
        function: the device function.
        contents: of the tensors, by name of the parameter.
    """
    readonly = (function.attrs or {}).get("tl.readonly_param_indices") or ()
    read = [function.params[int(position)] for position in readonly]
    return {
        hash(parameter): Table(np.ascontiguousarray(contents[name]).reshape(-1))
        for parameter in read
        if (name := str(parameter.name)) in contents and contents[name].size
    }
