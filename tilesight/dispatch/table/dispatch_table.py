"""Dispatch tables as values, and their text.

The text is JSON with one line per kernel, segment and piece of evidence, in a fixed order, so that two
versions of a table can be compared line by line. It names everything on which the times depend;
`DispatchTable.mismatches` compares that with a context.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ...errors import InputError
from ...problem.space import Config, Value
from ...problem.workload import Workload
from ...records.session import Context

FORMAT = 1  # raised when a field changes its meaning


@dataclass(frozen=True, slots=True)
class Segment:
    """Sizes `first` .. `last`, both included, and the index of their kernel."""

    first: int
    last: int
    kernel: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """The time of the chosen kernel at one size, and the best known time of any kernel at that size.

    Each time is in microseconds, and measured or predicted.
    """

    size: int
    kernel: int
    chosen_us: float
    best_us: float
    chosen_measured: bool
    best_measured: bool

    @property
    def loss(self) -> float:
        """The additional time of the chosen kernel as a share of the best known time; 0 if it is the best."""
        return max(0.0, self.chosen_us / self.best_us - 1)


@dataclass(frozen=True, slots=True)
class TableChoice:
    """The config and the segment of one size."""

    config: Config
    segment: Segment


@dataclass(frozen=True)
class DispatchTable:
    """A few kernels of one template, and for each the segments of sizes of dimension `vary`.

    Segments are adjacent, without gap or overlap. Raises `InputError` if the parts contradict each other.

    Attributes:
        dims: all dimensions of the operator, in its order: those in `fixed`, and `vary`.
        fixed: the other dimensions than `vary`.
        dynamic: dimensions that the kernels take at run time. Empty: each size has a kernel of its own,
            built from the config of its segment.
        device: the device that measured; empty if all times are predicted.
        protocol: the conditions of the measurements.
        software: versions on which the kernels' code depends.
        model: version of the cost model that predicted.
    """

    operator: str
    dtype: str
    attrs: Mapping[str, Value]
    dims: tuple[str, ...]
    fixed: Mapping[str, int]
    vary: str
    dynamic: tuple[str, ...]
    template: str
    template_version: str
    target: str
    target_fingerprint: str
    arch: str
    device: str
    protocol: str
    software: Mapping[str, str]
    model: str
    kernels: tuple[Config, ...]
    segments: tuple[Segment, ...]
    evidence: tuple[Evidence, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("attrs", "fixed", "software"):
            object.__setattr__(self, name, MappingProxyType(dict(sorted(getattr(self, name).items()))))
        for name, fault in self._faults():
            raise InputError(f"{name}: {fault}")

    @property
    def first(self) -> int:
        return self.segments[0].first

    @property
    def last(self) -> int:
        return self.segments[-1].last

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.first <= size <= self.last

    def choose(self, size: int) -> TableChoice:
        """The kernel for a size. Raises `InputError` if the table does not cover the size."""
        if not self.first <= size <= self.last:
            raise InputError(
                f"{self.operator}: {self.vary}={size} is outside the table, which covers "
                f"{self.first} .. {self.last}"
            )
        segment = self.segments[bisect_left(self._lasts, size)]
        return TableChoice(self.kernels[segment.kernel], segment)

    @cached_property
    def _lasts(self) -> list[int]:
        return [segment.last for segment in self.segments]

    def workload(self, size: int) -> Workload:
        """The workload at one size."""
        dims = {**self.fixed, self.vary: size}
        return Workload(self.operator, {name: dims[name] for name in self.dims}, self.dtype, self.attrs)

    def covers(self, workload: Workload) -> bool:
        """Whether the table has a kernel for this workload."""
        dims = dict(workload.dims)
        size = dims.pop(self.vary, 0)
        problem = workload.operator, workload.dtype, dims, dict(workload.attrs)
        return problem == (self.operator, self.dtype, dict(self.fixed), dict(self.attrs)) and size in self

    def mismatches(self, context: Context) -> list[str]:
        """The differences between `context` and the table's conditions, one sentence each.

        Empty if its choices hold as they are. After a change of template, architecture or software, the
        kernels are others than those that were measured; on another device or under another protocol, only
        their times differ.
        """
        fixed = {name: value for name, value in context.workload.dims.items() if name != self.vary}
        pairs: list[tuple[str, object, object]] = [
            ("operator", self.operator, context.workload.operator),
            ("dtype", self.dtype, context.workload.dtype),
            ("attributes", dict(self.attrs), dict(sorted(context.workload.attrs.items()))),
            ("fixed dimensions", dict(self.fixed), dict(sorted(fixed.items()))),
            ("template", self.template, context.template),
            ("template version", self.template_version, context.template_version),
            ("target", self.target, context.target),
            ("figures of the target", self.target_fingerprint, context.target_fingerprint),
            ("architecture", self.arch, context.arch),
        ]
        if context.device:
            pairs += [("device", self.device, context.device), ("protocol", self.protocol, context.protocol)]
        made_for = "the table was made for"
        found = [
            f"{what}: {made_for} {_shown(mine)}, here it is {_shown(theirs)}"
            for what, mine, theirs in pairs
            if mine != theirs
        ]
        ours, now = dict(self.software), context.code_software
        for name in sorted(ours.keys() | now.keys()):
            if ours.get(name) != now.get(name):
                mine, theirs = ours.get(name, "none"), now.get(name, "none")
                found.append(f"software {name}: the table was made with {mine}, here it is {theirs}")
        return found

    def text(self) -> str:
        """The text of the file; `parse_table` reads it."""
        head: dict[str, object] = {
            "format": FORMAT,
            "operator": self.operator,
            "dtype": self.dtype,
            "attrs": dict(self.attrs),
            "dims": list(self.dims),
            "fixed": dict(self.fixed),
            "vary": self.vary,
            "dynamic": list(self.dynamic),
            "template": {"name": self.template, "version": self.template_version},
            "target": {"name": self.target, "fingerprint": self.target_fingerprint, "arch": self.arch},
            "device": self.device,
            "protocol": self.protocol,
            "software": dict(self.software),
            "model": self.model,
        }
        lists: dict[str, list[dict[str, Any]]] = {
            "kernels": [dict(config) for config in self.kernels],
            "segments": [{"first": s.first, "last": s.last, "kernel": s.kernel} for s in self.segments],
            "evidence": [_evidence_fields(e) for e in self.evidence],
        }
        parts = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        for name, members in lists.items():
            lines = ",\n".join(f"    {json.dumps(member)}" for member in members)
            parts.append(f"  {json.dumps(name)}: [\n{lines}\n  ]" if members else f"  {json.dumps(name)}: []")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def _faults(self) -> Iterator[tuple[str, str]]:
        """The contradictions between the parts: the field, and what is wrong with it."""
        dims, dynamic = ", ".join(self.dims) or "none", ", ".join(self.dynamic)
        if not self.kernels:
            yield "kernels", "a table has one kernel at least"
        if not self.segments:
            yield "segments", "a table has one segment at least"
        if self.vary in self.fixed:
            yield "fixed", f"{self.vary} is varied and cannot be fixed too"
        if sorted(self.dims) != sorted({*self.fixed, self.vary}):
            fixed = ", ".join(self.fixed) or "none"
            yield "dims", f"{dims} must be {self.vary} and those that are fixed: {fixed}"
        if not set(self.dynamic) <= set(self.dims):
            yield "dynamic", f"{dynamic} must be among the dimensions: {dims}"
        if len(set(self.dynamic)) < len(self.dynamic):
            yield "dynamic", f"{dynamic} names a dimension twice"
        if self.dynamic and self.vary not in self.dynamic:
            yield "dynamic", f"kernels that take {dynamic} at run time do not cover sizes of {self.vary}"
        for number, segment in enumerate(self.segments):
            name = f"segments[{number}]"
            before = self.segments[number - 1].last if number else segment.first - 1
            if segment.last < segment.first:
                yield f"{name}.last", f"{segment.last} lies before first={segment.first}"
            if segment.first != before + 1:
                fault = f"{segment.first} must follow {before}, where the segment before it ends"
                yield f"{name}.first", fault
            yield from self._kernel_faults(name, segment.kernel)
        for number, piece in enumerate(self.evidence):
            name = f"evidence[{number}]"
            yield from self._kernel_faults(name, piece.kernel)
            if self.segments and not self.first <= piece.size <= self.last:
                yield f"{name}.size", f"{piece.size} lies outside the segments, {self.first} .. {self.last}"

    def _kernel_faults(self, name: str, kernel: int) -> Iterator[tuple[str, str]]:
        if not 0 <= kernel < len(self.kernels):
            yield f"{name}.kernel", f"{kernel} is none of the {len(self.kernels)} kernels, which count from 0"


def _evidence_fields(piece: Evidence) -> dict[str, object]:
    return {
        "size": piece.size,
        "kernel": piece.kernel,
        "chosen_us": piece.chosen_us,
        "best_us": piece.best_us,
        "chosen": "measured" if piece.chosen_measured else "predicted",
        "best": "measured" if piece.best_measured else "predicted",
        "loss": round(piece.loss, 4),
    }


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={member}" for name, member in value.items()) or "none"
    return str(value) if value else "none"
