"""Records a plan in the performance database as it runs: a session for each sampled size.

Its context is that of the workload with its dynamic dimensions, so another plan, a dispatcher and `tune
--dynamic` use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..records.session import Effort, SessionState
from ..records.trial import TrialRecord
from ..tuner.recorded import interrupts_deferred
from .plan_problem import PlanProblem

if TYPE_CHECKING:
    from ..database.store import Store

OPTIONS: Mapping[str, str] = {
    "made by": "plan"
}  # so that `tilesight tune`, which tries more, does not take it for its own


class PlanRecorder:
    """Sessions of one plan. `options`: `PlanOptions.session_options`, by which plans differ."""

    def __init__(
        self,
        problem: PlanProblem,
        store: Store,
        effort: Effort,
        seed: int,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._problem, self._store, self._effort, self._seed = problem, store, effort, seed
        self._options = {**OPTIONS, **(options or {})}
        self._sessions: dict[int, int] = {}  # ids, by size

    def known_sizes(self) -> list[int]:
        """Sizes that an earlier call of this plan sampled. Its interrupted sessions are continued."""
        problem, found = self._problem, []
        winners = self._store.winners(problem.context(problem.vary.last), problem.fixed)
        for size in sorted(
            {known.workload.dims[problem.vary.dim] for known in winners if known.dynamic == problem.dynamic}
        ):
            if size not in problem.vary:
                continue
            context = problem.context(size)
            if self._store.find_complete(context, self._effort, self._options) is None:
                cut = self._store.find_interrupted(context, self._effort, self._options)
                if cut is None:
                    continue
                self._sessions[size] = cut
            found.append(size)
        return found

    def recall(self, sizes: Iterable[int]) -> dict[int, dict[str, TrialRecord]]:
        """Recorded trials at these sizes, by size and config key."""
        return {size: self._store.recall(self._problem.context(size)) for size in sizes}

    def record(self, size: int, records: Sequence[TrialRecord]) -> None:
        """Write trials of a size."""
        if not records:
            return
        context = self._problem.context(size)
        with interrupts_deferred():
            if size not in self._sessions:
                operator, workload = self._problem.template.operator, self._problem.workload(size)
                floor = {"flops": operator.flops(workload), "min_bytes": operator.min_bytes(workload)}
                census = self._problem.space(size).census()
                self._sessions[size] = self._store.begin(
                    context, self._effort, self._seed, self._options, census, **floor
                )
            self._store.record_many(self._sessions[size], context, records)

    def close(self, state: SessionState, seconds: float) -> None:
        """Finish all sessions; `seconds` is the time of the whole plan."""
        with interrupts_deferred():
            for session_id in self._sessions.values():
                self._store.finish(session_id, state, (), seconds / max(1, len(self._sessions)))
            self._sessions.clear()
