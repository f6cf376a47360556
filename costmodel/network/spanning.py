"""Collectives of the vendor's library over units of a level: nodes of a pod, whose devices have fast links.

The library sends a tensor in pieces, so a unit works on one piece while another one travels between units.
Between two units an all-reduce is a tree: each sends its sum to the other. Between more, and of a gather or a
scatter, the bytes are those of a ring through all devices, which enters each unit once for each of its
devices. The latency of an all-reduce is that of a tree, which the library takes for few bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...target.network import SPANNING_ALL
from .phases import CollectivePhase
from .transfers import LevelNetwork, sent_share

# How the times within and between two units add up: between one after the other (1) and beside each other
# (large). Fitted with the figures of docs/pod.toml (experiments/pods).
UNITS_NORM = 3.5


def over_units(
    network: LevelNetwork,
    units: int,
    within: Sequence[CollectivePhase],
    devices: int,
    collective: str,
    size_bytes: float,
    launch_us: float,
) -> list[CollectivePhase]:
    """The phases of a collective over units, of which the longer takes its time and the other what it adds.

    Args:
        network: That between the units.
        units: Number of units that take part.
        within: The same collective on the same tensor within a unit; empty for a unit of one device.
        devices: Number of devices of a unit.
        collective: One of `COLLECTIVES`.
        size_bytes: Of the whole tensor.
        launch_us: Launch of a kernel, which is part of the latency of `within`.
    """
    rate, step_us, fill_us, fill_bytes = (network.required(path, "") for path in SPANNING_ALL)
    inner_us = sum(phase.transfer_us for phase in within)
    sent = _sent(collective, units, devices, size_bytes)
    sent_us = sent / rate / 1e3
    whole_us = max(inner_us, sent_us)
    if collective == "all_reduce" and units == 2 and inner_us:
        whole_us *= (1 + (min(inner_us, sent_us) / whole_us) ** UNITS_NORM) ** (1 / UNITS_NORM)
    steps = 2 * math.ceil(math.log2(units)) if collective == "all_reduce" else units - 1
    waits_us = steps * (step_us + fill_us * size_bytes / (size_bytes + fill_bytes))
    if not within:
        waits_us += launch_us
    rounds = units if collective in ("all_gather", "reduce_scatter") else 1  # units that a ring passes
    is_inner_longer = inner_us >= sent_us
    shrink = 1.0 if is_inner_longer or not inner_us else (whole_us - sent_us) / inner_us
    return [
        *(_passed(phase, rounds, launch_us, shrink) for phase in within),
        CollectivePhase(
            network.level.name,
            collective,
            units,
            sent,
            waits_us,
            whole_us - inner_us if is_inner_longer else sent_us,
        ),
    ]


def _sent(collective: str, units: int, devices: int, size_bytes: float) -> float:
    """Bytes that each device sends to other units."""
    if collective == "all_to_all":
        return size_bytes * (units - 1) / units
    if collective == "all_reduce" and units == 2:
        return size_bytes / devices
    return sent_share(collective, units * devices) * size_bytes / devices


def _passed(phase: CollectivePhase, rounds: int, launch_us: float, shrink: float) -> CollectivePhase:
    """A phase within a unit as part of one over units: its latency in each unit, the launch once."""
    again = max(phase.latency_us - launch_us, 0.0)
    return replace(
        phase,
        latency_us=phase.latency_us + (rounds - 1) * again,
        transfer_us=phase.transfer_us * shrink,
    )
