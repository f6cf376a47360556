"""Mean value analysis of a closed queueing network: the time of a round of customers that share stations.

Here the customers are groups of warps in a loop, the stations are the units that they share (matrix pipe,
arithmetic, load/store), and the thinking time of a customer are latencies during which it uses no station.

Source: Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing Networks", 1980 (one chain,
exact recursion).
"""

from __future__ import annotations

from collections.abc import Sequence


def round_time(service: Sequence[float], thinking: float, customers: int, contention: float) -> float:
    """Time of one round of each customer, at least the time of the busiest station for all customers.

    Args:
        service: time at each station in one round, without waiting.
        thinking: time in one round away from all stations.
        customers: number of customers.
        contention: share of the queue at arrival that a customer waits for: 1 for exponential service times,
            less for regular ones.
    """
    waiting = [0.0] * len(service)  # mean number of customers at each station
    total = thinking + sum(service)
    for present in range(1, customers + 1):
        stays = [s * (1.0 + contention * q) for s, q in zip(service, waiting, strict=True)]
        total = max(thinking + sum(stays), present * max(service, default=0.0))
        waiting = [present * stay / total if total else 0.0 for stay in stays]
    return total
