"""all_gather_matmul: C[m, n] = A[m, k] B[k, n], where each rank has its rows of A.

It is the beginning of a layer whose weights are divided along n: each rank has the rows r m/world ..
(r + 1) m/world of the activations, and the part B of the weights. m is that of all ranks, a multiple of the
world; n and k are those of one rank. Sums are in float32, C has the dtype of the operands.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..problem.axes import Axes, Parts
from ..problem.group_operator import WORLD, of_ranks
from ..problem.operator import Tensors
from ..problem.peer_copies import with_peer_copies
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import Collective
from ..problem.workload import Workload
from ..search_spaces import all_gather_matmul as search_space
from ..search_spaces.all_gather_matmul import COPY_ENGINE, STORE, TMA
from ..search_spaces.rank_products import product_config, product_workload
from ..search_spaces.ways import PUSH, SEQUENTIAL
from ..target.spec import Target
from ._engine_chunks import chunks_from_engines, copies_of_chunks
from ._exact_products import exact_products
from ._rank_chunks import Boxes, Chunks, Gathering, SharedRows, chunks_to_peers, shape_of_arrivals
from ._rank_products import RankProduct, RankProductTemplate, default_of_ways, layers
from ._rank_tiles import Beside, RankTiles, product_to_ranks
from ._ranks import (
    ARRIVED,
    FLAGS,
    as_kernel_of_ranks,
    barrier_between_ranks,
    kernel_of_ranks,
    on_rank,
    shape_of_flags,
)

if TYPE_CHECKING:
    import torch

GATHERED = "gathered"


class AllGatherMatmul(RankProduct):
    name = "all_gather_matmul"
    summed = False
    axes: ClassVar[Axes] = {"A": (Parts("m", WORLD), "k"), "B": ("k", "n"), "C": ("m", "n")}
    shared = ("A",)
    divided = ("n",)
    # the products of queries, keys and values, and of gate and up, whole: of Llama 3.1 8B, 70B and 405B,
    # Qwen3 32B and DeepSeek-V3 (its dense layers), for 8192 tokens; and of Llama 3.1 70B for 512 and 64
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = layers(
        {
            "L8Q": (8192, 6144, 4096),
            "L8G": (8192, 28672, 4096),
            "L70Q": (8192, 10240, 8192),
            "L70G": (8192, 57344, 8192),
            "L405Q": (8192, 18432, 16384),
            "L405G": (8192, 106496, 16384),
            "Q32Q": (8192, 10240, 5120),
            "Q32G": (8192, 51200, 5120),
            "DSG": (8192, 36864, 7168),
            "L70G512": (512, 57344, 8192),
            "L70G64": (64, 57344, 8192),
        }
    )
    default_names = ("L70Q", "L70G", "DSG")

    def validate(self, workload: Workload) -> None:
        super().validate(workload)
        self.check_shards(workload)

    def group_reference(
        self, workload: Workload, inputs: Sequence[Tensors]
    ) -> "list[dict[str, torch.Tensor]]":
        import torch

        found = []
        with exact_products():
            for own in inputs:
                b = own["B"].float()
                shards = [one["A"].to(b.device).float() @ b for one in inputs]
                found.append({"C": torch.cat(shards)})
        return found

    def vendor_scratch(self, workload: Workload) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {GATHERED: ((workload.dims["m"], workload.dims["k"]), workload.dtype)}

    def vendor_collective(self, workload: Workload) -> Collective:
        size = workload.dims["m"] * workload.dims["k"] * DTYPE_BYTES[workload.dtype]
        return Collective("all_gather", "A", GATHERED, "before", size)

    @property
    def vendor_operands(self) -> tuple[str, str, str]:
        return GATHERED, "B", "C"


OPERATOR = AllGatherMatmul()


class AllGatherMatmulGpu(RankProductTemplate):
    """The library's all-gather and the product of one device, or one kernel that brings rows and multiplies.

    A call of `pull` is three kernels: a barrier of all ranks, so that all rows are there; the product, whose
    tiles read the rows of peers; and a barrier, after which the rows may be written again. A call of `push`
    is two: a barrier, after which the memory for the rows of peers may be written; and the product, of which
    some blocks send rows, or beside which the copy engines do. It ends when it has got all rows and has sent
    all of its own.
    """

    operator = OPERATOR
    name = "all_gather_matmul"

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def shared_scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        if config["algorithm"] == SEQUENTIAL:
            return {}
        world = workload.dims[WORLD]
        found = {FLAGS: shape_of_flags(world)}
        if config["algorithm"] == PUSH:
            chunks = self._chunks(workload, config)
            found[ARRIVED] = shape_of_arrivals(chunks)
            found[GATHERED] = ((world, chunks.shared.rows, workload.dims["k"]), workload.dtype)
        return found

    def _tiles(self, workload: Workload, config: Config) -> RankTiles:
        m, n, k, world = (workload.dims[d] for d in self.operator.dims)
        return RankTiles(m // world, n, k, world, config, workload.dtype, begin=0)

    def _chunks(self, workload: Workload, config: Config) -> Chunks:
        tiles, boxes = self._tiles(workload, config), None
        if config.str("mechanism", STORE) == TMA:
            boxes = Boxes(tiles.block_m, config.int("block_k"), config.int("num_stages"))
        rows = SharedRows(tiles.rows, tiles.depth, tiles.world, tiles.dtype, tiles.threads)
        return Chunks(rows, config.int("chunk_rows"), config.int("senders", 0), boxes)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """`push` from four cores for each peer; the product's own default where that is not legal."""
        senders = min(4 * (workload.dims["world"] - 1), max(search_space.SENDERS))
        way: Mapping[str, Value] = {"algorithm": PUSH, "senders": senders, "chunk_rows": 128}
        return default_of_ways(self.space(workload, target), workload, target, way, self.product)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, k, world = (workload.dims[d] for d in self.operator.dims)
        dtype, rows = workload.dtype, m // world
        if config["algorithm"] == SEQUENTIAL:
            product = self.product.build(product_workload(workload, m), product_config(config))
            shards = [(name, ((rows, k), dtype)) for name in of_ranks("A", world)]
            return as_kernel_of_ranks(product, [*shards, "B", "C"])
        meet = barrier_between_ranks(world)
        tiles = self._tiles(workload, config)
        pushes = config["algorithm"] == PUSH
        by_engines = pushes and config.str("mechanism", STORE) == COPY_ENGINE

        def send_part(c: Any, shard: Any, part: Any, at: Any) -> Any:
            return T.tma_copy(part, c[0][shard, at[0], at[1]])

        def load_rows(shards: Any, shard: Any, at: Any, copy: Any) -> None:
            on_rank(shard, shards, lambda own: copy(own[at[0], at[1]]))

        @T.macro
        def load_gathered(a, shard, at, copy):  # type: ignore[no-untyped-def]
            own_rows, gathered = a.pairs[0]
            if shard == a.rank:
                on_rank(a.rank, own_rows, lambda own: copy(own[at[0], at[1]]))
            else:
                on_rank(a.rank, gathered, lambda one: copy(one[shard, at[0], at[1]]))

        if pushes:
            chunks = self._chunks(workload, config)
            moved = chunks_from_engines(chunks) if by_engines else chunks_to_peers(chunks)
            beside = Beside(chunks.senders, *moved)
            product = product_to_ranks(tiles, send_part, load_gathered, beside)
        else:
            product = product_to_ranks(tiles, send_part, load_rows)

        def body(a: Any, b: Any, c: Any, flags: Any, *rest: Any) -> None:
            *scratch, rank = rest
            meet(flags, rank)
            if pushes:
                arrived, gathered = scratch
                product(Gathering([(a, gathered)], flags, arrived, rank), b, (c,), rank)
            else:
                product(a, b, (c,), rank)
                meet(flags, rank)

        arguments = (
            ("A", ((rows, k), dtype), True),
            ("B", ((k, n), dtype), False),
            ("C", ((world, rows, n), dtype), False),  # the last tile of a shard ends with it
            *((name, of, True) for name, of in self.shared_scratch(workload, config).items()),
        )
        built = kernel_of_ranks(self.name, arguments, world, body)
        if not by_engines:
            return built
        # the barrier is the first launch, and the product the second one
        return with_peer_copies(built, copies_of_chunks(chunks, "A", GATHERED, beside=1))


TEMPLATES = (AllGatherMatmulGpu(),)
