"""context_parallel_flash_attention: `flash_attention` of sequences that are spread over ranks.

Frameworks call it context parallelism, sequence parallelism, or ring or all-gather attention: of long prompts
and of training. Each rank has a share of the positions of every item, and the queries, keys and values there,
of all heads. It gets the outputs of its queries to the keys of all ranks. seq_len is that of one rank.

Without a mask the shares are contiguous: rank r has the positions r seq_len .. (r + 1) seq_len. With `causal`
a late query sees more keys than an early one, and contiguous shares would leave the first ranks idle. So the
positions are cut into 2 world parts of equal length, and rank r has part r and after it part 2 world - 1 - r:
the zigzag order, as in Megatron-LM and the ring attention of others. Positions of a sequence must be brought
into that order before the first layer, and out of it after the last one; rotary embeddings take the positions
of the order.

group and scale are those of `flash_attention`.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.axes import Axes
from ..problem.group_operator import SEEDS, WORLD, GroupOperator
from ..problem.operator import Tensors
from ..problem.rounding import Rounding, SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import RANK, Collective, KernelTemplate
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces import context_parallel_flash_attention as search_space
from ..search_spaces.context_parallel_flash_attention import FEWEST_ROWS
from ..search_spaces.ways import PUSH, SEQUENTIAL
from ..target.spec import Target
from ._attention_weights import item_attention
from ._overlapped_attention import Others
from ._rank_attention import ArrivingTiles, RankAttentionTiles
from ._rank_chunks import Chunks, Gathering, SharedRows, chunks_to_peers, shape_of_arrivals
from ._ranks import ARRIVED, FLAGS, barrier_between_ranks, kernel_of_ranks, shape_of_flags
from ._ranks import Tensor as RankTensor
from ._scheduled_attention import scheduled_attention, tiles_of_queries
from ._scheduled_tiles import GROUP
from ._softmax_scale import softmax_scale
from .flash_attention import OPERATOR as ALONE
from .flash_attention import FlashAttention, FlashAttentionGpu

if TYPE_CHECKING:
    import torch

KEYS, VALUES = "gathered_keys", "gathered_values"
_K = 1024


class ContextParallelFlashAttention(GroupOperator):
    name = "context_parallel_flash_attention"
    dims = (*ALONE.dims, WORLD)
    attrs: ClassVar[Mapping[str, Value]] = {"causal": False, "group": 1, "scale": 0.0}
    axes: ClassVar[Axes] = ALONE.axes
    divided = ("seq_len",)
    vendor_name = "FlashAttention-2"
    alone: ClassVar[FlashAttention] = ALONE
    # whole prompts for Llama 3.1 8B, 70B and 405B; and without a mask 24 heads, as of the diffusion
    # transformers FLUX.1 and HunyuanVideo
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        **{
            f"{model}_{length}K": {
                **{"batch": 1, "heads": heads, "seq_len": length * _K, "head_dim": 128},
                **{"causal": True, "group": heads // 8},
            }
            for model, heads in (("L8", 32), ("L70", 64), ("L405", 128))
            for length in (8, 32, 128)
        },
        "DIT_32K": {"batch": 1, "heads": 24, "seq_len": 32 * _K, "head_dim": 128, "causal": False},
    }
    default_names = ("L8_8K", "L70_32K", "DIT_32K")

    def share(self, workload: Workload, parts: int = 1) -> Workload:
        """The queries and keys of one rank as a workload of `alone`; of `parts` ranks together."""
        dims = {dim: size for dim, size in workload.dims.items() if dim != WORLD}
        dims["seq_len"] *= parts
        return Workload(self.alone.name, dims, workload.dtype, workload.attrs)

    def rows(self, workload: Workload) -> tuple[int, int]:
        """Keys of a rank, those of all items, and the elements of one, of all heads."""
        batch, heads, seq_len, head_dim, _ = workload.dims.values()
        return batch * seq_len, heads // int(workload.attrs["group"]) * head_dim

    def gathered(self, workload: Workload) -> RankTensor:
        """Shape and dtype of the keys of all ranks."""
        return (workload.dims[WORLD], *self.rows(workload)), workload.dtype

    def tensor_axes(self, attrs: Mapping[str, Value]) -> Axes:
        return self.alone.tensor_axes(attrs)

    def validate(self, workload: Workload) -> None:
        super().validate(workload)
        _, _, seq_len, head_dim, world = workload.dims.values()
        self.check_reach(workload)
        try:
            self.alone.validate(self.share(workload))
        except WorkloadError as error:
            raise WorkloadError(f"{self.name}: of one rank, {error}") from None
        halves = 2 if workload.attrs["causal"] else 1
        if seq_len % (halves * FEWEST_ROWS):
            parts = "2 zigzag parts of whole tiles" if halves == 2 else "whole tiles"
            raise WorkloadError(
                f"{self.name}: seq_len={seq_len} of a rank must be a multiple of {halves * FEWEST_ROWS} "
                f"({parts} of {FEWEST_ROWS} queries): pad the sequence of all ranks to a multiple of "
                f"{world * halves * FEWEST_ROWS}"
            )
        if head_dim % 16:
            raise WorkloadError(
                f"{self.name}: head_dim={head_dim} must be a multiple of 16, since keys of all heads follow "
                f"each other and matrix instructions take 16 elements; pad it to {-(-head_dim // 16) * 16}"
            )
        if (elements := math.prod(self.gathered(workload)[0])) > MAX_DIMENSION:
            raise WorkloadError(
                f"{self.name}: the keys of {WORLD}={world} devices are {elements} elements, and kernels "
                f"index at most {MAX_DIMENSION}; split the batch"
            )

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return self.alone.outputs(self.share(workload))

    def rank_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> "dict[str, torch.Tensor]":
        return self.alone.inputs(self.share(workload), device, seed * SEEDS + rank)

    def rank_second_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> SecondInputs:
        """As of one device."""
        return self.alone.second_inputs(self.share(workload), device, seed * SEEDS + rank)

    def group_reference(
        self, workload: Workload, inputs: Sequence[Tensors]
    ) -> "list[dict[str, torch.Tensor]]":
        """In float32 without TF32, by items and panels of queries."""
        return self._attention(workload, inputs, squared=False)

    def group_magnitude(
        self, workload: Workload, inputs: Sequence[Tensors]
    ) -> "list[dict[str, torch.Tensor]]":
        return self._attention(workload, inputs, squared=True)

    def _attention(
        self, workload: Workload, inputs: Sequence[Tensors], squared: bool
    ) -> "list[dict[str, torch.Tensor]]":
        import torch

        found = []
        for rank, one in enumerate(inputs):
            home, out = one["Q"].device, torch.empty_like(one["Q"], dtype=torch.float32)
            keys, values = (
                self.in_order(workload, torch.stack([each[name].to(home) for each in inputs]))
                for name in "KV"
            )
            for item in range(len(out)):
                for rows, end in self.parts_of(workload, rank):
                    out[item, rows], _ = item_attention(
                        *(one["Q"][item, rows], keys[item, :end], values[item, :end]),
                        *(workload.attrs, None, squared),
                    )
            found.append({"O": out})
        return found

    def parts_of(self, workload: Workload, rank: int) -> list[tuple[slice, int]]:
        """The parts of the positions of a rank: which of its own, and how many keys the last query sees."""
        seq_len, world = workload.dims["seq_len"], workload.dims[WORLD]
        if not workload.attrs["causal"]:
            return [(slice(0, seq_len), world * seq_len)]
        half = seq_len // 2
        return [
            (slice(0, half), (rank + 1) * half),
            (slice(half, seq_len), (2 * world - rank) * half),
        ]

    def in_order(self, workload: Workload, shares: "torch.Tensor") -> "torch.Tensor":
        """Keys (world, batch, seq_len, heads, head_dim) as (batch, positions, heads, head_dim), in order."""
        import torch

        if workload.attrs["causal"]:
            early, late = shares.chunk(2, 2)
            shares = torch.cat([early, late.flip(0)])
        return shares.transpose(0, 1).flatten(1, 2)

    def flops(self, workload: Workload) -> int:
        """Of one rank, on average."""
        world = workload.dims[WORLD]
        return self.alone.flops(self.share(workload, world)) // world

    def min_bytes(self, workload: Workload) -> int:
        """Of one rank: its queries and outputs, and the keys and values of all ranks."""
        size = DTYPE_BYTES[workload.dtype]
        queries = 2 * math.prod(self.outputs(workload)["O"])
        return (queries + 2 * math.prod(self.gathered(workload)[0])) * size

    def max_relative_error(self, workload: Workload) -> float:
        return self.alone.max_relative_error(workload)

    def rounding(self, workload: Workload) -> Rounding:
        return self.alone.rounding(self.share(workload, workload.dims[WORLD]))

    def vendor_scratch(self, workload: Workload) -> Mapping[str, RankTensor]:
        return dict.fromkeys((KEYS, VALUES), self.gathered(workload))

    def vendor_collective(self, workload: Workload) -> Collective:
        size = math.prod(self.gathered(workload)[0]) * DTYPE_BYTES[workload.dtype]
        values = Collective("all_gather", "V", VALUES, "before", size)
        return Collective("all_gather", "K", KEYS, "before", size, others=(values,))

    def vendor_part(self, workload: Workload, tensors: Tensors) -> Callable[[], object]:
        return self.vendor_of_rank(workload, 0, tensors)

    def vendor_of_rank(self, workload: Workload, rank: int, tensors: Tensors) -> Callable[[], object]:
        """FlashAttention-2 of each part of the queries, after keys are put into the order of positions."""
        import torch

        out, shares = tensors["O"], (workload.dims[WORLD], *tensors["K"].shape)
        queries, causal = tensors["Q"], bool(workload.attrs["causal"])
        scale = softmax_scale(workload.attrs, workload.dims["head_dim"])

        def attend(q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor") -> "torch.Tensor":
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            if q.is_cuda:  # its mask ends at the last query and the last key
                flash = torch.ops.aten._scaled_dot_product_flash_attention
                return flash(q, k, v, 0.0, causal, scale=scale)[0].transpose(1, 2)
            seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
            mask = seen if causal else None
            sdpa = torch.nn.functional.scaled_dot_product_attention
            return sdpa(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True).transpose(1, 2)

        def call() -> None:
            keys, values = (self.in_order(workload, tensors[name].view(shares)) for name in (KEYS, VALUES))
            for rows, end in self.parts_of(workload, rank):
                out[:, rows] = attend(queries[:, rows], keys[:, :end], values[:, :end])

        return call


OPERATOR = ContextParallelFlashAttention()


class ContextParallelFlashAttentionGpu(KernelTemplate):
    """The library's all-gather and the loops of `flash_attention`, or one kernel that sends keys and attends.

    A call of `push` is two kernels: a barrier, after which the memory for the keys of peers may be written;
    and attention, of which some blocks send keys and values (`_rank_chunks`). It ends when it has sent all of
    its own; a peer begins to write for the next call after the barrier of that call.
    """

    operator: ContextParallelFlashAttention = OPERATOR
    name = "context_parallel_flash_attention"
    target_kinds = ("cuda",)
    kind_reasons = dict.fromkeys(("hip", "cpu"), "its ranks wait for each other by instructions of PTX")
    dtypes = ("bfloat16", "float16")
    numbers = (RANK,)
    compile_flags = FlashAttentionGpu.compile_flags
    alone: ClassVar[FlashAttentionGpu] = FlashAttentionGpu()
    static_reasons: ClassVar[Mapping[str, str]] = {
        "batch": "the memory for the keys of peers has a size of its own for each",
        "heads": "rows of keys are heads / group heads long, and chunks of whole rows are copied",
        "seq_len": "positions are divided among the ranks when the kernel is built",
        "head_dim": "a block keeps whole rows of head_dim elements in registers",
        WORLD: "the tensors of all ranks are arguments of the kernel",
    }

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(self.operator.share(workload), workload.dims[WORLD], target)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """`push` with eight sending blocks where that is legal, else `sequential` as on one device."""
        alone = self.alone.default_config(self.operator.share(workload), target.device_target)
        if alone is None:
            return None
        space = self.space(workload, target)
        way: Mapping[str, Value] = {"algorithm": PUSH, "senders": 8, "chunk_rows": 128}
        stay: Mapping[str, Value] = {"schedule": "overlapped", "persistent": target.int("core.count")}
        wanted = space.config({**alone, **way, **stay, "num_stages": 2, "block_m": 128, "threads": 256})
        return wanted if wanted in space else space.closest(Config({"algorithm": SEQUENTIAL, **alone}))

    def shared_scratch(self, workload: Workload, config: Config) -> Mapping[str, RankTensor]:
        if config["algorithm"] == SEQUENTIAL:
            return {}
        arrived = shape_of_arrivals(self._chunks(workload, config))
        flags = {FLAGS: shape_of_flags(workload.dims[WORLD]), ARRIVED: arrived}
        return {**flags, **self.operator.vendor_scratch(workload)}

    def _chunks(self, workload: Workload, config: Config) -> Chunks:
        threads = config.int("threads") + GROUP
        rows = SharedRows(*self.operator.rows(workload), workload.dims[WORLD], workload.dtype, threads)
        return Chunks(rows, config.int("chunk_rows"), config.int("senders"))

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, RankTensor]:
        return self.operator.vendor_scratch(workload) if config["algorithm"] == SEQUENTIAL else {}

    def collective(self, workload: Workload, config: Config) -> Collective | None:
        return self.operator.vendor_collective(workload) if config["algorithm"] == SEQUENTIAL else None

    def build(self, workload: Workload, config: Config) -> Any:
        batch, heads, seq_len, head_dim, world = workload.dims.values()
        causal, group = bool(workload.attrs["causal"]), int(workload.attrs["group"])
        scale, pushes = softmax_scale(workload.attrs, head_dim), config["algorithm"] == PUSH
        grid, place = tiles_of_queries((batch, heads, seq_len), group, config, causal)
        meet = barrier_between_ranks(world)
        query, key = (batch, seq_len, heads, head_dim), self.operator.rows(workload)
        if pushes:
            chunks = self._chunks(workload, config)
            send, wait = chunks_to_peers(chunks)

        def tiles_of(rank: Any) -> RankAttentionTiles:
            found = {
                **{name: config.int(name) for name in ("block_m", "block_n")},
                **{"seq_len": seq_len, "head_dim": head_dim, "dtype": workload.dtype, "factor": scale},
                **{"causal": causal, "window": 0, "softcap": 0, "packed": False},
                **{"world": world, "rank": rank},
            }
            if pushes:
                return ArrivingTiles(**found, chunk=chunks.height, wait=wait)
            return RankAttentionTiles(**found)

        def body(q: Any, k: Any, v: Any, o: Any, *rest: Any) -> None:
            *scratch, rank = rest
            found = {"Q": q, "sink": None, "length": None, "O": o, "LSE": None}
            if not pushes:
                keys, values = scratch
                attention = scheduled_attention(tiles_of(rank), config, known=True)
                attention({**found, "K": keys, "V": values}, grid, place)
                return
            flags, arrived, keys, values = scratch
            meet(flags, rank)
            gathering = Gathering([((k,), keys), ((v,), values)], flags, arrived, rank)
            others = Others(chunks.senders, lambda block: send(gathering, None, None, block))
            attention = scheduled_attention(tiles_of(rank), config, known=True, others=others)
            attention({**found, "K": (gathering, 0), "V": (gathering, 1)}, grid, place)

        shared, own = self.shared_scratch(workload, config), self.scratch(workload, config)
        arguments = (
            ("Q", (query, workload.dtype), False),
            ("K", (key, workload.dtype), False),
            ("V", (key, workload.dtype), False),
            ("O", (query, workload.dtype), False),
            *((name, of, True) for name, of in shared.items()),
            *((name, of, False) for name, of in own.items()),
        )
        return kernel_of_ranks(self.name, arguments, world, body)


TEMPLATES = (ContextParallelFlashAttentionGpu(),)
