"""What a kernel uses that only GPUs have: named where it cannot be lowered for a processor."""

from __future__ import annotations

from typing import Any

# scopes of buffers and names of TileLang's calls, by the words that users write
_SCOPES = {"local.fragment": "fragments", "shared": "shared memory"}
_CALLS = {"gemm": "T.gemm", "tma": "TMA copies", "mbarrier": "barriers"}
_OF_PROCESSORS = (
    "A kernel for a processor has serial, parallel and vectorized loops over tensors and T.alloc_local "
    "buffers, and no fragments, T.gemm or thread indices (docs/templates.md)"
)


def gpu_reason(prim_func: Any, target: str, error: Exception) -> str:
    """Why a function cannot be lowered for a processor, if it uses what only GPUs have; else "".

    Args:
        prim_func: the traced function.
        target: name of the processor's target, for the message.
        error: what TileLang raised.
    """
    found = gpu_features(prim_func)
    if "thread index" in str(error):
        found = (*found, "thread indices")
    if not found:
        return ""
    used = ", ".join(found)
    return f"the kernel is one for GPUs: it uses {used}, and is lowered for {target}. {_OF_PROCESSORS}"


def gpu_features(prim_func: Any) -> tuple[str, ...]:
    """What a traced function uses of a GPU, as users call it: fragments, shared memory, T.gemm, ..."""
    from tvm import tirx

    found: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlock):
            for buffer in node.alloc_buffers:
                scope = str(buffer.scope())
                found.update(word for start, word in _SCOPES.items() if scope.startswith(start))
        elif isinstance(node, tirx.Call):
            name = str(getattr(node.op, "name", ""))
            if name.startswith("tl."):
                found.update(word for part, word in _CALLS.items() if part in name)

    tirx.stmt_functor.post_order_visit(prim_func.body, visit)
    return tuple(word for word in (*_SCOPES.values(), *_CALLS.values()) if word in found)
