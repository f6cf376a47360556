"""context_parallel_mla_decode: `mla_decode` with the latent vectors of each item spread over ranks.

All heads share the latent vectors, so that ranks with a part of the heads would all keep the whole cache. See
`_context_parallel` for what each rank has and gets. Queries with keys of their own (`topk`) are left out.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from ..problem.group_operator import WORLD
from ..problem.operator import Tensors
from ..problem.space import Value
from ..problem.workload import Workload
from ._context_parallel import ContextParallelOperator, ContextParallelTemplate
from ._softmax_scale import softmax_scale
from .mla_decode import OPERATOR as ALONE
from .mla_decode import MlaDecode, MlaDecodeGpu

if TYPE_CHECKING:
    import torch

_K = 1024


class ContextParallelMlaDecode(ContextParallelOperator):
    name = "context_parallel_mla_decode"
    alone: ClassVar[MlaDecode] = ALONE
    dims = (*ALONE.dims, WORLD)
    dim_defaults = ALONE.dim_defaults
    attrs: ClassVar[Mapping[str, Value]] = {k: v for k, v in ALONE.attrs.items() if k != "topk"}
    later_attrs = ALONE.later_attrs
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        k: v for k, v in ALONE.choices.items() if k != "topk"
    }
    # DeepSeek-V3 has 128 heads, Kimi K2 64
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "DS": {"batch": 8, "heads": 128, "kv_len": 128 * _K},
        "DSS": {"batch": 1, "heads": 128, "kv_len": 128 * _K},
        "DSM": {"batch": 32, "heads": 128, "kv_len": 32 * _K},
        "DSL": {"batch": 64, "heads": 128, "kv_len": 8 * _K},
        "DSP": {"batch": 8, "heads": 128, "kv_len": 128 * _K, "page": 64, "lengths": "mixed"},
        "DSQ": {"batch": 8, "heads": 128, "kv_len": 128 * _K, "q_len": 2},
        "K2": {"batch": 8, "heads": 64, "kv_len": 128 * _K},
        "K2S": {"batch": 4, "heads": 64, "kv_len": 16 * _K, "lse": True},
    }
    default_names = ("DS", "DSS", "DSP")

    def vendor_operands(
        self, workload: Workload, inputs: Tensors
    ) -> "tuple[torch.Tensor, Callable[[], tuple[torch.Tensor, torch.Tensor]], float]":
        def cache() -> "tuple[torch.Tensor, torch.Tensor]":
            keys = self.alone.tokens(workload, inputs, "KV", slice(None)).transpose(1, 2)
            return keys, keys[..., : workload.dims["dim"]]

        queries = inputs["Q"].flatten(1, 2)[:, None]
        return queries, cache, softmax_scale(workload.attrs, queries.shape[-1])


OPERATOR = ContextParallelMlaDecode()


class ContextParallelMlaDecodeGpu(ContextParallelTemplate):
    operator: ContextParallelMlaDecode = OPERATOR
    name = "context_parallel_mla_decode"
    alone: ClassVar[MlaDecodeGpu] = MlaDecodeGpu()
    static_reasons: ClassVar[Mapping[str, str]] = {
        **MlaDecodeGpu.static_reasons,
        **ContextParallelTemplate.static_reasons,
    }


TEMPLATES = (ContextParallelMlaDecodeGpu(),)
