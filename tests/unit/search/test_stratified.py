"""Stratified samples: even over values and pairs, distinct, repeatable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import pytest

from tilesight.problem.space import Config, Constraint, Parameter, SearchSpace
from tilesight.search.stratified import stratified

PARAMETERS = (
    Parameter("a", (1, 2, 3, 4)),
    Parameter("b", ("x", "y", "z")),
    Parameter("c", (False, True)),
    Parameter("d", (0, 1)),
)


def free() -> SearchSpace:
    return SearchSpace(PARAMETERS)


def skewed() -> SearchSpace:
    """12 of the 20 legal configs have a=1."""
    return SearchSpace(
        PARAMETERS,
        [Constraint("rare", lambda c: None if c["a"] == 1 or (c["b"] != "x" and c["d"] == 0) else "no")],
    )


def pairs(configs: Iterable[Config]) -> Counter[tuple[object, ...]]:
    return Counter((n, m, c[n], c[m]) for c in configs for n, m in combinations("abcd", 2))


def test_values_and_pairs_are_even_without_constraints() -> None:
    sample = stratified(free(), 24)
    assert len(set(sample)) == 24
    for parameter in PARAMETERS:
        counts = Counter(config[parameter.name] for config in sample)
        assert set(counts) == set(parameter.values)
        assert max(counts.values()) - min(counts.values()) <= 2
    found = pairs(sample)
    assert set(found) == set(pairs(free().configs()))
    assert max(found[p] for p in found if p[:2] == ("a", "b")) <= 3  # of two that each would have


def test_rare_values_and_pairs_are_covered() -> None:
    sample = stratified(skewed(), 12)
    counts = Counter(config["a"] for config in sample)
    assert counts[1] < 12 * 12 / 20
    assert min(counts[value] for value in (2, 3, 4)) >= 2
    assert set(pairs(sample)) == set(pairs(skewed().configs()))


@pytest.mark.parametrize("space", [free(), skewed()])
def test_a_small_space_is_returned_whole(space: SearchSpace) -> None:
    legal = set(space.configs())
    assert set(stratified(space, len(legal))) == set(stratified(space, 10**6)) == legal


def test_the_seed_decides_and_a_smaller_sample_begins_a_larger_one() -> None:
    assert stratified(free(), 10, seed=1) == stratified(free(), 10, seed=1)
    assert stratified(free(), 10, seed=1) != stratified(free(), 10, seed=2)
    assert stratified(free(), 20, seed=1)[:10] == stratified(free(), 10, seed=1)


def test_begins_with_first_if_it_is_legal() -> None:
    first = Config({"a": 3, "b": "z", "c": True, "d": 1})
    assert stratified(free(), 3, first=first)[0] == first
    assert first not in stratified(skewed(), 10**6, first=first)


def test_one_parameter_and_no_legal_config() -> None:
    assert len(stratified(SearchSpace(PARAMETERS[:1]), 3)) == 3
    assert stratified(SearchSpace(PARAMETERS, [Constraint("none", lambda _config: "no")]), 3) == []
