"""Model folders of unknown origin: their hashes are right, and their content may be damaged or hostile."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost

from tilesight.costmodel.learned import model_file
from tilesight.costmodel.learned.booster_checks import _NODE_ARRAYS, DEEPEST, _check_nodes, check_booster
from tilesight.costmodel.learned.features import NAMES, feature_digest
from tilesight.costmodel.learned.spread import KNOTS
from tilesight.costmodel.learned.ubjson import read_ubjson
from tilesight.errors import InputError

COUNT = len(NAMES)
CHANGES = 100
WIDTHS = [COUNT, 3, 1]
NETWORK_VALUES = COUNT + COUNT + 3 * COUNT + 3 + 3 + 1
ROWS = np.random.default_rng(0).random((64, COUNT))
OBJECTIVES: tuple[dict[str, Any], ...] = (
    {"objective": "reg:squarederror"},
    {"objective": "rank:pairwise", "lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": 4},
    {"objective": "binary:logistic"},
)


def boosted(parameters: dict[str, Any], depth: int = 3) -> bytes:
    data = xgboost.DMatrix(ROWS, ROWS[:, 0] > 0.5, nthread=1)
    if "pair" in parameters["objective"]:
        data.set_group([32, 32])
    how = {"tree_method": "hist", "max_depth": depth, "min_child_weight": 0, "nthread": 1, **parameters}
    return bytes(xgboost.train(how, data, num_boost_round=4).save_raw("ubj"))


def write_card(folder: Path, **changes: Any) -> None:
    """Write a card with the hashes of the files that are there."""
    files = [file for file in folder.iterdir() if file.name != "card.json"]
    card = {
        "format": model_file.FORMAT,
        "version": "learned-made",
        "analytical": "made",
        "feature_digest": feature_digest(),
        "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        "members": 1,
        "trees": {name: {"scale": 1.0, "intercept": 0.0} for name in ("correction-0.ubj", "order-0.ubj")},
        "networks": {"network-0.bin": {"scale": 1.0, "intercept": 0.0, "widths": WIDTHS}},
        "level": [0.1] * len(KNOTS),
        "parameters": {},
        "data": {"archs": ["sm_90a"], "rows": 1, "cases": 1, "operators": {}, "targets": []},
        "held_out": [],
        "importances": {NAMES[0]: 1.0},
    }
    (folder / "card.json").write_text(json.dumps({**card, **changes}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    names = ("correction-0.ubj", "order-0.ubj", "spread.ubj")
    for name, parameters in zip(names, (OBJECTIVES[0], OBJECTIVES[2], OBJECTIVES[0]), strict=True):
        (folder / name).write_bytes(boosted(parameters))
    (folder / "network-0.bin").write_bytes(np.ones(NETWORK_VALUES, "<f2").tobytes())
    (folder / "references.bin").write_bytes(np.zeros((2, COUNT), "<f2").tobytes())
    gate = {
        **{name: np.ones(COUNT).tolist() for name in ("centre", "spread")},
        **{"unit": 1.0, "reach": 2.0, "common": 0.0},
    }
    (folder / "gate.json").write_text(json.dumps(gate))
    write_card(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def change(content: bytes, chosen: random.Random) -> bytes:
    """`content` with some bytes replaced, removed or repeated."""
    found = bytearray(content)
    for _ in range(chosen.choice((1, 1, 2, 8))):
        at = chosen.randrange(len(found))
        match chosen.randrange(5):
            case 0:
                found[at] = chosen.randrange(256)
            case 1:
                number = chosen.choice((-1, 0, 1, 3, 255, 2**20, 2**31 - 1, -(2**31)))
                found[at : at + 4] = struct.pack(">i", number)
            case 2:
                found[at : at + 8] = struct.pack(">q", chosen.choice((0, 2**40, 2**62, -1)))
            case 3:
                del found[at : at + chosen.choice((1, 8, len(found)))]
            case 4:
                found[at:at] = found[at : at + chosen.choice((1, 16, 200))]
        found = found or bytearray(b"{")
    return bytes(found)


def use_changed_files(folder: Path, seed: int) -> int:
    """Load and use the model with each of many changes; returns the number of those that were refused."""
    chosen, refused = random.Random(seed), 0
    names = ["correction-0.ubj", "order-0.ubj", "spread.ubj", "network-0.bin", "gate.json", "card.json"]
    for _ in range(CHANGES):
        name = chosen.choice(names)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(change(content, chosen))
        if name != "card.json":
            write_card(folder)
        try:
            model_file.load(folder).correction.apply(ROWS)
        except InputError as error:
            refused += "\n" not in str(error)
        (folder / name).write_bytes(content)
        write_card(folder)
    return refused


def test_no_change_of_a_model_ends_the_process(folder: Path) -> None:
    """In a process of its own, which the test would outlive."""
    program = f"import sys; from {__name__} import *; print(use_changed_files(Path(sys.argv[1]), 1))"
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", program, folder], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert int(done.stdout) > CHANGES // 2


@pytest.mark.parametrize("parameters", OBJECTIVES)
def test_what_training_writes_passes(parameters: dict[str, Any]) -> None:
    check_booster(boosted(parameters), COUNT)
    check_booster(boosted(parameters, depth=6), COUNT)
    with pytest.raises(ValueError, match="the number of features"):
        check_booster(boosted(parameters), COUNT - 1)


def replaced(content: bytes, name: str, index: int, number: int) -> bytes:
    """`content` with one element of the first array `name` of 32-bit integers replaced."""
    at = content.index(name.encode()) + len(name)
    assert content[at : at + 4] == b"[$l#"
    return content[: at + 13 + 4 * index] + struct.pack(">i", number) + content[at + 17 + 4 * index :]


@pytest.mark.parametrize(
    ("name", "index", "number", "message"),
    [
        ("left_children", 0, 2**31 - 1, "the number of a child"),
        ("left_children", 0, 0, "the number of a child"),  # a cycle
        ("right_children", 0, -1, "a node with one child"),
        ("right_children", 0, 1, "a node with two parents"),
        ("parents", 1, 2, "the number of a parent"),
        ("split_indices", 0, COUNT, "the number of a feature"),
        ("split_indices", 0, -5, "the number of a feature"),
    ],
)
def test_wrong_indices_are_named(folder: Path, name: str, index: int, number: int, message: str) -> None:
    file = folder / "correction-0.ubj"
    file.write_bytes(replaced(file.read_bytes(), name, index, number))
    write_card(folder)
    with pytest.raises(InputError, match=rf"'correction-0.ubj': {message} is not what training writes"):
        model_file.load(folder)


def chain(levels: int) -> dict[str, Any]:
    """The nodes of a tree in which each left child is a leaf."""
    nodes = 2 * levels - 1
    inner = np.arange(0, nodes - 1, 2)
    arrays = {
        name: np.zeros(nodes, dtype=np.int32) for name in ("default_left", "split_type", "split_indices")
    }
    arrays |= {name: np.full(nodes, -1) for name in ("left_children", "right_children", "parents")}
    arrays["left_children"][inner], arrays["right_children"][inner] = inner + 1, inner + 2
    arrays["parents"][inner + 1] = arrays["parents"][inner + 2] = inner
    return {**arrays, **{name: np.zeros(nodes) for name in _NODE_ARRAYS if name not in arrays}}


def test_a_tree_that_is_too_deep_is_refused() -> None:
    _check_nodes([chain(3), chain(DEEPEST)], COUNT)
    with pytest.raises(ValueError, match=f"more than {DEEPEST} levels"):
        _check_nodes([chain(3), chain(DEEPEST + 1)], COUNT)


def network_card(**changes: Any) -> dict[str, Any]:
    return {"networks": {"network-0.bin": {"scale": 1.0, "intercept": 0.0, "widths": WIDTHS, **changes}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": 10**9}, "members=1000000000 must lie in"),
        ({"members": True, "trees": {}}, "does not hold together"),
        ({"files": {"../../etc/passwd": "0"}}, "'files' must be those"),
        ({"level": [1e999] * len(KNOTS)}, "'level' must be finite"),
        ({"level": [0.1]}, "'level' must be finite numbers of shape"),
        ({"trees": {"correction-0.ubj": {"scale": [1, 2], "intercept": 0}}}, "'files' must be those"),
        ({"networks": {"network-1.bin": {}}}, "'networks' must be those"),
        (network_card(scale=[1, 2]), "'scale' must be finite numbers of shape"),
        (network_card(widths=[COUNT, 10**9, 1]), "widths of 'network-0.bin' must be whole numbers"),
        (network_card(widths=[COUNT, 3, 2]), f"must begin with {COUNT} features and end with 1"),
        (network_card(widths=[COUNT, 4, 1]), "'network-0.bin': a network of widths"),
    ],
)
def test_cards_of_the_wrong_form_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    write_card(folder, **changes)
    with pytest.raises(InputError, match=message):
        model_file.load(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full(NETWORK_VALUES, np.nan, np.float16), "finite numbers"),
        (np.zeros(NETWORK_VALUES, np.float16), "spreads of a network's features must be above 0"),
        (np.ones(NETWORK_VALUES - 1, np.float16), f"has {NETWORK_VALUES} finite numbers"),
        (np.ones(2 * NETWORK_VALUES + 1, np.int8), "numbers of two bytes each"),
    ],
)
def test_networks_of_the_wrong_form_are_refused(folder: Path, values: Any, message: str) -> None:
    (folder / "network-0.bin").write_bytes(values.tobytes())
    write_card(folder)
    with pytest.raises(InputError, match=message):
        model_file.load(folder)


def nested(folder: Path) -> None:
    (folder / "card.json").write_text("[" * 100_000)


def endless(folder: Path) -> None:
    (folder / "card.json").unlink()
    (folder / "card.json").symlink_to("/dev/zero")


def endless_trees(folder: Path) -> None:
    (folder / "spread.ubj").unlink()
    (folder / "spread.ubj").symlink_to("/dev/zero")


@pytest.mark.parametrize("damage", [nested, endless, endless_trees])
def test_files_without_an_end_are_refused(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder)
    with pytest.raises(InputError, match="cannot be read"):
        model_file.load(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 5000,
        b"[$l#L\x7f" + b"\xff" * 7,
        b"[#i\x7f",
        b"{i\x01ai\x01i\x01ai\x02}",
        b"ZZ",
        b"i\x01i",
    ],
)
def test_what_is_no_whole_ubjson_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_ubjson(content)
