"""The user's programs for inputs and checks, and how they travel to worker processes."""

from __future__ import annotations

import pickle
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import InputError, headline
from ..machine.fork_locks import ForkLock
from .content import is_library
from .user_function import python_function

_CLOUDPICKLE = ForkLock()  # its list of modules belongs to all threads


@dataclass(frozen=True, slots=True)
class CheckPrograms:
    """`ref_prog`, `supply_prog` and `manual_check_prog`."""

    reference: Callable[..., Any] | None = None
    supply: Callable[..., Any] | None = None
    manual_check: Callable[..., Any] | None = None

    def packed(self) -> bytes:
        """The programs as code. It is compressed, so that no worker takes names in it for modules to import.

        Raises:
            InputError: a program holds something that cannot be sent.
        """
        parts = {
            "ref_prog": self.reference,
            "supply_prog": self.supply,
            "manual_check_prog": self.manual_check,
        }
        coded = [None if program is None else _code_of(name, program) for name, program in parts.items()]
        return zlib.compress(pickle.dumps(coded))


@lru_cache(maxsize=8)
def unpack_programs(packed: bytes) -> CheckPrograms:
    """The programs of `CheckPrograms.packed`."""
    coded = pickle.loads(zlib.decompress(packed))
    return CheckPrograms(*(None if code is None else pickle.loads(code) for code in coded))


def _code_of(name: str, program: Any) -> bytes:
    """A program as code, together with its module if that is not installed."""
    import cloudpickle

    module = sys.modules.get(str(getattr(python_function(program), "__module__", "")))
    if module is not None:
        named = module.__name__, getattr(module, "__file__", None)
        if module.__name__ == "__main__" or is_library(*named):
            module = None
    with _CLOUDPICKLE:
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(program))
        except Exception as error:  # parts of the program may raise anything
            raise InputError(
                f"autotune: {name} cannot be sent to the process that measures: {headline(str(error))}; "
                "take what it names out of its code, or move it to a module of its own"
            ) from error
        finally:
            if module is not None:
                cloudpickle.unregister_pickle_by_value(module)
