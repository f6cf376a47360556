"""The explanation of one config of a user's function, at one call's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ..problem.space import Config
from ..settings import load_settings
from .options import AutotuneOptions
from .recall import measured_times
from .tune_task import TuneTask

if TYPE_CHECKING:
    from ..database.store import Store
    from ..explanation import Explanation


def explain_call(
    task: TuneTask,
    store: Store,
    options: AutotuneOptions,
    chosen: Config,
    config: str | Mapping[str, Any] | None,
) -> Explanation:
    """What limits a config, and how the chosen one differs from it.

    Args:
        task: the call's.
        store: has the times of measured configs.
        options: of the decorator.
        chosen: the config that a call uses.
        config: `block=32,...`, or the values of the arguments that configs choose; None: the chosen one.

    Raises:
        ConfigError: the config is not in the space.
        NoCandidateError: a config does not lower.
    """
    from ..executor.local import LocalExecutor
    from ..explanation import ConfigLowerings, explain_config

    space = task.choices.space
    if config is None:
        wanted = chosen
    else:
        wanted = space.read(config) if isinstance(config, str) else task.choices.config(config)
        space.check(wanted)
    settings = load_settings()
    with closing(LocalExecutor(options.workers or settings.workers, settings.cache_dir)) as executor:
        lowered = ConfigLowerings(lambda: executor, task.model, task.request.candidate)
        return explain_config(lowered, space, wanted, chosen, measured_times(task, store))
