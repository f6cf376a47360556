"""The Python module of an export: it needs torch and the standard library alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..version import __version__
from .formula import text_of
from .interface import CallInterface, TensorField
from .kernel_set import KernelSet
from .texts import fill


def python_module(kernels: KernelSet, interface: CallInterface, files: Mapping[str, str]) -> str:
    """`NAME.py`. `files`: the SHA-256 of each library by its path in the folder."""
    name, inputs, outputs, sizes = kernels.name, interface.inputs, interface.outputs, interface.sizes
    parameters = ", ".join(f"{t.field}: torch.Tensor" for t in inputs)
    given = ", ".join(t.field for t in inputs)
    result = ", ".join(t.field for t in outputs)
    ranges = ", ".join(f"{one.name} = {one.first} .. {one.last}" for one in kernels.sizes)
    contiguous = " and ".join(f"{t.field}.is_contiguous() and not {t.field}.is_neg()" for t in inputs)
    held = [t.field for t in interface.tensors] + (["workspace"] if interface.has_scratch else [])
    return fill(
        "module.txt",
        {
            "NAME": name,
            "VERSION": __version__,
            "LABEL": kernels.problem.label,
            "CALL_EXAMPLE": f"{result} = {name}.call({given})",
            "RANGES": ranges or "one shape",
            "FILES": "\n".join(f'    "{path}": "{digest}",' for path, digest in files.items()),
            "SIZE_COUNT": str(len(sizes)),
            "PACK_FORMAT": _pack_format(interface),
            "SIZE_PARAMETERS": ", ".join(f"{one}: int" for one in sizes),
            "SIZES": ", ".join(sizes),
            "SIZE_ARGUMENTS": "".join(f", {one}" for one in sizes),
            "SIZE_TYPED_ARGUMENTS": "".join(f", {one}: int" for one in sizes),
            "INPUT_PARAMETERS": parameters,
            "INPUTS": given,
            "NAMED_INPUTS": ", ".join(f"{t.field}={t.field}" for t in inputs),
            "FIRST": inputs[0].field,
            "KEY": ", ".join(f"{t.field}.shape, {t.field}.dtype, {t.field}.device" for t in inputs),
            "CALL_SUMMARY": f"{kernels.problem.operator.name}: {result} of {given}.",
            "CHECK_KINDS": _lines(_check_kind(t) for t in inputs),
            "CHECK_DEVICES": _lines(f'_check_device("{t.field}", {t.field}, device)' for t in inputs),
            "READ_SIZES": _lines(
                f"{one.size} = {_read(one.field, one.axis, one.part, one.more)}" for one in interface.sources
            ),
            "CHECK_SHAPES": _lines(f'_check_shape("{t.field}", {t.field}, {_shape(t)})' for t in inputs),
            "FOUND_SIZES": ", ".join(f"{one}={{{one}}}" for one in sizes) or "the shape",
            "OUTPUT_SHAPES": _lines(
                line
                for t in outputs
                for line in (
                    f"{t.field}_shape = {_shape(t)}",
                    f"{t.field}_strides, {t.field}_dtype = _stride({t.field}_shape), torch.{t.dtype}",
                )
            ),
            "WORKSPACE_SIZE": _lines([f"workspace_bytes = _workspace({', '.join(sizes)})"])
            if interface.has_scratch
            else "",
            "CONTIGUOUS": contiguous,
            "ALLOCATE": _lines(
                (f"{t.field} = empty({t.field}_shape, {t.field}_strides, {t.field}_dtype)" for t in outputs),
                3,
            ),
            "TAKE_OUT": _lines(_take_out(outputs), 3),
            "ALLOCATE_WORKSPACE": _lines(
                [
                    "workspace = empty((workspace_bytes,), (1,), torch.uint8) if workspace_bytes else None",
                    "address = 0 if workspace is None else workspace.data_ptr()",
                ],
                2,
            )
            if interface.has_scratch
            else "",
            "PACKED": ", ".join(
                [
                    "index",
                    *sizes,
                    *(f"{t.field}.data_ptr()" for t in interface.tensors),
                    *(["address", "workspace_bytes"] if interface.has_scratch else []),
                ]
            ),
            "HELD": "".join(f"{one}, " for one in held).strip(),
            "RESULT": result if len(outputs) == 1 else f"({result})",
            "DEVICE_TYPE": kernels.problem.torch_device,
        },
    )


def _pack_format(interface: CallInterface) -> str:
    """The members of `NAME_args` in the notation of `struct`, with the processor's alignment."""
    scratch = "PN" if interface.has_scratch else ""
    return f"i{'q' * len(interface.sizes)}{'P' * len(interface.tensors)}{scratch}"


def _check_kind(tensor: TensorField) -> str:
    return f'_check_kind("{tensor.field}", {tensor.field}, torch.{tensor.dtype}, {len(tensor.shape)})'


def _read(field: str, axis: int, part: int, more: int) -> str:
    less = f" - {more}" if more else ""
    return f"{field}.shape[{axis}]{less}" + (f" * {part}" if part != 1 else "")


def _shape(tensor: TensorField) -> str:
    extents = ", ".join(text_of(extent, "//") for extent in tensor.shape)
    return f"({extents},)" if len(tensor.shape) == 1 else f"({extents})"


def _take_out(outputs: tuple[TensorField, ...]) -> list[str]:
    names = ", ".join(t.field for t in outputs)
    lines = [f"{names} = out"]
    for t in outputs:
        checked = f'_check_out("{t.field}", {t.field}, {t.field}_shape, {t.field}_dtype, device)'
        lines.append(f"{t.field} = {checked}")
    return lines


def _lines(lines: Iterable[str], depth: int = 1) -> str:
    return "\n".join("    " * depth + line for line in lines)
