"""Extras: packages that only some commands need, and errors where one is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from .errors import ToolchainError


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional dependency.

    Attributes:
        name: of the extra in `pyproject.toml`.
        package: what pip installs.
        module: what Python imports.
        needed_for: the commands and options that need it.
    """

    name: str
    package: str
    module: str
    needed_for: str

    @property
    def version(self) -> str:
        """The installed version; empty if it is not installed."""
        try:
            return importlib.metadata.version(self.package.partition("[")[0]) if self.is_installed else ""
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    @property
    def is_installed(self) -> bool:
        """Whether the module can be found; it is not imported."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def install(self) -> str:
        """The command that adds it. It names the package alone, so TileSight's own install stays as it is."""
        return f"pip install {self.package}" if self.package.isalnum() else f"pip install '{self.package}'"


EXTRAS = {
    extra.name: extra
    for extra in (
        Extra(
            "parquet",
            "pyarrow",
            "pyarrow",
            "collect, replay, model train and evaluate, explain --measured, db export to .parquet",
        ),
        Extra("postgres", "psycopg[binary]", "psycopg", "a database on PostgreSQL (--db postgresql://...)"),
        Extra("ray", "ray[client]", "ray", "tune --cluster"),
        Extra("samplers", "cmaes", "cmaes", "replay --strategy cmaes, sampler='cmaes' in Python"),
        Extra("plots", "matplotlib", "matplotlib", "replay --plot, bench --plot"),
    )
}


def require_extra(name: str, what: str) -> None:
    """Raise `ToolchainError` if an extra is missing. `what` needs it, and begins the message."""
    if not EXTRAS[name].is_installed:
        raise missing_extra(name, what)


def missing_extra(name: str, what: str) -> ToolchainError:
    """The error of a missing extra, which `what` needs."""
    extra = EXTRAS[name]
    package = extra.package.partition("[")[0]
    return ToolchainError(f"{what} needs {package}, which is not installed here: {extra.install}")
