"""Spaces of products of several ranks."""

from __future__ import annotations

from tilesight.kernels import template_for
from tilesight.problem.group_operator import GroupOperator
from tilesight.problem.space import SearchSpace
from tilesight.target.spec import load_target

NODE = load_target("h200x4")
WAYS = ("one_shot", "two_shot")


def space(name: str, shape: str) -> SearchSpace:
    template = template_for(name, NODE, "bfloat16")
    assert isinstance(template.operator, GroupOperator)
    return template.space(template.operator.workload_on(NODE, shape), NODE)


def test_tiles_of_two_shot_are_no_higher_than_a_shard_and_those_of_one_shot_than_all_rows() -> None:
    found = space("matmul_all_reduce", "m=512,n=8192,k=2048")
    tall = {way: {c.int("block_m") for c in found.configs() if c["algorithm"] == way} for way in WAYS}
    assert tall == {"one_shot": {128, 192, 256}, "two_shot": {128}}
    config = next(c for c in found.configs() if c["algorithm"] == "one_shot" and c["block_m"] == 256)
    (broken,) = found.violations(found.config({**config, "algorithm": "two_shot"}))
    assert broken.reason == "block_m=256 is wasted on the 128 rows of a shard: 128 covers them"
