"""What an operator computes in torch's own operators, as Python code, for compilers that choose."""

from __future__ import annotations

from ..dispatch.problem import DispatchProblem
from ..kernels.rms_norm import EPS
from .interface import CallInterface

_FLOATS = ("bfloat16", "float16", "float32")
_ACTIVATIONS = {
    "relu": "torch.relu({})",
    "gelu": 'torch.nn.functional.gelu({}, approximate="tanh")',
    "silu": "torch.nn.functional.silu({})",
}


def plain_torch(problem: DispatchProblem, interface: CallInterface) -> str | None:
    """The expression of the result; None if torch has no plain one, or there are several results."""
    if len(interface.outputs) > 1 or problem.dtype not in _FLOATS:
        return None
    fields = {tensor.name: tensor.field for tensor in interface.tensors}
    match problem.operator.name:
        case "matmul":
            return _product(problem, fields)
        case "rms_norm":
            x, w = fields["x"], fields["w"]
            return f"torch.nn.functional.rms_norm({x}, {x}.shape[-1:], {w}, {EPS})"
        case "silu_mul":
            x = fields["x"]
            return f"torch.nn.functional.silu({x}[:, 0]) * {x}[:, 1]"
        case "softmax":
            return f"torch.softmax({fields['x']}, dim=-1)"
    return None


def _product(problem: DispatchProblem, fields: dict[str, str]) -> str | None:
    layout, scales, fuse = (
        str(problem.operator.attribute(problem.attrs, name)) for name in ("layout", "scales", "fuse")
    )
    if scales != "none":
        return None
    a, b = (
        f"{fields[name]}.T" if axis == "t" else fields[name] for name, axis in zip("AB", layout, strict=True)
    )
    found = f"torch.matmul({a}, {b})"
    for name in fuse.split("_"):
        if name in _ACTIVATIONS:
            found = _ACTIVATIONS[name].format(found)
        elif name != "none":
            found = f"{found} + {fields[name]}"
    return found
