"""Tuning one call's arguments: from the user's function to a request, and from there to a session's result."""

from __future__ import annotations

import functools
import inspect
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, NoCandidateError, UnknownNameError, headline
from ..lookup import check_workers
from ..observers import Observer
from ..session import Effort, SessionResult, ranked
from ..settings import load_settings
from ..space import Config
from ..target import Target, load_target
from ..trial import Status
from ..where import Where, locate
from .arguments import Call
from .choices import Choices
from .content import content_hash
from .drawing import load_saved
from .interface import Interface, read_interface
from .operator import Checking, Programs, UserOperator
from .template import UserRequest, UserTemplate
from .tuned import Source, Tuned, tuned_from, winner
from .user_function import UserFunction

if TYPE_CHECKING:
    from ..costmodel.model import CostModel
    from ..database.store import Store
    from ..executor import LocalExecutor

_MOST_TRIED = 16  # configs that are tried as the one to start from


@dataclass(frozen=True)
class Asked:
    """What stands in the decorator beside configs and checks. `on_miss` and `while_tuning`: see `autotune`."""

    effort: Effort = Effort.QUICK
    budget_s: float | None = None
    database: str | None = None
    target: str | Target = "auto"
    model: CostModel | None = None
    protocol: str = "default"
    on_miss: str = "tune"
    while_tuning: str = "wait"
    seed: int = 0
    workers: int | None = None
    observer: Observer = field(default_factory=Observer)

    def __post_init__(self) -> None:
        if self.effort not in list(Effort):
            raise UnknownNameError("effort", str(self.effort), [e.value for e in Effort])
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise InputError(f"budget_s={self.budget_s} must be a number of seconds above 0; leave it out for no limit")
        for name, known in (("on_miss", ("tune", "model")), ("while_tuning", ("wait", "model"))):
            if getattr(self, name) not in known:
                raise UnknownNameError(name, str(getattr(self, name)), known)
        check_workers(self.workers)
        if type(self.seed) is not int:
            raise InputError(f"autotune: seed must be a whole number, not {self.seed!r}")
        if self.model is not None and not (callable(getattr(self.model, "predict", None)) and hasattr(self.model, "version")):
            raise InputError(f"autotune: model must be a cost model with `version` and `predict`, not {type(self.model).__name__}")
        if not callable(getattr(self.observer, "message", None)):
            raise InputError(f"autotune: observer must be a tilesight.observers.Observer, not {type(self.observer).__name__}")


@dataclass(frozen=True)
class Task:
    """One call's arguments, ready to be tuned. `saved` are inputs of the caller's own, to be written to the file that workers
    read them from."""

    request: UserRequest
    template: UserTemplate
    where: Where
    choices: Choices
    interface: Interface
    model: CostModel
    saved: tuple[Path, list[Any]] | None = None

    def tuned(self, result: SessionResult) -> Tuned:
        """Raises `NoCandidateError` where candidates ran and none of them came through: one that never ran is no better."""
        trial = winner(result)
        ran = [t for t in result.trials if t.status is Status.FAILED and (t.measurement or t.build)]
        untried = trial is None or trial.status not in (Status.VERIFIED, Status.MEASURED)
        if trial is None or (untried and ran and self.request.measures and result.effort is not Effort.PREDICT):
            from ..reasons import nothing_worked

            raise nothing_worked(self.request.workload, self.request.target, ran, cut=False)
        return tuned_from(result, self.choices.values(trial.config), trial)

    def default(self, reason: str) -> Tuned:
        config = self.choices.first
        assert config is not None  # a task without configs is not made
        workload, target = self.request.workload, self.request.target.name
        return Tuned(config, self.choices.values(config), Source.DEFAULT, Status.PREDICTED, workload, target, messages=(reason,))


def find_target(asked: Asked, function: UserFunction) -> str | Target:
    """Where to tune for: as asked, else for what the function is compiled for, else the GPU of this machine."""
    if asked.target != "auto":
        return asked.target
    compiled_for = function.target
    if compiled_for is None and "tilelang" in sys.modules:
        compiled_for = sys.modules["tilelang"].env.get_default_target()
    kind = compiled_for.get("kind", "") if isinstance(compiled_for, Mapping) else str(getattr(compiled_for, "kind", compiled_for))
    return "cpu" if kind.split(" ")[0] in ("c", "llvm") else "auto"


def host_target(asked: Asked, function: UserFunction) -> Target | None:
    """The processor that it is tuned for; None: a GPU."""
    found = find_target(asked, function)
    if found == "auto":
        return None
    target = load_target(found) if isinstance(found, str) else found
    return None if target.is_gpu else target


def make_task(
    function: UserFunction, call: Call, choices: Choices, checking: Checking, programs: Programs, asked: Asked, merged: tuple[str, ...]
) -> Task:
    """Traces the config to start from. Raises `InputError` for kernels that cannot be measured, `NoCandidateError` where no
    config can be traced, and what `locate` raises."""
    from ..costmodel import default_model
    from ..lookup import find_context
    from ..protocol import Protocol

    where = locate(find_target(asked, function), measures=asked.effort is not Effort.PREDICT)
    first, traced = _first_traced(function, call, choices)
    interface = read_interface(traced, function.out_idx, function.name)
    saved = _captured_inputs(interface)
    if saved is not None:
        programs = replace(programs, supply=functools.partial(load_saved, str(saved[0])))
    packed = programs.packed()
    operator = UserOperator(f"user.{function.name}", interface, checking, packed, has_reference=programs.reference is not None)
    workload = call.workload(operator.name, interface, merged)
    checked_by = (*(_identity(saved, p) for p in (programs.reference, programs.supply, programs.manual_check)), vars_of(checking))
    compiled = (function.out_idx, function.pass_configs, function.compile_flags)
    # arguments that are not told apart show in the IR
    ir = "" if merged else _default_ir(function, call, choices) or str(traced.script())
    agreed = "" if checking.skip or programs.reference is not None else str(first)
    version = content_hash(function.source, checked_by, compiled, ir, agreed, own=function.python)[:12]
    operator.version = version
    template = UserTemplate(function, call.args, call.kwargs, choices, interface, operator, version)
    model = asked.model or default_model()
    protocol = Protocol.named(asked.protocol, where.target)
    context = find_context(template, workload, where, model.version, choices.space, protocol)
    request = UserRequest(
        workload,
        where.target,
        template,
        choices.space,
        context,
        asked.effort,
        protocol,
        measures=bool(where.devices),
        budget_s=asked.budget_s,
        seed=asked.seed,
    )
    return Task(request, template, where, choices, interface, model, saved)


def predicted_only(task: Task) -> Task:
    """The same task by the model alone: no device is asked."""
    from ..toolchain import software_versions

    where = Where(task.where.target)
    context = replace(task.request.context, device="", protocol="", software=software_versions(where.target, None))
    request = replace(task.request, context=context, effort=Effort.PREDICT, measures=False)
    return replace(task, request=request, where=where)


@contextmanager
def opened_store(asked: Asked) -> Iterator[Store]:
    from ..database.layers import open_layers

    with open_layers(asked.database or load_settings().database_url) as store:
        yield store


def find_known(task: Task, store: Store) -> Tuned | None:
    """From the database alone."""
    from ..recorded import find_answer

    found = find_answer(store, task.request)
    return None if found is None else task.tuned(replace(found, context=task.request.context))


def run_session(task: Task, store: Store, asked: Asked) -> Tuned:
    """Raises what `tilesight.tune` raises."""
    from ..recorded import run_recorded

    settings = load_settings()
    opened: list[LocalExecutor] = []

    def executor() -> LocalExecutor:
        from ..executor import LocalExecutor

        made = LocalExecutor(asked.workers or settings.workers, settings.cache_dir, task.where.gpus, notice=asked.observer.message)
        opened.append(made)
        if task.where.devices:
            made.start(measures=True)
            _save_inputs(task)
            _build_reference(task, made)
        return made

    asked.observer.started(f"{task.request.workload.label} on {task.where.target.title}")
    try:
        result = run_recorded(task.request, store, task.model, executor, asked.observer, task.where.messages)
    finally:
        for made in opened:
            made.close()
        if task.saved is not None:
            task.saved[0].unlink(missing_ok=True)
    asked.observer.answered(result)
    return task.tuned(result)


def model_choice(task: Task, store: Store, while_tuned: str) -> Tuned:
    """The best that is known so far, without lowering anything: measured and right, else predicted, else the default config."""
    known = store.recall(task.request.context)
    records = {key: record for key, record in known.items() if record.config in task.choices.space}
    best = next((r for r in ranked(records) if r.status is not Status.FAILED and (r.measured_us or r.prediction)), None)
    if best is None:
        return task.default(f"{while_tuned}, and nothing is predicted yet")
    return Tuned(
        best.config,
        task.choices.values(best.config),
        Source.MODEL,
        best.status,
        task.request.workload,
        task.request.target.name,
        best.measured_us,
        best.predicted_us,
        messages=(while_tuned,),
    )


def vars_of(checking: Checking) -> dict[str, Any]:
    return {name: getattr(checking, name) for name in checking.__slots__}


def _first_traced(function: UserFunction, call: Call, choices: Choices) -> tuple[Config, Any]:
    """The first config that can be traced, and its IR."""
    configs = choices.space.configs()
    if not configs:
        census = choices.space.census()
        raise NoCandidateError(f"{function.name}: none of {census.size} configs is legal; loosen the constraints of its space")
    first = choices.first
    order = [*([first] if first is not None else []), *configs[:_MOST_TRIED]]
    failed: Exception | None = None
    for config in dict.fromkeys(order):
        try:
            return config, function.trace(call.args, call.kwargs, choices.values(config))
        except InputError:
            raise
        except Exception as error:  # the user's code may raise anything
            failed = failed or error
    raise NoCandidateError(
        f"{function.name}: none of {len(dict.fromkeys(order))} configs can be traced; the first says "
        f"{type(failed).__name__}: {headline(str(failed))}"
    ) from failed


def _default_ir(function: UserFunction, call: Call, choices: Choices) -> str:
    """The IR with the defaults of the signature, whatever configs there are; "" where these make none."""
    parameters = function.signature.parameters
    if any(name not in parameters or parameters[name].default in (None, inspect.Parameter.empty) for name in choices.names):
        return ""
    try:
        return str(function.trace(call.args, call.kwargs, {}).script())
    except Exception:  # the user's code may raise anything
        return ""


def _captured_inputs(interface: Interface) -> tuple[Path, list[Any]] | None:
    """Inputs of the block `with tilelang.autotuner.set_autotune_inputs(...)` that the call stands in, and a file for them."""
    capture = sys.modules.get("tilelang.autotuner.capture")
    found = capture.get_autotune_inputs() if capture is not None else None
    if found is None:
        return None
    if len(found) != len(interface.given):
        names = ", ".join(tensor.name for tensor in interface.given)
        raise InputError(f"set_autotune_inputs has {len(found)} inputs, and the kernel takes {len(interface.given)}: {names}")
    name = f"inputs-{os.getpid()}-{secrets.token_hex(6)}.pt"
    return load_settings().cache_dir / "tuning" / name, list(found)


def _save_inputs(task: Task) -> None:
    if task.saved is None:
        return
    import torch

    path, inputs = task.saved
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save([tensor.detach().cpu() for tensor in inputs], path)


def _identity(saved: object, program: Callable[..., Any] | None) -> Any:
    """What stands for a program in a key; the file that inputs are in is another one in every call."""
    is_file = saved is not None and isinstance(program, functools.partial) and program.func is load_saved
    return "inputs of the caller" if is_file else program


def _build_reference(task: Task, executor: LocalExecutor) -> None:
    """Build the config that others must agree with, where there is no `ref_prog`."""
    from ..work import Build, Built, OneLane

    operator = task.template.operator
    if operator.has_reference or operator.checking.skip:
        return
    configs = task.choices.space.configs()
    first = task.choices.first
    failure = ""
    for config in dict.fromkeys([*([first] if first is not None else []), *configs[:_MOST_TRIED]]):
        for event in executor.stream(OneLane([Build(task.request.candidate(config))])):
            assert isinstance(event, Built)
            if event.result.artifact is not None:
                operator.agreed = event.result.artifact, event.result.entry
                return
            failure = failure or (event.result.failure.message if event.result.failure else "")
    raise NoCandidateError(f"{task.template.name}: no config builds that others could be held against; {first}: {failure}. Give a ref_prog")
