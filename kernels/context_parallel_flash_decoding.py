"""context_parallel_flash_decoding: `flash_decoding` with the keys of each item spread over ranks.

Serving systems call it decode context parallelism, or a kv cache sharded along the sequence; the kernel of
one rank is flash decoding. See `_context_parallel` for what each rank has and gets.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from ..problem.group_operator import WORLD
from ..problem.operator import Tensors
from ..problem.space import Value
from ..problem.workload import Workload
from ._context_parallel import ContextParallelOperator, ContextParallelTemplate
from ._softmax_scale import softmax_scale
from .flash_decoding import OPERATOR as ALONE
from .flash_decoding import FlashDecoding, FlashDecodingGpu

if TYPE_CHECKING:
    import torch

_L70 = {"heads": 64, "kv_heads": 8, "head_dim": 128}
_L405 = {"heads": 128, "kv_heads": 8, "head_dim": 128}
_K = 1024


class ContextParallelFlashDecoding(ContextParallelOperator):
    name = "context_parallel_flash_decoding"
    alone: ClassVar[FlashDecoding] = ALONE
    dims = (*ALONE.dims, WORLD)
    dim_defaults = ALONE.dim_defaults
    attrs = ALONE.attrs
    later_attrs = ALONE.later_attrs
    choices = ALONE.choices
    # heads of Llama 3.1 8B (L8), 70B (L70) and 405B (L405), with whole contexts
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "L8": {"batch": 8, "heads": 32, "kv_heads": 8, "head_dim": 128, "kv_len": 128 * _K},
        "L70": {"batch": 8, **_L70, "kv_len": 128 * _K},
        "L405": {"batch": 8, **_L405, "kv_len": 128 * _K},
        "L70S": {"batch": 1, **_L70, "kv_len": 128 * _K},
        "L70M": {"batch": 32, **_L70, "kv_len": 32 * _K},
        "L70P": {"batch": 8, **_L70, "kv_len": 128 * _K, "page": 64, "lengths": "mixed"},
        "L70Q": {"batch": 8, **_L70, "kv_len": 128 * _K, "q_len": 4},
        "L405S": {"batch": 4, **_L405, "kv_len": 16 * _K, "lse": True},
    }
    default_names = ("L70", "L405", "L70P")

    def vendor_operands(
        self, workload: Workload, inputs: Tensors
    ) -> "tuple[torch.Tensor, Callable[[], tuple[torch.Tensor, torch.Tensor]], float]":
        kv_heads, head_dim = workload.dims["kv_heads"], workload.dims["head_dim"]
        queries = inputs["Q"].unflatten(2, (kv_heads, -1)).transpose(1, 2).flatten(2, 3)

        def cache() -> "tuple[torch.Tensor, torch.Tensor]":
            keys, values = (
                self.alone.tokens(workload, inputs, name, slice(None)).transpose(1, 2) for name in "KV"
            )
            return keys, values

        return queries, cache, softmax_scale(workload.attrs, head_dim)


OPERATOR = ContextParallelFlashDecoding()


class ContextParallelFlashDecodingGpu(ContextParallelTemplate):
    operator: ContextParallelFlashDecoding = OPERATOR
    name = "context_parallel_flash_decoding"
    alone: ClassVar[FlashDecodingGpu] = FlashDecodingGpu()
    static_reasons: ClassVar[Mapping[str, str]] = {
        **FlashDecodingGpu.static_reasons,
        **ContextParallelTemplate.static_reasons,
    }


TEMPLATES = (ContextParallelFlashDecodingGpu(),)
