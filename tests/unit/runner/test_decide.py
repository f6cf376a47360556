"""Which finalist wins; noise does not decide."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tilesight.problem.space import Config
from tilesight.runner.decide import Finalist, decide, settled

TURNS = 100


def clocks(seed: int, spread: float = 0.01) -> list[float]:
    """Factors of a drifting clock, one for each turn."""
    rng = random.Random(seed)
    level, found = 1.0, []
    for _ in range(TURNS):
        level = 1 + 0.9 * (level - 1) + rng.gauss(0, spread)
        found.append(level)
    return found


def finalist(
    name: str, time_us: float, turns: Sequence[float], seed: int, noise: float = 0.004, **resources: int
) -> Finalist:
    rng = random.Random(seed)
    config = {
        "name": name,
        **{key: resources.pop(key) for key in ("threads", "num_stages") if key in resources},
    }
    return Finalist(Config(config), [time_us * turn * (1 + rng.gauss(0, noise)) for turn in turns], resources)


def test_a_clear_winner_wins_even_if_the_clock_drifts_more() -> None:
    for seed in range(20):
        turns = clocks(seed, spread=0.02)
        kernels = [
            finalist("simple", 103.0, turns, seed, smem_bytes=1),
            finalist("fast", 100.0, turns, seed + 1000, smem_bytes=9),
        ]
        found = decide(kernels)
        assert found.winner["name"] == "fast"
        assert found.tied == ()
        assert "certainly slower" in found.reason


def test_a_simpler_tied_finalist_wins() -> None:
    turns = clocks(1)
    found = decide(
        [
            finalist("large", 100.0, turns, 2, smem_bytes=200),
            finalist("small", 100.1, turns, 3, smem_bytes=100),
        ]
    )
    assert found.winner["name"] == "small"
    assert [config["name"] for config in found.tied] == ["large"]
    assert "less shared memory (100 against 200)" in found.reason


def test_the_order_of_qualities() -> None:
    turns = clocks(1)
    better = [
        finalist("a", 100.0, turns, 1, spill_bytes=0, smem_bytes=9, registers=9, threads=9, num_stages=9),
        finalist("b", 100.0, turns, 2, spill_bytes=8, smem_bytes=1, registers=9, threads=9, num_stages=9),
        finalist("c", 100.0, turns, 3, spill_bytes=8, smem_bytes=2, registers=1, threads=9, num_stages=9),
        finalist("d", 100.0, turns, 4, spill_bytes=8, smem_bytes=2, registers=2, threads=1, num_stages=9),
        finalist("e", 100.0, turns, 5, spill_bytes=8, smem_bytes=2, registers=2, threads=2, num_stages=1),
        finalist("f", 100.0, turns, 6, spill_bytes=8, smem_bytes=2, registers=2, threads=2, num_stages=2),
    ]
    while len(better) > 1:
        names = [kernel.config["name"] for kernel in better]
        random.Random(0).shuffle(better)
        found = decide(better)
        assert found.winner["name"] == min(names)
        assert sorted(config["name"] for config in found.tied) == sorted(names)[1:]
        better = [kernel for kernel in better if kernel.config != found.winner]


def test_a_steadier_tied_finalist_wins() -> None:
    turns = [1.0] * 2000
    found = decide(
        [
            finalist("wild", 100.0, turns, 1, noise=0.1, smem_bytes=1),
            finalist("steady", 100.0, turns, 2, smem_bytes=2),
        ]
    )
    assert found.winner["name"] == "steady"


def test_equal_finalists_are_ordered_by_name() -> None:
    winners = set()
    for seed in range(20):
        turns = clocks(seed)
        kernels = [finalist(name, 100.0, turns, seed * 10 + index) for index, name in enumerate("dbca")]
        winners.add(decide(kernels).winner["name"])
    assert winners == {"a"}


def test_a_finalist_that_may_be_much_slower_does_not_win() -> None:
    """Its interval is wide: from faster to a tenth slower."""
    rng, turns = random.Random(3), [1.0] * 9
    uncertain = Finalist(
        Config({"name": "simple"}), [104.0 + rng.uniform(-8, 8) for _ in turns], {"smem_bytes": 1}
    )
    found = decide([uncertain, Finalist(Config({"name": "known"}), [100.0] * 9, {"smem_bytes": 100})])
    assert found.winner["name"] == "known"
    assert [config["name"] for config in found.tied] == ["simple"]


def test_a_single_finalist_wins() -> None:
    found = decide([finalist("only", 100.0, [1.0], 1)])
    assert (found.winner["name"], found.tied, found.reason) == ("only", (), "the only finalist")


@pytest.mark.parametrize(
    ("times", "noise", "turns", "expected"),
    [
        ((100.0, 105.0), 0.004, 30, True),  # clearly slower
        ((100.0, 100.1), 0.002, 60, True),  # clearly the same
        ((100.0, 101.0), 0.05, 30, False),  # anything may be
        ((100.0, 100.1), 0.002, 6, False),  # too few turns
    ],
)
def test_sampling_goes_on_until_ties_are_known(
    times: tuple[float, float], noise: float, turns: int, expected: bool
) -> None:
    rng = random.Random(5)
    assert settled([[time * (1 + rng.gauss(0, noise)) for _ in range(turns)] for time in times]) is expected


def test_over_many_sessions_the_winner_stays_within_a_percent() -> None:
    """Four finalists are close, one is not: any winner loses little."""
    true_us = {"a": 100.4, "b": 100.0, "c": 100.9, "d": 102.5, "e": 110.0}
    won = []
    for session in range(50):
        turns = clocks(session, spread=0.015)
        kernels = [
            finalist(name, time, turns, 100 * session + index, noise=0.008, smem_bytes=100 - index)
            for index, (name, time) in enumerate(true_us.items())
        ]
        won.append(true_us[str(decide(kernels).winner["name"])])
    assert max(won) <= 101.0
    assert sum(time <= 100.9 for time in won) == 50


def test_wide_scatter_is_no_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [
        finalist("simple", 101.0, [1.0] * TURNS, 1, noise=1.2, smem_bytes=1),
        finalist("fast", 100.0, [1.0] * TURNS, 2, noise=1.2, smem_bytes=9),
    ]
    kernels = [Finalist(k.config, [abs(us) + 1 for us in k.samples_us], k.resources) for k in kernels]
    assert "cannot be told apart (± " in decide(kernels).reason
    monkeypatch.setenv("TILESIGHT_MAX_NOISE", "0.1")
    assert "2 finalists are too noisy to tell apart (± " in decide(kernels).reason
