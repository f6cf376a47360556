"""Every error that TileSight raises on purpose, and the failures that it passes on as data.

Exceptions stop a command; they are for what its user can mend::

    TileSightError               exit code
    |-- InputError                   2      what was asked for is malformed or contradicts itself
    |   |-- UnknownNameError         2      a kernel, target, workload, dimension or parameter by a wrong name
    |   |-- WorkloadError            2      a dimension or dtype that the operator or the target refuses
    |   |-- ConfigError              2      a config outside its search space
    |   |-- TargetFileError          2      a target description that does not parse or does not hold together
    |   `-- ProgramError             2      a program that the user gave, e.g. a `ref_prog`, raised or gave something else
    |-- NoCandidateError             3      nothing is legal, or nothing that was tried worked
    |-- DatabaseError                4      the performance database cannot be read or written
    |   |-- DatabaseBusyError        4      another process holds it
    |   |-- DatabaseReadOnlyError    4
    |   |-- DatabaseCorruptError     4
    |   |-- DatabaseVersionError     4      written by a newer TileSight
    |   `-- DatabaseFullError        4      no space left
    |-- ToolchainError               5      a compiler, driver or package that is missing or unusable
    `-- LaunchError                  1      a built kernel that does not load, or whose launch is refused

One more stands elsewhere: `ConnectionLostError`, a `DatabaseError`, in `database/faults.py` with what tells it from others.
Exit code 1 is an error in TileSight itself, 130 an interrupt (Ctrl-C).

A candidate that fails is no exception but a `Failure`: a value in its record, and the run goes on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class TileSightError(Exception):
    """Base of all the above. `str(error)` names the subject, the rule, the value and the way out."""

    exit_code = 1


class InputError(TileSightError):
    exit_code = 2


class UnknownNameError(InputError):
    """`name` is not one of `known`; the message offers the nearest names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        near = nearest_names(name, self.known)
        offer = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(self.known) or 'none'}."
        super().__init__(f"unknown {kind} '{name}'; {offer}" + (f" {hint}" if hint else ""))


class WorkloadError(InputError):
    pass


class ConfigError(InputError):
    pass


class TargetFileError(InputError):
    pass


class ProgramError(InputError):
    pass


class NoCandidateError(TileSightError):
    exit_code = 3


class DatabaseError(TileSightError):
    exit_code = 4


class DatabaseBusyError(DatabaseError):
    pass


class DatabaseReadOnlyError(DatabaseError):
    pass


class DatabaseCorruptError(DatabaseError):
    pass


class DatabaseVersionError(DatabaseError):
    pass


class DatabaseFullError(DatabaseError):
    pass


class ToolchainError(TileSightError):
    exit_code = 5


class LaunchError(TileSightError):
    """The library of a kernel cannot be loaded, or its kernel was refused when it was launched."""


class FailureKind(StrEnum):
    """At which stage a candidate failed, and how."""

    LOWER_ERROR = "lower_error"  # the compiler's passes refused it
    LOWER_CRASH = "lower_crash"  # the lowering process died
    LOWER_TIMEOUT = "lower_timeout"
    LOWER_MEMORY = "lower_memory"  # the lowering process took more host memory than it may
    DOES_NOT_FIT = "does_not_fit"  # shared memory, threads or registers beyond the target's limits
    DUPLICATE = "duplicate"  # generates the same device code as a candidate already kept
    PROFILE_ERROR = "profile_error"  # lowered, but its IR could not be read
    BUILD_ERROR = "build_error"
    BUILD_CRASH = "build_crash"
    BUILD_TIMEOUT = "build_timeout"
    BUILD_MEMORY = "build_memory"  # the compiler took more host memory than it may
    RUN_ERROR = "run_error"  # launch refused, illegal address
    RUN_CRASH = "run_crash"
    RUN_TIMEOUT = "run_timeout"
    RUN_MEMORY = "run_memory"  # the device lacks memory for it, or the measuring process took more of the host's than it may
    WRONG_RESULT = "wrong_result"  # differs from the reference, NaN, or unwritten output
    NONDETERMINISTIC = "nondeterministic"  # a race: outputs of the same inputs differ from run to run


WRONG = (FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC)  # it ran, and what it computed is of no use


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a candidate went no further. `detail` is the tail of what the failing stage printed."""

    kind: FailureKind
    message: str
    detail: str = ""


def headline(text: str) -> str:
    """The first line of a long message that says something, cut at 300 characters: a failure's `message`."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return line if len(line) <= 300 else line[:297] + "..."


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of `known` that resemble `name`, best first; case does not matter."""
    by_folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_folded, n=3, cutoff=0.5)
    return [by_folded[folded] for folded in close]
