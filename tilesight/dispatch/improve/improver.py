"""Improver: looks for a faster kernel of a shape, on a background thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ...errors import InputError
from ...executor.jobs import Executor
from ...records.trial import BuildResult
from ...records.winners import Winner
from ..background_thread import BackgroundThread
from ..kernels.kernel_builder import KernelBuilder
from ..select.choice import Choice, ChoiceSource
from ..select.selector import Selector
from ..shape import Shape
from .explore import CHALLENGERS, EXPLORE_S, find_challengers
from .paired_comparison import Improvement, compare
from .tuning_setup import TuningSetup

QUEUE_LIMIT = 64  # shapes that wait for the background; further ones are left as they are

Switch = Callable[[Choice, BuildResult], None]  # makes a built choice the active kernel of a shape


class Improver:
    """Compares kernels one shape after another.

    Args:
        selector: proposes challengers, and learns the winners.
        builder: builds the challengers.
        setup: where and how to predict and measure.
        thread: runs the comparisons.
        is_automatic: whether shapes without a record are improved without a request.
    """

    def __init__(
        self,
        selector: Selector,
        builder: KernelBuilder,
        setup: TuningSetup,
        thread: BackgroundThread,
        is_automatic: bool,
    ) -> None:
        self.thread, self.is_automatic = thread, is_automatic
        self._selector, self._builder, self._setup = selector, builder, setup

    def improve(self, present: Choice, budget_s: float, count: int, switch: Switch) -> Improvement:
        """Compare `present` with challengers, and wait for the result.

        Args:
            present: the active choice.
            budget_s: seconds for finding challengers.
            count: the largest number of challengers.
            switch: is called with the winner, or with `present` and its measured time.
        """

        def task(executor: Executor) -> Improvement:
            rivals = find_challengers(executor, self._selector, self._setup, present, budget_s, count)
            return self._compare(executor, present, rivals, switch)

        return self.thread.submit(task).result()

    def schedule(self, shape: Shape, switch: Switch) -> None:
        """Improve a shape later, once. Does nothing if too many shapes wait already."""
        if not shape.is_scheduled and self.thread.waiting < QUEUE_LIMIT:
            shape.is_scheduled = True
            with suppress(InputError):  # closed in the meantime
                self.thread.submit(partial(self._improve_scheduled, shape, switch))

    def close(self) -> None:
        self.thread.close()

    def _improve_scheduled(self, shape: Shape, switch: Switch, executor: Executor) -> None:
        kernel = shape.kernel
        assert kernel is not None
        present, pending = kernel.choice, kernel.pending
        if pending is not None and pending.source is ChoiceSource.RECORD:
            # It was measured for this very shape, so it replaces its fallback without a comparison.
            [built] = self._builder.build_with([pending], executor)
            if built.failure is None:
                switch(pending, built)
            return
        rivals = [pending] if pending is not None else []
        if self.is_automatic:
            rivals += find_challengers(executor, self._selector, self._setup, present, EXPLORE_S, CHALLENGERS)
        self._compare(executor, present, rivals, switch)

    def _compare(
        self, executor: Executor, present: Choice, rivals: Sequence[Choice], switch: Switch
    ) -> Improvement:
        found = compare(executor, self._builder, self._setup, present, rivals)
        after = found.after
        if after is not found.before:
            if after.is_measured and after.expected_us is not None:
                self._selector.learn(Winner(after.workload, after.config, after.expected_us, after.dynamic))
            built = self._builder.find(after)
            if built is not None:
                switch(after, built)
        return found
