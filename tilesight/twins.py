"""Twins: configs that reorder the blocks of another one. They share its lowering."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from .candidate import Candidate
from .errors import Failure
from .jobs import Profiled
from .profile import Rasterization
from .space import Config
from .template import KernelTemplate

MOST_KEPT = 20_000  # lowered bases that are remembered

Answer = tuple[Candidate, Profiled | Failure]


def twin(base: Profiled, order: Rasterization) -> Profiled:
    """`base` with its blocks in another order. Its code differs from the base's, and by nothing but that order."""
    code = f"{base.fingerprint}|{order.order}|{order.factor}"
    kernels = tuple(replace(kernel, rasterization=order) for kernel in base.kernels)
    return Profiled(kernels, hashlib.sha256(code.encode()).hexdigest()[:16], base.seconds)


class Groups:
    """The legal configs of a space by what is lowered for them: one of each group, its first, stands for all."""

    def __init__(self, template: KernelTemplate, configs: Iterable[Config]) -> None:
        bases: dict[Config, tuple[Config, Rasterization | None]] = {}
        for config in configs:
            bases[config] = template.reordered(config) or (config, None)
        self._orders = {config: order for config, (_, order) in bases.items()}
        # a base that is not legal itself stands for no one: each of its twins is lowered by its own name
        self._first = {config: base if base in bases else config for config, (base, _) in bases.items()}
        self._members: dict[Config, list[Config]] = {}
        for config, first in self._first.items():
            self._members.setdefault(first, []).append(config)

    @property
    def firsts(self) -> list[Config]:
        """One config of each group, in the order of the space."""
        return list(self._members)

    def first(self, config: Config) -> Config:
        """The config that stands for the group of `config`."""
        return self._first[config]

    def members(self, config: Config) -> list[Config]:
        """All configs of the group of `config`, itself included."""
        return self._members[self._first[config]]

    def spread(self, config: Config, outcome: Profiled | Failure) -> list[tuple[Config, Profiled | Failure]]:
        """What the lowering of `config` says of its whole group, `config` first."""
        if self._first[config] != config:
            return [(config, outcome)]
        return [(member, ordered(outcome, None if member == config else self._orders[member])) for member in self._members[config]]


class SharedLowering:
    """Lowers each base once, whichever of its twins are asked for, over all calls."""

    def __init__(self) -> None:
        self._bases: dict[str, Profiled] = {}  # by candidate key

    def lower(self, candidates: Iterable[Candidate], run: Callable[[Iterable[Candidate]], Iterator[Answer]]) -> Iterator[Answer]:
        """Outcomes of `candidates`, where `run` lowers the bases. Candidates are pulled as `run` has room for them."""
        waiting: dict[str, list[tuple[Candidate, Rasterization | None]]] = {}
        ready: list[Answer] = []

        def bases() -> Iterator[Candidate]:
            for candidate in candidates:
                if _has_no_twins(candidate):
                    yield candidate
                    continue
                found = candidate.template.reordered(candidate.config)
                base = candidate if found is None else replace(candidate, config=found[0])
                order = None if found is None else found[1]
                known = self._bases.get(base.key)
                if known is not None:
                    ready.append((candidate, ordered(known, order)))
                elif base.key in waiting:
                    waiting[base.key].append((candidate, order))
                else:
                    waiting[base.key] = [(candidate, order)]
                    yield base

        for base, outcome in run(bases()):
            if _has_no_twins(base):
                yield base, outcome
                continue
            if isinstance(outcome, Profiled):
                if len(self._bases) >= MOST_KEPT:
                    self._bases.clear()
                self._bases[base.key] = outcome
            for candidate, order in waiting.pop(base.key):
                yield candidate, ordered(outcome, order)
            while ready:
                yield ready.pop()
        while ready:
            yield ready.pop()


def _has_no_twins(candidate: Candidate) -> bool:
    return type(candidate.template).reordered is KernelTemplate.reordered


def ordered(outcome: Profiled | Failure, order: Rasterization | None) -> Profiled | Failure:
    """The outcome of a config that has that order of blocks; None: its base's own."""
    return outcome if order is None or isinstance(outcome, Failure) else twin(outcome, order)
