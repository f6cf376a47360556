"""What is learned of the structures of one shape class: how the numbers of profiles follow the dimensions.

One config of a structure is lowered at two probes of the class beside the workload that was asked for, which shows how
each number follows the dimensions. Configs of the same structure follow the same rules: where they were lowered for their
own sake is enough to place and check them, at a second workload where a number is sampled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from .families import ProfileFamily, Refusal, Rules, Seen
from .profile import LAUNCH_AXIS, KernelProfile
from .profile_tree import Leaf, Path, Tree, leaves_of, part_at, structure_of, tree_of
from .scaling import Dims, Kind, Ramp, Rule, Sample, find_ramp, find_rule, refit
from .shape_class import ShapeClass
from .space import Config

PROBES = 2  # at which a config is lowered for a lesson, beside the workload that was asked for


@dataclass(frozen=True)
class Lesson:
    """How the numbers of one structure follow the dimensions. None: not by any known rule."""

    rules: Rules | None

    @property
    def samples(self) -> int:
        """Workloads at which another config of this structure must have been lowered."""
        return 2 if any(isinstance(rule, Rule) and rule.is_line for rule in (self.rules or {}).values()) else 1


@dataclass
class Lessons:
    """What is known of the structures of one class. Values in, values out: who lowers, and keeps, is not its business."""

    shape_class: ShapeClass
    known: dict[str, Lesson] = field(default_factory=dict)  # by structure

    def recall(self, families: Iterable[ProfileFamily]) -> None:
        """Take over what kept families show of earlier lessons."""
        for family in families:
            if family.rules is not None:
                self.known.setdefault(family.structure, Lesson(family.rules))
            elif family.refusal is Refusal.STRUCTURE:
                self.known.setdefault(family.structure, Lesson(None))

    @property
    def samples(self) -> int:
        """Workloads at which a config must have been lowered, as far as the lessons tell: those of one class are alike."""
        return max((lesson.samples for lesson in self.known.values()), default=1)

    def begin(self, config: Config, dims: Dims, fingerprint: str, kernels: Sequence[KernelProfile]) -> ProfileFamily:
        """The family of a config that was lowered at `dims`."""
        tree = tree_of(kernels)
        refusal = Refusal.CONFIG if lists_tiles(kernels) else None
        seen = Seen(dict(dims), fingerprint, tree)
        return ProfileFamily(config, self._structure(config, tree), (seen,), None, refusal, self.shape_class.open)

    def place(self, family: ProfileFamily) -> ProfileFamily:
        """`family` with its rules, where its structure's are known and it was lowered often enough to check them."""
        lesson = self.known.get(family.structure)
        if lesson is None or family.rules is not None or family.refusal is not None:
            return family
        if lesson.rules is None:
            return replace(family, refusal=Refusal.STRUCTURE)
        if len(family.seen) < lesson.samples:
            return family
        own = self._own(lesson.rules, family.config, [s.tree for s in family.seen], [s.dims for s in family.seen])
        if own is None:
            return replace(family, refusal=Refusal.CONFIG)
        return replace(family, seen=family.seen[:1], rules=own)

    def learn(self, family: ProfileFamily, probed: Sequence[Sequence[KernelProfile]]) -> ProfileFamily:
        """Learn the structure of `family` from its kernels at the first probes of the class, and place it. Fewer probes
        than `PROBES`, where lowering failed there, teach that it cannot be learned."""
        trees = [family.seen[0].tree, *map(tree_of, probed)]
        dims = [family.seen[0].dims, *(self.shape_class.probe(number).dims for number in range(len(probed)))]
        alike = len(probed) >= PROBES and all(structure_of(tree) == structure_of(trees[0]) for tree in trees)
        rules = self._learned(family.config, trees, dims) if alike and not any(map(lists_tiles, probed)) else None
        self.known[family.structure] = Lesson(rules)
        if rules is None:
            return replace(family, refusal=Refusal.STRUCTURE)
        return replace(family, seen=family.seen[:1], rules=rules)

    def _structure(self, config: Config, tree: Tree) -> str:
        """Equal for configs whose profiles differ in numbers alone, and that cut the same dimensions without a rest."""
        cuts = []
        for dim, scale in self.shape_class.free.items():
            tiles = [config.int(tile) for tile in scale.tiles]
            order = [tiles.index(tile) for tile in tiles]  # tiles of one size cannot be told apart
            cuts.append(f"{dim}:{[self.shape_class.divisors[dim] % tile == 0 for tile in tiles]}{order}")
        whole = ";".join([*cuts, json.dumps(structure_of(tree), separators=(",", ":"))])
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def _learned(self, config: Config, trees: Sequence[Tree], dims: Sequence[Dims]) -> Rules | None:
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

    def _own(self, rules: Rules, config: Config, trees: Sequence[Tree], dims: Sequence[Dims]) -> Rules | None:
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
