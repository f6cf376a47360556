"""Kernels in files: `kernel.py:name`. The file runs in a worker process, where it may crash or hang."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isfunction
from pathlib import Path
from typing import Any

from ..decorator.user_function import PASS_CONFIGS, plain_keys
from ..errors import FailureKind, InputError, UnknownNameError, headline
from ..executor.jobs import LowerJob
from ..executor.local import LIMITS
from ..executor.tasks import compiler_pool
from ..explanation import Explanation
from ..explanation.own_configs import OwnConfig, OwnConfigs
from ..problem.config import Config
from ..profile.names import KernelNames
from ..profile.values import KernelProfile
from ..records.trial import Prediction
from ..settings import load_settings
from ..target.spec import Target
from ..workers import Done, WorkerPool, failure_of
from .explaining import explain_profiles
from .foreign_kernel import ForeignKernel, find_kernel, named_profiles_of
from .own_configs import agreeing, chosen, own_choices
from .run_time_facts import RunTimeFacts

_FAULTS = (FailureKind.LOWER_ERROR, FailureKind.LOWER_CRASH, FailureKind.LOWER_TIMEOUT)


@dataclass(frozen=True, slots=True)
class FileKernel:
    """What a worker needs to find and lower a kernel in a file.

    `config` names one of the configs of the kernel's own `@autotune`; None: none was chosen.
    """

    file: Path
    name: str
    target: Target
    arguments: Mapping[str, Any]
    facts: RunTimeFacts
    config: str | None = None

    @property
    def place(self) -> str:
        """File and name, for messages."""
        return f"{self.file.name}:{self.name}"


@dataclass(frozen=True, slots=True)
class FileProfiles:
    """The profiles of a kernel in a file with the names in each, and its own name with its arguments.

    Attributes:
        config: of its own `@autotune`, if it has one.
        number: of that config, from 1.
        own_configs: what it was chosen from, if it was chosen by prediction.
    """

    name: str
    kernels: tuple[KernelProfile, ...]
    target: Target
    names: tuple[KernelNames, ...] = ()
    config: Config | None = None
    number: int | None = None
    own_configs: tuple[OwnConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class FilePrediction:
    """The prediction of a kernel in a file, and its name with its arguments.

    `why_wide` says what makes its sigma wide, if it is. The others are those of `FileProfiles`.
    """

    name: str
    target: Target
    prediction: Prediction
    why_wide: str = ""
    config: Config | None = None
    own_configs: tuple[OwnConfig, ...] = ()


def predict_file(
    place: str,
    target: str | Target | None,
    facts: RunTimeFacts | None = None,
    arguments: Mapping[str, Any] | None = None,
    config: str | None = None,
) -> FilePrediction:
    """The predicted time of a kernel in a file; see `profiles_in_file`."""
    from ..costmodel import foreign_model
    from ..explanation.wide_sigma import why_wide
    from .prediction import as_input_errors

    found = profiles_in_file(place, target, facts, arguments, config)
    with as_input_errors("predicted", found.target):
        prediction = foreign_model().predict(found.kernels, found.target)
        reason = why_wide(prediction, found.kernels, found.target)
    return FilePrediction(found.name, found.target, prediction, reason, found.config, found.own_configs)


def explain_file(
    place: str,
    target: str | Target | None,
    facts: RunTimeFacts | None = None,
    arguments: Mapping[str, Any] | None = None,
    config: str | None = None,
) -> Explanation:
    """What limits a kernel in a file; see `profiles_in_file`."""
    return explanation_of(profiles_in_file(place, target, facts, arguments, config))


def explanation_of(found: FileProfiles) -> Explanation:
    """What limits a kernel of a file whose profiles are read."""
    explained = explain_profiles(found.name, found.kernels, found.target, found.names)
    return replace(
        explained, this=replace(explained.this, config=found.config), own_configs=found.own_configs
    )


def rank_file(
    place: str,
    target: str | Target | None,
    facts: RunTimeFacts | None = None,
    arguments: Mapping[str, Any] | None = None,
    workers: int | None = None,
) -> OwnConfigs:
    """The configs of the own `@autotune` of a kernel in a file by predicted time.

    Raises:
        InputError: as `profiles_in_file` does, or the kernel has no configs of its own.
        ToolchainError: worker processes cannot start.
    """
    with _pool(workers) as pool:
        item = kernel_in_file(place, _target(target), facts, arguments)
        found = _one(pool, item, place)
        if isinstance(found, FileProfiles):
            raise InputError(
                f"{place} has no configs of its own to rank: its function stands under no @autotune, or "
                "--arg gives all that its configs choose"
            )
        return _compared(pool, item, found, place)[0]


def profiles_in_file(
    place: str,
    target: str | Target | None,
    facts: RunTimeFacts | None = None,
    arguments: Mapping[str, Any] | None = None,
    config: str | None = None,
) -> FileProfiles:
    """Run a file in a worker process, and lower a kernel of it there.

    Args:
        place: `kernel.py:name`: a PrimFunc at module level, or a function that returns one.
        target: As for `predict`.
        facts: What is known of its calls.
        arguments: Of the function, by name: values that can be pickled.
        config: One of the configs of its own `@autotune`: its number from 1, or `k=v,...`. None: the one that
            is predicted fastest, unless `arguments` leave nothing to choose.

    Raises:
        InputError: there is no such file or name, the name is no kernel, or the file, the function or
            TileLang raises or crashes.
        ToolchainError: worker processes cannot start.
    """
    with _pool(None) as pool:
        item = kernel_in_file(place, _target(target), facts, arguments, config)
        found = _one(pool, item, place)
        if isinstance(found, FileProfiles):
            return found
        compared, profiles = _compared(pool, item, found, place)
    return replace(profiles[compared.configs[0].number], own_configs=compared.configs)


def kernel_in_file(
    place: str,
    target: Target,
    facts: RunTimeFacts | None,
    arguments: Mapping[str, Any] | None,
    config: str | None = None,
) -> FileKernel:
    """What a worker needs to find the kernel. Raises `InputError` if there is no such file."""
    file, name = _read_place(place)
    return FileKernel(file, name, target, dict(arguments or {}), facts or RunTimeFacts(), config)


def _target(target: str | Target | None) -> Target:
    from ..machine.placement import locate

    return locate(target, measures=False).target


def _pool(workers: int | None) -> WorkerPool:
    """Processes that lower; only as many start as there are kernels to lower."""
    return compiler_pool(LIMITS[LowerJob], workers or load_settings().workers)


def _one(pool: WorkerPool, item: FileKernel, place: str) -> FileProfiles | ListedConfigs:
    (outcome,) = (found for _, found in pool.run(_profiles, [item]))
    if not isinstance(outcome, Done):
        raise InputError(f"{place}: {failure_of(outcome, *_FAULTS).message}")
    if isinstance(outcome.value, str):
        raise InputError(f"{place}: {outcome.value}")
    return outcome.value


def _compared(
    pool: WorkerPool, item: FileKernel, listed: ListedConfigs, place: str
) -> tuple[OwnConfigs, dict[int, FileProfiles]]:
    """The own configs of a kernel by predicted time, and the profiles of those that work, by number.

    Raises `InputError` if none works.
    """
    from ..costmodel import foreign_model

    model, target = foreign_model(), item.target
    items = [replace(item, config=str(number)) for number in range(1, len(listed.configs) + 1)]
    rows: list[OwnConfig] = []
    profiles: dict[int, FileProfiles] = {}
    for index, outcome in pool.run(_profiles, items):
        number, config = index + 1, listed.configs[index]
        if not isinstance(outcome, Done):
            rows.append(OwnConfig(number, config, None, failure_of(outcome, *_FAULTS).message))
        elif not isinstance(outcome.value, FileProfiles):
            rows.append(OwnConfig(number, config, None, str(outcome.value)))
        else:
            profiles[number] = outcome.value
            try:
                rows.append(OwnConfig(number, config, model.predict(outcome.value.kernels, target)))
            except Exception as error:  # the profile may be anything
                rows.append(OwnConfig(number, config, None, headline(str(error))))
    rows.sort(key=lambda row: (math.inf if row.prediction is None else row.prediction.ranking_us, row.number))
    if rows[0].prediction is None:
        count = f"its {len(rows)} own configs" if len(rows) > 1 else "its own config"
        raise InputError(f"{place}: {count} cannot be predicted; the first: {rows[0].failure}")
    return OwnConfigs(listed.name, target, tuple(rows)), profiles


def _read_place(place: str) -> tuple[Path, str]:
    file, _, name = place.rpartition(":")
    if not file or not name.isidentifier():
        raise InputError(f"'{place}' names no kernel of a file; write it as kernel.py:name")
    path = Path(file).expanduser()
    if not path.is_file():
        raise InputError(f"{place}: there is no file '{file}'")
    return path.resolve(), name


@dataclass(frozen=True, slots=True)
class ListedConfigs:
    """A kernel whose own configs none was chosen from."""

    name: str
    configs: tuple[Config, ...]


def _profiles(item: FileKernel) -> FileProfiles | ListedConfigs | str:
    """The work of the worker; a text is an error that the user can correct."""
    try:
        found = choose_kernel(item)
        if isinstance(found, ListedConfigs):
            return found
        return found.profiles(named_profiles_of(found.kernel, item.target, item.facts), item.target)
    except InputError as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class ChosenKernel:
    """A kernel, and which of its own configs it is."""

    kernel: ForeignKernel
    config: Config | None = None
    number: int | None = None

    def profiles(self, named: Sequence[tuple[KernelProfile, KernelNames]], target: Target) -> FileProfiles:
        """What was read in it."""
        kernels, names = zip(*named, strict=True)
        return FileProfiles(self.kernel.name, kernels, target, names, self.config, self.number)


def choose_kernel(item: FileKernel) -> ChosenKernel | ListedConfigs:
    """Run the file and find the kernel. Raises `InputError`, and what the file or the function raises."""
    members = _run(item.file)
    if item.name not in members:
        raise UnknownNameError(f"name in {item.file.name}", item.name, _offered(members))
    given = members[item.name]
    choices = own_choices(given, item.arguments)
    if choices is None:
        if item.config is not None:
            raise InputError(
                f"{item.name} lists no configs under an @autotune that --config could choose from, or --arg "
                "gives all that they choose"
            )
        return ChosenKernel(find_kernel(given, item.target, item.arguments, item.name))
    configs = agreeing(choices, item.arguments, item.name)
    if item.config is None:
        return ListedConfigs(item.name, tuple(configs))
    config = chosen(choices, configs, item.config, item.name)
    values = {**item.arguments, **choices.values(config)}
    passes = values.pop(PASS_CONFIGS, None)
    kernel = find_kernel(given, item.target, values, item.name)
    if passes:
        kernel = replace(kernel, pass_configs={**(kernel.pass_configs or {}), **plain_keys(passes)})
    return ChosenKernel(kernel, config, configs.index(config) + 1)


def _offered(members: Mapping[str, Any]) -> list[str]:
    """Names of what may be a kernel: PrimFuncs, and functions that the file itself defines."""
    return [
        name
        for name, value in members.items()
        if type(value).__name__ in ("PrimFunc", "JITImpl", "AutoTuneImpl", "Autotuned")
        or (isfunction(value) and value.__module__ == members["__name__"])
    ]


def _run(file: Path) -> Mapping[str, Any]:
    """The names that a file defines. It is run as a module, not as a program."""
    name = f"tilesight_file_{file.stem}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError("it is no Python file: its name must end in .py")
    sys.path.insert(0, str(file.parent))
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SystemExit as request:
        raise InputError(
            f"the file ends Python by itself (exit code {request.code}); "
            "put its program under: if __name__ == '__main__':"
        ) from None
    return vars(module)
