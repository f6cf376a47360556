"""Built kernels: finding the library of a choice without lowering, and building missing ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

from ...builder.index_files import (
    code_versions,
    index_key,
    index_path,
    kernel_name,
    read_index_file,
    write_index_file,
)
from ...builder.kernel_cache import check_owner
from ...errors import Failure, FailureKind
from ...executor.jobs import BuildDone, BuildJob, Executor, SingleLaneSource
from ...problem.candidate import Candidate
from ...records.trial import BuildResult
from ..background_thread import BackgroundThread
from ..problem import DispatchProblem
from ..select.choice import Choice


class KernelBuilder:
    """The built kernels of one problem, in memory and as files beside the kernel cache.

    Args:
        problem: what the kernels compute.
        cache_dir: folder of the kernel cache.
        software: versions on which generated code depends.
        thread: runs the builds that calls wait for.

    Raises `ToolchainError` if other users may write to the kernel cache.
    """

    def __init__(
        self, problem: DispatchProblem, cache_dir: Path, software: Mapping[str, str], thread: BackgroundThread
    ) -> None:
        check_owner(cache_dir)
        self.problem, self.thread = problem, thread
        self._cache_dir, self._software = cache_dir, dict(software)
        self._found: dict[str, BuildResult] = {}  # by the name of the index file, without suffix

    def find(self, choice: Choice) -> BuildResult | None:
        """The library of a choice, if it is built and its file is still present."""
        return self._find(self.candidate(choice))

    def build(self, choices: Sequence[Choice]) -> list[BuildResult]:
        """The libraries of `choices`, in their order.

        Waits until worker processes have built those that are missing. A failed build is one of the results.
        Raises `ToolchainError` if nothing can be built on this machine.
        """
        found = [self.find(choice) for choice in choices]
        if None not in found:
            return [built for built in found if built is not None]
        return self.thread.submit(partial(self.build_with, choices)).result()

    def build_with(self, choices: Sequence[Choice], executor: Executor) -> list[BuildResult]:
        """Like `build`, in the calling thread and by the given executor."""
        candidates = [self.candidate(choice) for choice in choices]
        found: dict[str, BuildResult] = {}
        missing: dict[str, Candidate] = {}
        for candidate in candidates:
            built = self._find(candidate)
            if built is None:
                missing.setdefault(kernel_name(candidate), candidate)
            else:
                found[kernel_name(candidate)] = built
        if missing:
            for event in executor.stream(
                SingleLaneSource([BuildJob(candidate) for candidate in missing.values()])
            ):
                if isinstance(event, BuildDone):
                    found[kernel_name(event.job.candidate)] = event.result
                    if event.result.failure is None:
                        self._add(event.job.candidate, event.result)
        lost = BuildResult(None, Failure(FailureKind.BUILD_CRASH, "its build ended without a result"))
        return [found.get(kernel_name(candidate), lost) for candidate in candidates]

    def add(self, choice: Choice, built: BuildResult) -> None:
        """Remember a library, for other processes too if the folder can be written."""
        self._add(self.candidate(choice), built)

    def discard(self, choice: Choice, built: BuildResult) -> None:
        """Forget a library that does not work, and delete it, or the kernel cache would return it again."""
        key = self._key(self.candidate(choice))
        self._found.pop(key, None)
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)
        with suppress(OSError):
            Path(built.artifact or "").unlink(missing_ok=True)

    def candidate(self, choice: Choice) -> Candidate:
        """The candidate that is built for a choice."""
        return self.problem.candidate(choice.workload, choice.config, choice.dynamic)

    def close(self) -> None:
        self.thread.close()

    def _find(self, candidate: Candidate) -> BuildResult | None:
        key = self._key(candidate)
        found = self._found.get(key) or read_index_file(self._path(key))
        if found is None or found.artifact is None or not Path(found.artifact).exists():
            self._found.pop(key, None)
            return None
        self._found[key] = found
        return found

    def _add(self, candidate: Candidate, built: BuildResult) -> None:
        key = self._key(candidate)
        self._found[key] = built
        write_index_file(self._path(key), built)

    def _key(self, candidate: Candidate) -> str:
        return index_key(candidate, self._versions)

    def _path(self, key: str) -> Path:
        return index_path(self._cache_dir, key)

    @cached_property
    def _versions(self) -> str:
        return code_versions(self.problem.target, self._software)
