"""`tilesight.dispatcher`: makes a dispatcher from names and options."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..dtypes import canonical_dtype
from ..errors import DatabaseReadOnlyError, InputError, TileSightError
from ..kernels import default_dtype
from ..machine.devices import NoDevice, devices_for, find_devices
from ..machine.placement import Placement, locate, named_target, target_of_world
from ..problem.group_operator import WORLD
from ..problem.space import Config, Value
from ..problem.workload import Workload
from ..profile.shape_class import ShapeClass
from ..records.protocol import MeasurementProtocol
from ..records.session import Context
from ..settings import load_settings
from ..target.spec import Target
from ..tuner.resolve import check_workers, find_context, find_operator, find_template
from ..version import __version__
from .background_thread import BackgroundThread
from .dispatcher import Dispatcher
from .improve.explore import EXPLORE_S, find_choice
from .improve.improver import Improver
from .improve.tuning_setup import TuningSetup
from .kernels.build_folder import BuildFolder
from .kernels.kernel_builder import KernelBuilder
from .misses import MissLog
from .notices import say, say_once
from .on_miss import OnMiss, on_miss_named
from .on_unknown import OnUnknown, on_unknown_named
from .problem import DispatchProblem, make_problem
from .select.cached_predictor import CachedPredictor
from .select.choice import Choice
from .select.loaded_sources import LoadedSources
from .select.selector import Selector
from .select.shipped_tables import ShippedTables
from .select.winner_index import WinnerIndex
from .shape_table import ShapeTable
from .table.table_file import DispatchTable, read_table

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ..database.layers import LayeredStore
    from ..executor.local import LocalExecutor
    from ..problem.operator import Operator
    from ..problem.template import KernelTemplate
    from .group.group_call import Seat

CLASS_LIMIT = 32  # shape classes whose profiles are read when a dispatcher is made
_SAME_IN_TABLE = ("operator", "dtype", "attributes", "template")


def dispatcher(
    kernel: str,
    target: str | Target | None = None,
    *,
    dtype: str | None = None,
    attrs: Mapping[str, Value] | None = None,
    database: str | None = None,
    layers: Sequence[str | Path] | None = None,
    table: str | Path | DispatchTable | None = None,
    dynamic: str | Sequence[str] | None = None,
    on_miss: str = "wait",
    explore: bool = False,
    background: bool = False,
    frozen: bool = False,
    on_unknown: str | None = None,
    misses: bool = True,
    protocol: str = "default",
    workers: int | None = None,
    template: KernelTemplate | None = None,
    config: Mapping[str, Value] | None = None,
    group: ProcessGroup | None = None,
    **dims: int,
) -> Dispatcher:
    """Make a callable for an operator with some dimensions fixed and any sizes of the others.

    `d = dispatcher("matmul", target="h200", n=8192, k=8192)`, then `C = d(A, B)`. The config for a shape
    comes from its own tuned record, else from `table`, else from the winners of the nearest recorded shapes,
    else from the model and the cached profiles, else it is the template's default. `d.choose(m=777)` returns
    the choice and its reason.

    Args:
        kernel: name of the operator.
        target: name, path or value of a target; `auto`: that of the GPU of this machine; None: that of the
            settings, else `auto`.
        dtype: data type of the tensors; None: the first one of the template.
        attrs: attributes of the operator, e.g. `{"causal": True}`.
        database: a SQLAlchemy URL or the path of an SQLite file; None: `TILESIGHT_DB`, or a file in the
            user's data folder.
        layers: read-only databases below it, the first on top; None: those of `TILESIGHT_LAYERS`.
        table: a dispatch table of `tilesight plan`, as a value or a file.
        dynamic: dimensions that kernels take at run time, so that many shapes share one kernel; None: each
            shape has a kernel of its own.
        on_miss: if a kernel is not built, `wait` for it, `serve` with one that is built, or `refuse`.
        explore: lower candidates for a shape without cached profiles before its first call returns.
        background: look for faster kernels of shapes without a record; a kernel is replaced only if paired
            measurements on a device of this machine show another one to be faster.
        frozen: choose from records and `table` alone, so that every process that has loaded the same chooses
            the same: no neighbours, predictions or default configs, no work in the background, no misses.
        on_unknown: what a frozen dispatcher does for a shape that has neither a record nor an entry of the
            table: `refuse` it, use the `default` config, or what is known for the `nearest` size. None:
            `refuse`.
        misses: record the shapes without a record, for `tilesight tune --misses`.
        protocol: name of the measurement protocol.
        workers: number of processes that build; None: `TILESIGHT_WORKERS`, or one per core.
        template: a template of the operator in place of TileSight's own.
        config: the config of all shapes, in place of records, tables and predictions. A call of a shape for
            which it is not legal is refused. Such calls are no misses.
        group: the process group of torch.distributed whose ranks compute an operator of several devices
            together, one process for each device. All of them make the dispatcher, with the same arguments;
            rank 0 chooses the kernels. The result is a `GroupDispatcher`; `target` may be that of one chip.
        dims: the fixed dimensions; attributes may be given here too.

    Raises:
        GroupError: ranks of the group disagree; all raise the same.
        InputError: an argument is wrong.
        DatabaseError: the database cannot be read.
        ToolchainError: `auto` finds no GPU.
    """

    def make(seat: Seat | None) -> DispatcherParts:
        return _make_parts(
            kernel,
            target,
            dtype,
            {**(attrs or {})},
            database,
            layers,
            table,
            dynamic or (),
            on_miss,
            explore,
            background,
            frozen,
            on_unknown,
            misses,
            protocol,
            workers,
            template,
            config,
            dict(dims),
            seat,
        )

    if group is not None:
        from .group.join import join

        return join(kernel, group, make)
    parts = make(None)
    return Dispatcher(parts.shapes, parts.load, parts.close)


@dataclass(frozen=True)
class DispatcherParts:
    """What a dispatcher consists of.

    Attributes:
        load: reads the records and the table again.
        conditions: all that its choices depend on, as text by name.
    """

    shapes: ShapeTable
    load: Callable[[], LoadedSources]
    close: Callable[[], None]
    conditions: Mapping[str, str]


def _make_parts(
    kernel: str,
    target: str | Target | None,
    dtype: str | None,
    given_attrs: dict[str, Value],
    database: str | None,
    layers: Sequence[str | Path] | None,
    table: str | Path | DispatchTable | None,
    dynamic: str | Sequence[str],
    on_miss: str,
    explore: bool,
    background: bool,
    frozen: bool,
    on_unknown: str | None,
    misses: bool,
    protocol: str,
    workers: int | None,
    template: KernelTemplate | None,
    config: Mapping[str, Value] | None,
    dims: dict[str, int],
    seat: Seat | None,
) -> DispatcherParts:
    """As `dispatcher`. `seat`: of this process in its group, if there is one."""
    policy, unknown = on_miss_named(on_miss), on_unknown_named(on_unknown, frozen)
    check_workers(workers)
    operator = find_operator(kernel) if template is None else template.operator
    _check_group(operator, seat)
    if frozen:
        _check_frozen_options(operator, policy, explore, background)
        misses = False
    if seat is None:
        placement = _placement(named_target(target))
    else:
        _check_group_options(operator, policy, explore, background)
        placement = _placement(_target_of_group(operator, target, seat), communicates=True)
        if dims.setdefault(WORLD, seat.world) != seat.world:
            raise InputError(
                f"{operator.name}: {WORLD}={dims[WORLD]}, and the process group has {seat.world} processes; "
                f"leave {WORLD} out"
            )
        misses = misses and seat.rank == 0
    chosen = template or find_template(
        operator, placement.target, dtype or default_dtype(kernel, placement.target)
    )
    for name in [name for name in dims if name in operator.attrs]:  # causal=True beside n=8192
        given_attrs[name] = dims.pop(name)
    problem = make_problem(chosen, placement.target, _dtype(chosen, dtype), given_attrs, dims, dynamic)
    others = {"table": table, "explore": explore, "background": background, "frozen": frozen}
    given = _given_config(config, problem, others)
    settings = load_settings()
    conditions = MeasurementProtocol.named(protocol, placement.target)
    worker_count = workers or settings.workers

    from ..costmodel import default_model
    from ..executor.local import (
        LocalExecutor,
    )  # here: a fork during an import on a thread would block the child

    model = default_model()
    notes = list(placement.messages)
    with ExitStack() as opened:
        store, is_writable = _open_store(database or settings.database_url, layers, notes)
        if misses and not is_writable:
            say_once(notes[-1])
        opened.callback(store.close)
        context = _context(problem, placement, model.version, conditions)

        def load() -> LoadedSources:
            found, table_notes = _checked_table(table, context, problem)
            shipped = ShippedTables(problem, context, store.shipped.plans)
            return LoadedSources(WinnerIndex.read(store, problem, context), found, table_notes, shipped)

        sources = load()
        winners = sources.winners
        predictor = CachedPredictor(problem, store, model)
        if given is None and not frozen:  # nothing is predicted otherwise
            predictor.load(_one_of_each_class(winners))
            if not len(winners):
                predictor.load_ranking(_likely_shapes(problem))

        build_folder = BuildFolder(settings.cache_dir)

        def make_executor() -> LocalExecutor:
            return LocalExecutor(worker_count, build_folder.path(), placement.gpus)

        builds, comparisons = BackgroundThread(make_executor), BackgroundThread(make_executor)
        setup = TuningSetup(placement, conditions, model, store)

        def explore_shape(selector: Selector, workload: Workload) -> Choice | None:
            say(
                f"{workload.label} on {placement.target.name} has no cached profile: with explore=True "
                f"candidates are lowered first, for up to {EXPLORE_S:g} s"
            )
            return builds.submit(partial(find_choice, selector, setup, workload)).result()

        explored = explore_shape if explore else None
        selector = Selector(problem, sources, predictor, explored, given, unknown)
        builder = KernelBuilder(problem, settings.cache_dir, context.code_software, builds)
        improver = Improver(selector, builder, setup, comparisons, background and bool(placement.devices))
        log = None
        if misses and is_writable and given is None:
            log = MissLog(store, placement.target.name, context.device, chosen.name)
        shapes = ShapeTable(selector, builder, improver, log, policy, notes)
        depends_on = _conditions(problem, context, sources, given, policy, unknown)
        made = DispatcherParts(shapes, load, store.close, depends_on)
        opened.pop_all()
    return made


def _check_group(operator: Operator, seat: Seat | None) -> None:
    """Raise `InputError` unless there is a group if, and only if, the operator needs one."""
    if operator.communicates and seat is None:
        raise InputError(
            f"{operator.name} runs on several devices together: give the process group of their processes, "
            "group=torch.distributed.group.WORLD, in a program that `torchrun --nproc-per-node N` starts; it "
            "is None before torch.distributed.init_process_group()"
        )
    if seat is not None and not operator.communicates:
        raise InputError(
            f"{operator.name} runs on one device, so its dispatcher has no group: leave out group="
        )


def _check_frozen_options(operator: Operator, policy: OnMiss, explore: bool, background: bool) -> None:
    """Raise `InputError` for options by which processes choose differently."""
    given = _diverging(policy, explore, background)
    if given:
        raise InputError(
            f"{operator.name}: {' and '.join(given)} would let processes use different kernels, so a frozen "
            "dispatcher does not take it: leave it out, or frozen=True"
        )


def _diverging(policy: OnMiss, explore: bool, background: bool) -> list[str]:
    """The options whose results differ from process to process."""
    given = [name for name, is_set in (("explore", explore), ("background", background)) if is_set]
    return [*given, *(["on_miss='serve'"] if policy is OnMiss.SERVE else [])]


def _check_group_options(operator: Operator, policy: OnMiss, explore: bool, background: bool) -> None:
    """Raise `InputError` for options whose results differ from rank to rank."""
    given = _diverging(policy, explore, background)
    if given:
        raise InputError(
            f"{operator.name}: {' and '.join(given)} would let ranks go on with different kernels, so a "
            "dispatcher of a process group does not take it: leave it out, and tune ahead"
        )


def _target_of_group(operator: Operator, target: str | Target | None, seat: Seat) -> Target:
    """The target of as many devices as the group has processes.

    Raises:
        InputError: the target is another number of devices, or none describes so many; or it is AMD's.
    """
    named = named_target(target)
    if named.levels and named.world != seat.world:
        raise InputError(
            f"{operator.name}: target {named.name} is {named.world} devices, and the process group has "
            f"{seat.world} processes: start {named.world} with `torchrun --nproc-per-node {named.world}`, or "
            "name another target"
        )
    found = target_of_world(named, seat.world)
    if found.kind == "hip":
        raise InputError(f"{operator.name}: kernels of several AMD GPUs cannot be dispatched yet")
    return found


def _conditions(
    problem: DispatchProblem,
    context: Context,
    sources: LoadedSources,
    given: Config | None,
    policy: OnMiss,
    unknown: OnUnknown | None,
) -> dict[str, str]:
    """All that choices and code of a dispatcher depend on: ranks of a group must have it.

    Records are among it if the dispatcher is frozen; otherwise those of rank 0 count.
    """
    table = sources.table
    found = {
        "version of tilesight": __version__,
        "operator": problem.operator.name,
        "template": f"{context.template} {context.template_version}",
        "target": f"{context.target} with figures {context.target_fingerprint}",
        "dtype": problem.dtype,
        "attributes": str(dict(sorted(problem.attrs.items()))),
        "fixed dimensions": str(dict(sorted(problem.fixed.items()))),
        "dynamic dimensions": ", ".join(problem.dynamic) or "none",
        "table": "none" if table is None else hashlib.sha256(table.text().encode()).hexdigest()[:12],
        "config": "none" if given is None else str(given),
        "on_miss": policy.value,
        "on_unknown": "not frozen" if unknown is None else unknown.value,
    }
    found |= {} if unknown is None else sources.facts()
    return found | {f"version of {name}": version for name, version in context.code_software.items()}


def _given_config(
    config: Mapping[str, Value] | None, problem: DispatchProblem, others: Mapping[str, object]
) -> Config | None:
    """The caller's config; checked now if no dimension is free.

    Raises `InputError` if another argument chooses configs too, and `ConfigError` if it is not legal.
    """
    if config is None:
        return None
    needless = [name for name, given in others.items() if given]
    if needless:
        raise InputError(f"config= chooses the config of every shape: leave out {' and '.join(needless)}")
    found = Config(config)
    if not problem.free:
        problem.space(problem.workload(())).check(found)
    return found


def _placement(target: Target, communicates: bool = False) -> Placement:
    """The target and all its devices on this machine.

    No compiler is required, since the kernels may be built already.
    """
    placed = locate(target, measures=False, communicates=communicates)
    found = devices_for(placed.target, find_devices() if placed.target.is_gpu else [])
    if isinstance(found, NoDevice):
        reason = f"nothing can be called or measured here: {found.message}"
        return replace(placed, messages=(reason, *placed.messages))
    return replace(placed, devices=found)


def _open_store(url: str, layers: Sequence[str | Path] | None, notes: list[str]) -> tuple[LayeredStore, bool]:
    """The database, and whether it can be written. Raises `DatabaseError`."""
    from ..database import open_layers
    from ..database.engine.connection import exists, parse_url

    try:
        return open_layers(url, layers), True
    except DatabaseReadOnlyError as error:
        notes.append(f"nothing is recorded, misses neither: {error}")
        if exists(parse_url(url)):
            return open_layers(url, layers, read_only=True), False
        return open_layers("sqlite://", layers), False  # an empty one in memory, over the layers


def _dtype(template: KernelTemplate, name: str | None) -> str:
    if name is None:
        return template.dtypes[0]
    return canonical_dtype(name, template.dtypes, template.operator.name)


def _context(
    problem: DispatchProblem, placement: Placement, model: str, protocol: MeasurementProtocol
) -> Context:
    """The context that records must have, for any workload of the problem and any search space."""
    dims = {name: problem.fixed.get(name, 1) for name in problem.operator.dims}
    workload = Workload(problem.operator.name, dims, problem.dtype, problem.attrs)
    return find_context(problem.template, workload, placement, model, None, protocol, problem.dynamic)


def _checked_table(
    given: str | Path | DispatchTable | None, context: Context, problem: DispatchProblem
) -> tuple[DispatchTable | None, tuple[str, ...]]:
    """The table, or None, and its differences from the context.

    Raises `InputError` for a table of another problem.
    """
    if given is None:
        return None, ()
    table = given if isinstance(given, DispatchTable) else read_table(given)
    differs = any(problem.fixed.get(name, size) != size for name, size in table.fixed.items())
    if table.vary not in problem.free or differs:
        fixed = ", ".join(f"{name}={size}" for name, size in table.fixed.items())
        raise InputError(
            f"the table varies {table.vary} with {fixed or 'nothing'} fixed, and this dispatcher is for "
            f"{problem.label}; pass a table for it"
        )
    here = replace(context, workload=replace(context.workload, dims={**context.workload.dims, **table.fixed}))
    mismatches = table.mismatches(here)
    wrong = [text for text in mismatches if text.split(":")[0] in _SAME_IN_TABLE]
    if wrong:
        raise InputError(
            f"the table cannot be used for {problem.label}: {'; '.join(wrong)}; `tilesight plan` makes one"
        )
    return table, tuple(f"table: {text}" for text in mismatches)


def _likely_shapes(problem: DispatchProblem) -> list[Workload]:
    """Shapes of the classes that most often have cached profiles, the most divisible first."""
    found = []
    for size in (4096, 4104, 4097, 1024):
        with suppress(TileSightError):
            found.append(problem.workload(tuple(size for _ in problem.free)))
    return found


def _one_of_each_class(winners: WinnerIndex) -> list[Workload]:
    """A recorded shape of each shape class, up to `CLASS_LIMIT` of them."""
    found: dict[str, Workload] = {}
    for winner in winners.all():
        found.setdefault(ShapeClass(winners.problem.template, winner.workload).key, winner.workload)
    return list(found.values())[:CLASS_LIMIT]
