"""A dispatcher as an operator of torch: with a fake kernel, so that torch.compile traces through it with symbolic sizes.

Two operators are registered: `name(inputs) -> outputs`, and `name_out(inputs, outputs)`, which writes to memory that it is given.
Neither has a derivative, as TileLang's kernels have none.
"""

from __future__ import annotations

import re
import threading
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from ..errors import InputError, headline
from .problem import Problem

NAMESPACE = "tilesight"
_naming = threading.RLock()


class Owner(Protocol):
    """What serves an operator's calls: a dispatcher."""

    @property
    def problem(self) -> Problem: ...

    def serve(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any: ...


@dataclass(eq=False)
class _Slot:
    """A pair of registered operators, for good: torch crashes where an operator that somebody holds is called after it was
    taken back. `owner` serves their calls; once it is closed or gone, another one of the same problem may."""

    name: str
    problem: Problem
    library: torch.library.Library
    owner: weakref.ref[Owner] | None = None

    @property
    def dispatcher(self) -> Owner | None:
        return None if self.owner is None else self.owner()

    def serve(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any:
        dispatcher = self.dispatcher
        if dispatcher is None:
            raise InputError(f"the dispatcher of operator '{self.name}' is closed or gone; keep it as long as what was compiled with it")
        return dispatcher.serve(inputs, out)


_slots: dict[str, _Slot] = {}  # by name


class TorchOperator:
    """`op` and `op_out` are the registered operators; they work until `remove`, or while the dispatcher lives."""

    def __init__(self, name: str, dispatcher: Owner) -> None:
        """`name` is `namespace::name`. Raises `InputError` where it is malformed or taken."""
        match = re.fullmatch(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)", name)
        if match is None:
            raise InputError(f"operator name '{name}' must be of the form namespace::name, e.g. mymodel::up_projection")
        namespace, plain = match.groups()
        with _naming:
            if not _is_free(name, dispatcher.problem):
                raise InputError(f"operator '{name}' is registered already; take another name")
            if name not in _slots:
                _slots[name] = _registered(name, dispatcher.problem)
            slot = self._slot = _slots[name]
            slot.owner = weakref.ref(dispatcher)
        self.name = name
        self.op: Any = getattr(getattr(torch.ops, namespace), plain).default
        self.op_out: Any = getattr(getattr(torch.ops, namespace), f"{plain}_out").default

    def remove(self) -> None:
        self._slot.owner = None


def _is_free(name: str, problem: Problem) -> bool:
    slot = _slots.get(name)
    if slot is not None:
        return slot.dispatcher is None and _same(slot.problem) == _same(problem)
    namespace, plain = name.split("::")
    packet = getattr(torch.ops, namespace)
    return not hasattr(packet, plain) and not hasattr(packet, f"{plain}_out")


def _same(problem: Problem) -> tuple[object, ...]:
    """What is computed, and of what: equal where code that was compiled with one's operator may call the other's."""
    return problem.template.name, problem.target.name, problem.dtype, dict(problem.attrs), dict(problem.fixed)


def _registered(name: str, problem: Problem) -> _Slot:
    """Raises `InputError` where torch refuses the name."""
    namespace, plain = name.split("::")
    library = None
    try:
        library = torch.library.Library(namespace, "FRAGMENT")
        slot = _Slot(name, problem, library)
        _define(slot, plain)
    except (RuntimeError, ValueError) as error:
        if library is not None:
            library._destroy()
        raise InputError(f"operator '{name}' cannot be registered: {headline(str(error))}; take another name") from error
    return slot


def _define(slot: _Slot, plain: str) -> None:
    name, problem, library = slot.name, slot.problem, slot.library
    inputs = ", ".join(f"Tensor {_argument(n)}" for n in problem.inputs)
    outputs = ", ".join(f"Tensor({chr(ord('a') + i)}!) {_argument(n)}" for i, n in enumerate(problem.outputs))
    returned = "Tensor" if len(problem.outputs) == 1 else f"({', '.join('Tensor' for _ in problem.outputs)})"
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    library.define(f"{plain}({inputs}) -> {returned}", tags=tags)
    library.define(f"{plain}_out({inputs}, {outputs}) -> ()", tags=tags)
    count, has_one = len(problem.inputs), len(problem.outputs) == 1

    def serve(*tensors: torch.Tensor) -> Any:
        return slot.serve(tensors, None)

    def serve_into(*tensors: torch.Tensor) -> None:
        slot.serve(tensors[:count], tensors[count] if has_one else tensors[count:])

    key = "CPU" if problem.torch_device == "cpu" else "CUDA"
    library.impl(plain, serve, key)
    library.impl(f"{plain}_out", serve_into, key)
    torch.library.register_fake(name, partial(_fake, problem), lib=library)
    torch.library.register_fake(f"{name}_out", _fake_into, lib=library)


def _fake(problem: Problem, *tensors: torch.Tensor) -> Any:
    """Empty outputs of the right shapes, whose sizes may be symbolic. Raises `InputError` for inputs that no kernel takes."""
    problem.check_count(tensors)
    named = dict(zip(problem.inputs, tensors, strict=True))
    for name, tensor in named.items():
        problem.check_dtype(name, tensor)
    dims = problem.read_dims({name: tensor.shape for name, tensor in named.items()})
    shapes = problem.output_shapes(dims)
    found = [tensors[0].new_empty(shape, dtype=getattr(torch, problem.dtype_of(name))) for name, shape in shapes.items()]
    return found[0] if len(found) == 1 else tuple(found)


def _fake_into(*tensors: torch.Tensor) -> None:
    """Nothing is returned, and what is written to has its shape already."""


def named_by_itself(problem: Problem, dispatcher: Owner) -> TorchOperator:
    """The operator under a name that says what it is, with a number where another one has that."""
    parts = [*(f"{n}{v}" for n, v in problem.fixed.items()), *(f"{n}{int(v)}" for n, v in problem.attrs.items()), problem.dtype]
    plain = re.sub(r"\W", "_", "_".join([problem.operator.name, *parts, problem.target.name]))
    with _naming:
        number, found = 1, f"{NAMESPACE}::{plain}"
        while not _is_free(found, problem):
            number += 1
            found = f"{NAMESPACE}::{plain}_{number}"
        return TorchOperator(found, dispatcher)


def _argument(name: str) -> str:
    """An argument's name for a schema: some letters alone are types or keywords there."""
    return f"{name}_" if name in ("out", "self", "Tensor") else name
