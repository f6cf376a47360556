"""Profile families: the profiles of one config for all workloads of a shape class, from lowering it at one or two of them.

A few configs of each structure are lowered at three shapes, which shows how each number follows the dimensions. Configs
of the same structure follow the same rules: one shape is enough to place and check them, two where a number is sampled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .profile import LAUNCH_AXIS, KernelProfile
from .profile_tree import Leaf, Path, Tree, changed, leaves_of, maker, part_at, structure_of, tree_of
from .scaling import Dims, Kind, Measure, Ramp, Rule, Sample, Term, find_ramp, find_rule, refit
from .shape_class import ShapeClass
from .space import Config

PROBES = 3  # shapes at which the first config of a structure is lowered
LEAST_TRIPS = 2  # a loop of one iteration is no loop in the IR
LEAST_PLAIN_TRIPS = 17  # the reader takes shorter loops of plain loads and stores as unrolled, like the device compiler
WHOLE = 1e-6


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


@dataclass(frozen=True)
class ProfileFamily:
    """`base` are the kernels at one shape, as JSON has them; `rules` say which of their numbers follow the dimensions."""

    config: Config
    fingerprint: str  # of the code at that shape
    base: Tree
    rules: Mapping[Path, Rule | Ramp]

    @classmethod
    def refusal(cls, config: Config) -> ProfileFamily:
        """Says that no rule explains this config's profiles, so that nobody tries again."""
        return cls(config, "", [], {})

    @property
    def is_refusal(self) -> bool:
        return not self.base

    def kernels(self, dims: Dims) -> tuple[KernelProfile, ...] | None:
        """The profiles at `dims`; None where the config makes another IR there: loops too short, grid axes of one."""
        if self.is_refusal:
            return None
        changes: dict[Path, Leaf] = {}
        for path, rule in self.rules.items():
            found = rule.values(dims, self.config) if isinstance(rule, Ramp) else rule.value(dims, self.config)
            if not self._keeps_structure(path, found):
                return None
            changes[path] = found
        return tuple(maker(KernelProfile)(kernel) for kernel in changed(self.base, changes, ()))

    def _keeps_structure(self, path: Path, value: Leaf) -> bool:
        if path[1] == "grid" or "tile_digits" in path:  # blocks along an axis, and how they share tiles: whole numbers
            is_divisor = path[1] != "grid" and path[-1] == 1
            return not isinstance(value, list) and abs(value - round(value)) < WHOLE and round(value) >= (1 if is_divisor else 2)
        if "trips" in path:
            phase = part_at(self.base, path[: path.index("trips")])
            accesses = phase["work"].get("accesses", ())
            # in shorter loops, buffers are used in part and pipelines fold into straight code
            needed = max([LEAST_TRIPS, phase.get("pipeline_depth", 1), *(a.get("slots", 1) for a in accesses)])
            if not phase["work"].get("matrix") and all(a["mechanism"] in ("ld", "st") for a in accesses):
                needed = max(needed, LEAST_PLAIN_TRIPS)
            return bool(max(value if isinstance(value, list) else [value]) >= needed)
        return True

    def text(self) -> str:
        """One line of JSON, from which `family_of` makes the same value."""
        rules = [[list(path), _plain_rule(rule)] for path, rule in self.rules.items()]
        parts = {"config": dict(self.config), "fingerprint": self.fingerprint, "base": self.base, "rules": rules}
        return json.dumps(parts, separators=(",", ":"), allow_nan=False)


def family_of(text: str) -> ProfileFamily:
    """Raises `ValueError`, `KeyError` or `TypeError` where it is no text of a family."""
    parts = json.loads(text)
    rules = {tuple(path): _read_rule(rule) for path, rule in parts["rules"]}
    return ProfileFamily(Config(parts["config"]), parts["fingerprint"], parts["base"], rules)


@dataclass(frozen=True)
class Lesson:
    """How the numbers of one structure follow the dimensions, as its first configs showed. None: not by any known rule."""

    rules: Mapping[Path, Rule | Ramp] | None

    @property
    def samples(self) -> int:
        """Shapes at which another config of this structure must be lowered."""
        return 2 if any(isinstance(rule, Rule) and rule.is_line for rule in (self.rules or {}).values()) else 1


@dataclass
class Families:
    """What is learned of the structures of one shape class."""

    shape_class: ShapeClass
    lessons: dict[str, Lesson] = field(default_factory=dict)

    def needed(self, config: Config, first: Sequence[KernelProfile]) -> int:
        """At how many probes of the class `config` must be lowered, `first` being its kernels at the first one; 0: it has
        no family."""
        if lists_tiles(first):
            return 0
        lesson = self.lessons.get(self.structure(config, first))
        if lesson is None:
            return PROBES
        return 0 if lesson.rules is None else lesson.samples

    def structure(self, config: Config, kernels: Sequence[KernelProfile]) -> str:
        """Equal for configs whose profiles differ in numbers alone, and that cut the same dimensions without a rest."""
        return self._structure(config, tree_of(kernels))

    def make(self, config: Config, fingerprint: str, probed: Sequence[Sequence[KernelProfile]]) -> ProfileFamily | None:
        """The family of `config` from its kernels at the first probes; None where no rule explains them."""
        if any(lists_tiles(kernels) for kernels in probed):
            return None
        trees = [tree_of(kernels) for kernels in probed]
        if any(structure_of(tree) != structure_of(trees[0]) for tree in trees):
            self.lessons.setdefault(self._structure(config, trees[0]), Lesson(None))
            return None
        dims = [self.shape_class.probe(number).dims for number in range(len(trees))]
        key = self._structure(config, trees[0])
        if key not in self.lessons:
            if len(trees) < PROBES:
                return None
            self.lessons[key] = Lesson(self._learn(config, trees, dims))
        rules = self.lessons[key].rules
        if rules is None or len(trees) < self.lessons[key].samples:
            return None
        own = self._own(rules, config, trees, dims)
        return None if own is None else ProfileFamily(config, fingerprint, trees[0], own)

    def _structure(self, config: Config, tree: Tree) -> str:
        cuts = []
        for dim, scale in self.shape_class.free.items():
            tiles = [config.int(tile) for tile in scale.tiles]
            order = [tiles.index(tile) for tile in tiles]  # tiles of one size cannot be told apart
            cuts.append(f"{dim}:{[self.shape_class.divisors[dim] % tile == 0 for tile in tiles]}{order}")
        return ";".join([*cuts, json.dumps(structure_of(tree), separators=(",", ":"))])

    def _learn(self, config: Config, trees: Sequence[Tree], dims: Sequence[Dims]) -> Mapping[Path, Rule | Ramp] | None:
        leaves = [dict(leaves_of(tree, ())) for tree in trees]
        rules: dict[Path, Rule | Ramp] = {}
        for path in leaves[0]:
            values = [found[path] for found in leaves]
            kind, full = _kind(trees[0], path)
            if all(value == values[0] for value in values) and (kind is Kind.COUNT or values[0] == full):
                continue
            rule = self._rule(values, dims, config, kind, full)
            if rule is None:
                return None
            rules[path] = rule
        return rules

    def _rule(self, values: Sequence[Leaf], dims: Sequence[Dims], config: Config, kind: Kind, full: float) -> Rule | Ramp | None:
        if isinstance(values[0], list):
            return self._ramp(values, dims, config)
        return find_rule(_samples(values, dims), self.shape_class.free, config, kind, full)

    def _ramp(self, values: Sequence[Leaf], dims: Sequence[Dims], config: Config) -> Ramp | None:
        found = {find_ramp(v, d, self.shape_class.free, config) if isinstance(v, list) else None for v, d in zip(values, dims, strict=True)}
        return found.pop() if len(found) == 1 else None

    def _own(
        self, rules: Mapping[Path, Rule | Ramp], config: Config, trees: Sequence[Tree], dims: Sequence[Dims]
    ) -> Mapping[Path, Rule | Ramp] | None:
        leaves = [dict(leaves_of(tree, ())) for tree in trees]
        own: dict[Path, Rule | Ramp] = {}
        for path, rule in rules.items():
            values = [found[path] for found in leaves]
            kind, full = _kind(trees[0], path)
            ours = self._ramp(values, dims, config) if isinstance(rule, Ramp) else refit(rule, _samples(values, dims), config, kind, full)
            if ours is None or (path[1] == "grid" and ours != rule):
                return None
            own[path] = ours
        for path in leaves[0].keys() - rules.keys():
            kind, full = _kind(trees[0], path)
            if any(found[path] != (leaves[0][path] if kind is Kind.COUNT else full) for found in leaves):
                return None
        return own


def lists_tiles(kernels: Sequence[KernelProfile]) -> bool:
    """Whether the tiles that blocks touch are listed one by one, or follow the order of launch over several turns: such
    lists are of one shape, and say nothing of another."""
    accesses = [a for kernel in kernels for role in kernel.roles for phase in role.phases for a in phase.work.accesses]
    return any(a.tile_ids or a.turns > 1 or any(axis == LAUNCH_AXIS for axis, _, _ in a.tile_digits) for a in accesses)


def _samples(values: Sequence[Leaf], dims: Sequence[Dims]) -> list[Sample]:
    return [Sample(d, v) for d, v in zip(dims, values, strict=True) if not isinstance(v, list)]


def _kind(tree: Tree, path: Path) -> tuple[Kind, float]:
    """What the number at `path` is. Of what a bulk copy moves, the reader books the share that lies inside the tensor:
    then its value where all of it does."""
    field_name = path[-1]
    if "accesses" not in path or field_name not in ("bytes", "transactions", "footprint_bytes", "least_inside"):
        return Kind.COUNT, 1.0
    access = part_at(tree, path[:-1])
    if access["mechanism"] != "tma" or access["space"] != "global":
        return Kind.COUNT, 1.0
    if field_name == "least_inside":
        return Kind.LEAST, 1.0
    full = float(access["instructions"] * access.get("box_bytes", 0.0))
    repeats = round(access["bytes"] / access["footprint_bytes"], 6) if access.get("footprint_bytes") else 1.0
    return Kind.SHARE, {"bytes": full, "transactions": full / 32, "footprint_bytes": full / repeats}[str(field_name)]


def _plain_rule(rule: Rule | Ramp) -> list[Any]:
    if isinstance(rule, Rule):
        return ["rule", [[t.measure.value, t.dim, t.tile, t.boxes] for t in rule.terms], rule.factor, rule.offset]
    return ["ramp", rule.dim, rule.step, rule.width, rule.backwards, rule.offset]


def _read_rule(parts: list[Any]) -> Rule | Ramp:
    if parts[0] == "rule":
        terms = tuple(Term(Measure(measure), dim, tile, boxes) for measure, dim, tile, boxes in parts[1])
        return Rule(terms, float(parts[2]), float(parts[3]))
    return Ramp(parts[1], parts[2], parts[3], parts[4], parts[5])
