"""The search of a session over groups: configs that differ only in block order share a lowering."""

from __future__ import annotations

from functools import cached_property

from ..executor.shared_lowering import RasterizationGroups
from ..problem.space import Config
from ..search.explore import STRATIFIED
from ..search.optuna_search import Searcher
from ..search.stratified import stratified
from .request import Request
from .trials import Trials


class GroupSearch:
    """Asks for one config of each group, and is told the best time of each group.

    Groups and search are made when they are first needed: a space in the profile cache needs no search, nor
        the packages behind it.
    """

    def __init__(self, request: Request, trials: Trials) -> None:
        self._request, self._trials = request, trials
        self._untold = list(trials.records)

    @cached_property
    def groups(self) -> RasterizationGroups:
        return RasterizationGroups(self._request.template, self._request.space.configs())

    @cached_property
    def _search(self) -> Searcher:
        space, sampler, seed = self._request.space, self._request.sampler, self._request.seed
        first = None if self.default is None else self.groups.first(self.default)
        return Searcher(space, sampler=sampler, seed=seed, first=first, configs=self.groups.firsts)

    @cached_property
    def default(self) -> Config | None:
        """The template's own choice; None if the space does not have it."""
        request = self._request
        config = request.template.default_config(request.workload, request.target)
        return None if config is None or config not in request.space else config

    def tell(self, *configs: Config) -> None:
        """Note that the records of `configs` changed."""
        self._untold += configs

    def informed(self) -> Searcher:
        """The search, told the best time of each group with changed records."""
        records = self._trials.records
        changed = dict.fromkeys(self.groups.first(config) for config in self._untold)
        self._untold.clear()
        for first in filter(self._is_known, changed):
            known = self.groups.members(first)
            values = [value for config in known if (value := self._trials.value(config)) is not None]
            is_measured = any(records[config].measured_us is not None for config in known)
            self._search.tell(first, min(values, default=None), measured=is_measured)
        return self._search

    def even_sample(self) -> list[Config]:
        """The first groups to lower: those of an even sample of the space."""
        request = self._request
        sample = stratified(request.space, 3 * STRATIFIED, request.seed, self.default)
        return list(dict.fromkeys(self.groups.first(config) for config in sample))[:STRATIFIED]

    def left(self, limit: int | None) -> int:
        """Number of groups to be lowered, of `limit` in all; None: of all groups."""
        groups = len(self.groups.firsts)
        known = {self.groups.first(config) for config in self._trials.records}
        return min(limit or groups, groups) - sum(self._is_known(first) for first in known)

    def _is_known(self, first: Config) -> bool:
        """Whether all configs of a group have records: of a group predicted by an earlier model, only the
        measured ones were recalled.
        """
        return all(config in self._trials.records for config in self.groups.members(first))
