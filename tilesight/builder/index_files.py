"""Index files beside the kernel cache, which map candidates to built libraries. They may be deleted.

The key of a library in the kernel cache follows from its source, so finding it there takes a lowering. An
index file has a name that follows from the candidate alone, so a process that imports no TileLang finds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..files import file_hash, replacing
from ..lowering.dynamic import lowering_version
from ..machine.devices import cpu_identity
from ..problem.candidate import Candidate
from ..records.trial import BuildResult
from ..target.spec import Target
from .kernel_cache import cache_key


def code_versions(target: Target, software: Mapping[str, str]) -> str:
    """All that code for `target` depends on beside the candidate, as text.

    `software`: the versions on which generated code depends.
    """
    machine = cpu_identity() if target.kind == "cpu" else ""
    versions = [dict(sorted(software.items())), machine, lowering_version(), target.tvm_target()]
    return json.dumps(versions, sort_keys=True)


def index_key(candidate: Candidate, versions: str) -> str:
    """The name of a candidate's index file, without suffix. `versions`: those of `code_versions`."""
    return cache_key(kernel_name(candidate), versions)


def index_path(cache_dir: Path, key: str) -> Path:
    """The index file of that key beside the kernel cache in `cache_dir`."""
    return cache_dir / "dispatch" / f"{key}.json"


def kernel_name(candidate: Candidate) -> str:
    """The text that identifies a candidate's kernel, the same for all values of its dynamic dimensions."""
    dims = {
        name: None if name in candidate.dynamic else size for name, size in candidate.workload.dims.items()
    }
    template, target, workload = candidate.template, candidate.target, candidate.workload
    parts = [template.name, template.version, workload.operator, dims, workload.dtype]
    parts += [dict(sorted(workload.attrs.items())), target.kind, target.arch]
    parts += [dict(candidate.config), list(candidate.dynamic)]
    return json.dumps(parts)


def read_index_file(path: Path) -> BuildResult | None:
    """The library that a file names; None if the file or the library is absent, changed or damaged.

    The library must lie in the kernel cache that the index belongs to.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        resources = {str(name): int(value) for name, value in fields["resources"].items()}
        artifact = str(fields["artifact"])
        library = Path(artifact).resolve()
        if (
            library.parent != (path.parent.parent / "kernels").resolve()
            or file_hash(library) != fields["sha256"]
        ):
            return None  # loading it could end the process
        entry, compiler, binary = (str(fields[name]) for name in ("entry", "compiler", "binary"))
        return BuildResult(artifact, None, entry, resources, compiler, 0.0, binary)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_index_file(path: Path, built: BuildResult) -> None:
    """Write an index file. If that fails, the next process lowers the kernel again."""
    fields: dict[str, object] = {
        "artifact": built.artifact,
        "entry": built.entry,
        "resources": dict(built.resources),
        "compiler": built.compiler,
        "binary": built.binary,
    }
    with suppress(Exception):
        fields["sha256"] = file_hash(Path(built.artifact or ""))
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, "index of built kernels") as partial_path:
            partial_path.write_text(json.dumps(fields), encoding="utf-8")
