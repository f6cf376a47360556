"""The dispatcher: a callable for every shape of a problem, that finds or builds the right kernel for each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from types import TracebackType
from typing import Any, Self

import torch
from torch.compiler import is_dynamo_compiling

from ..artifact import LaunchError, LoadedKernel
from ..errors import InputError
from ..known import Miss
from ..lookup import check_budget
from . import loaded
from .choice import Choice
from .describe import explanation, headline
from .improve import CHALLENGERS, EXPLORE_S, Improvement
from .problem import Key, Problem
from .records import Records
from .service import Service
from .serving import Calls, Serve, serve_with, signature
from .supply import Served, Supply, keep
from .torch_op import TorchOperator, named_by_itself

MOST_SIGNATURES = 8192  # calls that are ready in memory; the older half goes when there are more
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_GRADIENT = "{}: an input requires a gradient, and kernels have no derivative: none will flow through this call; use torch.no_grad()"


class Dispatcher:
    """`d(A, B)` computes the operator with the kernel chosen for the shapes of its inputs; `out=` takes memory for the output.

    Dimensions are read off the tensors, which must be contiguous and on one device of the target. Threads may share it. A
    context manager: `close` ends its processes and writes its last misses. Make it with `tilesight.dispatcher`.
    """

    def __init__(
        self, service: Callable[[Callable[[], None]], Service], read_records: Callable[[], Records], close: Callable[[], None]
    ) -> None:
        """`service` makes the service, given what it calls when another kernel begins to serve a shape; `read_records` reads
        the database anew; `close` ends what was opened for this dispatcher."""
        self._seen: dict[tuple[Any, ...], Serve] = {}
        self._service = service(self._seen.clear)
        self._read_records, self._close = read_records, close
        self._names: dict[str, TorchOperator] = {}
        registered = named_by_itself(self.problem, self)
        self._names[registered.name] = registered
        self._op, self._op_out = registered.op, registered.op_out

    @property
    def problem(self) -> Problem:
        return self._supply.problem

    @property
    def _supply(self) -> Supply:
        return self._service.supply

    # ---- calling

    def __call__(self, *inputs: torch.Tensor, out: Any = None) -> Any:
        """The output (a tuple where the operator has several). Raises `InputError` for tensors that no kernel takes,
        `NoCandidateError` where no kernel builds, `ToolchainError` where none can be built here, `LaunchError` where a launch is
        refused."""
        if is_dynamo_compiling():
            return self._traced(inputs, out)
        try:
            ready = self._seen[tuple(map(signature, inputs))]
        except (KeyError, AttributeError, TypeError):
            return self._first_call(inputs, out)
        return ready(inputs, out)

    def _traced(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        if out is None:
            return self._op(*inputs)
        self._op_out(*inputs, *(out if isinstance(out, tuple | list) else (out,)))
        return out

    def serve(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        """A call that is certainly no tracing: what the registered operators run."""
        ready = self._seen.get(tuple(map(signature, inputs)))
        return ready(inputs, out) if ready is not None else self._first_eager_call(inputs, out)

    def _first_call(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        self.problem.check_count(inputs)
        if all(type(tensor) in _PLAIN for tensor in inputs):
            return self._first_eager_call(inputs, out)
        return self._traced(inputs, out)  # fake tensors and other classes: torch knows what an operator means for them

    def _first_eager_call(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        dims, device = self.problem.read(inputs), inputs[0].device
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            warnings.warn(_NO_GRADIENT.format(self.problem.operator.name), stacklevel=3)
        key = self.problem.key_of(dims)
        if device.type != "cpu":
            self._check_gpu(device)
            if torch.cuda.is_current_stream_capturing():
                return self._captured(key, dims, device)(inputs, out)
        slot, served = self._service.serve(key)
        kernel = self._load(key, served, device)
        ready = self._bound(served, kernel, dims, device, slot.calls)
        found = ready(inputs, out)
        sign = tuple(map(signature, inputs))
        keep(self._seen, sign, ready, MOST_SIGNATURES)
        now = self._service.known(key)
        if now is None or now.choice is not served.choice:  # another one began to serve meanwhile
            self._seen.pop(sign, None)
        return found

    def _load(self, key: Key, served: Served, device: torch.device) -> LoadedKernel:
        """Its library; one that was damaged in the cache is built anew, once."""
        try:
            return loaded.load(served.built, device)
        except LaunchError:
            slot = self._service.slot(key)
            with slot.lock:
                again = self._service.rebuilt(key, slot)
            if again is None:
                raise
            return loaded.load(again.built, device)

    def _captured(self, key: Key, dims: Mapping[str, int], device: torch.device) -> Serve:
        """While a CUDA graph is captured nothing is built or loaded: the best that is loaded serves."""

        def is_loaded(built: Any) -> bool:
            return loaded.find(built, device) is not None

        served = self._service.known(key)
        if served is None or not is_loaded(served.built):
            served = self._supply.stand_in(self.problem.workload(key), is_loaded)
        kernel = None if served is None else loaded.find(served.built, device)
        if served is None or kernel is None:
            lists = self.problem.lists(self.problem.workload(key))
            raise InputError(
                f"{self.problem.operator.name}: no kernel that can serve {lists or 'this workload'} is loaded on {device}, and none is "
                f"built or loaded while a CUDA graph is captured; before the capture call prepare({lists})"
            )
        return self._bound(served, kernel, dims, device, Calls())

    def _bound(self, served: Served, kernel: LoadedKernel, dims: Mapping[str, int], device: torch.device, calls: Calls) -> Serve:
        shapes = list(self.problem.output_shapes(dims).values())
        return serve_with(kernel, self.problem, shapes, [dims[name] for name in served.choice.open], device, calls)

    def _check_gpu(self, device: torch.device) -> None:
        """No kernel that was chosen for one chip runs on another."""
        names, found = self.problem.target.device_names, torch.cuda.get_device_name(device)
        if names and found not in names:
            raise InputError(
                f"{self.problem.operator.name}: the tensors lie on {device}, a '{found}', and target {self.problem.target.name} is "
                f"{' or '.join(names)}; make a dispatcher for that device's target"
            )

    # ---- asking and preparing

    def choose(self, **dims: int) -> Choice:
        """What serves a shape, or would: config, where that comes from, and why. Builds nothing; raises `InputError` for sizes
        that are none, `NoCandidateError` where nothing is legal."""
        key = self.problem.key(dims)
        served = self._service.known(key)
        return self._supply.choice(key) if served is None else served.choice

    def prepare(self, **sizes: int | Sequence[int]) -> list[Choice]:
        """Build the kernels of these shapes ahead, together, and load them on the current device of the target if there is one:
        `prepare(m=[1, 16, 256])`, for all combinations where several dimensions are free. Returns what serves each.
        """
        lists = [list(given) if isinstance(given, Iterable) else [given] for given in sizes.values()]
        keys = list(dict.fromkeys(self.problem.key(dict(zip(sizes, values, strict=True))) for values in product(*lists)))
        fresh = [key for key in keys if self._service.known(key) is None]
        choices = [self._supply.choice(key) for key in fresh]
        for key, choice, built in zip(fresh, choices, self._supply.build(choices), strict=True):
            if built.failure is None:
                self._service.begin(key, self._supply.served(choice, built))
            else:
                self._service.serve(key)  # its next choice
        device = self._device_at_hand()
        if device is not None:
            for key in keys:
                self._load(key, self._service.serve(key)[1], device)
        return [self._service.serve(key)[1].choice for key in keys]

    def improve(self, *, challengers: int = CHALLENGERS, budget_s: float = EXPLORE_S, **dims: int) -> Improvement:
        """Look for a better config for a shape, for up to `budget_s`, and time it in turns with the one that serves. That is
        replaced only where these pairs leave no doubt; what was measured is recorded. Raises `ToolchainError` where nothing can
        be measured here."""
        if not 1 <= challengers <= 8:
            raise InputError(f"challengers={challengers} must lie in 1 .. 8: all are timed in turns with the present kernel")
        check_budget(budget_s)
        return self._service.improve(self.problem.key(dims), challengers, budget_s)

    def refresh(self) -> None:
        """Read the records anew and decide anew: after a tuning run of this or another process. Raises `DatabaseError`."""
        self._supply.selector.records = self._read_records()
        self._service.forget()

    @property
    def misses(self) -> list[Miss]:
        """Shapes that were called without an exact record, as far as they are not written yet; most calls first."""
        return [] if self._service.misses is None else self._service.misses.found()

    def explain(self) -> str:
        """Several lines for people: what it knows, and what serves each shape it met, with the reason."""
        return explanation(self._service)

    def __repr__(self) -> str:
        return f"<tilesight.dispatcher: {headline(self._service)}>"

    # ---- torch

    @property
    def op(self) -> Any:
        """It as an operator of torch, with a fake kernel: `d.op(A, B)`. Its `_out` companion writes to memory that is given."""
        return self._op

    def register(self, name: str) -> Any:
        """It as an operator of torch under `namespace::name`, for as long as it lives. Raises `InputError` for a name that is
        none, or taken."""
        registered = self._names[name] = TorchOperator(name, self)
        return registered.op

    # ---- the end

    def close(self) -> None:
        """End its threads and processes, write its last misses. No call may follow."""
        if self._service.is_closed:
            return
        self._service.is_closed = True
        self._seen.clear()
        for registered in self._names.values():
            registered.remove()
        self._supply.workshop.close()
        self._service.background.workshop.close()
        if self._service.misses is not None:
            self._service.misses.close()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _device_at_hand(self) -> torch.device | None:
        if not self.problem.target.is_gpu:
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
