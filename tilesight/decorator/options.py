"""Options of the decorator beside configs and checks, and the target that follows from them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import InputError, UnknownNameError
from ..records.session import Effort
from ..settings import load_settings
from ..target.spec import Target, load_target
from ..tuner.observers import Observer
from ..tuner.resolve import check_workers
from .user_function import UserFunction

if TYPE_CHECKING:
    from ..costmodel.model import CostModel


@dataclass(frozen=True)
class AutotuneOptions:
    """Arguments of `autotune`, which describes them. Raises `InputError` for wrong values."""

    effort: Effort = Effort.QUICK
    budget_s: float | None = None
    database: str | None = None
    target: str | Target | None = None
    model: CostModel | None = None
    protocol: str = "default"
    measured_at: Mapping[str, int | float] = field(default_factory=dict)
    on_miss: str = "tune"
    while_tuning: str = "wait"
    seed: int = 0
    workers: int | None = None
    observer: Observer = field(default_factory=Observer)

    def __post_init__(self) -> None:
        if self.effort not in list(Effort):
            raise UnknownNameError("effort", str(self.effort), [e.value for e in Effort])
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise InputError(
                f"budget_s={self.budget_s} must be a number of seconds above 0; leave it out for no limit"
            )
        for name, known in (("on_miss", ("tune", "model")), ("while_tuning", ("wait", "model"))):
            if getattr(self, name) not in known:
                raise UnknownNameError(name, str(getattr(self, name)), known)
        for name, value in self.measured_at.items():
            if not isinstance(value, bool | int | float):
                raise InputError(f"autotune: measured_at has {name}={value!r}, which is no number")
        check_workers(self.workers)
        if type(self.seed) is not int:
            raise InputError(f"autotune: seed must be a whole number, not {self.seed!r}")
        if self.model is not None and not (
            callable(getattr(self.model, "predict", None)) and hasattr(self.model, "version")
        ):
            found = type(self.model).__name__
            raise InputError(
                f"autotune: model must be a cost model with `version` and `predict`, not {found}"
            )
        if not callable(getattr(self.observer, "message", None)):
            found = type(self.observer).__name__
            raise InputError(f"autotune: observer must be a tilesight.tuner.observers.Observer, not {found}")


def find_target(options: AutotuneOptions, function: UserFunction) -> str | Target:
    """The target option, else what the function is compiled for, else that of the settings.

    `auto` is this machine's GPU.
    """
    if options.target is not None and options.target != "auto":
        return options.target
    compiled_for = function.target
    if compiled_for is None and "tilelang" in sys.modules:
        compiled_for = sys.modules["tilelang"].env.get_default_target()
    if isinstance(compiled_for, Mapping):
        kind = compiled_for.get("kind", "")
    else:
        kind = str(getattr(compiled_for, "kind", compiled_for))
    if kind.split(" ")[0] in ("c", "llvm"):
        return "cpu"
    return load_settings().target if options.target is None else "auto"


def processor_target(options: AutotuneOptions, function: UserFunction) -> Target | None:
    """The processor to tune for; None for a GPU."""
    found = find_target(options, function)
    if found == "auto":
        return None
    target = load_target(found) if isinstance(found, str) else found
    return None if target.is_gpu else target
