"""Builds for a processor: leaving out the library for half floats changes no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilesight.builder import cpu
from tilesight.builder.binary_identity import binary_identity
from tilesight.builder.launch_plan import LaunchPlan
from tilesight.machine.toolchain import find_cxx

HALF = "half_float"


def source(element: str) -> str:
    calls = ("exp", "fabs", "pow", "floor", "erff", "tanhf", "min", "isnan")
    body = {"pow": "pow(x[i], y[i])", "min": "fmin(x[i], y[i])"}
    sums = " + ".join(f"({element})({body.get(call, f'{call}(x[i])')})" for call in calls)
    return (
        "#include <tl_templates/cpp/common.h>\n"
        f'extern "C" int32_t main_kernel({element}* x, {element}* y) {{\n'
        f"  for (int i = 0; i < 1024; ++i) y[i] = {sums};\n  return 0;\n}}\n"
    )


def built(folder: Path, text: str) -> str:
    """The identity of the machine code of `text`."""
    folder.mkdir()
    cxx = find_cxx()
    assert cxx is not None
    files, _ = cpu.build_cpu(folder, text, LaunchPlan(2, (), ()), cpu.cpu_flags(()), cxx)
    return binary_identity(files[0].read_bytes(), LaunchPlan(2, (), ()))


@pytest.mark.parametrize("element", ["float", "double"])
def test_the_code_is_the_same_without_the_library(
    element: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = built(tmp_path / "without", source(element))
    assert HALF in (tmp_path / "without/kernel.cpp").read_text()
    monkeypatch.setattr(cpu, "_WITHOUT_HALF", "")
    assert built(tmp_path / "with", source(element)) == without


@pytest.mark.parametrize(
    "text", [source("half"), "#include <sstream>\n" + source("float") + "std::ostringstream out;"]
)
def test_code_that_needs_the_library_has_it(text: str, tmp_path: Path) -> None:
    built(tmp_path / "folder", text)
    assert HALF not in (tmp_path / "folder/kernel.cpp").read_text()
