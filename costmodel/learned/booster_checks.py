"""Checks boosters of unknown origin: XGBoost trusts what it reads, and a wrong index ends the process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ubjson import read_ubjson

DEEPEST = 64  # levels of a tree; XGBoost walks through trees recursively
_OBJECTIVES = ("reg:squarederror", "rank:pairwise", "binary:logistic")
# parts of each object in the file, and of each tree the element type; XGBoost would read parts that are not
# listed, too, and those are not checked
_LEARNER = {
    "attributes",
    "feature_names",
    "feature_types",
    "gradient_booster",
    "learner_model_param",
    "objective",
}
_MODEL = {"cats", "gbtree_model_param", "iteration_indptr", "tree_info", "trees"}
_NODE_ARRAYS = {
    "base_weights": "f4",
    "default_left": "u1",
    "left_children": "i4",
    "loss_changes": "f4",
    "parents": "i4",
    "right_children": "i4",
    "split_conditions": "f4",
    "split_indices": "i4",
    "split_type": "u1",
    "sum_hessian": "f4",
}
_EMPTY_ARRAYS = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_ROOT_PARENT = 2**31 - 1
_NUMBER = re.compile(r"\[?[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\]?")

Ints = NDArray[np.integer[Any]]


def check_booster(content: bytes, features: int) -> None:
    """Check that a file holds boosted regression trees with one output, on `features` features.

    Raises `ValueError` with what is wrong.
    """
    whole = read_ubjson(content)
    _parts(whole, "booster", {"learner", "version"})
    learner = _parts(whole["learner"], "learner", _LEARNER)
    _expect(
        not learner["attributes"] and not learner["feature_names"] and not learner["feature_types"], "names"
    )
    _check_parameters(learner["learner_model_param"], features)
    _check_objective(learner["objective"])
    booster = _parts(learner["gradient_booster"], "gradient_booster", {"model", "name"})
    _expect(booster["name"] == "gbtree", "the kind of booster")
    model = _parts(booster["model"], "model", _MODEL, optional={"cats"})
    _expect(all(not len(part) for part in dict(model.get("cats", {})).values()), "categories")
    trees, sizes = model["trees"], model["gbtree_model_param"]
    _expect(isinstance(trees, list) and len(trees) > 0, "the number of trees")
    _expect(sizes == {"num_parallel_tree": "1", "num_trees": str(len(trees))}, "the number of trees")
    _expect(list(model["tree_info"]) == [0] * len(trees), "'tree_info'")
    _expect(list(model["iteration_indptr"]) == list(range(len(trees) + 1)), "'iteration_indptr'")
    for number, tree in enumerate(trees):
        _check_parts_of(tree, number, features)
    _check_nodes(trees, features)


def _check_parameters(found: Any, features: int) -> None:
    wanted = {"boost_from_average", "num_class", "num_feature", "num_target", "base_score"}
    _parts(found, "learner_model_param", wanted)
    _expect(found["num_feature"] == str(features), "the number of features")
    _expect((found["num_class"], found["num_target"]) == ("0", "1"), "the number of outputs")
    _expect(found["boost_from_average"] in ("0", "1"), "'boost_from_average'")
    _expect(
        isinstance(found["base_score"], str) and bool(_NUMBER.fullmatch(found["base_score"])), "'base_score'"
    )


def _check_objective(found: Any) -> None:
    _expect(isinstance(found, dict) and found.get("name") in _OBJECTIVES, "the objective")
    for name, parameters in found.items():
        if name != "name":
            is_plain = isinstance(parameters, dict) and all(
                isinstance(text, str) for text in parameters.values()
            )
            _expect(name.endswith("_param") and is_plain, f"'{name}' of the objective")


def _check_parts_of(tree: Any, number: int, features: int) -> None:
    """Check the types and sizes of a tree's parts."""
    which = f"tree {number}"
    _parts(tree, which, {"id", "tree_param", *_NODE_ARRAYS, *_EMPTY_ARRAYS})
    _expect(tree["id"] == number, f"'id' of {which}")
    nodes = len(tree["left_children"])
    sizes = {"num_deleted": "0", "num_feature": str(features), "num_nodes": str(nodes)}
    given = dict(tree["tree_param"])
    _expect(
        given.pop("size_leaf_vector", "1") in ("0", "1") and given == sizes and nodes > 0,
        f"the size of {which}",
    )
    for name, kind in _NODE_ARRAYS.items():
        part = tree[name]
        is_right = isinstance(part, np.ndarray) and part.dtype == np.dtype(f">{kind}") and len(part) == nodes
        _expect(is_right, f"'{name}' of {which}")
    for name in _EMPTY_ARRAYS:
        _expect(len(tree[name]) == 0, f"'{name}' of {which}")


def _check_nodes(trees: list[Mapping[str, Any]], features: int) -> None:
    """Check the nodes of all trees at once: indices lie in their tree, and each node has one parent."""
    joined = {name: np.concatenate([tree[name] for tree in trees]) for name in _NODE_ARRAYS}
    sizes = np.array([len(tree["left_children"]) for tree in trees], dtype=np.int64)
    ends = np.cumsum(sizes)
    roots, end, begin = ends - sizes, np.repeat(ends, sizes), np.repeat(ends - sizes, sizes)
    left, right = (joined[name].astype(np.int64) for name in ("left_children", "right_children"))
    is_leaf = left == -1
    _expect(bool(np.array_equal(is_leaf, right == -1)), "a node with one child")
    numbers = np.arange(len(left))
    inner = numbers[~is_leaf]
    children = np.concatenate([(begin + side)[inner] for side in (left, right)])
    parents = np.concatenate([inner, inner])
    # children follow their parents, so there is no cycle
    _expect(bool(np.all((children > parents) & (children < end[parents]))), "the number of a child")
    _expect(len(np.unique(children)) == len(children), "a node with two parents")
    named = joined["parents"].astype(np.int64)
    _expect(bool(np.all(named[children] == parents - begin[parents])), "the number of a parent")
    _expect(bool(np.all(np.isin(named[roots], (-1, _ROOT_PARENT)))), "the parent of a root")
    indices = joined["split_indices"]
    _expect(bool(np.all((indices >= 0) & (indices < features))), "the number of a feature")
    _expect(not joined["split_type"].any(), "a split by categories")
    _expect(bool(np.isin(joined["default_left"], (0, 1)).all()), "'default_left'")
    _expect(bool(np.isfinite(joined["split_conditions"]).all()), "a number that is not finite")
    level = roots
    for _ in range(DEEPEST):
        level = level[~is_leaf[level]]
        if not len(level):
            return
        level = np.concatenate([(begin + left)[level], (begin + right)[level]])
    raise ValueError(f"a tree has more than {DEEPEST} levels")


def _parts(found: Any, what: str, names: set[str], optional: set[str] = frozenset()) -> Mapping[str, Any]:  # type: ignore[assignment]
    """`found`, if it is an object with these parts. Raises `ValueError`."""
    if not isinstance(found, dict):
        raise ValueError(f"{what} is no object")
    if unknown := set(found) - names:
        raise ValueError(f"{what} has the unknown part '{min(unknown)}'")
    if lacking := names - optional - set(found):
        raise ValueError(f"{what} lacks '{min(lacking)}'")
    return found


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} is not what training writes")
