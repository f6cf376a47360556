"""Selection of a config for a shape: from the most reliable source that has a legal one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import DatabaseError, InputError, NoCandidateError
from ...machine.fork_locks import ForkLock
from ...problem.space import Config, SearchSpace
from ...problem.workload import Workload
from ...records.winners import Winner
from ..on_unknown import OnUnknown
from ..problem import DispatchProblem
from .cached_predictor import CachedPredictor
from .choice import Choice, ChoiceSource
from .legality import is_legal, nearest_legal
from .loaded_sources import LoadedSources

if TYPE_CHECKING:
    from ..table.table_file import DispatchTable

NEIGHBOURS = 4  # recorded shapes that are considered

Explore = Callable[["Selector", Workload], Choice | None]


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """A recorded winner as a candidate for another shape.

    `config` is its config, or the nearest legal one, which `changed` describes. `expected_us` is the
    prediction for the new shape times the ratio of the measured to the predicted time at the recorded shape.
    """

    winner: Winner
    config: Config
    expected_us: float | None
    changed: str = ""


class Selector:
    """Chooses configs for the shapes of one problem; it builds nothing.

    Args:
        problem: the operator, the target and the fixed dimensions.
        loaded: recorded winners, the table and the plans that ship. `load` replaces them at any time.
        predictor: predicts times from cached profiles.
        explore: lowers missing profiles of a shape and returns the model's choice; None: nothing is lowered.
        given: the caller's config for all shapes, in place of every other source.
        on_unknown: of a frozen dispatcher, which chooses from records, the table and plans that ship alone,
            and for shapes that none of them has as this says; None: the dispatcher is not frozen.
        shipped: plans that ship with TileSight; None: none are used.
    """

    def __init__(
        self,
        problem: DispatchProblem,
        loaded: LoadedSources,
        predictor: CachedPredictor,
        explore: Explore | None = None,
        given: Config | None = None,
        on_unknown: OnUnknown | None = None,
    ) -> None:
        self.problem, self.predictor = problem, predictor
        self._loaded, self._loading = loaded, ForkLock()
        self._explore, self.given, self.on_unknown = explore, given, on_unknown
        self._predicted_own: dict[
            tuple[Config, str], float | None
        ] = {}  # for winners at their recorded shapes

    @property
    def is_frozen(self) -> bool:
        """Whether it has one choice for a shape, the same in every process that has loaded the same."""
        return self.on_unknown is not None

    @property
    def loaded(self) -> LoadedSources:
        """The records and the table that it chooses from now, with all that was made of them."""
        return self._loaded

    def load(self, loaded: LoadedSources) -> None:
        """Choose from `loaded` from now on. Other threads see all of it or nothing."""
        with self._loading:
            self._loaded = loaded

    def choose(self, workload: Workload, loaded: LoadedSources | None = None) -> Choice:
        """The best choice.

        Args:
            workload: the workload.
            loaded: to choose from; None for what is loaded now.

        Raises:
            NoCandidateError: no config is legal.
            InputError: the dispatcher is frozen and does not know the shape.
            ConfigError: the caller's own config is not legal.
        """
        loaded = loaded or self._loaded
        found = next(self.choices(workload, loaded), None)
        if self._explore is not None and _is_unpredicted(found):
            with suppress(NoCandidateError, DatabaseError):
                found = self._explore(self, workload) or found
        if found is None and self.is_frozen:
            raise InputError(self._unknown(workload, loaded))
        if found is None:
            raise NoCandidateError(
                f"no config of {self.problem.template.name} is legal for {workload.label} on "
                f"{self.problem.target.name}; `tilesight space {self.problem.operator.name}` shows the rules"
            )
        return found

    def choices(self, workload: Workload, loaded: LoadedSources | None = None) -> Iterator[Choice]:
        """All legal choices, best first, each computed when it is drawn. One at most if it is frozen."""
        loaded = loaded or self._loaded
        space = self.problem.space(workload)
        if self.given is not None:
            yield self._given(self.given, workload, space)
            return
        if self.on_unknown is not None:
            known = (source(loaded, workload, space) for source in (_recorded, _tabled, _shipped))
            told = self._as_told(self.on_unknown, loaded, workload, space)
            yield from itertools.islice(itertools.chain(itertools.chain.from_iterable(known), told), 1)
            return
        seen: set[tuple[Config, tuple[str, ...]]] = set()
        for source in (
            _recorded,
            _tabled,
            _shipped,
            self._neighbours,
            self._predicted,
            self._default,
        ):
            for choice in source(loaded, workload, space):
                if (choice.config, choice.dynamic) not in seen:
                    seen.add((choice.config, choice.dynamic))
                    yield choice

    def learn(self, winner: Winner) -> None:
        """Take a new winner into account from now on."""
        with self._loading:  # what another thread loads meanwhile stays
            self._loaded = self._loaded.with_winner(winner)

    def unpredicted(self, workload: Workload) -> list[tuple[Config, Workload]]:
        """Configs and shapes without the profiles that predict the neighbours' winners at `workload`."""
        space = self.problem.space(workload)
        found: dict[tuple[Config, str], tuple[Config, Workload]] = {}
        for winner in self._loaded.winners.nearest(workload, NEIGHBOURS):
            legal = nearest_legal(winner.config, self.problem, space)
            if legal is None:
                continue
            for config, shape in ((legal[0], workload), (winner.config, winner.workload)):
                if self.predictor.predict(config, shape, winner.workload) is None:
                    found[config, shape.key] = config, shape
        return list(found.values())

    # ---- the sources, most reliable first

    def _given(self, config: Config, workload: Workload, space: SearchSpace) -> Choice:
        """Raises `ConfigError` or `UnknownNameError`."""
        dynamic = self.problem.dynamic
        if not is_legal(config, dynamic, space):
            space.check(config)
        return Choice(
            workload, space.config(config), ChoiceSource.GIVEN, "the caller gave it", None, False, dynamic
        )

    def _neighbours(self, loaded: LoadedSources, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
        """By expected time; then those without a prediction, nearest first."""
        found: list[_Neighbour] = []
        for winner in loaded.winners.nearest(workload, NEIGHBOURS):
            legal = nearest_legal(winner.config, self.problem, space)
            if legal is not None and all(other.config != legal[0] for other in found):
                expected_us = self._expected(winner, legal[0], workload)
                found.append(_Neighbour(winner, legal[0], expected_us, legal[1]))
        fitting = [n for n in found if n.expected_us != math.inf]
        fitting.sort(key=lambda n: math.inf if n.expected_us is None else n.expected_us)  # stable
        for one in fitting:
            reason, dynamic = self._neighbour_reason(one, len(fitting)), self.problem.dynamic
            yield Choice(
                workload, one.config, ChoiceSource.NEIGHBOUR, reason, one.expected_us, False, dynamic
            )

    def _predicted(self, loaded: LoadedSources, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
        dynamic = self.problem.dynamic

        def is_usable(config: Config) -> bool:
            return is_legal(config, dynamic, space)

        for config, us in self.predictor.best_configs(workload, is_usable):
            reason = f"the model's choice among cached profiles: it expects {us:.4g} us"
            yield Choice(workload, config, ChoiceSource.MODEL, reason, us, False, dynamic)

    def _default(self, loaded: LoadedSources, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
        name, which = self.problem.template.name, "the default config"
        config = self.problem.template.default_config(workload, self.problem.target)
        if config is None:  # not every template names one
            config = next(iter(space.configs()), None)
            which = "in place of a default config the first legal one"
        if config is not None:
            nothing = f"of {self.problem.operator.name} is recorded"
            if len(loaded.winners):
                nothing = "is recorded near it and legal here"
            reason = f"{which} of {name}: nothing {nothing}, and no profile is cached"
            yield Choice(workload, config, ChoiceSource.DEFAULT, reason, None, False, self.problem.dynamic)

    # ---- shapes that a frozen dispatcher does not know

    def _as_told(
        self, policy: OnUnknown, loaded: LoadedSources, workload: Workload, space: SearchSpace
    ) -> Iterator[Choice]:
        told = f"no record, table or shipped plan has the shape, and on_unknown='{policy}'"
        if policy is OnUnknown.DEFAULT:
            for choice in self._default(loaded, workload, space):
                reason = f"the default config of {self.problem.template.name}: {told}"
                yield replace(choice, reason=reason)
        if policy is OnUnknown.NEAREST:
            for config, dynamic, what in self._nearest_known(loaded, workload):
                if is_legal(config, dynamic, space):
                    reason = f"{what}: {told}"
                    yield Choice(workload, config, ChoiceSource.NEIGHBOUR, reason, None, False, dynamic)

    def _nearest_known(
        self, loaded: LoadedSources, workload: Workload
    ) -> Iterator[tuple[Config, tuple[str, ...], str]]:
        """Configs of the nearest size of the table and of a shipped plan, and of the nearest recorded shapes,
        in this order."""
        shipped = loaded.shipped.find(workload, nearest=True) if loaded.shipped is not None else None
        tables = [] if loaded.table is None else [(loaded.table, "the table")]
        if shipped is not None:
            tables.append((shipped.table, shipped.origin))
        for table, origin in tables:
            size = min(max(workload.dims[table.vary], table.first), table.last)
            if table.covers(replace(workload, dims={**workload.dims, table.vary: size})):
                what = f"{origin} has it for {table.vary}={size}, the nearest size"
                yield table.choose(size).config, table.dynamic, what
        for winner in loaded.winners.nearest(workload, NEIGHBOURS):
            sizes = ", ".join(f"{name}={winner.workload.dims[name]}" for name in self.problem.free)
            yield winner.config, self.problem.dynamic, f"the winner of {sizes}, a nearest recorded shape"

    def _unknown(self, workload: Workload, loaded: LoadedSources) -> str:
        """Why a frozen dispatcher refuses a shape, and the ways out."""
        problem, table = self.problem, loaded.table
        sizes = ", ".join(f"{name}={workload.dims[name]}" for name in problem.free) or "this workload"
        has = f"{len(loaded.winners)} recorded shape{'' if len(loaded.winners) == 1 else 's'}"
        if table is not None:
            has += f" and a table for {table.vary}={table.first}..{table.last}"
        if loaded.shipped is not None and loaded.shipped.plans:
            has += f" and {len(loaded.shipped.plans)} of the plans that ship with TileSight"
        nearest = ", and none of the nearest is legal here" if self.on_unknown is OnUnknown.NEAREST else ""
        return (
            f"{problem.operator.name}: {sizes} is not among what this frozen dispatcher has loaded, {has} "
            f"(digest {loaded.digest()}){nearest}; tune it (`tilesight tune {problem.operator.name} "
            f"--target {problem.target.name} --shape ...`) or plan a table, then call reload(); or make the "
            "dispatcher with on_unknown='default' or 'nearest'"
        )

    # ---- neighbours

    def _neighbour_reason(self, one: _Neighbour, count: int) -> str:
        sizes = ", ".join(f"{name}={one.winner.workload.dims[name]}" for name in self.problem.free)
        what = f"the winner of {sizes}{one.changed}"
        if one.expected_us is None:
            return f"{what}, the nearest recorded shape; no cached profile lets the model predict it here"
        among = f", the least of {count} neighbours' winners" if count > 1 else ""
        return f"{what}: the model expects {one.expected_us:.4g} us here{among}"

    def _expected(self, winner: Winner, config: Config, workload: Workload) -> float | None:
        here = self.predictor.predict(config, workload, winner.workload)
        if here is None or here == math.inf:
            return here
        key = winner.config, winner.workload.key
        own = self._predicted_own.get(key)
        if own is None:
            own = self.predictor.predict(winner.config, winner.workload, winner.workload)
            self._predicted_own[key] = own
        if not own or own == math.inf:
            return here
        return here * winner.latency_us / own


def _is_unpredicted(choice: Choice | None) -> bool:
    is_tabled = choice is not None and choice.source in (ChoiceSource.TABLE, ChoiceSource.SHIPPED)
    return choice is None or not (is_tabled or choice.expected_us)


def _recorded(loaded: LoadedSources, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
    for winner in loaded.winners.exact(workload):
        if is_legal(winner.config, winner.dynamic, space):
            layer = f" in {winner.layer}" if winner.layer else ""
            us = winner.latency_us
            reason = f"tuned: measured at {us:.4g} us{layer}"
            yield Choice(workload, winner.config, ChoiceSource.RECORD, reason, us, True, winner.dynamic)


def _tabled(loaded: LoadedSources, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
    if loaded.table is not None and loaded.table.covers(workload):
        yield from _entry(loaded.table, "the table", ChoiceSource.TABLE, workload, space)


def _shipped(loaded: LoadedSources, workload: Workload, space: SearchSpace) -> Iterator[Choice]:
    found = loaded.shipped.find(workload) if loaded.shipped is not None else None
    if found is not None:
        yield from _entry(found.table, found.origin, ChoiceSource.SHIPPED, workload, space)


def _entry(
    table: DispatchTable, origin: str, source: ChoiceSource, workload: Workload, space: SearchSpace
) -> Iterator[Choice]:
    """The choice of a table that covers a workload, if it is legal there."""
    entry = table.choose(workload.dims[table.vary])
    if is_legal(entry.config, table.dynamic, space):
        reason = f"{origin} has it for {table.vary}={entry.segment.first}..{entry.segment.last}"
        yield Choice(workload, entry.config, source, reason, None, False, table.dynamic)
