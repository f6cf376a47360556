"""Targets: the hardware as a hierarchy of levels, every figure with its provenance, read from a TOML file.

Levels, inside out: `thread`, `warp` (AMD: wave), `core` (SM, CU, CPU core), `cluster` (GPC, XCD), `device`,
`node`. Each holds figures of its own, compute `unit`s, `memory`s and a `network`. In code a figure is
addressed by its dotted path, e.g. `target["core.memory.shared.bytes"]`; `FIGURES` lists all of them with unit
and meaning.

A target is made from its file alone, never from a live device: the same file gives the same predictions
everywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..dtypes import DTYPE_ALIASES, DTYPE_BYTES
from ..errors import TargetFileError, UnknownNameError, nearest_names
from ..files import read_text
from .checks import check_together, checked_value
from .fields import FIGURES, GPU, KINDS, LEVELS, PROVENANCES, RETIRED, Figure

__all__ = [
    "FIGURES",
    "RETIRED",
    "Figure",
    "Target",
    "is_plain_name",
    "load_target",
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
_PARTS = ("value", "provenance", "source")  # of a figure
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Target:
    """A kind of chip.

    Attributes:
        kind: "cuda", "hip" or "cpu".
        arch: sm_90a, sm_80, gfx942, native, ...
        device_names: names of the chip in its driver. Only a device of one of these names is measured for the
            target.
        figures: by dotted path.
        dtypes: element types that kernels may use; by default all whose matrix rate is known.
    """

    name: str
    title: str
    kind: str
    arch: str
    device_names: tuple[str, ...]
    figures: Mapping[str, Figure]
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")
    _fingerprint: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))
        text = json.dumps(
            [self.name, self.kind, self.arch, {p: f.value for p, f in sorted(self.figures.items())}]
        )
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
        )

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
        path = "fp8" if DTYPE_BYTES[dtype] == 1 else "fp16" if DTYPE_BYTES[dtype] == 2 else "fp32"
        per_cycle = self[f"core.unit.matrix.{path}_flops_per_cycle"]
        return per_cycle * self["core.count"] * self["core.clock_matrix_mhz"] / 1e6

    @property
    def dram_gb_per_s(self) -> float:
        return self["device.memory.dram.gb_per_s"]


def target_names() -> list[str]:
    """Names of the targets that ship with TileSight."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in files(__package__).iterdir()
        if entry.name.endswith(".toml")
    )


def load_target(name_or_path: str) -> Target:
    """A shipped target by name (`h100`), or a user's own by the path of its TOML file (`./mychip.toml`).

    Raises:
        UnknownNameError: no shipped target has that name.
        TargetFileError: the file cannot be read or is wrong; names the file and the field.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        path = Path(name_or_path)
        text = read_text(path, f"target file '{path}'", MOST_BYTES, TargetFileError)
        own = parse_target(text, str(path))
        if own.name in target_names() and own.fingerprint != load_target(own.name).fingerprint:
            raise TargetFileError(
                f"target file '{path}': name '{own.name}' is that of a shipped target with other figures; "
                "choose another name, so that results of the two are not mixed"
            )
        return own
    if name_or_path.lower() not in target_names():
        raise UnknownNameError(
            "target",
            name_or_path,
            target_names(),
            "A chip of your own goes by its file: --target ./mychip.toml",
        )
    return _shipped(name_or_path.lower())


@cache
def _shipped(name: str) -> Target:
    text = (files(__package__) / f"{name}.toml").read_text(encoding="utf-8")
    return parse_target(text, f"{name}.toml")


def parse_target(text: str, origin: str) -> Target:
    """Read a target from the text of a TOML file.

    Args:
        text: content of the file.
        origin: its name in messages.

    Raises:
        TargetFileError: the text is no TOML, a field is wrong, or figures are missing or contradict each
            other.
    """
    subject = f"target file '{origin}'"
    longest = max(map(len, text.splitlines()), default=0)
    if longest > MOST_IN_LINE:  # a dotted key of many parts would take minutes
        raise TargetFileError(f"{subject} has a line of {longest} characters; the limit is {MOST_IN_LINE}")
    try:
        raw = tomllib.loads(text)
    # ValueError: TOMLDecodeError, and numbers of more digits than Python reads; RecursionError: deep nesting
    except (ValueError, RecursionError) as error:
        raise TargetFileError(f"{subject} is not TOML: {error}") from error

    kind = _text(raw, "kind", subject)
    if kind not in KINDS:
        raise TargetFileError(f"{subject}: kind '{kind}' must be one of {', '.join(KINDS)}")
    arch = _text(raw, "arch", subject)
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
    name = _text(raw, "name", subject)
    if not is_plain_name(name):
        form = "must be letters, digits, '.', '_' and '-', e.g. my-chip"
        raise TargetFileError(f"{subject}: field 'name': '{name}' {form}")
    given = (leaf for level in LEVELS for leaf in _leaves(level, raw.get(level, {}), origin))
    figures = {path: _figure(path, entry, kind, origin) for path, entry in given}
    missing = [path for path, rule in FIGURES.items() if kind in rule.required and path not in figures]
    if missing:
        path, rule = missing[0], FIGURES[missing[0]]
        more = f" ({len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        raise TargetFileError(
            f"target file '{origin}': figure '{path}' is missing: {rule.meaning}, in {rule.unit}{more}"
        )
    check_together(figures, origin)
    dtypes = _dtypes(raw, figures, subject)
    return Target(
        name=name,
        title=_text(raw, "title", subject),
        kind=kind,
        arch=arch,
        device_names=_names(raw, "device_names", [], subject),
        figures=figures,
        dtypes=dtypes,
    )


def _text(raw: Mapping[str, Any], name: str, subject: str) -> str:
    """The text field of that name."""
    value = raw.get(name)
    if not isinstance(value, str) or not value:
        raise TargetFileError(f"{subject}: field '{name}' must be a non-empty text, found {value!r}")
    return value


def _names(raw: Mapping[str, Any], name: str, default: list[str], subject: str) -> tuple[str, ...]:
    """The field of that name, a list of texts."""
    value = raw.get(name, default)
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise TargetFileError(f"{subject}: field '{name}' must be a list of texts, found {value!r}")
    return tuple(value)


def _dtypes(raw: Mapping[str, Any], figures: Mapping[str, Figure], subject: str) -> tuple[str, ...]:
    rate_of_bytes = figures.get("core.unit.matrix.fp8_flops_per_cycle")
    has_bytes = rate_of_bytes is not None and rate_of_bytes.value > 0
    usable = [dtype for dtype, size in DTYPE_BYTES.items() if has_bytes or size > 1]
    dtypes = _names(raw, "dtypes", usable, subject)
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


def is_plain_name(name: str) -> bool:
    """Whether a target may have this name, which messages, file names and the database contain."""
    return _NAME.fullmatch(name) is not None


def _leaves(prefix: str, table: Any, origin: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Paths and raw entries of the figures at and below `prefix`, without retired ones."""
    if prefix in RETIRED:
        return
    within = [path for path in FIGURES if path.startswith(f"{prefix}.")]
    subject = f"target file '{origin}': '{prefix}'"
    if not isinstance(table, dict):
        if within:
            raise TargetFileError(f"{subject} must be a table of figures ({_some(within)}), found {table!r}")
        raise TargetFileError(
            f"{subject} must be a table or a figure "
            f'like {{ value = 132, provenance = "spec", source = "..." }}, found {table!r}'
        )
    parts = [part for part in _PARTS if part in table and not isinstance(table[part], dict)]
    if within and parts:
        raise TargetFileError(
            f"{subject} is a table of figures and has no {parts[0]} of its own; "
            f"its figures are {_some(within)}"
        )
    if not within and (parts or prefix in FIGURES or not table):
        yield prefix, table
        return
    for key, entry in table.items():
        yield from _leaves(f"{prefix}.{key}", entry, origin)


def _some(paths: list[str]) -> str:
    return ", ".join(f"'{path}'" for path in paths[:3]) + (
        f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    )


def _figure(path: str, entry: Mapping[str, Any], kind: str, origin: str) -> Figure:
    subject = f"target file '{origin}': figure '{path}'"
    rule = FIGURES.get(path)
    if rule is None:
        near = nearest_names(path, FIGURES)
        raise TargetFileError(f"{subject} is unknown" + (f"; did you mean '{near[0]}'?" if near else ""))
    extra = sorted(set(entry) - set(_PARTS))
    if "value" not in entry:
        found = f", but an unknown part '{extra[0]}'" if extra else ""
        raise TargetFileError(
            f"{subject} has no value{found}; give {{ value = ..., provenance = ... }}: "
            f"{rule.meaning}, in {rule.unit}"
        )
    if extra:
        raise TargetFileError(
            f"{subject} has an unknown part '{extra[0]}'; a figure has value, provenance and source"
        )
    value = checked_value(path, entry["value"], kind, subject)
    provenance = entry.get("provenance")
    if provenance not in PROVENANCES:
        raise TargetFileError(f"{subject}: provenance {provenance!r} must be one of {', '.join(PROVENANCES)}")
    source = entry.get("source", "")
    if not isinstance(source, str):
        raise TargetFileError(f"{subject}: source must be a text, found {source!r}")
    return Figure(value, provenance, source)
