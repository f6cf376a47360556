"""Sessions on an engine: one workload tuned, or the best that is known of it."""

from __future__ import annotations

from dataclasses import replace

from ..machine.devices import NoDevice, find_devices, groups_for
from ..problem.operator import Operator
from ..problem.workload import Workload
from ..records.session import Effort, SessionResult
from ..tuner.request import make_request
from ..tuner.resolve import find_template
from .engine import Engine


def run_session(
    engine: Engine, operator: Operator, workload: Workload, budget_s: float | None = None
) -> SessionResult:
    """Tune one workload: from the database, resumed or new.

    Args:
        engine: Its options say how far the session goes.
        operator: The operator of `workload`.
        workload: What is tuned.
        budget_s: Seconds for this session; None: no limit.

    Raises:
        InputError: no kernel takes this dtype on this target, or takes one of the dynamic dimensions.
        NoCandidateError: nothing is legal, or nothing works.
        DatabaseError: the database cannot be read or written.
    """
    from ..tuner.recorded import run_recorded

    target = engine.placement.target
    template = find_template(operator, target, workload.dtype)
    dynamic = template.check_dynamic(engine.options.dynamic)
    at_run_time = f", {', '.join(dynamic)} taken at run time" if dynamic else ""
    engine.observer.started(f"{workload.label} on {target.title}{at_run_time}")
    options = replace(engine.options, dynamic=dynamic, budget_s=None)
    request = make_request(template, workload, engine.placement, engine.model.version, options)
    result = run_recorded(
        replace(request, budget_s=budget_s),
        engine.store,
        engine.model,
        engine.caching_executor,
        engine.observer,
        engine.placement.messages,
        engine.tuning_alone(request.context),
    )
    engine.observer.answered(result)
    return result


def best_known(engine: Engine, operator: Operator, workload: Workload) -> SessionResult:
    """A complete session that measured on this machine; else the predicted ranking, made now if it is
    missing.
    """
    from ..tuner.recorded import find_answer

    target = engine.placement.target
    found = groups_for(target, find_devices() if target.is_gpu else [])
    if not isinstance(found, NoDevice):
        template = find_template(operator, target, workload.dtype)
        placement = replace(engine.placement, devices=found[: target.world])
        request = make_request(template, workload, placement, engine.model.version, engine.options)
        answer = find_answer(engine.store, replace(request, effort=Effort.QUICK))
        if answer is not None:
            return answer
    assert engine.options.effort is Effort.PREDICT
    return run_session(engine, operator, workload)
