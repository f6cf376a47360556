"""`predict`: the predicted time of any TileLang kernel."""

from __future__ import annotations

from typing import Any

from ..errors import InputError, headline
from ..records.trial import Prediction
from ..target.spec import Target


def predict(prim_func: Any, target: str | Target) -> Prediction:
    """The predicted time of any TileLang kernel. Lowers in this process and needs no GPU.

    Args:
        prim_func: A PrimFunc with static shapes, or what `tilelang.compile` made of one, which is lowered
            with
            the pass options that it was compiled with.
        target: Name of a shipped target, path of a target file, a `Target`, or `auto` for the GPU found here.

    Raises:
        InputError: it is no such function, cannot be read, does not fit the target, or TileLang refuses to
            lower it (TileLang's own error is the cause).
    """
    from ..costmodel import default_model
    from ..costmodel.extract import read_profiles
    from ..lowering.lower import lower
    from ..machine.placement import locate

    chosen = locate(target, measures=False).target
    function = getattr(prim_func, "prim_func", prim_func)
    if type(function).__name__ != "PrimFunc":
        raise InputError(_wrong_type(prim_func))
    # a compiled kernel was lowered with options of its own
    options = getattr(prim_func, "pass_configs", None)
    try:
        lowered = lower(function, chosen, options)
    except Exception as error:  # TileLang raises whatever it likes
        reason = f"{type(error).__name__}: {headline(str(error))}"
        raise InputError(f"TileLang cannot lower this kernel for {chosen.name}: {reason}") from error
    try:
        return default_model().predict(read_profiles(lowered, chosen), chosen)
    except Exception as error:  # the IR may be anything
        raise InputError(
            f"this kernel cannot be predicted for {chosen.name}: {headline(str(error))}"
        ) from error


def _wrong_type(value: Any) -> str:
    name = type(value).__name__
    found = f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
    if hasattr(value, "get_tir"):  # what @tilelang.jit makes of a factory
        way_out = "give it <kernel>.get_tir(<its arguments>) or .compile(...)"
    else:
        way_out = "call the kernel's factory first"
    return f"predict takes a TileLang PrimFunc, not {found}; {way_out}"
