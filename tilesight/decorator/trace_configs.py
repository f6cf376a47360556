"""Traces configs of a user's function in a copy of the process that calls it, since TileLang may crash."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping
from typing import Any

from ..errors import InputError, NoCandidateError, headline
from ..problem.space import Config
from ..workers import Crashed, Done, ProcessCopy, TimedOut
from .arguments import Call
from .config_space import Choices
from .user_function import UserFunction

_MOST_TRIED = 16  # configs that are tried in search of one that works
_LIMIT_S = 120.0  # for one config


class TraceError(Exception):
    """The user's function, or TileLang in it, raised or crashed at one config."""


class Traces:
    """Traces configs at one call's arguments.

    A config that crashes the copy costs that config. What raises in the copy is traced again in this process:
    the error is then the user's own, and a function that needs the GPU, which a copy cannot use, works.

    Attributes:
        args, kwargs: arguments of the call.
    """

    def __init__(
        self, function: UserFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any], choices: Choices
    ) -> None:
        self.args, self.kwargs = args, kwargs
        self._function, self._choices = function, choices
        self._copy: ProcessCopy[Config | None, bytes] = ProcessCopy(
            lambda config: packed(self._here(config)), _LIMIT_S, function.forking
        )

    def trace(self, config: Config | None) -> Any:
        """The PrimFunc of a config; None: of the function's own defaults.

        Raises:
            TraceError: the config crashes TileLang, or hangs.
            InputError: the function returns no PrimFunc.
            Exception: whatever the function or TileLang raises.
        """
        found = _outcome(self._copy, config)
        if isinstance(found, Crashed | TimedOut):
            raise TraceError(f"tracing it {_fault(found)}")
        return unpacked(found.value) if isinstance(found, Done) else self._here(config)

    def _here(self, config: Config | None) -> Any:
        values = {} if config is None else self._choices.values(config)
        return self._function.trace(self.args, self.kwargs, values)


def first_configs(choices: Choices) -> list[Config]:
    """The default config, then the first ones of the space."""
    first = choices.first
    found = [*([first] if first is not None else []), *choices.space.configs()[:_MOST_TRIED]]
    return list(dict.fromkeys(found))


def first_traced(traces: Traces, name: str, choices: Choices) -> tuple[Config, Any]:
    """The first config that can be traced, and its PrimFunc.

    Args:
        traces: traces the configs.
        name: of the function, for messages.
        choices: the configs.

    Raises:
        NoCandidateError: no config is legal, or the first ones all raise or crash.
        InputError: the function returns no PrimFunc.
    """
    order = first_configs(choices)
    if not order:
        count = choices.space.census().size
        raise NoCandidateError(
            f"{name}: none of {count} configs is legal; loosen the constraints of its space"
        )
    failed: Exception | None = None
    for config in order:
        try:
            return config, traces.trace(config)
        except InputError:
            raise
        except Exception as error:  # the user's code may raise anything
            failed = failed or error
    raise _none_traced(name, len(order), failed) from failed


def default_ir(traces: Traces, function: UserFunction, choices: Choices) -> str:
    """The IR with the defaults of the signature, whatever the configs; "" if they make no kernel."""
    parameters = function.signature.parameters
    missing = (None, inspect.Parameter.empty)
    if any(name not in parameters or parameters[name].default in missing for name in choices.names):
        return ""
    try:
        return str(traces.trace(None).script())
    except Exception:  # the user's code may raise anything
        return ""


def find_mode(function: UserFunction, call: Call, choices: Choices) -> bool:
    """Whether the function is eager: calling it runs its kernel.

    Raises:
        NoCandidateError: TileLang crashes at the first configs while it looks.
        Exception: whatever the function raises.
    """
    order = [] if call.chosen else first_configs(choices)
    given = [choices.values(config) for config in order] or [{}]
    arguments = [{**call.kwargs, **values} for values in given]
    if not function.runs_to_know_its_mode:
        return function.is_eager(call.args, arguments[0])
    copy: ProcessCopy[int, bool] = ProcessCopy(
        lambda number: function.is_eager(call.args, arguments[number]), _LIMIT_S, function.forking
    )
    failed: TraceError | None = None
    for number in range(len(arguments)):
        found = _outcome(copy, number)
        if not isinstance(found, Crashed | TimedOut):
            if isinstance(found, Done):
                function.set_mode(eager=found.value)
            return function.is_eager(call.args, arguments[number])
        failed = failed or TraceError(f"tracing it {_fault(found)}")
    raise _none_traced(function.name, len(arguments), failed)


def packed(prim_func: Any) -> bytes:
    """A PrimFunc as compressed JSON."""
    import tilelang  # noqa: F401 - before anything of tvm
    from tvm.ir import save_json

    return zlib.compress(save_json(prim_func).encode(), 1)


def unpacked(code: bytes) -> Any:
    """The PrimFunc of `packed`."""
    import tilelang  # noqa: F401 - before anything of tvm
    from tvm.ir import load_json

    return load_json(zlib.decompress(code).decode())


def _outcome(copy: ProcessCopy[Any, Any], item: Any) -> Any:
    """The outcome in the copy; None if there can be no copy."""
    try:
        return copy.run(item)
    except OSError:  # too many processes, or too little memory for another
        return None


def _fault(found: Crashed | TimedOut) -> str:
    if isinstance(found, TimedOut):
        return f"took longer than {found.seconds:g} s"
    return f"ended the process: {found.reason}"


def _none_traced(name: str, count: int, failed: Exception | None) -> NoCandidateError:
    reason = f"{type(failed).__name__}: {headline(str(failed))}"
    return NoCandidateError(f"{name}: none of {count} configs can be traced; the first says {reason}")
