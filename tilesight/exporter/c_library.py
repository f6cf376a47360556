"""The C source of an export's library: generated tables and checks in the fixed text `texts/library.c`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isqrt

from ..dispatch.problem import ALIGNMENT
from ..target.spec import Target
from ..version import __version__
from .formula import text_of
from .interface import CallInterface
from .kernel_set import KernelSet
from .selector import selector
from .texts import fill


def library_source(
    kernels: KernelSet,
    interface: CallInterface,
    files: Sequence[tuple[str, str]],
    compilers: Sequence[str],
    *,
    any_card: bool,
) -> str:
    """`NAME.c`.

    Args:
        kernels: what is exported.
        interface: of these kernels.
        files: path and SHA-256 of each kernel's library.
        compilers: name and version of each kernel's compiler.
        any_card: whether any card of the architecture is accepted.
    """
    target, tensors = kernels.problem.target, len(interface.tensors)
    most_scratch = max(map(len, interface.scratch))
    sizes = interface.sizes
    return fill(
        "library.c",
        {
            "NAME": kernels.name,
            "VERSION": __version__,
            "KERNEL_COUNT": str(len(kernels.kernels)),
            "MOST_SCRATCH": str(max(1, most_scratch)),
            "MOST_ARGUMENTS": str(tensors + most_scratch + max(map(len, interface.dynamic))),
            "FILES": "\n".join(
                f'    {{"{path}",\n     "{digest}", {tensors + len(scratch)}, {len(dynamic)}}},'
                for (path, digest), scratch, dynamic in zip(
                    files, interface.scratch, interface.dynamic, strict=True
                )
            ),
            "SHA256": _sha256(),
            "DRIVER": _driver(target, compilers, any_card),
            "SELECTOR": selector(kernels),
            "SIZE_PARAMETERS": "".join(f", int64_t {one}" for one in sizes),
            "SIZE_LIST": ", ".join(f"int64_t {one}" for one in sizes) or "void",
            "SIZE_NAMES": ", ".join(sizes),
            "SIZE_ARGUMENTS": "".join(f", {one}" for one in sizes),
            "SIZES_UNUSED": "".join(f"  (void){one};\n" for one in sizes),
            "SCRATCH": _scratch(interface),
            "ALIGNMENT": str(ALIGNMENT if target.is_gpu else 1),
            "READ_SIZES": "".join(f"  const int64_t {one} = args->{one};\n" for one in sizes),
            "OUTSIDE": _outside(kernels),
            "CHECKS": _checks(interface),
            "WORKSPACE": _workspace(kernels.name, interface),
            "ARGUMENTS": _arguments(interface),
        },
    )


def _scratch(interface: CallInterface) -> str:
    lines = []
    for number, parts in enumerate(interface.scratch):
        if parts:
            lines.append(f"  case {number}:")
            for place, size_bytes in enumerate(parts):
                padded = f"((size_t){text_of(size_bytes)} + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT"
                lines.append(f"    places[{place}] = bytes;")
                lines.append(f"    bytes += {padded} * SCRATCH_ALIGNMENT;")
            lines.append("    break;")
    return "\n".join(lines)


def _outside(kernels: KernelSet) -> str:
    """The text and the values that refuse sizes without a kernel."""
    if not kernels.sizes:
        return '"there is no kernel"'
    found = ", ".join(f"{one.name}=%lld" for one in kernels.sizes)
    values = ", ".join(f"(long long){one.name}" for one in kernels.sizes)
    ranges = ", ".join(f"{one.name} = {one.first} .. {one.last}" for one in kernels.sizes)
    gaps = any(a.last + 1 < b.first for a, b in zip(kernels.segments, kernels.segments[1:], strict=False))
    which = ", of which it has some sizes" if gaps else ""
    return f'"{found} is outside of the plan, which covers {ranges}{which}", {values}'


def _checks(interface: CallInterface) -> str:
    fields = [tensor.field for tensor in interface.tensors]
    tests = " || ".join(f'check_address("{field}", args->{field})' for field in fields)
    lines = [f"  if ({tests}) return -1;"]
    lines += [f"  const size_t {t.field}_bytes = (size_t){text_of(t.size_bytes)};" for t in interface.tensors]
    outputs = [tensor.field for tensor in interface.outputs]
    for number, output in enumerate(outputs):
        for other in (*(tensor.field for tensor in interface.inputs), *outputs[:number]):
            lines.append(f"  if (overlap(args->{output}, {output}_bytes, args->{other}, {other}_bytes))")
            lines.append(
                f'    return refuse("{output} shares memory with {other}, which the kernel uses meanwhile");'
            )
    return "\n".join([*lines, ""])


def _workspace(name: str, interface: CallInterface) -> str:
    if not interface.has_scratch:
        return "  (void)needed;\n"
    return "\n".join(
        [
            "  if (needed) {",
            '    if (check_address("workspace", args->workspace)) return -1;',
            "    if (args->workspace_bytes < needed)",
            '      return refuse("workspace has %zu bytes and needs %zu, see ' + name + '_workspace",',
            "                    args->workspace_bytes, needed);",
            "  }",
            "",
        ]
    )


def _arguments(interface: CallInterface) -> str:
    lines = [
        f"  arguments[count++] = {'' if tensor.is_output else '(void *)(uintptr_t)'}args->{tensor.field};"
        for tensor in interface.tensors
    ]
    if interface.has_scratch:
        lines += [
            f"  const int parts = files[kernel].arguments - {len(interface.tensors)};",
            "  for (int i = 0; i < parts; i++) arguments[count++] = (char *)args->workspace + places[i];",
        ]
    taken = interface.dynamic[0]  # of a plan all kernels take the same dimensions
    lines += [f"  arguments[count++] = (void *)(intptr_t){text_of(value)};" for value in taken]
    return "\n".join([*lines, "  (void)count;"])


def _sha256() -> str:
    """The constants of SHA-256 are fractions of roots of the first primes, as FIPS 180-4 defines them."""
    primes = [n for n in range(2, 312) if all(n % d for d in range(2, isqrt(n) + 1))]
    constants = [f"0x{_cube_root(prime << 96) & 0xFFFFFFFF:08x}" for prime in primes[:64]]
    rows = [", ".join(constants[i : i + 8]) for i in range(0, 64, 8)]
    initial = ", ".join(f"0x{isqrt(prime << 64) & 0xFFFFFFFF:08x}" for prime in primes[:8])
    return fill("sha256.c", {"CONSTANTS": ",\n".join(f"    {row}" for row in rows), "INITIAL": initial})


def _cube_root(value: int) -> int:
    low, high = 0, 1 << (value.bit_length() // 3 + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**3 <= value else (low, middle - 1)
    return low


def _driver(target: Target, compilers: Sequence[str], any_card: bool) -> str:
    if not target.is_gpu:
        return fill("driver_host.c", {})
    number = re.sub(r"\D", "", target.arch)
    major, minor = number[:-1], number[-1]
    # code for an `a` runs on that chip alone, other code also on later ones of the same generation
    fits = f"minor != {minor}" if target.arch.endswith("a") else f"minor < {minor}"
    cards = "" if any_card else "".join(f'"{card}", ' for card in target.device_names)
    return fill(
        "driver_cuda.c",
        {
            "CARDS": cards,
            "CUDA_MAJOR": str(max((cuda_major(compiler) for compiler in compilers), default=0)),
            "OTHER_ARCH": f"major != {major} || {fits}"
            if minor != "0" or target.arch.endswith("a")
            else f"major != {major}",
            "ARCH": target.arch,
            "TARGET": target.title,
        },
    )


def cuda_major(compiler: str) -> int:
    """The generation of CUDA whose driver code of this compiler needs: 13 for `nvcc 13.0.88`."""
    found = re.search(r"(\d+)\.\d+", compiler)
    return int(found[1]) if found else 0
