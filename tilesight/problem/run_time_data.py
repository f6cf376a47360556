"""What a caller states of a kernel's run: contents of tensors, named values, a density, costs of calls."""

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
        calls: Operations per thread of one call of a device function, by the function's name
            (`function_name`).
        inputs: All example tensors (NumPy, torch), by the name of the parameter. If data decides a loop or a
            branch in another way, the kernel is executed on them in some blocks.
    """

    contents: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)
    density: float | None = None
    calls: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)


def function_name(called: str) -> str:
    """A device function's name without namespaces and template arguments: `tl::decode<4>` -> `decode`."""
    return called.partition("<")[0].rpartition("::")[2].strip()


NOTHING_KNOWN = RunTimeData()
