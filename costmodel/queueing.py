"""Mean value analysis of a closed queueing network: how long one round takes where several customers share stations.

Here the customers are groups of warps that go through a loop, the stations the units that they share (matrix pipe,
arithmetic, load/store), and thinking is what each waits for by itself (latencies).

Source: Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing Networks", 1980 (one chain, exact recursion).
"""

from __future__ import annotations

from collections.abc import Sequence


def round_time(service: Sequence[float], thinking: float, customers: int, contention: float) -> float:
    """Time of one round of each of `customers`, in the unit of `service` (time at each station in one round, undisturbed).

    `contention` is the share of a queue found on arrival that must be waited for: 1 for service times without memory,
    less for regular ones, which avoid each other. Never less than what the busiest station needs for all customers.
    """
    waiting = [0.0] * len(service)  # mean number of customers at each station
    total = thinking + sum(service)
    for present in range(1, customers + 1):
        stays = [s * (1.0 + contention * q) for s, q in zip(service, waiting, strict=True)]
        total = max(thinking + sum(stays), present * max(service, default=0.0))
        waiting = [present * stay / total if total else 0.0 for stay in stays]
    return total
