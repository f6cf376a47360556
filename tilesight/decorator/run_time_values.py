"""Sizes and numbers that a kernel takes at run time: their values at one call, at which it is measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError
from .interface import axis_names, result_places


def run_time_values(
    prim_func: Any,
    out_idx: Sequence[int] | int | None,
    subject: str,
    given: Sequence[Any],
    fixed: Mapping[str, int | float],
    default: int | None = None,
) -> dict[str, int | float]:
    """The values of all sizes and numbers that are known, by name.

    Args:
        prim_func: the traced kernel.
        out_idx: places of the arguments that its call returns.
        subject: its name, for messages.
        given: what the caller passes, tensors and numbers, in the order of the other arguments; empty if the
            call passes none.
        fixed: values of the decorator (`measured_at`), which take precedence.
        default: of those that nobody gives, for a kernel that is not measured; None: they are left out.

    Raises:
        InputError: two tensors disagree on a size, or `fixed` names no size or number of the kernel.
    """
    found: dict[str, int | float] = {}
    names: list[str] = []
    results = result_places(prim_func, out_idx, subject)
    taken = [p for place, p in enumerate(prim_func.params) if place not in results]
    values = dict(zip(taken, given, strict=False))
    for parameter in prim_func.params:
        value = values.get(parameter)
        if parameter not in prim_func.buffer_map:
            names.append(str(parameter.name))
            if isinstance(value, bool | int | float):
                found[names[-1]] = value
            continue
        axes = axis_names(prim_func.buffer_map[parameter], subject)
        names += [axis for axis in axes if axis]
        for axis, size in zip(axes, getattr(value, "shape", ()), strict=False):
            if axis and found.setdefault(axis, int(size)) != size and axis not in fixed:
                raise InputError(f"{subject}: the given tensors disagree on {axis}: {found[axis]} and {size}")
    strange = [name for name in fixed if name not in names]
    if strange:
        known = ", ".join(dict.fromkeys(names)) or "none"
        raise InputError(
            f"{subject}: measured_at names {strange[0]}, which its kernel does not take at run time; it "
            f"takes: {known}"
        )
    unknown = {} if default is None else dict.fromkeys(names, default)
    return {**unknown, **found, **fixed}


def open_axes(prim_func: Any, names: Sequence[str], subject: str) -> dict[str, frozenset[int]]:
    """By argument of an eager function: the axes whose sizes its kernel takes at run time.

    Numbers have none; tensors of fixed sizes are left out.
    """
    found: dict[str, frozenset[int]] = {}
    for name, parameter in zip(names, prim_func.params, strict=False):
        if parameter not in prim_func.buffer_map:
            found[name] = frozenset()
            continue
        axes = axis_names(prim_func.buffer_map[parameter], subject)
        if any(axes):
            found[name] = frozenset(axis for axis, size in enumerate(axes) if size)
    return found


def inputs_of_block() -> tuple[Any, ...]:
    """The arguments of the `set_autotune_inputs` block around the call; none outside of one."""
    capture = sys.modules.get("tilelang.autotuner.capture")
    found = capture.get_autotune_inputs() if capture is not None else None
    return tuple(found or ())
