"""The network between devices, as one more resource of a kernel.

What a rank sends to its peers leaves beside its product, and as much arrives: the ranks do the same. What
arrives goes to local memory, as the stores would do that are not sent. So traffic of local memory is counted
as if all stores were local, and the network is counted beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...profile.values import KernelProfile, LibraryCollective
from ...records.trial import Prediction
from ...target.network import Level
from ...target.spec import Target
from ..network.collectives import predict_collective
from ..network.transfers import LevelNetwork
from .constants import UNMEASURED_UNCERTAINTY

NETWORK = "network"
_PREDICTED = "predicted"  # the least certain provenance of a figure
# How a kernel and what it sends add up: between one after the other (1) and beside each other (large). Fitted
# to 11 fused products on two and four H100s (experiments/fused_products).
NETWORK_NORM = 1.6
NETWORK_UNCERTAINTY = 0.25  # of the figures of the network and of that sum; the largest error there is 36 %
NOTE = (
    "the learned model has seen no kernel of several devices: the analytical one stands, with a wider sigma"
)


def networks_of(target: Target) -> list[LevelNetwork]:
    """The network of each level, from the inside out. Raises `ValueError` if the target is one device."""
    if not target.levels:
        raise ValueError(
            f"needs several devices, and target {target.name} is one: name a target of several, like h100x2"
        )
    return [LevelNetwork(level, target.name) for level in target.levels]


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """What a kernel needs of the network; nothing for a kernel without peers.

    Attributes:
        sent_us: The time in which its bytes cross the network.
        last_us: The time of the end of the last transfer.
        notes: Which of the target's figures are predicted.
    """

    sent_us: float = 0.0
    last_us: float = 0.0
    notes: tuple[str, ...] = ()


def network_uncertainty(notes: Sequence[str]) -> float:
    """The uncertainty of the network's times, with the notes on its figures."""
    return math.hypot(NETWORK_UNCERTAINTY, UNMEASURED_UNCERTAINTY) if notes else NETWORK_UNCERTAINTY


def network_use(profile: KernelProfile, target: Target) -> NetworkUse:
    """What a kernel needs of the network of `target`."""
    sent: dict[str, float] = {}
    for role in profile.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.peer:
                    times = phase.trips.mean * profile.blocks
                    sent[access.peer] = sent.get(access.peer, 0.0) + access.bytes * times
    if not sent:
        return NetworkUse()
    networks = networks_of(target)
    cores = min(profile.blocks, target.int("core.count"))
    busy, last, within = 0.0, 0.0, 1
    for network in networks:  # each has links of its own, which work beside each other
        peers = within * (network.level.devices - 1)
        share = peers / (target.world - 1)  # all peers get as much
        time = sum(share * size / network.gb_per_s(how, cores) / 1e3 for how, size in sent.items())
        busy = max(busy, time)
        last = max(last, *(network.transfer_us(0, how, cores) for how in sent))
        within += peers
    return NetworkUse(busy, last, _notes_of(networks))


def meeting(profile: KernelProfile, target: Target, version: str) -> Prediction:
    """A kernel in which all ranks wait for each other."""
    launch_us, start_us = target["device.launch_us"], target.get("device.block_start_us")
    networks = networks_of(target)
    waits_us = profile.meetings * max(network.barrier_us for network in networks)
    return _prediction(
        {"launch": launch_us, "fill": start_us, NETWORK: waits_us},
        version,
        launch_us + start_us + waits_us,
        _notes_of(networks),
    )


def library_collective(collective: LibraryCollective, target: Target, version: str) -> Prediction:
    """A collective of the vendor's library."""
    networks_of(target)
    found = predict_collective(target, collective.name, collective.size_bytes)
    predicted = found.provenance == _PREDICTED
    paths = [_library_path(level, collective.name) for level in target.levels] if predicted else []
    return _prediction({NETWORK: found.latency_us}, version, found.latency_us, _notes(paths, target.name))


def _library_path(level: Level, collective: str) -> str:
    """The table of the figures that a collective of the library takes from a level."""
    is_of_all = level.spans_units and not level.has_library(collective)
    return f"{level.name}.network.library" + ("" if is_of_all else f".{collective}")


def _notes_of(networks: Sequence[LevelNetwork]) -> tuple[str, ...]:
    """A note on the predicted figures among those that were read."""
    used = [item for network in networks for item in network.used.items()]
    return _notes([path for path, figure in used if figure.provenance == _PREDICTED], networks[0].target_name)


def _notes(paths: Iterable[str], target_name: str) -> tuple[str, ...]:
    named = ", ".join(paths)
    if not named:
        return ()
    return (
        f"not measured on {target_name} but predicted from other targets: {named}; one sigma is wider by "
        f"{UNMEASURED_UNCERTAINTY:.0%} (added as squares)",
    )


def _prediction(
    terms: dict[str, float], version: str, latency_us: float, notes: tuple[str, ...]
) -> Prediction:
    return Prediction(
        latency_us=latency_us,
        utilization={NETWORK: min(1.0, terms[NETWORK] / latency_us)},
        limiting=NETWORK,
        terms_us=terms,
        uncertainty=network_uncertainty(notes),
        notes=notes,
        model=version,
        expected={},
    )
