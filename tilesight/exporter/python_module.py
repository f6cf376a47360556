"""The Python module of an export: it needs torch and the standard library alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..version import __version__
from .formula import text_of
from .interface import CallInterface, TensorField
from .kernel_set import KernelSet
from .texts import fill

# functions that a call takes: by whether the kernels run on a GPU
_DEVICE_FUNCTIONS = {
    False: ['empty = _fast_empty("cpu")'],
    True: [
        'empty, current = _fast_empty("cuda"), torch._C._cuda_getDevice',
        "raw_stream = torch._C._cuda_getCurrentRawStream",
        "",
        "def elsewhere(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:",
        "    return torch.empty_strided(shape, strides, dtype=dtype, device=device)",
        "",
    ],
}


def python_module(kernels: KernelSet, interface: CallInterface, files: Mapping[str, str]) -> str:
    """`NAME.py`. `files`: the SHA-256 of each library by its path in the folder."""
    name, inputs, outputs, sizes = kernels.name, interface.inputs, interface.outputs, interface.sizes
    parameters = ", ".join(f"{t.field}: torch.Tensor" for t in inputs)
    given = ", ".join(t.field for t in inputs)
    result = ", ".join(t.field for t in outputs)
    ranges = ", ".join(f"{one.name} = {one.first} .. {one.last}" for one in kernels.sizes)
    is_gpu = kernels.problem.target.is_gpu
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
            "FIRST": inputs[0].field,
            "KEY": "".join(f"{one}, " for one in _key(interface, is_gpu)).strip(),
            "CALL_SUMMARY": f"{kernels.problem.operator.name}: {result} of {given}.",
            "CHECK_KINDS": _lines(_check_kind(t) for t in inputs),
            "CHECK_DEVICES": _lines(f'_check_device("{t.field}", {t.field}, device)' for t in inputs),
            "READ_SIZES": _lines(
                f"{one.size} = {_read(one.field, one.axis, one.part, one.more)}" for one in interface.sources
            ),
            # with one shape every other one is outside of the plan
            "SHAPE_ERROR": "ValueError" if sizes else "OutsideOfPlan",
            "CHECK_SHAPES": _lines(f'_check_shape("{t.field}", {t.field}, {_shape(t)})' for t in inputs),
            "FOUND_SIZES": ", ".join(f"{one}={{{one}}}" for one in sizes) or "the shape",
            "CHECK_LAYOUTS": _lines(f'_check_layout("{t.field}", {t.field})' for t in inputs),
            "GET_DEVICE_FUNCTIONS": _lines(_DEVICE_FUNCTIONS[is_gpu]),
            "STREAM": "raw_stream(index)" if is_gpu else "0",
            "SHAPES": _lines(line for t in interface.tensors for line in _shape_lines(t)),
            "WORKSPACE_SIZE": _lines([f"workspace_bytes = _workspace({', '.join(sizes)})"])
            if interface.has_scratch
            else "",
            "INPUTS_ARE_RIGHT": _lines(_conjoined([_is_right(t, is_gpu) for t in inputs]), 3),
            "ALLOCATE": _lines((_allocated(t, is_gpu) for t in outputs), 3),
            "TAKE_OUT": _lines(_take_out(outputs, is_gpu), 3),
            "ALLOCATE_WORKSPACE": _lines(_workspace(is_gpu), 2) if interface.has_scratch else "",
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


def _key(interface: CallInterface, is_gpu: bool) -> list[str]:
    """What determines a prepared call: the extents that sizes are read from, and the device."""
    extents = [f"{source.field}.shape[{source.axis}]" for source in interface.sources]
    return [*extents, f"{interface.inputs[0].field}.get_device()" if is_gpu else "0"]


def _shape_lines(tensor: TensorField) -> list[str]:
    field = tensor.field
    lines = [f"{field}_shape, {field}_dtype = {_shape(tensor)}, torch.{tensor.dtype}"]
    return [*lines, f"{field}_strides = _stride({field}_shape)"] if tensor.is_output else lines


def _is_right(tensor: TensorField, is_gpu: bool) -> list[str]:
    """Conditions of a tensor's shape, dtype, device and layout. Imaginary parts may be negated views."""
    field = tensor.field
    found = [f"{field}.shape == {field}_shape", f"{field}.dtype is {field}_dtype", f"{field}.is_contiguous()"]
    found.append(f"{field}.get_device() == index" if is_gpu else f"{field}.is_cpu")
    return [*found, f"not {field}.is_neg()"] if tensor.dtype in ("float16", "float32") else found


def _conjoined(conditions: list[list[str]]) -> list[str]:
    lines = [" and ".join(of_one) for of_one in conditions]
    return [lines[0], *(f"and {line}" for line in lines[1:])]


def _allocated(tensor: TensorField, is_gpu: bool) -> str:
    field = tensor.field
    return f"{field} = {_empty(f'{field}_shape, {field}_strides, {field}_dtype', is_gpu)}"


def _empty(given: str, is_gpu: bool) -> str:
    return f"empty({given}) if current() == index else elsewhere({given})" if is_gpu else f"empty({given})"


def _workspace(is_gpu: bool) -> list[str]:
    allocated = _empty("(workspace_bytes,), (1,), torch.uint8", is_gpu)
    return [
        "workspace, address = None, 0",
        "if workspace_bytes:",
        f"    workspace = {allocated}",
        "    address = workspace.data_ptr()",
    ]


def _take_out(outputs: tuple[TensorField, ...], is_gpu: bool) -> list[str]:
    lines = [f"{', '.join(t.field for t in outputs)} = out"]
    for t in outputs:
        right = " and ".join([f"{t.field}.__class__ is Tensor", *_is_right(t, is_gpu)])
        lines.append(f"if not ({right}):")
        lines.append(f'    _check_out("{t.field}", {t.field}, {t.field}_shape, {t.field}_dtype, device)')
    return lines


def _lines(lines: Iterable[str], depth: int = 1) -> str:
    return "\n".join("    " * depth + line if line else "" for line in lines)
