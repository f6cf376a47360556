"""Blocks that take several heads of a chunk of Mamba-2 in turn: their parameter and rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..problem.space import Config, Constraint, Parameter, Value

ROWS = 64  # of one wgmma
GROUP = 128  # threads that issue one
HEADS = (1, 2, 4, 8, 16, 32, 64)
LARGEST_CHUNK = 256  # rows that TMA copies at once; a group of threads has 64 of them


def heads_parameter() -> Parameter:
    """`heads`: 0 for a block for each tile, as measured before blocks could stay."""
    return Parameter(
        "heads",
        (0, *HEADS),
        "heads that a block takes in turn, while it keeps what they share; 0: a block for each tile",
        default=0,
    )


def is_resident(config: Config) -> bool:
    """Whether blocks take several heads in turn."""
    return config.int("heads", 0) > 0


def unless_resident(constraint: Constraint) -> Constraint:
    """`constraint`, for blocks that have one tile each."""
    return Constraint(
        constraint.name,
        lambda config: None if is_resident(config) else constraint.violation(config),
        is_waste=constraint.is_waste,
    )


def if_resident(constraint: Constraint) -> Constraint:
    """`constraint`, for blocks that take several heads in turn."""
    return Constraint(
        constraint.name,
        lambda config: constraint.violation(config) if is_resident(config) else None,
        is_waste=constraint.is_waste,
    )


def resident_form(chunk: int, wanted: Callable[[Config], Mapping[str, Value]]) -> Constraint:
    """Blocks that stay are written for chunks of 64 to 256 tokens, and have no other form than `wanted`."""

    def violation(config: Config) -> str | None:
        heads = config.int("heads")
        if chunk % ROWS or chunk > LARGEST_CHUNK:
            return (
                f"heads={heads} keeps a chunk of {ROWS} to {LARGEST_CHUNK} tokens, and this one has {chunk}: "
                "take heads=0"
            )
        for name, value in wanted(config).items():
            if config[name] != value:
                return f"heads={heads} has no {name}={config[name]}: take {name}={value}"
        return None

    return if_resident(Constraint("blocks that stay", violation))


def enough_heads(nheads: int, groups: Callable[[Config], int]) -> Constraint:
    """A block takes no more heads than there are, and at least one for each group that has its own."""
    most = min((value for value in HEADS if value >= nheads), default=max(HEADS))

    def violation(config: Config) -> str | None:
        heads, least = config.int("heads"), groups(config)
        if heads > most:
            return f"heads={heads} is wasted on nheads={nheads}: {most} covers it"
        if heads < least:
            return (
                f"heads={heads} leaves some of {least} groups of threads without a head: take fewer threads"
            )
        return None

    return if_resident(Constraint("heads of a block", violation, is_waste=True))
