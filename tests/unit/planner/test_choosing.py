"""The choice of kernels from times, segments, and corrected predictions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilesight.planner.cover import choose_kernels, losses
from tilesight.planner.segments import cut
from tilesight.planner.size_correction import correct
from tilesight.problem.space import Config

NONE: list[int | None] = [None] * 12
EVEN = [1 / 12] * 12


def matrix(seed: int, rows: int = 9) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.exp(generator.normal(size=(rows, 12)).cumsum(axis=1) * 0.3)


def cost(times: np.ndarray, rows: tuple[int, ...]) -> float:
    loss = losses(times)[list(rows)].min(axis=0)
    return float((loss + 6 * loss**2).mean())


@pytest.mark.parametrize("seed", range(12))
def test_choices_cost_at_most_a_tenth_more_than_the_best(seed: int) -> None:
    times = matrix(seed)
    found = choose_kernels(times, EVEN, 3, NONE)
    best = min(cost(times, rows) for rows in itertools.combinations(range(9), 3))
    assert found.cost == pytest.approx(cost(times, found.chosen))
    assert found.cost <= 1.1 * best + 1e-9


def test_more_kernels_lose_less_and_each_is_used() -> None:
    times = matrix(3)
    costs = [choose_kernels(times, EVEN, count, NONE).cost for count in range(1, 10)]
    assert costs == sorted(costs, reverse=True)
    every = choose_kernels(times, EVEN, 9, NONE)
    assert every.cost == pytest.approx(0)
    assert set(every.chosen) == set(times.argmin(axis=0).tolist())


def test_each_column_is_served_by_the_fastest_of_the_chosen() -> None:
    times = matrix(4)
    found = choose_kernels(times, EVEN, 3, NONE)
    for column, place in enumerate(found.serves):
        assert times[found.chosen[place], column] == min(times[row, column] for row in found.chosen)


def test_a_config_that_does_not_work_at_a_size_is_not_used_there() -> None:
    times = np.array([[1.0, 1.0, np.inf], [5.0, 5.0, 5.0]])
    assert choose_kernels(times, [1 / 3] * 3, 1, [None] * 3).chosen == (1,)
    both = choose_kernels(times, [1 / 3] * 3, 2, [None] * 3)
    assert [both.chosen[place] for place in both.serves] == [0, 0, 1]


def test_weights_decide_which_sizes_are_served_best() -> None:
    times = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert choose_kernels(times, [0.9, 0.1], 1, [None, None]).chosen == (0,)
    assert choose_kernels(times, [0.1, 0.9], 1, [None, None]).chosen == (1,)


def test_being_slower_than_the_default_weighs_more_than_being_slower_than_the_best() -> None:
    # row 2 is the default; row 0 is better on the whole and slower than it at one size
    times = np.array([[1.0, 1.0, 1.3], [1.1, 1.15, 1.0], [1.25, 1.25, 1.0]])
    assert choose_kernels(times, [1 / 3] * 3, 1, [None] * 3).chosen == (1,)
    assert choose_kernels(times[[0, 2]], [0.3, 0.3, 0.4], 1, [None] * 3).chosen == (0,)
    assert choose_kernels(times[[0, 2]], [0.3, 0.3, 0.4], 1, [1, 1, 1]).chosen == (1,)


def test_required_kernels_are_chosen() -> None:
    times = matrix(5)
    worst = int(times.sum(axis=1).argmax())
    found = choose_kernels(times, EVEN, 3, NONE, keep=[worst])
    assert worst in found.chosen


def test_segments_follow_the_fastest_and_cover_all() -> None:
    times = np.array([[1.0, 1.0, 2.0, 2.0], [2.0, 2.0, 1.0, 1.0]])
    assert cut(times, [0.25] * 4) == [(0, 1, 0), (2, 3, 1)]


def test_segments_that_gain_less_than_half_a_percent_are_merged() -> None:
    times = np.array([[1.0, 1.004, 1.0, 1.0], [2.0, 1.0, 2.0, 2.0]])
    assert cut(times, [0.25] * 4) == [(0, 3, 0)]
    times[0, 1] = 1.02
    assert cut(times, [0.25] * 4) == [(0, 0, 0), (1, 1, 1), (2, 3, 0)]


def test_the_number_of_segments_is_bounded() -> None:
    times = np.ones((2, 12)) * 1.05
    times[0, ::2] = times[1, 1::2] = 1.0
    times[1, 1] = 0.5
    assert len(cut(times, EVEN)) == 12
    few = cut(times, EVEN, 3)
    assert len(few) <= 3
    assert any(first <= 1 <= last and row == 1 for first, last, row in few)
    assert len(cut(times, EVEN, 1)) == 1


def test_a_cell_gets_no_kernel_that_does_not_work_there() -> None:
    times = np.array([[1.0, np.inf, 1.0], [9.0, 9.0, 9.0]])
    assert (1, 1, 1) in cut(times, [0.499, 0.002, 0.499])


def configs(count: int) -> list[Config]:
    return [Config({"block": 2 ** (n % 5), "stages": n // 5}) for n in range(count)]


def as_it_is(size: int, _config: Config) -> int:
    return size


def test_a_measurement_counts_more_for_sizes_with_as_many_tiles() -> None:
    """A tile of 192 rows: 160 and 181 take one, 218 takes two."""
    wide = Config({"block": 192})
    measured = {(wide, 160): (60.0, 60.0), (wide, 218): (60.0, 100.0)}
    said = np.full((1, 3), 60.0)
    rounded = correct(
        [wide],
        [181, 192, 193],
        said,
        measured,
        lambda size, config: -(-size // config.int("block")) * config.int("block"),
    )
    assert rounded.times[0, 0] < 65
    assert rounded.times[0, 1] < 66
    assert rounded.times[0, 2] > 90
    plain = correct([wide], [181, 192, 193], said, measured, as_it_is)
    assert plain.times[0, 1] > 70


def test_measurements_correct_near_sizes_and_leave_far_ones_uncertain() -> None:
    some, sizes = configs(10), [16, 32, 1024, 16384]
    predicted = np.full((10, 4), 100.0)
    measured = {(some[0], 32): (100.0, 130.0), (some[1], 32): (100.0, 120.0)}
    found = correct(some, sizes, predicted, measured, as_it_is)
    assert found.times[0, 1] == pytest.approx(130, rel=0.02)
    assert 115 < found.times[0, 0] < 135
    assert found.times[0, 1] > found.times[1, 1] > 110
    assert 105 < found.times[7, 3] < 130  # all share what the model has wrong on the whole
    assert found.uncertainty[0, 1] < found.uncertainty[0, 0] < found.uncertainty[0, 3]
    assert found.uncertainty[0, 0] < found.uncertainty[7, 0]


def test_corrections_are_better_than_predictions() -> None:
    generator = np.random.default_rng(1)
    some, sizes = configs(10), [2**n for n in range(12)]
    true = np.exp(generator.normal(size=(10, 12)))
    error = 0.3 + 0.1 * generator.normal(size=(10, 1)) + 0.05 * generator.normal(size=(1, 12)).cumsum(axis=1)
    predicted = true * np.exp(-error)
    measured = {}
    for _ in range(40):
        row, column = generator.integers(10), generator.integers(12)
        measured[some[row], sizes[column]] = (predicted[row, column], true[row, column])
    found = correct(some, sizes, predicted, measured, as_it_is)
    assert np.abs(np.log(found.times / true)).mean() < 0.25 * np.abs(np.log(predicted / true)).mean()


def test_without_measurements_predictions_stay_as_they_are() -> None:
    some = configs(2)
    predicted = np.array([[1.0, np.nan], [2.0, 3.0]])
    found = correct(some, [1, 2], predicted, {}, as_it_is)
    assert np.array_equal(found.times, predicted, equal_nan=True)
    found = correct(some, [1, 2], predicted, {(some[1], 1): (2.0, 2.0)}, as_it_is)
    assert np.isnan(found.times[0, 1])
