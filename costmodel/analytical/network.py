"""The network between devices, as one more resource of a kernel.

What a rank sends to its peers leaves beside its product, and as much arrives: the ranks do the same. What
arrives goes to local memory, as the stores would do that are not sent. So traffic of local memory is counted
as if all stores were local, and the network is counted beside it.

A product may send its results, or wait for operands that blocks of the same kernel send at all ranks, or that
copy engines bring. Of the latter two, the work on what arrives last begins when it is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...profile.values import EngineCopies, KernelProfile, LibraryCollective, Phase
from ...records.trial import Prediction
from ...target.network import Level
from ...target.spec import Target
from ..network.collectives import predict_collective
from ..network.transfers import LevelNetwork
from .constants import UNMEASURED_UNCERTAINTY
from .norms import p_norm

NETWORK = "network"
COPY_ENGINE, FLAG_BYTES = "copy_engine", 4
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
        last_share: The share of the kernel's work that needs what arrives last, if it waits for its peers.
        product_share: Then, the rate of the work while others send, over its rate alone.
        first_us: The time of the first transfer, where it is long enough to count.
        waiting_share: The share of the kernel's work that needs it or a later one.
    """

    sent_us: float = 0.0
    last_us: float = 0.0
    notes: tuple[str, ...] = ()
    last_share: float | None = None
    product_share: float = 1.0
    first_us: float = 0.0
    waiting_share: float = 0.0

    @property
    def end_us(self) -> float:
        """What the network adds to the time beside the kernel's own work."""
        return self.last_us if self.last_share is None else 0.0

    def beside(self, busy_us: float) -> float:
        """The time of the kernel's own work of `busy_us` and of the network, beside each other."""
        if self.last_share is None:
            return p_norm([busy_us, self.sent_us], NETWORK_NORM) if self.sent_us else busy_us
        slowed_us = busy_us + (1 - self.product_share) * min(self.sent_us, busy_us)
        return max(
            slowed_us,
            self.first_us + self.waiting_share * busy_us,
            self.sent_us + self.last_us + self.last_share * busy_us,
        )


def network_uncertainty(notes: Sequence[str]) -> float:
    """The uncertainty of the network's times, with the notes on its figures."""
    return math.hypot(NETWORK_UNCERTAINTY, UNMEASURED_UNCERTAINTY) if notes else NETWORK_UNCERTAINTY


def network_use(profile: KernelProfile, target: Target) -> NetworkUse:
    """What a kernel needs of the network of `target`."""
    if profile.copies is not None:
        return _copied(profile.copies, target)
    sent: dict[str, float] = {}
    senders: dict[str, float] = {}  # blocks, by mechanism
    turns = 0.0
    for phase in (phase for role in profile.roles for phase in role.phases):
        if not sends(phase):
            continue
        trips = phase.trips.per_block
        blocks = profile.blocks * sum(count > 0 for count in trips) / len(trips)
        turns = max(turns, phase.trips.largest)
        for access in phase.work.accesses:
            if access.peer:
                times = phase.trips.mean * profile.blocks
                sent[access.peer] = sent.get(access.peer, 0.0) + access.bytes * times
                senders[access.peer] = max(senders.get(access.peer, 0.0), blocks)
    if not sent:
        return NetworkUse()
    networks = networks_of(target)
    most = target.int("core.count")
    cores = {how: max(1, min(round(number), most)) for how, number in senders.items()}
    busy, last, within = 0.0, 0.0, 1
    for network in networks:  # each has links of its own, which work beside each other
        peers = within * (network.level.devices - 1)
        share = peers / (target.world - 1)  # all peers get as much
        time = sum(share * size / network.gb_per_s(how, cores[how]) / 1e3 for how, size in sent.items())
        busy = max(busy, time)
        last = max(last, *(network.transfer_us(0, how, cores[how]) for how in sent))
        within += peers
    notes = _notes_of(networks)
    if not profile.waits:
        return NetworkUse(busy, last, notes)
    # every rank has an equal part, and its senders are done with their last ones at about the same time
    last_share = (target.world - 1) / target.world / turns
    slowed = networks[0].figure("network.product_share")
    last += max(network.flag_us for network in networks)
    return NetworkUse(busy, last, notes, last_share, 1.0 if slowed is None else slowed)


def _copied(copies: EngineCopies, target: Target) -> NetworkUse:
    """What copy engines need of the network beside a kernel that waits for what they bring.

    They copy chunk by chunk, to one peer after the other. Each chunk and each flag is a transfer of its own,
    which starts and ends. The kernel works on its own rows first, then on chunks in the order of arrival.
    """
    networks = networks_of(target)
    times = _chunk_times(copies, networks)
    slowed = networks[0].figure("network.product_share")
    shards = copies.peers + 1
    return NetworkUse(
        sent_us=copies.chunks * sum(times),
        last_us=0.0,
        notes=_notes_of(networks),
        last_share=1 / (shards * copies.chunks),
        product_share=1.0 if slowed is None else slowed,
        first_us=times[0],
        waiting_share=copies.peers / shards,
    )


def copies_us(copies: EngineCopies, target: Target) -> float:
    """The time in which copy engines bring all chunks to all peers."""
    return copies.chunks * sum(_chunk_times(copies, networks_of(target)))


def _chunk_times(copies: EngineCopies, networks: Sequence[LevelNetwork]) -> list[float]:
    """The time of a chunk and its flag to each peer, those of the innermost level first."""
    found: list[float] = []
    for network in networks:
        sizes = (copies.chunk_bytes, FLAG_BYTES)
        chunk_us = sum(network.transfer_us(size, COPY_ENGINE, one_peer=True) for size in sizes)
        found += [chunk_us] * ((len(found) + 1) * (network.level.devices - 1))
    return found


def sends(phase: Phase) -> bool:
    """Whether a phase accesses memory of peers."""
    return any(access.peer for access in phase.work.accesses)


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
    paths = [
        _library_path(level, collective.name)
        for level in (target.levels if predicted else ())
        if _is_predicted(level, collective.name)
    ]
    return _prediction({NETWORK: found.latency_us}, version, found.latency_us, _notes(paths, target.name))


def _library_path(level: Level, collective: str) -> str:
    """The table of the figures that a collective of the library takes from a level."""
    is_of_all = level.spans_units and not level.has_library(collective)
    return f"{level.name}.network.library" + ("" if is_of_all else f".{collective}")


def _is_predicted(level: Level, collective: str) -> bool:
    """Whether a figure of the library is predicted that a collective takes from a level."""
    table = _library_path(level, collective).removeprefix(f"{level.name}.")
    return any(
        path.startswith(f"{table}.") and figure.provenance == _PREDICTED
        for path, figure in level.figures.items()
    )


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
