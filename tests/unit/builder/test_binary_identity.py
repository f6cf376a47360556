"""The identity of a binary: which changes must make a difference, and which must not."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tilesight.builder.binary_identity import NotElfError, binary_identity, read_elf
from tilesight.builder.launch_plan import Argument, KernelLaunch, LaunchPlan
from tilesight.machine.toolchain import find_nvcc

PLAN = LaunchPlan(
    2,
    (),
    (KernelLaunch("f", (Argument("tensor", 0), Argument("integer", 4, "int32")), (8, 1, 1), (128, 1, 1)),),
)
CUDA, SM_90, SM_80 = 190, 0x5A0006, 0x500006

# (name, type, info, link, content)
Part = tuple[str, int, int, int, bytes]


def elf(parts: Sequence[Part], machine: int = CUDA, flags: int = SM_90) -> bytes:
    """An ELF file with these sections."""
    everything = [("", 0, 0, 0, b""), *parts, (".shstrtab", 3, 0, 0, b"")]
    titles = b"".join(part[0].encode() + b"\0" for part in everything)
    everything[-1] = (*everything[-1][:4], titles)
    body, headers, title = b"", b"", 0
    for name, kind, info, link, content in everything:
        headers += struct.pack(
            "<IIQQQQIIQQ", title, kind, 0, 0, 64 + len(body), len(content), link, info, 1, 0
        )
        body += content
        title += len(name) + 1
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack(
        "<HHIQQQIHHHHHH",
        2,
        machine,
        1,
        0,
        0,
        64 + len(body),
        flags,
        64,
        0,
        0,
        64,
        len(everything),
        len(everything) - 1,
    )
    return identity + header + body + headers


TEXT: Part = (".text.f", 1, 40 << 24, 3, b"instructions")
INFO: Part = (".nv.info.f", 0x70000000, 0, 0, b"registers and stack")
SYMBOLS: Part = (".symtab", 2, 0, 0, struct.pack("<IBBHQQ", 7, 0, 0, 1, 16, 8))
RELOCATIONS: Part = (".rela.text.f", 4, 1, 3, struct.pack("<QQq", 8, 2, 0))
KERNEL = [TEXT, INFO, SYMBOLS, RELOCATIONS]


def identity(parts: Sequence[Part] = KERNEL, plan: LaunchPlan = PLAN, flags: int = SM_90) -> str:
    return binary_identity(elf(parts, flags=flags), plan)


def test_sections_are_read() -> None:
    found = read_elf(elf(KERNEL))
    assert (found.machine, found.flags) == (CUDA, SM_90)
    assert [section.name for section in found.sections] == [
        "",
        ".text.f",
        ".nv.info.f",
        ".symtab",
        ".rela.text.f",
        ".shstrtab",
    ]
    assert found.sections[1].content == b"instructions"


def test_lines_notes_and_their_order_make_no_difference() -> None:
    extra: list[Part] = [
        (".debug_line", 1, 0, 0, b"lines"),
        (".note.nv.tkinfo", 7, 0, 0, b"nvcc -o /some/path"),
        (".nv_debug_ptx_txt", 1, 0, 0, b"ptx"),
    ]
    assert identity([*KERNEL, *extra]) == identity()
    assert identity([TEXT, extra[0], (*SYMBOLS[:4], SYMBOLS[4]), INFO]) == identity([TEXT, INFO, SYMBOLS])


def test_names_make_no_difference() -> None:
    named: list[Part] = [(part[0].replace(".f", ".other"), *part[1:]) for part in KERNEL]
    plan = replace(PLAN, launches=(replace(PLAN.launches[0], function="other"),))
    renamed = (*SYMBOLS[:4], struct.pack("<IBBHQQ", 99, 0, 0, 1, 16, 8))
    assert identity(named, plan) == identity()
    assert identity([TEXT, INFO, renamed, RELOCATIONS]) == identity()


@pytest.mark.parametrize(
    "changed",
    [
        [(*TEXT[:4], b"instructionz"), INFO, SYMBOLS, RELOCATIONS],
        [(*TEXT[:2], 41 << 24, *TEXT[3:]), INFO, SYMBOLS, RELOCATIONS],
        [TEXT, (*INFO[:4], b"registers and stacks"), SYMBOLS, RELOCATIONS],
        [*KERNEL, (".nv.constant0.f", 1, 0, 0, b"\0" * 64)],
        [*KERNEL, (".nv.global.init", 1, 0, 0, b"table")],
        [TEXT, INFO, SYMBOLS, (*RELOCATIONS[:4], struct.pack("<QQq", 16, 2, 0))],
        [TEXT, INFO, (*SYMBOLS[:4], struct.pack("<IBBHQQ", 7, 0, 0, 1, 32, 8)), RELOCATIONS],
    ],
    ids=[
        "instructions",
        "registers",
        "information",
        "constants",
        "globals",
        "a relocation",
        "what is filled in",
    ],
)
def test_code_makes_a_difference(changed: list[Part]) -> None:
    assert identity(changed) != identity()


@pytest.mark.parametrize(
    "launch",
    [
        {"grid": (4, 2, 1)},
        {"block": (64, 1, 1)},
        {"shared_bytes": 1},
        {"cluster": (2, 1, 1)},
        {"arguments": (Argument("tensor", 1),)},
    ],
)
def test_the_launch_makes_a_difference(launch: dict[str, tuple[int, ...]]) -> None:
    assert identity(plan=replace(PLAN, launches=(replace(PLAN.launches[0], **launch),))) != identity()


def test_the_chip_makes_a_difference() -> None:
    assert identity(flags=SM_80) != identity()


def test_the_order_of_two_kernels_makes_a_difference() -> None:
    first, second = KernelLaunch("a", ()), KernelLaunch("b", ())
    parts: list[Part] = [(".text.a", 1, 0, 0, b"one"), (".text.b", 1, 0, 0, b"two")]
    plan = LaunchPlan(0, (), (first, second))
    assert identity(parts, plan) == identity(list(reversed(parts)), plan)
    assert identity(parts, plan) != identity(parts, replace(plan, launches=(second, first)))


@pytest.mark.parametrize("data", [b"", b"not an ELF file", elf(KERNEL)[:-100], elf(KERNEL)[:80]])
def test_damaged_files_are_refused(data: bytes) -> None:
    with pytest.raises(NotElfError):
        binary_identity(data, PLAN)


HOST = """extern "C" int {name}(float *{x}, int n) {{ /* {comment} */
  for (int i = 0; i < n; i++) {x}[i] *= {factor};
  return 0;
}}"""


def shared_library(folder: Path, factor: str, **words: str) -> bytes:
    folder.mkdir()
    (folder / "kernel.cpp").write_text(
        HOST.format(factor=factor, **{"name": "f", "x": "x", "comment": "", **words})
    )
    subprocess.run(
        ["g++", "-O2", "-shared", "-fPIC", "-Wl,--build-id", "kernel.cpp", "-o", "kernel.so"],
        cwd=folder,
        check=True,
    )
    return (folder / "kernel.so").read_bytes()


def test_libraries_for_the_processor(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++: apt-get install g++")
    first = binary_identity(shared_library(tmp_path / "a", "3.0f"), PLAN)
    renamed = shared_library(tmp_path / "b", "3.0f", name="g", x="values", comment="the same")
    other_plan = replace(PLAN, launches=(replace(PLAN.launches[0], function="g"),))
    assert binary_identity(renamed, other_plan) == first
    assert binary_identity(shared_library(tmp_path / "c", "3.5f"), PLAN) != first


DEVICE = """extern "C" __global__ void {name}(float *{x}, int n) {{ /* {comment} */
  {x}[threadIdx.x] *= {factor}f * {sum};
}}"""


def test_cubins(tmp_path: Path) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("needs nvcc")

    def cubin(factor: str, total: str, name: str = "f", x: str = "x") -> str:
        (tmp_path / "kernel.cu").write_text(
            "\n" * len(x) + DEVICE.format(factor=factor, sum=total, name=name, x=x, comment=x)
        )
        command = [str(nvcc), "-cubin", "-arch=sm_90a", "-lineinfo", "kernel.cu", "-o", "kernel.cubin"]
        subprocess.run(command, cwd=tmp_path, check=True)
        plan = replace(PLAN, launches=(replace(PLAN.launches[0], function=name),))
        return binary_identity((tmp_path / "kernel.cubin").read_bytes(), plan)

    first = cubin("3.0", "(n + n)")
    assert cubin("3.0", "(n * 2)", name="g", x="values") == first, "other words for the same instructions"
    assert cubin("3.5", "(n + n)") != first
