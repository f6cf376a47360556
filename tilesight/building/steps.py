"""The programs that nvcc runs to make a cubin, as its own `--dryrun` lists them."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .compiler import compile_in

# options of the front end that name files for the host's half, which is left out: with a value, and without
_HOST_FILES = ("--include_file_name", "--module_id_file_name", "--gen_c_file_name", "--stub_file_name", "--gen_device_file_name")
_HOST_FLAGS = ("--gen_module_id_file",)
_SOURCE_NAMES = ("--orig_src_file_name", "--orig_src_path_name")


@dataclass(frozen=True, slots=True)
class Steps:
    """Commands that run in one folder, on files of these names: `prefix.cu` to `prefix.ii`, that to `kernel.ptx`, that to
    `kernel.cubin`."""

    preprocess: tuple[str, ...]
    front_end: tuple[str, ...]
    assemble: tuple[str, ...]


class UnknownStepsError(Exception):
    """nvcc lists other steps than these; the plain nvcc is to be run."""


def list_steps(folder: Path, nvcc: Path, options: Sequence[str]) -> Steps:
    """The steps of `nvcc -cubin` with `options`. Raises `UnknownStepsError`, `CompileError`."""
    (folder / "prefix.cu").touch()
    return parse_steps(compile_in(folder, [nvcc, "-cubin", *options, "prefix.cu", "-o", "kernel.cubin", "--dryrun"]))


def parse_steps(dryrun: str) -> Steps:
    """Steps from what `nvcc -cubin ... prefix.cu -o kernel.cubin --dryrun` prints. Raises `UnknownStepsError`."""
    variables: dict[str, str] = {}
    commands = []
    for line in dryrun.splitlines():
        text = line.removeprefix("#$ ").strip()
        if text == line.strip():
            continue  # a warning
        if assigned := re.match(r"(\w+)=(.*)", text):
            variables[assigned[1]] = assigned[2].strip()
        else:
            commands.append([_expanded(token, variables) for token in shlex.split(text)])
    if len(commands) != 3 or "-E" not in commands[0] or "cicc" not in commands[1][0] or "ptxas" not in commands[2][0]:
        raise UnknownStepsError("nvcc lists other steps than preprocessing, cicc and ptxas")
    preprocess, front_end, assemble = commands
    preprocessed, assembly = _value(preprocess, "-o"), _value(front_end, "-o")
    names = {preprocessed: "prefix.ii", assembly: "kernel.ptx"}
    preprocess, front_end, assemble = ([names.get(token, token) for token in command] for command in commands)
    if front_end.count("prefix.ii") != 1 or assemble.count("kernel.ptx") != 1 or preprocess.count("prefix.cu") != 1:
        raise UnknownStepsError("nvcc's steps do not hand their files on as expected")
    assemble[0] = shutil.which(assemble[0], path=variables.get("PATH")) or assemble[0]
    return Steps(tuple(preprocess), tuple(_device_only(front_end)), tuple(assemble))


def _expanded(token: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda name: variables.get(name[1], name[0]), token)


def _value(command: list[str], option: str) -> str:
    if option not in command[:-1]:
        raise UnknownStepsError(f"'{command[0]}' has no {option}")
    return command[command.index(option) + 1]


def _device_only(front_end: list[str]) -> list[str]:
    kept: list[str] = []
    tokens = iter(front_end)
    for token in tokens:
        if token in _HOST_FILES:
            next(tokens, None)
        elif token in _SOURCE_NAMES:
            next(tokens, None)
            kept += [token, "kernel.cu"]
        elif token not in _HOST_FLAGS:
            kept.append(token)
    return kept
