"""Parameters of a kernel that only some workloads or configs have."""

from __future__ import annotations

from typing import Any


def tensor_if(present: bool, shape: tuple[Any, ...], dtype: str) -> Any:
    """The annotation of a parameter of a TileLang function that exists only if `present`."""
    import tilelang.language as T  # noqa: N812

    return T.Tensor(shape, dtype) if present else None
