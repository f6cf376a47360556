"""Collectives of the library over units: their terms, how they add up, and levels around levels."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.costmodel.network.test_collectives import LIBRARY
from tests.unit.target.test_network import LIBRARY as BETWEEN
from tests.unit.target.test_network import NODE, POD
from tilesight.costmodel.network.collectives import CollectivePrediction, predict_collective
from tilesight.costmodel.network.spanning import UNITS_NORM
from tilesight.errors import InputError
from tilesight.target.network import COLLECTIVES
from tilesight.target.spec import Target, load_target, parse_target

MB = 1_000_000
EXAMPLE = load_target(str(Path(__file__).parents[4] / "docs" / "pod.toml"))
TO_ALL = """
[node.network.library.all_to_all]
latency_us = { value = 9, provenance = "public" }
gb_per_s = { value = 250, provenance = "measured" }
"""
# of the library in a node of four: 10, 7, 8 and 9 us, 250 GB/s
TEXT = NODE.replace('unit = "h100"', 'unit = "h100"\nlevels = ["node", "pod"]') + POD
TEXT += LIBRARY.format("node", 250) + TO_ALL + BETWEEN.replace("[node", "[pod")
TARGET = parse_target(TEXT, "pod.toml")
STEP, FILL, HALF, RATE = 8.0, 30.0, 2 * MB, 40e3  # us, us, bytes, bytes/us


def terms(found: CollectivePrediction) -> list[tuple[str, float, float]]:
    return [(p.level, pytest.approx(p.latency_us), pytest.approx(p.transfer_us)) for p in found.phases]


def fill(size: float) -> float:
    return FILL * size / (size + HALF)


def test_an_all_reduce_between_more_units_takes_the_slower_of_the_two() -> None:
    size = 64 * MB
    found = predict_collective(TARGET, "all_reduce", size, 16)
    sent = 2 * 15 / 16 * size / 4
    assert terms(found) == [("node", 10, 0), ("pod", 4 * (STEP + fill(size)), sent / RATE)]
    assert found.phases[1].sent_bytes == sent
    assert (found.world, found.launch_us, found.limiting) == (16, 0, "pod network")
    # as many units again: one more step up the tree and one down
    more = predict_collective(TARGET, "all_reduce", size, 32)
    assert more.phases[1].latency_us == pytest.approx(6 * (STEP + fill(size)))
    # three units need as many steps as four
    assert predict_collective(TARGET, "all_reduce", size, 12).phases[1].latency_us == pytest.approx(
        4 * (STEP + fill(size))
    )


def test_between_two_units_an_all_reduce_is_a_tree() -> None:
    size = 64 * MB
    found = predict_collective(TARGET, "all_reduce", size, 8)
    inner, outer = 2 * 3 / 4 * size / 250e3, size / 4 / RATE
    both = (inner**UNITS_NORM + outer**UNITS_NORM) ** (1 / UNITS_NORM)
    assert found.phases[1].sent_bytes == size / 4
    assert terms(found) == [("node", 10, both - outer), ("pod", 2 * (STEP + fill(size)), outer)]
    assert max(inner, outer) < both < inner + outer


def test_the_longer_phase_takes_its_time_and_the_other_what_it_adds() -> None:
    slow = parse_target(TEXT.replace("value = 250", "value = 20"), "slow.toml")
    found = predict_collective(slow, "all_reduce", 64 * MB, 16)
    assert [p.transfer_us for p in found.phases] == [pytest.approx(2 * 3 / 4 * 64 * MB / 20e3), 0]
    assert found.limiting == "node network"


@pytest.mark.parametrize(("name", "latency"), [("all_gather", 8.0), ("reduce_scatter", 7.0)])
def test_a_ring_passes_each_unit(name: str, latency: float) -> None:
    size, units = 64 * MB, 4
    launch = TARGET["device.launch_us"] + TARGET["device.block_start_us"]
    found = predict_collective(TARGET, name, size, 16)
    assert terms(found) == [
        ("node", launch + units * (latency - launch), 0),
        ("pod", (units - 1) * (STEP + fill(size)), 15 / 16 * size / 4 / RATE),
    ]


def test_an_all_to_all_sends_what_other_units_get() -> None:
    size = 64 * MB
    found = predict_collective(TARGET, "all_to_all", size, 16)
    assert terms(found) == [("node", 9, 0), ("pod", 3 * (STEP + fill(size)), 3 / 4 * size / RATE)]


def test_units_of_one_device() -> None:
    text = NODE.replace("[node", "[pod") + BETWEEN.replace("[node", "[pod")
    flat = parse_target(text, "flat.toml")
    launch = flat["device.launch_us"] + flat["device.block_start_us"]
    found = predict_collective(flat, "all_reduce", 64 * MB)
    assert terms(found) == [
        ("pod", launch + 4 * (STEP + fill(64 * MB)), 2 * 3 / 4 * 64 * MB / RATE),
    ]


def test_a_level_around_pods() -> None:
    more = POD.replace("[pod", "[row").replace("value = 16,", "value = 2,")
    text = TEXT.replace('"pod"]', '"pod", "row"]') + more + BETWEEN.replace("[node", "[row")
    target = parse_target(text, "row.toml")
    inner = predict_collective(target, "all_gather", 64 * MB, 64)
    outer = predict_collective(target, "all_gather", 64 * MB)
    assert [p.level for p in outer.phases] == ["node", "pod", "row"]
    assert outer.world == 128
    assert outer.latency_us > inner.latency_us
    assert sum(p.transfer_us for p in outer.phases) == pytest.approx(
        max(sum(p.transfer_us for p in inner.phases), 127 / 128 * MB / RATE)
    )


def test_within_one_unit_nothing_changes() -> None:
    found = predict_collective(TARGET, "all_reduce", 64 * MB, 4)
    assert terms(found) == [("node", 10, 2 * 3 / 4 * 64 * MB / 250e3)]


def test_times_on_all_units_come_first() -> None:
    line = LIBRARY.format("pod", 45).partition("[pod.network.library.reduce_scatter]")[0]
    target = parse_target(TEXT + line, "pod.toml")
    phases = predict_collective(target, "all_reduce", 64 * MB).phases
    assert [p.collective for p in phases] == ["reduce_scatter", "all_reduce", "all_gather"]
    assert len(predict_collective(target, "all_gather", 64 * MB).phases) == 2


def test_a_level_without_the_library_says_what_to_add() -> None:
    target = parse_target(TEXT.partition("[pod.network.library]")[0], "bare.toml")
    with pytest.raises(InputError) as caught:
        predict_collective(target, "all_gather", MB)
    assert str(caught.value) == (
        "target mynode: figure 'pod.network.library.gb_per_s' is missing; add what the library reaches "
        "between units, or name an algorithm"
    )
    assert predict_collective(target, "all_gather", MB, 4).world == 4


def test_more_bytes_and_more_hosts_take_longer() -> None:
    for name in COLLECTIVES:
        sizes = [predict_collective(EXAMPLE, name, 1 << power, 64).latency_us for power in range(12, 34, 2)]
        assert sizes == sorted(sizes), name
        worlds = [predict_collective(EXAMPLE, name, 1 << 26, 8 << hosts).latency_us for hosts in range(7)]
        assert worlds == sorted(worlds), name


def test_kernels_reach_other_hosts_by_put() -> None:
    rate = EXAMPLE["pod.network.put.gb_per_s"] * 1e3
    found = predict_collective(EXAMPLE, "all_to_all", 64 * MB, 32, "direct")
    node, pod = found.phases
    # each device writes to all receivers itself, so what stays in a node is its part, beside the rest
    assert (node.sent_bytes, pod.sent_bytes) == (7 / 32 * 64 * MB, 3 / 4 * 64 * MB)
    assert (node.transfer_us, pod.transfer_us) == (0, pytest.approx(3 / 4 * 64 * MB / rate))
    assert found.provenance == "predicted"
    # cores start the writes and do not bound them
    few = predict_collective(EXAMPLE, "all_to_all", 64 * MB, 32, "direct", cores=1)
    assert few.phases[1].transfer_us == pod.transfer_us
    two_shot = predict_collective(EXAMPLE, "all_reduce", 64 * MB, 32, "two_shot", "tma_store")
    assert two_shot.phases[1].transfer_us == pytest.approx(2 * 3 / 4 * 8 * MB / rate)


def test_a_level_with_the_mechanism_itself_is_not_reached_by_put() -> None:
    level = EXAMPLE.levels[1]
    store = {"network.store.gb_per_s": replace(level.figures["network.put.gb_per_s"], value=25.0)}
    own = replace(EXAMPLE, levels=(EXAMPLE.levels[0], replace(level, figures={**level.figures, **store})))
    found: Target = own
    phases = predict_collective(found, "all_to_all", 64 * MB, 16, "direct").phases
    assert [p.transfer_us for p in phases] == [
        pytest.approx(7 / 8 * 64 * MB / (EXAMPLE["node.network.store.gb_per_s"] * 1e3)),
        pytest.approx(1 / 2 * 64 * MB / 25e3),
    ]
    assert math.isclose(phases[0].sent_bytes, 7 / 8 * 64 * MB)
