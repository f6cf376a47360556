"""The manifest of an export: its contents, what they were made with and from, and the hashes of all files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..machine.devices import cpu_identity
from ..machine.toolchain import compiler_version, find_cxx, software_versions
from ..records.session import code_software
from ..records.trial import BuildResult
from ..version import __version__
from .c_library import cuda_major
from .kernel_set import KernelSet
from .licences import EXPRESSION

MANIFEST = "manifest.json"  # the file
FORMAT = 1  # raised when a field changes its meaning


def manifest(
    kernels: KernelSet,
    built: Sequence[BuildResult],
    paths: Sequence[str],
    files: Mapping[str, str],
    *,
    format: str,
    any_card: bool,
) -> str:
    """`manifest.json`.

    Args:
        kernels: what is exported.
        built: the library of each kernel.
        paths: its path in the folder.
        files: the SHA-256 of every other file of the folder, by its path.
        format: of the export.
        any_card: whether any card of the architecture is accepted.
    """
    problem, table = kernels.problem, kernels.table
    target, cxx = problem.target, find_cxx()
    fields: dict[str, Any] = {
        "format": FORMAT,
        "name": kernels.name,
        "kind": format,
        "tilesight": __version__,
        "licence": EXPRESSION,
        "operator": problem.operator.name,
        "dtype": problem.dtype,
        "attrs": dict(problem.attrs),
        "fixed": dict(problem.fixed),
        "sizes": {one.name: [one.first, one.last] for one in kernels.sizes},
        "template": {"name": problem.template.name, "version": problem.template.version},
        "target": {
            "name": target.name,
            "arch": target.arch,
            "cards": [] if any_card else list(target.device_names),
            "cuda": max((cuda_major(b.compiler) for b in built), default=0)
            if target.kind == "cuda"
            else None,
            "processor": None if target.is_gpu else cpu_identity(),
        },
        "software": code_software(software_versions(target)),
        "c_compiler": compiler_version(cxx) if cxx else "",
        "notes": list(kernels.notes),
        "kernels": [
            {
                "file": path,
                "config": dict(choice.config),
                "dynamic": list(choice.dynamic),
                "shape": dict(choice.workload.dims) if not choice.dynamic else None,
                "source": choice.source.value,
                "measured_us": choice.expected_us,
                "compiler": result.compiler,
                "resources": dict(result.resources),
            }
            for choice, result, path in zip(kernels.kernels, built, paths, strict=True)
        ],
        "segments": [[s.first, s.last, s.kernel] for s in kernels.segments],
        "table": None if table is None else json.loads(table.text()),
        "files": dict(sorted(files.items())),
    }
    return json.dumps(fields, indent=1) + "\n"
