"""Service: what serves each shape that was met, and how another kernel takes its place: never without proof that it is faster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ..errors import DatabaseError, InputError, NoCandidateError
from ..known import Known
from ..trial import BuildResult
from .builds import build_all
from .choice import Choice, Source
from .improve import CHALLENGERS, EXPLORE_S, Grounds, Improvement, explored, improve
from .misses import Misses
from .problem import Key
from .serving import Calls
from .supply import MOST_SHAPES, Served, Supply, keep
from .workshop import Tools, Workshop

MOST_PENDING = 64  # shapes that wait for the background; further ones are left as they are


class Slot:
    """One shape: what serves it, who calls it."""

    __slots__ = ("calls", "is_tried", "lock", "served")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.served: Served | None = None
        self.calls = Calls()
        self.is_tried = False  # in the background


@dataclass(frozen=True)
class Background:
    """`tries_better`: whether shapes without a record are explored and compared there, unasked."""

    workshop: Workshop
    grounds: Grounds
    tries_better: bool


class Service:
    """`switched` is called when another kernel begins to serve a shape; `notes` are for its owner."""

    def __init__(
        self, supply: Supply, misses: Misses | None, background: Background, switched: Callable[[], None], notes: Sequence[str] = ()
    ) -> None:
        self.supply, self.misses, self.background, self._switched = supply, misses, background, switched
        self.notes = tuple(notes)
        self._slots: dict[Key, Slot] = {}
        self._lock = threading.Lock()
        self.is_closed = False

    def slots(self) -> dict[Key, Slot]:
        with self._lock:
            return dict(self._slots)

    def slot(self, key: Key) -> Slot:
        with self._lock:
            if self.is_closed:
                raise InputError("this dispatcher is closed; make a new one")
            slot = self._slots.get(key)
            if slot is None:
                slot = Slot()
                keep(self._slots, key, slot, MOST_SHAPES)
            return slot

    def known(self, key: Key) -> Served | None:
        slot = self._slots.get(key)
        return slot.served if slot is not None else None

    def serve(self, key: Key) -> tuple[Slot, Served]:
        """What serves a shape, decided and built where it was not met before. Only calls for the same shape wait for each
        other. Raises what `Supply.provide` raises."""
        workload = self.supply.problem.workload(key)
        slot = self.slot(key)
        with slot.lock:
            if slot.served is None:
                self._begin(key, slot, self.supply.provide(workload))
            assert slot.served is not None
            return slot, slot.served

    def begin(self, key: Key, served: Served) -> None:
        """Let `served`, built ahead, serve a shape that nothing serves yet."""
        slot = self.slot(key)
        with slot.lock:
            if slot.served is None:
                self._begin(key, slot, served)

    def _begin(self, key: Key, slot: Slot, served: Served) -> None:
        slot.served = served
        is_miss = (served.wanted or served.choice).source is not Source.RECORD
        if is_miss and self.misses is not None:
            slot.calls = self.misses.counter(served.choice)
        if served.wanted is not None or (is_miss and self.background.tries_better):
            self._try_later(key, slot)

    def rebuilt(self, key: Key, slot: Slot) -> Served | None:
        """What serves once the library of the present choice, which cannot be loaded, was built anew; None where it fails."""
        assert slot.served is not None
        choice = slot.served.choice
        self.supply.index.forget(self.supply.candidate(choice), slot.served.built)
        [built] = self.supply.build([choice])
        if built.failure is not None:
            return None
        slot.served = Served(choice, built, slot.served.wanted)
        return slot.served

    def forget(self) -> None:
        """Decide anew for every shape; what is built stays built."""
        self.supply.forget()
        with self._lock:
            self._slots.clear()
        self._switched()

    # ---- better ones

    def improve(self, key: Key, challengers: int = CHALLENGERS, budget_s: float = EXPLORE_S) -> Improvement:
        """Look for a better config for a shape and compare it with the one that serves. Waits for it."""
        slot, served = self.serve(key)

        def work(tools: Tools) -> Improvement:
            found = self._compared(tools, served.choice, self._challengers(tools, served.choice, budget_s, challengers))
            self._take(key, slot, found)
            return found

        return self.background.workshop.submit(work).result()

    def _try_later(self, key: Key, slot: Slot) -> None:
        if not slot.is_tried and self.background.workshop.waiting < MOST_PENDING:
            slot.is_tried = True
            with suppress(InputError):  # closed meanwhile
                self.background.workshop.submit(partial(self._try, key, slot))

    def _try(self, key: Key, slot: Slot, tools: Tools) -> None:
        served = slot.served
        assert served is not None
        wanted = [] if served.wanted is None else [served.wanted]
        if wanted and wanted[0].source is Source.RECORD:
            # it was measured for this very shape, and what serves merely stands in for it
            self._switch_if_built(key, slot, wanted[0], build_all(tools.executor, self.supply.index, [self.supply.candidate(wanted[0])])[0])
            return
        rivals = [*wanted, *(self._challengers(tools, served.choice) if self.background.tries_better else [])]
        self._take(key, slot, self._compared(tools, served.choice, rivals))

    def _challengers(self, tools: Tools, present: Choice, budget_s: float = EXPLORE_S, count: int = CHALLENGERS) -> list[Choice]:
        """Half from what is recorded, where there is that much, the rest from the model's exploration of this very shape."""
        workload, problem = present.workload, self.supply.problem
        certain = (Source.RECORD, Source.TABLE, Source.NEIGHBOUR)
        rivals = [c for c in self.supply.selector.choices(workload) if c.source in certain and c.config != present.config][
            : (count + 1) // 2
        ]
        with suppress(NoCandidateError, DatabaseError):
            for config, us in explored(tools, problem, self.background.grounds, workload, budget_s, count + 1):
                reason = f"the model's choice for this shape: it expects {us:.4g} us"
                rivals.append(Choice(workload, config, Source.MODEL, reason, us, False, problem.open))
        unlike: dict[object, Choice] = {}
        for choice in rivals:
            if choice.config != present.config:
                unlike.setdefault(choice.config, choice)
        return list(unlike.values())[:count]

    def _compared(self, tools: Tools, present: Choice, rivals: Sequence[Choice]) -> Improvement:
        return improve(tools, self.supply.problem, self.supply.index, self.background.grounds, present, rivals)

    def _take(self, key: Key, slot: Slot, found: Improvement) -> None:
        """Let the winner of a comparison serve, and remember its time."""
        after = found.after
        if after is found.before:
            return
        if after.is_measured and after.expected_us is not None:
            known = Known(after.workload, after.config, after.expected_us, after.open)
            self.supply.selector.records = self.supply.selector.records.with_one(known)
        self._switch_if_built(key, slot, after, self.supply.index.find(self.supply.candidate(after)))

    def _switch_if_built(self, key: Key, slot: Slot, choice: Choice, built: BuildResult | None) -> None:
        if built is None or built.failure is not None:
            return
        with slot.lock:
            self.supply.replace(key, choice)
            slot.served = self.supply.served(choice, built)
            if choice.source is Source.RECORD:
                slot.calls = Calls()
        self._switched()  # calls are made ready anew, in microseconds
