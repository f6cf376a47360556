"""The space of attention over ranks: schedules of one device, and blocks that send."""

from __future__ import annotations

import pytest

from tilesight.kernels.context_parallel_flash_attention import OPERATOR, TEMPLATES
from tilesight.problem.rejections import rejections
from tilesight.problem.space import Config, SearchSpace
from tilesight.search_spaces import flash_attention
from tilesight.target.spec import load_target

NODE = load_target("h200x4")
(TEMPLATE,) = TEMPLATES
PUSHED: dict[str, int | str] = {
    "algorithm": "push",
    "block_m": 128,
    "block_n": 128,
    "num_stages": 2,
    "threads": 256,
    "block_order": "by_length",
    "schedule": "ping_pong",
    "persistent": NODE.int("core.count"),
    "senders": 8,
    "chunk_rows": 256,
}


def space(shape: str) -> SearchSpace:
    return TEMPLATE.space(OPERATOR.workload_on(NODE, shape), NODE)


@pytest.mark.parametrize("name", ["L8_8K", "L405_128K", "DIT_32K"])
def test_both_ways_have_schedules_of_one_device_whose_tiles_divide_the_parts(name: str) -> None:
    workload = OPERATOR.workload_on(NODE, name)
    found, alone = space(name), flash_attention.space(OPERATOR.share(workload), NODE)
    part = workload.dims["seq_len"] // (2 if workload.attrs["causal"] else 1)
    own = [p.name for p in alone.parameters]
    ways: dict[str, set[Config]] = {"sequential": set(), "push": set()}
    for config in found.configs():
        ways[config.str("algorithm")].add(Config({k: v for k, v in config.items() if k in own}))
    wanted = {c for c in alone.configs() if part % c.int("block_m") == 0 == part % c.int("block_n")}
    assert ways["sequential"] == wanted
    assert ways["push"] == {c for c in wanted if c.int("persistent", 0)}
    assert TEMPLATE.default_config(workload, NODE) in found
    census = found.census()
    assert sum(census.rejected.values()) + census.legal == census.size
    assert all(one.example for one in rejections(found))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"persistent": 0},
            "persistent=0 has a block a tile, and blocks that wait for ranks hold their cores",
        ),
        ({"schedule": "serial"}, "schedule=serial is of attention of 1 device: take schedule=overlapped"),
        ({"algorithm": "sequential"}, "senders=8 is of 1 other way, algorithm=push: take senders=0"),
        ({"senders": 0}, "senders=0 is of attention of 1 device: take senders=2 with algorithm=push"),
        ({"chunk_rows": 64}, "chunk_rows=64 has no whole tiles of block_n=128: take a multiple of 128"),
        ({"block_n": 96}, "block_n=96 keys do not divide the 1024 positions of a part: take 64"),
        ({"block_m": 192}, "block_m=192 queries do not divide the 1024 positions of a part"),
        ({"senders": 16, "chunk_rows": 512}, "senders=16 have 12 chunks of chunk_rows=512 to send"),
    ],
)
def test_what_a_way_cannot_have_is_refused_with_a_reason(change: dict[str, int | str], reason: str) -> None:
    found = space("L8_8K")
    assert found.config(PUSHED) in found
    config = found.config({**PUSHED, **change})
    assert config not in found
    assert any(one.reason.startswith(reason) for one in found.violations(config)), found.violations(config)


def test_blocks_stay_where_there_are_more_tiles_of_queries_than_cores() -> None:
    few = space("batch=1,heads=8,seq_len=1024,head_dim=128")
    assert few.parameters[0].values == ("sequential",)
    more = space("batch=1,heads=16,seq_len=1024,head_dim=128")
    assert {config["algorithm"] for config in more.configs()} == {"sequential", "push"}
