"""The callable kernel of a chosen config."""

from __future__ import annotations

import copy
from typing import Any

from ..errors import ToolchainError, headline
from ..problem.candidate import Candidate
from ..records.trial import Status
from ..settings import load_settings
from ..target.spec import Target
from .arguments import Call
from .host_kernel import HostKernel
from .interface import Interface, inputs_first, read_interface
from .launched_call import LaunchedCall
from .options import AutotuneOptions, find_target, processor_target
from .run_time_values import inputs_of_block, run_time_values
from .trace_configs import packed
from .tuned import Tuned, TunedSource
from .user_function import UserFunction
from .user_operator import CheckOptions, UserOperator
from .user_template import TracedConfig, TracedTemplate, compiler_flags, own_options, with_options


def build_kernel_of(function: UserFunction, options: AutotuneOptions, call: Call, tuned: Tuned) -> Any:
    """TileLang's `JITKernel` on a GPU, a `HostKernel` on a processor; `kernel.tilesight` is `tuned`.

    A `JITKernel` whose config was measured launches the library that was measured.

    Raises:
        ToolchainError: TileLang cannot compile on this machine.
        NoCandidateError: the processor's compiler refuses the kernel.
    """
    target = processor_target(options, function)
    # arguments that the caller chose are among those of the call
    values = {} if tuned.source is TunedSource.GIVEN else dict(tuned.values)
    if target is None:
        compiled = _compiled(function, call, values)
        kernel = _launched(compiled, function, options, call, tuned, values)
    else:
        candidate, interface = _candidate(function, options, call, tuned, values, target)
        kernel = HostKernel(candidate, interface, load_settings().cache_dir)
    milliseconds = (
        None if tuned.latency_us is None else tuned.latency_us / 1e3
    )  # a prediction is no measurement
    reference = None if tuned.reference_us is None else tuned.reference_us / 1e3
    kernel.update_tuner_result(milliseconds, dict(tuned.values), reference)
    kernel.tilesight = tuned
    return kernel


def _compiled(function: UserFunction, call: Call, values: dict[str, Any]) -> Any:
    try:
        return function.compile(call.args, call.kwargs, values)
    except Exception as error:  # TileLang may raise anything
        import torch

        if torch.cuda.is_available():
            raise
        name = function.name
        raise ToolchainError(
            f"{name}: TileLang cannot compile here, where torch sees no GPU ({headline(str(error))}). For "
            f"predictions without one decorate it with effort='predict' and a target, and call "
            f"{name}.tune(...); with target='cpu' it runs on the processor"
        ) from error


def _launched(
    kernel: Any,
    function: UserFunction,
    options: AutotuneOptions,
    call: Call,
    tuned: Tuned,
    values: dict[str, Any],
) -> Any:
    """The kernel with TileSight's own library in place of TileLang's, if that library was measured here.

    It is a copy: TileLang hands the same kernel to its other callers.
    """
    from ..builder.build import build_kernel
    from ..machine.placement import locate

    if tuned.status not in (Status.VERIFIED, Status.MEASURED, Status.NOISY):
        return kernel
    target = locate(find_target(options, function), measures=False).target
    candidate, interface = _candidate(function, options, call, tuned, values, target)
    built = build_kernel(candidate, load_settings().cache_dir)
    if built.failure is not None or built.artifact is None:  # e.g. its cache is gone, and so is the compiler
        reason = built.failure.message if built.failure else "no library was made"
        options.observer.message(f"{function.name} runs as TileLang builds it: {reason}")
        return kernel
    launched = copy.copy(kernel)
    launched.torch_function = LaunchedCall(interface, built, kernel.torch_function)
    return launched


def _candidate(
    function: UserFunction,
    options: AutotuneOptions,
    call: Call,
    tuned: Tuned,
    values: dict[str, Any],
    target: Target,
) -> tuple[Candidate, Interface]:
    """The chosen config as a candidate, which is built like the one that was measured."""
    traced = function.trace(call.args, call.kwargs, values)
    given = inputs_of_block() or call.run_time_arguments(function.run_time_names)
    known = run_time_values(traced, function.out_idx, function.name, given, options.measured_at, 1)
    interface = read_interface(traced, function.out_idx, function.name, known)
    passes = {**own_options(traced), **function.options_of(values)}
    code = packed(with_options(inputs_first(traced, interface), passes))
    operator = UserOperator(f"user.{function.name}", interface, CheckOptions(), b"")
    flags = compiler_flags(function, values)
    template = TracedTemplate(operator, "", True, flags, lambda: TracedConfig(code))
    workload, dynamic = call.workload(operator.name, interface, ()), tuple(n for n, _ in interface.sizes)
    return Candidate(workload, target, template, tuned.config, dynamic), interface
