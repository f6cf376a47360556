"""The dispatcher: a callable for every shape of an operator, which chooses and builds the kernel of each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from types import TracebackType
from typing import Any, Self

import torch
from torch.compiler import is_dynamo_compiling

from ..builder.loaded_kernel import LaunchError, LoadedKernel
from ..errors import InputError
from ..records.trial import BuildResult
from ..records.winners import Miss
from ..tuner.resolve import check_budget
from .describe import explanation, headline
from .improve.explore import CHALLENGERS, EXPLORE_S
from .improve.paired_comparison import Improvement
from .kernels import loaded
from .kernels.bound_calls import BoundCall, CallCounter, bind_call, signature
from .kernels.torch_op import TorchOperator, default_operator
from .problem import DispatchProblem, ShapeKey
from .select.choice import Choice
from .select.loaded_sources import LoadedSources
from .shape import ActiveKernel
from .shape_table import ShapeTable

MAX_CHALLENGERS = 8
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
NO_GRADIENT = (
    "{}: an input requires a gradient, and kernels have no derivative: none will flow through this call; "
    "use torch.no_grad()"
)


class Dispatcher:
    """A callable that computes an operator with the kernel chosen for the shapes of its inputs.

    Made by `tilesight.dispatcher`. Dimensions are read from the tensors, which must be contiguous and on one
    device of the target; `out=` passes memory for the output. Threads may share a dispatcher. It is a context
    manager: `close` ends its processes and writes its last misses.
    """

    def __init__(
        self, shapes: ShapeTable, load: Callable[[], LoadedSources], close: Callable[[], None]
    ) -> None:
        """`load` reads the recorded winners from the database, and the table; `close` closes the database."""
        self._shapes, self._ready = shapes, shapes.ready
        self._load_sources, self._close = load, close
        self._operators: dict[str, TorchOperator] = {}
        operator = default_operator(self.problem, self)
        self._operators[operator.name] = operator
        self._op, self._op_out = operator.op, operator.op_out

    @property
    def problem(self) -> DispatchProblem:
        return self._shapes.problem

    # ---- calling

    def __call__(self, *inputs: torch.Tensor, out: Any = None) -> Any:
        """Compute the output, or a tuple if the operator has several outputs.

        Raises:
            InputError: the tensors do not fit the operator, or no kernel takes their memory.
            NoCandidateError: no kernel for this shape builds.
            ToolchainError: nothing can be built on this machine.
            LaunchError: the kernel cannot be loaded or launched.
        """
        if is_dynamo_compiling():
            return self._call_operator(inputs, out)
        try:
            bound = self._ready[tuple(map(signature, inputs))]
        except (KeyError, AttributeError, TypeError):
            return self._first_call(inputs, out)
        return bound(inputs, out)

    def serve(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        """Like a call, for plain tensors outside of tracing. The registered operators run it."""
        bound = self._ready.get(tuple(map(signature, inputs)))
        return bound(inputs, out) if bound is not None else self._first_plain_call(inputs, out)

    def _call_operator(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        """Call the registered operator, which torch can trace."""
        if out is None:
            return self._op(*inputs)
        self._op_out(*inputs, *(out if isinstance(out, tuple | list) else (out,)))
        return out

    def _first_call(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        self.problem.check_count(inputs)
        if all(type(tensor) in PLAIN_TYPES for tensor in inputs):
            return self._first_plain_call(inputs, out)
        return self._call_operator(inputs, out)  # fake tensors and other subclasses are handled by torch

    def _first_plain_call(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        """Choose, build, load and bind the kernel for a new signature, then call it."""
        problem = self.problem
        dims, device = problem.read(inputs), inputs[0].device
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            warnings.warn(NO_GRADIENT.format(problem.operator.name), stacklevel=3)
        key = problem.key_of(dims)
        if device.type != "cpu":
            problem.check_gpu(device, torch.cuda.get_device_name(device))
            if torch.cuda.is_current_stream_capturing():
                return self._bind_captured(key, dims, device)(inputs, out)
        problem.check_indices(inputs, dims)
        shape, kernel = self._shapes.activate(key)
        bound = self._bind(kernel, self._load(key, kernel, device), dims, device, shape.calls)
        result = bound(inputs, out)
        inputs_signature = tuple(map(signature, inputs))
        self._ready[inputs_signature] = bound
        now = self._shapes.active(key)
        if now is None or now.choice is not kernel.choice:  # replaced in the meantime
            self._ready.pop(inputs_signature, None)
        return result

    def _load(self, key: ShapeKey, kernel: ActiveKernel, device: torch.device) -> LoadedKernel:
        """Load the library of a kernel. One that cannot be loaded is built anew, once."""
        try:
            return loaded.load(kernel.built, device)
        except LaunchError:
            rebuilt = self._shapes.rebuild(key)
            if rebuilt is None:
                raise
            return loaded.load(rebuilt.built, device)

    def _bind_captured(self, key: ShapeKey, dims: Mapping[str, int], device: torch.device) -> BoundCall:
        """The call during the capture of a CUDA graph, by a loaded kernel: nothing may be built then."""

        def is_loaded(built: BuildResult) -> bool:
            return loaded.find(built, device) is not None

        kernel = self._shapes.active(key)
        if kernel is None or not is_loaded(kernel.built):
            kernel = self._shapes.fallback(key, is_loaded)
        library = None if kernel is None else loaded.find(kernel.built, device)
        if kernel is None or library is None:
            sizes = self.problem.prepare_arguments(self.problem.workload(key))
            raise InputError(
                f"{self.problem.operator.name}: no kernel that is legal for {sizes or 'this workload'} is "
                f"loaded on {device}, and none is built or loaded while a CUDA graph is captured; "
                f"before the capture call prepare({sizes})"
            )
        return self._bind(kernel, library, dims, device, CallCounter())

    def _bind(
        self,
        kernel: ActiveKernel,
        library: LoadedKernel,
        dims: Mapping[str, int],
        device: torch.device,
        calls: CallCounter,
    ) -> BoundCall:
        output_shapes = list(self.problem.output_shapes(dims).values())
        sizes = [dims[name] for name in kernel.choice.dynamic]
        workload = self.problem.workload(self.problem.key_of(dims))
        scratch = list(self.problem.template.scratch(workload, kernel.choice.config).values())
        return bind_call(library, self.problem, output_shapes, sizes, device, calls, scratch)

    # ---- choosing and preparing

    def check(self, *inputs: torch.Tensor) -> None:
        """Check inputs as the first call of a shape does: also the values of index tensors.

        Later calls of the shape do not look at values, since that waits for the device. A wrong page, length
        or label then reads memory beyond a tensor. Nor does a first call while a CUDA graph is captured.

        Raises:
            InputError: the tensors do not fit the operator, an index is out of range, or values cannot be
                read here: of fake tensors, or while a CUDA graph is captured.
        """
        problem = self.problem
        problem.check_count(inputs)
        name = problem.operator.name
        if not all(type(tensor) in PLAIN_TYPES for tensor in inputs):
            raise InputError(f"{name}: values of fake tensors cannot be checked; give plain torch tensors")
        dims, device = problem.read(inputs), inputs[0].device
        if device.type != "cpu":
            problem.check_gpu(device, torch.cuda.get_device_name(device))
            if torch.cuda.is_current_stream_capturing():
                raise InputError(
                    f"{name}: values cannot be read while a CUDA graph is captured; check before"
                )
        problem.check_indices(inputs, dims)

    def choose(self, **dims: int) -> Choice:
        """The choice for a shape: the active one, or the one that a call would try first. Builds nothing.

        Raises `InputError` for wrong sizes, `NoCandidateError` if no config is legal.
        """
        key = self.problem.key(dims)
        kernel = self._shapes.active(key)
        return self._shapes.choose(key) if kernel is None else kernel.choice

    def prepare(self, **sizes: int | Sequence[int]) -> list[Choice]:
        """Build the kernels of several shapes ahead, together, and load them if a device is present.

        Args:
            sizes: one size or several for each free dimension, e.g. `prepare(m=[1, 16, 256])`. The sizes of
                several dimensions are combined in all ways.

        Returns:
            The choice for each shape.
        """
        keys = self._keys(sizes)
        self._shapes.prepare(keys)
        device = loaded.current_device(self.problem.target)
        if device is not None:
            for key in keys:
                self._load(key, self._shapes.activate(key)[1], device)
        return [self._shapes.activate(key)[1].choice for key in keys]

    def _keys(self, sizes: Mapping[str, int | Sequence[int]]) -> list[ShapeKey]:
        """The shapes of all combinations of sizes. Raises `InputError`."""
        values = [list(given) if isinstance(given, Iterable) else [given] for given in sizes.values()]
        combinations = [dict(zip(sizes, combined, strict=True)) for combined in product(*values)]
        return list(dict.fromkeys(self.problem.key(dims) for dims in combinations))

    def improve(
        self, *, challengers: int = CHALLENGERS, budget_s: float = EXPLORE_S, **dims: int
    ) -> Improvement:
        """Look for a faster kernel for one shape, and replace the active one if a comparison proves it.

        Args:
            challengers: number of other configs to compare, at most 8.
            budget_s: seconds for finding them.
            dims: the free dimensions.

        Returns:
            The outcome. The times are measured in turns with the active kernel, and recorded.

        Raises:
            InputError: an argument is wrong, or the dispatcher is frozen.
            ToolchainError: nothing can be measured on this machine.
        """
        if self._shapes.selector.is_frozen:
            raise InputError(
                f"{self.problem.operator.name}: a frozen dispatcher replaces no kernel by itself: tune the "
                "shape and call reload()"
            )
        if not 1 <= challengers <= MAX_CHALLENGERS:
            raise InputError(
                f"challengers={challengers} must lie in 1 .. {MAX_CHALLENGERS}: all are timed in turns "
                "with the active kernel"
            )
        check_budget(budget_s)
        return self._shapes.improve(self.problem.key(dims), budget_s, challengers)

    def reload(self) -> None:
        """Read the records and the table's file again and choose anew, after a tuning run or a new plan.

        Kernels that captured CUDA graphs use stay loaded, and the graphs go on with them.

        Raises:
            DatabaseError: the records cannot be read; all stays as it was.
            InputError: the table cannot be read or used; all stays as it was.
        """
        self._shapes.reload(self._load_sources())

    def digest(self) -> str:
        """16 hex digits over what this dispatcher has loaded to choose from: records and table.

        Equal in every process and on every machine that has loaded the same. Frozen dispatchers with equal
        digests make the same choices.
        """
        return self._shapes.selector.loaded.digest()

    @property
    def misses(self) -> list[Miss]:
        """Shapes that were called without a record and are not written yet, most calls first."""
        return [] if self._shapes.misses is None else self._shapes.misses.unwritten()

    def explain(self) -> str:
        """Several lines for people: the policy, the records, and the choices for the shapes met so far."""
        return explanation(self._shapes)

    def __repr__(self) -> str:
        return f"<tilesight.dispatcher: {headline(self._shapes)}>"

    # ---- torch

    @property
    def op(self) -> Any:
        """This dispatcher as an operator of torch, with a fake kernel: `d.op(A, B)`.

        A second operator, with `_out` appended to the name, writes to memory that is passed to it.
        """
        return self._op

    def register(self, name: str) -> Any:
        """This dispatcher as an operator of torch under `namespace::name`, until the dispatcher is closed.

        Raises `InputError` if the name is malformed or taken.
        """
        operator = self._operators[name] = TorchOperator(name, self)
        return operator.op

    # ---- the end

    def close(self) -> None:
        """End the threads and processes, and write the last misses. Later calls raise `InputError`."""
        if self._shapes.is_closed:
            return
        for operator in self._operators.values():
            operator.remove()
        self._shapes.close()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
