"""The kernel of each shape that was called: chosen, built, and replaced only by a faster one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..bounded_dict import BoundedDict
from ..builder.index_files import kernel_name
from ..errors import InputError, NoCandidateError
from ..machine.fork_locks import ForkLock, reset_in_forks
from ..records.trial import BuildResult
from .improve.improver import Improver
from .improve.paired_comparison import Improvement
from .kernels.bound_calls import BoundCall, CallCounter
from .kernels.kernel_builder import KernelBuilder
from .misses import MissLog
from .notices import say
from .on_miss import OnMiss
from .problem import ShapeKey
from .select.choice import Choice, ChoiceSource
from .select.legality import is_legal
from .select.loaded_sources import LoadedSources
from .select.selector import Selector
from .shape import ActiveKernel, Shape

SIGNATURE_LIMIT = 8192  # bound calls in memory
DYNAMIC_LIMIT = 256  # kernels with dynamic dimensions that may be a fallback for other shapes


class ShapeTable:
    """The shapes of one dispatcher. Threads may share it; only calls of the same shape wait for each other.

    `ready` holds the calls that the dispatcher has bound, by the signatures of their tensors. It is cleared
    when another kernel becomes active.

    Args:
        selector: chooses configs.
        builder: finds and builds their kernels.
        improver: compares kernels in the background.
        misses: counts the calls of shapes without a record; None: nothing is counted.
        on_miss: the policy if a kernel is not built.
        notes: messages for `Dispatcher.explain`.
    """

    def __init__(
        self,
        selector: Selector,
        builder: KernelBuilder,
        improver: Improver,
        misses: MissLog | None,
        on_miss: OnMiss,
        notes: Sequence[str] = (),
    ) -> None:
        self.problem = selector.problem
        self.selector, self.builder, self.improver, self.misses = selector, builder, improver, misses
        self.on_miss, self.notes = on_miss, tuple(notes)
        self.ready: BoundedDict[tuple[Any, ...], BoundCall] = BoundedDict(SIGNATURE_LIMIT)
        self.is_closed = False
        # active kernels with dynamic dimensions, by kernel name
        self._dynamic: BoundedDict[str, Choice] = BoundedDict(DYNAMIC_LIMIT)
        self._lock = ForkLock()
        reset_in_forks(self)

    @property
    def loaded(self) -> LoadedSources:
        """What is loaded now, with the choices and shapes that were made of it."""
        return self.selector.loaded

    def shapes(self) -> dict[ShapeKey, Shape]:
        """A copy of the table."""
        with self._lock:
            return dict(self.loaded.shapes)

    def choose(self, key: ShapeKey) -> Choice:
        """The choice for a shape; it is made once. Builds nothing.

        Raises `NoCandidateError` if no config is legal, `WorkloadError` if the operator refuses the shape.
        """
        return self._choose(key, self.loaded)

    def active(self, key: ShapeKey) -> ActiveKernel | None:
        """The kernel in use for a shape, if there is one."""
        shape = self.loaded.shapes.get(key)
        return shape.kernel if shape is not None else None

    def activate(self, key: ShapeKey) -> tuple[Shape, ActiveKernel]:
        """The kernel in use for a shape, chosen and built if the shape is new.

        Raises `InputError` if it is not built and `on_miss` is `refuse`, `NoCandidateError` if no choice
        builds, `ToolchainError` if nothing can be built on this machine.
        """
        self.problem.workload(key)  # refused before it enters the table
        loaded = self.loaded
        shape = self._shape(key, loaded)
        with shape.lock:
            if shape.kernel is None:
                self._start(key, shape, self._find_or_build(key, loaded))
            assert shape.kernel is not None
            return shape, shape.kernel

    def adopt(self, choice: Choice) -> ActiveKernel:
        """The kernel of a choice that was made elsewhere, in use for its shape from now on; built if it is
        missing.

        Raises `NoCandidateError` if it does not build, `ToolchainError` if nothing can be built here.
        """
        key, loaded = self.problem.key_of(choice.workload.dims), self.loaded
        shape = self._shape(key, loaded)
        with shape.lock:
            if shape.kernel is None or shape.kernel.choice != choice:
                [built] = self.builder.build([choice])
                if built.failure is not None:
                    fault = f"{built.failure.kind}: {built.failure.message}"
                    raise NoCandidateError(f"{choice.config} does not build for {self._label(key)}: {fault}")
                loaded.choices[key] = choice
                self._start(key, shape, self._kernel(choice, built))
            assert shape.kernel is not None
            return shape.kernel

    def prepare(self, keys: Sequence[ShapeKey]) -> None:
        """Build the kernels of the shapes that are new, together, and make them active."""
        loaded = self.loaded
        new = [key for key in keys if self.active(key) is None]
        choices = [self._choose(key, loaded) for key in new]
        for key, choice, built in zip(new, choices, self.builder.build(choices), strict=True):
            if built.failure is not None:
                self.activate(key)  # with another choice
                continue
            shape = self._shape(key, loaded)
            with shape.lock:
                if shape.kernel is None:
                    self._start(key, shape, self._kernel(choice, built))

    def rebuild(self, key: ShapeKey) -> ActiveKernel | None:
        """Build the active kernel of a shape anew, if its library cannot be loaded; None if that fails."""
        shape, kernel = self.activate(key)  # a new one if others were loaded since
        with shape.lock:
            kernel = shape.kernel or kernel
            self.builder.discard(kernel.choice, kernel.built)
            say(f"{self._label(key)}: the built library cannot be loaded; this call builds it anew first")
            [built] = self.builder.build([kernel.choice])
            if built.failure is not None:
                return None
            shape.kernel = replace(kernel, built=built)
            return shape.kernel

    def fallback(self, key: ShapeKey, is_usable: Callable[[BuildResult], bool] = bool) -> ActiveKernel | None:
        """The best built and legal kernel for a shape: one of its choices, else one with dynamic dimensions.

        Lowers and builds nothing. `is_usable` may exclude libraries.
        """
        workload, loaded = self.problem.workload(key), self.loaded
        decided = loaded.choices.get(key)
        first = [decided] if decided is not None else []
        for choice in (*first, *self.selector.choices(workload, loaded)):
            built = self.builder.find(choice)
            if built is not None and is_usable(built):
                return ActiveKernel(choice, built)
        if self.selector.is_frozen:
            return None  # every process must have the same
        space = self.problem.space(workload)
        for other in reversed(list(self._dynamic.values())):
            built = self.builder.find(other)
            if built is not None and is_usable(built) and is_legal(other.config, other.dynamic, space):
                reason = f"a fallback: it is built, and takes any {', '.join(other.dynamic)}"
                source, dynamic = ChoiceSource.DEFAULT, other.dynamic
                return ActiveKernel(Choice(workload, other.config, source, reason, dynamic=dynamic), built)
        return None

    def improve(self, key: ShapeKey, budget_s: float, challengers: int) -> Improvement:
        """Look for a faster kernel for a shape, and wait for the result."""
        shape, kernel = self.activate(key)
        return self.improver.improve(kernel.choice, budget_s, challengers, partial(self._switch, key, shape))

    def reload(self, sources: LoadedSources) -> None:
        """Choose anew for every shape, from these winners and this table. Built kernels stay built.

        Shapes and choices go with what they were made of, in one step. Calls that other threads are in end
        with the kernels that they have.
        """
        self.selector.load(sources)
        self.ready.clear()

    def reset_after_fork(self) -> None:
        """The parent builds what fallbacks wait for: the child begins with these shapes anew."""
        for shape in self.loaded.shapes.values():
            if shape.kernel is not None and shape.kernel.pending is not None:
                shape.kernel, shape.is_scheduled = None, False
        self.ready.clear()

    def close(self) -> None:
        """End the threads and worker processes, and write the last misses."""
        self.is_closed = True
        self.ready.clear()
        self.builder.close()
        self.improver.close()
        if self.misses is not None:
            self.misses.close()

    # ---- choosing and building

    def _choose(self, key: ShapeKey, loaded: LoadedSources) -> Choice:
        found = loaded.choices.get(key)
        if found is None:
            found = loaded.choices[key] = self.selector.choose(self.problem.workload(key), loaded)
        return found

    def _candidates(self, key: ShapeKey, loaded: LoadedSources) -> Iterator[Choice]:
        """The choices for a shape in the order in which they are tried."""
        first = self._choose(key, loaded)
        yield first
        for other in self.selector.choices(first.workload, loaded):
            if (other.config, other.dynamic) != (first.config, first.dynamic):
                yield other

    def _find_or_build(self, key: ShapeKey, loaded: LoadedSources) -> ActiveKernel:
        faults: list[str] = []
        for choice in self._candidates(key, loaded):
            built = self.builder.find(choice)
            if built is None:
                fallback = self.fallback(key) if self.on_miss is OnMiss.SERVE else None
                if fallback is not None:
                    return replace(fallback, pending=choice)
                if self.on_miss is OnMiss.REFUSE:
                    raise self._not_built(choice)
                if not faults:
                    self._say_that_it_builds(key, choice)
                [built] = self.builder.build([choice])
            if built.failure is None:
                if faults:
                    choice = replace(choice, reason="; ".join([choice.reason, *faults]))
                    loaded.choices[key] = choice
                return self._kernel(choice, built)
            failure = built.failure
            faults.append(
                f"{choice.config} ({choice.source}) does not build: {failure.kind}: {failure.message}"
            )
        raise NoCandidateError(f"no kernel for {self._label(key)} could be built: {'; '.join(faults)}")

    def _kernel(self, choice: Choice, built: BuildResult) -> ActiveKernel:
        if choice.dynamic:
            self._dynamic[kernel_name(self.builder.candidate(choice))] = choice
        return ActiveKernel(choice, built)

    def _say_that_it_builds(self, key: ShapeKey, choice: Choice) -> None:
        ahead = f"prepare({self.problem.prepare_arguments(choice.workload)})"
        other = "on_miss='serve' (another built kernel meanwhile) or 'refuse' (an error)"
        if self.on_miss is OnMiss.SERVE:  # none could be served
            other = "dynamic= (kernels for many sizes): no other built kernel takes this shape"
        say(
            f"{self._label(key)} has no built kernel: this call builds {choice.config} "
            f"({choice.source}) of {self.problem.template.name} first, which takes seconds. "
            f"To avoid that: call {ahead} ahead, pass a table of `tilesight plan`, whose few kernels serve "
            f"many sizes, or {other}"
        )

    def _label(self, key: ShapeKey) -> str:
        return f"{self.problem.workload(key).label} on {self.problem.target.name}"

    def _not_built(self, choice: Choice) -> InputError:
        sizes = ", ".join(f"{name}={choice.workload.dims[name]}" for name in self.problem.free)
        return InputError(
            f"{self.problem.operator.name}: the kernel for {sizes or 'this workload'} ({choice.config}) is "
            f"not built, and with on_miss='refuse' no call builds one; build it ahead: "
            f"prepare({self.problem.prepare_arguments(choice.workload)})"
        )

    # ---- the shapes

    def _shape(self, key: ShapeKey, loaded: LoadedSources) -> Shape:
        with self._lock:
            if self.is_closed:
                raise InputError("this dispatcher is closed; make a new one")
            shape = loaded.shapes.get(key)
            if shape is None:
                shape = loaded.shapes[key] = Shape()
            return shape

    def _start(self, key: ShapeKey, shape: Shape, kernel: ActiveKernel) -> None:
        """Make `kernel` the first active one of a shape."""
        shape.kernel = kernel
        is_miss = (kernel.pending or kernel.choice).source is not ChoiceSource.RECORD
        if is_miss and self.misses is not None:
            shape.calls = self.misses.counter(kernel.choice)
        if kernel.pending is not None or (is_miss and self.improver.is_automatic):
            self.improver.schedule(shape, partial(self._switch, key, shape))

    def _switch(self, key: ShapeKey, shape: Shape, choice: Choice, built: BuildResult) -> None:
        """Make another kernel the active one of a shape, or the same one with its measured time."""
        with shape.lock:
            loaded = self.loaded
            if loaded.shapes.get(key) is shape:  # else others were loaded since, and choose by themselves
                loaded.choices[key] = choice
            shape.kernel = self._kernel(choice, built)
            if choice.source is ChoiceSource.RECORD:
                shape.calls = CallCounter()
        self.ready.clear()  # the next call of each signature binds its kernel anew, which takes microseconds
