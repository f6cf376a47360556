"""mla_decode_paged: `mla_decode` of one query of each item, over FlashInfer's lists of pages.

output[b, h] = softmax(scale (q_nope[b, h] ckv[b]^T + q_pe[b, h] kpe[b]^T)) ckv[b], where ckv[b] and kpe[b]
are the latent vectors and the rotated keys of the listed pages of item b. Tensors have the names and axes of
FlashInfer's wrapper of latent attention and of FlashInfer-Bench's definitions `mla_paged_decode`; see
`_page_lists`. The default of `scale` is that of `mla_decode`.

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
from .mla_decode import OPERATOR as ALONE
from .mla_decode import MlaDecode, MlaDecodeGpu, check_columns

if TYPE_CHECKING:
    import torch

_V3: Mapping[str, Value] = {"scale": 192**-0.5}  # of DeepSeek-V3, whose heads had 128 + 64 columns
_K = 1024


class MlaDecodePaged(PageListOperator):
    name = "mla_decode_paged"
    alone: ClassVar[MlaDecode] = ALONE
    queries = ("q_nope", "q_pe")
    pools = ("ckv_cache", "kpe_cache")
    dims = ("batch", "heads", "dim", "indices", "pages")
    dim_defaults: ClassVar[Mapping[str, int | str]] = {"dim": 512, **PageListOperator.dim_defaults}
    attrs: ClassVar[Mapping[str, Value]] = {"rope_dim": 64, **PageListOperator.attrs}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "rope_dim": ALONE.choices["rope_dim"],
        **PageListOperator.choices,
    }
    # DeepSeek-V3: 128 heads, of which 16 on each of 8 GPUs (MP0 to MP2)
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "MP0": {"batch": 64, "heads": 16, "page": 1, "indices": 64 * 4 * _K, "lengths": "mixed", **_V3},
        "MP1": {"batch": 64, "heads": 16, "page": 64, "indices": 64 * 64, "lengths": "mixed", **_V3},
        "MP2": {"batch": 128, "heads": 16, "page": 64, "indices": 128 * 128, **_V3},
        "MP3": {"batch": 128, "heads": 128, "page": 1, "indices": 128 * 4 * _K, **_V3},
        "MP4": {"batch": 128, "heads": 128, "page": 64, "indices": 128 * 64, "lengths": "mixed", **_V3},
        "MP5": {"batch": 128, "heads": 128, "page": 64, "indices": 128 * 128, **_V3},
    }
    default_names = ("MP0", "MP1", "MP4")

    def operand_axes(self) -> Axes:
        rows, pool = ("batch", "heads"), ("pages", "page")
        return {
            "q_nope": (*rows, "dim"), "q_pe": (*rows, "rope_dim"),
            "ckv_cache": (*pool, "dim"), "kpe_cache": (*pool, "rope_dim"),
        }  # fmt: skip

    def operands(self, inputs: Tensors) -> "dict[str, torch.Tensor]":
        import torch

        queries, keys = (
            torch.cat([inputs[name] for name in names], -1) for names in (self.queries, self.pools)
        )
        return {"Q": queries[:, None], "KV": keys[:, :, None]}

    def validate(self, workload: Workload) -> None:
        check_columns(self.name, workload.dims["dim"])
        super().validate(workload)

    def flops(self, workload: Workload) -> int:
        """A product over dim + rope_dim columns and one over dim, for each head and key of its item."""
        columns = 2 * workload.dims["dim"] + int(workload.attrs["rope_dim"])
        return 2 * workload.dims["heads"] * columns * sum(self.lengths(workload))


OPERATOR = MlaDecodePaged()


class _RotatedApart(MlaDecodeGpu):
    rotated_apart = True


class MlaDecodePagedGpu(PageListTemplate):
    operator: MlaDecodePaged = OPERATOR
    name = "mla_decode_paged"
    alone: ClassVar[MlaDecodeGpu] = _RotatedApart()
    static_reasons: ClassVar[Mapping[str, str]] = {
        dim: MlaDecodeGpu.static_reasons[dim] for dim in ("heads", "dim")
    }

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        batch, heads, dim, indices, pages = workload.dims.values()
        dtype, split_k, page = workload.dtype, config.int("split_k"), int(workload.attrs["page"])
        rope_dim, attend = int(workload.attrs["rope_dim"]), self.attend(workload, config)

        @T.prim_func
        def mla_decode_paged(  # type: ignore[no-untyped-def]
            q_nope: T.Tensor((batch, heads, dim), dtype),  # type: ignore[valid-type]
            q_pe: T.Tensor((batch, heads, rope_dim), dtype),  # type: ignore[valid-type]
            ckv_cache: T.Tensor((pages, page, dim), dtype),  # type: ignore[valid-type]
            kpe_cache: T.Tensor((pages, page, rope_dim), dtype),  # type: ignore[valid-type]
            kv_indptr: T.Tensor((batch + 1,), "int32"),  # type: ignore[valid-type]
            kv_indices: T.Tensor((indices,), "int32"),  # type: ignore[valid-type]
            kv_last_page_len: tensor_if(page > 1, (batch,), "int32"),  # type: ignore[valid-type]
            output: T.Tensor((batch, heads, dim), dtype),  # type: ignore[valid-type]
            lse: T.Tensor((batch, heads), "float32"),  # type: ignore[valid-type]
            PartO: tensor_if(split_k > 1, (split_k, batch, 1, heads, dim), "float32"),  # type: ignore[valid-type]  # noqa: N803
            PartLSE: tensor_if(split_k > 1, (split_k, batch, 1, heads), "float32"),  # type: ignore[valid-type]  # noqa: N803
        ):
            attend(
                {
                    "Q": WithAxis(q_nope), "QRope": WithAxis(q_pe),
                    "KV": WithAxis(ckv_cache, 2), "KRope": WithAxis(kpe_cache, 2),
                },
                {
                    "kv_indptr": kv_indptr, "kv_indices": kv_indices, "kv_last_page_len": kv_last_page_len,
                    "output": output, "lse": lse, "PartO": PartO, "PartLSE": PartLSE,
                },
            )  # fmt: skip

        return mla_decode_paged


TEMPLATES = (MlaDecodePagedGpu(),)
