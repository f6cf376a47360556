"""The decorator `autotune`: the arguments of `tilelang.autotune`, and further ones."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, UnknownNameError
from ..records.session import Effort
from ..settings import load_settings
from ..tuner.observers import Lines, Observer
from .autotuned import Autotuned
from .check_programs import CheckPrograms
from .config_space import Choices, read_choices
from .options import AutotuneOptions
from .random_inputs import AUTO, SUPPLIES
from .user_function import CompileOptions, UserFunction
from .user_operator import CheckOptions

if TYPE_CHECKING:
    from ..costmodel.model import CostModel
    from ..problem.space import SearchSpace
    from ..target.spec import Target

# arguments of `tilelang.autotune` without effect here: TileLang's default, and the reason
_IGNORED: Mapping[str, tuple[Any, str]] = {
    "warmup": (25, "the protocol decides how kernels are warmed up"),
    "rep": (100, "samples are taken until the time is known well enough"),
    "timeout": (100, "each stage has limits of its own"),
    "early_stop": (False, "sampling always ends early for a candidate that is certainly slower"),
    "early_stop_factor": (2.0, "sampling always ends early for a candidate that is certainly slower"),
    "cache_input_tensors": (False, "all candidates are tried on the same inputs"),
}
_warned: set[str] = set()


def autotune(
    func: Any = None,
    *,
    configs: Any = None,
    warmup: int = 25,
    rep: int = 100,
    timeout: int = 100,
    supply_type: Any = None,
    ref_prog: Callable[..., Any] | None = None,
    supply_prog: Callable[..., Any] | None = None,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    max_mismatched_ratio: float = 0.01,
    skip_check: bool = False,
    manual_check_prog: Callable[..., Any] | None = None,
    cache_input_tensors: bool = False,
    do_not_specialize: Iterable[str] | None = None,
    early_stop: bool = False,
    early_stop_factor: float = 2.0,
    space: SearchSpace | Mapping[str, Iterable[Any]] | Callable[..., Any] | None = None,
    constraints: Iterable[Any] = (),
    effort: str | Effort | None = None,
    budget_s: float | None = None,
    database: str | Path | None = None,
    target: str | Target | None = None,
    model: CostModel | None = None,
    protocol: str = "default",
    measured_at: Mapping[str, int | float] | None = None,
    on_miss: str = "tune",
    while_tuning: str = "wait",
    seed: int = 0,
    workers: int | None = None,
    observer: Observer | None = None,
    out_idx: list[int] | int | None = None,
    pass_configs: Mapping[str, Any] | None = None,
    compile_flags: list[str] | str | None = None,
    execution_backend: str | None = None,
) -> Any:
    """Tune a TileLang kernel of your own, in place of `@tilelang.autotune`.

    All configs are predicted; the best ones are built and measured. What was learned is recorded.

        from tilesight import autotune

        @autotune(configs=[...], ref_prog=reference)
        @tilelang.jit(out_idx=[-1])
        def matmul(m, n, k, block_m=128, block_n=128, block_k=32, stages=2): ...

        kernel = matmul(4096, 4096, 4096)

    It decorates a function of `@tilelang.jit`, lazy or eager, or a plain function that returns a PrimFunc.
    The arguments from `configs` to `early_stop_factor` are those of `tilelang.autotune`; docs/autotune.md
    describes them.

    Args:
        space: in place of `configs`: a `SearchSpace`, values by argument, or a function of the call's
            arguments that returns one of these.
        constraints: functions of a config that return True if it is legal, and False or the reason (text) if
            not.
        effort: how much is tried: glance, predict, build, quick, full or exhaustive; see `tilesight.tune`.
            None: that of the settings, else quick.
        budget_s: seconds for tuning one call's arguments; None: that of the settings, else no limit.
        database: a SQLAlchemy URL or the path of an SQLite file; None: that of `tilesight.tune`.
        target: the hardware to tune for; `auto`: what the function is compiled for. None: the same for a
            function that names a processor, else that of the settings.
        model: a cost model in place of the shipped one.
        protocol: conditions of the measurements: `default` or `serving`.
        measured_at: sizes and numbers that the kernel takes at run time, by name, with the values at which it
            is measured; None: those of the tensors that the call or `set_autotune_inputs` gives.
        on_miss: what a call does with arguments that were never tuned: `tune` them, or take the `model`'s
            first choice.
        while_tuning: what a call does while another thread or process tunes its arguments: `wait`, or use the
            `model`'s choice.
        workers: number of processes that lower and build.
        observer: gets messages on progress; None: lines on a terminal, nothing elsewhere.
        out_idx, pass_configs, compile_flags, execution_backend: for plain functions, the arguments of
            `@tilelang.jit`.

    Returns:
        The decorated function (`Autotuned`), or without `func` a decorator.

    Raises:
        InputError: an argument is wrong. A call of the decorated function raises what `tilesight.tune`
            raises, and `InputError` inside a CUDA-graph capture if it would have to tune.
    """
    given = {name: value for name, value in locals().items() if name in _IGNORED}
    if func is not None and configs is None and space is None:
        raise InputError(
            "autotune needs something to choose from: @autotune(configs=[...]) or @autotune(space={...})"
        )
    if (configs is None) == (space is None):
        both = "both were given" if configs is not None else "neither was given"
        raise InputError(f"autotune takes configs (as tilelang.autotune does) or space, and {both}")
    _warn_of_ignored(given)
    check = CheckOptions(rtol, atol, max_mismatched_ratio, bool(skip_check), _supply(supply_type))
    programs = {"ref_prog": ref_prog, "supply_prog": supply_prog, "manual_check_prog": manual_check_prog}
    for name, program in programs.items():
        if program is not None and not callable(program):
            raise InputError(f"autotune: {name} must be a function, not {type(program).__name__}")
    if manual_check_prog is not None and ref_prog is None:
        raise InputError(
            "autotune: manual_check_prog compares with the results of ref_prog, and there is none: give it"
        )
    options = AutotuneOptions(
        effort=_effort(load_settings().effort if effort is None else effort),
        budget_s=load_settings().budget_s if budget_s is None else budget_s,
        database=None if database is None else str(database),
        target=target,
        model=model,
        protocol=protocol,
        measured_at=_measured_at(measured_at),
        on_miss=on_miss,
        while_tuning=while_tuning,
        seed=seed,
        workers=workers,
        observer=_default_observer() if observer is None else observer,
    )
    compile_options = CompileOptions(
        out_idx, None, None, execution_backend, None, pass_configs, compile_flags
    )
    rules = _rules(constraints)

    def decorate(wrapped: Any) -> Autotuned:
        if isinstance(wrapped, Autotuned):
            raise InputError(f"{wrapped!r} is autotuned already")
        function = UserFunction(wrapped, compile_options)
        unspecialized = _unspecialized(do_not_specialize, function)
        choices = _choices(configs, space, rules, function)
        check_programs = CheckPrograms(ref_prog, supply_prog, manual_check_prog)
        return Autotuned(function, choices, check, check_programs, options, unspecialized)

    return decorate if func is None else decorate(func)


def _choices(
    configs: Any, space: Any, rules: tuple[Any, ...], function: UserFunction
) -> Choices | Callable[..., Choices]:
    given = configs if configs is not None else space
    is_object = callable(given) and not isinstance(given, Mapping) and not hasattr(given, "parameters")
    if not inspect.isroutine(given) and not is_object:
        return read_choices(configs, space, rules, function.signature, function.name)

    def make(*args: Any, **kwargs: Any) -> Choices:
        return read_choices(given(*args, **kwargs), None, rules, function.signature, function.name)

    return make


def _rules(constraints: Any) -> tuple[Any, ...]:
    if isinstance(constraints, str | Mapping) or not isinstance(constraints, Iterable):
        raise InputError(
            f"autotune: constraints must be a list of functions of a config, not {type(constraints).__name__}"
        )
    return tuple(constraints)


def _unspecialized(names: Iterable[str] | None, function: UserFunction) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names or ())
    for name in found:
        if name not in function.signature.parameters:
            raise UnknownNameError(f"argument of {function.name}", name, function.signature.parameters)
    return found


def _measured_at(values: Any) -> Mapping[str, int | float]:
    if values is not None and not isinstance(values, Mapping):
        raise InputError(
            f"autotune: measured_at must be a dictionary such as {{'m': 4096}}, not {type(values).__name__}"
        )
    return dict(values or {})


def _effort(effort: str | Effort) -> Effort:
    if effort not in list(Effort):
        raise UnknownNameError("effort", str(effort), [e.value for e in Effort])
    return Effort(effort)


def _supply(supply_type: Any) -> str:
    """The name of the distribution; a member of TileLang's enumeration has it as an attribute."""
    if supply_type is None:
        return AUTO
    name = str(getattr(supply_type, "name", supply_type))
    if name not in SUPPLIES:
        raise UnknownNameError("supply_type", name, SUPPLIES)
    return name


def _warn_of_ignored(given: Mapping[str, Any]) -> None:
    """Warn of arguments without effect that differ from TileLang's defaults, once in a process for each."""
    for name, (default, reason) in _IGNORED.items():
        if given[name] != default and name not in _warned:
            _warned.add(name)
            warnings.warn(f"tilesight.autotune: {name} has no effect: {reason}", UserWarning, stacklevel=3)


def _default_observer() -> Observer:
    if sys.stderr is None or not sys.stderr.isatty():
        return Observer()
    return Lines(lambda line: print(line, file=sys.stderr))
