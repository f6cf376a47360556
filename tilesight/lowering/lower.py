"""Lowers a TileLang PrimFunc to TVM device IR, on the CPU and without the hardware of the target."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..problem.peer_copies import peer_copies
from ..target.spec import Target
from .gpu_features import gpu_reason
from .thread_sync import shortened_thread_sync
from .unused_slices import without_unused_slices

# TVM writes this attribute as `True` or as `T.bool(True)`, by whether the target's text was asked for before.
_FLAG = re.compile(r"(\"tirx\.is_global_func\": )True")


@dataclass(frozen=True)
class Lowered:
    """The IR of one function as traced, and as host and device modules after TileLang's passes."""

    traced: Any  # tirx.PrimFunc before the passes, with tile operators
    host: Any  # IRModule: argument checks, TMA descriptors, launches
    device: Any  # IRModule: the kernels
    sizes: tuple[
        Any, ...
    ] = ()  # TIR variables of the dynamic dimensions, which the kernels take as arguments

    @property
    def fingerprint(self) -> str:
        """Hash of the device IR without names of variables: equal for configs that make the same kernel."""
        device = with_ordered_workspaces(_FLAG.sub(r"\1T.bool(True)", self.device.script()))
        copies = peer_copies(self.traced)
        beside = "" if copies is None else repr(copies)  # which the kernels themselves do not show
        text = _anonymous(device + _descriptors(self.host)) + beside
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def lower(
    prim_func: Any, target: Target, pass_configs: Mapping[str, Any] | None = None, *, only_read: bool = False
) -> Lowered:
    """Run TileLang's passes on a function, without what they only drop.

    Raises whatever TileLang raises, but `InputError` for a kernel for GPUs that is lowered for a processor.
    TileLang can abort the process, so untrusted functions are lowered in worker processes.

    Args:
        prim_func: the function; its attribute `tilelang_pass_configs` may hold options of the passes.
        target: the target to lower for.
        pass_configs: further options of the passes, which take precedence.
        only_read: whether the IR is read and not compiled. Then a pass takes a shortcut to the same IR.
    """
    # tilelang registers its types with TVM, so it must be imported before tvm
    import tilelang  # noqa: F401
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import lower_to_host_device_ir
    from tvm.ir.transform import PassContext
    from tvm.target import Target as TvmTarget

    tvm_target = TvmTarget(target.tvm_target())
    with contextlib.ExitStack() as stack:
        stack.enter_context(tvm_target)
        attributes = getattr(prim_func, "attrs", None) or {}
        options = {**dict(attributes.get("tilelang_pass_configs") or {}), **(pass_configs or {})}
        if options:
            stack.enter_context(PassContext(opt_level=3, config=options))
        stack.enter_context(without_unused_slices())
        if only_read:
            stack.enter_context(shortened_thread_sync())
        try:
            host, device, _params, _target, _target_host = lower_to_host_device_ir(
                prim_func, create_backend_context(tvm_target)
            )
        except Exception as error:  # TileLang raises many types of errors
            reason = "" if target.is_gpu else gpu_reason(prim_func, target.name, error)
            if reason:
                raise InputError(reason) from error
            raise
    return Lowered(prim_func, host, device)


def calls_of(body: Any, kernels: set[str]) -> Iterator[tuple[str, list[Any]]]:
    """(callee, arguments) of packed calls and direct kernel calls (C backend) of a host program, in order."""
    from tvm import ir, tirx

    found: list[tuple[str, list[Any]]] = []

    def visit(node: Any) -> None:
        if not isinstance(node, tirx.Call):
            return
        if isinstance(node.op, ir.GlobalVar):
            found.append((str(node.op.name_hint), list(node.args)))
        elif node.op.name in ("tirx.tvm_call_packed", "tirx.call_extern"):
            callee = str(getattr(node.args[0], "value", node.args[0]))
            if node.op.name == "tirx.tvm_call_packed" or callee in kernels:
                found.append((callee, list(node.args[1:])))

    tirx.stmt_functor.post_order_visit(body, visit)
    return iter(found)


def _descriptors(host: Any) -> str:
    """The TMA descriptors of the host part.

    Box, swizzle and bounds can differ although the device IR is equal.
    """
    return "".join(
        str(function.attrs["tma_descriptor_args"])
        for function in host.functions.values()
        if "tma_descriptor_args" in (function.attrs or {})
    )


def with_ordered_workspaces(script: str) -> str:
    """`script` with the workspaces of each kernel's reductions in one order: the first that is used is last.

    TVM orders buffers in shared memory by size and name. TileLang gives all workspaces one name, so those of
    one size change places from run to run.
    """
    head, *functions = re.split(r"(?=@T\.prim_func)", script)
    return head + "".join(map(_ordered, functions))


def _ordered(function: str) -> str:
    made = list(re.finditer(r"^ *(workspace\w*): T\.handle\(\"(\w+)\"", function, re.MULTILINE))
    if len(made) < 2:
        return function
    dtypes, uses = {line[1]: line[2] for line in made}, function[made[-1].end() :]
    kinds: dict[str, tuple[str, str]] = {}  # dtype and size, in the order of use
    for name, size in re.findall(r"\b(workspace\w*), \d+, (\d+)", uses):
        if name in dtypes:
            kinds.setdefault(name, (dtypes[name], size))
    renamed: dict[str, str] = {}
    for kind in set(kinds.values()):
        alike = [name for name in kinds if kinds[name] == kind]
        renamed |= zip(alike, [name for name in reversed(dtypes) if name in alike], strict=True)
    return function[: made[-1].end()] + re.sub(
        r"\bworkspace\w*", lambda use: renamed.get(use[0], use[0]), uses
    )


def _anonymous(script: str) -> str:
    """`script` with the identifiers that it defines replaced by numbers, in order of first appearance."""
    numbers: dict[str, str] = {}
    keep = re.compile(r"\"[^\"]*\"|T\.[A-Za-z_][\w.]*|\b[A-Za-z_]\w*\b")
    defined = set(re.findall(r"\b([A-Za-z_]\w*)\s*(?::\s*T\.|=\s*T\.|\bin\b)", script)) | set(
        re.findall(r"\bfor ((?:\w+,? ?)+) in\b", script)
    )

    def rename(match: re.Match[str]) -> str:
        word = match[0]
        return numbers.setdefault(word, f"v{len(numbers)}") if word in defined else word

    return keep.sub(rename, script)
