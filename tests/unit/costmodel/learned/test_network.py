"""Networks of the learned model: training, predictions, and the numbers in files."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tilesight.costmodel.learned.network import FARTHEST, Network, network_of
from tilesight.costmodel.learned.network_training import NetworkTraining, train_networks

HOW = NetworkTraining(epochs=60, width=32, depth=2)
COUNT = 600


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several threads that wait for each other take longer for so few rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Rows of five features, one of them constant, and a ratio that is not linear in them."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(COUNT, 5)).astype(np.float32)
    features[:, 4] = 3.0
    return features, np.asarray(0.5 + np.sin(2 * features[:, 0]) * features[:, 1], dtype=np.float64)


def trained(
    features: NDArray[np.float32], ratio: NDArray[np.float64], *chosen: NDArray[np.bool_], seed: int = 0
) -> list[Network]:
    how = NetworkTraining(HOW.epochs, HOW.width, HOW.depth, seed=seed)
    return train_networks(features, ratio, np.ones(COUNT), chosen, how)


def test_learns_a_function_that_is_not_linear() -> None:
    features, ratio = made()
    how = NetworkTraining(epochs=200, width=32, depth=2)
    (network,) = train_networks(features, ratio, np.ones(COUNT), [np.ones(COUNT, dtype=bool)], how)
    new_features, new_ratio = made(1)
    error = np.abs(network.correction(new_features) - new_ratio).mean()
    assert error < 0.5 * np.abs(new_ratio - new_ratio.mean()).mean()


def test_networks_that_are_trained_together_see_their_own_rows_alone() -> None:
    features, ratio = made()
    first, second = np.arange(COUNT) < 200, np.arange(COUNT) >= 200
    changed = np.where(first, ratio, -5.0)
    alone = trained(features, ratio, first, second)
    beside = trained(features, changed, first, second)
    np.testing.assert_array_equal(alone[0].correction(features), beside[0].correction(features))
    assert beside[1].correction(features).mean() == pytest.approx(-5.0, abs=0.1)


def test_weights_of_rows_count() -> None:
    features, _ = made()
    high = np.arange(COUNT) % 2 == 0
    labels, weights = np.where(high, 1.0, 0.0), np.where(high, 9.0, 1.0)
    (network,) = train_networks(features, labels, weights, [np.ones(COUNT, dtype=bool)], HOW)
    assert network.correction(features).mean() > 0.75


def test_training_repeats_itself_with_its_seed() -> None:
    features, ratio = made()
    everything = np.ones(COUNT, dtype=bool)
    (first,), (again,), (other,) = (trained(features, ratio, everything, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)


def test_predictions_equal_those_of_torch() -> None:
    features, ratio = made()
    (network,) = trained(features, ratio, np.ones(COUNT, dtype=bool))
    values = torch.tensor((features - network.centre) / network.spread).clamp(-FARTHEST, FARTHEST)
    for weights, biases in network.layers[:-1]:
        values = torch.nn.functional.silu(values @ torch.tensor(weights) + torch.tensor(biases))
    weights, biases = network.layers[-1]
    last = (values @ torch.tensor(weights) + torch.tensor(biases))[:, 0].double().numpy()
    np.testing.assert_allclose(
        network.correction(features), network.intercept + network.scale * last, rtol=1e-4, atol=1e-5
    )


def test_rows_far_from_the_training_rows_are_taken_for_the_nearest_ones() -> None:
    features, ratio = made()
    (network,) = trained(features, ratio, np.ones(COUNT, dtype=bool))
    far, farther = np.full((1, 5), 1e3, np.float32), np.full((1, 5), 1e30, np.float32)
    assert network.correction(far) == pytest.approx(network.correction(farther))


def test_numbers_give_the_network_back() -> None:
    features, ratio = made()
    (network,) = trained(features, ratio, np.ones(COUNT, dtype=bool))
    read = network_of(network.values, network.widths, network.scale, network.intercept)
    np.testing.assert_allclose(read.correction(features), network.correction(features), atol=5e-3)
    half = read.times(0.5)
    np.testing.assert_allclose(half.correction(features), 0.5 * read.correction(features), rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones(7), "has 12 finite numbers"),
        (np.full(12, np.inf), "has 12 finite numbers"),
        (np.zeros(12), "spreads of a network's features must be above 0"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(values: NDArray[np.float64], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network_of(values, [3, 1, 1], 1.0, 0.0)
