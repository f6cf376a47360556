"""The network between devices, as one more resource of a kernel.

What a rank sends to its peers leaves beside its product, and as much arrives: the ranks do the same. What
arrives goes to local memory, as the stores would do that are not sent. So traffic of local memory is counted
as if all stores were local, and the network is counted beside it.
"""

from __future__ import annotations

from ...profile.values import KernelProfile, LibraryCollective
from ...records.trial import Prediction
from ...target.spec import Target
from ..network.collectives import predict_collective
from ..network.transfers import LevelNetwork

NETWORK = "network"
# How a kernel and what it sends add up: between one after the other (1) and beside each other (large). Fitted
# to 11 fused products on two and four H100s (experiments/fused_products).
NETWORK_NORM = 1.6
NETWORK_UNCERTAINTY = 0.25  # of the figures of the network and of that sum; the largest error there is 36 %
NOTE = (
    "the learned model has seen no kernel of several devices: the analytical one stands, with a wider sigma"
)


def network_of(target: Target) -> LevelNetwork:
    """The network of the innermost level. Raises `ValueError` if the target is one device."""
    if not target.levels:
        raise ValueError(
            f"needs several devices, and target {target.name} is one: name a target of several, like h100x2"
        )
    return LevelNetwork(target.levels[0], target.name)


def network_us(profile: KernelProfile, target: Target) -> tuple[float, float]:
    """The time in which a kernel's bytes cross the network, and that of the end of the last transfer.

    Both are 0 for a kernel without peers.
    """
    sent: dict[str, float] = {}
    for role in profile.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.peer:
                    times = phase.trips.mean * profile.blocks
                    sent[access.peer] = sent.get(access.peer, 0.0) + access.bytes * times
    if not sent:
        return 0.0, 0.0
    network = network_of(target)
    cores = min(profile.blocks, target.int("core.count"))
    busy = sum(size / network.gb_per_s(how, cores) / 1e3 for how, size in sent.items())
    return busy, max(network.transfer_us(0, how, cores) for how in sent)


def meeting(profile: KernelProfile, target: Target, version: str) -> Prediction:
    """A kernel in which all ranks wait for each other."""
    launch_us, start_us = target["device.launch_us"], target.get("device.block_start_us")
    waits_us = profile.meetings * network_of(target).barrier_us
    return _prediction(
        {"launch": launch_us, "fill": start_us, NETWORK: waits_us}, version, launch_us + start_us + waits_us
    )


def library_collective(collective: LibraryCollective, target: Target, version: str) -> Prediction:
    """A collective of the vendor's library."""
    network_of(target)
    found = predict_collective(target, collective.name, collective.size_bytes)
    return _prediction({NETWORK: found.latency_us}, version, found.latency_us)


def _prediction(terms: dict[str, float], version: str, latency_us: float) -> Prediction:
    return Prediction(
        latency_us=latency_us,
        utilization={NETWORK: min(1.0, terms[NETWORK] / latency_us)},
        limiting=NETWORK,
        terms_us=terms,
        uncertainty=NETWORK_UNCERTAINTY,
        notes=(),
        model=version,
        expected={},
    )
