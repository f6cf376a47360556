"""The page of a dispatch table: which kernel serves which sizes, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..dispatch.table.dispatch_table import DispatchTable, Evidence
from ..reports.numbers import percent
from .values import Axis, Facts, Page, PageColumn, PageFigure, PageTable, Plane, Points, Source, Steps, Texts

SEGMENTS, SIZES = "segments", "sizes"


def table_page(table: DispatchTable, vendor_us: Mapping[int, float]) -> Page:
    """The page of a table.

    Args:
        table: the table.
        vendor_us: measured times of the fastest other implementation, by size, as far as they are known.
    """
    evidence = sorted(table.evidence, key=lambda piece: piece.size)
    tables = {SEGMENTS: _segments(table)}
    parts: list[PageFigure | Facts | Texts] = [_summary(table, evidence)]
    if not evidence or not all(piece.chosen_measured and piece.best_measured for piece in evidence):
        parts.append(Texts("What to know first", [_unmeasured(evidence)], is_warning=True))
    parts.append(_segment_figure(table))
    if evidence:
        tables[SIZES] = _sizes(table, evidence, vendor_us)
        parts += _size_figures(table, vendor_us)
    kernels = [(f"kernel {number}", str(config)) for number, config in enumerate(table.kernels)]
    parts += [Facts("Kernels", kernels), _conditions(table), _marks()]
    label = table.workload(table.last)
    fixed = ", ".join(f"{name}={size}" for name, size in table.fixed.items())
    title = f"{label.operator} with {table.vary}={table.first}..{table.last} on {table.target}"
    return Page(title, f"Dispatch table, {fixed or 'no other dimension'}, {table.dtype}", parts, tables)


def _summary(table: DispatchTable, evidence: Sequence[Evidence]) -> Facts:
    rows = [
        ("kernels", str(len(table.kernels))),
        ("sizes", f"{table.vary}={table.first}..{table.last} in {len(table.segments)} segments"),
        ("sampled sizes", str(len(evidence))),
    ]
    if evidence:
        worst = max(evidence, key=lambda piece: piece.loss)
        rows.append(("mean loss at them", percent(sum(piece.loss for piece in evidence) / len(evidence))))
        rows.append(("worst loss", f"{percent(worst.loss)} at {table.vary}={worst.size}"))
    at_run_time = ", ".join(table.dynamic) or "nothing: each size is built from the config of its segment"
    rows.append(("taken at run time", at_run_time))
    return Facts("Result", rows)


def _unmeasured(evidence: Sequence[Evidence]) -> str:
    if not evidence:
        return "The table has no evidence: the losses of its kernels are not known."
    known = sum(piece.chosen_measured and piece.best_measured for piece in evidence)
    return (
        f"Both times of a loss are measured at {known} of {len(evidence)} sizes; the other losses rest on "
        "predictions."
    )


def _segments(table: DispatchTable) -> PageTable:
    """Both ends of each segment, in order."""
    ends = [(size, segment) for segment in table.segments for size in (segment.first, segment.last)]
    names = dict.fromkeys(name for config in table.kernels for name in config)
    columns = {
        "size": PageColumn(table.vary, [size for size, _ in ends]),
        "kernel": PageColumn("kernel", [segment.kernel for _, segment in ends]),
        "first": PageColumn("first size of the segment", [segment.first for _, segment in ends]),
        "last": PageColumn("last size", [segment.last for _, segment in ends]),
    }
    for name in names:
        values = [table.kernels[segment.kernel].get(name) for _, segment in ends]
        columns[f"parameter {name}"] = PageColumn(name, values, is_parameter=True)
    return PageTable("ends of segments", columns)


def _segment_figure(table: DispatchTable) -> PageFigure:
    layers = (
        Steps("kernel that serves a size", Source.PLAIN, "size", "kernel"),
        Points("end of a segment", Source.PLAIN, "size", "kernel"),
    )
    parameters = tuple(f"parameter {name}" for name in dict.fromkeys(n for c in table.kernels for n in c))
    return PageFigure(
        "segments",
        "Which kernel serves which sizes",
        "Each level is a kernel; its config is in the hints and in the table.",
        SEGMENTS,
        {"": Plane(Axis(table.vary, is_log=True), Axis("number of the kernel"), layers)},
        ("size", "kernel", "first", "last", *parameters),
    )


def _sizes(table: DispatchTable, evidence: Sequence[Evidence], vendor_us: Mapping[int, float]) -> PageTable:
    def chosen(is_measured: bool) -> list[float | None]:
        return [piece.chosen_us if piece.chosen_measured is is_measured else None for piece in evidence]

    def best(is_measured: bool) -> list[float | None]:
        return [piece.best_us if piece.best_measured is is_measured else None for piece in evidence]

    def loss(is_measured: bool) -> list[float | None]:
        return [
            100 * piece.loss if (piece.chosen_measured and piece.best_measured) is is_measured else None
            for piece in evidence
        ]

    vendor = [vendor_us.get(piece.size) for piece in evidence]
    ratios = [
        us / piece.chosen_us if us is not None and piece.chosen_measured else None
        for us, piece in zip(vendor, evidence, strict=True)
    ]
    return PageTable(
        "sizes",
        {
            "size": PageColumn(table.vary, [piece.size for piece in evidence]),
            "kernel": PageColumn("kernel", [piece.kernel for piece in evidence]),
            "chosen_us": PageColumn("time of its kernel, measured", chosen(True), "us", Source.MEASURED),
            "chosen_predicted_us": PageColumn(
                "time of its kernel, predicted", chosen(False), "us", Source.PREDICTED
            ),
            "best_us": PageColumn("best known time, measured", best(True), "us", Source.MEASURED),
            "best_predicted_us": PageColumn(
                "best known time, predicted", best(False), "us", Source.PREDICTED
            ),
            "vendor_us": PageColumn("time of the fastest other implementation", vendor, "us", Source.VENDOR),
            "ratio": PageColumn("times as fast as that", ratios),
            "loss": PageColumn("loss, measured", loss(True), "%", Source.MEASURED),
            "loss_predicted": PageColumn("loss, from predictions", loss(False), "%", Source.PREDICTED),
            "config": PageColumn("config", [str(table.kernels[piece.kernel]) for piece in evidence]),
        },
    )


def _size_figures(table: DispatchTable, vendor_us: Mapping[int, float]) -> list[PageFigure]:
    size = Axis(table.vary, is_log=True)
    columns = (
        *("size", "kernel", "chosen_us", "chosen_predicted_us", "best_us", "best_predicted_us"),
        *("vendor_us", "ratio", "loss", "loss_predicted", "config"),
    )
    losses = (
        Points("loss, measured", Source.MEASURED, "size", "loss"),
        Points("loss, from predictions", Source.PREDICTED, "size", "loss_predicted"),
    )
    times = (
        Points("its kernel, measured", Source.MEASURED, "size", "chosen_us"),
        Points("its kernel, predicted", Source.PREDICTED, "size", "chosen_predicted_us"),
        Points("other implementation, measured", Source.VENDOR, "size", "vendor_us"),
    )
    beside = (
        "Squares are the fastest other implementation that the database has of these workloads."
        if vendor_us
        else "The database has no time of another implementation of these workloads."
    )
    return [
        PageFigure(
            "losses",
            "Loss over the range",
            "The additional time of the kernel that serves a size, as a share of the best known time there.",
            SIZES,
            {"": Plane(size, Axis("loss", "%"), losses)},
            columns,
        ),
        PageFigure(
            "times",
            "Times over the range",
            f"The time of the kernel that serves each sampled size. {beside}",
            SIZES,
            {"": Plane(size, Axis("time", "us", is_log=True), times)},
            columns,
        ),
    ]


def _conditions(table: DispatchTable) -> Facts:
    rows = [
        ("operator", f"{table.operator} {table.dtype}"),
        *((name, str(value)) for name, value in table.attrs.items()),
        ("template", f"{table.template} {table.template_version}"),
        ("target", f"{table.target}, {table.arch}, figures {table.target_fingerprint}"),
        ("device", table.device or "none: all times are predicted"),
        ("protocol", table.protocol or "none"),
        ("model", table.model),
        *table.software.items(),
    ]
    return Facts("Conditions", rows)


def _marks() -> Texts:
    line = (
        "Filled blue circles are measured times of kernels, hollow orange diamonds are predicted, green "
        "squares are measured times of other implementations."
    )
    return Texts("Marks and colours", (line,))
