"""Targets: the hardware as a hierarchy of levels, every figure with its provenance, read from a TOML file.

Levels, inside out: `thread`, `warp` (AMD: wave), `core` (SM, CU, CPU core), `cluster` (GPC, XCD), `device`, `node`.
Each holds figures of its own, compute `unit`s, `memory`s and a `network`. In code a figure is addressed by its
dotted path, e.g. `target["core.memory.shared.bytes"]`; `FIGURES` lists all of them with unit and meaning.

A target is made from its file alone, never from a live device: the same file gives the same predictions everywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import TargetFileError, UnknownNameError, nearest_names
from .figure_checks import check_together, checked_value
from .figures import FIGURES, GPU, KINDS, LEVELS, PROVENANCES, RETIRED, Figure
from .workload import DTYPE_ALIASES, DTYPE_BYTES

__all__ = ["FIGURES", "RETIRED", "Figure", "Target", "is_plain_name", "load_target", "parse_target", "target_names"]

# what TileLang's passes and this package's reading of their output were tried with, or are close kin of
ARCHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"cuda": ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a"), "hip": ("gfx90a", "gfx940", "gfx941", "gfx942"), "cpu": ("native",)}
)
_PARTS = ("value", "provenance", "source")  # of a figure
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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
        return self.kind in GPU

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
        """Dense matrix rate at the clock of single launches with busy matrix pipes, TFLOP/s; the vector rate on a CPU."""
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
    except ValueError as error:  # TOMLDecodeError, and numbers of more digits than Python reads
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
    dtypes = names_field("dtypes", list(DTYPE_BYTES))
    for dtype in dtypes:
        if dtype not in DTYPE_BYTES:
            meant = DTYPE_ALIASES.get(dtype.lower())
            near = [meant] if meant else nearest_names(dtype, DTYPE_BYTES)
            offer = f"did you mean {near[0]}?" if near else f"known: {', '.join(DTYPE_BYTES)}"
            raise TargetFileError(f"target file '{origin}': field 'dtypes': '{dtype}' is not known; {offer}")
    if not dtypes:
        raise TargetFileError(
            f"target file '{origin}': field 'dtypes' is empty; name one of {', '.join(DTYPE_BYTES)}, or leave it out for all"
        )
    name = text_field("name")
    if not is_plain_name(name):
        raise TargetFileError(f"target file '{origin}': field 'name': '{name}' must be letters, digits, '.', '_' and '-', e.g. my-chip")
    given = (leaf for level in LEVELS for leaf in _leaves(level, raw.get(level, {}), origin))
    figures = {path: _figure(path, entry, kind, origin) for path, entry in given}
    missing = [path for path, rule in FIGURES.items() if kind in rule.required and path not in figures]
    if missing:
        path, rule = missing[0], FIGURES[missing[0]]
        more = f" ({len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        raise TargetFileError(f"target file '{origin}': figure '{path}' is missing: {rule.meaning}, in {rule.unit}{more}")
    check_together(figures, origin)
    return Target(
        name=name,
        title=text_field("title"),
        kind=kind,
        arch=arch,
        device_names=names_field("device_names", []),
        figures=figures,
        dtypes=dtypes,
    )


def is_plain_name(name: str) -> bool:
    """Whether a target may have this name: it stands in messages, file names and the database."""
    return _NAME.fullmatch(name) is not None


def _leaves(prefix: str, table: Any, origin: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The figures at and below `prefix` as the file gives them, less retired ones."""
    if prefix in RETIRED:
        return
    within = [path for path in FIGURES if path.startswith(f"{prefix}.")]
    place = f"target file '{origin}': '{prefix}'"
    if not isinstance(table, dict):
        if within:
            raise TargetFileError(f"{place} must be a table of figures ({_some(within)}), found {table!r}")
        raise TargetFileError(
            f'{place} must be a table or a figure like {{ value = 132, provenance = "spec", source = "..." }}, found {table!r}'
        )
    parts = [part for part in _PARTS if part in table and not isinstance(table[part], dict)]
    if within and parts:
        raise TargetFileError(f"{place} is a table of figures and has no {parts[0]} of its own; its figures are {_some(within)}")
    if not within and (parts or prefix in FIGURES or not table):
        yield prefix, table
        return
    for key, entry in table.items():
        yield from _leaves(f"{prefix}.{key}", entry, origin)


def _some(paths: list[str]) -> str:
    return ", ".join(f"'{path}'" for path in paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _figure(path: str, entry: Mapping[str, Any], kind: str, origin: str) -> Figure:
    where = f"target file '{origin}': figure '{path}'"
    rule = FIGURES.get(path)
    if rule is None:
        near = nearest_names(path, FIGURES)
        raise TargetFileError(f"{where} is unknown" + (f"; did you mean '{near[0]}'?" if near else ""))
    extra = sorted(set(entry) - set(_PARTS))
    if "value" not in entry:
        found = f", but an unknown part '{extra[0]}'" if extra else ""
        raise TargetFileError(f"{where} has no value{found}; give {{ value = ..., provenance = ... }}: {rule.meaning}, in {rule.unit}")
    if extra:
        raise TargetFileError(f"{where} has an unknown part '{extra[0]}'; a figure has value, provenance and source")
    value = checked_value(path, entry["value"], kind, where)
    provenance = entry.get("provenance")
    if provenance not in PROVENANCES:
        raise TargetFileError(f"{where}: provenance {provenance!r} must be one of {', '.join(PROVENANCES)}")
    source = entry.get("source", "")
    if not isinstance(source, str):
        raise TargetFileError(f"{where}: source must be a text, found {source!r}")
    return Figure(value, provenance, source)
