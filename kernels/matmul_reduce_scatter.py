"""matmul_reduce_scatter: the sum of A[m, k] B[k, n] over ranks, of which each rank gets its rows.

It is the end of a layer whose weights are divided along k: each rank has the part A of the activations, and
the part B of the weights. Rank r gets rows r m/world .. (r + 1) m/world of the sum, so m is a multiple of the
world. m and n are those of all ranks, k is that of one rank. Sums over k are in float32, C has the dtype of
the operands, and the products of ranks are rounded to it on their way.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPE_BYTES
from ..problem.axes import Axes, Parts
from ..problem.group_operator import WORLD, of_ranks
from ..problem.operator import Tensors
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import Collective, KernelTemplate
from ..problem.workload import Workload
from ..search_spaces import matmul_reduce_scatter as search_space
from ..search_spaces.matmul_reduce_scatter import ADD
from ..search_spaces.rank_products import SPREAD, product_config, product_workload
from ..search_spaces.ways import PUSH, SEQUENTIAL
from ..target.spec import Target
from ._rank_products import RankProduct, RankProductTemplate, default_of_ways, exact_sums, layers
from ._rank_rows import sums_of_ranks, zeros
from ._rank_sums import Sending, TileSums, shape_of_tile_flags, sums_of_tiles
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

STAGING, PRODUCT = "staging", "product"


class MatmulReduceScatter(RankProduct):
    name = "matmul_reduce_scatter"
    axes: ClassVar[Axes] = {"A": ("m", "k"), "B": ("k", "n"), "C": (Parts("m", WORLD), "n")}
    shared = ("C",)
    divided = ("k",)
    # o_proj and down_proj, whole: of Llama 3.1 8B, 70B and 405B, Qwen3 32B and DeepSeek-V3 (its dense
    # layers), for 8192 tokens; and of Llama 3.1 70B for 512 and 64 tokens of decoding
    named: ClassVar[Mapping[str, Mapping[str, Value]]] = layers(
        {
            "L8O": (8192, 4096, 4096),
            "L8D": (8192, 4096, 14336),
            "L70O": (8192, 8192, 8192),
            "L70D": (8192, 8192, 28672),
            "L405O": (8192, 16384, 16384),
            "L405D": (8192, 16384, 53248),
            "Q32O": (8192, 5120, 8192),
            "Q32D": (8192, 5120, 25600),
            "DSO": (8192, 7168, 16384),
            "DSD": (8192, 7168, 18432),
            "L70D512": (512, 8192, 28672),
            "L70D64": (64, 8192, 28672),
        }
    )
    default_names = ("L70O", "L70D", "DSO")

    def validate(self, workload: Workload) -> None:
        super().validate(workload)
        self.check_shards(workload)

    def group_reference(
        self, workload: Workload, inputs: Sequence[Tensors]
    ) -> "list[dict[str, torch.Tensor]]":
        rows = workload.dims["m"] // workload.dims[WORLD]
        found = []
        for rank, own in enumerate(inputs):
            total = exact_sums(inputs, slice(rank * rows, (rank + 1) * rows))
            found.append({"C": total.to(own["A"].device)})
        return found

    def vendor_scratch(self, workload: Workload) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {PRODUCT: ((workload.dims["m"], workload.dims["n"]), workload.dtype)}

    def vendor_collective(self, workload: Workload) -> Collective:
        size = workload.dims["m"] * workload.dims["n"] * DTYPE_BYTES[workload.dtype]
        return Collective("reduce_scatter", PRODUCT, "C", "after", size)


OPERATOR = MatmulReduceScatter()


class MatmulReduceScatterGpu(RankProductTemplate):
    """The product of one device and the library's reduce-scatter, or tiles that go to their ranks at once.

    A call of the latter is several kernels: a barrier of all ranks, so that outputs and staging may be
    written; the product; a barrier, after which everything has arrived; and, of `push`, sums. With `summers`
    some blocks of the product's kernel add tiles that have arrived, and few are left for the end.
    """

    operator = OPERATOR
    name = "matmul_reduce_scatter"

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return search_space.space(workload, target)

    def for_config(self, config: Config) -> KernelTemplate:
        if config["algorithm"] != ADD:
            return self
        adding = copy.copy(self)
        adding.deterministic = False
        return adding

    def shared_scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        if config["algorithm"] == SEQUENTIAL:
            return {}
        world = workload.dims[WORLD]
        found = {FLAGS: shape_of_flags(world)}
        if config["algorithm"] == PUSH:
            rows = workload.dims["m"] // world
            found[STAGING] = ((world, rows, workload.dims["n"]), workload.dtype)
        if config.int("summers", 0):
            found[ARRIVED] = shape_of_tile_flags(self._sums(workload, config))
        return found

    def _tiles(self, workload: Workload, config: Config) -> RankTiles:
        m, n, k, world = (workload.dims[d] for d in self.operator.dims)
        return RankTiles(m // world, n, k, world, config, workload.dtype)

    def _sums(self, workload: Workload, config: Config) -> TileSums:
        return TileSums(self._tiles(workload, config), config.int("summers"), to_all=False)

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        """The product's own default, one after the other with the collective.

        For tiles of ranks on most cores, `push` with large tiles.
        """
        way = {"algorithm": PUSH, "order": SPREAD}
        return default_of_ways(self.space(workload, target), workload, target, way, self.product)

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        m, n, k, world = (workload.dims[d] for d in self.operator.dims)
        dtype, way, rows = workload.dtype, config["algorithm"], m // world
        if way == SEQUENTIAL:
            product = self.product.build(product_workload(workload, m), product_config(config))
            shared = [(name, ((rows, n), dtype)) for name in of_ranks("C", world)]
            return as_kernel_of_ranks(product, ["A", "B", *shared])
        meet = barrier_between_ranks(world)
        clear, add = zeros(rows, n, dtype), sums_of_ranks(rows, n, world, dtype)

        def send_part(to: Sending, shard: Any, part: Any, at: Any) -> None:
            def add_to(peer: Any) -> Any:
                return T.atomic_add(peer[at[0], at[1]], part, use_tma=True)

            def store_at(peer: Any) -> Any:
                return T.tma_copy(part, peer[to.rank, at[0], at[1]])

            on_rank(shard, *((to.results, add_to) if way == ADD else (to.staging, store_at)))

        beside, add_late = None, None
        if config.int("summers", 0):
            add_early, report, add_late = sums_of_tiles(self._sums(workload, config))
            beside = Beside(config.int("summers"), add_early, report=report)
        product = product_to_ranks(self._tiles(workload, config), send_part, beside=beside)

        def body(a: Any, b: Any, c: Any, flags: Any, *rest: Any) -> None:
            *scratch, rank = rest
            staging, arrived, *_ = (*scratch, (), ())
            sending = Sending(staging, c, flags, arrived, rank)
            if way == ADD:
                clear(c, rank)
            meet(flags, rank)
            product(a, b, sending, rank)
            meet(flags, rank)
            if add_late is not None:
                add_late(sending)
            elif way == PUSH:
                add(staging, c, rank)

        arguments = (
            ("A", ((m, k), dtype), False),
            ("B", ((k, n), dtype), False),
            ("C", ((rows, n), dtype), True),
            *((name, of, True) for name, of in self.shared_scratch(workload, config).items()),
        )
        return kernel_of_ranks(self.name, arguments, world, body)


TEMPLATES = (MatmulReduceScatterGpu(),)
