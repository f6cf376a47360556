"""Collection of datasets: from the arguments of `tilesight collect` to cases, and to the Parquet file."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import kernels
from ..errors import InputError, NoCandidateError, TileSightError, ToolchainError, UnknownNameError
from ..extras import require_extra
from ..files import check_out, read_text
from ..machine.devices import Device
from ..machine.placement import Placement, locate
from ..machine.toolchain import software_versions
from ..problem.operator import Operator
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..records.protocol import PROTOCOLS, MeasurementProtocol
from ..search.stratified import stratified
from ..settings import available_cores, load_settings
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.resolve import (
    check_budget,
    check_workers,
    communicate,
    find_operator,
    find_template,
    find_workloads,
)
from .collector import CollectionCase, CollectionResult, Collector
from .writer import DatasetWriter

ALL_SHAPES = "all"


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """A workload, and the number of candidates to measure of it."""

    operator: Operator
    workload: Workload
    samples: int


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Workloads of one operator to collect, before the devices are known.

    Attributes:
        shapes: shapes as text; empty for the operator's default set.
        dtype: None for the first one of the target.
        samples: candidates of each workload.
        origin: line of a file of workloads, for messages; "" for arguments.
    """

    operator: Operator
    shapes: tuple[str, ...]
    dtype: str | None
    samples: int
    origin: str = ""

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """`InputError`s name the line that the options come from."""
        try:
            yield
        except InputError as error:
            if not self.origin:
                raise
            raise InputError(f"{self.origin}: {error}") from error

    def check(self, node: Target | None) -> None:
        """Raise `InputError` for a shape or dtype that is wrong on every target, or on `node`."""
        if not self.shapes and node is None:
            self.operator.default_workloads(self.dtype)
        for shape in self.shapes:
            _workload(self.operator, shape, self.dtype, node)


def collect(
    names: Sequence[str],
    out: str | Path,
    samples: int | None,
    target: str | Target | None = None,
    *,
    shapes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    workloads: str | Path | None = None,
    template: str | None = None,
    protocol: str = "default",
    vendor: bool = True,
    seed: int = 0,
    workers: int | None = None,
    budget_s: float | None = None,
    program: str = "tilesight.datasets.collect",
    observer: Observer | None = None,
) -> CollectionResult:
    """Measure `samples` candidates of each workload and write them to `out`, a Parquet file.

    An existing file is continued: its candidates are not measured again. The file is written every minute and
        at the
    end, also if the time budget or `KeyboardInterrupt` ends the collection.

    Args:
        names: kernels; each shape belongs to the kernels that know it.
        out: the Parquet file.
        samples: candidates of each workload; all legal ones if there are fewer.
        target: name of a target, or a target; None: that of the settings.
        shapes: published names, `k=v,...`, or `all` for all published ones; none for the kernels' default
            sets.
        dtypes: element types; none for each kernel's default.
        workloads: a file instead of names, shapes and dtypes. A line has a kernel, a shape, and optionally a
            dtype and a number of samples; text after # is ignored.
        template: name of a template, for kernels with several on the target.
        protocol: conditions of the measurements, a name of `PROTOCOLS`; the same for all times in a file.
        vendor: also time the fastest candidates of each workload beside the vendor's libraries. A later call
            adds these times to a file without them.
        seed: of the samples.
        workers: number of processes that lower and build.
        budget_s: limit of wall-clock seconds; None: that of the settings, else none.
        program: name of the collecting program in the file's metadata.
        observer: receives progress and messages.

    Raises:
        InputError: an argument is wrong.
        ToolchainError: no device of the target is present, or pyarrow is missing.
        NoCandidateError: no workload has a legal config.
    """
    require_extra("parquet", "a dataset (a Parquet file)")
    if samples is not None and samples < 1:
        raise InputError(f"samples={samples} must be at least 1")
    check_workers(workers)
    check_budget(budget_s)
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    start = time.monotonic()
    budget_s = load_settings().budget_s if budget_s is None else budget_s
    observer = observer or Observer()
    if workloads is None:
        operators = _operators(names, samples)
        node = _node(target, operators)
        options = list(_named(operators, shapes, dtypes, samples or 0, node))
    elif names or shapes or dtypes:
        raise InputError("a file of workloads replaces kernels, shapes and dtypes; give one or the other")
    else:
        options = list(_listed(Path(workloads), samples))
        node = _node(target, [option.operator for option in options])
    for option in options:
        with option.named_in_errors():
            option.check(node)
    check_out(Path(out), ".parquet", "datasets")
    placement = locate(node or target, measures=True, predicts=False, communicates=node is not None)
    if placement.device is None:
        raise ToolchainError(f"a dataset needs measurements: {'; '.join(placement.messages)}")
    requests = list(_workloads(options, placement.target))
    cases = list(_cases(requests, placement.target, template, seed, observer))
    return collect_cases(
        cases,
        placement,
        Path(out),
        protocol=protocol,
        vendor=vendor,
        seed=seed,
        workers=workers,
        # large spaces take seconds to enumerate
        until=None if budget_s is None else start + budget_s,
        program=program,
        observer=observer,
    )


def collect_cases(
    cases: Sequence[CollectionCase],
    placement: Placement,
    out: Path,
    *,
    protocol: str = "default",
    vendor: bool = True,
    seed: int = 0,
    workers: int | None = None,
    until: float | None = None,
    program: str,
    observer: Observer,
) -> CollectionResult:
    """Measure the wanted candidates of `cases` as `collect` does, on the devices of `placement`.

    Args:
        cases: workloads with their candidates, all on the target of `placement`.
        placement: where they are measured; with a device.
        out: the Parquet file.
        protocol: conditions of the measurements, a name of `PROTOCOLS`.
        vendor: also time the fastest candidates of each workload beside the vendor's libraries.
        seed: of the samples, for the file's metadata.
        workers: number of processes that lower and build; None: that of the settings.
        until: when the collection ends, by `time.monotonic`; None: when all is measured.
        program: name of the collecting program in the file's metadata.
        observer: receives progress and messages.

    Raises:
        InputError: the file is of another target or of other conditions.
    """
    from ..executor.local import LocalExecutor

    settings, target, device = load_settings(), placement.target, placement.device
    assert device is not None, placement.messages
    begin = datetime.now(UTC)
    facts = {
        "program": program,
        "date": begin.isoformat(timespec="seconds"),
        "seed": seed,
        **_facts(cases, target, device),
    }
    writer = DatasetWriter(out, f"{begin:%Y%m%dT%H%M%SZ}-{os.urandom(2).hex()}", facts)
    conditions = MeasurementProtocol.named(protocol, target)
    writer.check(target.name, conditions)
    count = sum(len(case.wanted) for case in cases)
    observer.started(f"{len(cases)} workloads on {target.title}, {count} candidates, to {out}")
    # all devices of the target; each measures one kernel at a time
    executor = LocalExecutor(
        workers or settings.workers, settings.cache_dir, placement.gpus, world=target.world
    )
    try:
        if target.is_gpu:
            executor.start(measures=True)  # starts the measuring processes while the first kernels are built
        left_s = None if until is None else until - time.monotonic()
        return Collector(cases, writer, executor, conditions, observer, left_s, vendor=vendor).run()
    finally:
        executor.close()


def _facts(cases: Sequence[CollectionCase], target: Target, device: Device) -> dict[str, Any]:
    """Templates, target, software and cores: metadata of a run."""
    return {
        "templates": {case.template.name: case.template.version for case in cases},
        "target": {"name": target.name, "fingerprint": target.fingerprint, "arch": target.arch},
        "software": {"python": platform.python_version(), **software_versions(target, device)},
        "cores": available_cores(),
    }


def _cases(
    requests: Iterable[WorkloadRequest], target: Target, template: str | None, seed: int, observer: Observer
) -> Iterator[CollectionCase]:
    """Each workload once, with its sample. Workloads without a legal config are reported.

    Raises:
        NoCandidateError: no workload has a legal config.
    """
    found = False
    for request in {request.workload.key: request for request in requests}.values():
        workload = request.workload
        chosen = _template(request.operator, target, workload, template)
        space = chosen.space(workload, target)
        wanted = stratified(space, request.samples, seed, chosen.default_config(workload, target))
        if wanted:
            found = True
            yield CollectionCase(workload, chosen, target, len(space.configs()), wanted)
        else:
            observer.message(
                f"{workload.label}: no config is legal on {target.name}; `tilesight space` shows the reasons"
            )
    if not found:
        raise NoCandidateError(
            f"none of the workloads has a legal config on {target.name}; `tilesight space` shows the reasons"
        )


def _workloads(options: Iterable[CollectOptions], target: Target) -> Iterator[WorkloadRequest]:
    for option in options:
        with option.named_in_errors():
            found = find_workloads(option.operator, target, option.shapes or None, option.dtype)
        for workload in found:
            yield WorkloadRequest(option.operator, workload, option.samples)


def _operators(names: Sequence[str], samples: int | None) -> list[Operator]:
    operators = [find_operator(name) for name in dict.fromkeys(names)]
    if not operators:
        raise InputError(f"no kernel was named; known: {', '.join(kernels.operators())}")
    if samples is None:
        raise InputError("the number of samples of each workload is missing")
    return operators


def _node(target: str | Target | None, operators: Sequence[Operator]) -> Target | None:
    """The target if it is several devices that compute these operators together: shapes depend on it.

    For operators of one device None: their arguments are checked before a GPU is looked for.
    """
    if not communicate(operators):
        return None
    return locate(target, measures=False, predicts=False, communicates=True).target


def _named(
    operators: Sequence[Operator],
    shapes: Sequence[str],
    dtypes: Sequence[str],
    samples: int,
    node: Target | None,
) -> Iterator[CollectOptions]:
    shapes_of = {
        operator.name: [s for s in shapes if s != ALL_SHAPES and _knows(operator, s, node)]
        for operator in operators
    }
    for shape in shapes:
        if shape != ALL_SHAPES and not any(shape in of for of in shapes_of.values()):
            _workload(operators[0], shape, None, node)  # raises
    for operator in operators:
        if ALL_SHAPES in shapes:
            shapes_of[operator.name] = [*operator.named, *shapes_of[operator.name]]
        if shapes and not shapes_of[operator.name]:
            raise InputError(
                f"none of the shapes is one of {operator.name}; name one of {', '.join(operator.named)}, or "
                "`all`"
            )
        for dtype in dtypes or (None,):
            yield CollectOptions(operator, tuple(shapes_of[operator.name]), dtype, samples)


def _listed(path: Path, samples: int | None) -> Iterator[CollectOptions]:
    lines = read_text(path, f"file of workloads '{path}'").splitlines()
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        origin = f"{path}, line {number}"
        if not 2 <= len(words) <= 4:
            raise InputError(
                f"{origin}: '{line.strip()}' must be: KERNEL SHAPE [DTYPE [SAMPLES]], e.g. matmul M0 float16 "
                "200"
            )
        count = words[3] if len(words) == 4 else str(samples or "")
        if not count.isdecimal() or int(count) < 1:
            raise InputError(
                f"{origin}: the number of samples '{count}' must be a whole number above 0; a fourth word "
                "gives it, or --samples"
            )
        try:
            operator = find_operator(words[0])
        except InputError as error:
            raise InputError(f"{origin}: {error}") from error
        yield CollectOptions(operator, (words[1],), words[2] if len(words) > 2 else None, int(count), origin)


def _workload(operator: Operator, shape: str, dtype: str | None, node: Target | None) -> Workload:
    return operator.workload(shape, dtype) if node is None else operator.workload_on(node, shape, dtype)


def _knows(operator: Operator, shape: str, node: Target | None) -> bool:
    try:
        _workload(operator, shape, None, node)
    except TileSightError:
        return False
    return True


def _template(operator: Operator, target: Target, workload: Workload, name: str | None) -> KernelTemplate:
    if name is None:
        return find_template(operator, target, workload.dtype)
    fitting = [
        t
        for t in kernels.templates(operator.name)
        if target.kind in t.target_kinds and workload.dtype in t.dtypes
    ]
    for found in fitting:
        if found.name == name:
            return found
    raise UnknownNameError(
        f"{operator.name} template for {target.name} and {workload.dtype}", name, [t.name for t in fitting]
    )
