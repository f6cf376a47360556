"""Whether the figures of a target can be those of a chip: each in its range, and all of them together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .errors import TargetFileError
from .figures import FIGURES, Figure, FigureRule

# of a value below the range and of one above it: what it may have been meant in
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
_MEASURED = 1.05  # what was measured may pass a limit by this much: clocks and bandwidths scatter


@dataclass(frozen=True, slots=True)
class Order:
    """`path` (with `plus` added where it is given) is at most `slack` times `limit`, where a target gives both."""

    path: str
    limit: str
    why: str
    slack: float = 1.0
    plus: str | None = None


ORDERS = (
    Order("core.clock_matrix_mhz", "core.clock_mixed_mhz", "matrix instructions do not raise the clock", _MEASURED),
    Order("core.clock_matrix_mhz", "core.clock_mhz", "matrix instructions do not raise the clock", _MEASURED),
    Order("core.clock_mixed_mhz", "core.clock_mhz", "matrix instructions do not raise the clock", _MEASURED),
    Order("core.max_block_threads", "core.max_threads", "a block runs on one core"),
    Order("core.max_block_threads", "core.memory.registers.bytes", "each thread of a block holds 16 registers of 4 bytes at least", 1 / 64),
    Order("warp.threads", "core.max_block_threads", "a block has a warp at least"),
    Order(
        "core.memory.shared.block_bytes",
        "core.memory.shared.bytes",
        "a block has its shared memory on one core, with what the system takes",
        plus="core.memory.shared.reserved_bytes",
    ),
    Order("cluster.count", "core.count", "a cluster has a core at least"),
    Order("cluster.cores", "core.count", "the cores of a cluster are the device's"),
    Order("cluster.memory.l2.bytes", "device.memory.l2.bytes", "the device's L2 is that of all clusters"),
    Order("device.memory.l2.bytes", "device.memory.dram.bytes", "a cache is smaller than the memory behind it"),
    Order("device.memory.llc.bytes", "device.memory.dram.bytes", "a cache is smaller than the memory behind it"),
    Order("device.memory.l2.gb_per_s", "device.memory.l2.shared_gb_per_s", "what cores read together costs L2 no more", 1 / 0.9),
    Order("device.memory.dram.gb_per_s", "device.memory.l2.gb_per_s", "a cache is no slower than the memory behind it", 1 / 0.9),
    Order("device.memory.dram.gb_per_s", "device.memory.llc.gb_per_s", "a cache is no slower than the memory behind it", 1 / 0.9),
    Order("device.memory.dram.gb_per_s", "device.memory.dram.read_gb_per_s", "reading alone is no slower than a copy", 1 / 0.9),
    Order(
        "device.memory.dram.gb_per_s", "device.memory.dram.spec_gb_per_s", "no copy comes near half as much again as the data sheet", 1.5
    ),
    Order("device.memory.l2.latency_ns", "device.memory.dram.latency_ns", "a hit is no slower than a miss", _MEASURED),
)


def checked_value(path: str, value: Any, kind: str, where: str) -> float:
    """`value` of the figure at `path` of a target of this kind. Raises `TargetFileError` that begins with `where`."""
    rule = FIGURES[path]
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise TargetFileError(f"{where}: value {value!r} must be a number, in {rule.unit}")
    if value == 0 and rule.may_be_zero:
        return 0.0
    if value <= 0:
        raise TargetFileError(f"{where}: value {_shown(value)} must be greater than zero, in {rule.unit}")
    if rule.choices:
        if value not in rule.choices:
            known = " or ".join(map(str, rule.choices))
            raise TargetFileError(f"{where}: {_shown(value)} {rule.unit} must be {known}; give the number of {rule.meaning}")
        return float(value)
    least = rule.cpu_least if kind == "cpu" and rule.cpu_least is not None else rule.least
    if not least <= value <= rule.most:
        raise TargetFileError(f"{where}: {_shown(value)} {rule.unit} is {_beyond(value, rule, least)}")
    if rule.whole and value != int(value):
        raise TargetFileError(f"{where}: {_shown(value)} {rule.unit} must be a whole number; nearest: {round(value)}")
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
                f"target file '{origin}': figure '{order.path}': {_shown(value)} {unit}{extra} is more than '{order.limit}' allows, "
                f"which is {_shown(limit)}: {order.why}; correct one of them"
            )


def _beyond(value: float, rule: FigureRule, least: float) -> str:
    below = value < least
    side = f"below {_shown(least)}" if below else f"above {_shown(rule.most)}"
    meant = _MEANT.get(rule.unit, ("", ""))[0 if below else 1]
    if not meant:
        return f"{side}; it is '{rule.meaning}', from {_shown(least)} to {_shown(rule.most)}"
    return f"{side}; was it meant in {meant}? give it {_GIVE.get(rule.unit, f'in {rule.unit}')}"


def _shown(value: float) -> str:
    """A number as a person would write it; one beyond all bounds not digit by digit."""
    if isinstance(value, int) and abs(value) > 1 << 64:
        return f"{'-' if value < 0 else ''}2^{value.bit_length() - 1} or more"
    return str(int(value)) if value == int(value) and abs(value) < 1e17 else f"{value:.6g}"
