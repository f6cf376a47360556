"""Levels of several devices: the devices of a node, the nodes of a pod, and the network of each level.

A level is read from one table of a target file: the number of its parts, how they are connected, and figures
of its network. The innermost level connects devices; each further level connects units of the level within.
All levels have the same figures, so a file may describe levels of any name: a pod of nodes, a wafer of tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from ..errors import InputError, TargetFileError, nearest_names
from .fields import KINDS, LEVELS, Figure, FigureRule
from .reading import read_figures, read_text_field, require

# how a kernel moves data to or from a peer; the last one is no part of a kernel and needs no core
MECHANISMS: Mapping[str, str] = MappingProxyType(
    {
        "store": "ordinary stores to a peer's memory",
        "load": "ordinary loads from a peer's memory",
        "tma_store": "bulk copies from shared memory to a peer's memory",
        "tma_load": "bulk copies from a peer's memory to shared memory",
        "tma_add": "bulk additions from shared memory to a peer's memory",
        "copy_engine": "copies by the copy engines",
    }
)
PUT = "put"  # of levels whose parts are hosts: their memory has no addresses for kernels of other hosts
ALL_MECHANISMS: Mapping[str, str] = MappingProxyType(
    {**MECHANISMS, PUT: "writes by a network card, started by a kernel (NVSHMEM, NCCL's device API)"}
)
WITHOUT_CORES = ("copy_engine", PUT)


def size_name(size_bytes: int) -> str:
    """A power of two in bytes as people write it, without a space: 64KiB."""
    power = min(3, (size_bytes.bit_length() - 1) // 10)
    return f"{size_bytes >> 10 * power}{('B', 'KiB', 'MiB', 'GiB')[power]}"


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
TOPOLOGIES: Mapping[str, str] = MappingProxyType(
    {
        "switch": "each part reaches every other one with its whole bandwidth",
        "ring": "each part is connected with the next and the previous one",
        "mesh": "a square; each part is connected with its neighbours above, below and beside it",
        "rails": "a switch for each place in a part; other places are reached over a further switch",
    }
)
# sizes of the whole tensor at which a file may give the time of a library's collective, by name
CURVE_SIZES: Mapping[str, int] = MappingProxyType(
    {size_name(1 << power): 1 << power for power in range(10, 33)}
)
# of the library between units: with these its collectives are predicted for any number of units
SPANNING = ("network.library.gb_per_s", "network.library.step_us", "network.library.fill_us")
SPANNING_ALL = (*SPANNING, "network.library.fill_bytes")
_MOST_PARTS, _MOST_DEVICES = 1 << 16, 1 << 20


def whole_world(world: object) -> int:
    """The number of devices that a caller states. Raises `InputError` for what is none of at least 2."""
    if isinstance(world, bool) or not isinstance(world, int) or world < 2:
        raise InputError(f"world={world!r} must be a whole number of devices, at least 2")
    return world


def _gb_per_s(meaning: str, required: tuple[str, ...] = ()) -> FigureRule:
    return FigureRule("GB/s", meaning, required, least=0.1, most=1e6)


def _us(meaning: str, required: tuple[str, ...] = ()) -> FigureRule:
    return FigureRule("us", meaning, required, least=0.01, most=10_000)


def _mechanism_figures() -> dict[str, FigureRule]:
    found = {}
    for name, words in ALL_MECHANISMS.items():
        if name not in WITHOUT_CORES:
            found[f"network.{name}.core_gb_per_s"] = _gb_per_s(f"{words}, one core")
        found[f"network.{name}.gb_per_s"] = _gb_per_s(
            f"{words}, all cores of a device together, with all peers at once, each way"
        )
        found[f"network.{name}.peer_gb_per_s"] = _gb_per_s(
            f"{words}, all cores of a device together, with one peer; as with all where it is not given"
        )
        found[f"network.{name}.half_bytes"] = FigureRule(
            "bytes",
            f"{words}: transfer that reaches half of the bandwidth",
            (),
            least=1,
            most=1 << 40,
            whole=True,
        )
    return found


def _library_figures() -> dict[str, FigureRule]:
    found = {}
    for name in COLLECTIVES:
        words = f"{name} of the vendor's library"
        found[f"network.library.{name}.latency_us"] = _us(f"{words}, of next to no bytes, on all devices")
        found[f"network.library.{name}.gb_per_s"] = _gb_per_s(
            f"{words}: further bytes that a device sends, over the further time"
        )
        for size in CURVE_SIZES:
            found[f"network.library.{name}.us.{size}"] = _us(f"{words}, whole tensor of {size}, all devices")
    rate, step, fill, half = SPANNING_ALL
    words = "collectives of the vendor's library between units"
    found[rate] = _gb_per_s(f"{words}: bytes that a device sends to other units, over their time")
    found[step] = _us(f"{words}: a message of next to no bytes from unit to unit")
    found[fill] = _us(f"{words}: what a step takes longer for many bytes, which follow each other in pieces")
    found[half] = FigureRule(
        "bytes", f"{words}: whole tensor for which a step takes half of that longer", (), least=1,
        most=1 << 40, whole=True,
    )  # fmt: skip
    return found


# by the path below the level
NETWORK_FIGURES: Mapping[str, FigureRule] = MappingProxyType(
    {
        "devices": FigureRule(
            "devices", "parts of the level: devices, or units of the level within", KINDS, least=2,
            most=_MOST_PARTS, whole=True,
        ),
        "network.link_gb_per_s": _gb_per_s("one device to peers of this level, each way", KINDS),
        "network.host_gb_per_s": _gb_per_s("one device to the host's memory, each way"),
        "network.flag_us": _us("from the store of a flag until a peer sees it", KINDS),
        "network.barrier_us": _us("barrier of all parts; as long as a flag where it is not given"),
        "network.product_share": FigureRule(
            "share", "rate of a product while other cores push, over that while these idle", (), most=1.1
        ),
        **_mechanism_figures(),
        **_library_figures(),
    }
)  # fmt: skip


@dataclass(frozen=True)
class Level:
    """A level of several devices.

    Attributes:
        name: its table in the file: node, pod, ...
        topology: how its parts are connected, a key of `TOPOLOGIES`.
        link: name of the connection, for people.
        multicast: whether kernels may use multicast and sums in the network.
        figures: by the path below the level (`network.flag_us`), keys of `NETWORK_FIGURES`.
    """

    name: str
    topology: str
    link: str
    multicast: bool
    figures: Mapping[str, Figure]

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))

    def __reduce__(self) -> tuple[object, ...]:
        return Level, (self.name, self.topology, self.link, self.multicast, dict(self.figures))

    def __hash__(self) -> int:
        return hash((self.name, self.topology, self.multicast))

    def __getitem__(self, path: str) -> float:
        """The value of the figure at `path`. Raises `KeyError` if the level lacks it."""
        return self.figures[path].value

    @property
    def devices(self) -> int:
        """The number of its parts."""
        return int(self["devices"])

    def curve(self, collective: str) -> dict[int, str]:
        """The sizes at which the library's collective was timed, ascending, with the paths of their figures.

        Empty if the level gives a line (`latency_us`, `gb_per_s`) or nothing.
        """
        paths = {size: f"network.library.{collective}.us.{name}" for name, size in CURVE_SIZES.items()}
        return {size: path for size, path in paths.items() if path in self.figures}

    @property
    def spans_units(self) -> bool:
        """Whether it describes the library between its units, whichever collective and however many."""
        return SPANNING[0] in self.figures

    @property
    def has_addresses(self) -> bool:
        """Whether kernels reach the memory of its parts by addresses, not only by network cards."""
        names = (name for name in MECHANISMS if name not in WITHOUT_CORES)
        return any(f"network.{name}.gb_per_s" in self.figures for name in names)

    def has_library(self, collective: str) -> bool:
        """Whether it gives times of this collective on all of its parts, as a curve or a line."""
        return f"network.library.{collective}.latency_us" in self.figures or bool(self.curve(collective))

    def with_figures(self, figures: Mapping[str, Figure]) -> Level:
        """The level with those of `figures`, by their paths in the target, that are its own."""
        own = {
            path.removeprefix(f"{self.name}."): figure
            for path, figure in figures.items()
            if path.startswith(f"{self.name}.")
        }
        return replace(self, figures=own)

    def paths(self) -> dict[str, Figure]:
        """The figures by their paths in the target."""
        return {f"{self.name}.{path}": figure for path, figure in self.figures.items()}


@cache
def level_figures(level: str) -> Mapping[str, FigureRule]:
    """The figures of a level of that name by their paths in the target."""
    return MappingProxyType({f"{level}.{path}": rule for path, rule in NETWORK_FIGURES.items()})


def read_levels(raw: Mapping[str, Any], top: tuple[str, ...], kind: str, origin: str) -> tuple[Level, ...]:
    """The levels of a file that describes several devices, from the inside out.

    Args:
        raw: content of the file.
        top: its fields that are no levels.
        kind: kind of its chip.
        origin: name of the file in messages.
    """
    subject = f"target file '{origin}'"
    tables = [name for name in raw if name not in top]
    for name in tables:
        if name in LEVELS and name != "node":
            raise TargetFileError(
                f"{subject}: '{name}' is a level of the chip, whose figures are in the chip's own file"
            )
        if not isinstance(raw[name], dict):
            near = nearest_names(name, top)
            raise TargetFileError(
                f"{subject}: unknown field '{name}'" + (f"; did you mean {near[0]}?" if near else "")
            )
    order = raw.get("levels", tables if len(tables) == 1 else None)
    if not isinstance(order, list) or not order or sorted(map(repr, order)) != sorted(map(repr, tables)):
        found = ", ".join(f"[{name}]" for name in tables) or "none"
        raise TargetFileError(
            f"{subject}: field 'levels' must list the tables of the levels from the inside out, like "
            f'["node", "pod"]; the file has {found}'
        )
    levels = tuple(_read_level(name, raw[name], kind, origin) for name in order)
    world = 1
    for level in levels:
        world *= level.devices
    if world > _MOST_DEVICES:
        raise TargetFileError(f"{subject}: {world} devices in all are more than {_MOST_DEVICES}")
    return levels


def _read_level(name: str, table: Mapping[str, Any], kind: str, origin: str) -> Level:
    subject = f"target file '{origin}': level '{name}'"
    figures = {key: entry for key, entry in table.items() if key not in ("topology", "link", "multicast")}
    topology = read_text_field(table, "topology", subject)
    if topology not in TOPOLOGIES:
        raise TargetFileError(f"{subject}: topology '{topology}' must be one of {', '.join(TOPOLOGIES)}")
    multicast = table.get("multicast", False)
    if not isinstance(multicast, bool):
        raise TargetFileError(f"{subject}: field 'multicast' must be true or false, found {multicast!r}")
    _check_names(figures, subject)
    rules = level_figures(name)
    read = read_figures(name, figures, rules, kind, origin)
    require(read, rules, kind, f"target file '{origin}'")
    below = {path.removeprefix(f"{name}."): figure for path, figure in read.items()}
    _check_together(below, subject)
    return Level(name, topology, read_text_field(table, "link", subject), multicast, below)


def _check_names(table: Mapping[str, Any], subject: str) -> None:
    """Raise `TargetFileError` for tables of mechanisms and collectives that there are not."""
    network = table.get("network")
    if not isinstance(network, dict):
        return
    library = network.get("library")
    for key, entry in network.items():
        is_figure = f"network.{key}" in NETWORK_FIGURES
        if isinstance(entry, dict) and "value" not in entry and not is_figure and key not in (
            *ALL_MECHANISMS, "library"
        ):  # fmt: skip
            raise TargetFileError(f"{subject}: unknown mechanism '{key}'; known: {', '.join(ALL_MECHANISMS)}")
    for key in library if isinstance(library, dict) else ():
        if key not in COLLECTIVES and f"network.library.{key}" not in NETWORK_FIGURES:
            raise TargetFileError(f"{subject}: unknown collective '{key}'; known: {', '.join(COLLECTIVES)}")


def _check_together(figures: Mapping[str, Figure], subject: str) -> None:
    """Raise `TargetFileError` for figures of one network that contradict each other or lack their partner."""
    link = figures["network.link_gb_per_s"].value
    spanning = [path for path in SPANNING_ALL if path in figures]
    if spanning and len(spanning) < len(SPANNING_ALL):
        absent = next(path for path in SPANNING_ALL if path not in figures)
        raise TargetFileError(f"{subject}: figure '{absent}' is missing, beside '{spanning[0]}'")
    if spanning and figures[SPANNING[0]].value > 1.05 * link:
        raise TargetFileError(
            f"{subject}: '{SPANNING[0]}' of {figures[SPANNING[0]].value:g} is more than the {link:g} of "
            "'network.link_gb_per_s'"
        )
    for name in ALL_MECHANISMS:
        given = [path for path in figures if path.startswith(f"network.{name}.")]
        total = figures.get(f"network.{name}.gb_per_s")
        if given and total is None:
            raise TargetFileError(
                f"{subject}: figure 'network.{name}.gb_per_s' is missing, beside '{given[0]}'"
            )
        if total is None:
            continue
        core = figures.get(f"network.{name}.core_gb_per_s")
        if core is not None and core.value > total.value:
            raise TargetFileError(
                f"{subject}: 'network.{name}.core_gb_per_s' of {core.value:g} is more than the "
                f"{total.value:g} of 'network.{name}.gb_per_s', which is that of all cores"
            )
        for path in (f"network.{name}.gb_per_s", f"network.{name}.peer_gb_per_s"):
            if path in figures and figures[path].value > 1.05 * link:
                raise TargetFileError(
                    f"{subject}: '{path}' of {figures[path].value:g} is more than the {link:g} of "
                    "'network.link_gb_per_s'"
                )
    for name in COLLECTIVES:
        parts = [f"network.library.{name}.{part}" for part in ("latency_us", "gb_per_s")]
        given = [path for path in parts if path in figures]
        if len(given) == 1:
            absent = next(path for path in parts if path not in figures)
            raise TargetFileError(f"{subject}: figure '{absent}' is missing, beside '{given[0]}'")
        points = [path for path in figures if path.startswith(f"network.library.{name}.us.")]
        if points and given:
            raise TargetFileError(
                f"{subject}: '{points[0]}' is a point of a curve and '{given[0]}' part of a line; "
                "give one of the two"
            )
        if len(points) == 1:
            raise TargetFileError(f"{subject}: a curve has at least two points, beside '{points[0]}'")
