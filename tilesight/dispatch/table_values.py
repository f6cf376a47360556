"""What a dispatch table holds, and its text.

The text is JSON with a line for each kernel, segment and piece of evidence, in a fixed order, so that two versions of a table
can be compared line by line. It names all that its times depend on; `DispatchTable.mismatches` says what is different today.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ..errors import InputError
from ..session import Context
from ..space import Config
from ..workload import Workload

FORMAT = 1  # raised when a field changes its meaning


@dataclass(frozen=True, slots=True)
class Segment:
    """Sizes `first` .. `last`, both included, and the number of the kernel that serves them."""

    first: int
    last: int
    kernel: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the choice at one size: the time of the chosen kernel and the best time known there, each measured or
    predicted."""

    size: int
    kernel: int
    chosen_us: float
    best_us: float
    chosen_measured: bool
    best_measured: bool

    @property
    def loss(self) -> float:
        """How much longer the chosen kernel takes than the best known, as a share of the latter; 0 where it is the best."""
        return max(0.0, self.chosen_us / self.best_us - 1)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a table says of one size."""

    config: Config
    segment: Segment


@dataclass(frozen=True)
class DispatchTable:
    """A few kernels of one template and the sizes of dimension `vary` that each of them serves; `fixed` are the other
    dimensions. `open` are the dimensions that the kernels take at run time; where it is empty, each size has a kernel of its
    own, built of the segment's config.

    Raises `InputError` where its parts do not hold together; segments lie side by side, without gap or overlap.
    """

    operator: str
    dtype: str
    attrs: Mapping[str, bool | int]
    dims: tuple[str, ...]  # of the operator, in its order: those in `fixed`, and `vary`
    fixed: Mapping[str, int]
    vary: str
    open: tuple[str, ...]
    template: str
    template_version: str
    target: str
    target_fingerprint: str
    arch: str
    device: str  # that measured; "" where all times are predicted
    protocol: str  # conditions of its measurements
    software: Mapping[str, str]  # on which the kernels' code depends
    model: str  # of the predictions
    kernels: tuple[Config, ...]
    segments: tuple[Segment, ...]
    evidence: tuple[Evidence, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("attrs", "fixed", "software"):
            object.__setattr__(self, name, MappingProxyType(dict(sorted(getattr(self, name).items()))))
        faults = self._faults()
        if faults:
            raise InputError(": ".join(faults[0]))

    @property
    def first(self) -> int:
        return self.segments[0].first

    @property
    def last(self) -> int:
        return self.segments[-1].last

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.first <= size <= self.last

    def choose(self, size: int) -> Chosen:
        """The kernel for a size. Raises `InputError` for one that the table does not cover."""
        if not self.first <= size <= self.last:
            raise InputError(f"{self.operator}: {self.vary}={size} is outside the table, which covers {self.first} .. {self.last}")
        segment = self.segments[bisect_left(self._lasts, size)]
        return Chosen(self.kernels[segment.kernel], segment)

    @cached_property
    def _lasts(self) -> list[int]:
        return [segment.last for segment in self.segments]

    def workload(self, size: int) -> Workload:
        """The workload at one size."""
        dims = {**self.fixed, self.vary: size}
        return Workload(self.operator, {name: dims[name] for name in self.dims}, self.dtype, self.attrs)

    def covers(self, workload: Workload) -> bool:
        """Whether the table says something of this workload."""
        dims = dict(workload.dims)
        size = dims.pop(self.vary, 0)
        asked = workload.operator, workload.dtype, dims, dict(workload.attrs)
        return asked == (self.operator, self.dtype, dict(self.fixed), dict(self.attrs)) and size in self

    def mismatches(self, context: Context) -> list[str]:
        """What is different in `context` from what the table was made for, a sentence each. None: its choices hold as they
        are. Another template, version, architecture or software means other kernels, of which the table knows nothing;
        another device or other conditions mean the same kernels at other times."""
        asked = {name: value for name, value in context.workload.dims.items() if name != self.vary}
        pairs: list[tuple[str, object, object]] = [
            ("operator", self.operator, context.workload.operator),
            ("dtype", self.dtype, context.workload.dtype),
            ("attributes", dict(self.attrs), dict(sorted(context.workload.attrs.items()))),
            ("fixed dimensions", dict(self.fixed), dict(sorted(asked.items()))),
            ("template", self.template, context.template),
            ("template version", self.template_version, context.template_version),
            ("target", self.target, context.target),
            ("figures of the target", self.target_fingerprint, context.target_fingerprint),
            ("architecture", self.arch, context.arch),
        ]
        if context.device:  # else nothing can be said of it
            pairs += [("device", self.device, context.device), ("protocol", self.protocol, context.protocol)]
        made_for = "the table was made for"
        found = [f"{what}: {made_for} {_shown(mine)}, here it is {_shown(theirs)}" for what, mine, theirs in pairs if mine != theirs]
        ours, now = dict(self.software), context.code_software
        for name in sorted(ours.keys() | now.keys()):
            if ours.get(name) != now.get(name):
                found.append(f"software {name}: the table was made with {ours.get(name, 'none')}, here it is {now.get(name, 'none')}")
        return found

    def text(self) -> str:
        """The file's text; `table_of` makes the same value of it."""
        head: dict[str, object] = {
            "format": FORMAT,
            "operator": self.operator,
            "dtype": self.dtype,
            "attrs": dict(self.attrs),
            "dims": list(self.dims),
            "fixed": dict(self.fixed),
            "vary": self.vary,
            "open": list(self.open),
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

    def _faults(self) -> list[tuple[str, str]]:
        """Where the parts do not hold together: the field, and what is wrong there."""
        count, faults = len(self.kernels), []
        if not self.kernels:
            faults.append(("kernels", "a table has one kernel at least"))
        if not self.segments:
            faults.append(("segments", "a table has one segment at least"))
        if self.vary in self.fixed:
            faults.append(("fixed", f"{self.vary} is varied and cannot be fixed too"))
        if sorted(self.dims) != sorted({*self.fixed, self.vary}):
            fixed = ", ".join(self.fixed) or "none"
            faults.append(("dims", f"{', '.join(self.dims) or 'none'} must be {self.vary} and those that are fixed: {fixed}"))
        if not set(self.open) <= set(self.dims):
            faults.append(("open", f"{', '.join(self.open)} must be among the dimensions: {', '.join(self.dims)}"))
        if len(set(self.open)) < len(self.open):
            faults.append(("open", f"{', '.join(self.open)} names a dimension twice"))
        if self.open and self.vary not in self.open:
            faults.append(("open", f"kernels that take {', '.join(self.open)} at run time do not cover sizes of {self.vary}"))
        for number, segment in enumerate(self.segments):
            place, before = f"segments[{number}]", self.segments[number - 1].last if number else segment.first - 1
            if segment.last < segment.first:
                faults.append((f"{place}.last", f"{segment.last} lies before first={segment.first}"))
            if segment.first != before + 1:
                faults.append((f"{place}.first", f"{segment.first} must follow {before}, where the segment before it ends"))
            if not 0 <= segment.kernel < count:
                faults.append((f"{place}.kernel", f"{segment.kernel} is none of the {count} kernels, which count from 0"))
        for number, piece in enumerate(self.evidence):
            place = f"evidence[{number}]"
            if not 0 <= piece.kernel < count:
                faults.append((f"{place}.kernel", f"{piece.kernel} is none of the {count} kernels, which count from 0"))
            if self.segments and not self.first <= piece.size <= self.last:
                faults.append((f"{place}.size", f"{piece.size} lies outside the segments, {self.first} .. {self.last}"))
        return faults


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
