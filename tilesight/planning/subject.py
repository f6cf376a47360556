"""What is planned: one template on one target, all of its dimensions fixed but one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..candidate import Candidate
from ..errors import InputError, TileSightError, UnknownNameError
from ..lookup import find_context
from ..protocol import Protocol
from ..session import Context
from ..space import Config, SearchSpace
from ..template import KernelTemplate
from ..where import Where
from ..workload import Workload, parse_assignments
from .sizes import Vary

_MOST_SPACES = 256  # that are remembered


@dataclass(frozen=True)
class Subject:
    """`base` gives the fixed dimensions, dtype and attributes; its own size of the varied one does not count. `open` are the
    dimensions that kernels take at run time, none where each size has kernels of its own."""

    template: KernelTemplate
    where: Where
    base: Workload
    vary: Vary
    open: tuple[str, ...]
    protocol: Protocol
    model: str
    _spaces: dict[int, SearchSpace] = field(default_factory=dict, compare=False)
    _defaults: dict[int, Config | None] = field(default_factory=dict, compare=False)
    _workloads: dict[int, Workload] = field(default_factory=dict, compare=False)
    _contexts: dict[int, Context] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        fixed = " ".join(f"{k}={v}" for k, v in [*self.fixed.items(), *self.base.attrs.items()])
        return f"{self.base.operator} {self.vary.dim}={self.vary.first}..{self.vary.last} {fixed} {self.base.dtype}"

    @property
    def fixed(self) -> dict[str, int]:
        return {name: value for name, value in self.base.dims.items() if name != self.vary.dim}

    @property
    def steps(self) -> tuple[int, ...]:
        """Tiles that the varied dimension may be cut into."""
        scale = self.template.scales.get(self.vary.dim)
        return scale.values if scale is not None else (1,)

    def workload(self, size: int) -> Workload:
        if size not in self._workloads:  # one value for each size: what is kept of it is found by identity
            dims = {name: size if name == self.vary.dim else value for name, value in self.base.dims.items()}
            self._workloads[size] = Workload(self.base.operator, dims, self.base.dtype, self.base.attrs)
        return self._workloads[size]

    def space(self, size: int) -> SearchSpace:
        if size not in self._spaces:
            if len(self._spaces) >= _MOST_SPACES:
                self._spaces.clear()
            self._spaces[size] = self.template.space(self.workload(size), self.where.target)
        return self._spaces[size]

    def works(self, size: int, config: Config) -> bool:
        """Whether a kernel of `config` may be used at a size. One with the size open may be wasteful there."""
        space = self.space(size)
        return space.works(config) if self.open else config in space

    def default(self, size: int) -> Config | None:
        """What a careful engineer would take there."""
        if size not in self._defaults:
            self._defaults[size] = self.template.default_config(self.workload(size), self.where.target)
        return self._defaults[size]

    def context(self, size: int) -> Context:
        if size not in self._contexts:
            workload, space = self.workload(size), self.space(size)
            known = next(iter(self._contexts.values()), None)  # asking for versions takes milliseconds
            if known is not None:
                self._contexts[size] = replace(known, workload=workload, space=space.fingerprint)
            else:
                self._contexts[size] = find_context(self.template, workload, self.where, self.model, space, self.protocol, self.open)
        return self._contexts[size]

    def candidate(self, size: int, config: Config) -> Candidate:
        return Candidate(self.workload(size), self.where.target, self.template, config, self.open)

    def alike(self, size: int, config: Config) -> int:
        """The size at which the profile of an open kernel stands for `size`: its blocks are the same, their last ones full. The model
        takes masked rows to cost what others do; what they do cost, up to half as much again where a kernel has few tiles,
        measurements tell."""
        scale = self.template.scales.get(self.vary.dim)
        if not self.open or scale is None or len(scale.tiles) != 1:
            return size
        whole = self.whole(size, config)
        return whole if whole <= max(self.vary.last, config.int(scale.tiles[0])) else size

    def whole(self, size: int, config: Config) -> int:
        """`size` rounded up to whole tiles, of the first parameter that tiles the varied dimension."""
        scale = self.template.scales.get(self.vary.dim)
        if scale is None or not scale.tiles:
            return size
        tile = config.int(scale.tiles[0])
        return -(-size // tile) * tile


def base_workload(template: KernelTemplate, vary: Vary, shape: str | Mapping[str, bool | int] | None, dtype: str) -> Workload:
    """The workload with the fixed dimensions of `shape`: `k=v,...` without the varied one, or a published name of which the
    varied dimension is left out. None: the operator's first default shape. Raises `InputError`."""
    operator = template.operator
    if vary.dim not in operator.dims:
        raise UnknownNameError(f"{operator.name} dimension", vary.dim, operator.dims)
    if shape is None:
        found = operator.default_workloads(dtype)[0]
    elif isinstance(shape, str) and "=" not in shape:
        found = operator.workload(shape, dtype)
    else:
        given = parse_assignments(shape, "shape") if isinstance(shape, str) else {name: _text(value) for name, value in shape.items()}
        if vary.dim in given:
            raise InputError(
                f"{operator.name}: {vary.dim}={given[vary.dim]} is varied over {vary.first} .. {vary.last}; leave it out of the shape"
            )
        missing = [name for name in operator.dims if name not in given and name != vary.dim]
        if missing and set(given) <= {*operator.dims, *operator.attrs}:
            rest = ", ".join(name for name in operator.dims if name != vary.dim)
            raise InputError(f"{operator.name}: the shape lacks {', '.join(missing)}; beside {vary.dim}, which varies, give {rest}")
        found = operator.workload(",".join(f"{k}={v}" for k, v in {**given, vary.dim: str(vary.first)}.items()), dtype)
    dims = {name: vary.last if name == vary.dim else value for name, value in found.dims.items()}
    largest = Workload(found.operator, dims, found.dtype, found.attrs)
    for size in {vary.first, vary.last}:
        try:
            operator.validate(Workload(found.operator, {**dims, vary.dim: size}, found.dtype, found.attrs))
        except TileSightError as error:
            raise InputError(f"at {vary.dim}={size}: {error}") from error
    return largest


def openings(template: KernelTemplate, vary: Vary, static: bool) -> tuple[str, ...]:
    """The dimensions that kernels take at run time. Raises `InputError` where the template's cannot take the varied one."""
    if static:
        return ()
    try:
        template.check_open((vary.dim,))
    except InputError as error:
        raise InputError(f"{error}; or plan with --static, where each size has a kernel of its own") from error
    return (vary.dim,)


def _text(value: bool | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
