"""The operator of torch of an export, in C++: kernels, and their shapes for tracing."""

from __future__ import annotations

from ..version import __version__
from .formula import Formula, Size, text_of
from .interface import CallInterface, SizeSource, TensorField
from .kernel_set import KernelSet
from .texts import fill

_SCALAR_TYPES = {
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "int8": "Char",
    "uint8": "Byte",
    "int32": "Int",
    "bool": "Bool",
}


def torch_operator(kernels: KernelSet, interface: CallInterface) -> str:
    """`NAME_torch.cpp`, which compiles against torch's headers without those of CUDA."""
    name, inputs, outputs = kernels.name, interface.inputs, interface.outputs
    given = ", ".join(t.field for t in inputs)
    result = ", ".join(t.field for t in outputs)
    is_one = len(outputs) == 1
    taken = ", ".join(f"Tensor {t.field}" for t in inputs)
    written = ", ".join(f"Tensor({chr(ord('a') + i)}!) {t.field}" for i, t in enumerate(outputs))
    returned = "Tensor" if is_one else f"({', '.join(['Tensor'] * len(outputs))})"
    return fill(
        "operator.cpp",
        {
            "NAME": name,
            "VERSION": __version__,
            "LABEL": kernels.problem.label,
            "IS_GPU": str(int(kernels.problem.target.is_gpu)),
            "SCHEMA": f"{name}({taken}) -> {returned}",
            "OUT_SCHEMA": f"{name}_out({taken}, {written}) -> ()",
            "INPUTS": given,
            "OUTPUTS": result,
            "FIRST": inputs[0].field,
            "KEY": "CUDA" if kernels.problem.target.is_gpu else "CPU",
            "TENSOR_PARAMETERS": ", ".join(f"const Tensor &{t.field}" for t in inputs),
            "OUTPUT_PARAMETERS": ", ".join(f"const Tensor &{t.field}" for t in outputs),
            "RETURNED": "Tensor" if is_one else f"std::tuple<{', '.join(['Tensor'] * len(outputs))}>",
            "RESULT": result if is_one else f"{{{result}}}",
            "CHECK_KINDS": _kinds(inputs),
            "CHECK_OUTPUT_KINDS": _kinds(outputs),
            "READ_SIZES": "\n".join(f"  const int64_t {_read(s, 'size')};" for s in interface.sources),
            "READ_SYMBOLIC_SIZES": "\n".join(
                f"  const c10::SymInt {_read(s, 'sym_size')};" for s in interface.sources
            ),
            "CHECK_TENSORS": "\n".join(
                f'  check_tensor({t.field}, "{t.field}", {inputs[0].field}, {{{_extents(t)}}});'
                for t in interface.tensors
            ),
            "FILL": "\n".join(
                [
                    *(f"  args.{one} = {one};" for one in interface.sizes),
                    *(f"  args.{t.field} = {t.field}.{_pointer(t)}();" for t in interface.tensors),
                ]
            ),
            "WORKSPACE": _workspace(name, interface),
            "ALLOCATE": "\n".join(
                f"  const Tensor {t.field} = at::empty({{{_extents(t)}}}, {_options(inputs[0], t)});"
                for t in outputs
            ),
            "ALLOCATE_SYMBOLIC": "\n".join(
                f"  const Tensor {t.field} = at::empty_symint({{{_symbolic(t)}}}, {_options(inputs[0], t)});"
                for t in outputs
            ),
        },
    )


def _kinds(tensors: tuple[TensorField, ...]) -> str:
    return "\n".join(
        f'  check_kind({t.field}, "{t.field}", at::k{_SCALAR_TYPES[t.dtype]}, {len(t.shape)});'
        for t in tensors
    )


def _read(source: SizeSource, function: str) -> str:
    less = f" - {source.more}" if source.more else ""
    times = f" * {source.part}" if source.part != 1 else ""
    return f"{source.size} = {source.field}.{function}({source.axis}){less}{times}"


def _extents(tensor: TensorField) -> str:
    return ", ".join(map(text_of, tensor.shape))


def _symbolic(tensor: TensorField) -> str:
    def text(extent: Size) -> str:
        return text_of(extent) if isinstance(extent, Formula) else f"c10::SymInt({extent})"

    return ", ".join(map(text, tensor.shape))


def _options(first: TensorField, tensor: TensorField) -> str:
    return f"{first.field}.options().dtype(at::k{_SCALAR_TYPES[tensor.dtype]})"


def _pointer(tensor: TensorField) -> str:
    return "mutable_data_ptr" if tensor.is_output else "const_data_ptr"


def _workspace(name: str, interface: CallInterface) -> str:
    if not interface.has_scratch:
        return ""
    first = interface.inputs[0].field
    return "\n".join(
        [
            f"  const std::size_t needed = {name}_workspace({', '.join(interface.sizes)});",
            "  // torch's allocator gives the memory to later work of the same stream",
            "  const Tensor workspace =",
            f"      at::empty({{static_cast<int64_t>(needed)}}, {first}.options().dtype(at::kByte));",
            "  args.workspace = workspace.mutable_data_ptr();",
            "  args.workspace_bytes = needed;",
            "",
        ]
    )
