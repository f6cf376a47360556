"""From the times of all ranks to figures of a network.

The time of a sample is that of the slowest rank: the rank whose median is the greatest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ...target.network import MECHANISMS, size_name
from ..readings import INFORMATIVE, Reading, reading
from .steps import COPIED_BYTES, FEW_BLOCKS, FEW_ROUNDS, FLAG_ROUNDS, LONG_ROUNDS, Kind, NetworkStep, Times

PEER_DIFFERS = 0.05  # below that, one peer and all peers are the same figure

Rows = Mapping[NetworkStep, tuple[Times, ...]]
Samples = tuple[float, ...]


def readings(rows: Rows, level: str, library: str = "") -> list[Reading]:
    """The figures of the level that follow from `rows`; steps that were not timed give none.

    Args:
        rows: The times of all ranks, by step.
        level: Name of the level.
        library: Name and version of the vendor's library.
    """
    prefix = f"{level}.network"
    found = list(_flags(rows, prefix))
    for name in MECHANISMS:
        found += _mechanism(rows, name, f"{prefix}.{name}")
    return [*found, *_library(rows, f"{prefix}.library", library), *_product(rows, prefix)]


def slowest(times: Sequence[Times]) -> Times:
    """Those of the slowest rank."""
    return max((one for one in times if one.us), key=lambda one: median(one.us))


@dataclass(frozen=True, slots=True)
class _Line:
    """Times of a short and a long step. Per sample: us a unit (byte, round), and the time of no units."""

    slopes: Samples
    fixed: Samples


def _line(rows: Rows, short: NetworkStep | None, long: NetworkStep | None) -> _Line | None:
    if short is None or long is None:
        return None
    first, last = _units(short), _units(long)
    at_short, at_long = median(slowest(rows[short]).us), slowest(rows[long]).us
    slopes = tuple((us - at_short) / (last - first) for us in at_long)
    middle = median(slopes)
    return _Line(slopes, tuple(us - middle * first for us in slowest(rows[short]).us))


def _units(step: NetworkStep) -> int:
    return step.moved_bytes if step.kind in (Kind.MOVE, Kind.COPY) else step.rounds


def _find(rows: Rows, **wanted: object) -> NetworkStep | None:
    """The timed step with these attributes."""
    return next((s for s in rows if all(getattr(s, key) == value for key, value in wanted.items())), None)


def _pair(rows: Rows, key: str, values: tuple[int, int], **wanted: object) -> _Line | None:
    short, long = (_find(rows, **wanted, **{key: value}) for value in values)
    return _line(rows, short, long)


def _rates(line: _Line, parts: int = 1) -> Samples:
    """GB/s of one of `parts`; 0, which no figure may be, where more bytes took no longer."""
    return tuple(1e-3 / (slope * parts) if slope > 0 else 0.0 for slope in line.slopes)


def _flags(rows: Rows, prefix: str) -> Iterator[Reading]:
    line = _pair(rows, "rounds", FLAG_ROUNDS, kind=Kind.FLAG)
    if line is not None:
        method = (
            "half of a round of a flag that two neighbours pass to and fro, thousands of rounds in one kernel"
        )
        yield reading(f"{prefix}.flag_us", [us / 2 for us in line.slopes], method)
    line = _pair(rows, "rounds", FLAG_ROUNDS, kind=Kind.BARRIER)
    if line is not None:
        method = "each rank stores a flag to all and waits for theirs, thousands of barriers in one kernel"
        yield reading(f"{prefix}.barrier_us", line.slopes, method)


def _mechanism(rows: Rows, name: str, prefix: str) -> Iterator[Reading]:
    if name == "copy_engine":
        lines = {
            peers: _pair(rows, "size_bytes", COPIED_BYTES, kind=Kind.COPY, peers=peers)
            for peers in sorted({step.peers for step in rows if step.kind is Kind.COPY})
        }
        what = "torch copies " + " and ".join(f"{size >> 20} MiB" for size in COPIED_BYTES)
    else:
        moved = [step for step in rows if step.kind is Kind.MOVE and step.name == name]
        few = _pair(rows, "rounds", FEW_ROUNDS, kind=Kind.MOVE, name=name, blocks=FEW_BLOCKS)
        if few is not None:
            method = (
                f"{FEW_BLOCKS} blocks to one peer, half of their rate; further bytes over the further time"
            )
            yield reading(f"{prefix}.core_gb_per_s", _rates(few, FEW_BLOCKS), method)
        blocks = max((step.blocks for step in moved), default=0)
        lines = {
            peers: _pair(rows, "rounds", LONG_ROUNDS, kind=Kind.MOVE, name=name, blocks=blocks, peers=peers)
            for peers in sorted({step.peers for step in moved if step.blocks == blocks})
        }
        what = f"{blocks} blocks"
        yield from _half_bytes(rows, name, prefix, blocks, lines)
    given = {peers: line for peers, line in lines.items() if line is not None}
    if not given:
        return
    everybody = max(given)
    one, several = _rates(given[min(given)]), _rates(given[everybody])
    method = f"{what}, all ranks at once; further bytes over the further time"
    at_once = "the other device" if everybody == 1 else f"all {everybody} peers at once"
    yield reading(f"{prefix}.gb_per_s", several, f"{method}; {at_once}")
    if everybody > 1 and abs(median(one) / max(median(several), 1e-9) - 1) > PEER_DIFFERS:
        yield reading(f"{prefix}.peer_gb_per_s", one, f"{method}; each rank and its next neighbour")


def _half_bytes(
    rows: Rows, name: str, prefix: str, blocks: int, lines: Mapping[int, _Line | None]
) -> Iterator[Reading]:
    """The time of a transfer of no bytes, beyond that of a kernel that moves nothing, at the full rate."""
    peers = max(lines, default=0)
    line = lines.get(peers)
    empty = _find(rows, kind=Kind.MOVE, name=name, blocks=blocks, peers=peers, rounds=0)
    if line is None or empty is None or median(line.slopes) <= 0:
        return
    launch_us, slope = median(slowest(rows[empty]).us), median(line.slopes)
    ends = [round(max(us - launch_us, 0.0) / slope) for us in line.fixed]
    method = (
        f"the time of no bytes on the line of two sizes, less {launch_us:.3g} us of a kernel that moves "
        "nothing, times the bandwidth"
    )
    yield reading(f"{prefix}.half_bytes", ends, method)


def _library(rows: Rows, prefix: str, library: str) -> Iterator[Reading]:
    method = "bfloat16, outside of graphs, after a barrier on the device"
    if library:
        method = f"{library}, {method}"
    for step, times in rows.items():
        if step.kind is Kind.LIBRARY:
            path = f"{prefix}.{step.name}.us.{size_name(step.size_bytes)}"
            yield reading(path, slowest(times).us, method)


def _product(rows: Rows, prefix: str) -> Iterator[Reading]:
    """How much slower a product gets when other cores push, with the most cores that were tried."""
    alone = _find(rows, kind=Kind.PRODUCT, blocks=0)
    shares: dict[int, list[float]] = {}
    words = []
    if alone is not None:
        words.append(f"alone {median(slowest(rows[alone]).us):.4g} us")
    for step in rows:
        idle = _find(rows, kind=Kind.PRODUCT, blocks=step.blocks, name="idle")
        if step.kind is not Kind.PRODUCT or step.name != "push" or idle is None:
            continue
        beside, pushed = slowest(rows[idle]), slowest(rows[step])
        shares[step.blocks] = [median(beside.us) / us for us in pushed.us]
        rate = f" at {median(pushed.pushed_gb_per_s):.3g} GB/s" if pushed.pushed_gb_per_s else ""
        words.append(
            f"{median(beside.us):.4g} us beside {step.blocks} idle cores, {median(pushed.us):.4g} us beside "
            f"as many that push by ordinary stores{rate}"
        )
    if shares:
        blocks = max(shares)
        method = f"a product {'; '.join(words)}; the figure is that of {blocks} cores; {INFORMATIVE}"
        yield reading(f"{prefix}.product_share", shares[blocks], method)
