"""Errors: the exceptions that TileSight raises on purpose, and failures of candidates as values.

An exception ends a command; its user can correct the cause::

    TileSightError               exit code
    |-- InputError                   2      an argument or input file is malformed or contradicts another
    |   |-- UnknownNameError         2      a kernel, target, workload, dimension or parameter by a wrong name
    |   |-- WorkloadError            2      a dimension or dtype that the operator or target does not support
    |   |-- ConfigError              2      a config outside its search space
    |   |-- TargetFileError          2      a target file that is malformed or contradicts itself
    |   `-- ProgramError             2      a function of the user raised, or returned a wrong value
    |-- NoCandidateError             3      no config is legal, or every tried candidate failed
    |-- DatabaseError                4      the performance database cannot be read or written
    |   |-- DatabaseBusyError        4      another process has locked it
    |   |-- DatabaseReadOnlyError    4
    |   |-- DatabaseCorruptError     4
    |   |-- DatabaseVersionError     4      written by a newer TileSight
    |   `-- DatabaseFullError        4      no space left
    |-- ToolchainError               5      a compiler, driver or package that is missing or unusable
    |-- LaunchError                  1      a built kernel that cannot be loaded or launched
    `-- GroupError                   1      processes of a group that disagree, or one that has ended

`ConnectionLostError`, a `DatabaseError`, is defined in `database/engine/faults.py`.
Exit code 1 is an error in TileSight itself, 130 an interrupt (Ctrl-C).

A candidate that fails raises nothing: its record has a `Failure`, and the run continues.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class TileSightError(Exception):
    """Base of all errors of TileSight. The message names the subject, the rule, the value and the way out."""

    exit_code = 1


class InputError(TileSightError):
    exit_code = 2


class UnknownNameError(InputError):
    """A name that does not exist; the message offers the nearest ones."""

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
    """The library of a kernel cannot be loaded, or the launch of the kernel was refused."""


class GroupError(TileSightError):
    """The processes of a group disagree, or one of them has failed or ended. All get the same message."""


class FailureKind(StrEnum):
    """Stage and kind of a candidate's failure."""

    LOWER_ERROR = "lower_error"  # a pass of the compiler refused it
    LOWER_CRASH = "lower_crash"  # the lowering process died
    LOWER_TIMEOUT = "lower_timeout"
    LOWER_MEMORY = "lower_memory"  # the lowering process exceeded its limit of host memory
    DOES_NOT_FIT = "does_not_fit"  # shared memory, threads or registers beyond the target's limits
    DUPLICATE = "duplicate"  # generates the same device code as another candidate
    PROFILE_ERROR = "profile_error"  # it lowered, but its IR could not be read
    BUILD_ERROR = "build_error"
    BUILD_CRASH = "build_crash"
    BUILD_TIMEOUT = "build_timeout"
    BUILD_MEMORY = "build_memory"  # the compiler exceeded its limit of host memory
    RUN_ERROR = "run_error"  # launch refused, illegal address
    RUN_CRASH = "run_crash"
    RUN_TIMEOUT = "run_timeout"
    # the device lacks memory for it, or the measuring process exceeded its limit of host memory
    RUN_MEMORY = "run_memory"
    WRONG_RESULT = "wrong_result"  # differs from the reference, NaN, or unwritten output
    NONDETERMINISTIC = "nondeterministic"  # a race: outputs of the same inputs differ from run to run


WRONG = (FailureKind.WRONG_RESULT, FailureKind.NONDETERMINISTIC)  # it ran with wrong results


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a candidate failed. `detail` is the end of the output of the failing stage."""

    kind: FailureKind
    message: str
    detail: str = ""


def headline(text: str) -> str:
    """The first non-empty line of a long message, cut at 300 characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return line if len(line) <= 300 else line[:297] + "..."


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of `known` that resemble `name`, best first; case is ignored."""
    by_folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_folded, n=3, cutoff=0.5)
    return [by_folded[folded] for folded in close]


class CaptureError(RuntimeError):
    """A capture into a CUDA graph failed. The process must end soon: torch may still be in its state."""
