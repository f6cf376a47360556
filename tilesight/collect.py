"""Collecting datasets: what `tilesight collect` asks for, turned into cases, and the file that they go to."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from . import kernels
from .collector import Case, Collected, Collector
from .errors import InputError, NoCandidateError, TileSightError, ToolchainError, UnknownNameError
from .ledger import Ledger
from .lookup import check_budget, check_workers, find_operator, find_template, find_workloads
from .observers import Observer
from .out_file import check_out
from .protocol import PROTOCOLS, Protocol
from .sampling import stratified
from .settings import available_cores, load_settings
from .target import Target
from .template import KernelTemplate, Operator
from .toolchain import software_versions
from .where import locate
from .workload import Workload

ALL_SHAPES = "all"


Asked = tuple[Operator, Workload, int]  # the number of candidates that are wanted


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for, before a target is known. Without `shapes` the operator's default set is meant, without `dtype` the
    target's first; `place` is where a file asks for it."""

    operator: Operator
    shapes: tuple[str, ...]
    dtype: str | None
    samples: int
    place: str = ""

    def check(self) -> None:
        """Raise `InputError` for what is wrong on any target."""
        if not self.shapes:
            self.operator.default_workloads(self.dtype)
        for shape in self.shapes:
            self.operator.workload(shape, self.dtype)


def collect(
    names: Sequence[str],
    out: str | Path,
    samples: int | None,
    target: str | Target = "auto",
    *,
    shapes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    workloads: str | Path | None = None,
    template: str | None = None,
    protocol: str = "default",
    seed: int = 0,
    workers: int | None = None,
    budget_s: float | None = None,
    program: str = "tilesight.collect",
    observer: Observer | None = None,
) -> Collected:
    """Measure `samples` candidates of each workload and write them to `out`, a Parquet file.

    A file that is there is continued: its candidates are not measured again. It is written anew every minute and at the
    end, also where a time budget or `KeyboardInterrupt` ends the collection.

    names     kernels; a shape is taken by those that know it
    samples   candidates of each workload; all legal ones where there are no more
    shapes    published names, `k=v,...`, or `all` published ones; none: the kernels' default sets
    dtypes    element types; none: the kernel's default one
    workloads a file in place of names, shapes and dtypes: a line has a kernel, a shape, and where they are not the usual
              ones a dtype and the number of samples; what follows # is left out
    template  a template by name where a kernel has several for the target
    protocol  the conditions of the measurements, a name in `protocol.PROTOCOLS`: one for all times in a file
    budget_s  wall-clock seconds
    program   what the file says that its rows were collected by

    Raises `InputError` for what is asked wrongly, `ToolchainError` where no device of the target is at hand or pyarrow is
    missing, `NoCandidateError` where no workload has a legal config.
    """
    from .executor import LocalExecutor

    if samples is not None and samples < 1:
        raise InputError(f"samples={samples} must be at least 1")
    check_workers(workers)
    check_budget(budget_s)
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    start = time.monotonic()
    observer = observer or Observer()
    if workloads is None:
        wishes = list(_named(names, shapes, dtypes, samples))
    elif names or shapes or dtypes:
        raise InputError("a file of workloads takes the place of kernels, shapes and dtypes; give either")
    else:
        wishes = list(_listed(Path(workloads), samples))
    check_out(Path(out), ".parquet", "datasets")
    where = locate(target, measures=True, predicts=False)
    if where.device is None:
        raise ToolchainError(f"a dataset is of measured candidates: {'; '.join(where.messages)}")
    asked = list(_workloads(wishes, where.target))
    cases = list(_cases(asked, where.target, template, seed, observer))
    versions = {case.template.name: case.template.version for case in cases}
    begin = datetime.now(UTC)
    facts = {
        "program": program,
        "date": begin.isoformat(timespec="seconds"),
        "seed": seed,
        "templates": versions,
        "target": {"name": where.target.name, "fingerprint": where.target.fingerprint, "arch": where.target.arch},
        "software": {"python": platform.python_version(), **software_versions(where.target, where.device)},
        "cores": available_cores(),
    }
    ledger = Ledger(Path(out), f"{begin:%Y%m%dT%H%M%SZ}-{os.urandom(2).hex()}", facts)
    conditions = Protocol.named(protocol, where.target)
    ledger.check(where.target.name, conditions)
    observer.started(f"{len(cases)} workloads on {where.target.title}, {sum(len(case.wanted) for case in cases)} candidates, to {out}")
    settings = load_settings()
    # all devices of the target that are here, each measured alone
    executor = LocalExecutor(workers or settings.workers, settings.cache_dir, where.gpus)
    try:
        if where.target.is_gpu:
            executor.start(measures=True)  # what measures is ready when the first kernels are
        left_s = None if budget_s is None else budget_s - (time.monotonic() - start)  # large spaces take seconds to enumerate
        return Collector(cases, ledger, executor, conditions, observer, left_s).run()
    finally:
        executor.close()


def _cases(asked: Iterable[Asked], target: Target, template: str | None, seed: int, observer: Observer) -> Iterator[Case]:
    """Each workload once, with its sample. Says which have no legal config; raises where none has."""
    found = False
    for operator, workload, samples in {workload.key: (o, workload, s) for o, workload, s in asked}.values():
        chosen = _template(operator, target, workload, template)
        space = chosen.space(workload, target)
        wanted = stratified(space, samples, seed, chosen.default_config(workload, target))
        if wanted:
            found = True
            yield Case(workload, chosen, target, len(space.configs()), wanted)
        else:
            observer.message(f"{workload.label}: no config is legal on {target.name}; `tilesight space` says why")
    if not found:
        raise NoCandidateError(f"none of the workloads has a legal config on {target.name}; `tilesight space` says why")


def _workloads(wishes: Iterable[Wish], target: Target) -> Iterator[Asked]:
    for wish in wishes:
        try:
            for workload in find_workloads(wish.operator, target, wish.shapes or None, wish.dtype):
                yield wish.operator, workload, wish.samples
        except InputError as error:
            if not wish.place:
                raise
            raise InputError(f"{wish.place}: {error}") from error


def _named(names: Sequence[str], shapes: Sequence[str], dtypes: Sequence[str], samples: int | None) -> Iterator[Wish]:
    operators = [find_operator(name) for name in dict.fromkeys(names)]
    if not operators:
        raise InputError(f"no kernel was named; known: {', '.join(kernels.operators())}")
    if samples is None:
        raise InputError("the number of samples of each workload is missing")
    meant = {operator.name: [s for s in shapes if s != ALL_SHAPES and _knows(operator, s)] for operator in operators}
    for shape in shapes:
        if shape != ALL_SHAPES and not any(shape in of for of in meant.values()):
            operators[0].workload(shape)  # raises what is wrong with it
    for operator in operators:
        if ALL_SHAPES in shapes:
            meant[operator.name] = [*operator.named, *meant[operator.name]]
        if shapes and not meant[operator.name]:
            raise InputError(f"none of the shapes is one of {operator.name}; name one of {', '.join(operator.named)}, or `all`")
        for dtype in dtypes or (None,):
            wish = Wish(operator, tuple(meant[operator.name]), dtype, samples)
            wish.check()
            yield wish


def _listed(path: Path, samples: int | None) -> Iterator[Wish]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"file of workloads '{path}' cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        place = f"{path}, line {number}"
        if not 2 <= len(words) <= 4:
            raise InputError(f"{place}: '{line.strip()}' must be: KERNEL SHAPE [DTYPE [SAMPLES]], e.g. matmul M0 float16 200")
        count = words[3] if len(words) == 4 else str(samples or "")
        if not count.isdecimal() or int(count) < 1:
            raise InputError(
                f"{place}: the number of samples '{count}' must be a whole number above 0; a fourth word gives it, or --samples"
            )
        try:
            wish = Wish(find_operator(words[0]), (words[1],), words[2] if len(words) > 2 else None, int(count), place)
            wish.check()
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
        yield wish


def _knows(operator: Operator, shape: str) -> bool:
    try:
        operator.workload(shape)
    except TileSightError:
        return False
    return True


def _template(operator: Operator, target: Target, workload: Workload, name: str | None) -> KernelTemplate:
    if name is None:
        return find_template(operator, target, workload.dtype)
    fitting = [t for t in kernels.templates(operator.name) if target.kind in t.target_kinds and workload.dtype in t.dtypes]
    for found in fitting:
        if found.name == name:
            return found
    raise UnknownNameError(f"{operator.name} template for {target.name} and {workload.dtype}", name, [t.name for t in fitting])
