"""Small shapes of the operators whose dimensions depend on each other, and a config, for tests of several."""

from __future__ import annotations

from collections.abc import Mapping

from tilesight.problem.group_operator import WORLD
from tilesight.problem.operator import Operator

# a config of matmul for wgmma: two groups of consumers, and a producer
MATMUL_TILE: Mapping[str, int | str] = {
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "num_stages": 3,
    "threads": 256,
    "policy": "square",
    "epilogue": "shared",
    "swizzle": 0,
}

# dimensions that must be multiples of others, or lie in a range: functions of the size that a test wants
_FIXED: Mapping[str, Mapping[str, int]] = {
    "all_to_all_grouped_matmul": {"hidden": 1024, "inner": 64, "experts": 4, "topk": 2},
    "context_parallel_flash_attention": {"heads": 2, "seq_len": 128, "head_dim": 32},
    "context_parallel_flash_decoding": {"heads": 8, "kv_heads": 2, "head_dim": 32},
    "context_parallel_mla_decode": {"heads": 8, "dim": 64},
    "block_sparse_attention": {"heads": 2, "head_dim": 32},
    "flash_attention_bwd": {"heads": 2, "head_dim": 16},
    "flash_attention_varlen": {"batch": 3},
    "flash_decoding": {"heads": 8, "kv_heads": 2, "head_dim": 32},
    "flash_decoding_paged": {"batch": 3, "heads": 8, "kv_heads": 2, "head_dim": 32},
    "grouped_matmul": {"groups": 3},
    "mla_decode": {"dim": 64},
    "mla_decode_paged": {"batch": 12, "heads": 8, "dim": 64},
    "native_sparse_attention": {"batch": 2, "heads": 32, "head_dim": 48},
    "rope": {"head_dim": 64},
}


def shape(operator: Operator, *sizes: int, **given: int) -> str:
    """A shape with these sizes of the first dimensions that may have any size; the last size serves the rest.

    Dimensions that depend on others have a legal size of their own, unless they are `given`. The world is
    left to the target.
    """
    fixed = {**_FIXED.get(operator.name, {}), **given}
    ours = [dim for dim in operator.dims if dim != WORLD or not operator.communicates]
    free = [dim for dim in ours if dim not in fixed and dim not in operator.dim_defaults]
    chosen = {dim: sizes[min(i, len(sizes) - 1)] for i, dim in enumerate(free)}
    return ",".join(f"{dim}={size}" for dim, size in {**chosen, **fixed}.items())


def free_dims(operator: Operator) -> list[str]:
    """Dimensions that may have any size."""
    fixed = _FIXED.get(operator.name, {})
    return [dim for dim in operator.dims if dim not in fixed and dim not in operator.dim_defaults]
