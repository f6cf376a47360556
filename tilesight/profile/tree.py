"""Profiles as JSON trees: numbers by path, the structure without numbers, and the way back to values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from .codec import plain_profile
from .values import KernelProfile

Path = tuple[str | int, ...]
Tree = Any  # kernels in JSON types
Leaf = float | list[float]  # a list holds the trips of each block


def tree_of(kernels: Sequence[KernelProfile]) -> Tree:
    """Kernels in JSON types, including fields that have their default value only at some shapes."""
    tree = [plain_profile(kernel) for kernel in kernels]
    for role in (role for kernel in tree for role in kernel["roles"]):
        for work in (phase["work"] for phase in role["phases"]):
            for access in work.get("accesses", ()):
                if access["mechanism"] == "tma" and access["space"] == "global":
                    access.setdefault("least_inside", 1.0)
    return tree


def leaves_of(node: Tree, path: Path) -> Iterator[tuple[Path, Leaf]]:
    """(path, value) of every number below `node`. Trips that differ by block are one value."""
    if isinstance(node, bool) or node is None or isinstance(node, str):
        return
    if isinstance(node, int | float):
        yield path, node
    elif isinstance(node, dict):
        for name, member in node.items():
            if name == "per_block" and len(member) > 1:
                yield (*path, name), member
            else:
                yield from leaves_of(member, (*path, name))
    else:
        for index, member in enumerate(node):
            yield from leaves_of(member, (*path, index))


def structure_of(node: Tree) -> Tree:
    """`node` without its numbers."""
    if isinstance(node, bool) or node is None:
        return node
    if isinstance(node, str):
        return re.sub(r"\d+", "#", node)
    if isinstance(node, int | float):
        return 0
    if isinstance(node, dict):
        return {
            name: [len(member) > 1] if name == "per_block" else structure_of(member)
            for name, member in node.items()
        }
    return [structure_of(member) for member in node]


def part_at(node: Tree, path: Path) -> Tree:
    """The part of `node` at `path`."""
    for key in path:
        node = node[key]
    return node


def changed(node: Tree, changes: Mapping[Path, Leaf], path: Path) -> Tree:
    """A copy of `node` at `path` with the numbers in `changes` replaced. Unchanged parts are shared."""
    if not changes:
        return node
    if path in changes:
        value = changes[path]
        return round(value) if isinstance(node, int) and not isinstance(value, list) else value
    below: dict[str | int, dict[Path, Leaf]] = {}
    for target, value in changes.items():
        below.setdefault(target[len(path)], {})[target] = value
    if isinstance(node, dict):
        return {
            name: changed(member, below[name], (*path, name)) if name in below else member
            for name, member in node.items()
        }
    return [changed(member, below[i], (*path, i)) if i in below else member for i, member in enumerate(node)]


@cache
def maker(kind: Any) -> Callable[[Tree], Any]:
    """A function that makes a value of the annotated type from JSON, without checks.

    It is several times as fast as `codec.read_profile`, which checks each field and names it in errors.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        makers = {member.name: maker(hints[member.name]) for member in fields(kind)}
        plain = frozenset(name for name, maker in makers.items() if maker is _same)
        make: Any = kind
        return lambda value: make(
            **{name: member if name in plain else makers[name](member) for name, member in value.items()}
        )
    if origin in (tuple, frozenset):
        inner = maker(parts[0])
        if inner is _same:
            return origin  # type: ignore[no-any-return]
        return lambda value: origin(map(inner, value))
    return kind if isinstance(kind, type) and issubclass(kind, Enum) else _same


def _same(value: Any) -> Any:
    return value
