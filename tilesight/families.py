"""Profile families: the profiles of one config for all workloads of a shape class, from lowering it at one or two of them.

A family begins with the workload that was asked for. Once it is known how the numbers of its structure follow the
dimensions (`lessons.py`), it answers the other workloads of its class, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from .profile import KernelProfile
from .profile_tree import Leaf, Path, Tree, changed, maker, part_at
from .scaling import Dims, Measure, Ramp, Rule, Term
from .space import Config

MOST_SEEN = 3  # workloads that a family without rules remembers
LEAST_TRIPS = 2  # a loop of one iteration is no loop in the IR
LEAST_PLAIN_TRIPS = 17  # the reader takes shorter loops of plain loads and stores as unrolled, like the device compiler
WHOLE = 1e-6

# what text of a family that was damaged, or made up, may raise where it is read, and where its kernels are made
DAMAGE = (AttributeError, KeyError, IndexError, TypeError, ValueError, ArithmeticError)

Rules = Mapping[Path, Rule | Ramp]


@dataclass(frozen=True, slots=True)
class FamilyKey:
    """Everything that a kept family's validity depends on, beside its config."""

    template: str
    template_version: str
    arch: str  # and what else the lowering reads of a target
    shape_class: str
    reader: str  # version of all that makes profiles from templates

    @property
    def digest(self) -> str:
        """16 hex digits over all of it."""
        parts = [self.template, self.template_version, self.arch, self.shape_class, self.reader]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class Refusal(StrEnum):
    """Why a family has no rules and gets none."""

    CONFIG = "config"  # its numbers are not those of its structure's rules
    STRUCTURE = "structure"  # no rule explains its structure


@dataclass(frozen=True)
class Seen:
    """The kernels of one config where it was lowered, as JSON has them."""

    dims: Dims
    fingerprint: str  # of the code there
    tree: Tree


@dataclass(frozen=True)
class ProfileFamily:
    """`seen` are the workloads at which the config was lowered, all with one structure, the latest last. `rules` say which
    numbers of the first one's follow the dimensions; None while that is not known."""

    config: Config
    structure: str  # equal for configs that one lesson is for
    seen: tuple[Seen, ...]
    rules: Rules | None = None
    refusal: Refusal | None = None
    open: tuple[str, ...] = ()  # dimensions that its kernels take at run time: their IR is one for all values

    def kernels(self, dims: Dims) -> tuple[KernelProfile, ...] | None:
        """The profiles at `dims`; None where they are not known, or the config makes another IR there: loops too short,
        grid axes of one."""
        for seen in self.seen:
            if seen.dims == dims:
                return _made(seen.tree)
        if self.rules is None:
            return None
        changes: dict[Path, Leaf] = {}
        for path, rule in self.rules.items():
            found = rule.values(dims, self.config) if isinstance(rule, Ramp) else rule.value(dims, self.config)
            if not self._keeps_structure(path, rule, found):
                return None
            # a line that is followed far beyond where it was seen may leave what can be
            changes[path] = found if isinstance(found, list) else max(0.0, found)
        return _made(changed(self.seen[0].tree, changes, ()))

    def fingerprint(self, dims: Dims) -> str:
        """Of the code at `dims`: configs that made the same code at the first workload make the same at others."""
        fixed = {dim: size for dim, size in dims.items() if dim not in self.open}
        if self.open and fixed == {dim: size for dim, size in self.seen[0].dims.items() if dim not in self.open}:
            return self.seen[0].fingerprint
        for seen in self.seen:
            if seen.dims == dims:
                return seen.fingerprint
        return hashlib.sha256(f"{self.seen[0].fingerprint}|{sorted(fixed.items())}".encode()).hexdigest()[:16]

    def with_seen(self, again: ProfileFamily) -> ProfileFamily:
        """This family and where its config was lowered again. One that has rules stays as it is."""
        if self.rules is not None:
            return self
        if again.structure != self.structure:
            return again
        new = [seen.dims for seen in again.seen]
        return replace(self, seen=(*(s for s in self.seen if s.dims not in new), *again.seen)[-MOST_SEEN:])

    def _keeps_structure(self, path: Path, rule: Rule | Ramp, value: Leaf) -> bool:
        if path[1] == "grid" or "tile_digits" in path:  # blocks along an axis, and how they share tiles: whole numbers
            is_divisor = path[1] != "grid" and path[-1] == 1
            least = 1 if is_divisor or self._is_open(rule) else 2
            return not isinstance(value, list) and abs(value - round(value)) < WHOLE and round(value) >= least
        if "trips" in path:
            phase = part_at(self.seen[0].tree, path[: path.index("trips")])
            accesses = phase["work"].get("accesses", ())
            # in shorter loops, buffers are used in part and pipelines fold into straight code, unless they fold at no size
            needed = max([LEAST_TRIPS, phase.get("pipeline_depth", 1), *(a.get("slots", 1) for a in accesses)])
            if self._is_open(rule):
                needed = 1
            if not phase["work"].get("matrix") and all(a["mechanism"] in ("ld", "st") for a in accesses):
                needed = max(needed, LEAST_PLAIN_TRIPS)
            return bool(max(value if isinstance(value, list) else [value]) >= needed)
        return True

    def _is_open(self, rule: Rule | Ramp) -> bool:
        """Whether it follows dimensions alone that its kernels take at run time: what it counts is in their IR at all sizes."""
        dims = [rule.dim] if isinstance(rule, Ramp) else [term.dim for term in rule.terms]
        return bool(self.open) and all(dim in self.open for dim in dims)

    def text(self) -> str:
        """One line of JSON, from which `family_of` makes the same value."""
        parts: dict[str, Any] = {
            "config": dict(self.config),
            "structure": self.structure,
            "seen": [[dict(s.dims), s.fingerprint, s.tree] for s in self.seen],
            "rules": None if self.rules is None else [[list(path), _plain_rule(rule)] for path, rule in self.rules.items()],
            "refusal": self.refusal,
        }
        if self.open:
            parts["open"] = list(self.open)
        return json.dumps(parts, separators=(",", ":"), allow_nan=False)


def family_of(text: str) -> ProfileFamily:
    """Raises one of `DAMAGE` where it is no text of a family."""
    parts = json.loads(text)
    rules = parts["rules"] if parts["rules"] is None else {tuple(path): _read_rule(rule) for path, rule in parts["rules"]}
    refusal = parts["refusal"] if parts["refusal"] is None else Refusal(parts["refusal"])
    seen = tuple(Seen(dims, fingerprint, tree) for dims, fingerprint, tree in parts["seen"])
    if not seen:
        raise ValueError("a family was lowered somewhere")
    return ProfileFamily(Config(parts["config"]), parts["structure"], seen, rules, refusal, tuple(parts.get("open", ())))


def _made(tree: Tree) -> tuple[KernelProfile, ...]:
    return tuple(maker(KernelProfile)(kernel) for kernel in tree)


def _plain_rule(rule: Rule | Ramp) -> list[Any]:
    if isinstance(rule, Rule):
        return ["rule", [[t.measure.value, t.dim, t.tile, t.boxes] for t in rule.terms], rule.factor, rule.offset]
    return ["ramp", rule.dim, rule.step, rule.width, rule.backwards, rule.offset]


def _read_rule(parts: list[Any]) -> Rule | Ramp:
    if parts[0] == "rule":
        terms = tuple(Term(Measure(measure), dim, tile, boxes) for measure, dim, tile, boxes in parts[1])
        return Rule(terms, float(parts[2]), float(parts[3]))
    return Ramp(parts[1], parts[2], parts[3], parts[4], parts[5])
