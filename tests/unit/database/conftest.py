"""Fixtures that tests of the database share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).resolve().parents[3] / "experiments" / "shipped" / "build.py"


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program that makes the files that ship."""
    monkeypatch.syspath_prepend(PROGRAM.parent)
    spec = importlib.util.spec_from_file_location("build_shipped", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module
