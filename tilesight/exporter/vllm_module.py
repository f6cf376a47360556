"""The module of an export for vLLM: an operator of torch, a kernel to warm up, and Inductor's choice."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from ..dispatch.table.dispatch_table import Segment
from ..version import __version__
from .formula import Formula, Size, text_of
from .interface import CallInterface, SizeSource, TensorField
from .kernel_set import KernelSet
from .plain_torch import plain_torch
from .texts import fill

NO_KERNEL = -1


def vllm_module(kernels: KernelSet, interface: CallInterface) -> str:
    """`NAME_vllm.py`, which calls `NAME.py` of the same export."""
    name, inputs, outputs = kernels.name, interface.inputs, interface.outputs
    is_gpu, is_one = kernels.problem.target.is_gpu, len(outputs) == 1
    given = ", ".join(t.field for t in inputs)
    result = ", ".join(t.field for t in outputs)
    written = ", ".join(f"Tensor({chr(ord('a') + i)}!) {t.field}" for i, t in enumerate(outputs))
    reference = plain_torch(kernels.problem, interface)
    missing = _missing(kernels, interface, reference)
    return fill(
        "vllm.txt",
        {
            "NAME": name,
            "VERSION": __version__,
            "LABEL": kernels.problem.label,
            "CLASS": f"{''.join(word.capitalize() for word in name.split('_'))}Kernel",
            "RANGES": ", ".join(f"{one.name} = {one.first} .. {one.last}" for one in kernels.sizes)
            or "one shape",
            "INPUT_PARAMETERS": ", ".join(f"{t.field}: torch.Tensor" for t in inputs),
            "OUTPUT_PARAMETERS": ", ".join(f"{t.field}: torch.Tensor" for t in outputs),
            "INPUTS": given,
            "CONTIGUOUS_INPUTS": ", ".join(f"{t.field}.contiguous()" for t in inputs),
            "OUTPUTS": result if is_one else f"({result})",
            "SCHEMA": f"({', '.join(f'Tensor {t.field}' for t in inputs)}) -> "
            + ("Tensor" if is_one else f"({', '.join(['Tensor'] * len(outputs))})"),
            "OUT_SCHEMA": f"({', '.join(f'Tensor {t.field}' for t in inputs)}, {written}) -> ()",
            "KEY": "CUDA" if is_gpu else "CPU",
            "READ_SIZES": _lines(f"{one.size} = {_read(one)}" for one in interface.sources),
            "EMPTY_OUTPUTS": _lines(
                f"{t.field} = {inputs[0].field}.new_empty({_shape(t)}, dtype=torch.{t.dtype})"
                for t in outputs
            ),
            "DISPATCH_PARAMETERS": "".join(["self", *_keywords(interface.sizes)]),
            "DISPATCH": dispatch_expression(kernels),
            "KERNEL_COUNT": str(len(kernels.kernels)),
            "LAST_KERNEL": str(len(kernels.kernels) - 1),
            "WARMUP_SIZES": _warmup_sizes(kernels),
            "CURRENT_DEVICE": "torch.cuda.current_device()" if is_gpu else "0",
            "SIZE_PARAMETERS": ", ".join(f"{one}: int" for one in interface.sizes),
            "WARM_UP": _lines(
                [f'self(*_examples("{kernels.problem.torch_device}", **sizes))', *_waits(is_gpu)], 3
            ),
            "EXAMPLES": _lines(
                (f"torch.zeros({_shape(t)}, dtype=torch.{t.dtype}, device=device)," for t in inputs), 2
            ),
            "PLAIN": _lines([f"return {reference}" if reference else "raise NotImplementedError"]),
            "REFUSE_INDUCTOR": _lines([f'raise RuntimeError("{name}: {missing}")'] if missing else []),
            **_ranges(kernels, interface),
        },
    )


def dispatch_expression(kernels: KernelSet) -> str:
    """The index of the kernel as one conditional expression of the sizes; -1 outside of the plan."""
    if not kernels.sizes:
        return "0"
    first, *others = kernels.sizes
    found = _chosen(first.name, _pieces(kernels.segments))
    if others:
        inside = " and ".join(f"{one.first} <= {one.name} <= {one.last}" for one in others)
        found = f"({found}) if {inside} else {NO_KERNEL}"
    return found


def _pieces(segments: Sequence[Segment]) -> list[tuple[int | None, int]]:
    """The last size of each run of sizes with one kernel, and the kernel; None: no last size."""
    pieces: list[tuple[int | None, int]] = []
    end = 0
    for segment in segments:
        if segment.first > end + 1 or not pieces:
            pieces.append((segment.first - 1, NO_KERNEL))
        pieces.append((segment.last, segment.kernel))
        end = segment.last
    pieces.append((None, NO_KERNEL))
    # neighbours with the same kernel are one piece
    return [
        *(piece for piece, after in itertools.pairwise(pieces) if piece[1] != after[1]),
        pieces[-1],
    ]


def _chosen(size: str, pieces: Sequence[tuple[int | None, int]]) -> str:
    """A choice by halves, so that its depth grows with the logarithm of the number of pieces."""
    if len(pieces) == 1:
        return str(pieces[0][1])
    half = len(pieces) // 2
    low, high = _chosen(size, pieces[:half]), _chosen(size, pieces[half:])
    return f"{_grouped(low)} if {size} <= {pieces[half - 1][0]} else {_grouped(high)}"


def _grouped(text: str) -> str:
    return f"({text})" if " " in text else text


def _warmup_sizes(kernels: KernelSet) -> str:
    """The sizes at which each kernel is launched once: the smallest ones that it serves."""
    if not kernels.sizes:
        return "    {},"
    first, *others = kernels.sizes
    smallest = {s.kernel: s.first for s in sorted(kernels.segments, key=lambda s: -s.first)}
    rest = {one.name: one.first for one in others}
    return "\n".join(f"    { ({first.name: smallest[k], **rest}) }," for k in sorted(smallest))


def _missing(kernels: KernelSet, interface: CallInterface, reference: str | None) -> str:
    """Why Inductor cannot choose; "" if it can."""
    if len(interface.outputs) > 1:
        return "Inductor chooses for operators with one result only"
    if reference is None:
        return f"torch has no plain expression for {kernels.problem.operator.name} {kernels.problem.dtype}"
    return ""


def _ranges(kernels: KernelSet, interface: CallInterface) -> dict[str, str]:
    """Where Inductor looks for the size, and the ends of its ranges.

    It looks at the first tensor alone, and resizes no other one: without such a tensor it makes one choice,
    and for one kernel of any size, whose largest one would not fit into memory.
    """
    source = interface.sources[0] if interface.sources else None
    first = interface.inputs[0]
    is_found = (
        source is not None
        and kernels.table is not None
        and source.field == first.field
        and source.part == 1
        and source.more == 0
        and not any(_depends(e, source.size) for t in interface.inputs[1:] for e in t.shape)
    )
    if source is None or not is_found:
        return {"DISPATCH_ON": "None", "SPLIT_POINTS": "None"}
    ends = {end for s in kernels.segments for end in (s.first - 1, s.last)} - {0}
    last = kernels.sizes[0].last
    # the range beyond the plan is timed at its first size
    where = {"tensor_name": source.field, "dim": source.axis, "range_upper_bound": last + 1}
    return {"DISPATCH_ON": repr(where), "SPLIT_POINTS": repr(sorted(ends))}


def _depends(extent: Size, size: str) -> bool:
    if not isinstance(extent, Formula):
        return False
    if extent.operation == "size":
        return bool(extent.left == size)
    return _depends(extent.left, size) or _depends(extent.right, size)


def _waits(is_gpu: bool) -> list[str]:
    return ["torch.cuda.synchronize()"] if is_gpu else []


def _keywords(sizes: Sequence[str]) -> list[str]:
    return [", *", *(f", {one}: int" for one in sizes)] if sizes else []


def _read(source: SizeSource) -> str:
    less = f" - {source.more}" if source.more else ""
    times = f" * {source.part}" if source.part != 1 else ""
    return f"{source.field}.shape[{source.axis}]{less}{times}"


def _shape(tensor: TensorField) -> str:
    extents = ", ".join(text_of(extent, "//") for extent in tensor.shape)
    return f"({extents},)" if len(tensor.shape) == 1 else f"({extents})"


def _lines(lines: Iterable[str], depth: int = 1) -> str:
    return "\n".join("    " * depth + line for line in lines)
