"""Files of shapes: lines KERNEL SHAPE [DTYPE [WEIGHT]], written from misses, edited by hand, and read again.

They are handed to a person who has the device: `tilesight tune --shapes FILE` tunes the shapes, and
`tilesight plan --weights FILE` counts each size by its weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..files import read_text, replacing
from ..problem.workload import Workload
from .winners import Miss

MOST_BYTES = 16 << 20
FORM = "KERNEL SHAPE [DTYPE [WEIGHT]], e.g. matmul m=777,n=8192,k=8192 bfloat16 1200"


@dataclass(frozen=True, slots=True)
class ListedShape:
    """One line of a file.

    Attributes:
        shape: a published name, or dimensions and attributes as `k=v,...`.
        dtype: None for the kernel's first one.
        weight: how much it counts in a plan; None: as any other.
        origin: the file and the line, for messages.
    """

    kernel: str
    shape: str
    dtype: str | None
    weight: float | None
    origin: str


def read_shapes(path: Path) -> list[ListedShape]:
    """The lines of a file; text after # is ignored.

    Raises `InputError`, which names the file and the line.
    """
    found = list(_lines(path))
    if not found:
        raise InputError(f"shapes file '{path}' has no line {FORM}")
    return found


def _lines(path: Path) -> Iterator[ListedShape]:
    for number, line in enumerate(read_text(path, f"shapes file '{path}'", MOST_BYTES).splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        origin = f"{path}, line {number}"
        if not 2 <= len(words) <= 4:
            raise InputError(f"{origin}: '{line.strip()}' must be: {FORM}")
        weight = _weight(words[3], origin) if len(words) == 4 else None
        yield ListedShape(words[0], words[1], words[2] if len(words) > 2 else None, weight, origin)


def _weight(text: str, origin: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise InputError(f"{origin}: the weight '{text}' must be a number above 0")
    return found


def write_misses(path: Path, misses: Sequence[Miss]) -> None:
    """Write misses of one target as a file of shapes, the most costly first. Raises `InputError`."""
    with replacing(path, f"--out {path}") as partial_path:
        partial_path.write_text(misses_text(misses), encoding="utf-8")


def misses_text(misses: Sequence[Miss]) -> str:
    """The text of such a file.

    A weight is the expected time of all calls of a shape or, if one time is not known, their number.
    """
    is_timed = all(miss.expected_us for miss in misses)
    places = {f"{miss.target}{f' ({miss.device})' if miss.device else ''}": None for miss in misses}
    lines = [
        f"# shapes that dispatchers on {', '.join(places)} had no record of: {FORM.split(',')[0]}",
        "# weight: " + ("microseconds that the calls took together" if is_timed else "number of calls"),
    ]
    for miss in misses:
        weight = miss.cost_us if is_timed else miss.count
        us = f" of {miss.expected_us:.4g} us" if miss.expected_us else ""
        lines.append(
            f"{miss.workload.operator} {shape_text(miss.workload)} {miss.workload.dtype} {weight:.6g}"
            f"  # {miss.count} call{'' if miss.count == 1 else 's'}{us}, {miss.source}"
        )
    return "\n".join(lines) + "\n"


def shape_text(workload: Workload) -> str:
    """Dimensions and attributes as `--shape` reads them."""
    parts = {**workload.dims, **dict(sorted(workload.attrs.items()))}
    return ",".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in parts.items()
    )
