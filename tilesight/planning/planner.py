"""The plan itself: predict, try, choose, compare, cut into segments."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..costmodel.model import CostModel
from ..dispatch.table import DispatchTable
from ..errors import NoCandidateError
from ..observers import Observer
from ..session import Effort, State
from ..space import Config
from ..trial import TrialRecord
from ..work import Executor
from .board import Board
from .cover import Times, choose_kernels
from .doubts import NO_DIFFERENCE, Doubt, find_doubts, settle
from .probes import sizes_to_try
from .result import Planned
from .segments import AS_GOOD
from .sessions import Sessions
from .shortlist import near_best, shortlist
from .sizes import Cell, Vary, around_each, awkward, cells, divided, weights_of, widest_gaps
from .subject import Subject
from .survey import Pair, Survey
from .tabling import make_table, rounded
from .trying import Trying

IN_CELL = 32  # configs that are predicted between the sampled sizes, those of different tiles first
COARSE, FINE = 128, 384  # cells of the range, at most: where kernels are chosen, and where segments are cut
ROUNDS = 3  # of choosing, and measuring what was chosen where it was not measured
PROBES = 2  # rounds in which sizes are added where the segments of what is chosen end
EXPLORE_SHARE, MORE_SHARE, TRY_SHARE = 0.35, 0.65, 0.8  # of a time budget: when these end


@dataclass(frozen=True, slots=True)
class Extent:
    """How far an effort goes. `explore`: groups of configs that are lowered; `promising`: configs predicted at each size where
    that takes lowering; `listed`: that are built; `measure`: at each size; `compare`: sizes at which doubts are settled in turns."""

    explore: int
    promising: int
    listed: int
    measure: int
    compare: int


EXTENTS: Mapping[Effort, Extent] = {
    Effort.PREDICT: Extent(384, 48, 64, 0, 0),
    Effort.QUICK: Extent(384, 48, 64, 10, 8),
    Effort.FULL: Extent(1200, 96, 128, 24, 24),
}


def extent_for(subject: Subject, effort: Effort) -> Extent:
    """Where no profiles are kept, each size takes lowerings of its own: fewer configs are looked at."""
    whole = EXTENTS[effort]
    if subject.template.scales:
        return whole
    return replace(whole, explore=whole.explore // 4, promising=max(1, whole.promising // 4), listed=whole.listed // 2)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for beside the subject. `shapes`: sizes that are sampled, at most. `weights`: how much single sizes count, e.g.
    how often they are asked for."""

    kernels: int
    shapes: int
    effort: Effort
    budget_s: float | None = None
    seed: int = 0
    weights: Mapping[int, float] | None = None

    def asked(self, vary: Vary) -> dict[str, str]:
        """What decides at which sizes it is measured, beside effort and seed."""
        found = {"range": f"{vary.dim}={vary.first}..{vary.last}", "shapes": str(self.shapes)}
        return found | {"weights": str(sorted(self.weights.items()))} if self.weights else found


class Planner:
    def __init__(
        self,
        subject: Subject,
        wish: Wish,
        model: CostModel,
        executor: Executor,
        sessions: Sessions,
        observer: Observer,
    ) -> None:
        self.subject, self.wish, self._executor, self._sessions, self._observer = subject, wish, executor, sessions, observer
        self._begin = time.monotonic()
        self._extent = extent_for(subject, wish.effort)
        self._survey = Survey(subject, model, executor, observer, self._end(EXPLORE_SHARE))
        self._messages: list[str] = []
        self._measured = self._recalled = 0
        self._settled: dict[Doubt, str] = {}
        self._is_cut = False  # time ended it before all sizes were looked at

    def run(self) -> Planned:
        """Raises `NoCandidateError` where no config works; what was learned by then is recorded."""
        state = State.INTERRUPTED
        try:
            found = self._plan()
            state = State.INTERRUPTED if found.is_cut else State.COMPLETE
        finally:
            self._sessions.close(state, time.monotonic() - self._begin)
        return found

    def _plan(self) -> Planned:
        subject, wish, extent = self.subject, self.wish, self._extent
        self._coarse = cells(subject.vary, subject.steps, COARSE)
        self._survey.explore(extent.explore, wish.seed)
        measures = bool(extent.measure and subject.where.devices)
        sizes, probed = self._first_sizes(measures)
        self._predict(sizes)
        listed = shortlist(subject, self._survey, self._columns(sizes), self._weights(sizes), extent.listed, wish.seed)
        if not listed:
            why = "the time budget ended before anything was predicted" if self._late(EXPLORE_SHARE) else "none lowers"
            raise NoCandidateError(f"{subject.label}: of the configs that are legal on {subject.where.target.name} {why}")
        board = self._board = Board(subject, self._survey, listed, sizes)
        self._record(board.begin(self._recall(sizes)))
        self._complete(listed)
        chosen = self._choose()
        if measures:
            chosen = self._measure(chosen, probed)
        else:
            self._messages += subject.where.messages or ("nothing was measured: the table and its losses are predicted",)
        table = self._table(chosen, measures)
        # where merging segments gave a sampled size to another kernel
        left = [(table.kernels[e.kernel], e.size) for e in table.evidence if not e.chosen_measured]
        if measures and left and not self._late(TRY_SHARE):
            self._try(left, 0)
            table = self._table(chosen, measures)
        return self._result(table)

    # ---- before anything is measured

    def _first_sizes(self, measures: bool) -> tuple[list[int], int]:
        """Sizes to begin with, and how many more are looked for once it is known what serves where: half of them, where sizes
        share their kernels. Those that an earlier call of this plan looked for are known already."""
        vary, wanted = self.subject.vary, self.wish.shapes
        probed = max(0, min(wanted // 2, wanted - 2)) if measures and self.subject.open and vary.last - vary.first >= wanted else 0
        spread = awkward(vary, wanted - probed, self._outline())
        again = widest_gaps(self._sessions.known_sizes(), spread, probed) if probed else []
        return sorted([*spread, *again]), probed - len(again)

    def _outline(self) -> list[tuple[Cell, float]]:
        """The best predicted time of each cell, by the configs that are best at the anchors."""
        survey = self._survey
        best: dict[Config, None] = {}
        for anchor in survey.anchors:
            times = survey.times(survey.configs, anchor)
            best.update(dict.fromkeys(sorted(times, key=lambda config: times[config])[:3]))
        survey.predict(((config, cell.last) for config in best for cell in self._coarse), lower=False)
        rows = [survey.row(config, [cell.last for cell in self._coarse]) for config in best]
        if not rows:
            return []
        known = np.where(np.isnan(rows), np.inf, rows).min(axis=0)
        return [(cell, float(us)) for cell, us in zip(self._coarse, known, strict=True) if math.isfinite(us)]

    def _predict(self, sizes: Sequence[int]) -> None:
        """What was looked at, at each of these sizes where profiles are kept, and what looks promising there in any case; then
        the best of the sizes around each cell, of different tiles first, in that cell."""
        survey, subject = self._survey, self.subject
        self._observer.phase("predict", None)
        defaults = self._defaults(sizes)
        known = [(config, size) for size in sizes for config in survey.configs if subject.works(size, config)]
        survey.predict(known, lower=False)
        survey.predict([*defaults, *((config, size) for size in sizes for config in survey.promising(size, self._extent.promising))])
        survey.configs.update(dict.fromkeys(config for config, _ in defaults))
        survey.anchors = sorted({*survey.anchors, *sizes})
        inside = [(config, cell.last) for cell in self._coarse for config in survey.promising(cell.last, IN_CELL)]
        survey.predict(inside, lower=False)
        self._observer.phase_done(f"{survey.count} predictions at {len(sizes)} sizes and between them, {survey.lowered} lowered in all")

    def _defaults(self, sizes: Sequence[int]) -> list[Pair]:
        return [(default, size) for size in sizes if (default := self.subject.default(size)) is not None]

    def _complete(self, listed: Sequence[Config]) -> None:
        """Predict the short list over the whole range; those first in it also where that takes lowering."""
        sizes = self._board.sizes
        first = listed[: max(1, self._extent.explore // len(sizes))]
        self._survey.predict((c, size) for c in first for size in sizes if self.subject.works(size, c))
        columns = self._columns(sizes)
        self._survey.predict(((c, size) for c in listed for size in columns if self.subject.works(size, c)), lower=False)

    def _recall(self, sizes: Sequence[int]) -> Mapping[int, Mapping[str, TrialRecord]]:
        found = self._sessions.recall(sizes)
        count = sum(record.measured_us is not None for records in found.values() for record in records.values())
        if count:
            self._observer.message(f"known from earlier sessions: {count} measurements")
        self._recalled += count
        return found

    def _record(self, new: Mapping[int, Sequence[TrialRecord]]) -> None:
        for size, records in new.items():
            self._sessions.record(size, records)

    # ---- choosing

    def _columns(self, sizes: Sequence[int]) -> list[int]:
        """What a choice looks at: the cells, and the sampled sizes."""
        return [*(cell.last for cell in self._coarse), *sizes]

    def _weights(self, sizes: Sequence[int]) -> Times:
        """Of the columns: cells and sampled sizes count the same on the whole."""
        return 0.5 * np.array([*weights_of(self._coarse, self.wish.weights), *self._around(sizes)])

    def _around(self, sizes: Sequence[int]) -> list[float]:
        """The weight of each sampled size: that of the sizes that lie nearest to it."""
        return weights_of(around_each(sizes, self.subject.vary), self.wish.weights)

    def _expected(self) -> Times:
        """Times on the board's configs at the cells and the sampled sizes."""
        return self._board.expected(self._board.configs, self._columns(self._board.sizes)).times

    def _choose(self, tried: bool = False) -> list[Config]:
        """`tried`: of configs that were measured at some size, if there are any."""
        board, times = self._board, self._expected()
        known = [any(board.measured_us(config, size) is not None for size in board.sizes) for config in board.configs]
        if tried and any(known):
            times[np.logical_not(known)] = np.inf
        if not np.isfinite(times).any():
            raise NoCandidateError(
                f"{self.subject.label}: none of the {len(board.configs)} configs that were tried works: {self._faults()}"
            )
        number = {config: row for row, config in enumerate(board.configs)}
        columns, weights = self._columns(board.sizes), self._weights(board.sizes).tolist()
        defaults = [number.get(default) if (default := self.subject.default(size)) is not None else None for size in columns]
        cover = choose_kernels(times, weights, self.wish.kernels, defaults)
        return [board.configs[row] for row in cover.chosen]

    def _faults(self) -> str:
        return "; ".join(dict.fromkeys(f"{failure.kind}: {failure.message}" for failure in list(self._board.broken.values())[:3]))

    # ---- measuring

    def _measure(self, chosen: list[Config], probed: int) -> list[Config]:
        """Try what promises to be best, at `probed` sizes more where segments end, and settle what is in doubt."""
        board, extent = self._board, self._extent
        chosen = self._measure_promising(chosen)
        until = len(board.sizes) + probed
        for probe in range(PROBES):
            most = -(-(until - len(board.sizes)) // (PROBES - probe))
            if most <= 0:
                break
            if self._late(MORE_SHARE):
                self._is_cut = True
                break
            table = self._table(chosen, measured=True)
            new = sizes_to_try(table, board.sizes, self.subject.whole, most, self.wish.weights)
            self._predict(new)
            self._record(board.add_sizes(new, self._recall(new)))
            self._complete(board.configs)
            chosen = self._measure_promising(self._choose())
        for _ in range(ROUNDS):
            doubts = find_doubts(board, self._served(chosen), list(self._settled))[: extent.compare - len(self._settled)]
            if not doubts or self._late(1.0):
                break
            self._settle(doubts)
            chosen = self._choose()
        left = [pair for pair in self._served(chosen) if not self._is_known(pair)]
        if left:
            self._try(left, 0)
        # where time was up before all was tried: no prediction alone puts a kernel into a table that was measured
        return self._choose(tried=True) if self._late(TRY_SHARE) else chosen

    def _measure_promising(self, chosen: list[Config]) -> list[Config]:
        """Measure what may be the best of each size, and what is chosen where it was not measured, until nothing changes."""
        board = self._board
        wanted = [*self._defaults(board.sizes), *self._served(chosen)]
        for round_number in range(1 + ROUNDS):
            new = [pair for pair in wanted if not self._is_known(pair)]
            if round_number > 1 and not new:
                break
            self._try(new, self._extent.measure)
            if round_number == 0 and not self._late(MORE_SHARE):
                self._list_more()
            chosen = self._choose()
            wanted = self._served(chosen)
        return chosen

    def _list_more(self) -> None:
        """Configs that the short list lacks and that look better by what was measured since."""
        board = self._board
        more = board.hopeful(near_best(self._survey, board.sizes, ()), self._around(board.sizes), self._extent.listed // 2)
        self._record(board.add(more))
        self._complete(more)

    def _is_known(self, pair: Pair) -> bool:
        return self._board.is_out(pair[0]) or self._board.is_tried(*pair)

    def _served(self, chosen: Sequence[Config]) -> list[Pair]:
        """The chosen kernel that takes least time at each sampled size."""
        times = self._board.expected(chosen, self._board.sizes).times
        return [(chosen[int(times[:, n].argmin())], s) for n, s in enumerate(self._board.sizes) if np.isfinite(times[:, n]).any()]

    def _try(self, wanted: Sequence[Pair], limit: int) -> None:
        board = self._board
        trying = Trying(board, self.subject.protocol, limit, self._end(TRY_SHARE), self._sessions.record, self._observer, wanted)
        self._observer.phase("measure", len(wanted))
        trying.run(self._executor, board.configs if limit else [config for config, _ in wanted])
        self._measured += trying.measured
        built = sum(build.artifact is not None for build in board.builds.values())
        out = f", {len(board.broken)} failed" if board.broken else ""
        self._observer.phase_done(f"{built} built{out}, {trying.measured} measured at {len(board.sizes)} sizes")

    def _settle(self, doubts: Sequence[Doubt]) -> None:
        self._observer.phase("compare", len(doubts))
        found = settle(self._board, doubts, self._executor, self.subject.protocol, self._sessions.record)
        self._settled.update(found)
        slower = sum("slower" in text for text in found.values())
        self._observer.phase_done(f"chosen kernels and defaults in turns at {len(found)} sizes, slower at {slower}")

    # ---- the result

    def _table(self, chosen: Sequence[Config], measured: bool) -> DispatchTable:
        fine = divided(cells(self.subject.vary, self.subject.steps, FINE), self._board.sizes)
        self._survey.predict(((config, cell.last) for config in chosen for cell in fine), lower=False)
        return make_table(self._board, chosen, fine, self.wish.weights, measured=measured)

    def _result(self, table: DispatchTable) -> Planned:
        board = self._board
        times = self._expected()
        best = times.min(axis=0)
        number = {config: row for row, config in enumerate(board.configs)}
        rows = [number[table.choose(size).config] for size in self._columns(board.sizes)]
        loss = np.array([times[row, column] / best[column] - 1 if math.isfinite(best[column]) else 0.0 for column, row in enumerate(rows)])
        loss = np.where(np.isfinite(loss), loss, 0.0)
        defaults = {}
        for column, size in enumerate(board.sizes):
            default = self.subject.default(size)
            if default in number and math.isfinite(us := times[number[default], len(self._coarse) + column]):
                defaults[size] = rounded(us)
        slower = self._slower(table)
        if slower:
            some = f"{len(table.kernels)} kernels do not serve all sizes as well as the default config of each does"
            self._messages.append(f"{some}; it is faster at {', '.join(slower)}")
        is_cut = self._is_cut or self._late(TRY_SHARE)
        if is_cut:
            self._messages.append("the time budget ended it early; the same command goes on from here")
        return Planned(
            label=self.subject.label,
            table=table,
            weights=dict(zip(board.sizes, self._around(board.sizes), strict=True)),
            expected_mean=float(loss @ self._weights(board.sizes)),
            expected_worst=float(loss.max()),
            default_us=defaults,
            looked_at=len(self._survey.configs),
            built=sum(build.artifact is not None for build in board.builds.values()),
            measured=self._measured,
            recalled=self._recalled,
            compared=len(self._settled),
            seconds=time.monotonic() - self._begin,
            is_cut=is_cut,
            messages=tuple(self._messages),
        )

    def _slower(self, table: DispatchTable) -> list[str]:
        """Sampled sizes at which the default config was measured to be faster than the table's kernel, beyond the noise."""
        found = []
        for piece in table.evidence:
            config, default = table.kernels[piece.kernel], self.subject.default(piece.size)
            theirs = None if default is None else self._board.measured_us(default, piece.size)
            if default is None or theirs is None or not piece.chosen_measured or self._board.is_out(default):
                continue
            same = self._settled.get(Doubt(piece.size, config, default), "").startswith(NO_DIFFERENCE)
            share = piece.chosen_us / theirs - 1
            if default != config and share > AS_GOOD and not same:
                found.append(f"{self.subject.vary.dim}={piece.size} (by {100 * share:.1f} %)")
        return found

    def _end(self, share: float) -> float:
        return math.inf if self.wish.budget_s is None else self._begin + share * self.wish.budget_s

    def _late(self, share: float) -> bool:
        return time.monotonic() > self._end(share)
