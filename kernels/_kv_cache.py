"""Operators that read a cache of keys and values: pages, lengths, and which keys a query sees.

A cache is a pool (pages, page, kv heads, columns), and a table has the pages of each item. Without a table
(`page=0`) each item has one page with all its keys. The queries of an item are its last tokens: each sees
the keys up to its own. Scores are multiplied by `scale`, whose 0 stands for 1/sqrt(columns of a key).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axis, Parts, shape
from ..problem.index_values import outside
from ..problem.operator import Operator, Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, Value
from ..problem.template import KernelTemplate
from ..problem.workload import MAX_DIMENSION, Workload
from ._softmax_scale import check_scale
from ._split_kv import partials

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

MAX_GRID_AXIS = 65535  # blocks along the second and third axis of a CUDA or HIP grid


class CacheOperator(Operator):
    """Attention over a cache, with the dimensions batch, kv_len (room of an item), q_len and pages.

    Attributes:
        columns: the dimension that is the width of a row of the output.
    """

    columns: ClassVar[str]

    # `completed` gives the pages that the tables need
    dim_defaults: ClassVar[Mapping[str, int | str]] = {"q_len": 1, "pages": "batch"}
    attrs: ClassVar[Mapping[str, Value]] = {"page": 0, "lengths": "full", "lse": False, "scale": 0.0}
    later_attrs = ("scale",)
    choices: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "page": (0, 1, 16, 32, 64, 128, 256),
        "lengths": ("full", "mixed"),
    }

    def completed(self, given: Mapping[str, Value]) -> dict[str, Value]:
        page, found = int({**self.attrs, **given}["page"]), dict(given)
        if page > 0 and "pages" not in given and {"batch", "kv_len"} <= set(given):
            found["pages"] = int(given["batch"]) * -(-int(given["kv_len"]) // page)
        return super().completed(found)

    def has_lengths(self, attrs: Mapping[str, Value]) -> bool:
        return bool(attrs["page"]) or attrs["lengths"] != "full"

    def index_axes(self, attrs: Mapping[str, Value]) -> dict[str, tuple[Axis, ...]]:
        """Axes of the table and of the lengths, where there are any."""
        table: dict[str, tuple[Axis, ...]] = {"Table": ("batch", Parts("kv_len", "page"))}
        lengths: dict[str, tuple[Axis, ...]] = {"Lengths": ("batch",)}
        return {**(table if attrs["page"] else {}), **(lengths if self.has_lengths(attrs) else {})}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return {"Table": "int32", "Lengths": "int32", "LSE": "float32"}

    def check_cache(self, workload: Workload, columns: int, rows: int) -> None:
        """Raise `WorkloadError` for pages that do not fit, and for tensors or grids that are too large.

        Args:
            workload: the workload.
            columns: elements of a token in the pool.
            rows: elements of the outputs.
        """
        check_scale(self.name, workload.attrs)
        batch, kv_len, pages = (workload.dims[d] for d in ("batch", "kv_len", "pages"))
        page = int(workload.attrs["page"])
        if page and kv_len % page:
            raise WorkloadError(
                f"{self.name}: kv_len={kv_len}, the room of an item's table, must be a multiple of "
                f"page={page}; nearest legal kv_len: {-(-kv_len // page) * page}"
            )
        if not page and pages != batch:
            raise WorkloadError(
                f"{self.name}: pages={pages} must be batch={batch} where page=0: without a table each item "
                "has one page"
            )
        check_sizes(self.name, batch, max(pages * (page or kv_len) * columns, rows))

    def contents(self, workload: Workload) -> Mapping[str, NDArray[Any]]:
        """Lengths between an eighth of the room and all of it; pages of the pool in random order."""
        import numpy as np

        batch, kv_len, pages = (workload.dims[d] for d in ("batch", "kv_len", "pages"))
        page, draw = int(workload.attrs["page"]), np.random.default_rng(7)
        found: dict[str, NDArray[Any]] = {}
        if page:
            table = np.resize(draw.permutation(pages), (batch, kv_len // page))
            found["Table"] = table.astype(np.int32)
        if self.has_lengths(workload.attrs):
            lengths = np.full(batch, kv_len)
            if workload.attrs["lengths"] == "mixed":
                lengths[1:] = draw.integers(-(-kv_len // 8), kv_len + 1, batch - 1)
            found["Lengths"] = lengths.astype(np.int32)
        return found

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        """Lengths beyond the room of an item, and pages of its tokens that the pool does not have."""
        import torch

        lengths = inputs.get("Lengths")
        if lengths is None:
            return None
        kv_len = workload.dims["kv_len"]
        fault = outside("Lengths", lengths, 0, kv_len, "an item has room for kv_len tokens")
        if fault or "Table" not in inputs:
            return fault
        begins = torch.arange(0, kv_len, int(workload.attrs["page"]), device=lengths.device)
        return page_fault(workload, inputs["Table"], begins < lengths[:, None])

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Queries and the pool ~ N(0, 1): scores have unit variance after scaling. `contents` are known."""
        return normal_inputs(self, workload, device, seed)

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        rows = tuple(workload.dims[d] for d in ("batch", "q_len", "heads"))
        lse = {"LSE": rows} if workload.attrs["lse"] else {}
        return {"O": (*rows, workload.dims[self.columns]), **lse}

    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Softmax attention in float32 without TF32."""
        out, lse = self.attention(workload, inputs, squared=False)
        return {"O": out, "LSE": lse} if workload.attrs["lse"] else {"O": out}

    def magnitude(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Of a logarithm: the error of the sum of weights is relative, so that it adds to the logarithm."""
        squares, lse = self.attention(workload, inputs, squared=True)
        found = {"O": squares.sqrt_()}
        return {**found, "LSE": lse.abs().add_(1)} if workload.attrs["lse"] else found

    @abstractmethod
    def attention(
        self, workload: Workload, inputs: Tensors, squared: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output, or the sum of the squares of its terms (weight times value); and the LSE."""

    def lengths(self, workload: Workload) -> list[int]:
        known = self.contents(workload).get("Lengths")
        return [workload.dims["kv_len"]] * workload.dims["batch"] if known is None else known.tolist()

    def hidden(self, workload: Workload, inputs: Tensors) -> torch.Tensor:
        """Whether a query does not see a key: (batch, q_len, kv_len)."""
        import torch

        batch, kv_len, q_len = (workload.dims[d] for d in ("batch", "kv_len", "q_len"))
        device = inputs["Q"].device
        lengths = inputs.get("Lengths", torch.full((batch,), kv_len, device=device))
        ends = lengths[:, None] - torch.arange(q_len - 1, -1, -1, device=device)
        return torch.arange(kv_len, device=device) >= ends[..., None]

    def tokens(self, workload: Workload, inputs: Tensors, name: str, items: slice) -> torch.Tensor:
        """The keys of some items from the pool `name`: (items, kv_len, kv heads, columns).

        Entries of the table without keys may have any value.
        """
        pool = inputs[name]
        if not workload.attrs["page"]:
            return pool[items]
        return pool[inputs["Table"][items].clamp(0, workload.dims["pages"] - 1)].flatten(1, 2)

    def visible_pairs(self, workload: Workload) -> int:
        """Number of pairs of a query and a key that it sees, of one head."""
        q_len = workload.dims["q_len"]
        return sum(max(length - t, 0) for length in self.lengths(workload) for t in range(q_len))

    def index_bytes(self, workload: Workload) -> int:
        """Bytes of the integer inputs."""
        return sum(values.nbytes for values in self.contents(workload).values())

    def rounding(self, workload: Workload) -> Rounding:
        """Weights are rounded to the dtype before they multiply values; their sum is not."""
        return Rounding(workload.dims["kv_len"], inner=workload.dtype, cuts=True)

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs:
        """Q is 32 times as large: few keys have nearly all weight, and exp of a score may exceed float32."""
        tensors = self.inputs(workload, device, seed)
        tensors["Q"].mul_(32)
        return SecondInputs(tensors)

    def max_relative_error(self, workload: Workload) -> float:
        """About three times the error of rounding the weights and the output to the dtype."""
        return {"bfloat16": 8e-3, "float16": 1e-3}[workload.dtype]


class CacheTemplate(KernelTemplate):
    """A template whose blocks have queries of an item and a part of their keys."""

    operator: CacheOperator
    target_kinds: ClassVar[tuple[str, ...]] = ("cuda", "hip")
    dtypes = ("bfloat16", "float16")
    # exp2 and the final division as single instructions; infinities remain correct
    compile_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"cuda": ("--use_fast_math",)}
    dynamic_dims = ("batch", "pages")
    static_reasons: ClassVar[Mapping[str, str]] = {
        "kv_len": "all parts of the keys have the same number of steps, which pipelines must know",
        "q_len": "the queries of an item fill the rows of a tile",
    }

    @abstractmethod
    def parts(
        self,
        workload: Workload,
        config: Config,
        *,
        in_parts: bool,
        end: Callable[[Any, Any], Any] | None = None,
        natural: bool = True,
    ) -> Callable[[Mapping[str, Any]], Any]:
        """A function of the tensors of `build`, by name: the launch of the kernel whose blocks have parts of
        the keys.

        Args:
            workload: the workload.
            config: its config.
            in_parts: whether the kernel leaves parts, even if there is only one.
            end: `(length, query)` gives the number of keys of an item that one of its queries sees; None:
                those up to its own.
            natural: whether LSE has natural logarithms; else those to base 2.
        """

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        *rows, columns = self.operator.outputs(workload)["O"]
        return partials(config.int("split_k"), tuple(rows), columns)


def check_sizes(operator: str, batch: int, elements: int) -> None:
    """Raise `WorkloadError` for a batch that no grid has, or a largest tensor that kernels cannot index."""
    if batch > MAX_GRID_AXIS:
        raise WorkloadError(
            f"{operator}: batch={batch} exceeds the {MAX_GRID_AXIS} blocks of a grid axis; split it"
        )
    if elements > MAX_DIMENSION:
        raise WorkloadError(
            f"{operator}: a tensor would have {elements} elements, and the kernels index at most "
            f"{MAX_DIMENSION}; split the batch"
        )


def normal_inputs(operator: Operator, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
    """Inputs ~ N(0, 1) in the workload's dtype, but for those that the operator's `contents` has."""
    import torch

    generator, dtype = torch.Generator(device).manual_seed(seed), getattr(torch, workload.dtype)
    known, axes = operator.contents(workload), operator.tensor_axes(workload.attrs)
    shapes = {name: shape(of, workload.dims, workload.attrs) for name, of in axes.items()}
    drawn = {
        name: torch.randn(size, generator=generator, device=device, dtype=dtype)
        for name, size in shapes.items()
        if name not in known and name not in operator.outputs(workload)
    }
    return {**drawn, **{name: torch.from_numpy(values).to(device) for name, values in known.items()}}


def page_fault(workload: Workload, table: torch.Tensor, used: torch.Tensor) -> str | None:
    """What is wrong with the first of the `used` entries of `table` that is no page of the pool."""
    rule = "the pool has that many pages, and a page of an item's tokens is one of them"
    return outside("Table", table, 0, workload.dims["pages"] - 1, rule, where=used)


def weighted(
    scores: torch.Tensor, hidden: torch.Tensor, values: torch.Tensor, least: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of values (keys, columns) by softmax weights, and the logarithms of the sums of weights.

    Args:
        scores: (..., keys) in float32; they are changed.
        hidden: whether a row does not see a key. A row that sees no key gets zeros and -infinity.
        values: of the keys.
        least: None; else values and weights are squared, for the magnitude of the sums. Squared weights are
            at least that of `least`, the smallest normal number of the dtype: the rounding errors of smaller
            ones are those of that number.
    """
    import torch

    scores.masked_fill_(hidden, -torch.inf)
    weights = scores.softmax(-1).nan_to_num_()
    if least is not None:
        weights, values = weights.clamp_(min=least).square_(), values.square()
    return weights @ values, scores.logsumexp(-1)
