"""Exploration: the order in which configs of a search space are lowered.

It begins with a stratified sample of the space. Then a regression on the results chooses most configs of a
batch, and the sampler of the search the others. Results go to the search in the order in which their configs
were asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..problem.space import Config
from .optuna_search import Search

# configs asked at once: a constant, so that the choice of configs does not depend on the number of processes
BATCH = 16
# Batches in flight at once. A few lowerings take ten times as long as most; the others must not wait for
# them.
OVERLAP = 3
STRATIFIED = 32  # configs of the stratified sample: enough for the regression
SAMPLED = 4  # configs of a batch that the sampler chooses


@dataclass
class _Batch:
    """Configs that were asked together; `pending` ones have no result yet."""

    configs: Sequence[Config]
    pending: set[Config]


class Exploration:
    """Hands out the configs to lower, and tells the search the results.

    Args:
        search: makes the search; called for the first config, and never if none is wanted.
        tell: tells the search the results of some configs.
        sample: makes the stratified sample.
        wanted: number of configs to lower.
    """

    def __init__(
        self,
        search: Callable[[], Search],
        tell: Callable[..., None],
        sample: Callable[[], Sequence[Config]],
        wanted: int,
    ) -> None:
        self._search, self._tell, self._sample = search, tell, sample
        self._stratified: deque[Config] | None = None
        self._left = max(0, wanted)
        self._queue: deque[Config] = deque()
        self._batches: deque[_Batch] = deque()
        self.count = 0  # configs with results
        self.wanted = self._left

    @property
    def all_asked(self) -> bool:
        """Whether every config was handed out; results may be missing."""
        return self._left <= 0 and not self._queue

    @property
    def is_over(self) -> bool:
        """Whether every config was handed out and has a result."""
        return self.all_asked and not any(batch.pending for batch in self._batches)

    def next(self) -> Config | None:
        """The next config to lower; None if there is none, or none before more results are recorded."""
        if not self._queue:
            self._ask()
        return self._queue.popleft() if self._queue else None

    def record(self, config: Config) -> None:
        """Note that the result of `config` is available to `tell`."""
        self.count += 1
        for batch in self._batches:
            batch.pending.discard(config)
        if self.is_over:
            self._tell_oldest(0)

    def more(self, count: int) -> None:
        """Ask `count` configs beyond those that were wanted."""
        self._begin(self._search().ask(count))

    def stop(self) -> None:
        """End the exploration: no further config is handed out."""
        self._left = 0
        self._queue.clear()
        self._batches.clear()

    def _ask(self) -> None:
        if self._left <= 0:
            return
        # A batch is told just before the batch `OVERLAP` places after it is asked. So the choice of configs
        # depends on results alone, and not on the time at which they arrive.
        if len(self._batches) >= OVERLAP and self._batches[0].pending:
            return
        self._tell_oldest(OVERLAP - 1)
        search = self._search()
        if self._left >= search.remaining:
            # the whole space is wanted: no sampler and no batches
            configs = search.ask(self._left)
        else:
            batch = min(BATCH, self._left)
            if self._stratified is None:
                self._stratified = deque(self._sample())
            count = min(batch, len(self._stratified))
            configs = search.take([self._stratified.popleft() for _ in range(count)])
            configs += search.promising(batch - len(configs) - SAMPLED)
            configs += search.ask(batch - len(configs))
        self._left = self._left - len(configs) if configs else 0
        self._begin(configs)

    def _begin(self, configs: Sequence[Config]) -> None:
        if configs:
            self._batches.append(_Batch(configs, set(configs)))
            self._queue.extend(configs)

    def _tell_oldest(self, keep: int) -> None:
        """Tell the search the oldest batches, until `keep` are left or one has pending configs."""
        while len(self._batches) > keep and not self._batches[0].pending:
            self._tell(*self._batches.popleft().configs)
