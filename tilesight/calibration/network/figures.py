"""From the times of all ranks to figures of a network.

Ranks begin each sample together, and its time is that of the rank that takes longest in it. A figure is the
median of the samples. One whose median they do not settle is no figure: more samples are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ...target.network import MECHANISMS, size_name
from ..readings import INFORMATIVE, Reading, settled_reading
from .steps import COPIED_BYTES, FEW_BLOCKS, FEW_ROUNDS, FLAG_ROUNDS, LONG_ROUNDS, Kind, NetworkStep, Times

PEER_DIFFERS = 0.05  # below that, one peer and all peers are the same figure
MOST_SPREAD = 0.10  # of a figure's median

Rows = Mapping[NetworkStep, tuple[Times, ...]]
Samples = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the samples of some steps say of a figure.

    Attributes:
        reading: The figure, if it is one.
        steps: The steps that it follows from.
        absence: What it means if the value is zero or less, where that can be.
    """

    reading: Reading
    steps: tuple[NetworkStep, ...]
    absence: str = ""

    @property
    def is_absent(self) -> bool:
        """Whether the figure is of something that takes no time."""
        return bool(self.absence) and self.reading.value <= 0

    @property
    def is_unsettled(self) -> bool:
        """Whether more samples are needed."""
        return self.reading.spread > MOST_SPREAD and not self.is_absent

    @property
    def refusal(self) -> str:
        """Why this is no measured figure; empty if it is one."""
        if self.is_absent:
            return f"left out: {self.reading.path}: {self.absence}"
        if self.is_unsettled:
            count = len(self.reading.samples)
            return (
                f"left out: {self.reading.path}: {self.reading.value:.4g} is the median of {count} samples, "
                f"which tell it to {self.reading.spread:.0%} and not to {MOST_SPREAD:.0%}"
            )
        return ""


def findings(rows: Rows, level: str, library: str = "") -> list[Finding]:
    """What follows from `rows` for the figures of the level; steps that were not timed say nothing.

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


def unsettled_steps(found: Iterable[Finding]) -> list[NetworkStep]:
    """The steps of which more samples are needed, each once."""
    return list(dict.fromkeys(step for one in found if one.is_unsettled for step in one.steps))


def slowest(times: Sequence[Times]) -> Times:
    """Of each sample the times of the rank that takes longest in it."""
    us: list[float] = []
    pushed: list[float] = []
    given = [one for one in times if one.us]
    for sample in range(min(len(one.us) for one in given)):
        last = max(given, key=lambda one: one.us[sample])
        us.append(last.us[sample])
        pushed += last.pushed_gb_per_s[sample : sample + 1]
    return Times(tuple(us), tuple(pushed))


@dataclass(frozen=True, slots=True)
class _Line:
    """Times of a short and a long step. Per sample: us a unit (byte, round), and the time of no units."""

    slopes: Samples
    fixed: Samples
    steps: tuple[NetworkStep, NetworkStep]


def _finding(path: str, values: Sequence[float], method: str, *steps: NetworkStep) -> Finding:
    return Finding(settled_reading(path, values, method), steps)


def _line(rows: Rows, short: NetworkStep | None, long: NetworkStep | None) -> _Line | None:
    if short is None or long is None:
        return None
    first, last = _units(short), _units(long)
    at_short, at_long = slowest(rows[short]).us, slowest(rows[long]).us
    # by pairs, so that the scatter of both is that of the slope
    slopes = tuple((high - low) / (last - first) for low, high in zip(at_short, at_long, strict=False))
    middle = median(slopes)
    return _Line(slopes, tuple(us - middle * first for us in at_short), (short, long))


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


def _flags(rows: Rows, prefix: str) -> Iterator[Finding]:
    line = _pair(rows, "rounds", FLAG_ROUNDS, kind=Kind.FLAG)
    if line is not None:
        method = (
            "half of a round of a flag that two neighbours pass to and fro, thousands of rounds in one kernel"
        )
        yield _finding(f"{prefix}.flag_us", [us / 2 for us in line.slopes], method, *line.steps)
    line = _pair(rows, "rounds", FLAG_ROUNDS, kind=Kind.BARRIER)
    if line is not None:
        method = "each rank stores a flag to all and waits for theirs, thousands of barriers in one kernel"
        yield _finding(f"{prefix}.barrier_us", line.slopes, method, *line.steps)


def _mechanism(rows: Rows, name: str, prefix: str) -> Iterator[Finding]:
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
            yield _finding(f"{prefix}.core_gb_per_s", _rates(few, FEW_BLOCKS), method, *few.steps)
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
    yield _finding(f"{prefix}.gb_per_s", several, f"{method}; {at_once}", *given[everybody].steps)
    if everybody > 1 and abs(median(one) / max(median(several), 1e-9) - 1) > PEER_DIFFERS:
        steps = given[min(given)].steps
        yield _finding(f"{prefix}.peer_gb_per_s", one, f"{method}; each rank and its next neighbour", *steps)


def _half_bytes(
    rows: Rows, name: str, prefix: str, blocks: int, lines: Mapping[int, _Line | None]
) -> Iterator[Finding]:
    """The time of a transfer of no bytes, beyond that of a kernel that moves nothing, at the full rate.

    It is a small difference of times, and none where a kernel's own end covers that of its stores.
    """
    peers = max(lines, default=0)
    line = lines.get(peers)
    empty = _find(rows, kind=Kind.MOVE, name=name, blocks=blocks, peers=peers, rounds=0)
    if line is None or empty is None or median(line.slopes) <= 0:
        return
    launches, slope = slowest(rows[empty]).us, median(line.slopes)
    launch_us = median(launches)
    beyond = [us - launch for us, launch in zip(line.fixed, launches, strict=False)]
    method = (
        f"the time of no bytes on the line of two sizes, less {launch_us:.3g} us of a kernel that moves "
        "nothing, times the bandwidth"
    )
    absence = (
        "cannot be told, since a transfer of no bytes takes no longer than a kernel that moves nothing: "
        f"{launch_us + median(beyond):.3g} and {launch_us:.3g} us"
    )
    ends = [us / slope for us in beyond]
    found = _finding(f"{prefix}.half_bytes", ends, method, empty, *line.steps)
    yield replace(found, reading=replace(found.reading, value=round(found.reading.value)), absence=absence)


def _library(rows: Rows, prefix: str, library: str) -> Iterator[Finding]:
    method = "bfloat16, outside of graphs, after a barrier on the device"
    if library:
        method = f"{library}, {method}"
    for step, times in rows.items():
        if step.kind is Kind.LIBRARY:
            path = f"{prefix}.{step.name}.us.{size_name(step.size_bytes)}"
            yield _finding(path, slowest(times).us, method, step)


def _product(rows: Rows, prefix: str) -> Iterator[Finding]:
    """How much slower a product gets when other cores push, with the most cores that were tried."""
    alone = _find(rows, kind=Kind.PRODUCT, blocks=0)
    shares: dict[int, list[float]] = {}
    used: dict[int, tuple[NetworkStep, NetworkStep]] = {}
    words = []
    if alone is not None:
        words.append(f"alone {median(slowest(rows[alone]).us):.4g} us")
    for step in rows:
        idle = _find(rows, kind=Kind.PRODUCT, blocks=step.blocks, name="idle")
        if step.kind is not Kind.PRODUCT or step.name != "push" or idle is None:
            continue
        beside, pushed = slowest(rows[idle]), slowest(rows[step])
        shares[step.blocks] = [own / us for own, us in zip(beside.us, pushed.us, strict=False)]
        used[step.blocks] = (idle, step)
        rate = f" at {median(pushed.pushed_gb_per_s):.3g} GB/s" if pushed.pushed_gb_per_s else ""
        words.append(
            f"{median(beside.us):.4g} us beside {step.blocks} idle cores, {median(pushed.us):.4g} us beside "
            f"as many that push by ordinary stores{rate}"
        )
    if shares:
        blocks = max(shares)
        method = f"a product {'; '.join(words)}; the figure is that of {blocks} cores; {INFORMATIVE}"
        yield _finding(f"{prefix}.product_share", shares[blocks], method, *used[blocks])
