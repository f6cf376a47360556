"""Spaces of products of several ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli.test_commands import Shell
from tests.unit.target.test_network import NODE as NODE_OF_FOUR
from tests.unit.target.test_network import POD as POD_OF_16
from tilesight.kernels import template_for
from tilesight.problem.group_operator import GroupOperator
from tilesight.problem.rejections import rejections
from tilesight.problem.space import Config, SearchSpace
from tilesight.search_spaces.ways import ANOTHER_WAY, WITHIN_REACH
from tilesight.target.part import part_of
from tilesight.target.spec import Target, load_target, parse_target

NODE = load_target("h200x4")
POD = part_of(load_target(str(Path(__file__).parents[3] / "docs" / "pod.toml")), 16)
LARGE_NODE = parse_target(NODE_OF_FOUR.replace("value = 4,", "value = 16,"), "large.toml")
WAYS = ("one_shot", "two_shot")


def space(name: str, shape: str, target: Target = NODE) -> SearchSpace:
    template = template_for(name, target, "bfloat16")
    assert isinstance(template.operator, GroupOperator)
    return template.space(template.operator.workload_on(target, shape), target)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (POD, "stores at addresses of peers, which kernels have within 1 host, and level 'pod' of "
              "target h100-pod-16 is 2 of them: take algorithm=sequential"),
        (LARGE_NODE, "takes the tensors of 8 ranks at most, and target mynode has 16: take "
                     "algorithm=sequential"),
    ],
    ids=["hosts", "ranks"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"])
def test_tiles_go_to_ranks_of_one_host_only(name: str, target: Target, reason: str) -> None:
    found = space(name, "m=4096,n=4096,k=512", target)
    assert {config["algorithm"] for config in found.configs()} == {"sequential"}
    (algorithm,) = (p for p in found.parameters if p.name == "algorithm")
    template = template_for(name, target, "bfloat16")
    assert isinstance(template.operator, GroupOperator)
    workload = template.operator.workload_on(target, "m=4096,n=4096,k=512")
    config = template.default_config(workload, target)
    assert config is not None
    assert config in found
    assert template.collective(workload, config) is not None
    for way in algorithm.values[1:]:
        first, *_ = found.violations(found.config({**config, "algorithm": way}))
        assert (first.constraint, first.reason) == (WITHIN_REACH, f"algorithm={way} {reason}")
    census = found.census()
    assert sum(census.rejected.values()) + census.legal == census.size
    assert all(one.example for one in rejections(found))


def test_tiles_of_two_shot_are_no_higher_than_a_shard_and_those_of_one_shot_than_all_rows() -> None:
    found = space("matmul_all_reduce", "m=512,n=8192,k=2048")
    tall = {way: {c.int("block_m") for c in found.configs() if c["algorithm"] == way} for way in WAYS}
    assert tall == {"one_shot": {128, 192, 256}, "two_shot": {128}}
    config = next(c for c in found.configs() if c["algorithm"] == "one_shot" and c["block_m"] == 256)
    (broken,) = found.violations(found.config({**config, "algorithm": "two_shot"}))
    assert broken.reason == "block_m=256 is wasted on the 128 rows of a shard: 128 covers them"


@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"])
def test_each_rule_has_an_example_without_a_walk_over_all_points(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are millions of points, of which all but some thousands belong to no way."""
    found = space(name, "m=4096,n=8192,k=2048")
    monkeypatch.setattr(SearchSpace, "points", lambda _: pytest.fail("walks over all points"))
    broken = {rejection.constraint: rejection for rejection in rejections(found)}
    census = found.census()
    assert {key: one.count for key, one in broken.items()} == census.rejected
    assert sum(census.rejected.values()) + census.legal == census.size
    assert ANOTHER_WAY in broken
    assert all(one.example for one in broken.values())
    assert "take " in broken[ANOTHER_WAY].example


def test_the_command_names_each_rule(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = Shell(capsys)(
        "space", "matmul_reduce_scatter", "--target", "h200x2", "--shape", "L70O", "--json"
    )
    assert code == 0
    rejected = json.loads(out)["rejected"]
    assert sum(rule["count"] for rule in rejected) + json.loads(out)["legal"] == json.loads(out)["size"]
    assert {"way", "tiles for ranks"} <= {rule["constraint"] for rule in rejected}
    assert all(rule["example"] for rule in rejected)


def test_chunks_divide_the_rows_of_a_rank() -> None:
    found = space("all_gather_matmul", "m=1920,n=8192,k=2048")  # 480 rows of each of four
    pushes = [c for c in found.configs() if c["algorithm"] == "push"]
    assert {c.int("chunk_rows") for c in pushes} == {32}
    (broken,) = found.violations(found.config({**pushes[0], "chunk_rows": 64}))
    assert broken.reason == "chunk_rows=64 does not divide the 480 rows of a rank: take 32"
    none = space("all_gather_matmul", "m=2000,n=8192,k=2048")
    assert none.parameters[0].values == ("sequential", "pull")


def test_blocks_beside_a_product_have_something_to_do() -> None:
    found = space("all_gather_matmul", "m=1024,n=8192,k=2048")  # 256 rows of each of four
    config = next(c for c in found.configs() if c["algorithm"] == "push" and c["chunk_rows"] == 128)
    assert config.int("senders") <= 6
    (broken,) = found.violations(found.config({**config, "senders": 8}))
    assert broken.reason == "senders=8 have 6 chunks of chunk_rows=128 to send: take fewer of them"
    found = space("matmul_all_reduce", "m=1024,n=1024,k=2048")
    adding = [c for c in found.configs() if "summers" in c]
    assert adding == []
    config = next(c for c in found.configs() if c["algorithm"] == "two_shot" and c.get("order") == "spread")
    assert config["block_m"] == 128
    broken = found.violations(found.config({**config, "swizzle": 0, "block_n": 128, "summers": 8}))[-1]
    assert broken.reason == ("summers=8 have nothing to add before all 64 tiles are computed: take summers=0")


def test_sums_are_in_turns_of_the_ranks() -> None:
    found = space("matmul_reduce_scatter", "m=8192,n=8192,k=2048")
    adding = [c for c in found.configs() if "summers" in c]
    assert {(c["algorithm"], c["order"]) for c in adding} == {("push", "spread")}
    assert {c.int("summers") for c in adding} == {8, 16}
    (broken,) = found.violations(Config({k: v for k, v in adding[0].items() if k != "order"}))
    assert broken.reason.startswith(
        f"summers={adding[0]['summers']} would wait for the tiles of the own rank"
    )


def test_only_push_has_blocks_that_send() -> None:
    found = space("all_gather_matmul", "m=2048,n=8192,k=2048")
    for config in found.configs():
        assert (config["algorithm"] == "push") == ("chunk_rows" in config)
        by_cores = config["algorithm"] == "push" and config.get("mechanism") != "copy_engine"
        assert by_cores == ("senders" in config)
    config = next(c for c in found.configs() if c["algorithm"] == "push")
    assert config["persistent"] == NODE.int("core.count")
    broken = found.violations(found.config({**config, "persistent": 0}))
    assert "blocks that wait for ranks hold their cores, so all must be resident" in broken[0].reason
    [waste] = found.violations(found.config({**config, "order": "spread"}))
    assert waste.reason.endswith("take order=last with algorithm=push")


def test_copy_engines_take_no_blocks() -> None:
    found = space("all_gather_matmul", "m=8192,n=8192,k=2048")  # 2048 rows of each of four
    copied = [c for c in found.configs() if c.get("mechanism") == "copy_engine"]
    assert {c["algorithm"] for c in copied} == {"push"}
    assert {c["persistent"] for c in copied} == {NODE.int("core.count")}
    # 3 * 2048 / 64 copies of 64 rows are too many; blocks send no chunks of more than 256 rows
    assert {c.int("chunk_rows") for c in copied} == {128, 256, 512, 1024}
    sent = [c for c in found.configs() if c["algorithm"] == "push" and "senders" in c]
    assert {c.int("chunk_rows") for c in sent} == {32, 64, 128, 256}
    first = copied[0]

    def reasons(**changes: object) -> list[str]:
        config = found.config({**first, **changes})  # type: ignore[dict-item]
        return [broken.reason for broken in found.violations(config)]

    assert reasons() == []
    assert reasons(senders=4) == ["senders=4 have nothing to send with mechanism=copy_engine: take senders=0"]
    assert reasons(mechanism="store", chunk_rows=128) == [
        "senders=0 send nothing, and mechanism=store has no other way: take senders=2 or more, or "
        "mechanism=copy_engine"
    ]
    assert reasons(chunk_rows=64) == [
        "chunk_rows=64 makes 96 copies, which the host starts one by one before the product, 64 at most: "
        "take larger chunks, or another mechanism"
    ]
    assert reasons(mechanism="store", senders=4, chunk_rows=512) == [
        "chunk_rows=512 lets tiles wait for long, and blocks send smaller chunks as fast: take 256 or fewer"
    ]
    [pull] = [reason for reason in reasons(algorithm="pull", chunk_rows=0) if "mechanism" in reason]
    assert "mechanism=copy_engine is of 1 other way, algorithm=push" in pull


def test_copy_engines_need_their_figure() -> None:
    (level,) = NODE.levels
    figures = {path: value for path, value in level.figures.items() if "copy_engine" not in path}
    without = replace(NODE, levels=(replace(level, figures=figures),))
    found = space("all_gather_matmul", "m=8192,n=8192,k=2048", without)
    assert not [c for c in found.configs() if c.get("mechanism") == "copy_engine"]
    assert [c for c in found.configs() if c["algorithm"] == "push"]
    [config] = [
        c
        for c in space("all_gather_matmul", "m=8192,n=8192,k=2048").configs()
        if c.get("mechanism") == "copy_engine"
    ][:1]
    (broken,) = found.violations(found.config(dict(config)))
    assert broken.reason == (
        "mechanism=copy_engine needs the figure 'node.network.copy_engine.gb_per_s', which target h200x4 "
        "lacks: measure it with tilesight calibrate, or take mechanism=store"
    )


def test_one_shot_has_no_order_of_ranks() -> None:
    found = space("matmul_all_reduce", "m=512,n=8192,k=2048")
    order = next(p for p in found.parameters if p.name == "order")
    orders = {way: {order.of(c) for c in found.configs() if c["algorithm"] == way} for way in WAYS}
    assert orders == {"one_shot": {"last"}, "two_shot": {"last", "spread"}}
    config = next(c for c in found.configs() if c["algorithm"] == "one_shot")
    (broken,) = found.violations(found.config({**config, "order": "spread"}))
    assert broken.reason == (
        "order=spread is of 1 other way, algorithm=two_shot: take order=last with algorithm=one_shot"
    )


TWO_HOSTS = parse_target(
    'name = "two-hosts"\ntitle = "2 x 2 H200s"\nunit = "h200x2"\n'
    + POD_OF_16.replace("value = 16,", "value = 2,"),
    "two-hosts.toml",
)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("context_parallel_flash_decoding", "batch=8,heads=64,kv_heads=8,kv_len=4096,head_dim=128"),
        ("context_parallel_mla_decode", "batch=8,heads=128,kv_len=4096"),
        ("all_to_all_grouped_matmul", "DSD"),
    ],
)
def test_kernels_exchange_within_one_host_only(name: str, shape: str) -> None:
    found = space(name, shape, TWO_HOSTS)
    template = template_for(name, TWO_HOSTS, "bfloat16")
    assert isinstance(template.operator, GroupOperator)
    config = template.default_config(template.operator.workload_on(TWO_HOSTS, shape), TWO_HOSTS)
    assert config is not None
    assert config in found
    assert config["algorithm"] == "sequential"
    first, *_ = found.violations(found.config({**config, "algorithm": "push"}))
    assert first.constraint == WITHIN_REACH
