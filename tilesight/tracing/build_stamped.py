"""Builds a kernel twice: as it is, and with time stamps. Runs in a worker process, as all builds do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..builder.build import build_lowered
from ..builder.launch_plan import LaunchPlan
from ..errors import Failure, FailureKind, LaunchError
from ..problem.candidate import Candidate
from ..records.trial import BuildResult
from .grids import Grid, fixed_grids
from .stamp_source import with_stamps
from .values import StampedKernel

if TYPE_CHECKING:
    from ..lowering.lower import Lowered
    from ..target.spec import Target


@dataclass(frozen=True, slots=True)
class StampedBuild:
    """A kernel and the same kernel with stamps, both built."""

    plain: BuildResult
    stamped: BuildResult
    kernels: tuple[StampedKernel, ...]

    @property
    def failure(self) -> Failure | None:
        return self.plain.failure or self.stamped.failure


def build_stamped(candidate: Candidate, cache_dir: Path) -> StampedBuild:
    """Build a candidate without and with stamps. A failure is part of the result."""
    from ..lowering.dynamic import lower_candidate

    flags = candidate.template.compile_flags.get(candidate.target.kind, ())
    return build_both(lambda: lower_candidate(candidate), candidate.target, flags, cache_dir, fixed_grids)


def build_both(
    lower: Callable[[], Lowered],
    target: Target,
    flags: tuple[str, ...],
    cache_dir: Path,
    grids: Callable[[Lowered, LaunchPlan], list[Grid]],
) -> StampedBuild:
    """Build what `lower` returns, once without and once with stamps.

    Args:
        lower: Makes the lowered function.
        target: A target of NVIDIA.
        flags: Further options of the compiler.
        cache_dir: Folder of the kernel cache.
        grids: The number of blocks of each launch.
    """
    made: list[Lowered] = []
    kernels: tuple[StampedKernel, ...] = ()

    def once() -> Lowered:
        if not made:
            made.append(lower())
        return made[0]

    def stamped(source: str, plan: LaunchPlan) -> tuple[str, LaunchPlan]:
        nonlocal kernels
        source, plan, kernels = with_stamps(source, plan, grids(once(), plan))
        return source, plan

    plain = build_lowered(once, target, flags, cache_dir)
    if plain.failure is not None:
        return StampedBuild(plain, plain, ())
    try:
        built = build_lowered(once, target, flags, cache_dir, rewrite=stamped)
    except LaunchError as error:
        return StampedBuild(plain, BuildResult(None, Failure(FailureKind.BUILD_ERROR, str(error))), ())
    if built.failure is not None:
        message = f"with time stamps in it, {built.failure.message}"
        built = replace(built, failure=replace(built.failure, message=message))
    return StampedBuild(plain, built, kernels)
