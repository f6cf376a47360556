"""The callable kernel of a chosen config."""

from __future__ import annotations

from typing import Any

from ..errors import ToolchainError, headline
from ..problem.candidate import Candidate
from ..settings import load_settings
from ..target.spec import Target
from .arguments import Call
from .host_kernel import HostKernel
from .interface import inputs_first, read_interface
from .options import AutotuneOptions, processor_target
from .run_time_values import inputs_of_block, run_time_values
from .trace_configs import packed
from .tuned import Tuned, TunedSource
from .user_function import UserFunction
from .user_operator import CheckOptions, UserOperator
from .user_template import TracedConfig, TracedTemplate, compiler_flags, with_options


def build_kernel_of(function: UserFunction, options: AutotuneOptions, call: Call, tuned: Tuned) -> Any:
    """TileLang's `JITKernel` on a GPU, a `HostKernel` on a processor; `kernel.tilesight` is `tuned`.

    Raises:
        ToolchainError: TileLang cannot compile on this machine.
        NoCandidateError: the processor's compiler refuses the kernel.
    """
    target = processor_target(options, function)
    # arguments that the caller chose are among those of the call
    values = {} if tuned.source is TunedSource.GIVEN else dict(tuned.values)
    if target is None:
        kernel = _compiled(function, call, values)
    else:
        kernel = _host_kernel(function, options, call, tuned, values, target)
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


def _host_kernel(
    function: UserFunction,
    options: AutotuneOptions,
    call: Call,
    tuned: Tuned,
    values: dict[str, Any],
    target: Target,
) -> HostKernel:
    traced = function.trace(call.args, call.kwargs, values)
    given = inputs_of_block() or call.run_time_arguments(function.run_time_names)
    known = run_time_values(traced, function.out_idx, function.name, given, options.measured_at, 1)
    interface = read_interface(traced, function.out_idx, function.name, known)
    code = packed(with_options(inputs_first(traced, interface), function.options_of(values)))
    operator = UserOperator(f"user.{function.name}", interface, CheckOptions(), b"")
    flags = compiler_flags(function, values)
    template = TracedTemplate(operator, "", True, flags, lambda: TracedConfig(code))
    workload, dynamic = call.workload(operator.name, interface, ()), tuple(n for n, _ in interface.sizes)
    candidate = Candidate(workload, target, template, tuned.config, dynamic)
    return HostKernel(candidate, interface, load_settings().cache_dir)
