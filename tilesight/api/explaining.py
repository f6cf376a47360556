"""`explain`: what limits a config, and why it loses to the best that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..problem.candidate import Candidate
from ..problem.space import Config, Value
from ..problem.template import KernelTemplate
from ..profile.names import KernelNames
from ..profile.values import KernelProfile
from ..records.session import Effort
from ..target.spec import Target
from ..tuner.observers import Observer
from ..tuner.options import TuneOptions
from ..tuner.resolve import Shape, find_operator, find_template, find_workloads
from .foreign_kernel import find_kernel, named_profiles_of
from .prediction import as_input_errors
from .run_time_facts import Calls, Dims, Inputs, RunTimeFacts

if TYPE_CHECKING:
    from ..explanation import ConfigLowerings, Explanation, MeasuredRows


def explain(
    kernel: Any,
    target: str | Target | None = None,
    shape: Shape | None = None,
    *,
    config: str | Mapping[str, Value] | None = None,
    arguments: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    measured: str | Path | Sequence[str | Path] | None = None,
    database: str | None = None,
    layers: Sequence[str] | None = None,
    workers: int | None = None,
    observer: Observer | None = None,
    dims: Dims | None = None,
    inputs: Inputs | None = None,
    density: float | None = None,
    calls: Calls | None = None,
) -> Explanation:
    """What limits a kernel and by how much, and how sure the model is.

    For a config of a shipped kernel, which is given by its name, also why it loses to the best that is known.
    Of any other kernel nothing but its IR is known: there is no best config to compare it with, and no
    database is read.

    Args:
        kernel: The name of a kernel, or what `predict` takes: a PrimFunc, or a function that returns one.
        target: As for `tune`.
        shape: As for `tune`; of several default shapes the first.
        dtype, database, layers, workers, observer: As for `tune`.
        config: The config to explain; None: the best itself. The best is the fastest measured if the database
            has a complete session of this machine's device, else the one predicted fastest; if the space was
            never ranked, it is ranked now.
        arguments: Of a function, by name, as for `predict`.
        measured: Datasets (files or folders) whose rows take the place of the database: their times, profiles
            and hardware counters.
        dims, inputs, density, calls: Of a kernel that is not given by its name, as for `predict`.

    Raises:
        InputError: an argument is wrong, the datasets have no row of the workload, or a kernel of the
            caller's cannot be traced, lowered or predicted.
        NoCandidateError: the config cannot be lowered or predicted.
    """
    if isinstance(kernel, str):
        if arguments:
            raise InputError(
                f"{kernel} is a kernel by name and takes no arguments={{...}}: give shape and config"
            )
        stated = {"dims": dims, "inputs": inputs, "density": density, "calls": calls}
        if unused := [name for name, value in stated.items() if value is not None]:
            raise InputError(f"{kernel} is a kernel by name and takes no {', '.join(unused)}: give shape")
        return _explain_shipped(
            kernel, target, shape, config, dtype, measured, database, layers, workers, observer
        )
    if shape is not None:
        raise InputError(
            "explain of a kernel of your own takes no shape: sizes that it takes at run time go into dims, "
            "such as dims='m=4096'"
        )
    given = {"config": config, "dtype": dtype, "measured": measured, "database": database}
    if unused := [name for name, value in given.items() if value is not None]:
        raise InputError(
            f"explain of a kernel of your own takes no {', '.join(unused)}: its function's arguments go into "
            "arguments={...}"
        )
    from ..machine.placement import locate

    facts = RunTimeFacts(dims, inputs, density, calls)
    chosen = locate(target, measures=False).target
    with as_input_errors("traced", chosen):
        found = find_kernel(kernel, chosen, arguments)
    with as_input_errors("lowered", chosen):
        profiles, names = zip(*named_profiles_of(found, chosen, facts), strict=True)
    return explain_profiles(found.name, profiles, chosen, names)


def explain_profiles(
    name: str, kernels: Sequence[KernelProfile], target: Target, names: Sequence[KernelNames] = ()
) -> Explanation:
    """The explanation of a kernel of which its profiles are known, and the names in it at most.

    Raises `InputError`.
    """
    from ..costmodel import foreign_model
    from ..explanation import Explanation, view

    with as_input_errors("predicted", target):
        this = view(kernels, foreign_model().predict(kernels, target), target, names=names)
    return Explanation(None, target, this, None, (), kernel=name)


def _explain_shipped(
    kernel: str,
    target: str | Target | None,
    shape: Shape | None,
    config: str | Mapping[str, Value] | None,
    dtype: str | None,
    measured: str | Path | Sequence[str | Path] | None,
    database: str | None,
    layers: Sequence[str] | None,
    workers: int | None,
    observer: Observer | None,
) -> Explanation:
    from ..explanation import ConfigLowerings, explain_config, measured_rows
    from ..machine.placement import locate
    from .engine import Engine
    from .sessions import best_known

    operator = find_operator(kernel)
    placement = locate(target, measures=False, communicates=operator.communicates)
    workload = find_workloads(operator, placement.target, shape, dtype)[0]
    template = find_template(operator, placement.target, workload.dtype)
    space = template.space(workload, placement.target)
    rows = None if measured is None else measured_rows(measured, workload, placement.target)
    wanted: Config | None = None
    if config is not None:
        wanted = space.read(config) if isinstance(config, str) else space.config(config)
        if rows is None or wanted not in rows.times_us:
            space.check(wanted)
    options = TuneOptions.of(effort=Effort.PREDICT, database=database, layers=layers, workers=workers)
    with Engine(placement, options, observer) as engine:
        if rows is not None:
            best, times = rows.best, dict[Config, float | None](rows.times_us)
        else:
            result = best_known(engine, operator, workload)
            assert result.best is not None  # a session without one raises
            best, times = result.best.config, {t.config: t.measured_us for t in result.trials}
        lowered = ConfigLowerings(
            lambda: engine.executor,
            engine.model,
            lambda config: Candidate(workload, placement.target, template, config),
        )
        this = wanted or best
        notes = [] if rows is None else _other_code(lowered, rows, template, {this, best})
        return explain_config(lowered, space, this, best, times, rows, notes)


def _other_code(
    lowered: ConfigLowerings, rows: MeasuredRows, template: KernelTemplate, shown: set[Config]
) -> list[str]:
    """A note if measured code of the shown configs is not what the template makes now."""
    measured = {
        c: rows.fingerprints.get(c)
        for c in shown
        if rows.versions.get(c, template.version) != template.version
    }
    if not measured:
        return []
    present = lowered.fingerprints(list(measured))
    if all(code is not None and code == present.get(c) for c, code in measured.items()):
        return []
    steps = "; the steps are predicted for the present version" if len(shown) > 1 else ""
    return [
        f"the rows were measured with another version of {template.name}, whose code is other code{steps}"
    ]
