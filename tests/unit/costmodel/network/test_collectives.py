"""Predicted times of collectives: terms, levels, algorithms, and requests that are not possible."""

from __future__ import annotations

import re

import pytest

import tilesight
from tests.unit.target.test_network import NODE, POD
from tilesight.costmodel.network.collectives import (
    _CERTAINTY,
    ALGORITHMS,
    CollectivePrediction,
    predict_collective,
    ranks_of_levels,
)
from tilesight.costmodel.network.transfers import LevelNetwork, hops
from tilesight.errors import InputError
from tilesight.target.fields import PROVENANCES
from tilesight.target.network import COLLECTIVES
from tilesight.target.spec import Target, load_target, parse_target

MB = 1_000_000
LIBRARY = """
[{0}.network.library.all_reduce]
latency_us = {{ value = 10, provenance = "public" }}
gb_per_s = {{ value = {1}, provenance = "measured" }}
[{0}.network.library.reduce_scatter]
latency_us = {{ value = 7, provenance = "public" }}
gb_per_s = {{ value = {1}, provenance = "measured" }}
[{0}.network.library.all_gather]
latency_us = {{ value = 8, provenance = "derived" }}
gb_per_s = {{ value = {1}, provenance = "measured" }}
"""


def pod() -> Target:
    text = NODE.replace('unit = "h100"', 'unit = "h100"\nlevels = ["node", "pod"]') + POD
    text += LIBRARY.format("node", 250) + LIBRARY.format("pod", 40)
    store = '[pod.network.store]\ngb_per_s = { value = 45, provenance = "predicted" }\n'
    return parse_target(text + store, "pod.toml")


def times(found: CollectivePrediction) -> list[tuple[str, str, int, float]]:
    return [(p.level, p.collective, p.ranks, pytest.approx(p.transfer_us)) for p in found.phases]


def test_the_library_takes_its_latency_and_the_bytes_of_a_ring() -> None:
    target = load_target("h100x4")
    found = predict_collective(target, "all_reduce", 100 * MB)
    sent = 2 * 3 / 4 * 100 * MB
    assert found.phases[0].sent_bytes == sent
    rate = target["node.network.library.all_reduce.gb_per_s"]
    latency = target["node.network.library.all_reduce.latency_us"]
    assert found.latency_us == pytest.approx(latency + sent / rate / 1e3)
    assert (found.world, found.algorithm, found.mechanism, found.launch_us) == (4, "library", "", 0)
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        assert predict_collective(target, name, 100 * MB).phases[0].sent_bytes == 3 / 4 * 100 * MB


def curve(points: dict[str, float], provenance: str = "measured") -> Target:
    lines = [f'{size} = {{ value = {us}, provenance = "{provenance}" }}' for size, us in points.items()]
    return parse_target("\n".join([NODE, "[node.network.library.all_reduce.us]", *lines]), "mine.toml")


CURVE = {"64KiB": 12.0, "1MiB": 20.0, "2MiB": 20.0, "64MiB": 330.0, "128MiB": 650.0}


@pytest.mark.parametrize(
    ("size", "us"),
    [
        (64 << 10, 12.0),
        (1 << 10, 12.0),  # fewer bytes than at the first point
        (1 << 20, 20.0),
        ((64 << 10) + (960 << 10) // 4, 14.0),
        (3 << 19, 20.0),
        (96 << 20, 490.0),
        (256 << 20, 1290.0),  # more than at the last point: as between the last two
    ],
)
def test_a_curve_of_the_library_is_read_between_its_points(size: int, us: float) -> None:
    found = predict_collective(curve(CURVE), "all_reduce", size)
    assert found.latency_us == pytest.approx(us)
    assert found.phases[0].latency_us == 12.0
    assert found.phases[0].sent_bytes == 2 * 3 / 4 * size
    assert found.provenance == "measured"
    assert found.limiting == ("latency" if us < 24 else "node network")


def test_fewer_devices_take_as_long_as_all_that_send_as_many_bytes_each() -> None:
    two = predict_collective(curve(CURVE), "all_reduce", 96 << 20, world=2)
    assert two.latency_us == pytest.approx(
        predict_collective(curve(CURVE), "all_reduce", 64 << 20).latency_us
    )
    assert (two.world, two.provenance) == (2, "derived")
    assert predict_collective(curve(CURVE, "public"), "all_reduce", MB, world=2).provenance == "public"


def test_more_bytes_are_never_faster_beyond_the_last_point() -> None:
    falling = curve({"1MiB": 20.0, "2MiB": 19.0})
    assert predict_collective(falling, "all_reduce", 1 << 30).latency_us == 19.0


def test_a_ring_has_the_bandwidth_to_one_peer() -> None:
    text = NODE + 'peer_gb_per_s = { value = 200, provenance = "measured" }\n'
    target = parse_target(text, "mine.toml")
    ring, direct = (
        predict_collective(target, "all_gather", 40 * MB, algorithm=name).phases[0].transfer_us
        for name in ("ring", "direct")
    )
    assert (ring, direct) == (pytest.approx(150), pytest.approx(100))


def test_one_shot_is_faster_for_few_bytes_and_two_shot_for_many() -> None:
    target = load_target("h100x8")
    by_size = {
        size: {name: predict_collective(target, "all_reduce", size, algorithm=name).latency_us
               for name in ALGORITHMS["all_reduce"]}
        for size in (16 << 10, 64 << 20)
    }  # fmt: skip
    assert min(by_size[16 << 10], key=by_size[16 << 10].__getitem__) == "one_shot"
    assert by_size[64 << 20]["two_shot"] < by_size[64 << 20]["one_shot"] / 3
    assert by_size[16 << 10]["ring"] > by_size[16 << 10]["two_shot"]


def test_terms_of_the_kernels_algorithms() -> None:
    target = parse_target(NODE, "mine.toml")
    launch = target["device.launch_us"] + target["device.block_start_us"]
    one = predict_collective(target, "all_reduce", 30 * MB, algorithm="one_shot", mechanism="store")
    # two barriers, the ends of one transfer, and the tensors of three peers at 300 GB/s
    assert one.launch_us == launch
    assert one.latency_us == pytest.approx(launch + 3 * 0.6 + 3 * 100)
    two = predict_collective(target, "all_reduce", 30 * MB, algorithm="two_shot", mechanism="store")
    assert two.latency_us == pytest.approx(launch + 5 * 0.6 + 2 * 3 / 4 * 100)
    ring = predict_collective(target, "all_reduce", 30 * MB, algorithm="ring")
    assert ring.latency_us == pytest.approx(launch + 6 * 2 * 0.6 + 2 * 3 / 4 * 100)
    direct = predict_collective(target, "all_to_all", 30 * MB, algorithm="direct")
    assert direct.latency_us == pytest.approx(launch + 3 * 0.6 + 3 / 4 * 100)
    few = predict_collective(target, "all_to_all", 30 * MB, algorithm="direct", cores=5)
    assert few.phases[0].transfer_us == pytest.approx(3 / 4 * 150)
    assert few.limiting == "node network"
    assert predict_collective(target, "all_to_all", 1, algorithm="direct").limiting == "latency"


def test_a_given_barrier_and_half_size_replace_the_flag() -> None:
    extra = "barrier_us = { value = 2, provenance = 'measured' }\n"
    text = NODE.replace("flag_us", f"{extra}flag_us")
    text += "half_bytes = { value = 300000, provenance = 'measured' }\n"
    network = LevelNetwork(parse_target(text, "mine.toml").levels[0], "mine")
    assert network.barrier_us == 2
    assert network.transfer_us(300_000, "store") == pytest.approx(2.0)  # half of the bandwidth
    assert network.transfer_us(0, "store") == pytest.approx(1.0)


def test_a_pod_works_in_each_node_and_then_between_nodes() -> None:
    target = pod()
    assert (target.world, ranks_of_levels(target, None)) == (64, (4, 16))
    assert times(predict_collective(target, "all_reduce", 64 * MB)) == [
        ("node", "reduce_scatter", 4, 48 * MB / 250e3),
        ("pod", "all_reduce", 16, 2 * 15 * MB / 40e3),
        ("node", "all_gather", 4, 48 * MB / 250e3),
    ]
    assert times(predict_collective(target, "reduce_scatter", 64 * MB, 8)) == [
        ("node", "reduce_scatter", 4, 48 * MB / 250e3),
        ("pod", "reduce_scatter", 2, 8 * MB / 40e3),
    ]
    assert times(predict_collective(target, "all_gather", 64 * MB, 8)) == [
        ("pod", "all_gather", 2, 8 * MB / 40e3),
        ("node", "all_gather", 4, 48 * MB / 250e3),
    ]
    assert times(predict_collective(target, "all_to_all", 64 * MB, 8, "direct")) == [
        ("node", "all_to_all", 4, 48 * MB / 300e3),
        ("pod", "all_to_all", 2, 32 * MB / 45e3),
    ]
    assert [p.level for p in predict_collective(target, "all_reduce", MB, 4).phases] == ["node"]
    assert predict_collective(target, "all_reduce", 640 * MB).limiting == "pod network"


def test_the_least_certain_figure_decides_the_provenance() -> None:
    target = pod()
    assert predict_collective(target, "all_reduce", MB, 4).provenance == "public"
    assert predict_collective(target, "all_gather", MB, 4).provenance == "derived"
    assert predict_collective(target, "all_gather", MB, 8, "direct").provenance == "predicted"
    assert predict_collective(load_target("h100x8"), "all_reduce", MB).provenance == "predicted"


def test_more_bytes_and_more_devices_take_longer() -> None:
    for name in COLLECTIVES:
        for algorithm in ALGORITHMS[name]:
            found = [
                predict_collective(load_target("h200x8"), name, size, algorithm=algorithm).latency_us
                for size in (1 << 10, 1 << 20, 1 << 24, 1 << 28)
            ]
            assert found == sorted(set(found)), (name, algorithm)
            two, eight = (
                predict_collective(load_target("h200x8"), name, 1 << 24, world, algorithm).latency_us
                for world in (2, 8)
            )
            assert two < eight, (name, algorithm)


def test_exchanges_over_a_ring_and_a_mesh_use_links_of_others() -> None:
    assert hops("switch", 64) == hops("ring", 2) == hops("mesh", 2) == 1
    assert hops("ring", 4) == pytest.approx(4 / 3)  # two neighbours, one at a distance of two
    assert hops("ring", 8) == pytest.approx(16 / 7)
    assert hops("mesh", 4) == pytest.approx(4 / 3)
    assert hops("mesh", 9) == pytest.approx(2.0)
    ring = parse_target(NODE.replace('"switch"', '"ring"'), "ring.toml")
    switch = parse_target(NODE, "switch.toml")
    for algorithm, factor in (("direct", 4 / 3), ("ring", 1.0)):
        slow, fast = (
            predict_collective(one, "all_gather", 30 * MB, algorithm=algorithm).phases[0].transfer_us
            for one in (ring, switch)
        )
        assert slow / fast == pytest.approx(factor)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collective": "allreduce"}, "unknown collective 'allreduce'; did you mean all_reduce"),
        ({"algorithm": "tree"}, "unknown algorithm of all_reduce 'tree'"),
        ({"collective": "all_to_all", "algorithm": "ring"}, "unknown algorithm of all_to_all 'ring'"),
        ({"size_bytes": 0}, "size_bytes=0 must be a whole number of bytes"),
        ({"size_bytes": 1.5}, "size_bytes=1.5 must be a whole number of bytes"),
        ({"world": 8}, "world 8 is larger than target h100x4, which has 4 devices"),
        ({"world": 1}, "world=1 must be a whole number of devices, at least 2"),
        ({"world": 2.0}, "world=2.0 must be a whole number of devices"),
        ({"mechanism": "store"}, "mechanism and cores are those of a kernel"),
        ({"cores": 4}, "mechanism and cores are those of a kernel"),
        ({"algorithm": "ring", "mechanism": "dma"}, "unknown mechanism 'dma'; known: store, load"),
        ({"algorithm": "ring", "cores": 0}, "cores=0 must be a whole number from 1 to"),
        ({"algorithm": "ring", "cores": 1.5}, "cores=1.5 must be a whole number"),
        ({"algorithm": "ring", "cores": "4"}, "cores='4' must be a whole number"),
        ({"algorithm": "ring", "cores": 500}, "cores=500 must be a whole number from 1 to 132"),
        ({"algorithm": ["x"]}, "unknown algorithm of all_reduce"),
        ({"world": "4"}, "world='4' must be a whole number of devices"),
        ({"algorithm": "ring", "mechanism": "copy_engine", "cores": 4}, "'copy_engine' uses no cores"),
    ],
)
def test_impossible_requests(arguments: dict[str, object], message: str) -> None:
    full: dict[str, object] = {"collective": "all_reduce", "size_bytes": MB, **arguments}
    with pytest.raises(InputError, match=re.escape(message)):
        predict_collective(load_target("h100x4"), **full)  # type: ignore[arg-type]


def test_missing_figures_are_named_with_a_way_out() -> None:
    target = parse_target(NODE, "mine.toml")
    with pytest.raises(InputError, match=r"mynode: figure 'node.network.library.all_reduce.latency_us' is missing; name an algorithm of a kernel instead"):  # fmt: skip  # noqa: E501
        predict_collective(target, "all_reduce", MB)
    with pytest.raises(InputError, match=r"'node.network.tma_add.gb_per_s' is missing; choose another mechanism \(store\)"):  # fmt: skip  # noqa: E501
        predict_collective(target, "reduce_scatter", MB, algorithm="direct", mechanism="tma_add")
    no_core = parse_target(NODE.replace('core_gb_per_s = { value = 40, provenance = "measured" }', ""), "a")
    with pytest.raises(InputError, match="core_gb_per_s' is missing; or use all cores"):
        predict_collective(no_core, "all_to_all", MB, algorithm="direct", cores=2)


def test_a_world_that_fills_no_whole_nodes() -> None:
    with pytest.raises(InputError, match="it must be a multiple of 4, or a smaller multiple of 1"):
        ranks_of_levels(pod(), 6)
    with pytest.raises(InputError, match="target h100 is one device, which has no peers"):
        ranks_of_levels(load_target("h100"), 2)


def test_python_interface() -> None:
    found = tilesight.predict_collective("all_reduce", 1 << 20, "h200", world=4)
    assert found == tilesight.predict_collective("all_reduce", 1 << 20, "h200x4")
    assert found == tilesight.predict_collective("all_reduce", 1 << 20, load_target("h200x4"), world=4)
    assert (found.world, found.provenance) == (4, "measured")
    three = tilesight.predict_collective("all_gather", 3 << 20, "h100", world=3, algorithm="direct")
    assert (three.world, three.phases[0].sent_bytes) == (3, 2 << 20)
    with pytest.raises(InputError, match="target h200 is one device; state the world"):
        tilesight.predict_collective("all_reduce", 1 << 20, "h200")


def test_every_provenance_has_its_certainty() -> None:
    assert sorted(_CERTAINTY) == sorted(PROVENANCES)
