"""Reads the configs that a kernel's own `@autotune` lists, and chooses among them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..problem.config import Config

if TYPE_CHECKING:
    from ..decorator.config_space import Choices

MOST_CONFIGS = 2048  # that are compared


def own_choices(given: Any, arguments: Mapping[str, Any]) -> Choices | None:
    """The configs of the autotuner around a function; None if there is none, or nothing is left to choose.

    Args:
        given: what a file names.
        arguments: of the function, by name. Only configs that agree with them count; nothing is left to
            choose if they have all that the configs choose.

    Raises:
        InputError: the configs are no list of dictionaries or dictionary of values, or none agrees.
        Exception: whatever a function that makes the configs raises.
    """
    from ..decorator.config_space import read_choices
    from ..decorator.user_function import UserFunction

    found: Choices
    if type(given).__name__ == "Autotuned":
        found = given.choices_for(arguments)
    elif hasattr(given, "jit_impl") and getattr(given, "configs", None) is not None:
        function = UserFunction(given.jit_impl)
        listed = given.configs
        if callable(listed):
            listed = _made(listed, arguments, function.name)
        found = read_choices(listed, None, (), function.signature, function.name)
    else:
        return None
    return None if set(found.names) <= set(arguments) else found


def agreeing(choices: Choices, arguments: Mapping[str, Any], name: str) -> list[Config]:
    """The configs that have the values of those arguments that were given.

    Raises `InputError` if there is none, or if there are more than `MOST_CONFIGS`.
    """
    fixed = {key: value for key, value in arguments.items() if key in choices.names}
    configs = list(choices.space.configs())
    found = [config for config in configs if _agrees(choices.values(config), fixed)]
    if not found:
        told = ", ".join(f"{key}={value}" for key, value in fixed.items())
        raise InputError(f"{name}: none of its {len(configs)} own configs has {told}")
    if len(found) > MOST_CONFIGS:
        raise InputError(
            f"{name} has {len(found)} configs of its own, and {MOST_CONFIGS} are compared at most: choose "
            "one with --config, or fix arguments with --arg"
        )
    return found


def chosen(choices: Choices, configs: list[Config], text: str, name: str) -> Config:
    """The config that `text` names: its number from 1, `k=v,...` or a JSON object. Raises `InputError`."""
    if text.strip().isdecimal():
        if not 1 <= int(text) <= len(configs):
            raise InputError(f"{name} has the configs 1 .. {len(configs)}, not {text.strip()}")
        return configs[int(text) - 1]
    wanted = choices.space.read(text)
    found = [config for config in configs if all(config.get(key) == value for key, value in wanted.items())]
    if len(found) != 1:
        many = "several" if found else "none"
        raise InputError(
            f"{name}: {many} of its {len(configs)} own configs {'have' if found else 'has'} {text}; "
            "`tilesight rank --file` lists them with their numbers"
        )
    return found[0]


def _agrees(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> bool:
    return all(key in values and bool(values[key] == value) for key, value in fixed.items())


def _made(function: Any, arguments: Mapping[str, Any], name: str) -> Any:
    """The configs that a function makes of a call's arguments."""
    signature = inspect.signature(function)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        # the others are arguments that configs choose, and fix their values
        arguments = {key: value for key, value in arguments.items() if key in signature.parameters}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"{name}: the function that makes its configs takes other arguments ({error}); give those of a "
            "call with --arg"
        ) from None
    return function(**arguments)
