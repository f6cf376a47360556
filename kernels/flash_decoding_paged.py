"""flash_decoding_paged: `flash_decoding` of one query of each item, over FlashInfer's lists of pages.

output[b, h] = softmax(scale q[b, h] K[b, :, g]^T) V[b, :, g], where g is the kv head of head h, and K[b] and
V[b] are the keys and values of the listed pages of item b. Tensors have the names and axes of FlashInfer's
decode wrapper and of FlashInfer-Bench's definitions `gqa_paged_decode`; see `_page_lists`.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..problem.axes import Axes
from ..problem.operator import Tensors
from ..problem.space import Config, Value
from ..problem.workload import Workload
from ._optional_tensors import tensor_if
from ._page_lists import PageListOperator, PageListTemplate, WithAxis
from .flash_decoding import OPERATOR as ALONE
from .flash_decoding import FlashDecoding, FlashDecodingGpu, check_heads

if TYPE_CHECKING:
    import torch

_L8 = {"heads": 32, "kv_heads": 8, "head_dim": 128}
_L70 = {"heads": 64, "kv_heads": 8, "head_dim": 128}
_K = 1024


class FlashDecodingPaged(PageListOperator):
    name = "flash_decoding_paged"
    alone: ClassVar[FlashDecoding] = ALONE
    queries = ("q",)
    pools = ("k_cache", "v_cache")
    dims = ("batch", "heads", "kv_heads", "head_dim", "indices", "pages")
    # heads of Llama 3.1 8B (FP0 to FP2) and of 70B, whole (FP3) and on one of 4 GPUs (FP4, FP5); SGLang has
    # pages of 1 key, vLLM of 16
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "FP0": {"batch": 64, **_L8, "page": 1, "indices": 64 * 4 * _K, "lengths": "mixed"},
        "FP1": {"batch": 64, **_L8, "page": 64, "indices": 64 * 64, "lengths": "mixed"},
        "FP2": {"batch": 16, **_L8, "page": 16, "indices": 16 * 2 * _K, "lengths": "mixed"},
        "FP3": {"batch": 16, **_L70, "page": 64, "indices": 16 * 128},
        "FP4": {"batch": 64, "heads": 16, "kv_heads": 2, "head_dim": 128, "page": 1, "indices": 64 * 8 * _K},
        "FP5": {"batch": 64, "heads": 16, "kv_heads": 2, "head_dim": 128, "page": 64, "indices": 64 * 128},
    }
    default_names = ("FP0", "FP1", "FP3")

    def operand_axes(self) -> Axes:
        pool = ("pages", "page", "kv_heads", "head_dim")
        return {"q": ("batch", "heads", "head_dim"), "k_cache": pool, "v_cache": pool}

    def operands(self, inputs: Tensors) -> "dict[str, torch.Tensor]":
        return {"Q": inputs["q"][:, None], "K": inputs["k_cache"], "V": inputs["v_cache"]}

    def validate(self, workload: Workload) -> None:
        check_heads(self.name, *(workload.dims[dim] for dim in ("heads", "kv_heads", "head_dim")))
        super().validate(workload)

    def flops(self, workload: Workload) -> int:
        """Two products of 2 head_dim operations for each pair of a head and a key of its item."""
        return 4 * workload.dims["heads"] * workload.dims["head_dim"] * sum(self.lengths(workload))


OPERATOR = FlashDecodingPaged()


class FlashDecodingPagedGpu(PageListTemplate):
    operator: FlashDecodingPaged = OPERATOR
    name = "flash_decoding_paged"
    alone: ClassVar[FlashDecodingGpu] = FlashDecodingGpu()
    static_reasons: ClassVar[Mapping[str, str]] = {
        dim: FlashDecodingGpu.static_reasons[dim] for dim in ("heads", "kv_heads", "head_dim")
    }

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, kv_heads, head_dim, indices, pages = workload.dims.values()
        dtype, split_k, page = workload.dtype, config.int("split_k"), int(workload.attrs["page"])
        attend, pool = self.attend(workload, config), (pages, page, kv_heads, head_dim)

        @T.prim_func
        def flash_decoding_paged(  # type: ignore[no-untyped-def]
            q: T.Tensor((batch, heads, head_dim), dtype),  # type: ignore[valid-type]
            k_cache: T.Tensor(pool, dtype),  # type: ignore[valid-type]
            v_cache: T.Tensor(pool, dtype),  # type: ignore[valid-type]
            kv_indptr: T.Tensor((batch + 1,), "int32"),  # type: ignore[valid-type]
            kv_indices: T.Tensor((indices,), "int32"),  # type: ignore[valid-type]
            kv_last_page_len: tensor_if(page > 1, (batch,), "int32"),  # type: ignore[valid-type]
            output: T.Tensor((batch, heads, head_dim), dtype),  # type: ignore[valid-type]
            lse: T.Tensor((batch, heads), "float32"),  # type: ignore[valid-type]
            PartO: tensor_if(split_k > 1, (split_k, batch, 1, heads, head_dim), "float32"),  # type: ignore[valid-type]  # noqa: N803
            PartLSE: tensor_if(split_k > 1, (split_k, batch, 1, heads), "float32"),  # type: ignore[valid-type]  # noqa: N803
        ):
            attend(
                {"Q": WithAxis(q), "K": k_cache, "V": v_cache},
                {
                    "kv_indptr": kv_indptr, "kv_indices": kv_indices, "kv_last_page_len": kv_last_page_len,
                    "output": output, "lse": lse, "PartO": PartO, "PartLSE": PartLSE,
                },
            )  # fmt: skip

        return flash_decoding_paged


TEMPLATES = (FlashDecodingPagedGpu(),)
