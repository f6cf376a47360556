"""The dispatcher of an operator that several devices compute together: one in the process of each of them.

All ranks make the same calls, with the same shapes, in the same order. On the first call of a shape they
check that, rank 0 chooses and builds the kernel, and all load it. Later calls exchange nothing between hosts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from ...builder.loaded_kernel import LoadedKernel
from ...errors import InputError, UnknownNameError
from ...problem.axes import shape as shape_of
from ...problem.space import Config
from ..describe import explanation
from ..dispatcher import NO_GRADIENT, PLAIN_TYPES, Dispatcher
from ..kernels.bound_calls import signature
from ..problem import ShapeKey
from ..select.choice import Choice, ChoiceSource
from ..select.loaded_sources import LoadedSources
from ..shape_table import ShapeTable
from .exchange import RankStep
from .group_call import CallOrder, Seat, bind_group_call
from .members import Watch
from .shared_tensors import Place, SharedTensors


class GroupDispatcher(Dispatcher):
    """A dispatcher in one process of a group. Made by `tilesight.dispatcher(..., group=group)`.

    Every method but `choose`, `explain` and `close` is a step of all ranks. Calls of one dispatcher are made
    by one thread.
    """

    def __init__(
        self,
        shapes: ShapeTable,
        load: Callable[[], LoadedSources],
        close: Callable[[], None],
        seat: Seat,
        shared: SharedTensors,
        watch: Watch,
    ) -> None:
        """`seat`: of this process. `shared`: memory that all ranks reach. `watch`: of the other processes."""
        super().__init__(shapes, load, close)
        self._seat, self._shared, self._watch = seat, shared, watch
        self._order = CallOrder()
        self._loaded: dict[ShapeKey, tuple[Choice, LoadedKernel, Mapping[str, Place]]] = {}

    # ---- shared tensors

    def empty(self, name: str, **dims: int) -> torch.Tensor:
        """Memory for an input or output that kernels of all ranks reach; what it holds is undefined.

        A call that gets such tensors copies nothing. A part of one may be given, too, if it is contiguous and
        lies at the same place on all ranks: `C[:m]`. The memory stays as long as the dispatcher.

        Args:
            name: of the tensor, as in the operator's axes.
            dims: the free dimensions, the largest that will be needed.

        Raises:
            InputError: the operator has no such shared tensor, or a dimension is wrong.
            GroupError: the ranks disagree.
        """
        problem = self.problem
        operator = problem.operator

        def check() -> RankStep[tuple[int, ...]]:
            if name not in problem.axes:
                raise UnknownNameError(f"tensor of {operator.name}", name, problem.axes)
            if name not in self._names():
                reached = ", ".join(self._names()) or "none of its inputs and outputs"
                raise InputError(
                    f"{operator.name}: {name} is reached by its own rank only, and needs no shared memory; "
                    f"make it with torch.empty (the kernels of other ranks reach {reached})"
                )
            workload = problem.workload(problem.key(dims))
            shape = shape_of(problem.axes[name], workload.dims, problem.attrs)
            return RankStep(shape, {"tensor": name, "shape": str(shape)})

        shape, _ = self._seat.exchange.attempt(f"{operator.name}: allocate {name}", check)
        return self._shared.empty(shape, problem.dtype_of(name))

    def _names(self) -> tuple[str, ...]:
        return tuple(getattr(self.problem.operator, "shared", ()))

    # ---- calling

    def _first_call(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        others = [
            type(one) for one in inputs if isinstance(one, torch.Tensor) and type(one) not in PLAIN_TYPES
        ]
        if others:
            return self._call_operator(inputs, out)  # fake tensors and other subclasses are handled by torch
        return self._first_plain_call(inputs, out)

    def _first_plain_call(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        """Agree on the shape with all ranks, choose, build, load and bind its kernel, then call it."""
        problem = self.problem
        is_capturing = self._device.type != "cpu" and torch.cuda.is_current_stream_capturing()

        def read() -> RankStep[ShapeKey]:
            dims, key = self._read(inputs)
            self._check_tensors(inputs, out, dims)
            if not is_capturing:
                problem.check_indices(inputs, dims)
            elif key not in self._loaded:
                sizes = problem.prepare_arguments(problem.workload(key))
                raise InputError(
                    f"{problem.operator.name}: no kernel for {sizes or 'this workload'} is loaded, and none "
                    "is while a CUDA graph is captured; call it once before the capture"
                )
            return RankStep(key, {"the shape": problem.workload(key).label})

        key, _ = self._seat.exchange.attempt(f"{problem.operator.name}: call", read)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            warnings.warn(NO_GRADIENT.format(problem.operator.name), stacklevel=3)
        if key not in self._loaded:
            self._activate([key])
        choice, library, scratch = self._loaded[key]
        candidate = problem.candidate(choice.workload, choice.config, choice.dynamic)
        bound = bind_group_call(
            library,
            problem,
            candidate,
            scratch,
            self._seat,
            self._shared,
            self._order,
            self._watch.waiting,
            self._shapes.activate(key)[0].calls,
        )
        result = bound(inputs, out)
        self._ready[tuple(map(signature, inputs))] = bound
        return result

    def _read(self, inputs: Sequence[torch.Tensor]) -> tuple[dict[str, int], ShapeKey]:
        """All dimensions of a call, and its shape. Raises `InputError` for what this rank cannot compute."""
        self._check_open()
        problem = self.problem
        dims = problem.read(inputs)
        if inputs[0].device != self._device:
            raise InputError(
                f"{problem.operator.name}: the tensors lie on {inputs[0].device}, and this rank's device "
                f"is {self._device}, which was current when the dispatcher was made; move them there"
            )
        key = problem.key_of(dims)
        problem.workload(key)  # refused if the operator refuses it
        return dims, key

    def _check_tensors(self, inputs: Sequence[torch.Tensor], out: Any, dims: Mapping[str, int]) -> None:
        """Raise `InputError` for what a call would refuse on this rank, while others begin it."""
        problem = self.problem
        shapes = problem.output_shapes(dims)
        given = () if out is None else (out,) if len(shapes) == 1 else tuple(out)
        if len(given) not in (0, len(shapes)):
            raise InputError(
                f"{problem.operator.name}: out has {len(given)} tensors; give {', '.join(shapes)}"
            )
        outputs = dict(zip(shapes, given, strict=False))
        for name, tensor in outputs.items():
            problem.check_output(name, tensor, shapes[name], self._device)
        named = dict(zip(problem.inputs, inputs, strict=True))
        problem.check_layout({**named, **outputs})
        problem.check_overlap(named, outputs)

    def _activate(self, keys: Sequence[ShapeKey]) -> None:
        """The kernels of new shapes: chosen and built by rank 0, loaded by all. A step of all ranks."""
        problem, exchange = self.problem, self._seat.exchange

        def choose() -> RankStep[None]:
            if self._shapes.selector.is_frozen:
                return RankStep(None, self._frozen_choices(keys), self._build(keys))
            return RankStep(None, told=self._build(keys))

        _, told = exchange.attempt(f"{problem.operator.name}: choose and build kernels", choose)

        def load() -> RankStep[list[tuple[Choice, LoadedKernel]]]:
            found = []
            for key, fields in zip(keys, told[0], strict=True):
                choice = _from_json(problem.workload(key), fields)
                kernel = self._shapes.activate(key)[1] if self._seat.rank == 0 else self._shapes.adopt(choice)
                found.append((choice, self._load(key, kernel, self._device)))
            return RankStep(found)

        kernels, _ = exchange.attempt(f"{problem.operator.name}: load kernels", load)
        for key, (choice, library) in zip(keys, kernels, strict=True):
            wanted = problem.template.shared_scratch(choice.workload, choice.config)
            self._loaded[key] = choice, library, self._shared.scratch(wanted)

    def _build(self, keys: Sequence[ShapeKey]) -> list[dict[str, Any]]:
        """The choices of rank 0, whose kernels are built; of other ranks nothing."""
        if self._seat.rank:
            return []
        if len(keys) > 1:
            self._shapes.prepare(keys)
        return [_to_json(self._shapes.activate(key)[1].choice) for key in keys]

    def _frozen_choices(self, keys: Sequence[ShapeKey]) -> dict[str, str]:
        """The own choices, by shape: every rank of a frozen dispatcher makes the same."""
        chosen = (self._shapes.choose(key) for key in keys)
        return {f"the choice for {c.workload.label}": f"{c.config} {','.join(c.dynamic)}" for c in chosen}

    @property
    def _device(self) -> torch.device:
        return self._shared.memory.device

    def _check_open(self) -> None:
        if self._shapes.is_closed:
            raise InputError("this dispatcher is closed; make a new one")
        self._watch.check()

    def check(self, *inputs: torch.Tensor) -> None:
        """As `Dispatcher.check`. A step of all ranks: what is wrong on one is told to all."""

        def look() -> RankStep[None]:
            _, key = self._read(inputs)
            Dispatcher.check(self, *inputs)
            return RankStep(None, {"the shape": self.problem.workload(key).label})

        self._seat.exchange.attempt(f"{self.problem.operator.name}: check", look)

    # ---- choosing and preparing

    def choose(self, **dims: int) -> Choice:
        """The choice for a shape: the one of all ranks if it was called or prepared, else what this rank
        would choose. Builds nothing, and is no step of all ranks.
        """
        return super().choose(**dims)

    def prepare(self, **sizes: int | Sequence[int]) -> list[Choice]:
        """As `Dispatcher.prepare`. A step of all ranks."""

        def read() -> RankStep[list[ShapeKey]]:
            self._check_open()
            keys = self._keys(sizes)
            labels = [self.problem.workload(key).label for key in keys]
            return RankStep(keys, {"the shapes": ", ".join(labels)})

        keys, _ = self._seat.exchange.attempt(f"{self.problem.operator.name}: prepare", read)
        new = [key for key in keys if key not in self._loaded]
        if new:
            self._activate(new)
        return [self._loaded[key][0] for key in keys]

    def improve(self, **_: Any) -> NoReturn:
        """Refused: this process has one device of the group."""
        operator, target = self.problem.operator.name, self.problem.target.name
        raise InputError(
            f"{operator}: a dispatcher in a process group measures nothing; `tilesight tune {operator} "
            f"--target {target}` measures, in one process, and dispatchers made later use what it records"
        )

    def reload(self) -> None:
        """As `Dispatcher.reload`. A step of all ranks: they wait for each other and switch together, or none
        does. Of a dispatcher that is not frozen the records of rank 0 count.

        Raises:
            GroupError: a rank cannot read its records or table, or the ranks have read different ones; all
                stays as it was.
        """

        def read() -> RankStep[LoadedSources]:
            self._check_open()
            found = self._load_sources()
            facts = found.facts()
            return RankStep(
                found, facts if self._shapes.selector.is_frozen else {"the table": facts["the table"]}
            )

        sources, _ = self._seat.exchange.attempt(f"{self.problem.operator.name}: reload", read)
        self._loaded.clear()
        self._shapes.reload(sources)

    def explain(self) -> str:
        seat = self._seat
        return (
            f"{explanation(self._shapes)}\n  rank {seat.rank} of {seat.world}; shared memory: "
            f"{self._shared.size / 2**20:.1f} MiB of each rank; rank 0 chooses"
        )

    def close(self) -> None:
        """As `Dispatcher.close`. No step of all ranks; none of them may be in a call of this dispatcher."""
        self._watch.close()
        super().close()


def _to_json(choice: Choice) -> dict[str, Any]:
    return {
        "config": dict(choice.config),
        "source": choice.source.value,
        "reason": choice.reason,
        "expected_us": choice.expected_us,
        "is_measured": choice.is_measured,
        "dynamic": list(choice.dynamic),
    }


def _from_json(workload: Any, fields: Mapping[str, Any]) -> Choice:
    return Choice(
        workload,
        Config(fields["config"]),
        ChoiceSource(fields["source"]),
        fields["reason"],
        fields["expected_us"],
        fields["is_measured"],
        tuple(fields["dynamic"]),
    )
