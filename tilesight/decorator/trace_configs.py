"""Traces configs of a user's function, in the process that calls it."""

from __future__ import annotations

import inspect
from typing import Any

from ..errors import InputError, NoCandidateError, headline
from ..problem.space import Config
from .arguments import Call
from .config_space import Choices
from .user_function import UserFunction

_MOST_TRIED = 16  # configs that are tried in search of one that works


def first_configs(choices: Choices) -> list[Config]:
    """The default config, then the first ones of the space."""
    first = choices.first
    found = [*([first] if first is not None else []), *choices.space.configs()[:_MOST_TRIED]]
    return list(dict.fromkeys(found))


def first_traced(function: UserFunction, call: Call, choices: Choices) -> tuple[Config, Any]:
    """The first config that can be traced, and its PrimFunc.

    Raises:
        NoCandidateError: no config is legal, or the first ones all raise.
        InputError: the function returns no PrimFunc.
    """
    order = first_configs(choices)
    if not order:
        count = choices.space.census().size
        raise NoCandidateError(
            f"{function.name}: none of {count} configs is legal; loosen the constraints of its space"
        )
    failed: Exception | None = None
    for config in order:
        try:
            return config, function.trace(call.args, call.kwargs, choices.values(config))
        except InputError:
            raise
        except Exception as error:  # the user's code may raise anything
            failed = failed or error
    reason = f"{type(failed).__name__}: {headline(str(failed))}"
    raise NoCandidateError(
        f"{function.name}: none of {len(order)} configs can be traced; the first says {reason}"
    ) from failed


def default_ir(function: UserFunction, call: Call, choices: Choices) -> str:
    """The IR with the defaults of the signature, whatever the configs; "" if they make no kernel."""
    parameters = function.signature.parameters
    missing = (None, inspect.Parameter.empty)
    if any(name not in parameters or parameters[name].default in missing for name in choices.names):
        return ""
    try:
        return str(function.trace(call.args, call.kwargs, {}).script())
    except Exception:  # the user's code may raise anything
        return ""
