"""`tilesight targets`: list the hardware descriptions, with every figure and its provenance."""

from __future__ import annotations

import click

from ..target.spec import FIGURES, Target, load_target, target_names
from . import options, output, suggestions


@click.command()
@click.argument("target", required=False, shell_complete=suggestions.targets)
@options.with_options(options.as_json, options.debug)
def targets(target: str | None, as_json: bool) -> None:
    """List targets, or show TARGET (a name or a file) with every figure, its provenance and its source."""
    if target is not None:
        _print_one(load_target(target), as_json)
        return
    found = [load_target(name) for name in target_names()]
    if as_json:
        output.print_json("targets", targets=[_head(t) for t in found])
        return
    rows = [
        [
            t.name,
            t.title,
            t.arch,
            f"{t.int('core.count')} {t.core_word}",
            output.number(t.matrix_tflops(_fastest_dtype(t))),
            output.number(t.dram_gb_per_s),
            ", ".join(t.dtypes),
        ]
        for t in found
    ]
    columns = ["target", "chip", "arch", "cores", "TFLOP/s", "GB/s", "dtypes"]
    output.print_table(columns, rows, right=["TFLOP/s", "GB/s"], folded=["dtypes"])
    output.print_text()
    output.print_text(
        "TFLOP/s: matrix rate at the clock under that load. GB/s: sustained bandwidth of device memory. "
        "`tilesight targets NAME` shows all figures."
    )


def _print_one(target: Target, as_json: bool) -> None:
    if as_json:
        figures = [
            {
                "path": p,
                "value": f.value,
                "unit": FIGURES[p].unit,
                "provenance": f.provenance,
                "source": f.source,
                "meaning": FIGURES[p].meaning,
            }
            for p, f in target.figures.items()
        ]
        output.print_json(
            "target", target={**_head(target), "fingerprint": target.fingerprint, "figures": figures}
        )
        return
    output.print_text(f"{target.name}: {target.title} ({target.arch})", bold=True)
    devices = ", ".join(target.device_names)
    output.print_text(
        "measured on: "
        + (devices or ("this machine" if target.kind == "cpu" else "no device: device_names is empty"))
    )
    output.print_text()
    sources = {
        source: place
        for place, source in enumerate(
            dict.fromkeys(f.source for f in target.figures.values() if f.source), 1
        )
    }
    rows = [
        [p, _exact(f.value), FIGURES[p].unit, f.provenance, sources.get(f.source)]
        for p, f in target.figures.items()
    ]
    output.print_table(
        ["figure", "value", "unit", "provenance", "source"], rows, right=["value", "source"], folded=["unit"]
    )
    output.print_text()
    output.print_table(
        ["source", ""], [[place, source] for source, place in sources.items()], right=["source"], folded=[""]
    )


def _head(target: Target) -> dict[str, object]:
    return {
        "name": target.name,
        "title": target.title,
        "kind": target.kind,
        "arch": target.arch,
        "device_names": target.device_names,
        "dtypes": target.dtypes,
    }


def _exact(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _fastest_dtype(target: Target) -> str:
    return max(target.dtypes, key=target.matrix_tflops)
