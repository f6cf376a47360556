"""Shared lowering: rasterization variants (configs that differ only in the order of blocks) are lowered once.

A template's `reordered(config)` names the base of a variant and its rasterization. Only the base is lowered;
the outcome of each variant is derived from the outcome of its base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ..bounded_dict import BoundedDict
from ..errors import Failure
from ..problem.candidate import Candidate
from ..problem.rasterization import Rasterization
from ..problem.space import Config
from ..problem.template import KernelTemplate
from .tasks import Answer, Profiled

CAPACITY = 20_000  # lowered bases in memory


def with_rasterization(base: Profiled, rasterization: Rasterization) -> Profiled:
    """`base` with its blocks in another order.

    The fingerprint follows from the base's and the rasterization.
    """
    code = f"{base.fingerprint}|{rasterization.order}|{rasterization.factor}"
    kernels = tuple(
        replace(kernel, rasterization=replace(rasterization, depth=kernel.rasterization.depth))
        for kernel in base.kernels
    )
    return Profiled(kernels, hashlib.sha256(code.encode()).hexdigest()[:16], base.seconds)


def rasterized(outcome: Profiled | Failure, rasterization: Rasterization | None) -> Profiled | Failure:
    """The outcome of a variant, given that of its base. None: the base itself."""
    if rasterization is None or isinstance(outcome, Failure):
        return outcome
    return with_rasterization(outcome, rasterization)


class RasterizationGroups:
    """The legal configs of a space in groups that share a lowering; the first of each group is lowered."""

    def __init__(self, template: KernelTemplate, configs: Iterable[Config]) -> None:
        bases: dict[Config, tuple[Config, Rasterization | None]] = {}
        for config in configs:
            bases[config] = template.reordered(config) or (config, None)
        self._rasterizations = {config: rasterization for config, (_, rasterization) in bases.items()}
        # if the base is not legal, each of its variants is lowered by itself
        self._first = {config: base if base in bases else config for config, (base, _) in bases.items()}
        self._members: dict[Config, list[Config]] = {}
        for config, first in self._first.items():
            self._members.setdefault(first, []).append(config)

    @property
    def firsts(self) -> list[Config]:
        """The first config of each group, in the order of the space."""
        return list(self._members)

    def first(self, config: Config) -> Config:
        """The first config of the group of `config`."""
        return self._first[config]

    def members(self, config: Config) -> list[Config]:
        """All configs of the group of `config`, itself included."""
        return self._members[self._first[config]]

    def spread(self, config: Config, outcome: Profiled | Failure) -> list[tuple[Config, Profiled | Failure]]:
        """The outcomes of all members, given that of the lowered config; `config` comes first."""
        if self._first[config] != config:
            return [(config, outcome)]
        return [
            (member, rasterized(outcome, None if member == config else self._rasterizations[member]))
            for member in self._members[config]
        ]


class SharedLowering:
    """Lowers each base once over all calls, whichever of its variants are requested."""

    def __init__(self) -> None:
        self._bases: BoundedDict[str, Profiled] = BoundedDict(CAPACITY)  # by candidate key

    def lower(
        self, candidates: Iterable[Candidate], run: Callable[[Iterable[Candidate]], Iterator[Answer]]
    ) -> Iterator[Answer]:
        """Yield the outcome of each of `candidates`.

        Args:
            candidates: Drawn one by one, as `run` has room for them.
            run: Lowers the bases, for example `lower_all` with an executor.
        """
        waiting: dict[str, list[tuple[Candidate, Rasterization | None]]] = {}
        ready: list[Answer] = []

        def bases() -> Iterator[Candidate]:
            for candidate in candidates:
                if not _may_have_variants(candidate):
                    yield candidate
                    continue
                found = candidate.template.reordered(candidate.config)
                base = candidate if found is None else replace(candidate, config=found[0])
                rasterization = None if found is None else found[1]
                known = self._bases.get(base.key)
                if known is not None:
                    ready.append((candidate, rasterized(known, rasterization)))
                elif base.key in waiting:
                    waiting[base.key].append((candidate, rasterization))
                else:
                    waiting[base.key] = [(candidate, rasterization)]
                    yield base

        for base, outcome in run(bases()):
            if not _may_have_variants(base):
                yield base, outcome
                continue
            if isinstance(outcome, Profiled):
                self._bases[base.key] = outcome
            for candidate, rasterization in waiting.pop(base.key):
                yield candidate, rasterized(outcome, rasterization)
            while ready:
                yield ready.pop()
        while ready:
            yield ready.pop()


def _may_have_variants(candidate: Candidate) -> bool:
    return type(candidate.template).reordered is not KernelTemplate.reordered
