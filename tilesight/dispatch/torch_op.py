"""A dispatcher as an operator of torch: with a fake kernel, so that torch.compile traces through it with symbolic sizes.

Two operators are registered: `name(inputs) -> outputs`, and `name_out(inputs, outputs)`, which writes to memory that it is given.
Neither has a derivative, as TileLang's kernels have none.
"""

from __future__ import annotations

import re
import threading
import weakref
from functools import partial
from typing import Any, Protocol

import torch

from ..errors import InputError
from .problem import Problem

NAMESPACE = "tilesight"
_naming = threading.Lock()


class Owner(Protocol):
    """What serves an operator's calls: a dispatcher."""

    @property
    def problem(self) -> Problem: ...

    def serve(self, inputs: tuple[torch.Tensor, ...], out: Any) -> Any: ...


class TorchOperator:
    """`op` and `op_out` are the registered operators; they work until `remove`, or while the dispatcher lives."""

    def __init__(self, name: str, dispatcher: Owner) -> None:
        """`name` is `namespace::name`. Raises `InputError` where it is malformed or taken."""
        match = re.fullmatch(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)", name)
        if match is None:
            raise InputError(f"operator name '{name}' must be of the form namespace::name, e.g. mymodel::up_projection")
        namespace, plain = match.groups()
        if hasattr(getattr(torch.ops, namespace), plain):
            raise InputError(f"operator '{name}' is registered already; take another name")
        problem, owner = dispatcher.problem, weakref.ref(dispatcher)
        inputs = ", ".join(f"Tensor {_argument(n)}" for n in problem.inputs)
        outputs = ", ".join(f"Tensor({chr(ord('a') + i)}!) {_argument(n)}" for i, n in enumerate(problem.outputs))
        returned = "Tensor" if len(problem.outputs) == 1 else f"({', '.join('Tensor' for _ in problem.outputs)})"
        self._library = torch.library.Library(namespace, "FRAGMENT")
        tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
        self._library.define(f"{plain}({inputs}) -> {returned}", tags=tags)
        self._library.define(f"{plain}_out({inputs}, {outputs}) -> ()", tags=tags)

        def serve(*tensors: torch.Tensor) -> Any:
            return _alive(owner, name).serve(tensors, None)

        def serve_into(*tensors: torch.Tensor) -> None:
            count = len(problem.inputs)
            out = tensors[count] if len(problem.outputs) == 1 else tensors[count:]
            _alive(owner, name).serve(tensors[:count], out)

        key = "CPU" if problem.torch_device == "cpu" else "CUDA"
        self._library.impl(plain, serve, key)
        self._library.impl(f"{plain}_out", serve_into, key)
        torch.library.register_fake(name, partial(_fake, problem), lib=self._library)
        torch.library.register_fake(f"{name}_out", _fake_into, lib=self._library)
        self.name = name
        self.op: Any = getattr(getattr(torch.ops, namespace), plain).default
        self.op_out: Any = getattr(getattr(torch.ops, namespace), f"{plain}_out").default
        self._end = weakref.finalize(dispatcher, self._library._destroy)
        self._end.atexit = False

    def remove(self) -> None:
        self._end()


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
        number, found = 1, plain
        while hasattr(getattr(torch.ops, NAMESPACE), found):
            number += 1
            found = f"{plain}_{number}"
        return TorchOperator(f"{NAMESPACE}::{found}", dispatcher)


def _alive(owner: weakref.ref[Owner], name: str) -> Owner:
    dispatcher = owner()
    if dispatcher is None:
        raise InputError(f"the dispatcher of operator '{name}' is gone; keep it as long as what was compiled with it")
    return dispatcher


def _argument(name: str) -> str:
    """An argument's name for a schema: some letters alone are types or keywords there."""
    return f"{name}_" if name in ("out", "self", "Tensor") else name
