"""One call of a user's function: its arguments, its keys in this process, and its workload."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, WorkloadError
from ..problem.workload import MAX_DIMENSION, Workload
from .content import content_hash
from .interface import Interface

REST = "others"  # attribute of a workload: a hash of arguments that are no whole numbers or truth values


@dataclass(frozen=True)
class Call:
    """`named`: all arguments by name, with defaults, without those that configs choose.

    `key` identifies the call in this process, `tuned_key` what it is tuned for: it leaves out unspecialized
    arguments."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    named: Mapping[str, Any]
    chosen: tuple[str, ...]  # arguments that configs would choose and the caller gave
    key: Hashable
    tuned_key: Hashable
    is_eager: bool = False
    sized: frozenset[str] = frozenset()  # arguments that are tensors of an eager function, or sizes of them

    def run_time_arguments(self, names: Sequence[str]) -> tuple[Any, ...]:
        """What an eager function's kernel is called with, tensors and numbers; none if some are missing."""
        return tuple(self.named[name] for name in names) if all(n in self.named for n in names) else ()

    def workload(self, operator: str, interface: Interface, unspecialized: tuple[str, ...]) -> Workload:
        """The workload: whole numbers are dimensions, truth values attributes, a hash stands for the rest.

        The sizes of the tensors are dimensions too, if the function is eager or no argument is a whole
        number; so are the sizes that the kernel takes at run time.

        Args:
            operator: the operator's name.
            interface: of the kernel.
            unspecialized: arguments that share one tuning.

        Raises:
            WorkloadError: a tensor has no elements.
            InputError: an argument of the function has the name of such a size.
        """
        dims: dict[str, int] = dict(interface.sizes)
        attrs: dict[str, bool | int] = {}
        rest: list[Any] = []
        has_numbers = any(type(value) is int for value in self.named.values())
        for tensor in interface.given if self.is_eager or not has_numbers else ():
            for axis, size in enumerate(tensor.shape):
                if size < 1:
                    raise WorkloadError(
                        f"{operator}: '{tensor.name}' has the shape {list(tensor.shape)}, without elements "
                        "to try kernels on"
                    )
                if not tensor.axes or not tensor.axes[axis]:
                    dims[f"{tensor.name}_{axis}"] = size
            rest.append([tensor.name, tensor.dtype])
        for name, value in self.named.items():
            if name in unspecialized or name in self.sized:
                continue
            if isinstance(value, bool):
                attrs[name] = value
            elif type(value) is int and name in dict(interface.sizes):
                raise InputError(
                    f"{operator}: {name} is an argument of the function, and another size that the kernel "
                    f"takes at run time; rename T.dynamic('{name}')"
                )
            elif type(value) is int and 1 <= value <= MAX_DIMENSION:
                dims[name] = value
            elif type(value) is int and -(2**62) < value < 2**62:
                attrs[name] = value
            else:
                rest.append([name, content_hash(value)])
        if rest:
            attrs[REST] = int(hashlib.sha256(repr(rest).encode()).hexdigest()[:13], 16)
        return Workload(operator, dims, interface.results[0].dtype, attrs)


def read_call(
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    tunables: tuple[str, ...],
    unspecialized: tuple[str, ...] = (),
    tensors: frozenset[str] = frozenset(),
    open_axes: Mapping[str, Collection[int]] | None = None,
) -> Call:
    """The arguments of one call.

    Args:
        signature: of the user's function.
        args, kwargs: as the caller gave them.
        tunables: arguments that configs choose.
        unspecialized: arguments that share one tuning.
        tensors: arguments of an eager function that are tensors. Their sizes may be given in their place, by
            the names that the function gives them.
        open_axes: axes of these tensors whose sizes the kernel takes at run time, and with no axes numbers
            that it takes: calls that differ in them alone have one key.

    Raises:
        TypeError: an argument is missing or unknown, as in a call of the function.
    """
    known = {name: value for name, value in kwargs.items() if name in signature.parameters or not tensors}
    sizes = {name: value for name, value in kwargs.items() if name not in known}
    given = dict(signature.bind_partial(*args, **known).arguments)
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if name not in given
        and name not in tunables
        and not (sizes and name in tensors)
        and parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if missing:
        raise TypeError(
            f"missing {len(missing)} required argument{'s' * (len(missing) > 1)}: {', '.join(missing)}"
        )
    named = {
        name: given.get(name, parameter.default)
        for name, parameter in signature.parameters.items()
        if name in given
        or (name not in tunables and name not in tensors and parameter.default is not inspect.Parameter.empty)
    } | dict(sorted(sizes.items()))
    chosen = tuple(name for name in tunables if name in given)
    key = tuple((name, _key_of(value, (open_axes or {}).get(name))) for name, value in named.items())
    tuned_key = tuple(pair for pair in key if pair[0] not in unspecialized)
    return Call(
        tuple(args), dict(kwargs), named, chosen, key, tuned_key, bool(tensors), tensors | frozenset(sizes)
    )


def _key_of(value: Any, open_axes: Collection[int] | None) -> Hashable:
    """A key of an argument, without what the kernel takes at run time."""
    if open_axes is None:
        return hashable(value)
    if not _is_tensor(value):
        return type(value).__name__
    shape = tuple(None if axis in open_axes else size for axis, size in enumerate(value.shape))
    return ("tensor", str(value.dtype), shape, value.is_contiguous())


def as_tilelang(value: Any) -> Any:
    """An argument as `tilelang.autotune` gives it to a function that makes the configs.

    Tensors are ("tensor", dtype, shape, strides), lists tuples, dictionaries sorted pairs.
    """
    if _is_tensor(value):
        return ("tensor", str(value.dtype), tuple(value.shape), value.stride())
    if isinstance(value, list | tuple):
        return tuple(as_tilelang(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((str(name), as_tilelang(item)) for name, item in value.items()))
    return value


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "is_contiguous") and hasattr(value, "shape") and hasattr(value, "dtype")


def hashable(value: Any) -> Hashable:
    """A key of a value in this process. Equal numbers of different types have different keys."""
    kind = type(value)
    if kind is int or kind is str:  # most arguments
        found: Hashable = value
        return found
    if kind is tuple or kind is list:
        return (kind.__name__, *map(hashable, value))
    if kind is dict:
        return ("dict", *((name, hashable(value[name])) for name in sorted(value, key=str)))
    if _is_tensor(value):
        return ("tensor", str(value.dtype), tuple(value.shape), tuple(value.stride()))
    if kind.__name__ == "Var" and kind.__module__.startswith("tvm"):  # T.dynamic("m"), made for each call
        return (kind.__name__, str(value.name), str(value.dtype))
    try:
        hash(value)
    except TypeError:
        return (kind.__name__, content_hash(value))
    return (kind, value)
