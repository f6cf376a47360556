"""What an import loads. How long it takes is measured by a benchmark in experiments/, not here."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "tilelang",
    "tvm",
    "optuna",
    "sqlalchemy",
    "alembic",
    "pandas",
    "sklearn",
    "xgboost",
    "numpy",
    "scipy",
)


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh process holds after `statement`."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_package_loads_nothing_heavy() -> None:
    assert loaded_by("import tilesight") & set(HEAVY) == set()


def test_command_line_loads_neither_torch_nor_tilelang() -> None:
    assert loaded_by("import tilesight.cli.main") & {"torch", "tilelang", "tvm"} == set()


@pytest.mark.parametrize(
    "package", ["tilesight.kernels", "tilesight.search_spaces", "tilesight.database", "tilesight.costmodel"]
)
def test_packages_load_neither_torch_nor_tilelang(package: str) -> None:
    assert loaded_by(f"import {package}") & {"torch", "tilelang", "tvm"} == set()
