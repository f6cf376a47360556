"""`tilesight targets`: list the hardware descriptions, with every figure and its provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import click

from ..errors import InputError
from ..target.fields import Figure
from ..target.network import COLLECTIVES, TOPOLOGIES, Level
from ..target.spec import Target, load_target, node_names, of_world, target_names
from . import options, output, suggestions

_SIZES_MIB = (1, 4, 16, 64, 256)


@click.command()
@click.argument("target", required=False, shell_complete=suggestions.targets)
@options.with_options(options.world, options.as_json, options.debug)
def targets(target: str | None, world: int | None, as_json: bool) -> None:
    """List targets, or show TARGET (a name or a file) with every figure, its provenance and its source.

    Of several devices, the levels around the device are shown, and predicted times of the vendor's
    collectives.
    """
    from ..costmodel.network.collectives import ranks_of_levels

    if target is not None:
        given = load_target(target)
        chosen = given if world is None else of_world(given, world)
        count = math.prod(ranks_of_levels(chosen, world)) if chosen.levels else 1
        _print_one(chosen, count, as_json)
        return
    if world is not None:
        raise InputError("--world is the number of devices of one target: name it, e.g. h100")
    found = [load_target(name) for name in target_names()]
    nodes = [load_target(name) for name in node_names()]
    if as_json:
        output.print_json("targets", targets=[_head(t) for t in (*found, *nodes)])
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
    output.print_text()
    _print_nodes(nodes)


def _print_nodes(nodes: Sequence[Target]) -> None:
    rows = []
    for node in nodes:
        (level,) = node.levels
        measured = sum(figure.provenance == "measured" for figure in level.figures.values())
        rows.append(
            [
                node.name,
                node.title,
                level.topology,
                level.link,
                output.number(level["network.link_gb_per_s"]),
                f"{measured} of {len(level.figures)} figures",
            ]
        )
    columns = ["several devices", "", "topology", "link", "GB/s", "measured"]
    output.print_table(columns, rows, right=["GB/s"])
    output.print_text()
    output.print_text(
        "GB/s: one device to its peers, each way, by the data sheet. Kernels that do not communicate run on "
        "one device."
    )


def _print_one(target: Target, world: int, as_json: bool) -> None:
    if as_json:
        figures = [
            {
                "path": p,
                "value": f.value,
                "unit": target.rule(p).unit,
                "provenance": f.provenance,
                "source": f.source,
                "meaning": target.rule(p).meaning,
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
    shown: Mapping[str, Figure] = target.figures
    if target.levels:
        chip = target.device_target
        output.print_text(f"{target.world} devices of target {chip.name}, which has the figures of each")
        output.print_table(
            ["level", "parts", "topology", "link", "multicast"],
            [_level_row(level) for level in target.levels],
            right=["parts"],
        )
        output.print_text()
        _print_collectives(target, world)
        shown = {p: f for level in target.levels for p, f in level.paths().items()}
    sources = {
        source: place
        for place, source in enumerate(dict.fromkeys(f.source for f in shown.values() if f.source), 1)
    }
    rows = [
        [p, _exact(f.value), target.rule(p).unit, f.provenance, sources.get(f.source)]
        for p, f in shown.items()
    ]
    output.print_table(
        ["figure", "value", "unit", "provenance", "source"], rows, right=["value", "source"], folded=["unit"]
    )
    output.print_text()
    output.print_table(
        ["source", ""], [[place, source] for source, place in sources.items()], right=["source"], folded=[""]
    )


def _level_row(level: Level) -> list[object]:
    return [
        level.name,
        level.devices,
        f"{level.topology}: {TOPOLOGIES[level.topology]}",
        level.link,
        "yes" if level.multicast else "no",
    ]


def _print_collectives(target: Target, world: int) -> None:
    """Predicted times of the vendor's collectives by size: those for which all levels have figures."""
    from ..costmodel.network.collectives import predict_collective

    rows = []
    for name in COLLECTIVES:
        try:
            found = [predict_collective(target, name, size << 20, world) for size in _SIZES_MIB]
        except InputError:  # a level has no figures of the library for it
            continue
        rows.append([name, *(output.number(one.latency_us) for one in found), found[0].provenance])
    if not rows:
        return
    sizes = [f"{size} MiB" for size in _SIZES_MIB]
    output.print_text(
        f"predicted time of the vendor's collectives on {world} devices, in us, by the size of "
        "the whole tensor:"
    )
    output.print_table(["collective", *sizes, "least certain figure"], rows, right=sizes)
    output.print_text()


def _head(target: Target) -> dict[str, object]:
    several: dict[str, object] = {}
    if target.levels:
        several = {
            "chip": target.device_target.name,
            "world": target.world,
            "levels": [
                {
                    "name": level.name,
                    "devices": level.devices,
                    "topology": level.topology,
                    "link": level.link,
                    "multicast": level.multicast,
                }
                for level in target.levels
            ],
        }
    return {
        "name": target.name,
        "title": target.title,
        "kind": target.kind,
        "arch": target.arch,
        "device_names": target.device_names,
        "dtypes": target.dtypes,
        **several,
    }


def _exact(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _fastest_dtype(target: Target) -> str:
    floats = [dtype for dtype in target.dtypes if "float" in dtype]
    return max(floats or target.dtypes, key=target.matrix_tflops)
