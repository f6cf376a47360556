"""The plans that ship with TileSight: dispatch tables of the products of public models, in one file.

`experiments/shipped/build.py` makes the file. It has a member for each table, as `tilesight plan` writes it,
and a list of them, so that a table is read only where it is wanted.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import DatabaseCorruptError
from ..problem.space import Value
from ..problem.workload import Workload
from ..records.session import Context
from .shipped_files import REINSTALL, archive_member

PLANS = "plans.zip"  # in this package, if the release has it
_LIST = "plans.json"  # member with the list
_DAMAGES = (
    *(OSError, KeyError, TypeError, ValueError, EOFError, RecursionError),
    *(lzma.LZMAError, zipfile.BadZipFile),
)


@dataclass(frozen=True)
class ShippedPlan:
    """What one table is of.

    Attributes:
        vary, first, last: the dimension that varies, and its range.
        kernels: how many there are.
        made: the day on which it was measured.
        used_by: where public models have this shape.
        digest: of the text of the table.
    """

    operator: str
    template: str
    template_version: str
    target: str
    arch: str
    device: str
    dtype: str
    attrs: Mapping[str, Value]
    fixed: Mapping[str, int]
    vary: str
    first: int
    last: int
    kernels: int
    made: str
    used_by: tuple[str, ...]
    digest: str

    def fits(self, context: Context) -> bool:
        """Whether it is of the context's kernel, target, card, dtype and attributes; dimensions aside."""
        mine = (self.operator, self.template, self.template_version, self.target, self.arch)
        workload, kernel = context.workload, (context.template, context.template_version)
        return (
            mine == (workload.operator, *kernel, context.target, context.arch)
            and (self.dtype, dict(self.attrs)) == (workload.dtype, dict(workload.attrs))
            and (not context.device or self.device == context.device)
        )

    def covers(self, workload: Workload, *, nearest: bool = False) -> bool:
        """Whether it is of these dimensions; with `nearest`, whatever the size of the varied one is."""
        sizes = dict(workload.dims)
        size = sizes.pop(self.vary)
        return sizes == self.fixed and (nearest or self.first <= size <= self.last)

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return f"a plan that ships with TileSight, measured on {self.device} on {self.made}"

    @property
    def name(self) -> str:
        """Of its file."""
        parts = [f"{name}{size}" for name, size in self.fixed.items()]
        parts += [str(value) for value in self.attrs.values()]
        return "-".join([self.operator, self.target, self.dtype, *parts]) + ".json"


def plan_of(text: str, made: str, used_by: Iterable[str]) -> ShippedPlan:
    """What the table with this text is of."""
    table = json.loads(text)
    return ShippedPlan(
        operator=table["operator"],
        template=table["template"]["name"],
        template_version=table["template"]["version"],
        target=table["target"]["name"],
        arch=table["target"]["arch"],
        device=table["device"],
        dtype=table["dtype"],
        attrs=table["attrs"],
        fixed={name: table["fixed"][name] for name in table["dims"] if name in table["fixed"]},
        vary=table["vary"],
        first=table["segments"][0]["first"],
        last=table["segments"][-1]["last"],
        kernels=len(table["kernels"]),
        made=made,
        used_by=tuple(used_by),
        digest=_digest(text),
    )


class PlanArchive:
    """The plans in one file."""

    def __init__(self, path: Path) -> None:
        """Raise `DatabaseCorruptError` if `path` is no such file."""
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                listed = json.loads(archive.read(_LIST))
            self.plans = [_listed(fields) for fields in listed]
        except _DAMAGES as error:
            raise self._damaged(error) from error

    def text(self, plan: ShippedPlan) -> str:
        """The table of a plan. Raises `DatabaseCorruptError` if it is not the one that was packed."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                text = archive.read(plan.name).decode()
        except _DAMAGES as error:
            raise self._damaged(error) from error
        if _digest(text) != plan.digest:
            raise self._damaged(f"{plan.name} is another table")
        return text

    def _damaged(self, reason: object) -> DatabaseCorruptError:
        return DatabaseCorruptError(f"'{self.path}' has no plans ({reason}); {REINSTALL}")


def write_plans(path: Path, found: Iterable[tuple[ShippedPlan, str]]) -> None:
    """Write plans and the texts of their tables, in place of a file that is there."""
    ordered = sorted(found, key=lambda pair: pair[0].name)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr(archive_member(_LIST), json.dumps([asdict(plan) for plan, _ in ordered], indent=1))
        for plan, text in ordered:
            archive.writestr(archive_member(plan.name), text)


def _listed(fields: dict[str, Any]) -> ShippedPlan:
    return ShippedPlan(**{**fields, "used_by": tuple(fields["used_by"])})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
