"""The policy of a frozen dispatcher for shapes that it does not know."""

from __future__ import annotations

from enum import StrEnum

from ..errors import InputError, UnknownNameError


class OnUnknown(StrEnum):
    """What a frozen dispatcher does for a shape that has neither a record nor an entry of the table.

    refuse   raise `InputError`
    default  use the default config of the template
    nearest  use the table's entry for the nearest size, else the winner of the nearest recorded shape; refuse
             if neither is legal
    """

    REFUSE = "refuse"
    DEFAULT = "default"
    NEAREST = "nearest"


def on_unknown_named(name: str | None, is_frozen: bool) -> OnUnknown | None:
    """The policy; None if the dispatcher is not frozen.

    Raises:
        UnknownNameError: there is no such policy.
        InputError: the dispatcher is not frozen, and a policy is named.
    """
    if name is not None and name not in list(OnUnknown):
        raise UnknownNameError("on_unknown", name, [policy.value for policy in OnUnknown])
    if not is_frozen:
        if name is not None:
            raise InputError(
                f"on_unknown='{name}' is for frozen dispatchers: give frozen=True too; others choose a "
                "config for every shape"
            )
        return None
    return OnUnknown.REFUSE if name is None else OnUnknown(name)
