"""A part of a target of several devices: some hosts of a pod."""

from __future__ import annotations

import math
from dataclasses import replace

from ..errors import InputError
from .network import COLLECTIVES, Level, whole_world
from .spec import Target


def part_of(target: Target, world: int) -> Target:
    """The target of `world` devices of `target`: whole units, the inner levels filled first.

    Raises:
        InputError: `world` devices are no whole units, or a level has times of the library on all its units.
    """
    left = whole_world(world)
    if world > target.world:
        raise InputError(
            f"world {world} is larger than target {target.name}, which has {target.world} devices"
        )
    if world == target.world:
        return target
    levels: list[Level] = []
    for place, level in enumerate(target.levels):
        parts = min(left, level.devices)
        if left % parts or (place == 0 and parts < level.devices):
            raise InputError(_no_whole_units(target, world, level, math.prod(one.devices for one in levels)))
        if parts > 1:
            levels.append(level if parts == level.devices else _of_parts(level, parts, target))
        left //= parts
    inner = {path: figure for path, figure in target.figures.items() if not _is_of(path, target.levels)}
    for level in levels:
        inner |= level.paths()
    return replace(
        target,
        name=f"{target.name}-{world}",
        title=f"{world} devices of {target.title}",
        figures=inner,
        levels=tuple(levels),
        own_levels=min(target.own_levels, len(levels)),
    )


def _no_whole_units(target: Target, world: int, level: Level, inner: int) -> str:
    unit = inner * level.devices
    return (
        f"world {world} is no whole number of units of level '{level.name}' of target {target.name}, which "
        f"have {unit} devices each: take a multiple of {unit}, at most {target.world}"
    )


def _is_of(path: str, levels: tuple[Level, ...]) -> bool:
    return any(path.startswith(f"{level.name}.") for level in levels)


def _of_parts(level: Level, parts: int, target: Target) -> Level:
    """The level with fewer parts. What the library takes between all of them says nothing about fewer."""
    given = next((name for name in COLLECTIVES if level.has_library(name)), None)
    if given is not None:
        raise InputError(
            f"target {target.name}: 'network.library.{given}' of level '{level.name}' is the library's time "
            f"on all of its {level.devices} units, not on {parts}: describe these in a file of their own, or "
            "give network.library.gb_per_s, step_us, fill_us and fill_bytes in its place"
        )
    count = replace(level.figures["devices"], value=parts, source=f"{parts} of {level.devices}")
    return replace(level, figures={**level.figures, "devices": count})
