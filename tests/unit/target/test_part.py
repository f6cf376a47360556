"""Parts of targets of several hosts: whole units, and what cannot be divided."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.unit.target.test_network import NODE, POD
from tilesight.errors import InputError
from tilesight.target.part import part_of
from tilesight.target.spec import Target, load_target, parse_target

EXAMPLE = load_target(str(Path(__file__).parents[3] / "docs" / "pod.toml"))
ROW = POD.replace("[pod", "[row").replace("value = 16,", "value = 4,")


def row() -> Target:
    text = NODE.replace('unit = "h100"', 'unit = "h100"\nlevels = ["node", "pod", "row"]')
    return parse_target(text + POD + ROW, "row.toml")


def test_some_hosts_of_a_pod() -> None:
    found = part_of(EXAMPLE, 32)
    assert (found.name, found.world, found.chip) == ("h100-pod-32", 32, EXAMPLE.chip)
    assert [level.devices for level in found.levels] == [8, 4]
    assert found["pod.devices"] == 4
    assert found.figures["pod.devices"].source == "4 of 64"
    assert {path: f.value for path, f in found.figures.items() if path != "pod.devices"} == {
        path: f.value for path, f in EXAMPLE.figures.items() if path != "pod.devices"
    }
    assert found.fingerprint != EXAMPLE.fingerprint
    assert part_of(EXAMPLE, 512) is EXAMPLE
    assert pickle.loads(pickle.dumps(found)) == found


def test_one_host_has_no_further_level() -> None:
    one = part_of(EXAMPLE, 8)
    assert [level.name for level in one.levels] == ["node"]
    assert not any(path.startswith("pod.") for path in one.figures)


def test_inner_levels_are_filled_first() -> None:
    assert [[one.devices for one in part_of(row(), world).levels] for world in (4, 8, 64, 128, 256)] == [
        [4], [4, 2], [4, 16], [4, 16, 2], [4, 16, 4]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "world", "message"),
    [
        (EXAMPLE, 12, "world 12 is no whole number of units of level 'node' of target h100-pod, which have "
                      "8 devices each: take a multiple of 8, at most 512"),
        (EXAMPLE, 4, "world 4 is no whole number of units of level 'node'"),
        (EXAMPLE, 1024, "world 1024 is larger than target h100-pod, which has 512 devices"),
        (EXAMPLE, 1, "world=1 must be a whole number of devices, at least 2"),
        (row(), 96, r"level 'pod' of target mynode, which have 64 devices each: take a multiple of 64"),
    ],
)  # fmt: skip
def test_what_is_no_whole_number_of_units(target: Target, world: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        part_of(target, world)


def test_times_of_the_library_on_all_units_say_nothing_of_fewer() -> None:
    line = """
[pod.network.library.all_reduce]
latency_us = { value = 40, provenance = "public" }
gb_per_s = { value = 40, provenance = "public" }
"""
    text = NODE.replace('unit = "h100"', 'unit = "h100"\nlevels = ["node", "pod"]') + POD + line
    target = parse_target(text, "pod.toml")
    assert part_of(target, 64) is target
    assert part_of(target, 4).world == 4
    with pytest.raises(InputError, match=r"'network.library.all_reduce' of level 'pod' .* all of its 16 units, not on 2"):  # fmt: skip  # noqa: E501
        part_of(target, 8)
