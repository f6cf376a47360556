"""Dispatch tables to export, exports of them, and programs that use these."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tilesight import kernels
from tilesight.dispatch.table.dispatch_table import DispatchTable, Segment
from tilesight.machine.toolchain import software_versions
from tilesight.problem.space import Value
from tilesight.problem.workload import Workload
from tilesight.records.session import code_software
from tilesight.target.spec import load_target

STUB = Path(__file__).with_name("driver_stub.c")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
_ELF, _CUDA = b"\x7fELF\x02\x01", 190


def load(folder: Path, name: str = "product") -> Any:
    """The Python module of an export, anew."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unpack_solution(solution: Path, folder: Path) -> Any:
    """The entry module of a solution, in a package whose files are its sources, as FlashInfer-Bench does."""
    fields = json.loads(solution.read_text(encoding="utf-8"))
    package = folder / fields["name"]
    for source in fields["sources"]:
        file = package / source["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source["content"], encoding="utf-8")
    entry, function = fields["spec"]["entry_point"].split("::")
    sys.path.insert(0, str(folder))
    try:
        for name in [name for name in sys.modules if name.partition(".")[0] == fields["name"]]:
            del sys.modules[name]  # of another solution for the same definition
        module = importlib.import_module(f"{fields['name']}.{entry.removesuffix('.py')}")
    finally:
        sys.path.remove(str(folder))
    assert callable(getattr(module, function))
    return module


def matmul_table(
    target: str,
    dtype: str,
    fixed: Mapping[str, int],
    changes: Sequence[Mapping[str, Value]],
    segments: Sequence[tuple[int, int, int]],
    dynamic: tuple[str, ...] = ("m",),
    layout: str = "nn",
) -> DispatchTable:
    """A table of matmul over m. Each kernel is the default config of the first size, with changes."""
    found = load_target(target)
    template = kernels.template_for("matmul", found, dtype)
    attrs = template.operator.kept_attributes({"layout": layout})
    workload = Workload("matmul", {"m": segments[0][0], **fixed}, dtype, attrs)
    space = template.space(workload, found)
    default = template.default_config(workload, found)
    assert default is not None
    return DispatchTable(
        "matmul",
        dtype,
        attrs,
        ("m", "n", "k"),
        fixed,
        "m",
        dynamic,
        template.name,
        template.version,
        found.name,
        found.fingerprint,
        found.arch,
        "",
        "",
        code_software(software_versions(found)),
        "none",
        tuple(space.config({**default, **change}) for change in changes),
        tuple(Segment(*segment) for segment in segments),
    )


def compiler(name: str) -> str:
    """The path of a compiler; the test is skipped without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def compile_program(command: Sequence[str | Path], cwd: Path) -> None:
    """Run a compiler. Its messages are the failure."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def run_program(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    """The standard output of a program that succeeds."""
    done = subprocess.run(
        [str(word) for word in command],
        env=None if environment is None else dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stub_driver(folder: Path) -> Path:
    """Compile the driver without a device; returns the folder of its library."""
    flags = ("-std=c11", *WARNINGS, "-shared", "-fPIC")
    compile_program([compiler("gcc"), *flags, STUB, "-o", "libcuda.so.1", "-lpthread"], folder)
    return folder


def parameter_lines(library: Path, source: Path) -> str:
    """Lines for STUB_PARAMETERS: the sizes of the parameters of a library's kernels, from their source."""
    image = f"{_checksum(_image(library.read_bytes())):016x}"
    lines = {}
    declared = r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)'
    for name, parameters in re.findall(declared, source.read_text(encoding="utf-8")):
        sizes = [
            "128" if "CUtensorMap" in one else "8" if "*" in one else "4" for one in parameters.split(",")
        ]
        lines[name] = f"{image} {name} {' '.join(sizes)}\n"
    assert lines
    return "".join(lines.values())


def _image(library: bytes) -> bytes:
    """The code for a GPU in a library."""
    start = library.find(_ELF, 1)
    while struct.unpack_from("<H", library, start + 18) != (_CUDA,):
        start = library.find(_ELF, start + 1)
    segments, sections = struct.unpack_from("<QQ", library, start + 32)
    sizes = struct.unpack_from("<6H", library, start + 52)
    return library[start : start + max(segments + sizes[1] * sizes[2], sections + sizes[3] * sizes[4])]


def _checksum(content: bytes) -> int:
    found = 14695981039346656037
    for byte in content:
        found = (found ^ byte) * 1099511628211 % 2**64
    return found
