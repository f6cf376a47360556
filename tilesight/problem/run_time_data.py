"""What is known of the data that a kernel meets at run time: contents of tensors, named values, a density."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class RunTimeData:
    """What a caller states of the data. All of it is optional.

    Attributes:
        contents: Integer or bool tensors, by the name of the kernel's parameter. Trip counts, branches and
            addresses that derive from them are evaluated.
        values: Values of the kernel's variables that depend on data, such as `kv_len`, by name.
        density: Share of the data-dependent branches around copies or matrix work that are taken; None:
            unknown.
    """

    contents: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)
    density: float | None = None


NOTHING_KNOWN = RunTimeData()
