"""Kernels in files: `kernel.py:name`. The file runs in a worker process, where it may crash or hang."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isfunction
from pathlib import Path
from typing import Any

from ..errors import FailureKind, InputError, UnknownNameError
from ..executor.jobs import LowerJob
from ..executor.local import LIMITS
from ..executor.tasks import compiler_pool
from ..explanation import Explanation
from ..profile.values import KernelProfile
from ..records.trial import Prediction
from ..target.spec import Target
from ..workers import Done, failure_of
from .explaining import explain_profiles
from .foreign_kernel import ForeignKernel, find_kernel, profiles_of
from .run_time_facts import RunTimeFacts

_FAULTS = (FailureKind.LOWER_ERROR, FailureKind.LOWER_CRASH, FailureKind.LOWER_TIMEOUT)


@dataclass(frozen=True, slots=True)
class FileKernel:
    """What a worker needs to find and lower a kernel in a file."""

    file: Path
    name: str
    target: Target
    arguments: Mapping[str, Any]
    facts: RunTimeFacts

    @property
    def place(self) -> str:
        """File and name, for messages."""
        return f"{self.file.name}:{self.name}"


@dataclass(frozen=True, slots=True)
class FileProfiles:
    """The profiles of a kernel in a file, and its name with its arguments."""

    name: str
    kernels: tuple[KernelProfile, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class FilePrediction:
    """The prediction of a kernel in a file, and its name with its arguments."""

    name: str
    target: Target
    prediction: Prediction


def predict_file(
    place: str,
    target: str | Target | None,
    facts: RunTimeFacts | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> FilePrediction:
    """The predicted time of a kernel in a file; see `profiles_in_file`."""
    from ..costmodel import default_model
    from .prediction import as_input_errors

    found = profiles_in_file(place, target, facts, arguments)
    with as_input_errors("predicted", found.target):
        return FilePrediction(found.name, found.target, default_model().predict(found.kernels, found.target))


def explain_file(
    place: str,
    target: str | Target | None,
    facts: RunTimeFacts | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Explanation:
    """What limits a kernel in a file; see `profiles_in_file`."""
    found = profiles_in_file(place, target, facts, arguments)
    return explain_profiles(found.name, found.kernels, found.target)


def profiles_in_file(
    place: str,
    target: str | Target | None,
    facts: RunTimeFacts | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> FileProfiles:
    """Run a file in a worker process, and lower a kernel of it there.

    Args:
        place: `kernel.py:name`: a PrimFunc at module level, or a function that returns one.
        target: As for `predict`.
        facts: What is known of its calls.
        arguments: Of the function, by name: values that can be pickled.

    Raises:
        InputError: there is no such file or name, the name is no kernel, or the file, the function or
            TileLang raises or crashes.
        ToolchainError: worker processes cannot start.
    """
    from ..machine.placement import locate

    item = kernel_in_file(place, locate(target, measures=False).target, facts, arguments)
    with compiler_pool(LIMITS[LowerJob]) as pool:
        (outcome,) = (found for _, found in pool.run(_profiles, [item]))
    if not isinstance(outcome, Done):
        raise InputError(f"{place}: {failure_of(outcome, *_FAULTS).message}")
    if isinstance(outcome.value, str):
        raise InputError(f"{place}: {outcome.value}")
    return outcome.value


def kernel_in_file(
    place: str, target: Target, facts: RunTimeFacts | None, arguments: Mapping[str, Any] | None
) -> FileKernel:
    """What a worker needs to find the kernel. Raises `InputError` if there is no such file."""
    file, name = _read_place(place)
    return FileKernel(file, name, target, dict(arguments or {}), facts or RunTimeFacts())


def _read_place(place: str) -> tuple[Path, str]:
    file, _, name = place.rpartition(":")
    if not file or not name.isidentifier():
        raise InputError(f"'{place}' names no kernel of a file; write it as kernel.py:name")
    path = Path(file).expanduser()
    if not path.is_file():
        raise InputError(f"{place}: there is no file '{file}'")
    return path.resolve(), name


def _profiles(item: FileKernel) -> FileProfiles | str:
    """The work of the worker; a text is an error that the user can correct."""
    try:
        kernel = load_kernel(item)
        return FileProfiles(kernel.name, profiles_of(kernel, item.target, item.facts), item.target)
    except InputError as error:
        return str(error)


def load_kernel(item: FileKernel) -> ForeignKernel:
    """Run the file and find the kernel. Raises `InputError`, and what the file or the function raises."""
    members = _run(item.file)
    if item.name not in members:
        raise UnknownNameError(f"name in {item.file.name}", item.name, _offered(members))
    return find_kernel(members[item.name], item.target, item.arguments, item.name)


def _offered(members: Mapping[str, Any]) -> list[str]:
    """Names of what may be a kernel: PrimFuncs, and functions that the file itself defines."""
    return [
        name
        for name, value in members.items()
        if type(value).__name__ in ("PrimFunc", "JITImpl")
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
