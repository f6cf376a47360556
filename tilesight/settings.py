"""Settings from the environment and from a settings file; no other module reads environment variables.

Each setting comes from its environment variable, else from the nearest settings file, else it has a default.
An option of a command, or an argument in Python, overrides all three. The settings file is `tilesight.toml`,
or the table `[tool.tilesight]` of `pyproject.toml`, in the current folder or the nearest folder above it that
has one.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path, user_data_path

from .errors import InputError, nearest_names
from .files import others_who_write

FILE, PROJECT_FILE = "tilesight.toml", "pyproject.toml"
EFFORTS = ("glance", "predict", "build", "quick", "full", "exhaustive")
DEFAULT = "default"  # the source of a setting that nobody set
RUNS_CODE = ("kernels", "cache_dir")  # settings that say which modules are imported, which libraries loaded
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults that a user sets once for a machine or a project; options of a command override them."""

    database_url: str  # any SQLAlchemy URL
    cache_dir: Path  # built kernels; safe to delete
    workers: int  # processes that lower and build, or train
    layers: tuple[str, ...] = ()  # SQLite files of read-only databases below the user's own, the upper first
    shipped: bool = True  # whether the sessions and profiles that ship with TileSight are used
    max_noise: float = 0.1  # a time whose 95 % interval is wider, half of it relative to the median, is noisy
    max_autotune: bool = False  # whether an autotuned torch.compile is a baseline of matmul
    kernel_modules: tuple[str, ...] = ()  # modules or files with the user's operators and templates
    target: str = "auto"
    effort: str = "quick"
    budget_s: float | None = None  # wall-clock seconds of a call; None: no limit
    cuda_home: Path | None = None  # a CUDA toolkit instead of that of the nvcc on PATH; TileLang reads it too
    rocm_home: Path | None = None
    cxx: str | None = None  # a C++ compiler instead of g++, clang++ or c++
    cuda_visible: str | None = None  # GPUs that programs may use, in the driver's notation; None for all
    hip_visible: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)  # key of a setting -> its source


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of TileSight.

    Attributes:
        key: its name in a settings file.
        variable: its environment variable.
        name: its field of `Settings`.
        read: from a text, and the folder that relative paths start from, to its value. Raises `ValueError`.
        rule: what the text must be, for messages.
        default: its value if nobody sets it.
        separators: characters between the members of a list in the environment; "" for a single value.
    """

    key: str
    variable: str
    name: str
    read: Callable[[str, Path | None], Any]
    rule: str
    default: Callable[[], Any]
    separators: str = ""


def read_seconds(text: str) -> float:
    """Convert `600`, `90s`, `10m` or `1.5h` to seconds. Raises `ValueError` unless it is a time above 0."""
    count, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "")
    seconds = float(count) * _SECONDS[unit]
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def completion_request() -> str:
    """What the shell's completion script asks for, such as `bash_complete`; "" for an ordinary command."""
    return os.environ.get("_TILESIGHT_COMPLETE", "")


def login_shell() -> str:
    """The path of the user's shell; "" if the environment does not say."""
    return os.environ.get("SHELL", "")


def available_cores() -> int:
    """Number of cores that this process may use, by its affinity mask or container limit."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _text(text: str, _folder: Path | None) -> str:
    return text


def _path(text: str, folder: Path | None) -> str:
    """A path, from the settings file's folder if it is relative and stands there."""
    return text if folder is None else str(folder / Path(text).expanduser())


def _location(text: str, folder: Path | None) -> str:
    """A path or a URL."""
    return text if "://" in text else _path(text, folder)


def _name_or_file(text: str, folder: Path | None) -> str:
    """A name, or a path: with a slash or with the suffix of a Python or TOML file."""
    return _path(text, folder) if "/" in text or text.endswith((".py", ".toml")) else text


def _workers(text: str, _folder: Path | None) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise ValueError(text)
    return int(text)


def _noise(text: str, _folder: Path | None) -> float:
    if not float(text) > 0:
        raise ValueError(text)
    return float(text)


def _switch(text: str, _folder: Path | None) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _effort(text: str, _folder: Path | None) -> str:
    if text not in EFFORTS:
        raise ValueError(text)
    return text


def _budget(text: str, _folder: Path | None) -> float:
    return read_seconds(text)


def _default_database() -> str:
    return f"sqlite:///{user_data_path('tilesight', appauthor=False) / 'performance.db'}"


def _default_cache() -> str:
    return str(user_cache_path("tilesight", appauthor=False))


SETTINGS = (
    Setting("target", "TILESIGHT_TARGET", "target", _name_or_file, "a name or a target file", lambda: "auto"),
    Setting("effort", "TILESIGHT_EFFORT", "effort", _effort, f"one of {', '.join(EFFORTS)}", lambda: "quick"),
    Setting(
        "budget",
        "TILESIGHT_BUDGET",
        "budget_s",
        _budget,
        "a time above 0: seconds (600, 90s), minutes (10m) or hours (1h)",
        lambda: None,
    ),
    Setting(
        "database",
        "TILESIGHT_DB",
        "database_url",
        _location,
        "a SQLAlchemy URL or an SQLite file",
        _default_database,
    ),
    Setting("layers", "TILESIGHT_LAYERS", "layers", _location, "a list of SQLite files", tuple, os.pathsep),
    Setting(
        "shipped",
        "TILESIGHT_SHIPPED",
        "shipped",
        _switch,
        "1, or 0 to use nothing of the measurements and profiles that ship with TileSight",
        lambda: True,
    ),
    Setting("cache_dir", "TILESIGHT_CACHE_DIR", "cache_dir", _path, "a folder", _default_cache),
    Setting(
        "workers",
        "TILESIGHT_WORKERS",
        "workers",
        _workers,
        "a whole number from 1 to 1024; unset it for one process per core",
        available_cores,
    ),
    Setting(
        "max_noise",
        "TILESIGHT_MAX_NOISE",
        "max_noise",
        _noise,
        "a number above 0, or inf to accept every time; unset it for 0.1",
        lambda: 0.1,
    ),
    Setting(
        "max_autotune",
        "TILESIGHT_MAX_AUTOTUNE",
        "max_autotune",
        _switch,
        "1 for torch.compile with mode='max-autotune-no-cudagraphs' as a baseline of matmul, or 0",
        lambda: False,
    ),
    Setting(
        "kernels",
        "TILESIGHT_KERNELS",
        "kernel_modules",
        _name_or_file,
        "a list of modules or files",
        tuple,
        os.pathsep + ",",
    ),
)


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process: from environment variables, the nearest settings file, and defaults.

    Besides those of `SETTINGS`, variables of other tools are read. Compilers: `CUDA_HOME` or `CUDA_PATH`,
    `ROCM_PATH` or `ROCM_HOME`, `CXX`. GPUs: `CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES`.

    The shell's completion reads no settings file, since that may name code to import, and a key press must
    not run the code of whatever project the shell is in.

    Args:
        environ: None for the environment of the process, and its settings file.

    Raises:
        InputError: a variable, or a key or value of the settings file, is wrong.
    """
    if environ is None and _in_use:
        return _in_use[-1]
    env = os.environ if environ is None else environ
    has_file = environ is None and not completion_request()
    path, table = settings_file(_folder()) if has_file else (None, {})
    return _gathered(env, path, table, _refuse)


def usable_settings() -> tuple[Settings, tuple[InputError, ...]]:
    """The settings of this process without those that are wrong, and what is wrong with these.

    A wrong variable, key or value counts as not set; a file that cannot be read, or has a key that is no
    setting, counts as absent.
    """
    faults: list[InputError] = []
    path: Path | None = None
    table: Mapping[str, Any] = {}
    try:
        path, table = settings_file(_folder())
    except InputError as error:
        faults.append(error)
    return _gathered(os.environ, path, table, faults.append), tuple(faults)


@contextmanager
def in_use(settings: Settings) -> Iterator[None]:
    """Let `load_settings` return `settings` in this block, whatever environment and file say."""
    _in_use.append(settings)
    try:
        yield
    finally:
        _in_use.pop()


_in_use: list[Settings] = []


def _refuse(error: InputError) -> None:
    raise error


def _gathered(
    env: Mapping[str, str],
    path: Path | None,
    table: Mapping[str, Any],
    report: Callable[[InputError], None],
) -> Settings:
    """The settings of `env` and the file `path`. `report` is called for each wrong one, which is left out."""
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        found[setting.name], sources[setting.key] = setting.default(), DEFAULT
        given = env.get(setting.variable)
        try:
            if given:
                found[setting.name] = _from_text(setting, given)
                sources[setting.key] = setting.variable
            elif setting.key in table:
                assert path is not None
                if setting.key in RUNS_CODE:
                    _check_writers(path, setting)
                found[setting.name] = _from_file(setting, table[setting.key], path)
                sources[setting.key] = str(path)
        except InputError as error:
            report(error)
    cuda_home = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    rocm_home = env.get("ROCM_PATH") or env.get("ROCM_HOME")
    return Settings(
        **{**found, "cache_dir": Path(found["cache_dir"])},
        cuda_home=Path(cuda_home) if cuda_home else None,
        rocm_home=Path(rocm_home) if rocm_home else None,
        cxx=env.get("CXX") or None,
        cuda_visible=env.get("CUDA_VISIBLE_DEVICES"),
        hip_visible=env.get("HIP_VISIBLE_DEVICES"),
        sources=sources,
    )


def _folder() -> Path:
    """The current folder; the root if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


@lru_cache(maxsize=16)
def settings_file(folder: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest settings file of `folder` and its settings; it is read once in a process.

    In one folder `tilesight.toml` comes before `pyproject.toml`.

    Raises:
        InputError: the file cannot be read, is no TOML, or has a key that is no setting.
    """
    for place in (folder, *folder.parents):
        for path in (place / FILE, place / PROJECT_FILE):
            table = _table(path) if os.path.isfile(path) else None
            if table is not None:
                _check_keys(path, table)
                return path, table
    return None, {}


def _table(path: Path) -> Mapping[str, Any] | None:
    """The settings in a file; None if it is a project's file without any."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"settings file '{path}' cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"settings file '{path}' is not valid TOML: {error}") from error
    if path.name == FILE:
        return content
    table = content.get("tool", {}).get("tilesight")
    if table is not None and not isinstance(table, Mapping):
        raise InputError(f"settings file '{path}': tool.tilesight={table!r} must be a table")
    return table


def _check_keys(path: Path, table: Mapping[str, Any]) -> None:
    known = [setting.key for setting in SETTINGS]
    for key in table:
        if key not in known:
            near = nearest_names(key, known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the settings are {', '.join(known)}"
            raise InputError(f"settings file '{path}': '{key}' is no setting; {hint}")


def _check_writers(path: Path, setting: Setting) -> None:
    """Raise `InputError` if another user could have written a setting that leads to code."""
    reason = others_who_write(path)
    if reason:
        raise InputError(
            f"settings file '{path}' {reason}, and its '{setting.key}' says which code runs here; set "
            f"{setting.variable} if you want it, or make the file yours alone: "
            f"chown $(id -u) '{path}' && chmod o-w '{path}'"
        )


def _from_text(setting: Setting, text: str) -> Any:
    parts = [text]
    for separator in setting.separators:
        parts = [piece for part in parts for piece in part.split(separator)]
    try:
        values = tuple(setting.read(part, None) for part in parts if part)
    except ValueError:
        raise InputError(f"{setting.variable}='{text}' must be {setting.rule}") from None
    return values if setting.separators else values[0]


def _from_file(setting: Setting, value: Any, path: Path) -> Any:
    """The value of a key of the settings file. Relative paths start from the file's folder."""
    members = value if isinstance(value, list) and setting.separators else [value]
    try:
        if any(isinstance(member, bool) or not isinstance(member, str | int | float) for member in members):
            raise ValueError(value)
        values = tuple(setting.read(str(member), path.parent) for member in members)
    except ValueError:
        raise InputError(f"settings file '{path}': {setting.key}={value!r} must be {setting.rule}") from None
    return values if setting.separators else values[0]
