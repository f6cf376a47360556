"""One call's arguments as a tuning task: a request, and the choice that follows from its result."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from ..machine.placement import Placement, locate
from ..records.session import Effort, SessionResult
from ..records.trial import Status
from ..tuner.options import TuneOptions
from ..tuner.request import Request, make_request
from .arguments import Call
from .caller_inputs import CallerInputs, find_caller_inputs
from .check_programs import CheckPrograms
from .config_space import Choices
from .content import content_hash
from .interface import read_interface
from .options import AutotuneOptions, find_target
from .run_time_values import inputs_of_block, run_time_values
from .trace_configs import Traces, default_ir, first_traced
from .tuned import Tuned, TunedSource, tuned_from
from .user_function import UserFunction
from .user_operator import CheckOptions, UserOperator
from .user_template import UserTemplate

if TYPE_CHECKING:
    from ..costmodel.model import CostModel

_VERSION_DIGITS = 12


@dataclass(frozen=True)
class TuneTask:
    """What a session needs. `inputs`: tensors of the caller, else they are drawn or come from `supply_prog`.

    `shares_ir`: calls with other arguments have other IR under the same request (`do_not_specialize`).
    """

    request: Request
    template: UserTemplate
    placement: Placement
    choices: Choices
    model: CostModel
    inputs: CallerInputs | None = None
    shares_ir: bool = False

    def tuned(self, result: SessionResult) -> Tuned:
        """The choice that follows from a session.

        Raises:
            NoCandidateError: candidates ran and all of them failed. One that never ran is not chosen in their
                place.
        """
        trial = result.best
        ran = [t for t in result.trials if t.status is Status.FAILED and (t.measurement or t.build)]
        untried = trial is None or trial.status not in (Status.VERIFIED, Status.MEASURED, Status.NOISY)
        if trial is None or (untried and ran and self.request.measures and result.effort.measures):
            from ..tuner.diagnostics import nothing_worked

            raise nothing_worked(self.request.workload, self.request.target, ran, cut=False)
        return tuned_from(result, self.choices.values(trial.config), trial)

    def default(self, reason: str) -> Tuned:
        """The default config as an interim choice; `reason` is its message."""
        config = self.choices.first
        assert config is not None  # a task has at least one config
        return Tuned(
            config,
            self.choices.values(config),
            TunedSource.DEFAULT,
            Status.PREDICTED,
            self.request.workload,
            self.request.target.name,
            messages=(reason,),
        )

    def with_code(self, code: str) -> TuneTask:
        """The same task under another version, which follows from its version and `code`."""
        version = content_hash(self.template.version, code)[:_VERSION_DIGITS]
        template = replace(
            self.template, version=version, operator=replace(self.template.operator, version=version)
        )
        context = replace(self.request.context, template_version=version)
        return replace(
            self, template=template, request=replace(self.request, template=template, context=context)
        )


def make_task(
    function: UserFunction,
    call: Call,
    choices: Choices,
    check: CheckOptions,
    programs: CheckPrograms,
    options: AutotuneOptions,
    unspecialized: tuple[str, ...],
) -> TuneTask:
    """The task of one call.

    Args:
        function: the user's function.
        call: its arguments.
        choices: the configs to choose from.
        check: how results are checked.
        programs: the user's check programs.
        options: further options of the decorator.
        unspecialized: arguments that share one tuning (`do_not_specialize`).

    Raises:
        InputError: the kernel cannot be measured.
        NoCandidateError: no config can be traced.
    """
    from ..costmodel import default_model

    placement = locate(find_target(options, function), measures=options.effort.measures)
    traces = Traces(function, call.args, call.kwargs, choices)
    first, traced = first_traced(traces, function.name, choices)
    values = run_time_values(
        traced,
        function.out_idx,
        function.name,
        inputs_of_block() or call.run_time_arguments(function.run_time_names),
        options.measured_at,
    )
    interface = read_interface(traced, function.out_idx, function.name, values)
    # arguments that share one tuning have IR of their own
    ir = "" if unspecialized else default_ir(traces, function, choices) or str(traced.script())
    inputs = find_caller_inputs(interface)
    supply = programs.supply if inputs is None else "inputs of the caller"
    rules = [getattr(check, rule.name) for rule in fields(check)]
    reference_config = "" if check.skip or programs.reference is not None else str(first)
    version = content_hash(
        function.source,
        (programs.reference, supply, programs.manual_check, rules, reference_config),
        (function.out_idx, function.pass_configs, function.compile_flags),
        ir,
        own=function.python,
    )[:_VERSION_DIGITS]
    if inputs is not None:
        programs = replace(programs, supply=inputs.supply)
    operator = UserOperator(
        f"user.{function.name}",
        interface,
        check,
        programs.packed(),
        has_reference=programs.reference is not None,
        version=version,
    )
    template = UserTemplate(function, traces, choices, interface, operator, version)
    workload = call.workload(operator.name, interface, unspecialized)
    model = options.model or default_model()
    chosen = TuneOptions(
        effort=options.effort,
        budget_s=options.budget_s,
        seed=options.seed,
        protocol=options.protocol,
        dynamic=tuple(name for name, _ in interface.sizes),
    )
    request = make_request(template, workload, placement, model.version, chosen, choices.space)
    return TuneTask(request, template, placement, choices, model, inputs, shares_ir=bool(unspecialized))


def predict_only(task: TuneTask) -> TuneTask:
    """The same task for the model alone: nothing is built or measured."""
    from ..machine.toolchain import software_versions

    placement = Placement(task.placement.target)
    software = software_versions(placement.target, None)
    context = replace(task.request.context, device="", protocol="", software=software)
    request = replace(task.request, context=context, effort=Effort.PREDICT, measures=False)
    return replace(task, request=request, placement=placement)
