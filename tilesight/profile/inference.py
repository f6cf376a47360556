"""Infers the scaling laws of profile structures from lowerings at a few workloads of a shape class.

One config of a structure is lowered at two probe workloads beside the workload in question. The three
lowerings show how each number follows the dimensions. All configs of a structure have the same laws, so the
lowerings that tuning needs anyway are enough to fit and check the laws of the other configs: one workload
each, or two if a number is sampled.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..problem.space import Config
from .block_laws import Law, TripRamp, TurnLaw, Turns, find_ramp, find_turns, tile_counts
from .parametric import Laws, ParametricProfile, ProfileSample, Refusal
from .scaling_laws import Dims, NumberKind, ScalingLaw, ValueSample, find_law, refit
from .shape_class import ShapeClass
from .tree import Leaf, Path, Tree, leaves_of, part_at, structure_of, tree_of
from .values import LAUNCH_AXIS, Access, KernelProfile

PROBES = 2  # probe workloads at which a config is lowered to infer the laws of its structure


@dataclass(frozen=True)
class StructureLaws:
    """How the numbers of one structure follow the dimensions.

    `laws` is None if no known laws explain them.
    """

    laws: Laws | None

    @property
    def samples_needed(self) -> int:
        """Number of workloads at which another config of this structure must be lowered to fit its laws."""
        laws = (self.laws or {}).values()
        return 2 if any(isinstance(law, ScalingLaw) and law.is_line for law in laws) else 1


@dataclass
class LawInference:
    """The laws of the structures of one shape class.

    It works on values: callers lower kernels and store results.
    """

    shape_class: ShapeClass
    structures: dict[str, StructureLaws] = field(default_factory=dict)

    def load(self, profiles: Iterable[ParametricProfile]) -> None:
        """Take over the laws that cached profiles contain."""
        for profile in profiles:
            if profile.laws is not None:
                self.structures.setdefault(profile.structure, StructureLaws(profile.laws))
            elif profile.refusal is Refusal.STRUCTURE:
                self.structures.setdefault(profile.structure, StructureLaws(None))

    @property
    def samples_needed(self) -> int:
        """Number of workloads at which a config must be lowered, as far as the known structures tell."""
        return max((known.samples_needed for known in self.structures.values()), default=1)

    def first_profile(
        self, config: Config, dims: Dims, fingerprint: str, kernels: Sequence[KernelProfile]
    ) -> ParametricProfile:
        """The parametric profile of a config after its lowering at `dims`, without laws."""
        tree = tree_of(kernels)
        refusal = Refusal.CONFIG if lists_tiles(kernels) else None
        sample = ProfileSample(dict(dims), fingerprint, tree)
        structure = self._structure(config, tree)
        return ParametricProfile(config, structure, (sample,), None, refusal, self.shape_class.dynamic)

    def apply_laws(self, profile: ParametricProfile) -> ParametricProfile:
        """Return `profile` with its laws, if those of its structure are known and it has enough samples."""
        known = self.structures.get(profile.structure)
        if known is None or profile.laws is not None or profile.refusal is not None:
            return profile
        if known.laws is None:
            return replace(profile, refusal=Refusal.STRUCTURE)
        if len(profile.samples) < known.samples_needed:
            return profile
        trees, dims = [s.tree for s in profile.samples], [s.dims for s in profile.samples]
        laws = self._refit_laws(known.laws, profile.config, trees, dims)
        if laws is None:
            return replace(profile, refusal=Refusal.CONFIG)
        return replace(profile, samples=profile.samples[:1], laws=laws)

    def infer_laws(
        self, profile: ParametricProfile, probed: Sequence[Sequence[KernelProfile]]
    ) -> ParametricProfile:
        """Infer the laws of the structure of `profile` and return the profile with them.

        Args:
            profile: a profile without laws.
            probed: the kernels of its config at the first probes of the class, in order. If lowering failed
                at a probe there are fewer than `PROBES`, and the structure is refused.
        """
        first = profile.samples[0]
        trees = [first.tree, *map(tree_of, probed)]
        dims = [first.dims, *(self.shape_class.probe(number).dims for number in range(len(probed)))]
        alike = len(probed) >= PROBES and all(structure_of(tree) == structure_of(trees[0]) for tree in trees)
        inferable = alike and not any(map(lists_tiles, probed))
        laws = self._find_laws(profile.config, trees, dims) if inferable else None
        self.structures[profile.structure] = StructureLaws(laws)
        if laws is None:
            return replace(profile, refusal=Refusal.STRUCTURE)
        return replace(profile, samples=profile.samples[:1], laws=laws)

    def _structure(self, config: Config, tree: Tree) -> str:
        """Equal for configs whose profiles differ in numbers only and whose tiles divide the same dims."""
        cuts = []
        for dim, scale in self.shape_class.free.items():
            tiles = [config.int(tile) for tile in scale.tiles]
            order = [tiles.index(tile) for tile in tiles]  # tiles of equal size cannot be told apart
            cuts.append(f"{dim}:{[self.shape_class.divisors[dim] % tile == 0 for tile in tiles]}{order}")
        whole = ";".join([*cuts, json.dumps(structure_of(tree), separators=(",", ":"))])
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def _find_laws(self, config: Config, trees: Sequence[Tree], dims: Sequence[Dims]) -> Laws | None:
        leaves = [dict(leaves_of(tree, ())) for tree in trees]
        turn_laws = self._find_turn_laws(config, trees[0], leaves, dims)
        if turn_laws is None:
            return None
        laws: dict[Path, Law] = {**turn_laws}
        for path in (path for path in leaves[0] if path not in turn_laws):
            values = [found[path] for found in leaves]
            kind, full = _number_kind(trees[0], path)
            if all(value == values[0] for value in values) and (not kind.is_share or values[0] == full):
                continue
            law = self._find_law(values, dims, config, kind, full)
            if law is None:
                return None
            laws[path] = law
        return laws

    def _find_turn_laws(
        self, config: Config, tree: Tree, leaves: Sequence[Mapping[Path, Leaf]], dims: Sequence[Dims]
    ) -> Mapping[Path, TurnLaw] | None:
        """The laws of all numbers that follow the turns of blocks that stay; None if one of them has none."""
        found: dict[Path, TurnLaw] = {}
        for number, kernel in enumerate(tree):
            paths = [
                path for path in leaves[0] if path[0] == number and _follows_turns(path, leaves[0][path])
            ]
            if not any(path[-1] == "turns" for path in paths):
                continue
            for tiles in tile_counts(self.shape_class.template.scales, config):
                turns = _turns(tiles, kernel)
                laws = {
                    path: find_turns([of[path] for of in leaves], dims, self.shape_class.free, config, turns)
                    for path in paths
                }
                good = {path: law for path, law in laws.items() if law is not None}
                if len(good) == len(laws):
                    found.update(good)
                    break
            else:
                return None
        return found

    def _find_law(
        self, values: Sequence[Leaf], dims: Sequence[Dims], config: Config, kind: NumberKind, full: float
    ) -> Law | None:
        if isinstance(values[0], list):
            return self._find_ramp(values, dims, config)
        return find_law(_value_samples(values, dims), self.shape_class.free, config, kind, full)

    def _find_ramp(self, values: Sequence[Leaf], dims: Sequence[Dims], config: Config) -> TripRamp | None:
        found = {
            find_ramp(v, d, self.shape_class.free, config) if isinstance(v, list) else None
            for v, d in zip(values, dims, strict=True)
        }
        return found.pop() if len(found) == 1 else None

    def _refit_laws(
        self, laws: Laws, config: Config, trees: Sequence[Tree], dims: Sequence[Dims]
    ) -> Laws | None:
        """The laws of a structure, fitted to the samples of another config.

        None if they contradict a sample.
        """
        leaves = [dict(leaves_of(tree, ())) for tree in trees]
        refitted: dict[Path, Law] = {}
        for path, law in laws.items():
            values = [found[path] for found in leaves]
            kind, full = _number_kind(trees[0], path)
            own: Law | None
            if isinstance(law, TripRamp):
                own = self._find_ramp(values, dims, config)
            elif isinstance(law, TurnLaw):
                turns = _turns(law.turns.tiles, trees[0][path[0]])
                own = find_turns(values, dims, self.shape_class.free, config, turns, law.per_turn)
            else:
                own = refit(law, _value_samples(values, dims), config, kind, full)
            if own is None or (path[1] == "grid" and own != law):
                return None
            refitted[path] = own
        for path in leaves[0].keys() - laws.keys():
            kind, full = _number_kind(trees[0], path)
            expected = full if kind.is_share else leaves[0][path]
            if any(found[path] != expected for found in leaves):
                return None
        return refitted


def lists_tiles(kernels: Sequence[KernelProfile]) -> bool:
    """Whether tiles are listed block by block, or follow the launch order otherwise than one by one.

    Such tiles belong to one shape and cannot be scaled to others.
    """
    return any(
        _lists_tiles(access, math.prod(kernel.grid))
        for kernel in kernels
        for role in kernel.roles
        for phase in role.phases
        for access in phase.work.accesses
    )


def _lists_tiles(access: Access, blocks: int) -> bool:
    if access.tile_ids:
        return True
    one_by_one, one_tile = (((LAUNCH_AXIS, 1, count),) for count in (blocks * access.turns, 1))
    follows = access.turns > 1 or any(axis == LAUNCH_AXIS for axis, _, _ in access.tile_digits)
    return follows and access.tile_digits not in (one_by_one, one_tile)


def _follows_turns(path: Path, value: Leaf) -> bool:
    """Whether the number at `path` follows the turns of blocks, if these take turns."""
    is_modulus = "tile_digits" in path and path[-1] == 2 and value != 1
    return isinstance(value, list) or path[-1] == "turns" or is_modulus


def _turns(tiles: ScalingLaw, kernel: Tree) -> Turns:
    """The turns in which the blocks of `kernel` take that many tiles."""
    return Turns(tiles, math.prod(kernel["grid"]), kernel.get("cluster", 1))


def _value_samples(values: Sequence[Leaf], dims: Sequence[Dims]) -> list[ValueSample]:
    return [ValueSample(d, v) for d, v in zip(dims, values, strict=True) if not isinstance(v, list)]


def _number_kind(tree: Tree, path: Path) -> tuple[NumberKind, float]:
    """The kind of the number at `path`, and for a share its value if nothing hangs over an edge.

    The numbers of a bulk copy count the part that lies inside the tensor, so they are shares of the full
    copy.
    """
    field_name = path[-1]
    if path[1] == "tensors" and field_name == "bytes":
        return NumberKind.SIZE, 1.0
    if "accesses" not in path or field_name not in (
        "bytes",
        "transactions",
        "footprint_bytes",
        "least_inside",
    ):
        return NumberKind.COUNT, 1.0
    access = part_at(tree, path[:-1])
    if access["mechanism"] != "tma" or access["space"] != "global":
        return NumberKind.COUNT, 1.0
    if field_name == "least_inside":
        return NumberKind.LEAST, 1.0
    full = float(access["instructions"] * access.get("box_bytes", 0.0))
    repeats = round(access["bytes"] / access["footprint_bytes"], 6) if access.get("footprint_bytes") else 1.0
    fulls = {"bytes": full, "transactions": full / 32, "footprint_bytes": full / repeats}
    return NumberKind.SHARE, fulls[str(field_name)]
