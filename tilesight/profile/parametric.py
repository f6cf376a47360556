"""Parametric profiles: the profiles of one config for all workloads of a shape class.

A parametric profile begins with the workload at which its config was lowered. Once the scaling laws of its
structure are known (`inference.py`), it also gives the profiles of the other workloads of the class.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ..problem.space import Config
from .block_laws import Law, TripRamp, TurnLaw, Turns
from .scaling_laws import Dims, Measure, ScalingLaw, Term
from .tree import Leaf, Path, Tree, changed, maker, part_at
from .values import KernelProfile

MAX_SAMPLES = 3  # workloads that a parametric profile without laws remembers
MIN_TRIPS = 2  # a loop of one iteration is not a loop in the IR
MIN_PLAIN_TRIPS = (
    17  # shorter loops of plain loads and stores are read as unrolled, as the device compiler does
)
WHOLE_TOLERANCE = 1e-6

# exceptions that reading the text of a damaged or forged profile, or making its kernels, may raise
DECODE_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError, ArithmeticError)

Laws = Mapping[Path, Law]


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """Everything that the validity of a parametric profile depends on, apart from its config."""

    template: str
    template_version: str
    arch: str  # with the other figures of the target that lowering reads
    shape_class: str
    reader: str  # version of the code between a template and its profiles

    @property
    def digest(self) -> str:
        """16 hex digits over all fields."""
        parts = [self.template, self.template_version, self.arch, self.shape_class, self.reader]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class Refusal(StrEnum):
    """Why a parametric profile has no laws and will get none."""

    CONFIG = "config"  # the numbers of this config contradict the laws of its structure
    STRUCTURE = "structure"  # no laws explain the numbers of its structure


@dataclass(frozen=True)
class ProfileSample:
    """The kernels of one config as lowered at one workload, in JSON types."""

    dims: Dims
    fingerprint: str  # of the code at these dimensions
    tree: Tree


@dataclass(frozen=True)
class ParametricProfile:
    """The kernels of one config as functions of the dimensions.

    Attributes:
        config: the lowered config.
        structure: equal for configs that have the same laws.
        samples: the workloads at which the config was lowered, latest last, all of one structure.
        laws: the numbers of the first sample that follow the dimensions; None while the laws are unknown.
        refusal: why there are no laws and will be none.
        dynamic: dimensions that the kernels take at run time. Their IR is the same for all values.
    """

    config: Config
    structure: str
    samples: tuple[ProfileSample, ...]
    laws: Laws | None = None
    refusal: Refusal | None = None
    dynamic: tuple[str, ...] = ()

    def kernels(self, dims: Dims) -> tuple[KernelProfile, ...] | None:
        """The profiles at `dims`.

        None if they are unknown, or if the config has another IR there: loops that are too short, grid axes
        of one.
        """
        for sample in self.samples:
            if sample.dims == dims:
                return _kernels_of(sample.tree)
        if self.laws is None:
            return None
        changes: dict[Path, Leaf] = {}
        for path, law in self.laws.items():
            value = law.value(dims, self.config)
            if not self._keeps_structure(path, law, value, dims):
                return None
            # a line that is followed far beyond its samples may fall below 0
            changes[path] = value if isinstance(value, list) else max(0.0, value)
        return _kernels_of(changed(self.samples[0].tree, changes, ()))

    def fingerprint(self, dims: Dims) -> str:
        """Fingerprint of the code at `dims`.

        Configs with equal code at the first sample have equal code elsewhere.
        """
        fixed = {dim: size for dim, size in dims.items() if dim not in self.dynamic}
        first = self.samples[0]
        if self.dynamic and fixed == {
            dim: size for dim, size in first.dims.items() if dim not in self.dynamic
        }:
            return first.fingerprint
        for sample in self.samples:
            if sample.dims == dims:
                return sample.fingerprint
        return hashlib.sha256(f"{first.fingerprint}|{sorted(fixed.items())}".encode()).hexdigest()[:16]

    def with_samples_of(self, other: ParametricProfile) -> ParametricProfile:
        """This profile with the samples of `other`, a later lowering of the same config.

        A profile with laws stays as it is. A profile of another structure takes the place of this one.
        """
        if self.laws is not None:
            return self
        if other.structure != self.structure:
            return other
        new = [sample.dims for sample in other.samples]
        kept = (sample for sample in self.samples if sample.dims not in new)
        return replace(self, samples=(*kept, *other.samples)[-MAX_SAMPLES:])

    def _keeps_structure(self, path: Path, law: Law, value: Leaf, dims: Dims) -> bool:
        # blocks along an axis and the digits by which they share tiles must be whole numbers
        if path[1] == "grid" or "tile_digits" in path:
            is_divisor = path[1] != "grid" and path[-1] == 1
            least = 1 if is_divisor or self._is_dynamic(law) else 2
            return not isinstance(value, list) and _is_whole(value) and round(value) >= least
        if "trips" in path:
            if isinstance(law, TurnLaw) and law.turns.tiles.dims & set(self.dynamic):
                # the loop over turns stays whatever their number, and the loop within a turn matters
                one_turn = law.per_turn
                if not one_turn.terms:
                    return True
                law, value = one_turn, one_turn.value(dims, self.config)
            phase = part_at(self.samples[0].tree, path[: path.index("trips")])
            accesses = phase["work"].get("accesses", ())
            # Shorter static loops use only some of their buffers, and their pipelines fold into straight
            # code.
            needed = max([MIN_TRIPS, phase.get("pipeline_depth", 1), *(a.get("slots", 1) for a in accesses)])
            if self._is_dynamic(law):
                needed = 1
            if not phase["work"].get("matrix") and all(a["mechanism"] in ("ld", "st") for a in accesses):
                needed = max(needed, MIN_PLAIN_TRIPS)
            return bool(max(value if isinstance(value, list) else [value]) >= needed)
        return True

    def _is_dynamic(self, law: Law) -> bool:
        """Whether the law depends on dynamic dimensions only. The IR is then the same at all sizes."""
        return bool(self.dynamic) and law.dims <= set(self.dynamic)

    def text(self) -> str:
        """One line of JSON, which `parametric_profile_of` reads."""
        laws = (
            None if self.laws is None else [[list(path), _plain_law(law)] for path, law in self.laws.items()]
        )
        parts: dict[str, Any] = {
            "config": dict(self.config),
            "structure": self.structure,
            "seen": [[dict(s.dims), s.fingerprint, s.tree] for s in self.samples],
            "rules": laws,
            "refusal": self.refusal,
        }
        if self.dynamic:
            parts["dynamic"] = list(self.dynamic)
        return json.dumps(parts, separators=(",", ":"), allow_nan=False)


def parametric_profile_of(text: str) -> ParametricProfile:
    """Read the text of a parametric profile. Raises one of `DECODE_ERRORS` if it is damaged."""
    parts = json.loads(text)
    laws = (
        parts["rules"]
        if parts["rules"] is None
        else {tuple(path): _read_law(law) for path, law in parts["rules"]}
    )
    refusal = parts["refusal"] if parts["refusal"] is None else Refusal(parts["refusal"])
    samples = tuple(ProfileSample(dims, fingerprint, tree) for dims, fingerprint, tree in parts["seen"])
    if not samples:
        raise ValueError("a parametric profile needs at least one sample")
    dynamic = tuple(parts.get("dynamic", ()))
    return ParametricProfile(Config(parts["config"]), parts["structure"], samples, laws, refusal, dynamic)


def _is_whole(value: Leaf) -> bool:
    return not isinstance(value, list) and abs(value - round(value)) < WHOLE_TOLERANCE


def _kernels_of(tree: Tree) -> tuple[KernelProfile, ...]:
    return tuple(maker(KernelProfile)(kernel) for kernel in tree)


def _plain_law(law: Law) -> list[Any]:
    if isinstance(law, ScalingLaw):
        return ["rule", [_plain_term(term) for term in law.terms], law.factor, law.offset]
    if isinstance(law, TurnLaw):
        tiles, per_turn = _plain_law(law.turns.tiles), _plain_law(law.per_turn)
        return ["turns", tiles, law.turns.blocks, law.turns.together, per_turn, law.by_block]
    return ["ramp", law.dim, law.step, law.width, law.backwards, law.offset]


def _plain_term(term: Term) -> list[Any]:
    plain = [term.measure.value, term.dim, term.tile, term.boxes]
    return [*plain, term.divided_by] if term.divided_by else plain


def _read_law(parts: list[Any]) -> Law:
    if parts[0] == "rule":
        return _read_scaling_law(parts)
    if parts[0] == "turns":
        turns = Turns(_read_scaling_law(parts[1]), int(parts[2]), int(parts[3]))
        return TurnLaw(turns, _read_scaling_law(parts[4]), bool(parts[5]))
    return TripRamp(parts[1], parts[2], parts[3], parts[4], parts[5])


def _read_scaling_law(parts: list[Any]) -> ScalingLaw:
    terms = tuple(Term(Measure(measure), *others) for measure, *others in parts[1])
    return ScalingLaw(terms, float(parts[2]), float(parts[3]))
