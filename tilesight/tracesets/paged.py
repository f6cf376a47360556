"""Definitions of decoding over a cache in pages: one query of each item, and lists of the items' pages.

A definition's scale is an argument; that of a kernel is a constant, which its calls are checked against.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from .. import kernels
from ..problem.config import Value
from .definition import DefinitionError, TraceDefinition, TraceTensor
from .match import KernelProblem, TraceMatch, constants, scale_check, size_of, stated_scale

Axes = dict[str, tuple[str, ...]]

_LISTS: Axes = {
    "kv_indptr": ("len_indptr",),
    "kv_indices": ("num_kv_indices",),
    "kv_last_page_len": ("batch_size",),
}
_DTYPES: Mapping[str, str] = {**dict.fromkeys(_LISTS, "int32"), "lse": "float32"}


class PageListMatch(TraceMatch):
    """An operator of `kernels/_page_lists.py`, whose tensors have the names of the definitions.

    Attributes:
        name: of a definition, with its constants in braces.
        description: of a definition.
        constants: the dimension or attribute of each constant axis but page_size.
        operands: axes of the queries and of the pools.
        output: axes of the output.
        formulas: lines of a reference: `k`, `v` (heads, keys, columns) and `query` (heads, columns) in
            float32, of an item with the pages `pages` and `count` keys.
    """

    has_random_inputs = False  # offsets must ascend, and pages must exist
    name: ClassVar[str]
    description: ClassVar[str]
    constants: ClassVar[Mapping[str, str]]
    operands: ClassVar[Axes]
    output: ClassVar[tuple[str, ...]]
    formulas: ClassVar[tuple[str, ...]]

    @abstractmethod
    def width(self, sizes: Mapping[str, int]) -> int:
        """Columns of a key, for sizes of the definition's constants."""

    def usual_scale(self, sizes: Mapping[str, int]) -> float:
        """The factor of scores of workloads that state none."""
        return float(self.width(sizes) ** -0.5)

    def _sizes(self, problem: KernelProblem) -> dict[str, int]:
        """Sizes of the constant axes."""
        attrs = problem.operator.attrs
        fixed = [name for name in self.constants.values() if name not in attrs]
        known = dict(zip(fixed, constants(problem, *fixed), strict=True))
        return {
            axis: known[name] if name in known else int(problem.attribute(name))
            for axis, name in {**self.constants, "page_size": "page"}.items()
        }

    def _inputs(self, page: int) -> Axes:
        lists = {name: axes for name, axes in _LISTS.items() if name != "kv_last_page_len" or page != 1}
        return {**self.operands, **lists}

    def _outputs(self) -> Axes:
        return {"output": self.output, "lse": self.output[:2]}

    def definition(self, problem: KernelProblem) -> TraceDefinition:
        sizes, dtype = self._sizes(problem), problem.dtype
        page = sizes["page_size"]

        def tensors(given: Axes) -> dict[str, TraceTensor]:
            return {name: TraceTensor(axes, _DTYPES.get(name, dtype)) for name, axes in given.items()}

        return TraceDefinition(
            self.name.format(**sizes),
            self.op_type,
            {**sizes, **dict.fromkeys(("batch_size", "num_pages", "len_indptr", "num_kv_indices"))},
            {**tensors(self._inputs(page)), "sm_scale": TraceTensor(None, "float32")},
            tensors(self._outputs()),
            self._reference(page),
            self.description,
        )

    def _reference(self, page: int) -> str:
        query, pool, inputs = next(iter(self.operands)), list(self.operands)[-1], self._inputs(page)
        count = f"(len(pages) - 1) * {page} + int(kv_last_page_len[item])" if page != 1 else "len(pages)"
        lines = (
            "import math\n\nimport torch\n\n",
            f"def run({', '.join(inputs)}, sm_scale):",
            f"    output = torch.zeros_like({query})",
            f"    lse = torch.full({query}.shape[:2], -math.inf, dtype=torch.float32, device={query}.device)",
            "    ends = kv_indptr.tolist()",
            "    for item in range(len(ends) - 1):",
            "        pages = kv_indices[ends[item] : ends[item + 1]].long()",
            "        if len(pages) == 0:",
            "            continue",
            f"        count = {count}",
            *(f"        {line}" for line in self.formulas),
            "        scores = (k @ query[:, :, None])[:, :, 0] * sm_scale",
            f"        output[item] = (torch.softmax(scores, dim=-1)[:, None] @ v)[:, 0].to({pool}.dtype)",
            "        lse[item] = torch.logsumexp(scores, dim=-1) / math.log(2)",
            "    return output, lse\n",
        )
        return "\n".join(lines)

    def axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return {
            "batch_size": sizes["batch"],
            "num_pages": sizes["pages"],
            "len_indptr": sizes["batch"] + 1,
            "num_kv_indices": sizes["indices"],
        }

    def run(self, problem: KernelProblem, module: str) -> str:
        sizes = self._sizes(problem)
        scale = float(problem.attribute("scale")) or self.width(sizes) ** -0.5
        inputs = list(self._inputs(sizes["page_size"]))
        given = ", ".join("known" if name == "kv_indices" else name for name in inputs)
        return (
            f"def run({', '.join(inputs)}, sm_scale, output, lse):\n"
            f"{scale_check(scale)}"
            "    # kernels have at least one entry, also where no item has a page\n"
            "    known = kv_indices if kv_indices.shape[0] else kv_indices.new_zeros(1)\n"
            f"    given = (one.contiguous() for one in ({given}))\n"
            f"    {module}.call(*given, out=(output, lse))\n"
        )

    def shape(
        self, definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> dict[str, Value]:
        page, legal = definition.constant("page_size"), kernels.operator(self.operator).choices["page"]
        if page not in legal:
            raise DefinitionError(f"page_size={page} must be one of: {', '.join(map(str, legal))}")
        if not definition.has(self._inputs(page), self._outputs(), ("sm_scale",)):
            raise DefinitionError("it is not the attention of one query of each item over a cache in pages")
        sizes, size = {axis: definition.constant(axis) for axis in self.constants}, definition.sizes(axes)
        batch = size_of(size, "batch_size")
        if size.get("len_indptr", batch + 1) != batch + 1:
            raise DefinitionError(
                f"len_indptr={size['len_indptr']} must be {batch + 1}, one more than batch_size={batch}"
            )
        return {
            "batch": batch,
            **{name: sizes[axis] for axis, name in self.constants.items()},
            "pages": size_of(size, "num_pages"),
            "indices": size_of(size, "num_kv_indices"),
            "page": page,
            "scale": stated_scale(scalars, self.width(sizes), self.usual_scale(sizes)),
        }


_POOL = ("num_pages", "page_size", "num_kv_heads", "head_dim")


class PagedMatch(PageListMatch):
    """Grouped-query attention of one query of each item, with its log-sum-exp to base 2."""

    op_type = "gqa_paged"
    operator = "flash_decoding_paged"
    name = "gqa_paged_decode_h{num_qo_heads}_kv{num_kv_heads}_d{head_dim}_ps{page_size}"
    description = "attention of one query of each item over listed pages; lse is the log-sum-exp to base 2"
    constants: ClassVar[Mapping[str, str]] = {
        **{"num_qo_heads": "heads", "num_kv_heads": "kv_heads", "head_dim": "head_dim"},
    }
    operands: ClassVar[Axes] = {
        "q": ("batch_size", "num_qo_heads", "head_dim"),
        "k_cache": _POOL,
        "v_cache": _POOL,
    }
    output = ("batch_size", "num_qo_heads", "head_dim")
    formulas = (
        "query = q[item].float()",
        "k, v = (cache[pages].flatten(0, 1)[:count].float() for cache in (k_cache, v_cache))",
        "group = q.shape[1] // k.shape[1]",
        "k, v = (one.transpose(0, 1).repeat_interleave(group, dim=0) for one in (k, v))",
    )
    tensors: ClassVar[Mapping[str, str]] = {name: name for name in (*operands, *_LISTS, "output", "lse")}

    def width(self, sizes: Mapping[str, int]) -> int:
        return sizes["head_dim"]

    def shape(
        self, definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> dict[str, Value]:
        found = super().shape(definition, axes, scalars)
        if int(found["heads"]) % int(found["kv_heads"]):
            raise DefinitionError(
                f"num_qo_heads={found['heads']} is no multiple of num_kv_heads={found['kv_heads']}"
            )
        return found


class PagedLatentMatch(PageListMatch):
    """Latent attention of one query of each item, with its log-sum-exp to base 2."""

    op_type = "mla_paged"
    operator = "mla_decode_paged"
    name = "mla_paged_decode_h{num_qo_heads}_ckv{head_dim_ckv}_kpe{head_dim_kpe}_ps{page_size}"
    description = (
        "latent attention of one query of each item over listed pages; lse is the log-sum-exp to base 2"
    )
    constants: ClassVar[Mapping[str, str]] = {
        **{"num_qo_heads": "heads", "head_dim_ckv": "dim", "head_dim_kpe": "rope_dim"},
    }
    operands: ClassVar[Axes] = {
        "q_nope": ("batch_size", "num_qo_heads", "head_dim_ckv"),
        "q_pe": ("batch_size", "num_qo_heads", "head_dim_kpe"),
        "ckv_cache": ("num_pages", "page_size", "head_dim_ckv"),
        "kpe_cache": ("num_pages", "page_size", "head_dim_kpe"),
    }
    output = ("batch_size", "num_qo_heads", "head_dim_ckv")
    formulas = (
        "query = torch.cat([q_nope[item], q_pe[item]], dim=-1).float()",
        "k = torch.cat([ckv_cache[pages], kpe_cache[pages]], dim=-1).flatten(0, 1)[None, :count].float()",
        "v = k[:, :, : q_nope.shape[-1]]",
    )
    tensors: ClassVar[Mapping[str, str]] = {name: name for name in (*operands, *_LISTS, "output", "lse")}

    def width(self, sizes: Mapping[str, int]) -> int:
        return sizes["head_dim_ckv"] + sizes["head_dim_kpe"]

    def usual_scale(self, sizes: Mapping[str, int]) -> float:
        """Of heads before their projections are absorbed, which have 128 columns that are not rotated."""
        return float((128 + sizes["head_dim_kpe"]) ** -0.5)

    def shape(
        self, definition: TraceDefinition, axes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> dict[str, Value]:
        rope_dim, legal = (
            definition.constant("head_dim_kpe"),
            kernels.operator(self.operator).choices["rope_dim"],
        )
        if rope_dim not in legal:
            raise DefinitionError(f"head_dim_kpe={rope_dim} must be one of: {', '.join(map(str, legal))}")
        return super().shape(definition, axes, scalars)
