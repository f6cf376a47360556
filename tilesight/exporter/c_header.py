"""The C header of an export, and the same declarations for Rust."""

from __future__ import annotations

from ..version import __version__
from .formula import Size, text_of
from .interface import CallInterface, TensorField
from .kernel_set import KernelSet
from .texts import fill


def header(kernels: KernelSet, interface: CallInterface) -> str:
    """`NAME.h`: legal C and C++."""
    name, problem = kernels.name, kernels.problem
    members = [f"  int device; /* for which {name}_init was called */"]
    members += [f"  int64_t {one.name}; /* {one.first} .. {one.last} */" for one in kernels.sizes]
    members += [
        f"  {'void' if t.is_output else 'const void'} *{t.field}; /* {_described(t)} */"
        for t in interface.tensors
    ]
    if interface.has_scratch:
        members += [
            f"  void *workspace; /* memory of this call alone: at least {name}_workspace(...) bytes */",
            "  size_t workspace_bytes;",
        ]
    ranges = ", ".join(f"{one.name} = {one.first} .. {one.last}" for one in kernels.sizes)
    return fill(
        "header.h",
        {
            "NAME": name,
            "VERSION": __version__,
            "LABEL": problem.label,
            "RANGES": ranges or "one shape",
            "WHERE": "a GPU" if problem.target.is_gpu else "the processor (device 0)",
            "TARGET": problem.target.title,
            "ALIGNED": ", start at a multiple of 16 bytes" if problem.target.is_gpu else "",
            "GUARD": f"TILESIGHT_{name.upper()}_H",
            "MEMBERS": "\n".join(members),
            "SIZES": ", ".join(f"int64_t {one}" for one in interface.sizes) or "void",
        },
    )


def rust_bindings(kernels: KernelSet, interface: CallInterface) -> str:
    """`NAME.rs`: the header's declarations."""
    name = kernels.name
    number = "core::ffi::c_int"
    sizes = ", ".join(f"{one}: i64" for one in interface.sizes)
    members = [f"    pub device: {number},"]
    members += [f"    pub {one}: i64," for one in interface.sizes]
    for tensor in interface.tensors:
        kind = "*mut" if tensor.is_output else "*const"
        members.append(f"    /// {_described(tensor)}\n    pub {tensor.field}: {kind} core::ffi::c_void,")
    if interface.has_scratch:
        members += ["    pub workspace: *mut core::ffi::c_void,", "    pub workspace_bytes: usize,"]
    return "\n".join(
        [
            f"//! {kernels.problem.label}: the declarations of {name}.h, where they are described.",
            f"//! Written by TileSight {__version__}. Link with lib{name}.so.",
            "#![allow(non_camel_case_types, non_snake_case)]",
            "",
            "#[repr(C)]",
            "#[derive(Clone, Copy, Debug)]",
            f"pub struct {name}_args {{",
            *members,
            "}",
            "",
            'unsafe extern "C" {',
            f"    pub fn {name}_init(device: {number}) -> {number};",
            f"    pub fn {name}_call(args: *const {name}_args, stream: *mut core::ffi::c_void) -> {number};",
            f"    pub fn {name}_select({sizes}) -> {number};",
            f"    pub fn {name}_workspace({sizes}) -> usize;",
            f"    pub fn {name}_error() -> *const core::ffi::c_char;",
            "}",
            "",
        ]
    )


def _described(tensor: TensorField) -> str:
    return f"{tensor.dtype} ({', '.join(map(_extent, tensor.shape))})"


def _extent(extent: Size) -> str:
    text = text_of(extent)
    return text[1:-1] if text.startswith("(") else text
