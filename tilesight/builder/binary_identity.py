"""The identity of a built kernel: a hash of its machine code and launches, independent of its source.

Names, line numbers, notes and the order of sections are left out: two sources that compile to the same
instructions have the same identity. Equal kernels may have different identities, but different kernels never
have the same.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .launch_plan import LaunchPlan

_CUDA = 190  # e_machine
_PROGBITS, _NOBITS, _INIT_ARRAY = (
    1,
    8,
    14,
)  # section types: with content, zeros without, addresses of functions
_SYMBOLS, _RELA, _REL = 2, 4, 9
_ALLOCATED = 2  # section flag: in memory when it runs
_CUDA_SECTIONS = (".text.", ".nv.constant", ".nv.info", ".nv.global", ".nv.shared.", ".nv.local.")


class NotElfError(Exception):
    """The file is not a 64-bit little-endian ELF file, or is damaged."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of an ELF file. Sections without content have a `size` too."""

    name: str
    type: int
    flags: int
    info: int
    link: int
    content: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Elf:
    """The parts of an ELF file that the identity needs."""

    machine: int
    flags: int
    sections: tuple[Section, ...]


def read_elf(data: bytes) -> Elf:
    """Parse an ELF file. Raises `NotElfError`."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotElfError("not a 64-bit little-endian ELF file")
    try:
        machine, _, _, _, table, flags, _, _, _, step, count, names = struct.unpack_from(
            "<HIQQQIHHHHHH", data, 18
        )
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * step) for i in range(count)]
        contents = [b"" if h[1] == _NOBITS else data[h[4] : h[4] + h[5]] for h in headers]
        titles = contents[names]
        sections = tuple(
            Section(titles[h[0] : titles.index(b"\0", h[0])].decode(), h[1], h[2], h[7], h[6], content, h[5])
            for h, content in zip(headers, contents, strict=True)
        )
    except (struct.error, IndexError, ValueError) as error:
        raise NotElfError(f"a damaged ELF file: {error}") from error
    return Elf(machine, flags, sections)


def binary_identity(data: bytes, plan: LaunchPlan) -> str:
    """24 hex digits over an ELF file with machine code, and its launches. Raises `NotElfError`."""
    elf = read_elf(data)
    # kernels are numbered in the order of their launches
    functions = {
        name: f"#{i}" for i, name in enumerate(dict.fromkeys(launch.function for launch in plan.launches))
    }
    nameless = replace(
        plan, launches=tuple(replace(launch, function=functions[launch.function]) for launch in plan.launches)
    )
    parts = [f"{elf.machine} {elf.flags} {nameless!r}".encode()]
    named = {i: _anonymous(section.name, functions) for i, section in enumerate(elf.sections)}
    relevant = {i for i, section in enumerate(elf.sections) if _matters(section, elf.machine)}
    for i in sorted(relevant, key=lambda i: named[i]):
        section = elf.sections[i]
        # the header of .text has the numbers of registers and barriers
        registers = section.info >> 24 if elf.machine == _CUDA else 0
        parts.append(f"{named[i]} {section.type} {section.flags} {registers} {section.size}".encode())
        parts.append(section.content)
    for section in elf.sections:
        if section.type in (_REL, _RELA) and section.info in relevant and elf.machine == _CUDA:
            parts += [
                f"{named[section.info]} {entry}".encode() for entry in _relocations(section, elf, named)
            ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part)
    return digest.hexdigest()[:24]


def _matters(section: Section, machine: int) -> bool:
    if machine == _CUDA:
        return section.name.startswith(_CUDA_SECTIONS)
    in_memory = section.flags & _ALLOCATED and section.type in (_PROGBITS, _NOBITS, _INIT_ARRAY)
    return bool(in_memory) and not section.name.startswith(".eh_frame")


def _anonymous(name: str, functions: dict[str, str]) -> str:
    head, dot, function = name.rpartition(".")
    return f"{head}{dot}{functions[function]}" if function in functions else name


def _relocations(section: Section, elf: Elf, named: dict[int, str]) -> Iterator[tuple[int | str, ...]]:
    """(offset, type, addend, section, value and size of the symbol) of each relocation."""
    symbols = elf.sections[section.link].content if elf.sections[section.link].type == _SYMBOLS else b""
    form = "<QQq" if section.type == _RELA else "<QQ"
    for offset, info, *addend in struct.iter_unpack(form, section.content):
        index, value, size = 0, 0, 0
        if len(symbols) >= (info >> 32) * 24 + 24:
            _, _, _, index, value, size = struct.unpack_from("<IBBHQQ", symbols, (info >> 32) * 24)
        yield offset, info & 0xFFFFFFFF, *addend, named.get(index, str(index)), value, size
