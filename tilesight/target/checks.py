"""Checks of a target's figures: each against its range, and pairs against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..errors import TargetFileError
from .fields import FIGURES, Figure, FigureRule

# unit: likely units of a value below the range, and of one above it
_MEANT: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "MHz": ("GHz", "kHz or Hz"),
        "GB/s": ("TB/s", "MB/s or bytes/s"),
        "bytes": ("KiB, MiB or GiB", ""),
        "ns": ("us", "ps"),
        "us": ("ms or s", "ns"),
        "TFLOP/s": ("PFLOP/s", "GFLOP/s"),
        "share": ("", "%"),
        "cores": ("", "CUDA cores or stream processors"),
        "FLOP/cycle/core": ("", "FLOP/cycle of the whole device"),
        "lanes/cycle/core": ("", "lanes of the whole device"),
        "bytes/cycle/core": ("", "bytes/cycle of the whole device"),
    }
)
_GIVE: Mapping[str, str] = MappingProxyType({"share": "as a share of 1", "cores": "in SMs, CUs or CPU cores"})
_MEASURED = 1.05  # measured clocks and bandwidths scatter: they may exceed a limit by this factor


@dataclass(frozen=True, slots=True)
class FigureOrder:
    """A rule for two figures: `path` (plus `plus`, if given) is at most `slack` times `limit`.

    A target that lacks one of the two is not checked.
    """

    path: str
    limit: str
    why: str
    slack: float = 1.0
    plus: str | None = None


ORDERS = (
    FigureOrder(
        "core.clock_matrix_mhz",
        "core.clock_mixed_mhz",
        "matrix instructions do not raise the clock",
        _MEASURED,
    ),
    FigureOrder(
        "core.clock_matrix_mhz", "core.clock_mhz", "matrix instructions do not raise the clock", _MEASURED
    ),
    FigureOrder(
        "core.clock_mixed_mhz", "core.clock_mhz", "matrix instructions do not raise the clock", _MEASURED
    ),
    FigureOrder("core.max_block_threads", "core.max_threads", "a block runs on one core"),
    FigureOrder(
        "core.max_block_threads",
        "core.memory.registers.bytes",
        "each thread of a block holds at least 16 registers of 4 bytes",
        1 / 64,
    ),
    FigureOrder("warp.threads", "core.max_block_threads", "a block has at least one warp"),
    FigureOrder(
        "core.memory.shared.block_bytes",
        "core.memory.shared.bytes",
        "the shared memory of a block and the system's share are on one core",
        plus="core.memory.shared.reserved_bytes",
    ),
    FigureOrder("cluster.count", "core.count", "a cluster has at least one core"),
    FigureOrder("cluster.cores", "core.count", "a cluster is part of the device"),
    FigureOrder(
        "cluster.memory.l2.bytes", "device.memory.l2.bytes", "the device's L2 is the sum over all clusters"
    ),
    FigureOrder(
        "device.memory.l2.bytes", "device.memory.dram.bytes", "a cache is smaller than the memory behind it"
    ),
    FigureOrder(
        "device.memory.llc.bytes", "device.memory.dram.bytes", "a cache is smaller than the memory behind it"
    ),
    FigureOrder(
        "device.memory.l2.gb_per_s",
        "device.memory.l2.shared_gb_per_s",
        "shared reads cost L2 no more than others",
        1 / 0.9,
    ),
    FigureOrder(
        "device.memory.dram.gb_per_s",
        "device.memory.l2.gb_per_s",
        "a cache is no slower than the memory behind it",
        1 / 0.9,
    ),
    FigureOrder(
        "device.memory.dram.gb_per_s",
        "device.memory.llc.gb_per_s",
        "a cache is no slower than the memory behind it",
        1 / 0.9,
    ),
    FigureOrder(
        "device.memory.dram.gb_per_s",
        "device.memory.dram.read_gb_per_s",
        "reading alone is no slower than a copy",
        1 / 0.9,
    ),
    FigureOrder(
        "device.memory.dram.gb_per_s",
        "device.memory.dram.spec_gb_per_s",
        "no copy exceeds the data sheet by half",
        1.5,
    ),
    FigureOrder(
        "device.memory.l2.latency_ns",
        "device.memory.dram.latency_ns",
        "a hit is no slower than a miss",
        _MEASURED,
    ),
)


def checked_value(
    path: str, value: Any, kind: str, subject: str, rules: Mapping[str, FigureRule] = FIGURES
) -> float:
    """`value` as the figure at `path`.

    Args:
        path: dotted path of the figure, a key of `rules`.
        value: value in the unit of the figure, as read from the file.
        kind: kind of the target.
        subject: names the file and the figure; error messages begin with it.
        rules: the figures that there are.

    Raises:
        TargetFileError: `value` is no number, or outside the accepted values.
    """
    rule = rules[path]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        raise TargetFileError(f"{subject}: value {value!r} must be a number, in {rule.unit}")
    if value == 0 and rule.may_be_zero:
        return 0.0
    if value <= 0:
        raise TargetFileError(f"{subject}: value {_shown(value)} must be greater than zero, in {rule.unit}")
    if rule.choices:
        if value not in rule.choices:
            known = " or ".join(map(str, rule.choices))
            raise TargetFileError(
                f"{subject}: {_shown(value)} {rule.unit} must be {known}; give the number of {rule.meaning}"
            )
        return float(value)
    least = rule.cpu_least if kind == "cpu" and rule.cpu_least is not None else rule.least
    if not least <= value <= rule.most:
        raise TargetFileError(f"{subject}: {_shown(value)} {rule.unit} is {_beyond(value, rule, least)}")
    if rule.whole and value != int(value):
        raise TargetFileError(
            f"{subject}: {_shown(value)} {rule.unit} must be a whole number; nearest: {round(value)}"
        )
    return float(value)


def check_together(figures: Mapping[str, Figure], origin: str) -> None:
    """Raise `TargetFileError` for figures that contradict each other."""
    for order in ORDERS:
        if order.path not in figures or order.limit not in figures:
            continue
        value, limit = figures[order.path].value, figures[order.limit].value
        added = figures[order.plus] if order.plus is not None and order.plus in figures else None
        if value + (added.value if added else 0) > order.slack * limit:
            unit = FIGURES[order.path].unit
            extra = f", with the {_shown(added.value)} of '{order.plus}'," if added and added.value else ""
            raise TargetFileError(
                f"target file '{origin}': figure '{order.path}': {_shown(value)} {unit}{extra} "
                f"is more than '{order.limit}' allows, which is {_shown(limit)}: {order.why}; "
                "correct one of them"
            )


def _beyond(value: float, rule: FigureRule, least: float) -> str:
    below = value < least
    side = f"below {_shown(least)}" if below else f"above {_shown(rule.most)}"
    meant = _MEANT.get(rule.unit, ("", ""))[0 if below else 1]
    if not meant:
        return f"{side}; it is '{rule.meaning}', from {_shown(least)} to {_shown(rule.most)}"
    return f"{side}; was it meant in {meant}? give it {_GIVE.get(rule.unit, f'in {rule.unit}')}"


def _shown(value: float) -> str:
    """A number as a person writes it; a huge integer as a power of two."""
    if isinstance(value, int) and abs(value) > 1 << 64:
        return f"{'-' if value < 0 else ''}2^{value.bit_length() - 1} or more"
    return str(int(value)) if value == int(value) and abs(value) < 1e17 else f"{value:.6g}"
