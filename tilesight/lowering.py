"""Lowering: from a TileLang PrimFunc to TVM device IR, on the CPU and without the target's hardware."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .target import Target


@dataclass(frozen=True)
class Lowered:
    """The IR of one function: as traced, and after TileLang's passes, split in host and device part (TVM objects)."""

    traced: Any  # tirx.PrimFunc with its tile operators intact
    host: Any  # IRModule: argument checks, TMA descriptors, launches
    device: Any  # IRModule: the kernels

    @property
    def fingerprint(self) -> str:
        """Hash of the device IR, with names of variables removed: equal for configs that make the same kernel."""
        return hashlib.sha256(_anonymous(self.device.script() + _descriptors(self.host)).encode()).hexdigest()[:16]


def lower(prim_func: Any, target: Target, pass_configs: Mapping[str, Any] | None = None) -> Lowered:
    """Run TileLang's passes for `target` on `prim_func`, with options of its own where `pass_configs` gives some. Raises
    whatever TileLang raises.

    Call it in a worker process where the function is not trusted: TileLang can abort the process.
    """
    # tilelang registers its types with TVM: it must be imported before anything of tvm
    import tilelang  # noqa: F401
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import lower_to_host_device_ir
    from tvm.ir.transform import PassContext
    from tvm.target import Target as TvmTarget

    tvm_target = TvmTarget(target.tvm_target())
    with contextlib.ExitStack() as stack:
        stack.enter_context(tvm_target)
        if pass_configs:
            stack.enter_context(PassContext(opt_level=3, config=dict(pass_configs)))
        host, device, _params, _target, _target_host = lower_to_host_device_ir(prim_func, create_backend_context(tvm_target))
    return Lowered(prim_func, host, device)


def _descriptors(host: Any) -> str:
    """The TMA descriptors that the host part builds: box, swizzle and bounds differ without the device IR differing."""
    return "".join(
        str(function.attrs["tma_descriptor_args"])
        for function in host.functions.values()
        if "tma_descriptor_args" in (function.attrs or {})
    )


def _anonymous(script: str) -> str:
    """`script` with every identifier that it defines numbered by first appearance."""
    numbers: dict[str, str] = {}
    keep = re.compile(r"\"[^\"]*\"|T\.[A-Za-z_][\w.]*|\b[A-Za-z_]\w*\b")
    defined = set(re.findall(r"\b([A-Za-z_]\w*)\s*(?::\s*T\.|=\s*T\.|\bin\b)", script)) | set(
        re.findall(r"\bfor ((?:\w+,? ?)+) in\b", script)
    )

    def rename(match: re.Match[str]) -> str:
        word = match[0]
        return numbers.setdefault(word, f"v{len(numbers)}") if word in defined else word

    return keep.sub(rename, script)
