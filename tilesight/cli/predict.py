"""`tilesight predict`: the predicted time of a kernel in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from . import options, output
from .explain_json import own_fields
from .output import number, percent, spread

if TYPE_CHECKING:
    from ..api.kernel_files import FilePrediction


@click.command()
@options.with_options(
    options.file(required=True),
    options.arguments,
    options.own_config,
    options.target,
    options.dims,
    options.inputs,
    options.density,
    options.calls,
    options.as_json,
    options.debug,
)
def predict(
    file: str,
    arguments: Mapping[str, Any],
    config: str | None,
    target: str | None,
    dims: str | None,
    inputs: Mapping[str, Any] | None,
    density: float | None,
    calls: str | None,
    as_json: bool,
) -> None:
    """Predict the time of any TileLang kernel in a Python file; needs no GPU.

    The kernel is a PrimFunc at module level, or a function that returns one, also under @tilelang.jit. The
    file runs in a process of its own. `tilesight explain --file` shows what limits the kernel. Of a function
    under @tilelang.autotune or @tilesight.autotune all configs of its own are compared, unless --config names
    one or --arg gives what they choose.
    """
    from ..api.kernel_files import predict_file
    from ..api.run_time_facts import RunTimeFacts

    found = predict_file(file, target, RunTimeFacts(dims, inputs, density, calls), arguments, config)
    if as_json:
        output.print_json("predict", **_fields(found))
    else:
        _print(found)


def _print(found: FilePrediction) -> None:
    prediction = found.prediction
    output.print_text(f"{found.name} on {found.target.title}", bold=True)
    output.print_text(
        f"predicted {number(prediction.latency_us)} us, {spread(prediction.uncertainty)}, "
        f"limiting: {prediction.limiting}"
    )
    busy = sorted(prediction.utilization.items(), key=lambda item: -item[1])
    output.print_table(["resource", "busy"], [[name, percent(share)] for name, share in busy], right=["busy"])
    for note in (*([found.why_wide] if found.why_wide else []), *prediction.notes):
        output.print_text(f"note: {note}")
    if found.own_configs:
        from ..explanation.own_configs import add_section
        from ..reports.report import Report

        report = Report()
        add_section(report, found.own_configs)
        output.print_report(report)


def _fields(found: FilePrediction) -> dict[str, Any]:
    prediction = found.prediction
    return {
        "kernel": found.name,
        "config": found.config,
        "target": found.target.name,
        "predicted_us": prediction.latency_us,
        "predicted_uncertainty": prediction.uncertainty,
        "limiting": prediction.limiting,
        "utilization": prediction.utilization,
        "terms_us": prediction.terms_us,
        "notes": prediction.notes,
        "model": prediction.model,
        "own_configs": own_fields(found.own_configs),
    }
