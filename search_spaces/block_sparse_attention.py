"""Search space of block_sparse_attention: that of flash_attention, with tiles within blocks of the mask."""

from __future__ import annotations

from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from . import flash_attention
from .matrix_unit import is_hopper


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    dense, block = flash_attention.space(workload, target, schedules=False), int(workload.attrs["block"])
    bulk_copies = is_hopper(target) and workload.dims["head_dim"] % 8 == 0
    copies = Parameter(
        "copies",
        ("bulk", "threads") if bulk_copies else ("threads",),
        "who copies keys and values: TMA from a warpgroup of its own, or the threads that compute",
    )
    return SearchSpace(
        (*dense.parameters, copies),
        (
            _divides("block_m", block),
            _divides("block_n", block),
            *dense.constraints,
            _list_pipelines(target.kind == "hip", bulk_copies),
        ),
    )


def _divides(parameter: str, block: int) -> Constraint:
    """A tile lies within one block of the mask, so that one list of blocks holds for all its rows."""

    def violation(config: Config) -> str | None:
        size = config.int(parameter)
        if block % size == 0:
            return None
        return f"{parameter}={size} must divide the block={block} of the mask: take {min(block, 64)}"

    return Constraint(f"{parameter} divides block", violation)


def _list_pipelines(hip: bool, bulk_copies: bool) -> Constraint:
    """Without TMA, a loop over a list has no pipeline, as in causal attention: see `causal_pipelines`."""
    way_out = "copies=bulk or num_stages=1" if bulk_copies else "num_stages=1"

    def violation(config: Config) -> str | None:
        stages = config.int("num_stages")
        if hip or stages == 1 or config["copies"] == "bulk":
            return None
        return (
            f"num_stages={stages} cannot be compiled for lists of different lengths without TMA (TileLang "
            f"0.1.15): take {way_out}"
        )

    return Constraint("list pipeline", violation)
