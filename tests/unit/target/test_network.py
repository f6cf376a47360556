"""Targets of several devices: the shipped ones, files of users, and what is wrong with a file."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tilesight.costmodel.network.collectives import predict_collective
from tilesight.errors import InputError, TargetFileError, UnknownNameError
from tilesight.target.fields import PROVENANCES
from tilesight.target.network import CURVE_SIZES, MECHANISMS, size_name
from tilesight.target.spec import load_target, node_names, of_world, parse_target, target_names

NODES = ["h100x2", "h100x4", "h100x8", "h200x2", "h200x4", "h200x8"]
NODE = """
name = "mynode"
title = "four of mine"
unit = "h100"

[node]
topology = "switch"
link = "a link"
devices = { value = 4, provenance = "spec" }

[node.network]
link_gb_per_s = { value = 450, provenance = "spec" }
flag_us = { value = 0.6, provenance = "measured" }

[node.network.store]
core_gb_per_s = { value = 40, provenance = "measured" }
gb_per_s = { value = 300, provenance = "measured" }
"""
POINT = '{ value = 10, provenance = "measured" }'
POD = """
[pod]
topology = "switch"
link = "InfiniBand NDR"
multicast = true
devices = { value = 16, provenance = "predicted" }

[pod.network]
link_gb_per_s = { value = 50, provenance = "spec" }
flag_us = { value = 5, provenance = "predicted" }
"""


def test_shipped_nodes() -> None:
    assert node_names() == NODES
    assert not set(NODES) & set(target_names())


@pytest.mark.parametrize("name", NODES)
def test_a_node_has_the_figures_of_its_chip_and_its_own(name: str) -> None:
    node, (chip_name, count) = load_target(name), name.split("x")
    chip = load_target(chip_name)
    assert (node.name, node.world, node.chip) == (name, int(count), chip)
    assert (node.kind, node.arch, node.dtypes) == (chip.kind, chip.arch, chip.dtypes)
    assert node.device_target == chip
    within = {path: figure for path, figure in chip.figures.items() if not path.startswith("node.")}
    assert within.items() <= node.figures.items()
    own = {path: figure for path, figure in node.figures.items() if path not in within}
    assert all(path.startswith("node.") and figure.source for path, figure in own.items())
    assert all(node.rule(path).unit and node.rule(path).meaning for path in node.figures)
    assert all(f"node.network.{mechanism}.gb_per_s" in own for mechanism in MECHANISMS)
    assert not node.levels[0].multicast
    assert pickle.loads(pickle.dumps(node)) == node


def test_a_file_of_a_node_has_no_figure_of_the_chip() -> None:
    folder = Path(__file__).parents[3] / "tilesight" / "target" / "nodes"
    for name in NODES:
        assert "[core" not in (folder / f"{name}.toml").read_text(encoding="utf-8")


def test_eight_devices_are_predicted_and_fewer_are_not() -> None:
    for name in NODES:
        own = {f.provenance for level in load_target(name).levels for f in level.figures.values()}
        assert ("measured" in own) == (not name.endswith("x8")), name
        assert ("predicted" in own) == name.endswith("x8"), name
    for name in ("h100x8", "h200x8"):
        assert load_target(name).figures["node.network.store.gb_per_s"].provenance == "predicted"


def test_chips_keep_their_fingerprints() -> None:
    """Records of a chip stay valid: describing nodes changed no figure of it."""
    assert load_target("h100").fingerprint == "6270f934c3ef"
    assert load_target("h200").fingerprint == "e8ee700f5efc"


def test_fingerprint_covers_the_levels() -> None:
    base = parse_target(NODE, "a.toml")
    assert base.fingerprint != load_target("h100").fingerprint
    for old, new in (
        ('"switch"', '"ring"'),
        ("value = 300", "value = 310"),
        ('"a link"\n', '"a link"\nmulticast = true\n'),
    ):
        assert parse_target(NODE.replace(old, new), "a.toml").fingerprint != base.fingerprint, new
    other_words = NODE.replace("a link", "the link").replace("four of mine", "4 of mine")
    assert parse_target(other_words, "a.toml").fingerprint == base.fingerprint


def test_sizes_of_curves_have_the_names_that_people_write() -> None:
    assert [size_name(1 << power) for power in (9, 10, 16, 20, 28, 30, 32)] == [
        "512B", "1KiB", "64KiB", "1MiB", "256MiB", "1GiB", "4GiB",
    ]  # fmt: skip
    assert all(size_name(size) == name for name, size in CURVE_SIZES.items())


def test_further_levels_of_any_name(tmp_path: Path) -> None:
    chip = tmp_path / "mychip.toml"
    shipped = Path(__file__).parents[3] / "tilesight" / "target" / "a100.toml"
    chip.write_text(shipped.read_text(encoding="utf-8").replace('name = "a100"', 'name = "mychip"'))
    text = NODE.replace('unit = "h100"', 'unit = "./mychip.toml"\nlevels = ["node", "pod"]') + POD
    path = tmp_path / "pod.toml"
    path.write_text(text)
    pod = load_target(str(path))
    assert [level.name for level in pod.levels] == ["node", "pod"]
    assert (pod.world, pod["pod.devices"], pod["core.count"]) == (64, 16, 108)
    assert pod.device_target.name == "mychip"
    assert pod.rule("pod.network.flag_us").unit == "us"
    assert [level.multicast for level in pod.levels] == [False, True]
    wafer = NODE.replace("[node", "[wafer").replace('"switch"', '"mesh"')
    assert parse_target(wafer, "wafer.toml").levels[0].topology == "mesh"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('unit = "h100"', 'unit = "h1000"', "field 'unit': unknown target 'h1000'; did you mean h100"),
        ('unit = "h100"', 'unit = "h100x2"', "level 'node' is one of unit 'h100x2' already"),
        ('unit = "h100"', 'unit = ""', "field 'unit' must be a non-empty text"),
        ('unit = "h100"', 'unit = "./none.toml"', "target file 'none.toml' cannot be read"),
        ('name = "mynode"', 'name = "my node"', "field 'name': 'my node' must be letters"),
        ('title = "four of mine"\n', "", "field 'title' must be a non-empty text"),
        ('topology = "switch"', 'topology = "star"', "topology 'star' must be one of switch, ring, mesh"),
        ('topology = "switch"\n', "", "level 'node': field 'topology' must be a non-empty text"),
        ('link = "a link"', 'link = "a link"\nmulticast = "no"', "field 'multicast' must be true or false"),
        ("value = 4,", "value = 1,", "figure 'node.devices': 1 devices is below 2"),
        ("value = 4,", "value = 4.5,", "must be a whole number"),
        ("devices = {", "device = {", "figure 'node.device' is unknown; did you mean 'node.devices'"),
        (
            'flag_us = { value = 0.6, provenance = "measured" }',
            "",
            "figure 'node.network.flag_us' is missing",
        ),
        ("flag_us = { value = 0.6", "flag_us = { value = 0", "must be greater than zero, in us"),
        ("flag_us = { value = 0.6", "flag_us = { value = 60000", "was it meant in ns"),
        ('value = 0.6, provenance = "measured"', 'value = 0.6, provenance = "guess"', "provenance 'guess'"),
        ("network.store", "network.stroe", "level 'node': unknown mechanism 'stroe'; known: store, load"),
        ('\ngb_per_s = { value = 300, provenance = "measured" }', "", "'network.store.gb_per_s' is missing"),
        ("value = 40,", "value = 310,", "'network.store.core_gb_per_s' of 310 is more than the 300"),
        ("value = 300,", "value = 500,", "of 500 is more than the 450 of 'network.link_gb_per_s'"),
        (
            "gb_per_s = { value = 300",
            'peer_gb_per_s = { value = 480, provenance = "measured" }\ngb_per_s = { value = 300',
            "'network.store.peer_gb_per_s' of 480 is more than the 450",
        ),
        (
            "[node.network.store]",
            f"[node.network.library.all_reduce.us]\n64KiB = {POINT}\n[node.network.store]",
            "a curve has at least two points, beside 'network.library.all_reduce.us.64KiB'",
        ),
        (
            "[node.network.store]",
            f"[node.network.library.all_reduce.us]\n64KB = {POINT}\n[node.network.store]",
            "figure 'node.network.library.all_reduce.us.64KB' is unknown; did you mean",
        ),
        (
            "[node.network.store]",
            f"[node.network.library.all_reduce]\nlatency_us = {POINT}\ngb_per_s = {POINT}\n"
            f"[node.network.library.all_reduce.us]\n1MiB = {POINT}\n2MiB = {POINT}\n[node.network.store]",
            "'network.library.all_reduce.us.1MiB' is a point of a curve and "
            "'network.library.all_reduce.latency_us' part of a line",
        ),
        (
            "core_gb_per_s",
            "peak_gb_per_s",
            "figure 'node.network.store.peak_gb_per_s' is unknown; did you mean",
        ),
        ("[node.network.store]", "[core]\n[node.network.store]", "'core' is a level of the chip"),
        ('unit = "h100"', 'unit = "h100"\ncards = 4', "unknown field 'cards'"),
        ('unit = "h100"', 'unit = "h100"\nlevels = ["pod"]', "field 'levels' must list the tables"),
        ('unit = "h100"', 'unit = "h100"\nlevels = 4', "field 'levels' must list the tables"),
    ],
)
def test_wrong_files(old: str, new: str, message: str) -> None:
    assert old in NODE
    with pytest.raises(TargetFileError) as caught:
        parse_target(NODE.replace(old, new), "mine.toml")
    assert message in str(caught.value)


def test_wrong_figures_of_the_library() -> None:
    part = "\n[node.network.library.{}]\nlatency_us = {{ value = 10, provenance = 'public' }}\n"
    with pytest.raises(TargetFileError, match=r"'network.library.all_reduce.gb_per_s' is missing, beside"):
        parse_target(NODE + part.format("all_reduce"), "mine.toml")
    with pytest.raises(TargetFileError, match="unknown collective 'allreduce'; known: all_reduce"):
        parse_target(NODE + part.format("allreduce"), "mine.toml")


LIBRARY = """
[node.network.library]
gb_per_s = { value = 40, provenance = "public" }
step_us = { value = 8, provenance = "public" }
fill_us = { value = 30, provenance = "public" }
fill_bytes = { value = 2000000, provenance = "public" }
"""


def test_a_level_tells_what_the_library_reaches_between_its_units() -> None:
    (level,) = parse_target(NODE + LIBRARY, "mine.toml").levels
    assert level.spans_units
    assert level["network.library.step_us"] == 8
    assert not level.has_library("all_reduce")
    (bare,) = parse_target(NODE, "mine.toml").levels
    assert not bare.spans_units


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step_us = { value = 8, provenance = \"public\" }\n", "",
         "figure 'network.library.step_us' is missing, beside 'network.library.gb_per_s'"),
        ("value = 40,", "value = 4000,", "'network.library.gb_per_s' of 4000 is more than the 450 of"),
        ("step_us", "steps_us", "unknown collective 'steps_us'; known: all_reduce"),
        ("value = 2000000,", "value = 0.5,", "network.library.fill_bytes'"),
    ],
)  # fmt: skip
def test_wrong_figures_between_units(old: str, new: str, message: str) -> None:
    text = LIBRARY.replace(old, new)
    assert text != LIBRARY
    with pytest.raises(TargetFileError, match=message):
        parse_target(NODE + text, "mine.toml")


def test_hosts_are_reached_by_put_and_have_rails() -> None:
    text = 'name = "mypod"\ntitle = "pod"\nunit = "h100x8"\n' + POD.replace('"switch"', '"rails"')
    put = '[pod.network.put]\n{} = {{ value = 45, provenance = "predicted" }}\n'
    level = parse_target(text + put.format("gb_per_s"), "pod.toml").levels[1]
    assert (level.topology, level["network.put.gb_per_s"]) == ("rails", 45)
    with pytest.raises(TargetFileError, match=r"'pod.network.put.core_gb_per_s' is unknown"):
        parse_target(text + put.format("core_gb_per_s"), "pod.toml")


def test_several_levels_need_their_order() -> None:
    with pytest.raises(TargetFileError, match=r"from the inside out.*the file has \[node\], \[pod\]"):
        parse_target(NODE + POD, "mine.toml")
    with pytest.raises(TargetFileError, match="the file has none"):
        parse_target('name = "a"\ntitle = "b"\nunit = "h100"\n', "mine.toml")


def test_more_devices_than_any_machine() -> None:
    many = NODE.replace('unit = "h100"', 'unit = "h100"\nlevels = ["node", "pod"]') + POD
    many = many.replace("value = 4,", "value = 65536,").replace("value = 16,", "value = 65536,")
    with pytest.raises(TargetFileError, match="4294967296 devices in all are more than"):
        parse_target(many, "mine.toml")


def test_a_file_cannot_be_its_own_unit(tmp_path: Path) -> None:
    for name, other in (("mine", "yours"), ("yours", "mine")):
        text = NODE.replace('unit = "h100"', f'unit = "./{other}.toml"').replace("[node", f"[{name}")
        (tmp_path / f"{name}.toml").write_text(text)
    with pytest.raises(TargetFileError, match=r"field 'unit': '.*mine.toml' contains itself"):
        load_target(str(tmp_path / "mine.toml"))


def test_levels_around_a_shipped_node(tmp_path: Path) -> None:
    text = 'name = "mypod"\ntitle = "pod"\nunit = "h100x8"\n' + POD
    pod, node = parse_target(text, "pod.toml"), load_target("h100x8")
    assert (pod.levels[0], pod.chip, pod.world) == (node.levels[0], node.chip, 128)
    (tmp_path / "pod.toml").write_text(text)
    (tmp_path / "row.toml").write_text(text.replace("h100x8", "./pod.toml").replace("[pod", "[row"))
    assert [level.name for level in load_target(str(tmp_path / "row.toml")).levels] == ["node", "pod", "row"]


def test_a_users_file_cannot_take_a_shipped_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(NODE.replace("mynode", "h100x4"))
    with pytest.raises(TargetFileError, match="name 'h100x4' is that of a shipped target"):
        load_target(str(path))


def test_unknown_names_offer_nodes() -> None:
    with pytest.raises(UnknownNameError, match="did you mean h100x"):
        load_target("h100x3")


def test_a_chip_and_a_world() -> None:
    h100, h200 = load_target("h100"), load_target("h200")
    assert [of_world(h200, world).name for world in (2, 3, 4, 5, 8)] == [
        "h200x2", "h200x4", "h200x4", "h200x8", "h200x8"
    ]  # fmt: skip
    assert of_world(load_target("h100x4"), 2).name == "h100x4"
    assert of_world(load_target("h100x4"), None).name == "h100x4"
    with pytest.raises(InputError, match="world 8 is larger than target h100x4, which has 4 devices"):
        of_world(load_target("h100x4"), 8)
    with pytest.raises(
        InputError, match=r"describes 16 devices of h100 \(there are h100x2, h100x4, h100x8\)"
    ):
        of_world(h100, 16)
    with pytest.raises(InputError, match="is one device; state the world, or name one of h100x2"):
        of_world(h100, None)
    with pytest.raises(InputError, match="no shipped target describes several devices of a100; describe"):
        of_world(load_target("a100"), None)


def test_every_provenance_is_documented() -> None:
    docs = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    line = next(line for line in docs.splitlines() if line.startswith("`tilesight targets` lists"))
    assert all(f"`{provenance}`" in line for provenance in PROVENANCES)


def test_the_example_of_the_docs_is_a_target() -> None:
    page = (Path(__file__).parents[3] / "docs" / "targets.md").read_text(encoding="utf-8")
    example = page.split("```toml\nname = ")[1].split("```")[0]
    pod = parse_target(f"name = {example}", "pod.toml")
    assert [level.name for level in pod.levels] == ["node", "pod"]
    assert (pod.world, pod.chip) == (32, load_target("h100"))
    found = predict_collective(pod, "all_reduce", 64 << 20)
    assert (len(found.phases), found.provenance, found.limiting) == (2, "predicted", "pod network")
    # as the figures of the file that the page names
    shipped = load_target(str(Path(__file__).parents[3] / "docs" / "pod.toml")).levels[1]
    given = {path: figure.value for path, figure in pod.levels[1].figures.items() if path != "devices"}
    assert given == {path: shipped[path] for path in given}
    assert pod.unreached is pod.levels[1]
