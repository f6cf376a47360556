"""Which predicted candidates are measured."""

from __future__ import annotations

from tilesight.problem.space import Config
from tilesight.search.config_similarity import ConfigSimilarity
from tilesight.search.select import SIBLING_PENALTY, choose, config_codes


def config(**values: int) -> Config:
    return Config(values)


def test_best_first() -> None:
    times = {config(a=i, b=10 - i): 10.0 - i for i in range(5)}
    assert [c["a"] for c in choose(times, 3)] == [4, 3, 2]


def test_siblings_come_after_equally_good_configs() -> None:
    times = {config(a=1, b=1): 10.0, config(a=1, b=2): 10.01, config(a=2, b=3): 10.02}
    assert choose(times, 2) == [config(a=1, b=1), config(a=2, b=3)]


def test_much_better_siblings_come_first() -> None:
    times = {
        config(a=1, b=1): 10.0,
        config(a=1, b=2): 10.1,
        config(a=2, b=3): 10.1 * (1 + 2 * SIBLING_PENALTY),
    }
    assert choose(times, 2) == [config(a=1, b=1), config(a=1, b=2)]


def test_no_more_than_there_are() -> None:
    assert choose({config(a=1): 1.0}, 5) == [config(a=1)]
    assert choose({}, 5) == []
    assert choose({config(a=1): 1.0}, 0) == []


def test_equal_times_are_ordered_by_config() -> None:
    times = {config(a=a, b=a, c=a): 1.0 for a in (3, 1, 2)}
    assert [c["a"] for c in choose(times, 3)] == [1, 2, 3]


def test_siblings_of_pending_configs_come_later() -> None:
    times = {config(a=1, b=2): 10.01, config(a=2, b=3): 10.02}
    assert choose(times, 1) == [config(a=1, b=2)]
    assert choose(times, 1, pending=[config(a=1, b=1)]) == [config(a=2, b=3)]


def test_a_flag_is_not_a_number() -> None:
    times = {Config({"a": True}): 1.0, Config({"a": 1}): 2.0}
    assert choose(times, 2) == list(times)


def test_thousands_of_configs_are_fast() -> None:
    times = {config(a=i % 10, b=i // 10 % 10, c=i // 100): 1.0 + i for i in range(3000)}
    assert len(choose(times, 64)) == 64


def test_configs_that_leave_out_a_default_have_codes_and_similarities() -> None:
    configs = [Config({"tile": 16}), Config({"tile": 16, "split": 2}), Config({"tile": 32, "split": 2})]
    codes = config_codes(configs)
    assert codes.shape == (3, 2)
    apart = [(codes[a] != codes[b]).sum() for a, b in ((0, 1), (1, 2), (0, 2))]
    assert apart == [1, 1, 2]
    similar = ConfigSimilarity(configs).matrix()
    assert (similar.diagonal() == 1).all()
    assert similar[0, 2] < similar[0, 1] < 1
