"""Kernels for virtual ranks: those that fit one chip together, built whole or without one of their waits."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from tilesight.builder.build import build_lowered
from tilesight.builder.launch_plan import LaunchPlan
from tilesight.kernels import operator, template_for
from tilesight.kernels._context_parallel import ContextParallelOperator
from tilesight.kernels._rank_flags import WAITING
from tilesight.kernels._rank_products import RankProduct
from tilesight.kernels.all_to_all_grouped_matmul import AllToAllGroupedMatmul
from tilesight.kernels.context_parallel_flash_attention import ContextParallelFlashAttention
from tilesight.lowering.dynamic import lower_candidate
from tilesight.problem.candidate import Candidate
from tilesight.problem.group_operator import AWAIT, AWAIT_ALL, AWAIT_RESULTS, AWAIT_TILE, MEET, WORLD
from tilesight.problem.space import Config
from tilesight.records.trial import BuildResult
from tilesight.search_spaces.all_gather_matmul import COPY_ENGINE
from tilesight.search_spaces.ways import SEQUENTIAL
from tilesight.target.spec import Target, load_target

# cores that no rank's blocks hold: the driver may copy within the memory of one GPU by kernels
FOR_COPIES = 4
# operators whose kernels of several ranks have a block for each core
OF_CORES = (RankProduct, ContextParallelFlashAttention)


def virtual_target(chip: Target, world: int, name: str) -> Target:
    """A target of so many devices, on which an operator's configs are those that fit one chip together.

    Those `OF_CORES` have a block for each core, all of which may wait: each rank has an equal part of the
    cores but a few, on which copies to peers can run. Of the other operators the number of blocks that wait
    follows from the shape, so cores stay.
    """
    node = load_target(f"{chip.name}x{world}")
    if not isinstance(operator(name), OF_CORES):
        return node

    def part(of: Target) -> Target:
        count = of.figures["core.count"]
        return replace(
            of,
            figures={**of.figures, "core.count": replace(count, value=(count.value - FOR_COPIES) // world)},
        )

    return replace(part(node), chip=part(chip))


def way_of(config: Config) -> str:
    """The algorithm, and what some of its blocks or the copy engines do beside the product."""
    beside = [name for name in ("senders", "summers", "mechanism") if name in config]
    return " ".join([config.str("algorithm"), *beside, *([COPY_ENGINE] if is_by_engines(config) else [])])


def fused_candidates(name: str, shape: str, target: Target, count: int) -> dict[str, Candidate]:
    """Up to `count` configs, drawn at random, of each way in which kernels reach peers; by label."""
    workload = operator(name).workload_on(target, shape)
    template = template_for(name, target, workload.dtype)
    of_ways: dict[str, list[Config]] = {}
    for config in template.space(workload, target).configs():
        if config["algorithm"] != SEQUENTIAL:
            of_ways.setdefault(way_of(config), []).append(config)
    return {
        f"{name} {way} ({number}) {shape} {WORLD}={target.world}: {config}": Candidate(
            workload, target, template.for_config(config), config
        )
        for way, configs in of_ways.items()
        for number, config in enumerate(random.Random(0).sample(configs, min(count, len(configs))))
    }


def is_by_engines(config: Config) -> bool:
    """Whether the copy engines copy to peers."""
    return config.get("mechanism") == COPY_ENGINE


def most_waiting(candidate: Candidate) -> int:
    """How many blocks of one launch on one rank may wait for other ranks, at most.

    They must be fewer, of all ranks together, than the chip has cores: each holds one core at most, and
    another block of any kernel fits a core without them. Of operators `OF_CORES` all blocks may wait, and
    those of all ranks may be as many as there are cores: nothing else has to run then, but copies to peers.
    """
    kind, workload = candidate.template.operator, candidate.workload
    if isinstance(kind, ContextParallelOperator):
        return min(kind.parts(workload).tiles, WAITING)
    if isinstance(kind, AllToAllGroupedMatmul):
        return max(kind.rows(workload).finding, kind.rows(workload).adding)
    assert isinstance(kind, OF_CORES)
    return candidate.config.int("persistent")


def misfit(candidate: Candidate, cores: int) -> str | None:
    """Why the ranks of a kernel cannot share a chip; None if they can."""
    world = candidate.target.world
    most = cores if isinstance(candidate.template.operator, OF_CORES) else cores - 1
    most -= FOR_COPIES if is_by_engines(candidate.config) else 0
    if most_waiting(candidate) * world <= most:
        return None
    return (
        f"{most_waiting(candidate)} blocks of each of {world} ranks may wait at once, and the chip has "
        f"{cores} cores: they could keep the blocks that they wait for from running; take a smaller shape"
    )


def build(candidate: Candidate, folder: Path) -> BuildResult:
    """Build a kernel, without an entry in the index of the kernel cache: no user has this target."""
    return build_without("", candidate, folder)


def build_without(wait: str, candidate: Candidate, folder: Path) -> BuildResult:
    """Build a kernel in which a device function that waits (one of `waits`) returns at once; "": none."""
    flags = candidate.template.compile_flags.get(candidate.target.kind, ())
    lower = partial(lower_candidate, candidate)
    if not wait:
        return build_lowered(lower, candidate.target, flags, folder)

    def rewrite(source: str, plan: LaunchPlan) -> tuple[str, LaunchPlan]:
        return without_wait(source, wait), plan

    return build_lowered(lower, candidate.target, flags, folder, rewrite=rewrite)


def without_wait(source: str, function: str) -> str:
    """A text of device functions, of which one never waits. Raises `ValueError` if it has not that one."""
    pattern = rf"(__device__ __forceinline__ void {function}\([^{{]*\{{.*?\bwhile \()"
    text, count = re.subn(pattern, r"\1false && ", source, flags=re.DOTALL)
    if not count:
        raise ValueError(f"no device function {function} waits in this source")
    return text


def waits(candidate: Candidate) -> tuple[str, ...]:
    """The device functions whose waits a result needs.

    Not `MEET` where flags tell which chunks or tiles have arrived. Without it a call is wrong only after a
    slow one, or if tiles are left to add after the product, and no late rank makes sure of that.
    """
    config, kind = candidate.config, candidate.template.operator
    if isinstance(kind, ContextParallelOperator):
        return (AWAIT_RESULTS,)
    if isinstance(kind, AllToAllGroupedMatmul):
        return AWAIT_ALL, AWAIT_RESULTS
    if config.int("senders", 0) or is_by_engines(config):
        return (AWAIT,)
    return (AWAIT_TILE,) if config.int("summers", 0) else (MEET,)
