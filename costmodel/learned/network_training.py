"""Trains several small neural networks at once with PyTorch, on a GPU if there is one.

The networks have the same shape and are trained on different rows, so one batched product computes a layer of
all of them. On a GPU thirty networks take about as long as one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .boosting import Array
from .network import FARTHEST, Network

if TYPE_CHECKING:
    import torch

BATCH = 512
LEAST_SPREAD = 2.0**-10  # of a feature that is the same in all rows; it must not be 0 in half precision
WARM_UP = 0.1  # share of the steps in which the learning rate grows


@dataclass(frozen=True, slots=True)
class NetworkTraining:
    """Parameters of the networks.

    Attributes:
        epochs: how often each row is drawn, on average.
        width: of the hidden layers.
        depth: number of hidden layers.
        dropout: share of the hidden values that are left out in each step. Without it networks follow single
            rows too closely.
        learning_rate: the highest; it grows at first and then falls to nothing.
        weight_decay: of AdamW.
        seed: of weights, batches and dropout.
    """

    epochs: int
    width: int = 256
    depth: int = 3
    dropout: float = 0.1
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    seed: int = 0


def train_networks(
    features: Array,
    ratio_log: NDArray[np.float64],
    weights: NDArray[np.float64],
    chosen: Sequence[NDArray[np.bool_]],
    how: NetworkTraining,
) -> list[Network]:
    """Train a network on each choice of rows.

    Args:
        features: shape (n, f).
        ratio_log: shape (n,), log(measured time / time that is corrected).
        weights: of the rows, shape (n,).
        chosen: masks of the rows of each network, shape (n,), with at least one row each.
        how: the parameters.
    """
    import torch

    device = _device()
    rows = _Rows(features, ratio_log, weights, chosen, device)
    generator = torch.Generator(device=device).manual_seed(how.seed)
    layers = _first_layers(features.shape[1], len(chosen), how, generator)
    batch = min(BATCH, rows.longest)
    steps = how.epochs * -(-rows.longest // batch)
    optimizer = torch.optim.AdamW(
        [parameter for layer in layers for parameter in layer],
        lr=how.learning_rate,
        weight_decay=how.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step / steps))
    for _ in range(steps):
        values, wanted, weight = rows.drawn(batch, generator)
        for layer_weights, biases in layers[:-1]:
            values = torch.nn.functional.silu(torch.baddbmm(biases, values, layer_weights))
            kept = torch.rand(values.shape, device=device, generator=generator) >= how.dropout
            values = values * kept / (1 - how.dropout)
        last_weights, last_biases = layers[-1]
        predicted = torch.baddbmm(last_biases, values, last_weights)[..., 0]
        errors = torch.nn.functional.smooth_l1_loss(predicted, wanted, reduction="none")
        loss = (weight * errors).mean(dim=1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    arrays = [
        (layer_weights.detach().cpu().numpy(), biases.detach().cpu().numpy()[:, 0])
        for layer_weights, biases in layers
    ]
    return [
        Network(
            rows.centres[number].astype(np.float32),
            rows.spreads[number].astype(np.float32),
            tuple((layer_weights[number], biases[number]) for layer_weights, biases in arrays),
            float(rows.scales[number]),
            float(rows.intercepts[number]),
        )
        for number in range(len(chosen))
    ]


class _Rows:
    """The rows of all networks on the device, and how each network scales them."""

    def __init__(
        self,
        features: Array,
        ratio_log: NDArray[np.float64],
        weights: NDArray[np.float64],
        chosen: Sequence[NDArray[np.bool_]],
        device: torch.device,
    ) -> None:
        import torch

        def tensor(values: Any) -> torch.Tensor:
            return torch.as_tensor(np.asarray(values, dtype=np.float32), device=device)

        own = [np.flatnonzero(mask) for mask in chosen]
        self.centres = np.stack([features[rows].mean(axis=0, dtype=np.float64) for rows in own])
        self.spreads = np.stack([features[rows].std(axis=0, dtype=np.float64) for rows in own]) + LEAST_SPREAD
        self.intercepts = np.array([np.average(ratio_log[rows], weights=weights[rows]) for rows in own])
        self.scales = np.array([ratio_log[rows].std() for rows in own])
        self.scales[self.scales == 0] = 1.0
        self.longest = max(len(rows) for rows in own)
        # one matrix of row numbers for all networks, padded by their first rows, which are not drawn
        padded = np.stack([np.resize(rows, self.longest) for rows in own])
        self._padded = torch.as_tensor(padded, device=device)
        self._counts = tensor([len(rows) for rows in own])[:, None]
        self._table, self._ratio, self._weight = tensor(features), tensor(ratio_log), tensor(weights)
        self._centre, self._spread = tensor(self.centres)[:, None], tensor(self.spreads)[:, None]
        self._intercept, self._scale = tensor(self.intercepts)[:, None], tensor(self.scales)[:, None]

    def drawn(
        self, batch: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Random rows of each network: scaled features (networks, batch, f), wanted outputs and weights."""
        import torch

        numbers = torch.rand(len(self._counts), batch, device=self._table.device, generator=generator)
        rows = self._padded.gather(1, (numbers * self._counts).long().clamp_(max=self.longest - 1))
        values = ((self._table[rows] - self._centre) / self._spread).clamp_(-FARTHEST, FARTHEST)
        return values, (self._ratio[rows] - self._intercept) / self._scale, self._weight[rows]


def _device() -> torch.device:
    """A GPU if there is one. Processes that train at once are spread over the GPUs."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device("cuda", os.getpid() % count) if count else torch.device("cpu")


def _first_layers(
    inputs: int, networks: int, how: NetworkTraining, generator: torch.Generator
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights of shape (networks, inputs, outputs) and biases of shape (networks, 1, outputs) of each layer.

    The first correction is small: the last layer begins with a tenth of the usual weights.
    """
    import torch

    found = []
    for number, (before, after) in enumerate(pairwise([inputs, *[how.width] * how.depth, 1])):
        size = (2 / before) ** 0.5 * (0.1 if number == how.depth else 1.0)
        weights = size * torch.randn(networks, before, after, device=generator.device, generator=generator)
        biases = torch.zeros(networks, 1, after, device=generator.device)
        found.append((weights.requires_grad_(), biases.requires_grad_()))
    return found


def _rate(share: float) -> float:
    """Share of the highest learning rate after a share of the steps: a linear rise, then a cosine to 0."""
    if share < WARM_UP:
        return 0.04 + 0.96 * share / WARM_UP
    return float(0.5 + 0.5 * np.cos(np.pi * (share - WARM_UP) / (1 - WARM_UP)))
