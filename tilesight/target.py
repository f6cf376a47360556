"""Targets: the hardware as a hierarchy of levels, every figure with its provenance, read from a TOML file.

Levels, inside out: `thread`, `warp` (AMD: wave), `core` (SM, CU, CPU core), `cluster` (GPC, XCD), `device`, `node`.
Each holds figures of its own, compute `unit`s, `memory`s and a `network`. In code a figure is addressed by its
dotted path, e.g. `target["core.memory.shared.bytes"]`; `FIGURES` lists all of them with unit and meaning.

A target is made from its file alone, never from a live device: the same file gives the same predictions everywhere.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import TargetFileError, UnknownNameError, nearest_names

KINDS = ("cuda", "hip", "cpu")
# what TileLang's passes and this package's reading of their output were tried with, or are close kin of
ARCHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"cuda": ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a"), "hip": ("gfx90a", "gfx940", "gfx941", "gfx942"), "cpu": ("native",)}
)
LEVELS = ("thread", "warp", "core", "cluster", "device", "node")
PROVENANCES = ("spec", "measured", "derived", "public")
_GPU = ("cuda", "hip")


@dataclass(frozen=True, slots=True)
class FigureRule:
    """What a figure is: unit, meaning, and for which kinds of target it must be given."""

    unit: str
    meaning: str
    required: tuple[str, ...] = _GPU
    may_be_zero: bool = False


FIGURES: Mapping[str, FigureRule] = MappingProxyType(
    {
        "thread.max_registers": FigureRule("32-bit registers", "most registers that one thread may hold"),
        "warp.threads": FigureRule("threads", "threads that execute one instruction together"),
        "core.count": FigureRule("cores", "SMs, CUs or CPU cores on the device", KINDS),
        "core.clock_mhz": FigureRule("MHz", "clock under vector and memory load", KINDS),
        "core.clock_matrix_mhz": FigureRule("MHz", "clock that a sustained matrix load leaves (power limit)"),
        "core.clock_mixed_mhz": FigureRule("MHz", "clock as soon as matrix instructions run beside other work", ()),
        "core.clock_memory_mhz": FigureRule("MHz", "clock while device memory alone is busy", ()),
        "core.max_threads": FigureRule("threads", "resident threads per core"),
        "core.max_blocks": FigureRule("blocks", "resident blocks per core"),
        "core.max_block_threads": FigureRule("threads", "threads in one block"),
        "core.issue_per_cycle": FigureRule("warp instructions/cycle", "instructions issued by all schedulers of a core", KINDS),
        "core.unit.matrix.fp16_flops_per_cycle": FigureRule("FLOP/cycle/core", "dense fp16 and bf16 matrix rate, fp32 accumulate"),
        "core.unit.matrix.fp32_flops_per_cycle": FigureRule("FLOP/cycle/core", "dense tf32 (AMD: xf32) matrix rate", may_be_zero=True),
        "core.unit.matrix.fp8_flops_per_cycle": FigureRule("FLOP/cycle/core", "dense fp8 matrix rate", may_be_zero=True),
        "core.unit.matrix.mma_sync_share": FigureRule("share", "of the matrix rate that warp-level instructions reach", ()),
        "core.unit.matrix.warp_issue_cycles": FigureRule("cycles", "dependent matrix instruction to the next", ("cuda", "hip")),
        "core.unit.vector.fp32_lanes": FigureRule("lanes/cycle/core", "fp32 multiply-adds started per cycle", KINDS),
        "core.unit.vector.int32_lanes": FigureRule("lanes/cycle/core", "32-bit integer operations per cycle"),
        "core.unit.vector.convert_lanes": FigureRule("lanes/cycle/core", "type conversions per cycle"),
        "core.unit.vector.int_convert_lanes": FigureRule("lanes/cycle/core", "conversions between integers and floats per cycle", ()),
        "core.unit.special.lanes": FigureRule("lanes/cycle/core", "exp2, rcp, rsqrt, ... per cycle", KINDS),
        "core.memory.registers.bytes": FigureRule("bytes", "register file"),
        "core.memory.shared.bytes": FigureRule("bytes", "shared memory (LDS) of a core"),
        "core.memory.shared.block_bytes": FigureRule("bytes", "most shared memory of one block"),
        "core.memory.shared.reserved_bytes": FigureRule("bytes", "taken from each resident block by the system", may_be_zero=True),
        "core.memory.shared.bytes_per_cycle": FigureRule("bytes/cycle/core", "32 banks of 4 bytes: 128"),
        "core.memory.shared.latency_cycles": FigureRule("cycles", "load to use"),
        "core.memory.l1.bytes": FigureRule("bytes", "first-level data cache", ("cpu",)),
        "core.memory.l1.bytes_per_cycle": FigureRule("bytes/cycle/core", "loads from the first-level cache", ("cpu",)),
        "core.memory.l2.bytes": FigureRule("bytes", "second-level cache private to a core", ("cpu",)),
        "core.memory.l2.bytes_per_cycle": FigureRule("bytes/cycle/core", "loads from the private second level", ("cpu",)),
        "core.sync_cycles": FigureRule("cycles", "one barrier among the threads of a block"),
        "core.barrier_wait_cycles": FigureRule("cycles", "arriving at a barrier in shared memory and waiting for it", ()),
        "core.shuffle_cycles": FigureRule("cycles", "lane exchange to use", ()),
        "core.bulk_copy_cycles": FigureRule("cycles", "bulk copy of a small tile that L2 has: issue to wake-up", ()),
        "core.l2_bytes_per_cycle": FigureRule("bytes/cycle/core", "what one core alone reads from L2", ()),
        "cluster.count": FigureRule("clusters", "dies or partitions with an L2 of their own (1: one L2 for all)"),
        "cluster.cores": FigureRule("cores", "of one die (XCD), or that a cluster of blocks may spread over (GPC), at most", ()),
        "cluster.max_blocks": FigureRule("blocks", "that may run together on one cluster and read each other's shared memory", ()),
        "cluster.memory.l2.bytes": FigureRule("bytes", "L2 of one cluster", ()),
        "cluster.network.latency_cycles": FigureRule("cycles", "load from another core's shared memory to use", ()),
        "device.memory.l2.bytes": FigureRule("bytes", "L2, all clusters together"),
        "device.memory.l2.gb_per_s": FigureRule("GB/s", "L2 to cores, all together"),
        "device.memory.l2.shared_gb_per_s": FigureRule("GB/s", "the same where all cores read the same lines together", ()),
        "device.memory.l2.latency_ns": FigureRule("ns", "load to use on an L2 hit"),
        "device.memory.llc.bytes": FigureRule("bytes", "cache behind L2 (Infinity Cache, CPU L3)", ("cpu",)),
        "device.memory.llc.gb_per_s": FigureRule("GB/s", "bandwidth of that cache", ("cpu",)),
        "device.memory.dram.bytes": FigureRule("bytes", "device memory", KINDS),
        "device.memory.dram.gb_per_s": FigureRule("GB/s", "sustained by a copy, read and write counted", KINDS),
        "device.memory.dram.read_gb_per_s": FigureRule("GB/s", "sustained by reading alone", ()),
        "device.memory.dram.spec_gb_per_s": FigureRule("GB/s", "data sheet", ()),
        "device.memory.dram.latency_ns": FigureRule("ns", "load to use on an L2 miss"),
        "device.launch_us": FigureRule("us", "an empty kernel, launched and seen by the timing protocol", KINDS),
        "device.graph_launch_us": FigureRule("us", "a further empty kernel in a graph", ()),
        "device.block_start_us": FigureRule("us", "start of one block: scheduling, descriptors, barrier set-up"),
        "device.block_turnover_us": FigureRule("us", "end of a block to the next one on its core, nothing in them", ()),
        "device.spec_matrix_tflops": FigureRule("TFLOP/s", "data sheet, dense fp16", ()),
        "device.sustained_matrix_tflops": FigureRule("TFLOP/s", "dense bf16 of the vendor's library, held for seconds", ()),
        "device.network.gb_per_s": FigureRule("GB/s", "between clusters and the memory behind them, all together, each way", ()),
        "node.devices": FigureRule("devices", "in one node of the usual kind", ()),
        "node.network.link_gb_per_s": FigureRule("GB/s", "to a peer device, each way", ()),
        "node.network.host_gb_per_s": FigureRule("GB/s", "to the host's memory, each way", ()),
    }
)


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    provenance: str  # spec | measured | derived | public
    source: str = ""


@dataclass(frozen=True)
class Target:
    """A kind of chip. `device_names` are the names under which its driver reports it: only a device of one of
    these names may be measured for this target."""

    name: str
    title: str
    kind: str  # cuda | hip | cpu
    arch: str  # sm_90a | sm_80 | gfx942 | native
    device_names: tuple[str, ...]
    figures: Mapping[str, Figure]
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")
    _fingerprint: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))
        text = json.dumps([self.name, self.kind, self.arch, {p: f.value for p, f in sorted(self.figures.items())}])
        object.__setattr__(self, "_fingerprint", hashlib.sha256(text.encode()).hexdigest()[:12])

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def __reduce__(self) -> tuple[object, ...]:
        return Target, (self.name, self.title, self.kind, self.arch, self.device_names, dict(self.figures), self.dtypes)

    def __getitem__(self, path: str) -> float:
        """The value of the figure at `path`; `KeyError` where this target does not give it."""
        return self.figures[path].value

    def get(self, path: str, default: float = 0.0) -> float:
        figure = self.figures.get(path)
        return default if figure is None else figure.value

    def int(self, path: str) -> int:
        return int(self.figures[path].value)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that a prediction depends on: 12 hex digits."""
        return self._fingerprint

    @property
    def is_gpu(self) -> bool:
        return self.kind in _GPU

    @property
    def core_word(self) -> str:
        return {"cuda": "SM", "hip": "CU", "cpu": "core"}[self.kind]

    def tvm_target(self) -> dict[str, str]:
        """What `tvm.target.Target` takes for this chip (target strings with options are refused by TileLang)."""
        return {
            "cuda": {"kind": "cuda", "arch": self.arch},
            "hip": {"kind": "hip", "mcpu": self.arch},
            "cpu": {"kind": "c"},
        }[self.kind]

    def matrix_tflops(self, dtype: str) -> float:
        """Dense matrix rate at the clock which a sustained matrix load leaves, TFLOP/s; the vector rate on a CPU."""
        if self.kind == "cpu":
            # two operations a multiply-add; one core, since a CPU kernel of ours is one thread
            return 2 * self["core.unit.vector.fp32_lanes"] * self["core.clock_mhz"] / 1e6
        path = {"float32": "fp32", "float16": "fp16", "bfloat16": "fp16"}[dtype]
        per_cycle = self[f"core.unit.matrix.{path}_flops_per_cycle"]
        return per_cycle * self["core.count"] * self["core.clock_matrix_mhz"] / 1e6

    @property
    def dram_gb_per_s(self) -> float:
        return self["device.memory.dram.gb_per_s"]


def target_names() -> list[str]:
    """Names of the targets that ship with TileSight."""
    return sorted(entry.name.removesuffix(".toml") for entry in files("tilesight.targets").iterdir() if entry.name.endswith(".toml"))


def load_target(name_or_path: str) -> Target:
    """A shipped target by name (`h100`), or a user's own by the path of its TOML file (`./mychip.toml`).

    Raises `UnknownNameError`, or `TargetFileError` that names the file and the field.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        path = Path(name_or_path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TargetFileError(f"target file '{path}' cannot be read: {error}") from error
        own = parse_target(text, str(path))
        if own.name in target_names() and own.fingerprint != load_target(own.name).fingerprint:
            raise TargetFileError(
                f"target file '{path}': name '{own.name}' is that of a shipped target with other figures; "
                "give yours a name of its own, so that their results are not mixed up"
            )
        return own
    if name_or_path.lower() not in target_names():
        raise UnknownNameError("target", name_or_path, target_names(), "A chip of your own goes by its file: --target ./mychip.toml")
    text = (files("tilesight.targets") / f"{name_or_path.lower()}.toml").read_text(encoding="utf-8")
    return parse_target(text, f"{name_or_path.lower()}.toml")


def parse_target(text: str, origin: str) -> Target:
    """Read a target description. `origin` names it in messages."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TargetFileError(f"target file '{origin}' is not TOML: {error}") from error

    def text_field(name: str) -> str:
        value = raw.get(name)
        if not isinstance(value, str) or not value:
            raise TargetFileError(f"target file '{origin}': field '{name}' must be a non-empty text, found {value!r}")
        return value

    def names_field(name: str, default: list[str] | None = None) -> tuple[str, ...]:
        value = raw.get(name, default)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise TargetFileError(f"target file '{origin}': field '{name}' must be a list of texts, found {value!r}")
        return tuple(value)

    kind = text_field("kind")
    if kind not in KINDS:
        raise TargetFileError(f"target file '{origin}': kind '{kind}' must be one of {', '.join(KINDS)}")
    arch = text_field("arch")
    if arch not in ARCHS[kind]:
        raise TargetFileError(f"target file '{origin}': arch '{arch}' is not known for kind {kind}; use one of {', '.join(ARCHS[kind])}")
    top = ("name", "title", "kind", "arch", "device_names", "dtypes")
    for key in raw:
        if key not in top and key not in LEVELS:
            near = nearest_names(key, (*top, *LEVELS))
            raise TargetFileError(f"target file '{origin}': unknown field '{key}'" + (f"; did you mean {near[0]}?" if near else ""))
    figures = {path: _figure(path, entry, origin) for level in LEVELS for path, entry in _leaves(level, raw.get(level, {}), origin)}
    missing = [path for path, rule in FIGURES.items() if kind in rule.required and path not in figures]
    if missing:
        path, rule = missing[0], FIGURES[missing[0]]
        more = f" ({len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        raise TargetFileError(f"target file '{origin}': figure '{path}' is missing: {rule.meaning}, in {rule.unit}{more}")
    return Target(
        name=text_field("name"),
        title=text_field("title"),
        kind=kind,
        arch=arch,
        device_names=names_field("device_names", []),
        figures=figures,
        dtypes=names_field("dtypes", ["float16", "bfloat16", "float32"]),
    )


def _leaves(prefix: str, table: Any, origin: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(table, dict):
        raise TargetFileError(
            f"target file '{origin}': '{prefix}' must be a table or a figure "
            f'like {{ value = 132, provenance = "spec", source = "..." }}, found {table!r}'
        )
    if "value" in table:
        yield prefix, table
        return
    for key, entry in table.items():
        yield from _leaves(f"{prefix}.{key}", entry, origin)


def _figure(path: str, entry: Mapping[str, Any], origin: str) -> Figure:
    where = f"target file '{origin}': figure '{path}'"
    rule = FIGURES.get(path)
    if rule is None:
        near = nearest_names(path, FIGURES)
        raise TargetFileError(f"{where} is unknown" + (f"; did you mean '{near[0]}'?" if near else ""))
    extra = set(entry) - {"value", "provenance", "source"}
    if extra:
        raise TargetFileError(f"{where} has an unknown part '{sorted(extra)[0]}'; a figure has value, provenance and source")
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TargetFileError(f"{where}: value {value!r} must be a number, in {rule.unit}")
    if value < 0 or (value == 0 and not rule.may_be_zero):
        raise TargetFileError(f"{where}: value {value} must be greater than zero, in {rule.unit}")
    provenance = entry.get("provenance")
    if provenance not in PROVENANCES:
        raise TargetFileError(f"{where}: provenance {provenance!r} must be one of {', '.join(PROVENANCES)}")
    source = entry.get("source", "")
    if not isinstance(source, str):
        raise TargetFileError(f"{where}: source must be a text, found {source!r}")
    return Figure(float(value), provenance, source)
