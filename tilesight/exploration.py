"""Exploration: which configs are lowered next. It begins with an even sample of the space; then a regression on the answers
names most of a batch, and the search's sampler the rest. Answers go back in the order of the questions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .search import Search
from .space import Config

BATCH = 16  # asked at once: fixed, so that the questions do not depend on how many processes answer
# batches under way at once: a few lowerings take ten times as long as most, and must not keep the others waiting
OVERLAP = 3
EVEN = 32  # of the even sample: enough for the regression to begin
SAMPLED = 4  # of a batch, asked of the sampler


@dataclass
class _Batch:
    configs: Sequence[Config]
    open: set[Config] = field(default_factory=set)  # not answered yet


class Exploration:
    """`wanted` configs are to be looked at, `even` makes a sample to begin with. The search is made when the first question
    is asked, or never."""

    def __init__(self, search: Callable[[], Search], tell: Callable[..., None], even: Callable[[], Sequence[Config]], wanted: int) -> None:
        self._search, self._tell, self._sample = search, tell, even
        self._even: deque[Config] | None = None
        self._left = max(0, wanted)
        self._queue: deque[Config] = deque()
        self._batches: deque[_Batch] = deque()
        self.count = 0  # answered so far
        self.wanted = self._left

    @property
    def is_asked(self) -> bool:
        """No question is left; answers may be."""
        return self._left <= 0 and not self._queue

    @property
    def is_over(self) -> bool:
        """All that was asked is answered, and no question is left."""
        return self.is_asked and not any(batch.open for batch in self._batches)

    def next(self) -> Config | None:
        """The next config to lower; None where there is none, or none before more answers came."""
        if not self._queue:
            self._ask()
        return self._queue.popleft() if self._queue else None

    def arrived(self, config: Config) -> None:
        """What became of `config` is recorded: the search may be told."""
        self.count += 1
        for batch in self._batches:
            batch.open.discard(config)
        if self.is_over:
            self._settle(0)

    def more(self, count: int) -> None:
        """`count` further questions, beyond what was wanted."""
        self._begin(self._search().ask(count))

    def stop(self) -> None:
        """No more questions: time is up."""
        self._left = 0
        self._queue.clear()
        for batch in self._batches:
            batch.open.clear()
        self._batches.clear()

    def _ask(self) -> None:
        if self._left <= 0:
            return
        # a batch is told just before the one `OVERLAP` after it is asked: what is asked depends on that, and on no clock
        if len(self._batches) >= OVERLAP and self._batches[0].open:
            return
        self._settle(OVERLAP - 1)
        search = self._search()
        if self._left >= search.remaining:
            # a space that is wanted whole needs no search, and no waiting between batches
            asked = search.ask(self._left)
        else:
            batch = min(BATCH, self._left)
            if self._even is None:
                self._even = deque(self._sample())
            asked = search.take([self._even.popleft() for _ in range(min(batch, len(self._even)))])
            asked += search.promising(batch - len(asked) - SAMPLED)
            asked += search.ask(batch - len(asked))
        self._left = self._left - len(asked) if asked else 0
        self._begin(asked)

    def _begin(self, configs: Sequence[Config]) -> None:
        if configs:
            self._batches.append(_Batch(configs, set(configs)))
            self._queue.extend(configs)

    def _settle(self, keep: int) -> None:
        """Tell the search of the oldest batches, until `keep` are left or one is not answered yet."""
        while len(self._batches) > keep and not self._batches[0].open:
            self._tell(*self._batches.popleft().configs)
