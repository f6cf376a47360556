"""From the names that a user gives to a dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..device import NoDevice, devices_for, find_devices
from ..errors import DatabaseReadOnlyError, InputError, TileSightError
from ..kernels import default_dtype
from ..lookup import check_workers, find_context, find_operator, find_template
from ..protocol import Protocol
from ..session import Context
from ..settings import load_settings
from ..shape_class import ShapeClass
from ..target import Target
from ..where import Where, locate
from ..workload import Workload, canonical_dtype
from .builds import BuiltIndex
from .dispatcher import Dispatcher
from .forecast import Forecaster
from .improve import Grounds
from .misses import Misses
from .problem import Problem, problem_of
from .records import Records
from .selector import Selector
from .service import Background, Service
from .supply import Supply, on_miss_of
from .table import DispatchTable, read_table
from .workshop import Tools, Workshop

if TYPE_CHECKING:
    from ..template import KernelTemplate

MOST_CLASSES = 32  # of recorded shapes, whose profiles are read when a dispatcher is made


def dispatcher(
    kernel: str,
    target: str | Target = "auto",
    *,
    dtype: str | None = None,
    attrs: Mapping[str, bool | int] | None = None,
    database: str | None = None,
    layers: Sequence[str | Path] | None = None,
    table: str | Path | DispatchTable | None = None,
    dynamic: str | Sequence[str] | None = None,
    on_miss: str = "wait",
    explore: bool = False,
    background: bool = False,
    misses: bool = True,
    protocol: str = "default",
    workers: int | None = None,
    template: KernelTemplate | None = None,
    **dims: int,
) -> Dispatcher:
    """A callable for `kernel` with the dimensions in `dims` fixed and any values of the others: `d = dispatcher("matmul",
    target="h200", n=8192, k=8192)`, then `C = d(A, B)`.

    What serves a shape: its own tuned record, else `table` (of `tilesight plan`, a value or a file), else the winners of the
    nearest recorded shapes in the order of the model, else the model's choice among kept profiles, else the template's
    default config. `d.choose(m=777)` says which, and why.

    attrs      attributes of the operator, e.g. `{"causal": True}`
    database   a SQLAlchemy URL or the path of an SQLite file; None: `TILESIGHT_DB`, or one in the user's data folder
    layers     read-only databases below it, the first on top; None: those of `TILESIGHT_LAYERS`
    dynamic    dimensions that kernels built for it take at run time, so that one serves many shapes; None: each has its own
    on_miss    where a kernel is not built: `wait` for it, `serve` with one that is built meanwhile, or `refuse`
    explore    lower candidates for a shape of which no profile is kept, before its first call returns
    background look for better kernels of shapes without a record; one replaces another only where paired measurements on this
               machine's device say so
    misses     record which shapes had no record, for `tilesight tune --misses`
    workers    processes that build; None: `TILESIGHT_WORKERS`, or one a core
    template   one that computes the operator, in place of TileSight's own

    Raises `InputError` for what is asked wrongly, `DatabaseError`, `ToolchainError` where `auto` finds no GPU.
    """
    asked = on_miss_of(on_miss)
    check_workers(workers)
    where = _where(target)
    operator = find_operator(kernel) if template is None else template.operator
    chosen = template or find_template(operator, where.target, dtype or default_dtype(kernel, where.target))
    given = dict(attrs or {})
    for name in [name for name in dims if name in operator.attrs]:  # causal=True beside n=8192
        given[name] = dims.pop(name)
    problem = problem_of(chosen, where.target, _dtype(chosen, dtype), given, dims, dynamic or ())
    settings = load_settings()
    conditions = Protocol.named(protocol, where.target)
    url, count = database or settings.database_url, workers or settings.workers

    from ..costmodel import default_model
    from ..database import open_layers

    model = default_model()
    with ExitStack() as opened:
        notes = list(where.messages)
        try:
            store = opened.enter_context(open_layers(url, layers))
        except DatabaseReadOnlyError as error:  # what is recorded serves all the same
            store, misses = opened.enter_context(open_layers(url, layers, read_only=True)), False
            notes.append(f"nothing is recorded, misses neither: {error}")
        context = _context(problem, where, model.version, conditions)
        read = _table(table, context, problem, notes)
        forecaster = Forecaster(problem, store, model)
        records = Records.read(store, problem, context)
        forecaster.recall(_classes(records))
        if not len(records):
            forecaster.survey(_usual(problem))
        index = BuiltIndex(settings.cache_dir, where.target, context.code_software)

        def workshop() -> Workshop:
            return Workshop(lambda: Tools(where, settings.cache_dir, count))

        counted = Misses(store, where.target.name, context.device, chosen.name) if misses else None
        grounds = Grounds(where, conditions, model, store)
        supply = Supply(problem, Selector(problem, records, forecaster, read), index, workshop(), grounds, asked, explore)
        tries = Background(workshop(), grounds, background and bool(where.devices))

        def service(switched: Callable[[], None]) -> Service:
            return Service(supply, counted, tries, switched, tuple(notes))

        made = Dispatcher(service, lambda: Records.read(store, problem, context), store.close)
        opened.pop_all()
    return made


def _where(target: str | Target) -> Where:
    """The target and all its devices here. A compiler is not asked for: what is built needs none."""
    chosen = locate(target, measures=False).target
    found = devices_for(chosen, find_devices() if chosen.is_gpu else [])
    if isinstance(found, NoDevice):
        return Where(chosen, (), (f"nothing can be called or measured here: {found.message}",))
    return Where(chosen, found)


def _dtype(template: KernelTemplate, asked: str | None) -> str:
    return template.dtypes[0] if asked is None else canonical_dtype(asked, template.dtypes, template.operator.name)


def _context(problem: Problem, where: Where, model: str, protocol: Protocol) -> Context:
    """What records must agree with, at some workload of the problem. The search space is none of it."""
    dims = {name: problem.fixed.get(name, 1) for name in problem.operator.dims}
    workload = Workload(problem.operator.name, dims, problem.dtype, problem.attrs)
    return find_context(problem.template, workload, where, model, None, protocol, problem.open)


def _table(given: str | Path | DispatchTable | None, context: Context, problem: Problem, notes: list[str]) -> DispatchTable | None:
    """Raises `InputError` for a table of another problem; what else is different from what it was made for becomes a note."""
    if given is None:
        return None
    table = given if isinstance(given, DispatchTable) else read_table(given)
    if table.vary not in problem.free or any(problem.fixed.get(name, size) != size for name, size in table.fixed.items()):
        fixed = ", ".join(f"{name}={size}" for name, size in table.fixed.items())
        raise InputError(
            f"the table varies {table.vary} with {fixed or 'nothing'} fixed, and this dispatcher is of {problem.label}; give it its own"
        )
    here = replace(context, workload=replace(context.workload, dims={**context.workload.dims, **table.fixed}))
    wrong = [text for text in table.mismatches(here) if text.split(":")[0] in ("operator", "dtype", "attributes", "template")]
    if wrong:
        raise InputError(f"the table cannot serve {problem.label}: {'; '.join(wrong)}; `tilesight plan` makes one that can")
    notes += [f"table: {text}" for text in table.mismatches(here)]
    return table


def _usual(problem: Problem) -> list[Workload]:
    """Shapes of the classes in which profiles are mostly kept, those that divide best first."""
    found = []
    for size in (4096, 4104, 4097, 1024):
        with suppress(TileSightError):
            found.append(problem.workload(tuple(size for _ in problem.free)))
    return found


def _classes(records: Records) -> list[Workload]:
    """A recorded shape of each class, the first few."""
    found: dict[str, Workload] = {}
    for known in records.all():
        found.setdefault(ShapeClass(records.problem.template, known.workload).key, known.workload)
    return list(found.values())[:MOST_CLASSES]
