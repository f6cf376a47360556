"""The name of an export, which begins its functions in C and names its files."""

from __future__ import annotations

import re
import sys

from ..errors import InputError
from .interface import RESERVED

MOST_LETTERS = 63
# packages that programs with an export may import: a module of that name would take their place
_PACKAGES = frozenset(
    {
        *("cuda", "cupy", "cutlass", "deep_gemm", "flash_attn", "flashinfer", "flashinfer_bench", "jax"),
        *("numpy", "pandas", "pip", "pydantic", "ray", "safetensors", "scipy", "setuptools", "sglang"),
        *("sgl_kernel", "tilelang", "tilesight", "torch", "torchaudio", "torchvision", "transformers"),
        *("triton", "tvm", "tvm_ffi", "vllm", "xformers", "yaml"),
    }
)
_FORM = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def check_name(name: str) -> None:
    """Raise `InputError` unless a C program, a Python program and a file system can all have this name."""
    reason = ""
    if not _FORM.fullmatch(name):
        reason = "must be letters, digits and _, the first one a letter"
    elif len(name) > MOST_LETTERS:
        reason = f"must have at most {MOST_LETTERS} letters"
    elif name in RESERVED:
        reason = "is a word of C, C++, Rust or Python"
    elif name == "driver":
        reason = "begins functions of the library itself"
    elif name in sys.stdlib_module_names or name in _PACKAGES:
        reason = "is a module of Python"
    if reason:
        raise InputError(f"name '{name}' {reason}; give another one: --name NAME")


def name_from(text: str) -> str:
    """A name made from a file's or kernel's name; it may still be refused by `check_name`."""
    return re.sub(r"\W", "_", text)
