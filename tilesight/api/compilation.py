"""`tilesight build`: one candidate through the compiler, the compiler's figures beside the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..costmodel import default_model
from ..errors import Failure, NoCandidateError, ToolchainError
from ..executor.jobs import BuildJob
from ..executor.local import BUILD_FAULTS, LIMITS
from ..executor.tasks import Profiled, compiler_pool, lower_and_profile
from ..machine.placement import locate
from ..machine.toolchain import missing_compiler
from ..problem.candidate import Candidate
from ..problem.space import Value
from ..profile.values import KernelProfile
from ..records.trial import BuildResult, Prediction
from ..settings import load_settings
from ..target.spec import Target
from ..tuner.resolve import Shape, find_operator, find_template, find_workloads
from ..workers import Done, failure_of


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes of a core. `registers` are per thread at launch."""

    registers: int
    spilled_registers: float  # per thread, those that do not fit
    smem_bytes: int
    blocks_per_core: int
    limited_by: str  # what bounds the blocks


@dataclass(frozen=True, slots=True)
class Compilation:
    """A built candidate. The estimates are those of its first kernel; on a CPU there are none."""

    candidate: Candidate
    build: BuildResult
    source: str
    predicted: Prediction  # from the IR alone
    corrected: Prediction  # with the compiler's figures
    from_ir: Resources | None
    from_compiler: Resources | None


def build(
    kernel: str,
    target: str | Target | None,
    shape: Shape | None = None,
    *,
    config: str | Mapping[str, Value],
    dtype: str | None = None,
    dynamic: str | Sequence[str] = (),
) -> Compilation:
    """Build `config` of `kernel` for a target that need not be here; see `api.tune` for the arguments.

    A kernel with `dynamic` dimensions is one library for all their values; the shape is what its predictions
    are for.

    Raises `InputError` for a wrong argument, and what `compile_candidate` raises.
    """
    operator = find_operator(kernel)
    chosen = locate(target, measures=False, communicates=operator.communicates).target
    workload = find_workloads(operator, chosen, shape, dtype)[0]
    template = find_template(operator, chosen, workload.dtype)
    dynamic_dims = template.check_dynamic(dynamic)
    space = template.space(workload, chosen)
    wanted = space.read(config) if isinstance(config, str) else space.config(config)
    space.check(wanted)
    return compile_candidate(
        Candidate(workload, chosen, template, wanted, dynamic_dims), load_settings().cache_dir
    )


def compile_candidate(candidate: Candidate, cache_dir: Path) -> Compilation:
    """Lower, profile and build `candidate` in a process of its own. The library need not run here.

    Raises `ToolchainError` where there is no compiler for the target, `NoCandidateError` where lowering or
    the compiler refuses the candidate.
    """
    missing = missing_compiler(candidate.target, runnable=False)
    if missing:
        raise ToolchainError(missing)
    with compiler_pool(LIMITS[BuildJob]) as pool:
        (outcome,) = (found for _, found in pool.run(_work, [(candidate, cache_dir)]))
    if not isinstance(outcome, Done):
        raise _refused(candidate, failure_of(outcome, *BUILD_FAULTS))
    profiled, built = outcome.value
    if isinstance(profiled, Failure):
        raise _refused(candidate, profiled)
    if built.failure is not None:
        raise _refused(candidate, built.failure)
    assert built.artifact is not None
    model, target = default_model(), candidate.target
    first = profiled.kernels[0]
    return Compilation(
        candidate,
        built,
        _source(Path(built.artifact)),
        model.predict(profiled.kernels, target),
        model.predict(profiled.kernels, target, built.resources),
        _resources(first, target, {}) if target.is_gpu else None,
        _resources(first, target, built.resources) if target.is_gpu and built.resources else None,
    )


def _work(item: tuple[Candidate, Path]) -> tuple[Profiled | Failure, BuildResult]:
    from ..builder.build import build_kernel

    candidate, cache_dir = item
    profiled = lower_and_profile(candidate)
    if isinstance(profiled, Failure):
        return profiled, BuildResult(None, profiled)
    return profiled, build_kernel(candidate, cache_dir, runnable=False)


def _refused(candidate: Candidate, failure: Failure) -> NoCandidateError:
    detail = f"\n{failure.detail}" if failure.detail else ""
    return NoCandidateError(
        f"{candidate.config} cannot be built for {candidate.target.name}: {failure.message}{detail}"
    )


def _resources(kernel: KernelProfile, target: Target, built: Mapping[str, int]) -> Resources:
    from ..costmodel.analytical.occupancy import occupancy

    found = occupancy(kernel, target, built)
    smem = built.get("smem_bytes") or kernel.shared_bytes
    return Resources(found.registers, sum(found.spilled.values()), smem, found.blocks, found.limited_by)


def _source(artifact: Path) -> str:
    """The generated source lies beside what was built of it."""
    files = [artifact.with_suffix(suffix) for suffix in (".cu", ".cpp")]
    return next((file.read_text(encoding="utf-8") for file in files if file.exists()), "")
