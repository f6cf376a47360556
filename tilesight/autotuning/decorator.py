"""The decorator: what `tilelang.autotune` takes, and ours beside it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, UnknownNameError
from ..observers import Lines, Observer
from ..session import Effort
from .autotuned import Autotuned
from .choices import Choices, read_choices
from .drawing import AUTO, SUPPLIES
from .operator import Checking, Programs
from .tuning import Asked
from .user_function import CompileOptions, UserFunction

if TYPE_CHECKING:
    from ..costmodel.model import CostModel
    from ..space import SearchSpace
    from ..target import Target

# arguments of TileLang's that mean nothing here: (what TileLang takes for them by default, why)
_WITHOUT_MEANING: Mapping[str, tuple[Any, str]] = {
    "warmup": (25, "kernels are warmed up as the protocol says"),
    "rep": (100, "samples are taken until the time is known well enough"),
    "timeout": (100, "each stage has limits of its own"),
    "early_stop": (False, "sampling always ends early where a candidate is certainly slower"),
    "early_stop_factor": (2.0, "sampling always ends early where a candidate is certainly slower"),
    "cache_input_tensors": (False, "all candidates are tried on the same inputs"),
}
_said: set[str] = set()


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
    effort: str | Effort = Effort.QUICK,
    budget_s: float | None = None,
    database: str | Path | None = None,
    target: str | Target = "auto",
    model: CostModel | None = None,
    protocol: str = "default",
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
    """Tune a TileLang kernel of your own, in place of `@tilelang.autotune`: predict all configs, build and measure the best,
    remember what was learned.

        from tilesight import autotune

        @autotune(configs=[...], ref_prog=reference)
        @tilelang.jit(out_idx=[-1])
        def matmul(m, n, k, block_m=128, ...): ...

        kernel = matmul(4096, 4096, 4096)

    It stands over `@tilelang.jit`, lazy or eager, or over a plain function that returns a PrimFunc. The arguments from
    `configs` to `early_stop_factor` are those of `tilelang.autotune`; docs/autotune.md says what each means here.

    space         in place of `configs`: a `SearchSpace`, values by argument, or a function of the call's arguments that makes one
    constraints   functions of a config that say whether it is legal (True, False), or why it is not (text, None)
    effort        how much is tried: predict, quick, full, exhaustive; see `tilesight.tune`
    budget_s      seconds for tuning one call's arguments
    database      where results are kept: a SQLAlchemy URL or the path of an SQLite file; None: as for `tilesight.tune`
    target        the hardware to tune for; `auto`: what the function is compiled for
    model         a cost model in place of the shipped one
    protocol      conditions of the measurements: `default` or `serving`
    on_miss       what a call does with arguments that were never tuned: `tune`, or take the `model`'s first choice
    while_tuning  what a call does while another thread or process tunes its arguments: `wait`, or go on with the `model`'s choice
    workers       processes that lower and build
    observer      is told what happens; None: lines on a terminal, nothing elsewhere
    out_idx, pass_configs, compile_flags, execution_backend   for plain functions: what `@tilelang.jit` takes

    Raises `InputError` for what is asked wrongly. The call of the decorated function raises what `tilesight.tune` raises, and
    `InputError` inside a CUDA-graph capture where it would have to tune.
    """
    given = {name: value for name, value in locals().items() if name in _WITHOUT_MEANING}
    if func is not None and configs is None and space is None:
        raise InputError("autotune needs something to choose from: @autotune(configs=[...]) or @autotune(space={...})")
    if (configs is None) == (space is None):
        both = "both were given" if configs is not None else "neither was given"
        raise InputError(f"autotune takes configs (as tilelang.autotune does) or space, and {both}")
    _say_what_means_nothing(given)
    checking = Checking(rtol, atol, max_mismatched_ratio, bool(skip_check), _supply(supply_type))
    for name, program in (("ref_prog", ref_prog), ("supply_prog", supply_prog), ("manual_check_prog", manual_check_prog)):
        if program is not None and not callable(program):
            raise InputError(f"autotune: {name} must be a function, not {type(program).__name__}")
    if manual_check_prog is not None and ref_prog is None:
        raise InputError("autotune: manual_check_prog compares with the results of ref_prog, and there is none; give it, too")
    asked = Asked(
        effort=_effort(effort),
        budget_s=budget_s,
        database=None if database is None else str(database),
        target=target,
        model=model,
        protocol=protocol,
        on_miss=on_miss,
        while_tuning=while_tuning,
        seed=seed,
        workers=workers,
        observer=_terminal() if observer is None else observer,
    )
    options = CompileOptions(out_idx, None, None, execution_backend, None, pass_configs, compile_flags)
    rules = _rules(constraints)

    def decorate(wrapped: Any) -> Autotuned:
        if isinstance(wrapped, Autotuned):
            raise InputError(f"{wrapped!r} is autotuned already")
        function = UserFunction(wrapped, options)
        merged = _merged(do_not_specialize, function)
        programs = Programs(ref_prog, supply_prog, manual_check_prog)
        return Autotuned(function, _choices(configs, space, rules, function), checking, programs, asked, merged)

    return decorate if func is None else decorate(func)


def _choices(configs: Any, space: Any, rules: tuple[Any, ...], function: UserFunction) -> Choices | Callable[..., Choices]:
    maker = configs if configs is not None else space
    if not inspect.isroutine(maker) and not (callable(maker) and not isinstance(maker, Mapping) and not hasattr(maker, "parameters")):
        return read_choices(configs, space, rules, function.signature, function.name)

    def made(*args: Any, **kwargs: Any) -> Choices:
        found = maker(*args, **kwargs)
        return read_choices(found, None, rules, function.signature, function.name)

    return made


def _rules(constraints: Any) -> tuple[Any, ...]:
    if isinstance(constraints, str | Mapping) or not isinstance(constraints, Iterable):
        raise InputError(f"autotune: constraints must be a list of functions of a config, not {type(constraints).__name__}")
    return tuple(constraints)


def _merged(names: Iterable[str] | None, function: UserFunction) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names or ())
    for name in found:
        if name not in function.signature.parameters:
            raise UnknownNameError(f"argument of {function.name}", name, function.signature.parameters)
    return found


def _effort(effort: str | Effort) -> Effort:
    if effort not in list(Effort):
        raise UnknownNameError("effort", str(effort), [e.value for e in Effort])
    return Effort(effort)


def _supply(supply_type: Any) -> str:
    """By name: TileLang's enumeration is not imported for it."""
    if supply_type is None:
        return AUTO
    name = str(getattr(supply_type, "name", supply_type))
    if name not in SUPPLIES:
        raise UnknownNameError("supply_type", name, SUPPLIES)
    return name


def _say_what_means_nothing(given: Mapping[str, Any]) -> None:
    """Once in a process for each argument, and only where it is not TileLang's own default."""
    for name, (default, reason) in _WITHOUT_MEANING.items():
        if given[name] != default and name not in _said:
            _said.add(name)
            warnings.warn(f"tilesight.autotune: {name} has no effect: {reason}", UserWarning, stacklevel=3)


def _terminal() -> Observer:
    import sys

    return Lines(lambda line: print(line, file=sys.stderr)) if sys.stderr is not None and sys.stderr.isatty() else Observer()
