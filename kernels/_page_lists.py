"""Attention of one query of each item over lists of pages, as FlashInfer's wrappers take them.

The pages of all items stand side by side in `kv_indices`: item b has those from `kv_indptr[b]` up to
`kv_indptr[b + 1]`, which may be none. All of its pages are full but the last one, which has
`kv_last_page_len[b]` keys. That tensor is left out where a page has one key.

The kernels are those of page tables (`_kv_cache`). They look up pages and lengths in objects that read the
lists, so that no table is made. `lse` is the logarithm to base 2 of the sum of weights. An item without pages
has outputs of 0, and -infinity as `lse`.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ..problem.axes import Axes, Axis, Plus, shape
from ..problem.index_values import not_rising, outside
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..target.spec import Target
from ._kv_cache import CacheOperator, CacheTemplate, check_sizes, normal_inputs
from ._softmax_scale import check_scale
from ._split_kv import combination, partials

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


class PageListOperator(Operator):
    """The operator `alone` for lists of pages, with the dimensions batch, heads, pages (of the pool) and
    indices (entries of `kv_indices`).

    Attributes:
        alone: the operator of page tables.
        queries, pools: names of the inputs that are queries, and of those that are pools of pages.
    """

    alone: ClassVar[CacheOperator]
    queries: ClassVar[tuple[str, ...]]
    pools: ClassVar[tuple[str, ...]]

    dim_defaults: ClassVar[Mapping[str, int | str]] = {"pages": "indices"}
    attrs: ClassVar[Mapping[str, Value]] = {"page": 64, "lengths": "full", "scale": 0.0}
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "page": (1, 16, 32, 64, 128, 256),
        "lengths": ("full", "mixed"),
    }

    @abstractmethod
    def operand_axes(self) -> Axes:
        """Axes of the queries and of the pools."""

    @abstractmethod
    def operands(self, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """The queries and pools as inputs of `alone`, by its names."""

    def tables(self, workload: Workload, **dims: int) -> Workload:
        """The workload of `alone`, in which an item has room for one page unless `dims` says otherwise.

        Kernels with lengths do not depend on the room.
        """
        sizes = {"q_len": 1, "kv_len": int(workload.attrs["page"]), **workload.dims, **dims}
        attrs = self.alone.kept_attributes({**workload.attrs, "lengths": "mixed", "lse": True})
        return replace(
            workload,
            operator=self.alone.name,
            dims={dim: sizes[dim] for dim in self.alone.dims},
            attrs=attrs,
            name=None,
        )

    def as_tables(self, workload: Workload, inputs: Tensors) -> "tuple[Workload, dict[str, torch.Tensor]]":
        """The workload of `alone` with room for the longest item, and its inputs."""
        import torch

        page, ends, listed = int(workload.attrs["page"]), inputs["kv_indptr"], inputs["kv_indices"]
        longest = max(1, int(ends.diff().max()))
        places = ends[:-1, None] + torch.arange(longest, device=ends.device)
        table = listed[
            places.clamp(max=len(listed) - 1).long()
        ]  # entries beyond an item's pages are of others
        lengths = keys_of(ends, inputs.get("kv_last_page_len"), page).to(torch.int32)
        found = {**self.operands(inputs), "Table": table, "Lengths": lengths}
        return self.tables(workload, kv_len=longest * page), found

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        last: Axes = {"kv_last_page_len": ("batch",)} if attrs["page"] != 1 else {}
        rows: tuple[Axis, ...] = ("batch", "heads")
        lists: Axes = {"kv_indptr": (Plus("batch", 1),), "kv_indices": ("indices",), **last}
        return {**self.operand_axes(), **lists, "output": (*rows, self.alone.columns), "lse": rows}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        lists = dict.fromkeys(("kv_indptr", "kv_indices", "kv_last_page_len"), "int32")
        return {**lists, "lse": "float32"}

    def validate(self, workload: Workload) -> None:
        check_scale(self.name, workload.attrs)
        elements = max(map(math.prod, self._shapes(workload).values()))
        check_sizes(self.name, workload.dims["batch"], elements)

    def contents(self, workload: Workload) -> "Mapping[str, NDArray[Any]]":
        """Equal numbers of pages, as far as they can be divided; of mixed lengths, numbers that differ by a
        factor of up to 8, and last pages of any length. Pages of the pool in random order.
        """
        import numpy as np

        batch, pages, indices = (workload.dims[dim] for dim in ("batch", "pages", "indices"))
        page, draw = int(workload.attrs["page"]), np.random.default_rng(7)
        is_mixed = workload.attrs["lengths"] == "mixed"
        shares = np.cumsum(draw.uniform(1, 8, batch) if is_mixed else np.ones(batch))
        ends = np.concatenate([[0], np.rint(shares / shares[-1] * indices)])
        last = draw.integers(1, page + 1, batch) if is_mixed else np.full(batch, page)
        found = {
            "kv_indptr": ends,
            "kv_indices": np.resize(draw.permutation(pages), indices),
            **({"kv_last_page_len": last} if page != 1 else {}),
        }
        return {name: values.astype(np.int32) for name, values in found.items()}

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        """Ends of items that fall or exceed the list, pages that a pool does not have, and last pages of no
        keys or too many. Entries that belong to no item, and last pages of none, may have any value.
        """
        import torch

        ends, listed, page = inputs["kv_indptr"], inputs["kv_indices"], int(workload.attrs["page"])
        fault = not_rising("kv_indptr", ends, workload.dims["indices"], "pages of the items", "listed pages")
        if fault:
            return fault
        used = torch.arange(len(listed), device=listed.device) < ends[-1]
        rule = "the pool has that many pages, and a listed page is one of them"
        fault = outside("kv_indices", listed, 0, workload.dims["pages"] - 1, rule, where=used)
        if fault or page == 1:
            return fault
        rule = f"keys of an item's last page of {page}"
        return outside("kv_last_page_len", inputs["kv_last_page_len"], 1, page, rule, where=ends.diff() > 0)

    def inputs(self, workload: Workload, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """Queries and pools ~ N(0, 1): scores have unit variance after scaling. `contents` are known."""
        return normal_inputs(self, workload, device, seed)

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Queries are 32 times as large: few keys have nearly all weight, and exp of a score may exceed
        float32.
        """
        tensors = self.inputs(workload, device, seed)
        for name in self.queries:
            tensors[name].mul_(32)
        return SecondInputs(tensors)

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        found = self._shapes(workload)
        return {name: found[name] for name in ("output", "lse")}

    def _shapes(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        axes = self.tensor_axes(workload.attrs)
        return {name: shape(of, workload.dims, workload.attrs) for name, of in axes.items()}

    def reference(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """That of `alone`, over tables: softmax attention in float32 without TF32."""
        out, lse = self.alone.attention(*self.as_tables(workload, inputs), squared=False)
        return {"output": out[:, 0], "lse": lse[:, 0] / math.log(2)}

    def magnitude(self, workload: Workload, inputs: Tensors) -> "dict[str, torch.Tensor]":
        """As that of `alone`; the error of a logarithm is divided by log(2), too."""
        squares, lse = self.alone.attention(*self.as_tables(workload, inputs), squared=True)
        return {"output": squares[:, 0].sqrt_(), "lse": lse[:, 0].abs().add_(1) / math.log(2)}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """Those of `alone`, over tables that are made before the call. FlashInfer reads lists."""
        calls = self.alone.vendor(*self.as_tables(workload, inputs))

        def of_one_query(call: Callable[[], object]) -> Callable[[], object]:
            def result() -> object:
                found: Any = call()
                return found[:, 0]

            return result

        return {name: of_one_query(call) for name, call in calls.items()}

    def lengths(self, workload: Workload) -> list[int]:
        """Keys of each item."""
        import torch

        known = {name: torch.from_numpy(values) for name, values in self.contents(workload).items()}
        page = int(workload.attrs["page"])
        found: list[int] = keys_of(known["kv_indptr"], known.get("kv_last_page_len"), page).tolist()
        return found

    def room(self, workload: Workload) -> int:
        """Keys that the pages of the longest item have room for."""
        page = int(workload.attrs["page"])
        return max(1, -(-max(self.lengths(workload)) // page)) * page

    def rounding(self, workload: Workload) -> Rounding:
        """Weights are rounded to the dtype before they multiply values; their sum is not."""
        return Rounding(self.room(workload), inner=workload.dtype, cuts=True)

    def min_bytes(self, workload: Workload) -> int:
        """Keys within the items' lengths are read once."""
        found, lists = self._shapes(workload), self.contents(workload)
        rows = sum(math.prod(found[name]) for name in (*self.queries, "output"))
        columns = sum(math.prod(found[name][2:]) for name in self.pools)
        elements = rows + sum(self.lengths(workload)) * columns
        indices = sum(values.nbytes for values in lists.values())
        return elements * self.element_bytes(workload) + 4 * math.prod(found["lse"]) + indices

    def max_relative_error(self, workload: Workload) -> float:
        return self.alone.max_relative_error(workload)


def keys_of(ends: "torch.Tensor", last: "torch.Tensor | None", page: int) -> "torch.Tensor":
    """Keys of each item.

    Args:
        ends: `kv_indptr`.
        last: `kv_last_page_len`; None for pages of one key.
        page: keys of a page.
    """
    counts = ends.diff()
    return counts if last is None else ((counts - 1) * page + last).where(counts > 0, 0)


@dataclass(frozen=True)
class ListedPages:
    """Lists of pages in place of a table (items, pages of an item).

    Attributes:
        indptr, indices: `kv_indptr` and `kv_indices` of a kernel.
    """

    indptr: Any
    indices: Any

    def __getitem__(self, place: tuple[Any, Any]) -> Any:
        item, page = place
        return self.indices[self.indptr[item] + page]


@dataclass(frozen=True)
class ListedLengths:
    """Keys of each item, in place of a tensor (items).

    Attributes:
        indptr, last: `kv_indptr` and `kv_last_page_len` of a kernel; the latter is None for pages of one key.
        page: keys of a page.
    """

    indptr: Any
    last: Any
    page: int

    def __getitem__(self, item: Any) -> Any:
        import tilelang.language as T  # noqa: N812

        count = self.indptr[item + 1] - self.indptr[item]
        if self.page == 1:
            return count
        return T.if_then_else(count > 0, (count - 1) * self.page + self.last[item], 0)


@dataclass(frozen=True)
class WithAxis:
    """A tensor as one with one more axis of one element, in a kernel.

    Attributes:
        tensor: the tensor.
        axis: which axis is added.
    """

    tensor: Any
    axis: int = 1

    def _place(self, place: tuple[Any, ...]) -> tuple[Any, ...]:
        return place[: self.axis] + place[self.axis + 1 :]

    def __getitem__(self, place: tuple[Any, ...]) -> Any:
        return self.tensor[self._place(place)]

    def __setitem__(self, place: tuple[Any, ...], value: Any) -> None:
        import tilelang.language as T  # noqa: N812

        T.buffer_store(self.tensor, value, list(self._place(place)))


class PageListTemplate(KernelTemplate):
    """The kernels of a template of page tables, which find pages and lengths in the lists.

    Attributes:
        alone: the template of page tables, whose space is that of the lists, too.
    """

    operator: PageListOperator
    target_kinds = CacheTemplate.target_kinds
    dtypes = CacheTemplate.dtypes
    dynamic_dims = ("batch", "indices", "pages")
    alone: ClassVar[CacheTemplate]

    @property
    def compile_flags(self) -> Mapping[str, tuple[str, ...]]:
        return self.alone.compile_flags

    def _longest(self, workload: Workload) -> Workload:
        """The workload of `alone` with room for the longest item."""
        return self.operator.tables(workload, kv_len=self.operator.room(workload))

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return self.alone.space(self._longest(workload), target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        return self.alone.default_config(self._longest(workload), target)

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        batch, heads, columns = self.operator.outputs(workload)["output"]
        return partials(config.int("split_k"), (batch, 1, heads), columns)

    def attend(
        self, workload: Workload, config: Config
    ) -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
        """A function of the operands of `alone` and of the tensors of a kernel, by name: the launches."""
        dims, split_k, page = workload.dims, config.int("split_k"), int(workload.attrs["page"])
        alone = self.operator.alone
        parts = self.alone.parts(self.operator.tables(workload), config, in_parts=split_k > 1, natural=False)
        combine_parts = combination(
            split_k, dims["batch"], 1, dims["heads"], dims[alone.columns], natural=False
        )

        def launch(operands: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
            indptr, out, lse = tensors["kv_indptr"], WithAxis(tensors["output"]), WithAxis(tensors["lse"])
            lists = {
                "Table": ListedPages(indptr, tensors["kv_indices"]),
                "Lengths": ListedLengths(indptr, tensors["kv_last_page_len"], page),
            }
            parts_of_keys = {name: tensors[name] for name in ("PartO", "PartLSE")}
            parts({**operands, **lists, "O": out, "LSE": lse, **parts_of_keys})
            if split_k > 1:
                combine_parts(tensors["PartO"], tensors["PartLSE"], out, lse)

        return launch
