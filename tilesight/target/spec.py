"""Targets: the hardware as a hierarchy of levels, every figure with its provenance, read from a TOML file.

Levels, inside out: `thread`, `warp` (AMD: wave), `core` (SM, CU, CPU core), `cluster` (GPC, XCD), `device`,
`node`. Each holds figures of its own, compute `unit`s, `memory`s and a `network`. In code a figure is
addressed by its dotted path, e.g. `target["core.memory.shared.bytes"]`; `FIGURES` lists all of them with unit
and meaning.

A target of several devices (`h100x4`) is a file of its own. It names its unit (`unit = "h100"`), whose
figures it has, and describes the levels around it: `node`, and any further ones (`network.py`). The unit is a
chip, or several devices, around which further levels are described.

A target is made from its file alone, never from a live device: the same file gives the same predictions
everywhere.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..dtypes import DTYPE_ALIASES, DTYPE_BYTES, INT8_TYPES
from ..errors import InputError, TargetFileError, UnknownNameError, nearest_names
from ..files import read_text
from .checks import check_together
from .fields import FIGURES, GPU, KINDS, LEVELS, RETIRED, Figure, FigureRule
from .network import Level, level_figures, read_levels, whole_world
from .reading import read_figures, read_names, read_text_field, require

__all__ = [
    "FIGURES",
    "RETIRED",
    "Figure",
    "Target",
    "is_plain_name",
    "load_target",
    "node_names",
    "of_world",
    "parse_target",
    "target_names",
]

# architectures on which TileLang's passes and the profile reader were tried, and close relatives
ARCHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cuda": ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a"),
        "hip": ("gfx90a", "gfx940", "gfx941", "gfx942"),
        "cpu": ("native",),
    }
)
MOST_BYTES, MOST_IN_LINE = 1 << 18, 2000  # of a target file; those that ship have far less
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Target:
    """A kind of chip, or several devices of that kind and the networks between them.

    Attributes:
        kind: "cuda", "hip" or "cpu".
        arch: sm_90a, sm_80, gfx942, native, ...
        device_names: names of the chip in its driver. Only a device of one of these names is measured for the
            target.
        figures: by dotted path.
        dtypes: element types that kernels may use; by default all whose matrix rate is known.
        levels: of several devices, from the inside out; none for a chip.
        chip: of several devices, the target of one of them.
        unit: of several devices, what the file names as their unit; the path of a file is absolute.
        own_levels: of several devices, how many levels the file describes; the inner ones are the unit's.
    """

    name: str
    title: str
    kind: str
    arch: str
    device_names: tuple[str, ...]
    figures: Mapping[str, Figure]
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")
    levels: tuple[Level, ...] = ()
    chip: Target | None = None
    unit: str = field(default="", compare=False)
    own_levels: int = field(default=0, compare=False)
    _fingerprint: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))
        parts: list[object] = [
            self.name,
            self.kind,
            self.arch,
            {p: f.value for p, f in sorted(self.figures.items())},
        ]
        if self.levels:
            parts.append([[level.name, level.topology, level.multicast] for level in self.levels])
        text = json.dumps(parts)
        object.__setattr__(self, "_fingerprint", hashlib.sha256(text.encode()).hexdigest()[:12])

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def __reduce__(self) -> tuple[object, ...]:
        return Target, (
            self.name,
            self.title,
            self.kind,
            self.arch,
            self.device_names,
            dict(self.figures),
            self.dtypes,
            self.levels,
            self.chip,
            self.unit,
            self.own_levels,
        )

    @property
    def world(self) -> int:
        """The number of devices."""
        return math.prod(level.devices for level in self.levels)

    @property
    def unreached(self) -> Level | None:
        """The innermost level, around the first one, whose units kernels do not reach: that around hosts."""
        return next((level for level in self.levels[1:] if not level.has_addresses), None)

    def __getitem__(self, path: str) -> float:
        """The value of the figure at `path`. Raises `KeyError` if the target lacks it."""
        return self.figures[path].value

    def get(self, path: str, default: float = 0.0) -> float:
        """The value of the figure at `path`, or `default` if the target lacks it."""
        figure = self.figures.get(path)
        return default if figure is None else figure.value

    def int(self, path: str) -> int:
        """The figure at `path` as an integer."""
        return int(self.figures[path].value)

    @property
    def fingerprint(self) -> str:
        """Hash (12 hex digits) of everything that a prediction depends on."""
        return self._fingerprint

    @property
    def is_gpu(self) -> bool:
        return self.kind in GPU

    @property
    def device_target(self) -> Target:
        """The target of one device: the chip of several devices, or the target itself."""
        return self.chip or self

    def rule(self, path: str) -> FigureRule:
        """Unit and meaning of the figure at `path`."""
        level = path.split(".", 1)[0]
        own = level_figures(level) if any(level == one.name for one in self.levels) else {}
        return own.get(path) or FIGURES[path]

    @property
    def core_word(self) -> str:
        """The vendor's word for a core."""
        return {"cuda": "SM", "hip": "CU", "cpu": "core"}[self.kind]

    def tvm_target(self) -> dict[str, str]:
        """The argument of `tvm.target.Target` for this chip; TileLang refuses target strings with options."""
        return {
            "cuda": {"kind": "cuda", "arch": self.arch},
            "hip": {"kind": "hip", "mcpu": self.arch},
            "cpu": {"kind": "c"},
        }[self.kind]

    def matrix_tflops(self, dtype: str) -> float:
        """Dense matrix rate in TFLOP/s, at the clock of single launches with busy matrix pipes.

        On a CPU the vector rate of one core, since a CPU kernel runs in one thread.
        """
        if self.kind == "cpu":
            # a multiply-add is two operations
            return 2 * self["core.unit.vector.fp32_lanes"] * self["core.clock_mhz"] / 1e6
        path = {1: "int8" if dtype in INT8_TYPES else "fp8", 2: "fp16", 4: "fp32"}[DTYPE_BYTES[dtype]]
        per_cycle = self.matrix_flops_per_cycle(path)
        return per_cycle * self["core.count"] * self["core.clock_matrix_mhz"] / 1e6

    def matrix_flops_per_cycle(self, path: str) -> float:
        """Dense matrix rate of a core for operands of `path`: fp16 (also bfloat16), fp32, fp8 or int8.

        That of int8 is that of fp8 where the target does not tell them apart. 0: it has none.
        """
        rate = "core.unit.matrix.{}_flops_per_cycle"
        if path == "int8" and rate.format(path) not in self.figures:
            path = "fp8"
        return self.get(rate.format(path))

    @property
    def dram_gb_per_s(self) -> float:
        return self["device.memory.dram.gb_per_s"]


def target_names() -> list[str]:
    """Names of the chips that ship with TileSight."""
    return _names_in(files(__package__))


def node_names() -> list[str]:
    """Names of the targets of several devices that ship with TileSight."""
    return _names_in(files(__package__) / "nodes")


def _names_in(folder: Traversable) -> list[str]:
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_target(name_or_path: str) -> Target:
    """A shipped target by name (`h100`, `h100x4`), or a user's own by the path of its TOML file.

    Raises:
        UnknownNameError: no shipped target has that name.
        TargetFileError: the file cannot be read or is wrong; names the file and the field.
    """
    if _is_path(name_or_path):
        path = Path(name_or_path)
        text = read_text(path, f"target file '{path}'", MOST_BYTES, TargetFileError)
        own = parse_target(text, str(path))
        if own.name in _shipped_names() and own.fingerprint != load_target(own.name).fingerprint:
            raise TargetFileError(
                f"target file '{path}': name '{own.name}' is that of a shipped target with other figures; "
                "choose another name, so that results of the two are not mixed"
            )
        return own
    if name_or_path.lower() not in _shipped_names():
        raise UnknownNameError(
            "target",
            name_or_path,
            _shipped_names(),
            "A chip of your own goes by its file: --target ./mychip.toml",
        )
    return _shipped(name_or_path.lower())


def _is_path(name_or_path: str) -> bool:
    return name_or_path.endswith(".toml") or "/" in name_or_path


def _shipped_names() -> tuple[str, ...]:
    return (*target_names(), *node_names())


@cache
def _shipped(name: str) -> Target:
    folder = files(__package__)
    file = f"{name}.toml" if name in target_names() else f"nodes/{name}.toml"
    return parse_target((folder / file).read_text(encoding="utf-8"), f"{name}.toml")


def of_world(target: Target, world: int | None) -> Target:
    """The target of `world` devices: `target` itself if it has so many, else the smallest shipped one with
    this chip that has.

    Args:
        target: a chip, or several devices.
        world: number of devices that take part; None for all devices of `target`.

    Raises:
        InputError: `target` has fewer devices, or no shipped target describes several devices of this chip.
    """
    if world is not None:
        world = whole_world(world)
    if target.levels:
        if world is not None and world > target.world:
            raise InputError(
                f"world {world} is larger than target {target.name}, which has {target.world} devices; "
                "describe a larger one in a file of its own, with a further level around them"
            )
        return target
    nodes = [node for node in map(load_target, node_names()) if node.chip == target]
    fitting = [node for node in nodes if world is not None and node.world >= world]
    if fitting:
        return min(fitting, key=lambda node: node.world)
    names = ", ".join(sorted(node.name for node in nodes))
    if world is None and names:
        raise InputError(f"target {target.name} is one device; state the world, or name one of {names}")
    raise InputError(
        f"no shipped target describes {world or 'several'} devices of {target.name}"
        + (f" (there are {names})" if names else "")
        + "; describe them in a file of their own (--target ./mynode.toml)"
    )


def parse_target(text: str, origin: str) -> Target:
    """Read a target from the text of a TOML file.

    Args:
        text: content of the file.
        origin: its name in messages; the path of a unit's file is relative to it.

    Raises:
        TargetFileError: the text is no TOML, a field is wrong, or figures are missing or contradict each
            other.
    """
    raw = _toml(text, origin)
    return _read_devices(raw, origin, ()) if "unit" in raw else _read_chip(raw, origin)


def _toml(text: str, origin: str) -> dict[str, Any]:
    """The fields of a target file."""
    subject = f"target file '{origin}'"
    longest = max(map(len, text.splitlines()), default=0)
    if longest > MOST_IN_LINE:  # a dotted key of many parts would take minutes
        raise TargetFileError(f"{subject} has a line of {longest} characters; the limit is {MOST_IN_LINE}")
    try:
        return tomllib.loads(text)
    # ValueError: TOMLDecodeError, and numbers of more digits than Python reads; RecursionError: deep nesting
    except (ValueError, RecursionError) as error:
        raise TargetFileError(f"{subject} is not TOML: {error}") from error


def _read_devices(raw: Mapping[str, Any], origin: str, around: tuple[Path, ...]) -> Target:
    """Several devices: the unit that the file names, and the levels that it describes around it.

    Args:
        raw: content of the file.
        origin: its name in messages.
        around: files whose unit this one is.
    """
    subject = f"target file '{origin}'"
    name = _own_name(raw, subject)
    title, given = read_text_field(raw, "title", subject), read_text_field(raw, "unit", subject)
    unit = _load_unit(given, origin, around)
    own = read_levels(raw, ("name", "title", "unit", "levels"), unit.kind, origin)
    twice = {level.name for level in own} & {level.name for level in unit.levels}
    if twice:
        raise TargetFileError(
            f"{subject}: level '{min(twice)}' is one of unit '{given}' already; give the level around it "
            "another name"
        )
    chip = unit.device_target
    figures = {path: figure for path, figure in chip.figures.items() if not path.startswith("node.")}
    levels = (*unit.levels, *own)
    for level in levels:
        figures |= level.paths()
    return Target(
        name=name,
        title=title,
        kind=chip.kind,
        arch=chip.arch,
        device_names=chip.device_names,
        figures=figures,
        dtypes=chip.dtypes,
        levels=levels,
        chip=chip,
        unit=str((Path(origin).parent / given).absolute()) if _is_path(given) else given,
        own_levels=len(own),
    )


def _load_unit(given: str, origin: str, around: tuple[Path, ...]) -> Target:
    """The unit of a file that describes several devices, by its name or by its path relative to the file."""
    subject = f"target file '{origin}': field 'unit'"
    if not _is_path(given):
        try:
            return load_target(given)
        except UnknownNameError as error:
            raise TargetFileError(f"{subject}: {error}") from error
    path = Path(origin).parent / given
    around = (*around, Path(origin).resolve())
    if path.resolve() in around:
        raise TargetFileError(f"{subject}: '{path}' contains itself")
    text = read_text(path, f"target file '{path}'", MOST_BYTES, TargetFileError)
    raw = _toml(text, str(path))
    return _read_devices(raw, str(path), around) if "unit" in raw else _read_chip(raw, str(path))


def _read_chip(raw: Mapping[str, Any], origin: str) -> Target:
    subject = f"target file '{origin}'"
    kind = read_text_field(raw, "kind", subject)
    if kind not in KINDS:
        raise TargetFileError(f"{subject}: kind '{kind}' must be one of {', '.join(KINDS)}")
    arch = read_text_field(raw, "arch", subject)
    if arch not in ARCHS[kind]:
        known = ", ".join(ARCHS[kind])
        raise TargetFileError(f"{subject}: arch '{arch}' is not known for kind {kind}; use one of {known}")
    top = ("name", "title", "kind", "arch", "device_names", "dtypes")
    for key in raw:
        if key not in top and key not in LEVELS:
            near = nearest_names(key, (*top, *LEVELS))
            raise TargetFileError(
                f"{subject}: unknown field '{key}'" + (f"; did you mean {near[0]}?" if near else "")
            )
    name = _own_name(raw, subject)
    figures: dict[str, Figure] = {}
    for level in LEVELS:
        figures |= read_figures(level, raw.get(level, {}), FIGURES, kind, origin, RETIRED)
    require(figures, FIGURES, kind, subject)
    check_together(figures, origin)
    dtypes = _dtypes(raw, figures, subject)
    return Target(
        name=name,
        title=read_text_field(raw, "title", subject),
        kind=kind,
        arch=arch,
        device_names=read_names(raw, "device_names", [], subject),
        figures=figures,
        dtypes=dtypes,
    )


def _dtypes(raw: Mapping[str, Any], figures: Mapping[str, Figure], subject: str) -> tuple[str, ...]:
    fp8 = figures.get("core.unit.matrix.fp8_flops_per_cycle")
    int8 = figures.get("core.unit.matrix.int8_flops_per_cycle", fp8)

    def has_rate(dtype: str) -> bool:
        rate = int8 if dtype in INT8_TYPES else fp8
        return rate is not None and rate.value > 0

    usable = [dtype for dtype, size in DTYPE_BYTES.items() if size > 1 or has_rate(dtype)]
    dtypes = read_names(raw, "dtypes", usable, subject)
    known = ", ".join(DTYPE_BYTES)
    for dtype in dtypes:
        if dtype not in DTYPE_BYTES:
            alias = DTYPE_ALIASES.get(dtype.lower())
            near = [alias] if alias else nearest_names(dtype, DTYPE_BYTES)
            offer = f"did you mean {near[0]}?" if near else f"known: {known}"
            raise TargetFileError(f"{subject}: field 'dtypes': '{dtype}' is not known; {offer}")
    if not dtypes:
        raise TargetFileError(
            f"{subject}: field 'dtypes' is empty; name one of {known}, or leave it out for all"
        )
    return dtypes


def _own_name(raw: Mapping[str, Any], subject: str) -> str:
    """The target's name."""
    name = read_text_field(raw, "name", subject)
    if not is_plain_name(name):
        form = "must be letters, digits, '.', '_' and '-', e.g. my-chip"
        raise TargetFileError(f"{subject}: field 'name': '{name}' {form}")
    return name


def is_plain_name(name: str) -> bool:
    """Whether a target may have this name, which messages, file names and the database contain."""
    return _NAME.fullmatch(name) is not None
