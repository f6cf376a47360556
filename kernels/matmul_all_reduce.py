"""matmul_all_reduce: the sum of A[m, k] B[k, n] over ranks, on all ranks.

It is the end of a layer whose weights are divided along k, as of `matmul_reduce_scatter`, where each rank
goes on with all rows. m and n are those of all ranks, k is that of one rank. Sums over k are in float32, C
has the dtype of the operands, and the products of ranks are rounded to it on their way.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..problem.axes import Axes
from ..problem.group_operator import WORLD, of_ranks
from ..problem.operator import Tensors
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import Collective
from ..problem.workload import Workload
from ..search_spaces import matmul_all_reduce as search_space
from ..search_spaces.matmul_all_reduce import ONE_SHOT, TWO_SHOT
from ..search_spaces.rank_products import SPREAD, product_config, product_workload
from ..search_spaces.ways import SEQUENTIAL
from ..target.spec import Target
from ._rank_products import RankProduct, RankProductTemplate, default_of_ways, exact_sums, layers
from ._rank_rows import sums_of_ranks, sums_to_all
from ._rank_sums import Sending, TileSums, shape_of_tile_flags, sums_of_tiles
from ._rank_tiles import Beside, RankTiles, product_to_ranks
from ._ranks import (
    ARRIVED,
    FLAGS,
    as_kernel_of_ranks,
    barrier_between_ranks,
    kernel_of_ranks,
    on_each,
    on_rank,
    shape_of_flags,
)

if TYPE_CHECKING:
    import torch

STAGING, PRODUCT = "staging", "product"
MANY_ROWS = 512


class MatmulAllReduce(RankProduct):
    name = "matmul_all_reduce"
    axes: ClassVar[Axes] = {"A": ("m", "k"), "B": ("k", "n"), "C": ("m", "n")}
    shared = ("C",)
    divided = ("k",)
    # o_proj and down_proj, whole: of Llama 3.1 8B, 70B and 405B, Qwen3 32B and DeepSeek-V3 (its dense
    # layers), for 16 and 64 tokens of decoding and 8192 of a prompt
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = layers(
        {
            "L8O16": (16, 4096, 4096),
            "L8D16": (16, 4096, 14336),
            "L70O16": (16, 8192, 8192),
            "L70D16": (16, 8192, 28672),
            "L70D64": (64, 8192, 28672),
            "L405O16": (16, 16384, 16384),
            "L405D16": (16, 16384, 53248),
            "Q32D64": (64, 5120, 25600),
            "DSO64": (64, 7168, 16384),
            "L70O": (8192, 8192, 8192),
            "L70D": (8192, 8192, 28672),
            "DSD": (8192, 7168, 18432),
        }
    )
    default_names = ("L70O16", "L70D64", "L70O")

    def group_reference(
        self, workload: Workload, inputs: Sequence[Tensors]
    ) -> "list[dict[str, torch.Tensor]]":
        total = exact_sums(inputs, slice(0, workload.dims["m"]))
        return [{"C": total.to(one["A"].device)} for one in inputs]

    def vendor_scratch(self, workload: Workload) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {PRODUCT: ((workload.dims["m"], workload.dims["n"]), workload.dtype)}

    def vendor_collective(self, workload: Workload) -> Collective:
        size = workload.dims["m"] * workload.dims["n"] * DTYPE_BYTES[workload.dtype]
        return Collective("all_reduce", PRODUCT, "C", "after", size)


OPERATOR = MatmulAllReduce()


class MatmulAllReduceGpu(RankProductTemplate):
    """The product of one device and the library's all-reduce, or tiles that go to one rank or to all.

    A call of the latter is several kernels, with barriers of all ranks before the product, after it, and
    after sums that go to peers. With `summers` some blocks of the product's kernel add tiles that have
    arrived and send the sums to all, and few are left for the end.
    """

    operator = OPERATOR
    name = "matmul_all_reduce"

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def shared_scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        if config["algorithm"] == SEQUENTIAL:
            return {}
        world, m = workload.dims[WORLD], workload.dims["m"]
        rows = m if config["algorithm"] == ONE_SHOT else m // world
        found = {
            FLAGS: shape_of_flags(world),
            STAGING: ((world, rows, workload.dims["n"]), workload.dtype),
        }
        if config.int("summers", 0):
            found[ARRIVED] = shape_of_tile_flags(self._sums(workload, config))
        return found

    def _tiles(self, workload: Workload, config: Config) -> RankTiles:
        m, n, k, world = (workload.dims[d] for d in self.operator.dims)
        shards = 1 if config["algorithm"] == ONE_SHOT else world
        return RankTiles(m // shards, n, k, shards, config, workload.dtype)

    def _sums(self, workload: Workload, config: Config) -> TileSums:
        return TileSums(self._tiles(workload, config), config.int("summers"), to_all=True)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """Many rows: `two_shot` with large tiles. Few: the product's own default, then the collective."""
        is_large = workload.dims["m"] >= MANY_ROWS
        way = {"algorithm": TWO_SHOT, "order": SPREAD} if is_large else None
        return default_of_ways(self.space(workload, target), workload, target, way, self.product)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, k, world = (workload.dims[d] for d in self.operator.dims)
        dtype, way = workload.dtype, config["algorithm"]
        if way == SEQUENTIAL:
            product = self.product.build(product_workload(workload, m), product_config(config))
            shared = [(name, ((m, n), dtype)) for name in of_ranks("C", world)]
            return as_kernel_of_ranks(product, ["A", "B", *shared])
        to_all = way == ONE_SHOT
        tiles = self._tiles(workload, config)
        meet = barrier_between_ranks(world)
        add = (sums_of_ranks if to_all else sums_to_all)(tiles.rows, n, world, dtype)

        def send_part(to: Sending, shard: Any, part: Any, at: Any) -> None:
            def store_at(peer: Any) -> Any:
                return T.tma_copy(part, peer[to.rank, at[0], at[1]])

            if to_all:
                on_each(to.staging, store_at)
            else:
                on_rank(shard, to.staging, store_at)

        beside, add_late = None, None
        if config.int("summers", 0):
            add_early, report, add_late = sums_of_tiles(self._sums(workload, config))
            beside = Beside(config.int("summers"), add_early, report=report)
        product = product_to_ranks(tiles, send_part, beside=beside)

        def body(a: Any, b: Any, c: Any, flags: Any, staging: Any, *rest: Any) -> None:
            *arrived, rank = rest
            sending = Sending(staging, c, flags, arrived[0] if arrived else (), rank)
            meet(flags, rank)
            product(a, b, sending, rank)
            meet(flags, rank)
            if add_late is not None:
                add_late(sending)
            else:
                add(staging, c, rank)
            if not to_all:
                meet(flags, rank)

        arguments = (
            ("A", ((m, k), dtype), False),
            ("B", ((k, n), dtype), False),
            ("C", ((m, n), dtype), True),
            *((name, of, True) for name, of in self.shared_scratch(workload, config).items()),
        )
        return kernel_of_ranks(self.name, arguments, world, body)


TEMPLATES = (MatmulAllReduceGpu(),)
