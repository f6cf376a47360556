"""What a plan learns goes to the performance database as it comes: a session for each size at which something was learned, in
the context of that workload with its open dimensions. So another plan, a dispatcher, or `tune --dynamic` goes on from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..recorded import interrupts_deferred
from ..session import Effort, State
from ..trial import TrialRecord
from .subject import Subject

if TYPE_CHECKING:
    from ..database.store import Store

OPTIONS: Mapping[str, str] = {"made by": "plan"}  # no answer to `tilesight tune`, which would have tried more


class Sessions:
    """`asked` tells one plan of a subject from another, by what decides at which sizes it measures."""

    def __init__(self, subject: Subject, store: Store, effort: Effort, seed: int, asked: Mapping[str, str] | None = None) -> None:
        self._subject, self._store, self._effort, self._seed = subject, store, effort, seed
        self._options = {**OPTIONS, **(asked or {})}
        self._open: dict[int, int] = {}  # session by size

    def known_sizes(self) -> list[int]:
        """Sizes at which an earlier call of this plan measured. Sessions of one that was cut go on."""
        subject, found = self._subject, []
        winners = self._store.winners(subject.context(subject.vary.last), subject.fixed)
        for size in sorted({known.workload.dims[subject.vary.dim] for known in winners if known.open == subject.open}):
            if size not in subject.vary:
                continue
            context = subject.context(size)
            if self._store.find_complete(context, self._effort, self._options) is None:
                cut = self._store.find_interrupted(context, self._effort, self._options)
                if cut is None:
                    continue
                self._open[size] = cut
            found.append(size)
        return found

    def recall(self, sizes: Iterable[int]) -> dict[int, dict[str, TrialRecord]]:
        """What holds at these sizes."""
        return {size: self._store.recall(self._subject.context(size)) for size in sizes}

    def record(self, size: int, records: Sequence[TrialRecord]) -> None:
        if not records:
            return
        context = self._subject.context(size)
        with interrupts_deferred():
            if size not in self._open:
                operator, workload = self._subject.template.operator, self._subject.workload(size)
                floor = {"flops": operator.flops(workload), "min_bytes": operator.min_bytes(workload)}
                census = self._subject.space(size).census()
                self._open[size] = self._store.begin(context, self._effort, self._seed, self._options, census, **floor)
            self._store.record_many(self._open[size], context, records)

    def close(self, state: State, seconds: float) -> None:
        with interrupts_deferred():
            for session_id in self._open.values():
                self._store.finish(session_id, state, (), seconds / max(1, len(self._open)))
            self._open.clear()
