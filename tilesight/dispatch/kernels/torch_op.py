"""A dispatcher as an operator of torch, with a fake kernel for tracing with symbolic sizes.

Two operators are registered: `name(inputs) -> outputs`, and `name_out(inputs, outputs)`, which writes to the
memory that is passed. Neither has a derivative, because TileLang's kernels have none.
"""

from __future__ import annotations

import re
import threading
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from ...errors import InputError, headline
from ...machine.fork_locks import ForkLock
from ..problem import DispatchProblem

NAMESPACE = "tilesight"
_lock = ForkLock(threading.RLock)


class OperatorOwner(Protocol):
    """The dispatcher that runs the calls of an operator."""

    @property
    def problem(self) -> DispatchProblem: ...

    def serve(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any: ...


@dataclass(eq=False)
class _Registration:
    """A pair of operators, registered for the life of the process.

    torch crashes if an operator is called after its library was destroyed. When the dispatcher `owner` is
    closed or garbage collected, another dispatcher of the same problem may take the pair over.
    """

    name: str
    problem: DispatchProblem
    library: torch.library.Library
    owner: weakref.ref[OperatorOwner] | None = None

    @property
    def dispatcher(self) -> OperatorOwner | None:
        return None if self.owner is None else self.owner()

    def compute(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        dispatcher = self.dispatcher
        if dispatcher is None:
            raise InputError(
                f"the dispatcher of operator '{self.name}' is closed or gone; keep it as long as the code "
                "that was compiled with it"
            )
        return dispatcher.serve(inputs, out)


_registrations: dict[str, _Registration] = {}  # by operator name


class TorchOperator:
    """The registered operators `op` and `op_out` of one dispatcher. They work until `remove`."""

    def __init__(self, name: str, dispatcher: OperatorOwner) -> None:
        """`name` is `namespace::name`. Raises `InputError` if it is malformed or taken."""
        match = re.fullmatch(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)", name)
        if match is None:
            raise InputError(
                f"operator name '{name}' must be of the form namespace::name, e.g. mymodel::up_projection"
            )
        namespace, plain = match.groups()
        with _lock:
            if not _is_free(name, dispatcher.problem):
                raise InputError(f"operator '{name}' is registered already; take another name")
            if name not in _registrations:
                _registrations[name] = _registered(name, dispatcher.problem)
            self._registration = _registrations[name]
            self._registration.owner = weakref.ref(dispatcher)
        self.name = name
        self.op: Any = getattr(getattr(torch.ops, namespace), plain).default
        self.op_out: Any = getattr(getattr(torch.ops, namespace), f"{plain}_out").default

    def remove(self) -> None:
        """Release the name."""
        self._registration.owner = None


def _is_free(name: str, problem: DispatchProblem) -> bool:
    registration = _registrations.get(name)
    if registration is not None:
        return registration.dispatcher is None and _computation(registration.problem) == _computation(problem)
    namespace, plain = name.split("::")
    packet = getattr(torch.ops, namespace)
    return not hasattr(packet, plain) and not hasattr(packet, f"{plain}_out")


def _computation(problem: DispatchProblem) -> tuple[object, ...]:
    """A key that is equal for problems whose operators may replace each other in compiled code."""
    return problem.template.name, problem.target.name, problem.dtype, dict(problem.attrs), dict(problem.fixed)


def _registered(name: str, problem: DispatchProblem) -> _Registration:
    """Register a pair of operators. Raises `InputError` if torch refuses the name."""
    namespace, plain = name.split("::")
    library = None
    try:
        library = torch.library.Library(namespace, "FRAGMENT")
        registration = _Registration(name, problem, library)
        _define(registration, plain)
    except (RuntimeError, ValueError) as error:
        if library is not None:
            library._destroy()
        raise InputError(
            f"operator '{name}' cannot be registered: {headline(str(error))}; take another name"
        ) from error
    return registration


def _define(registration: _Registration, plain: str) -> None:
    name, problem, library = registration.name, registration.problem, registration.library
    inputs = ", ".join(f"Tensor {_argument(n)}" for n in problem.inputs)
    outputs = ", ".join(f"Tensor({chr(ord('a') + i)}!) {_argument(n)}" for i, n in enumerate(problem.outputs))
    returned = "Tensor" if len(problem.outputs) == 1 else f"({', '.join('Tensor' for _ in problem.outputs)})"
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    library.define(f"{plain}({inputs}) -> {returned}", tags=tags)
    library.define(f"{plain}_out({inputs}, {outputs}) -> ()", tags=tags)
    count, has_one = len(problem.inputs), len(problem.outputs) == 1

    def compute(*tensors: torch.Tensor) -> Any:
        return registration.compute(tensors, None)

    def compute_into(*tensors: torch.Tensor) -> None:
        registration.compute(tensors[:count], tensors[count] if has_one else tensors[count:])

    key = "CPU" if problem.torch_device == "cpu" else "CUDA"
    library.impl(plain, compute, key)
    library.impl(f"{plain}_out", compute_into, key)
    torch.library.register_fake(name, partial(_fake, problem), lib=library)
    torch.library.register_fake(f"{name}_out", _fake_into, lib=library)


def _fake(problem: DispatchProblem, *tensors: torch.Tensor) -> Any:
    """Empty outputs of the right shapes, which may be symbolic. Raises `InputError` for wrong inputs."""
    problem.check_count(tensors)
    named = dict(zip(problem.inputs, tensors, strict=True))
    for name, tensor in named.items():
        problem.check_dtype(name, tensor)
    dims = problem.read_dims({name: tensor.shape for name, tensor in named.items()})
    shapes = problem.output_shapes(dims)
    found = [
        tensors[0].new_empty(shape, dtype=getattr(torch, problem.dtype_of(name)))
        for name, shape in shapes.items()
    ]
    return found[0] if len(found) == 1 else tuple(found)


def _fake_into(*tensors: torch.Tensor) -> None:
    """The fake kernel of `name_out`, which returns nothing."""


def default_operator(problem: DispatchProblem, dispatcher: OperatorOwner) -> TorchOperator:
    """The operator under a name made from the problem, with a number appended if the name is taken."""
    parts = [
        *(f"{n}{v}" for n, v in problem.fixed.items()),
        *(f"{n}{int(v) if isinstance(v, bool) else v}" for n, v in problem.attrs.items()),
        problem.dtype,
    ]
    plain = re.sub(r"\W", "_", "_".join([problem.operator.name, *parts, problem.target.name]))
    with _lock:
        number, found = 1, f"{NAMESPACE}::{plain}"
        while not _is_free(found, problem):
            number += 1
            found = f"{NAMESPACE}::{plain}_{number}"
        return TorchOperator(found, dispatcher)


def _argument(name: str) -> str:
    """The name of a tensor in a schema, where some words are reserved."""
    return f"{name}_" if name in ("out", "self", "Tensor") else name
