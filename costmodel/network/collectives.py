"""Predicted times of collectives, from bytes, the number of devices, and the network of a target.

A collective runs on the levels of a target in phases, each between the parts of one level. A phase takes a
latency (steps, barriers) and its bytes over a bandwidth. On a pod of nodes an all-reduce of a kernel is a
reduce-scatter within each node, an all-reduce between nodes, and an all-gather within each node, one after
the other. The vendor's library does all at the same time where a level says what it reaches between its units
(`spanning.py`).

Not modelled: the arithmetic of sums and the traffic in local memory, which are ten times faster than the
link, and ranks that begin late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ...errors import InputError, UnknownNameError
from ...target.fields import Figure
from ...target.network import COLLECTIVES, PUT, SPANNING_ALL, whole_world
from ...target.spec import Target
from .phases import CollectivePhase
from .spanning import over_units
from .transfers import LevelNetwork, hops, sent_share

__all__ = ["ALGORITHMS", "CollectivePhase", "CollectivePrediction", "predict_collective", "ranks_of_levels"]

# algorithms by collective; the first is the default
ALGORITHMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all_reduce": ("library", "one_shot", "two_shot", "ring"),
        "all_gather": ("library", "direct", "ring"),
        "reduce_scatter": ("library", "direct", "ring"),
        "all_to_all": ("library", "direct"),
    }
)
_PULLED = ("one_shot", "two_shot")  # ranks read their peers' tensors; others write to their peers
_CERTAINTY = ("measured", "spec", "public", "derived", "predicted")  # best first


@dataclass(frozen=True, slots=True)
class CollectivePrediction:
    """The predicted time of a collective.

    Attributes:
        collective: all_reduce, all_gather, reduce_scatter or all_to_all.
        size_bytes: Of the whole tensor, which each device has before or after.
        world: Number of devices.
        algorithm: `library`, or that of a kernel.
        mechanism: How the kernel moves data; empty for the library.
        launch_us: Launch of the kernel; that of the library is part of its latency.
        phases: In the order in which they run.
        provenance: That of the least certain figure that was used.
    """

    collective: str
    size_bytes: int
    world: int
    algorithm: str
    mechanism: str
    launch_us: float
    phases: tuple[CollectivePhase, ...]
    provenance: str

    @property
    def latency_us(self) -> float:
        """The predicted time."""
        return self.launch_us + sum(phase.latency_us + phase.transfer_us for phase in self.phases)

    @property
    def limiting(self) -> str:
        """The term that takes longest: latency, or the network of a level."""
        fixed = self.launch_us + sum(phase.latency_us for phase in self.phases)
        levels = dict.fromkeys(phase.level for phase in self.phases)
        moved = {
            f"{level} network": sum(p.transfer_us for p in self.phases if p.level == level)
            for level in levels
        }
        terms = {"latency": fixed, **moved}
        return max(terms, key=lambda name: terms[name])


def predict_collective(
    target: Target,
    collective: str,
    size_bytes: int,
    world: int | None = None,
    algorithm: str | None = None,
    mechanism: str | None = None,
    cores: int | None = None,
) -> CollectivePrediction:
    """Predict the time of a collective on the devices of a target.

    Args:
        target: Several devices.
        collective: One of `COLLECTIVES`.
        size_bytes: Bytes of the whole tensor: what each device has before an all-reduce, a reduce-scatter or
            an all-to-all, and after an all-gather.
        world: Number of devices; None: all. The innermost level is filled first.
        algorithm: One of `ALGORITHMS[collective]`; None: the vendor's library.
        mechanism: How a kernel moves data; None: loads where ranks read their peers' tensors, else stores.
            `put` on levels that are reached by nothing else.
        cores: Cores of each device that move data; None: all.

    Raises:
        InputError: An unknown name, a world or size that is not possible, or a figure that the target lacks.
    """
    if collective not in COLLECTIVES:
        raise UnknownNameError("collective", collective, COLLECTIVES)
    algorithm = ALGORITHMS[collective][0] if algorithm is None else str(algorithm)
    if algorithm not in ALGORITHMS[collective]:
        raise UnknownNameError(f"algorithm of {collective}", algorithm, ALGORITHMS[collective])
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 1:
        raise InputError(f"size_bytes={size_bytes!r} must be a whole number of bytes, at least 1")
    if algorithm == "library" and (mechanism is not None or cores is not None):
        raise InputError(
            "mechanism and cores are those of a kernel; the library chooses its own: leave them out, or name "
            f"an algorithm: {', '.join(ALGORITHMS[collective][1:])}"
        )
    if cores is not None:
        most = round(target["core.count"])
        if isinstance(cores, bool) or not isinstance(cores, int) or not 1 <= cores <= most:
            raise InputError(
                f"cores={cores!r} must be a whole number from 1 to {most}, the cores of one device"
            )
    mechanism = mechanism or ("load" if algorithm in _PULLED else "store")
    ranks = ranks_of_levels(target, world)
    networks = [LevelNetwork(level, target.name) for level in target.levels]
    start_names = ("device.launch_us", "device.block_start_us")
    start_us = sum(target.get(name) for name in start_names)
    if algorithm == "library":
        phases = _of_library(networks, ranks, collective, size_bytes, start_us)
    else:
        phases = [
            _phase(networks[place], what, ranks[place], size, algorithm, mechanism, cores)
            for place, what, size in _plan(networks, collective, ranks, size_bytes, mechanism)
        ]
        if collective == "all_to_all" and _writes_to_all(networks, ranks, mechanism):
            phases = _beside_each_other(phases)
    used = [figure for network in networks for figure in network.used.values()]
    if algorithm != "library":
        used += [target.figures[name] for name in start_names if name in target.figures]
    return CollectivePrediction(
        collective=collective,
        size_bytes=size_bytes,
        world=math.prod(ranks),
        algorithm=algorithm,
        mechanism="" if algorithm == "library" else mechanism,
        launch_us=0.0 if algorithm == "library" else start_us,
        phases=tuple(phases),
        provenance=_least_certain(used),
    )


def ranks_of_levels(target: Target, world: int | None) -> tuple[int, ...]:
    """How many parts of each level take part, from the inside out.

    Raises:
        InputError: The target is one device, or `world` devices cannot be taken from it evenly.
    """
    if not target.levels:
        raise InputError(
            f"target {target.name} is one device, which has no peers; name several, like h100x4, or state "
            "the world"
        )
    left = whole_world(target.world if world is None else world)
    if left > target.world:
        raise InputError(
            f"world {left} is larger than target {target.name}, which has {target.world} devices"
        )
    ranks: list[int] = []
    for level in target.levels:
        part, inner = min(left, level.devices), math.prod(ranks)
        if left % part:
            raise InputError(
                f"world {world} does not fill whole units of level '{level.name}' of target {target.name}: "
                f"it must be a multiple of {inner * part}, or a smaller multiple of {inner}"
            )
        ranks.append(part)
        left //= part
    return tuple(ranks)


def _of_library(
    networks: Sequence[LevelNetwork],
    ranks: tuple[int, ...],
    collective: str,
    size_bytes: float,
    launch_us: float,
) -> list[CollectivePhase]:
    """The phases of a collective of the library."""
    active = [place for place, count in enumerate(ranks) if count > 1]
    if not active:
        return []
    last = active[-1]
    outer = networks[last]
    if not outer.level.spans_units or outer.level.has_library(collective):
        if len(active) > 1 and not outer.level.has_library(collective):
            outer.required(
                SPANNING_ALL[0], "add what the library reaches between units, or name an algorithm"
            )
        return [
            _phase(networks[place], what, ranks[place], size, "library", "", None)
            for place, what, size in _plan(networks, collective, ranks, size_bytes, "")
        ]
    inner = ranks[:last]
    within = _of_library(networks[:last], inner, collective, size_bytes, launch_us)
    return over_units(outer, ranks[last], within, math.prod(inner), collective, size_bytes, launch_us)


def _plan(
    networks: Sequence[LevelNetwork],
    collective: str,
    ranks: tuple[int, ...],
    size_bytes: float,
    mechanism: str,
) -> list[tuple[int, str, float]]:
    """The phases of a collective: place of the level, what its parts do, and the size of the tensor there.

    After a reduce-scatter within a unit each device holds one part, and the same parts of all units form a
    collective of their own on the next level.
    """
    active = [place for place, count in enumerate(ranks) if count > 1]
    shares = [size_bytes / math.prod(ranks[:place]) for place in active]
    inward = list(zip(active, shares, strict=True))
    if collective == "all_to_all":
        if _writes_to_all(networks, ranks, mechanism):
            # what stays within a unit is a part of the tensor
            stays = [size_bytes / math.prod(ranks[place + 1 :]) for place in active]
            return [(place, collective, size) for place, size in zip(active, stays, strict=True)]
        # first within the unit to the device that has the same place as the receiver, then between units
        return [(place, collective, size_bytes) for place in active]
    if collective == "reduce_scatter":
        return [(place, collective, share) for place, share in inward]
    if collective == "all_gather":
        return [(place, collective, share) for place, share in reversed(inward)]
    *inner, (last, rest) = inward
    return [
        *((place, "reduce_scatter", share) for place, share in inner),
        (last, "all_reduce", rest),
        *((place, "all_gather", share) for place, share in reversed(inner)),
    ]


def _writes_to_all(networks: Sequence[LevelNetwork], ranks: tuple[int, ...], mechanism: str) -> bool:
    """Whether each device writes to receivers in other units itself, by its network card."""
    return any(
        count > 1 and network.way_of(mechanism) == PUT
        for network, count in zip(networks[1:], ranks[1:], strict=True)
    )


def _beside_each_other(phases: Sequence[CollectivePhase]) -> list[CollectivePhase]:
    """Phases that move bytes at the same time: the longest takes its time, the others add none."""
    longest = max(phases, key=lambda phase: phase.transfer_us)
    return [phase if phase is longest else replace(phase, transfer_us=0.0) for phase in phases]


def _phase(
    network: LevelNetwork,
    collective: str,
    ranks: int,
    size_bytes: float,
    algorithm: str,
    mechanism: str,
    cores: int | None,
) -> CollectivePhase:
    """One phase between `ranks` parts of a level, on a tensor of `size_bytes`."""
    once = size_bytes * (ranks - 1) / ranks  # all parts of the tensor but one
    passes = 2 if collective == "all_reduce" else 1
    if algorithm == "library":
        sent = size_bytes * sent_share(collective, ranks)
        on_curve = network.library_us(collective, sent, ranks)
        if on_curve is not None:
            return CollectivePhase(network.level.name, collective, ranks, sent, *on_curve)
        way_out = "name an algorithm of a kernel instead, or add the figure"
        latency = network.required(f"network.library.{collective}.latency_us", way_out)
        rate = network.required(f"network.library.{collective}.gb_per_s", way_out)
        return CollectivePhase(network.level.name, collective, ranks, sent, latency, sent / rate / 1e3)
    mechanism = network.way_of(mechanism)
    if algorithm == "ring":
        return _ring(network, collective, ranks, passes, once, mechanism, cores)
    # a barrier before the first pass, since peers must have their data, and one after each pass
    if algorithm == "one_shot" and collective == "all_reduce":
        passes, once = 1, size_bytes * (ranks - 1)
    far = hops(network.level.topology, ranks)
    transfer = once * far / network.gb_per_s(mechanism, cores) / 1e3
    ends = network.transfer_us(0, mechanism, cores)
    latency = (passes + 1) * network.barrier_us * far + passes * ends
    return CollectivePhase(network.level.name, collective, ranks, passes * once, latency, passes * transfer)


def _ring(
    network: LevelNetwork,
    collective: str,
    ranks: int,
    passes: int,
    once: float,
    mechanism: str,
    cores: int | None,
) -> CollectivePhase:
    """A ring: in each step every part sends one share to the next part, and then a flag."""
    steps = passes * (ranks - 1)
    ends = network.transfer_us(0, mechanism, cores)
    transfer = passes * once / network.gb_per_s(mechanism, cores, one_peer=True) / 1e3
    return CollectivePhase(
        network.level.name, collective, ranks, passes * once, steps * (ends + network.flag_us), transfer
    )


def _least_certain(figures: list[Figure]) -> str:
    return max((figure.provenance for figure in figures), key=_CERTAINTY.index)
