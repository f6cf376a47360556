"""The problem of a plan: one template on one target, with all dimensions fixed but one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..bounded_dict import BoundedDict
from ..errors import InputError, TileSightError, UnknownNameError
from ..machine.placement import Placement
from ..problem.assignments import parse_assignments
from ..problem.candidate import Candidate
from ..problem.operator import Operator
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..records.protocol import MeasurementProtocol
from ..records.session import Context
from ..target.spec import Target
from ..tuner.resolve import find_context
from .sizes import SizeRange

_SPACE_LIMIT = 256  # in memory


@dataclass(frozen=True)
class PlanProblem:
    """One plan's problem. `base`: the fixed dimensions, dtype and attributes; its varied size is ignored.

    `dynamic`: dimensions that kernels take at run time; none if each size has kernels of its own.
    """

    template: KernelTemplate
    placement: Placement
    base: Workload
    vary: SizeRange
    dynamic: tuple[str, ...]
    protocol: MeasurementProtocol
    model: str
    _spaces: BoundedDict[int, SearchSpace] = field(
        default_factory=lambda: BoundedDict(_SPACE_LIMIT), init=False, compare=False
    )
    _defaults: dict[int, Config | None] = field(default_factory=dict, init=False, compare=False)
    _workloads: dict[int, Workload] = field(default_factory=dict, init=False, compare=False)
    _contexts: dict[int, Context] = field(default_factory=dict, init=False, compare=False)
    _tiles: dict[Config, int] = field(default_factory=dict, init=False, compare=False)
    _works: dict[tuple[int, Config], bool] = field(default_factory=dict, init=False, compare=False)

    @property
    def label(self) -> str:
        fixed = " ".join(f"{k}={v}" for k, v in [*self.fixed.items(), *self.base.attrs.items()])
        varied = f"{self.vary.dim}={self.vary.first}..{self.vary.last}"
        return f"{self.base.operator} {varied} {fixed} {self.base.dtype}"

    @property
    def fixed(self) -> dict[str, int]:
        return {name: value for name, value in self.base.dims.items() if name != self.vary.dim}

    @property
    def tile_sizes(self) -> tuple[int, ...]:
        """Sizes of the tiles that may cut the varied dimension, in whole steps."""
        scale = self.template.scales.get(self.vary.dim)
        tiles = scale.values if scale is not None else (1,)
        return tuple(math.lcm(tile, self.vary.step) for tile in tiles)

    def workload(self, size: int) -> Workload:
        if size not in self._workloads:  # one object per size: caches find it by identity
            dims = {name: size if name == self.vary.dim else value for name, value in self.base.dims.items()}
            self._workloads[size] = Workload(self.base.operator, dims, self.base.dtype, self.base.attrs)
        return self._workloads[size]

    def space(self, size: int) -> SearchSpace:
        if size not in self._spaces:
            self._spaces[size] = self.template.space(self.workload(size), self.placement.target)
        return self._spaces[size]

    def works(self, size: int, config: Config) -> bool:
        """Whether a kernel of `config` may be used at a size. A dynamic kernel may be wasteful there."""
        works = self._works.get((size, config))
        if works is None:  # asked again after every few measurements
            space = self.space(size)
            works = space.works(config) if self.dynamic else config in space
            self._works[size, config] = works
        return works

    def explores(self, config: Config) -> bool:
        """Whether a search takes a config. Some take too long to lower if the size is dynamic."""
        return not self.dynamic or not any(config.get(name) for name in self.template.static_parameters)

    def default(self, size: int) -> Config | None:
        """The default config of a size, None if the template has none."""
        if size not in self._defaults:
            self._defaults[size] = self.template.default_config(self.workload(size), self.placement.target)
        return self._defaults[size]

    def context(self, size: int) -> Context:
        if size not in self._contexts:
            workload, space = self.workload(size), self.space(size)
            known = next(iter(self._contexts.values()), None)  # reading versions takes milliseconds
            if known is not None:
                self._contexts[size] = replace(known, workload=workload, space=space.fingerprint)
            else:
                self._contexts[size] = find_context(
                    self.template, workload, self.placement, self.model, space, self.protocol, self.dynamic
                )
        return self._contexts[size]

    def candidate(self, size: int, config: Config) -> Candidate:
        return Candidate(self.workload(size), self.placement.target, self.template, config, self.dynamic)

    def profile_size(self, size: int, config: Config) -> int:
        """The size whose profile stands for `size`: a dynamic kernel's next whole tile, with the same blocks.

        The model takes masked rows to cost as much as others. Their real cost, up to half as much again for a
        kernel of few tiles, is learned from measurements.
        """
        if not self.dynamic or not self._is_tiled_once:
            return size
        tile = self._tile(config)
        rounded = -(-size // tile) * tile
        return rounded if rounded <= max(self.vary.last, tile) else size

    def whole_tiles(self, size: int, config: Config) -> int:
        """`size` rounded up to whole tiles of the first parameter that tiles the varied dimension."""
        tile = self._tile(config)
        return -(-size // tile) * tile

    @cached_property
    def _is_tiled_once(self) -> bool:
        """Whether exactly one parameter tiles the varied dimension."""
        scale = self.template.scales.get(self.vary.dim)
        return scale is not None and len(scale.tiles) == 1

    def _tile(self, config: Config) -> int:
        """Size of the tile that first cuts the varied dimension; 1 if none does."""
        tile = self._tiles.get(config)
        if tile is None:
            scale = self.template.scales.get(self.vary.dim)
            tile = self._tiles[config] = config.int(scale.tiles[0]) if scale and scale.tiles else 1
        return tile


def base_workload(
    template: KernelTemplate,
    target: Target,
    vary: SizeRange,
    shape: str | Mapping[str, Value] | None,
    dtype: str,
) -> Workload:
    """The workload with the fixed dimensions, at the largest size.

    Args:
        template: of the plan.
        target: of the plan; it has the world of operators that communicate.
        vary: the range of sizes.
        shape: the other dimensions (`k=v,...` or a mapping), or a published name, whose size of the varied
            dimension is ignored. None: the operator's first default shape.
        dtype: of the workload.

    Raises:
        InputError: the shape lacks a dimension, names the varied one, or a size is impossible.
    """
    operator = template.operator
    if vary.dim not in operator.dims:
        raise UnknownNameError(f"{operator.name} dimension", vary.dim, operator.dims)
    if shape is None:
        found = operator.default_workloads_on(target, dtype)[0]
    elif isinstance(shape, str) and "=" not in shape:
        found = operator.workload_on(target, shape, dtype)
    else:
        if isinstance(shape, str):
            given = parse_assignments(shape, "shape")
        else:
            given = {name: _text(value) for name, value in shape.items()}
        if vary.dim in given:
            raise InputError(
                f"{operator.name}: {vary.dim}={given[vary.dim]} is varied over {vary.first} .. {vary.last}; "
                "leave it out of the shape"
            )
        missing = [name for name in operator.stated_dims if name not in given and name != vary.dim]
        if missing and set(given) <= {*operator.dims, *operator.attrs}:
            rest = ", ".join(name for name in operator.stated_dims if name != vary.dim)
            lacks = f"the shape lacks {', '.join(missing)}"
            raise InputError(f"{operator.name}: {lacks}; beside {vary.dim}, which varies, give {rest}")
        dims_given = {**given, vary.dim: str(vary.first)}
        text = ",".join(f"{k}={v}" for k, v in dims_given.items())
        found = operator.workload_on(target, text, dtype)
    dims = {name: vary.last if name == vary.dim else value for name, value in found.dims.items()}
    largest = Workload(found.operator, dims, found.dtype, found.attrs)
    for size in {vary.first, vary.last}:
        try:
            operator.validate(Workload(found.operator, {**dims, vary.dim: size}, found.dtype, found.attrs))
        except TileSightError as error:
            raise InputError(f"at {vary.dim}={size}: {error}") from error
    return largest


def takes_size(base: Workload, operator: Operator, dim: str, size: int) -> bool:
    """Whether the operator takes this size of a dimension."""
    try:
        operator.validate(Workload(base.operator, {**base.dims, dim: size}, base.dtype, base.attrs))
    except TileSightError:
        return False
    return True


def dynamic_choice(template: KernelTemplate, vary: SizeRange, static: bool) -> tuple[str, ...]:
    """The dimensions that kernels take at run time: the varied one, or none if the plan is `static`.

    Raises:
        InputError: kernels of the template cannot take the varied dimension.
    """
    if static:
        return ()
    try:
        template.check_dynamic((vary.dim,))
    except InputError as error:
        raise InputError(
            f"{error}; or plan with --static, where each size has a kernel of its own"
        ) from error
    return (vary.dim,)


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
