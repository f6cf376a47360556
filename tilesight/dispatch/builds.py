"""Built kernels: which library is a candidate's, without lowering it again, and building what is missing.

The index is a folder of small files beside the kernel cache, one for each candidate. Like the cache it may be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..building.cache import cache_key
from ..candidate import Candidate
from ..device import cpu_identity
from ..errors import Failure, FailureKind
from ..open_dims import lowering_version
from ..out_file import replacing
from ..trial import BuildResult
from ..work import Build, Built, Executor, OneLane

if TYPE_CHECKING:
    from ..target import Target

SUFFIX = ".json"


def name_of(candidate: Candidate) -> str:
    """What is built of a candidate, in words; the same for all values of its open dimensions."""
    dims = {name: None if name in candidate.open else size for name, size in candidate.workload.dims.items()}
    template, target = candidate.template, candidate.target
    parts = [template.name, template.version, candidate.workload.operator, dims, candidate.workload.dtype]
    parts += [dict(sorted(candidate.workload.attrs.items())), target.kind, target.arch, dict(candidate.config), list(candidate.open)]
    return json.dumps(parts)


class BuiltIndex:
    """`software` are the versions on which generated code depends."""

    def __init__(self, cache_dir: Path, target: Target, software: Mapping[str, str]) -> None:
        self._folder, self._target, self._software = cache_dir / "dispatch", target, dict(sorted(software.items()))
        self._known: dict[str, BuildResult] = {}

    @cached_property
    def _made_with(self) -> str:
        machine = cpu_identity() if self._target.kind == "cpu" else ""
        return json.dumps([self._software, machine, lowering_version(), self._target.tvm_target()], sort_keys=True)

    def find(self, candidate: Candidate) -> BuildResult | None:
        """Its library, where it is still there."""
        key = self._key(candidate)
        found = self._known.get(key) or self._read(key)
        if found is None or found.artifact is None or not Path(found.artifact).exists():
            self._known.pop(key, None)
            return None
        self._known[key] = found
        return found

    def keep(self, candidate: Candidate, built: BuildResult) -> None:
        """Remember it, here and, where the folder can be written, for other processes."""
        key = self._key(candidate)
        self._known[key] = built
        said: dict[str, object] = {
            "artifact": built.artifact,
            "entry": built.entry,
            "resources": dict(built.resources),
            "compiler": built.compiler,
            "binary": built.binary,
        }
        try:
            said["bytes"] = Path(built.artifact or "").stat().st_size
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._folder / f"{key}{SUFFIX}", "index of built kernels") as partial:
                partial.write_text(json.dumps(said), encoding="utf-8")
        except Exception:  # no space, no permission: it is looked up by lowering it next time
            return

    def forget(self, candidate: Candidate, built: BuildResult) -> None:
        """Its library turned out not to work: it goes from the kernel cache, too, or it would be found there again."""
        key = self._key(candidate)
        self._known.pop(key, None)
        with suppress(OSError):
            (self._folder / f"{key}{SUFFIX}").unlink(missing_ok=True)
        with suppress(OSError):
            Path(built.artifact or "").unlink(missing_ok=True)

    def _key(self, candidate: Candidate) -> str:
        return cache_key(name_of(candidate), self._made_with)

    def _read(self, key: str) -> BuildResult | None:
        try:
            said = json.loads((self._folder / f"{key}{SUFFIX}").read_text(encoding="utf-8"))
            resources = {str(name): int(value) for name, value in said["resources"].items()}
            if Path(said["artifact"]).stat().st_size != int(said["bytes"]):
                return None  # cut off: loading it could end the process
            return BuildResult(str(said["artifact"]), None, str(said["entry"]), resources, str(said["compiler"]), 0.0, str(said["binary"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # absent or damaged: it is built again


def build_all(executor: Executor, index: BuiltIndex, candidates: Sequence[Candidate]) -> list[BuildResult]:
    """The libraries of `candidates`, in their order, those that are missing built by `executor`'s workers. A failure is part of
    the result. Raises `ToolchainError` where nothing can be built."""
    found: dict[str, BuildResult] = {}
    missing: dict[str, Candidate] = {}
    for candidate in candidates:
        built = index.find(candidate)
        if built is None:
            missing.setdefault(name_of(candidate), candidate)
        else:
            found[name_of(candidate)] = built
    if missing:
        for event in executor.stream(OneLane([Build(candidate) for candidate in missing.values()])):
            if isinstance(event, Built):
                done = event.job.candidate
                found[name_of(done)] = event.result
                if event.result.failure is None:
                    index.keep(done, event.result)
    lost = BuildResult(None, Failure(FailureKind.BUILD_CRASH, "its build ended without a result"))
    return [found.get(name_of(candidate), lost) for candidate in candidates]
