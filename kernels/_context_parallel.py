"""Attention of a few queries over a cache whose keys are spread over ranks.

Each rank has a share of the keys of every item, and the queries of all heads. It gets the output of its own
heads, those of an equal slice: what a layer needs that goes on with heads divided among ranks (tensor
parallel), as in vLLM's decode context parallelism and in Helix parallelism. There the queries are gathered
before, or each rank computes those of all heads.

A rank may have any keys of an item, and none. Of several queries of an item each sees all keys of the other
ranks, and on the last rank those up to its own: the tokens of the queries are the last ones there.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import WorkloadError
from ..problem.axes import Axes, Parts, shape
from ..problem.group_operator import SEEDS, WORLD, GroupOperator
from ..problem.operator import Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import LAUNCHES, RANK, Collective, KernelTemplate
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import context_parallel as search_space
from ..search_spaces.ways import PUSH, SEQUENTIAL
from ..target.spec import Target
from ._kv_cache import CacheOperator, CacheTemplate
from ._rank_parts import RankParts, after_gather, before_gather, exchange
from ._ranks import FLAGS, kernel_of_ranks
from ._ranks import Tensor as RankTensor
from ._split_kv import partials

if TYPE_CHECKING:
    import torch

STAGING, PARTIAL, GATHERED = "staging", "partial", "gathered"


class ContextParallelOperator(GroupOperator):
    """The operator `alone` with the keys of each item spread over ranks.

    kv_len and pages are those of one rank, the other dimensions those of all.

    Attributes:
        alone: the operator of one device.
    """

    alone: ClassVar[CacheOperator]
    divided = ("kv_len",)
    vendor_name = "torch attention"

    def share(self, workload: Workload, **dims: int) -> Workload:
        """The work of one rank as a workload of `alone`, with the logarithm; `dims` replace its own."""
        found = {dim: size for dim, size in workload.dims.items() if dim != WORLD}
        attrs = {**self.alone.kept_attributes(workload.attrs), "lse": True}
        return Workload(self.alone.name, {**found, **dims}, workload.dtype, attrs)

    def parts(self, workload: Workload) -> RankParts:
        batch, q_len, heads, world = (workload.dims[dim] for dim in ("batch", "q_len", "heads", WORLD))
        return RankParts(batch, q_len, heads // world, workload.dims[self.alone.columns], world)

    def completed(self, given: Mapping[str, Value]) -> dict[str, Value]:
        return self.alone.completed(given)

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        whole = self.alone.tensor_axes({**self.alone.attrs, **attrs})
        own = Parts("heads", WORLD)
        divided = {
            name: tuple(own if axis == "heads" else axis for axis in axes)
            for name, axes in whole.items()
            if name in ("O", "LSE")
        }
        return {**whole, **divided}

    def tensor_dtypes(self, dtype: str, attrs: Mapping[str, Value]) -> Mapping[str, str]:
        return self.alone.tensor_dtypes(dtype, attrs)

    def validate(self, workload: Workload) -> None:
        super().validate(workload)
        heads, world = workload.dims["heads"], workload.dims[WORLD]
        self.check_reach(workload)
        if heads % world:
            raise WorkloadError(
                f"{self.name}: heads={heads} cannot be divided evenly among {WORLD}={world} devices, each of "
                f"which gets the output of its heads: take a multiple of {world}"
            )
        self.alone.validate(self.share(workload))
        if math.prod(self.parts(workload).gathered[0]) > MAX_DIMENSION:
            raise WorkloadError(
                f"{self.name}: the results of {WORLD}={world} devices have more than the {MAX_DIMENSION} "
                "elements that kernels index; split the batch"
            )

    def contents(self, workload: Workload) -> Mapping[str, Any]:
        return self.alone.contents(self.share(workload))

    def index_fault(self, workload: Workload, inputs: Tensors) -> str | None:
        """As of one device, of this rank's own keys."""
        return self.alone.index_fault(self.share(workload), inputs)

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        parts = self.parts(workload)
        rows = parts.batch, parts.q_len, parts.heads
        return {"O": (*rows, parts.columns), **({"LSE": rows} if workload.attrs["lse"] else {})}

    def rank_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> "dict[str, torch.Tensor]":
        """As of one device; all ranks have the same queries. Of mixed lengths, the last is 0 on odd ranks."""
        share = self.share(workload)
        found = self.alone.inputs(share, device, seed * SEEDS + rank)
        if rank:
            one = self.share(workload, kv_len=int(workload.attrs["page"]) or 1, pages=workload.dims["batch"])
            found["Q"] = self.alone.inputs(one, device, seed * SEEDS)["Q"]
        if workload.attrs["lengths"] == "mixed" and rank % 2:
            found["Lengths"][-1] = 0
        return found

    def rank_second_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> SecondInputs:
        """Q is 32 times as large: few keys have nearly all weight, and exp of a score may exceed float32."""
        tensors = self.rank_inputs(workload, rank, device, seed)
        tensors["Q"].mul_(32)
        return SecondInputs(tensors)

    def group_reference(
        self, workload: Workload, inputs: Sequence[Tensors]
    ) -> "list[dict[str, torch.Tensor]]":
        return self._of_ranks(workload, inputs, *self._attention(workload, inputs, squared=False))

    def group_magnitude(
        self, workload: Workload, inputs: Sequence[Tensors]
    ) -> "list[dict[str, torch.Tensor]]":
        """As of one device."""
        squares, lse = self._attention(workload, inputs, squared=True)
        return self._of_ranks(workload, inputs, squares.sqrt_(), lse.abs().add_(1))

    def _of_ranks(
        self, workload: Workload, inputs: Sequence[Tensors], out: "torch.Tensor", lse: "torch.Tensor"
    ) -> "list[dict[str, torch.Tensor]]":
        """The heads of each rank, on its device."""
        whole = {"O": out, **({"LSE": lse} if workload.attrs["lse"] else {})}
        world = workload.dims[WORLD]
        return [
            {name: tensor.chunk(world, 2)[rank].to(one["Q"].device) for name, tensor in whole.items()}
            for rank, one in enumerate(inputs)
        ]

    def _attention(
        self, workload: Workload, inputs: Sequence[Tensors], squared: bool
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """As `CacheOperator.attention`, over the keys of all ranks, on the device of the first one."""
        import torch

        home = inputs[0]["Q"].device
        shares = [self._of_share(workload, one, rank, squared) for rank, one in enumerate(inputs)]
        outs, logarithms = (torch.stack([one[i].to(home) for one in shares]) for i in (0, 1))
        lse = logarithms.logsumexp(0)
        weights = (logarithms - lse).exp().nan_to_num_()[..., None]
        return (outs * (weights.square() if squared else weights)).sum(0), lse

    def _of_share(
        self, workload: Workload, inputs: Tensors, rank: int, squared: bool
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        import torch

        if rank == workload.dims[WORLD] - 1:
            return self.alone.attention(self.share(workload), inputs, squared)
        # each query sees all keys, as one query alone does
        one = self.share(workload, q_len=1)
        found = [
            self.alone.attention(one, {**inputs, "Q": query}, squared) for query in inputs["Q"].split(1, 1)
        ]
        return torch.cat([out for out, _ in found], 1), torch.cat([lse for _, lse in found], 1)

    def flops(self, workload: Workload) -> int:
        """Of one rank."""
        return self.alone.flops(self.share(workload))

    def min_bytes(self, workload: Workload) -> int:
        """Of one rank, without what it sends."""
        return self.alone.min_bytes(self.share(workload))

    def max_relative_error(self, workload: Workload) -> float:
        return self.alone.max_relative_error(workload)

    def rounding(self, workload: Workload) -> Rounding:
        """As of one device: results of ranks stay in float32."""
        return Rounding(workload.dims["kv_len"] * workload.dims[WORLD], inner=workload.dtype, cuts=True)

    def vendor_scratch(self, workload: Workload) -> Mapping[str, tuple[tuple[int, ...], str]]:
        parts = self.parts(workload)
        return {PARTIAL: parts.partial, GATHERED: parts.gathered}

    def vendor_collective(self, workload: Workload) -> Collective:
        size = 4 * math.prod(self.parts(workload).gathered[0])
        return Collective("all_gather", PARTIAL, GATHERED, "between", size, launches=2)

    @abstractmethod
    def vendor_operands(
        self, workload: Workload, inputs: Tensors
    ) -> "tuple[torch.Tensor, Callable[[], tuple[torch.Tensor, torch.Tensor]], float]":
        """Queries (batch, kv heads, rows, columns), keys and values as they are at a call, and the scale.

        Rows are the queries of an item and the heads of each that share a kv head, in this order.
        """

    def vendor_part(self, workload: Workload, tensors: Tensors) -> Callable[[], object]:
        return self.vendor_of_rank(workload, 0, tensors)

    def vendor_of_rank(self, workload: Workload, rank: int, tensors: Tensors) -> Callable[[], object]:
        """FlashAttention of torch, or two products where keys are hidden or rows are too long for it."""
        import torch

        parts, attrs = self.parts(workload), workload.attrs
        is_last = rank == parts.world - 1
        share = self.share(workload) if is_last else self.share(workload, q_len=1)
        queries, cache, scale = self.vendor_operands(self.share(workload), tensors)
        batch, kv_heads, rows, columns = queries.shape
        mask = None
        if self.alone.has_lengths(attrs) or (is_last and parts.q_len > 1):
            hidden = self.alone.hidden(share, tensors).expand(batch, parts.q_len, -1)
            mask = hidden.repeat_interleave(rows // parts.q_len, 1)[:, None]
        is_flash = mask is None and columns <= 256 and queries.is_cuda

        def attend() -> "tuple[torch.Tensor, torch.Tensor]":
            keys, values = cache()
            if is_flash:
                attention = torch.ops.aten._scaled_dot_product_flash_attention
                found = attention(queries, keys, values, scale=scale)
                return found[0], found[1]
            scores = (queries @ keys.transpose(2, 3)).float() * scale
            if mask is not None:
                scores.masked_fill_(mask, -torch.inf)
            weights = scores.softmax(-1).nan_to_num_().to(values.dtype)
            return weights @ values, scores.logsumexp(-1)

        kept = tensors[PARTIAL].view(parts.world, parts.batch, parts.q_len, parts.heads, parts.width)

        def by_owner(found: "torch.Tensor") -> "torch.Tensor":
            heads = found.reshape(batch, kv_heads, parts.q_len, rows // parts.q_len, -1).transpose(1, 2)
            return heads.reshape(batch, parts.q_len, parts.world, parts.heads, -1).movedim(2, 0)

        def call() -> None:
            out, lse = attend()
            kept[..., : parts.columns] = by_owner(out)
            kept[..., parts.columns :] = by_owner(lse)

        return call

    def vendor_finish(self, workload: Workload, rank: int, tensors: Tensors) -> Callable[[], object]:
        parts = self.parts(workload)
        by_rank = parts.world, parts.world, parts.batch, parts.q_len, parts.heads, parts.width
        rows = tensors[GATHERED].view(by_rank)[:, rank]
        outs, logarithms = rows[..., : parts.columns], rows[..., parts.columns]

        def call() -> None:
            lse = logarithms.logsumexp(0)
            weights = (logarithms - lse).exp().nan_to_num_()
            tensors["O"].copy_((weights[..., None] * outs).sum(0))
            if "LSE" in tensors:
                tensors["LSE"].copy_(lse)

        return call


class ContextParallelTemplate(KernelTemplate):
    """The kernel of one device with its parts of the keys, and what its results need to come to their owners.

    `push` is one more kernel (`_rank_parts.exchange`), as of one device: of a call it is the second of two.
    `sequential` is a kernel before the library's collective, and one after it.

    Attributes:
        alone: the template of one device.
    """

    operator: ContextParallelOperator
    target_kinds = ("cuda",)
    kind_reasons = dict.fromkeys(("hip", "cpu"), "its ranks wait for each other by instructions of PTX")
    dtypes = ("bfloat16", "float16")
    numbers = (RANK, LAUNCHES)
    alone: ClassVar[CacheTemplate]
    static_reasons: ClassVar[Mapping[str, str]] = {
        "batch": "the memory of results and flags has a size of its own for each",
        "pages": "the kernel is built for the memory of each rank",
        WORLD: "the tensors of all ranks are arguments of the kernel",
    }

    @property
    def compile_flags(self) -> Mapping[str, tuple[str, ...]]:
        return self.alone.compile_flags

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(self.alone.space(self.operator.share(workload), target), target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        alone = self.alone.default_config(self.operator.share(workload), target)
        space = self.space(workload, target)
        way = space.parameters[0].values[-1]
        return None if alone is None else space.closest(Config({"algorithm": way, **alone}))

    def shared_scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        parts = self.operator.parts(workload)
        return (
            {} if config["algorithm"] == SEQUENTIAL else {FLAGS: parts.flags.tensor, STAGING: parts.staging}
        )

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        *rows, columns = self.operator.alone.outputs(self.operator.share(workload))["O"]
        own = partials(config.int("split_k"), tuple(rows), columns, always=True)
        between = self.operator.vendor_scratch(workload) if config["algorithm"] == SEQUENTIAL else {}
        return {**own, **between}

    def collective(self, workload: Workload, config: Config) -> Collective | None:
        return self.operator.vendor_collective(workload) if config["algorithm"] == SEQUENTIAL else None

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        operator, parts = self.operator, self.operator.parts(workload)
        share, split_k, world = operator.share(workload), config.int("split_k"), parts.world
        axes = operator.tensor_axes(workload.attrs)
        tensors: dict[str, RankTensor] = {
            name: (shape(of, workload.dims, workload.attrs), operator.dtype_of(name, workload))
            for name, of in axes.items()
        }
        shared, own = self.shared_scratch(workload, config), self.scratch(workload, config)
        names = (*tensors, *shared, *own)

        def body(*given: Any) -> None:
            rank = given[-1]
            found = dict(zip(names, given, strict=False))

            def end(length: Any, query: Any) -> Any:
                up_to_own = length - (parts.q_len - 1) + query
                return T.if_then_else(rank == world - 1, up_to_own, length)

            attend = self.alone.parts(share, config, in_parts=True, end=end if parts.q_len > 1 else None)
            attend(found)
            scratch, outputs = (found["PartO"], found["PartLSE"]), (found["O"], found.get("LSE"))
            if config["algorithm"] == PUSH:
                exchange(parts, split_k)(scratch, found[STAGING], found[FLAGS], outputs, rank)
            else:
                before_gather(parts, split_k)(scratch, found[PARTIAL])
                after_gather(parts)(found[GATHERED], outputs, rank)

        arguments = [(name, of, name in shared) for name, of in {**tensors, **shared, **own}.items()]
        return kernel_of_ranks(self.name, arguments, world, body, self.numbers[1:])
