"""Supply: which kernel serves a shape, decided once, and its library, found or built as the dispatcher's owner asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TypeVar

from ..candidate import Candidate
from ..errors import DatabaseError, Failure, InputError, NoCandidateError, UnknownNameError
from ..trial import BuildResult
from ..twins import SharedLowering
from ..work import lower_all
from ..workload import Workload
from .builds import BuiltIndex, build_all, name_of
from .choice import Choice, Source
from .improve import Grounds, explored
from .problem import Key, Problem
from .selector import Selector
from .workshop import Tools, Workshop

MOST_SHAPES = 8192  # decided shapes in memory; the older half goes when there are more
MOST_OPEN = 256  # kernels with open dimensions that may stand in for others
K = TypeVar("K")
V = TypeVar("V")


class OnMiss(StrEnum):
    """What a call does where the kernel of its shape is not built.

    wait    it waits until that is built
    serve   one that is built serves meanwhile, where there is one; the other is built in the background
    refuse  it raises `InputError`
    """

    WAIT = "wait"
    SERVE = "serve"
    REFUSE = "refuse"


def on_miss_of(name: str) -> OnMiss:
    if name not in list(OnMiss):
        raise UnknownNameError("on_miss", name, [o.value for o in OnMiss])
    return OnMiss(name)


@dataclass(frozen=True)
class Served:
    """What serves one shape. `wanted` is what was chosen, where another one stands in until that is built."""

    choice: Choice
    built: BuildResult
    wanted: Choice | None = None


class Supply:
    def __init__(
        self,
        problem: Problem,
        selector: Selector,
        index: BuiltIndex,
        workshop: Workshop,
        grounds: Grounds,
        on_miss: OnMiss,
        explores: bool,
    ) -> None:
        self.problem, self.selector, self.index, self.workshop, self.on_miss = problem, selector, index, workshop, on_miss
        self._grounds, self._explores = grounds, explores
        self._choices: dict[Key, Choice] = {}
        self._open: dict[str, Candidate] = {}  # built, with open dimensions

    # ---- deciding

    def choice(self, key: Key) -> Choice:
        """What is to serve a shape. Raises `NoCandidateError` where nothing is legal, `WorkloadError` for a shape that the
        operator refuses."""
        found = self._choices.get(key)
        return found if found is not None else self._decide(key)

    def replace(self, key: Key, choice: Choice) -> None:
        keep(self._choices, key, choice, MOST_SHAPES)

    def forget(self) -> None:
        """Decide everything anew."""
        self._choices.clear()

    def _decide(self, key: Key) -> Choice:
        workload = self.problem.workload(key)
        found = next(self.selector.choices(workload), None)
        if self._explores and (found is None or (found.source is not Source.TABLE and not found.expected_us)):
            with suppress(NoCandidateError, DatabaseError):
                found = self.workshop.submit(lambda tools: self._explore(tools, workload)).result() or found
        if found is None:
            raise NoCandidateError(
                f"no config of {self.problem.template.name} is legal for {workload.label} on {self.problem.target.name}; "
                f"`tilesight space {self.problem.operator.name}` shows the rules"
            )
        self.replace(key, found)
        return found

    def _explore(self, tools: Tools, workload: Workload) -> Choice | None:
        """The first choice once what the model lacks was lowered: the neighbours' winners, or else the space."""
        lacking = self.selector.unpredicted(workload)
        if lacking:
            candidates = [self.problem.candidate(shape, config, ()) for config, shape in lacking]
            for candidate, outcome in SharedLowering().lower(candidates, partial(lower_all, tools.executor)):
                us = math.inf if isinstance(outcome, Failure) else self.selector.forecaster.time_of(outcome.kernels)
                self.selector.forecaster.teach(candidate.config, candidate.workload, us)
        first = next(self.selector.choices(workload), None)
        if first is not None and first.expected_us:
            return first
        ranked = explored(tools, self.problem, self._grounds, workload)
        if not ranked:
            return None
        config, us = ranked[0]
        reason = f"the model's first choice for this shape: it expects {us:.4g} us"
        return Choice(workload, config, Source.MODEL, reason, us, False, self.problem.open)

    # ---- libraries

    def options(self, workload: Workload) -> Iterator[Choice]:
        """What may serve, the decided choice first."""
        first = self.choice(self.problem.key_of(workload.dims))
        yield first
        for other in self.selector.choices(workload):
            if (other.config, other.open) != (first.config, first.open):
                yield other

    def candidate(self, choice: Choice) -> Candidate:
        return self.problem.candidate(choice.workload, choice.config, choice.open)

    def provide(self, workload: Workload) -> Served:
        """What serves `workload` from now on, built. Raises `InputError` where it is not built and calls do not wait,
        `NoCandidateError` where no choice builds, `ToolchainError` where nothing can be built here."""
        faults: list[str] = []
        for choice in self.options(workload):
            built = self.index.find(self.candidate(choice))
            if built is None:
                stand_in = self.stand_in(workload) if self.on_miss is OnMiss.SERVE else None
                if stand_in is not None:
                    return replace(stand_in, wanted=choice)
                if self.on_miss is OnMiss.REFUSE:
                    raise self._unbuilt(choice)
                [built] = self.build([choice])
            if built.failure is None:
                return self.served(choice, built, faults)
            faults.append(f"{choice.config} ({choice.source}) does not build: {built.failure.kind}: {built.failure.message}")
        raise NoCandidateError(f"no kernel for {workload.label} could be built: {'; '.join(faults)}")

    def served(self, choice: Choice, built: BuildResult, faults: Sequence[str] = ()) -> Served:
        """That it serves now; one with open dimensions may stand in for others. `faults`: of choices that went before it."""
        if choice.open:
            candidate = self.candidate(choice)
            keep(self._open, name_of(candidate), candidate, MOST_OPEN)
        if faults:
            choice = replace(choice, reason=f"{choice.reason}; {'; '.join(faults)}")
            self.replace(self.problem.key_of(choice.workload.dims), choice)
        return Served(choice, built)

    def build(self, choices: Sequence[Choice]) -> list[BuildResult]:
        """Their libraries; the workshop's workers build what is missing, and this waits for them."""
        candidates = [self.candidate(choice) for choice in choices]
        found = [self.index.find(candidate) for candidate in candidates]
        if None not in found:
            return [built for built in found if built is not None]
        return self.workshop.submit(lambda tools: build_all(tools.executor, self.index, candidates)).result()

    def stand_in(self, workload: Workload, usable: Callable[[BuildResult], bool] = bool) -> Served | None:
        """The best that is built already and legal for `workload`: a choice of its own, else a kernel with open dimensions.
        Nothing is lowered to find it."""
        decided = self._choices.get(self.problem.key_of(workload.dims))
        for choice in [*([decided] if decided is not None else []), *self.selector.choices(workload)]:
            built = self.index.find(self.candidate(choice))
            if built is not None and usable(built):
                return Served(choice, built)
        space = self.problem.space(workload)
        for candidate in reversed(list(self._open.values())):
            built = self.index.find(candidate)
            if built is not None and usable(built) and self.selector.is_legal(candidate.config, candidate.open, space):
                reason = f"it is built, and takes any {', '.join(candidate.open)}: it stands in for what was chosen"
                return Served(Choice(workload, candidate.config, Source.DEFAULT, reason, None, False, candidate.open), built)
        return None

    def _unbuilt(self, choice: Choice) -> InputError:
        sizes = ", ".join(f"{name}={choice.workload.dims[name]}" for name in self.problem.free)
        return InputError(
            f"{self.problem.operator.name}: the kernel for {sizes or 'this workload'} ({choice.config}) is not built, and with "
            f"on_miss='refuse' no call builds one; build it ahead: prepare({self.problem.lists(choice.workload)})"
        )


def keep(table: dict[K, V], key: K, value: V, most: int) -> None:
    """Add to `table`; the older half goes where it would hold more than `most`."""
    if len(table) >= most and key not in table:
        for old in list(table)[: most // 2]:
            table.pop(old, None)
    table[key] = value
