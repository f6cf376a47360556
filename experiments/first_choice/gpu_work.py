"""What worker processes do on the GPU: the first launch of one kernel, and the times of all of a shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tilesight.problem.candidate import Candidate
from tilesight.problem.workload import Workload
from tilesight.records.trial import BuildResult
from tilesight.target.spec import Target

MOST_ERROR = 2.0  # relative error of a library's or Helion's result, in units of the operator's limit
Call = Callable[[], Any]


@dataclass(frozen=True)
class Entrant:
    """One kernel of a shape. `build` is that of a TileLang kernel; others are known by their tool."""

    tool: str
    form: str = ""
    candidate: Candidate | None = None
    build: BuildResult | None = None

    @property
    def label(self) -> tuple[str, str]:
        return self.tool, self.form


@dataclass(frozen=True)
class FirstLaunch:
    operator: str
    workload: Workload
    target: Target
    entrant: Entrant


@dataclass(frozen=True)
class ShapeTask:
    operator: str
    workload: Workload
    target: Target
    entrants: tuple[Entrant, ...]


@dataclass
class Timed:
    """The figures of one entrant or library; `failure` says why there are none."""

    tool: str
    form: str = ""
    samples_us: tuple[float, ...] = ()
    relative_error: float | None = None
    failure: str = ""
    note: str = ""
    own: dict[str, Any] = field(default_factory=dict)
    observed: dict[str, float] = field(default_factory=dict)


def preload() -> None:
    import torch  # noqa: F401

    from tilesight.runner import bench, turns  # noqa: F401


def first_launch(task: FirstLaunch) -> str:
    """Compile what is compiled at the first call (into disk caches), launch once, wait. Raises its errors."""
    import torch

    from tilesight.builder.loaded_kernel import LoadedKernel
    from tilesight.kernels import operator
    from tilesight.workers.worker import retire

    found = operator(task.operator)
    device = "cuda" if task.target.is_gpu else "cpu"
    inputs = found.inputs(task.workload, device, 1)
    build = task.entrant.build
    try:
        if build is not None:
            assert build.artifact is not None
            dtype = getattr(torch, task.workload.dtype)
            shapes = found.outputs(task.workload).values()
            outputs = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
            kernel = LoadedKernel(build.artifact, build.entry)  # stays loaded until the launch has ended
            kernel.bind([*inputs.values(), *outputs])()
        else:
            _maker(task.operator, task.workload, task.entrant)(inputs)[0]()
        if task.target.is_gpu:
            torch.cuda.synchronize()
    except BaseException:
        retire()  # the context may be unusable
        raise
    del inputs
    if task.target.is_gpu:
        torch.cuda.empty_cache()
    return "launched"


def measure_shape(task: ShapeTask) -> list[Timed]:
    """Check and time all entrants of a shape and the vendor's libraries, in turns."""
    from tilesight.kernels import operator
    from tilesight.records.protocol import MeasurementProtocol
    from tilesight.runner.bench import bench_for
    from tilesight.runner.kernel_run import KernelRun
    from tilesight.runner.turns import collect_samples
    from tilesight.workers.worker import retire

    found = operator(task.operator)
    protocol = MeasurementProtocol.named("default", task.target).careful()
    bench = bench_for(task.target, protocol)
    bench.conditions.begin()
    case = bench.case(found, task.workload, protocol)
    results: list[Timed] = []
    timed: list[tuple[Timed, Call]] = []
    runs: dict[str, KernelRun] = {}  # by library: two tools may choose the same kernel
    for entrant in task.entrants:
        one = Timed(*entrant.label)
        results.append(one)
        if entrant.build is None or entrant.candidate is None:
            _prepare(
                one, timed, task, case, bench, _maker(task.operator, task.workload, entrant), strict=True
            )
            continue
        library = str(entrant.build.artifact)
        if library not in runs:
            runs[library] = run = KernelRun(entrant.build, entrant.candidate, bench, protocol)
            run.prepare(case)
            if run.failure is not None and bench.is_usable() and case.overwritten() is not None:
                bench.restore(case)
        run = runs[library]
        one.relative_error = run.relative_error
        if run.failure is not None:
            one.failure = f"{run.failure.kind}: {run.failure.message}"
        else:
            timed.append((one, run.call))
    for name in found.vendor(task.workload, case.sets[0].inputs):
        one = Timed(name)
        results.append(one)

        def make(inputs: Mapping[str, Any], name: str = name) -> tuple[Call, Callable[[Any], Any]]:
            return found.vendor(task.workload, inputs)[name], _vendor_result(task.operator)

        _prepare(one, timed, task, case, bench, make, strict=False)
    distinct = list({id(call): call for _, call in timed}.values())
    taken = collect_samples(bench.timer, distinct, protocol, bench.conditions)
    samples = {id(call): own for call, own in zip(distinct, taken.samples_us, strict=True)}
    observed = {**bench.conditions.observed(), "retaken": taken.retaken, "disturbed": taken.disturbed}
    for one, call in timed:
        one.samples_us, one.observed = samples[id(call)], observed
    for run in runs.values():
        if run.failure is None:
            run.check_again(case)
        for one, call in timed:
            if run.failure is not None and call is run.call:
                one.failure, one.samples_us = f"{run.failure.kind}: {run.failure.message}", ()
        run.close()
    timed.clear()
    bench.free_memory()
    if not bench.is_usable():
        retire()
    return results


def _prepare(
    one: Timed,
    timed: list[tuple[Timed, Call]],
    task: ShapeTask,
    case: Any,
    bench: Any,
    make: Callable[[Mapping[str, Any]], tuple[Call, Callable[[Any], Any]]],
    strict: bool,
) -> None:
    """Check a call that returns its result on every input set, and add it to `timed` if it is right."""
    import torch

    from tilesight.runner.kernel_run import in_turn
    from tilesight.runner.verify import check_outputs

    operator = case.operator
    try:
        calls = []
        for given in case.sets:
            call, result_of = make(given.inputs)
            calls.append(call)
            # memory that torch hands out next, so that unwritten elements show
            dirt = {name: torch.full_like(t, math.nan) for name, t in case.outputs().items()}
            del dirt
            result = result_of(call())
            bench.timer.synchronize()
            name = next(iter(given.reference))
            verdict = check_outputs(
                operator, task.workload, {name: result}, given.reference, given.magnitude, given.is_exact
            )
            error = verdict.relative_error
            one.relative_error = max(one.relative_error or 0.0, error or 0.0)
            if verdict.failure is not None:
                one.note = verdict.failure.message
            limit = MOST_ERROR * operator.max_relative_error(task.workload)
            wrong = not bool(torch.isfinite(result).all()) or error is None or error > limit
            if wrong and strict:
                one.failure = f"wrong_result: {one.note or f'relative error {error}'}"
                return
        one.own = getattr(calls[0], "own", {})
        timed.append((one, in_turn(calls)))
    except Exception as error:  # a tool may raise anything
        one.failure = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _vendor_result(operator: str) -> Callable[[Any], Any]:
    def result_of(returned: Any) -> Any:
        first = returned[0] if isinstance(returned, tuple) else returned
        return first.transpose(1, 2).contiguous() if operator == "flash_attention" else first

    return result_of


def _maker(
    operator: str, workload: Workload, entrant: Entrant
) -> Callable[[Mapping[str, Any]], tuple[Call, Callable[[Any], Any]]]:
    """Makes, from inputs, a call and a function that takes the operator's output from what it returns."""
    if entrant.tool == "torch.compile":
        return _compiled
    if entrant.tool != "Helion":
        raise ValueError(f"{entrant.tool} has no build, and is neither Helion nor torch.compile")

    def make(inputs: Mapping[str, Any]) -> tuple[Call, Callable[[Any], Any]]:
        from helion_kernels import arguments_for, bind, result_of

        causal = bool(workload.attrs.get("causal", False))
        arguments = arguments_for(operator, inputs)
        bound, config = bind(operator, causal, entrant.form, arguments)
        kernel = bound.compile_config(config)

        def call() -> Any:
            return kernel(*arguments)

        call.__dict__["own"] = dict(config)
        return call, lambda returned: result_of(operator, returned, workload.dims.get("batch", 1))

    return make


def _compiled(inputs: Mapping[str, Any]) -> tuple[Call, Callable[[Any], Any]]:
    """torch.compile of torch's rms_norm, for static shapes and without its own autotuning."""
    import torch

    from tilesight.kernels.rms_norm import EPS

    x, w = inputs["x"], inputs["w"]
    compiled = torch.compile(torch.nn.functional.rms_norm, dynamic=False, fullgraph=True)
    return lambda: compiled(x, (x.shape[-1],), w, EPS), lambda returned: returned


def figures(timed: Timed) -> dict[str, object]:
    """Median, its 95 % interval and the state of the device, as columns of a row."""
    from tilesight.records.intervals import median_interval

    samples: Sequence[float] = timed.samples_us
    if not samples:
        return {}
    low, high = median_interval(samples)
    return {
        "median_us": f"{median(samples):.3f}",
        "low_us": f"{low:.3f}" if math.isfinite(low) else "",
        "high_us": f"{high:.3f}" if math.isfinite(high) else "",
        "samples": len(samples),
        "clock_mhz": timed.observed.get("sm_clock_mhz", ""),
        "disturbed": f"{timed.observed.get('disturbed', 0.0):.2f}",
    }
