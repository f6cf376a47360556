"""`predict`: the predicted time of any TileLang kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import InputError, TileSightError, headline
from ..records.trial import Prediction
from ..target.spec import Target
from .foreign_kernel import find_kernel, profiles_of
from .run_time_facts import Calls, Dims, Inputs, RunTimeFacts


def predict(
    prim_func: Any,
    target: str | Target | None = None,
    dims: Dims | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    inputs: Inputs | None = None,
    density: float | None = None,
    calls: Calls | None = None,
) -> Prediction:
    """The predicted time of any TileLang kernel. Lowers in this process and needs no GPU.

    Args:
        prim_func: A PrimFunc; what `tilelang.compile` made of one, which is lowered with the pass options
            that it was compiled with; or a function that returns a PrimFunc, also under `@tilelang.jit`.
        target: Name of a shipped target, path of a target file, a `Target`, or `auto` for the GPU found here;
            None: that of the settings, else `auto`.
        dims: Sizes that the kernel takes at run time (`T.dynamic`), and values of its variables that depend
            on data, as its source names them: `m=4096,kv_len=8192`, or a mapping.
        arguments: Of the function, by name. An eager function takes the sizes that it names
            (`{"N": 4096}`).
        inputs: Example inputs of a call: arrays (NumPy, torch, lists) by name, or the arguments in order,
            None for those that do not matter. Trip counts, branches and addresses that depend on integer
            tensors are evaluated on them. If a kernel computes from its tensors how far loops and branches
            go, some of its blocks are executed on them. Run-time sizes follow from their shapes.
        density: Share of the branches on data around copies or matrix work that are taken, in 0 .. 1, where
            `inputs` do not tell; None: every such branch counts as taken.
        calls: Operations per thread of one call of a device function (`T.call_extern`), by the function's
            name: `decode=12`, or a mapping. They take the place of what the function's text says.

    Raises:
        InputError: it is no such function, an argument is missing, a size or an input does not fit, it
            cannot be read, does not fit the target, or TileLang refuses to lower it (TileLang's own error is
            the cause).
    """
    from ..costmodel import foreign_model
    from ..machine.placement import locate

    facts = RunTimeFacts(dims, inputs, density, calls)
    chosen = locate(target, measures=False).target
    with as_input_errors("traced", chosen):
        kernel = find_kernel(prim_func, chosen, arguments)
    with as_input_errors("lowered", chosen):
        profiles = profiles_of(kernel, chosen, facts)
    with as_input_errors("predicted", chosen):
        return foreign_model().predict(profiles, chosen)


@contextmanager
def as_input_errors(done: str, target: Target) -> Iterator[None]:
    """Turn what a user's function, TileLang or the model raises into `InputError`; it becomes the cause.

    Args:
        done: What could not be done with the kernel: traced, lowered, predicted.
        target: For the message.
    """
    try:
        yield
    except TileSightError:
        raise
    except Exception as error:  # the function, TileLang and the IR may raise anything
        reason = f"{type(error).__name__}: {headline(str(error))}"
        raise InputError(f"this kernel cannot be {done} for {target.name}: {reason}") from error
