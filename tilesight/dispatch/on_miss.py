"""The policy of a dispatcher for shapes whose kernel is not built."""

from __future__ import annotations

from enum import StrEnum

from ..errors import UnknownNameError


class OnMiss(StrEnum):
    """What a call does if the kernel of its shape is not built.

    wait    build it, and wait for that
    serve   use another kernel that is built, if one is legal, and build the chosen one in the background
    refuse  raise `InputError`
    """

    WAIT = "wait"
    SERVE = "serve"
    REFUSE = "refuse"


def on_miss_named(name: str) -> OnMiss:
    """Raises `UnknownNameError`."""
    if name not in list(OnMiss):
        raise UnknownNameError("on_miss", name, [policy.value for policy in OnMiss])
    return OnMiss(name)
