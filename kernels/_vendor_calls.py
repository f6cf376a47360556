"""Implementations of vendors and of torch that run here."""

from collections.abc import Callable, Mapping

Call = Callable[[], object]
# what torch raises for what is not in its build, or not for this device, dtype or shape
UNUSABLE = (RuntimeError, TypeError, AttributeError, ValueError)


def usable(calls: Mapping[str, Call], errors: tuple[type[Exception], ...] = UNUSABLE) -> dict[str, Call]:
    """The calls that succeed; those that raise one of `errors` are left out."""
    return {name: call for name, call in calls.items() if _works(call, errors)}


def _works(call: Call, errors: tuple[type[Exception], ...]) -> bool:
    try:
        call()
    except errors:
        return False
    return True
