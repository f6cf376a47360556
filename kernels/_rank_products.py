"""What products of several ranks have in common: operands, references, the vendor's product, templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ..dtypes import DTYPE_BYTES
from ..errors import WorkloadError
from ..problem.axes import shape
from ..problem.group_operator import SEEDS, WORLD, GroupOperator
from ..problem.operator import Tensors
from ..problem.rounding import SecondInputs
from ..problem.space import Config, SearchSpace, Value
from ..problem.template import RANK, Collective, KernelTemplate
from ..problem.workload import MAX_DIMENSION, Workload
from ..search_spaces.rank_products import product_config, product_workload
from ..search_spaces.ways import SEQUENTIAL
from ..target.spec import Target
from ._exact_products import exact_products
from .matmul import MatmulGpu

if TYPE_CHECKING:
    import torch

# whole numbers up to this one have a number of their own
WHOLE: Mapping[str, int] = {"bfloat16": 2**8, "float16": 2**11}


class RankProduct(GroupOperator):
    """A product of A and B of each rank, in bfloat16 or float16, row-major.

    Attributes:
        summed: whether the products of all ranks are added.
    """

    dims = ("m", "n", "k", WORLD)
    dtypes = ("bfloat16", "float16")
    summed: ClassVar[bool] = True

    def validate(self, workload: Workload) -> None:
        super().validate(workload)
        m, n, k = (workload.dims[d] for d in self.stated_dims)
        for extents, size in (("m*k", m * k), ("k*n", k * n), ("m*n", m * n)):
            if size > MAX_DIMENSION:
                raise WorkloadError(
                    f"{self.name}: {extents}={size} elements are more than the {MAX_DIMENSION} that kernels "
                    "index; split the product along its largest dimension"
                )

    def check_shards(self, workload: Workload) -> None:
        """Raise `WorkloadError` unless each rank has as many whole rows."""
        m, world = workload.dims["m"], workload.dims[WORLD]
        if m % world:
            raise WorkloadError(
                f"{self.name}: m={m} rows cannot be divided evenly among {WORLD}={world} devices: take a "
                f"multiple of {world}"
            )

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"C": shape(self.axes["C"], workload.dims, {})}

    def operands(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        """Shapes of A and B of a rank."""
        return {name: shape(self.axes[name], workload.dims, {}) for name in ("A", "B")}

    def rank_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> dict[str, torch.Tensor]:
        """A ~ N(0, 1), and B so that C ~ N(0, 1)."""
        import torch

        generator = torch.Generator(device).manual_seed(seed * SEEDS + rank)
        terms = workload.dims["k"] * (workload.dims[WORLD] if self.summed else 1)
        dtype = getattr(torch, workload.dtype)
        found = {
            name: torch.randn(sizes, generator=generator, device=device, dtype=dtype)
            for name, sizes in self.operands(workload).items()
        }
        found["B"] *= terms**-0.5
        return found

    def rank_second_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> SecondInputs:
        """Numbers -1, 0, 1, with few enough in a row of A that all sums of products are exact in any order.

        Sums of some ranks are rounded to the dtype on their way.
        """
        import torch

        generator = torch.Generator(device).manual_seed(seed * SEEDS + rank)
        dtype, terms = getattr(torch, workload.dtype), WHOLE[workload.dtype]
        terms //= workload.dims[WORLD] if self.summed else 1
        found = {}
        for name, sizes in self.operands(workload).items():
            drawn = torch.randint(-1, 2, sizes, generator=generator, device=device, dtype=torch.int8)
            found[name] = drawn.to(dtype)
        depth = workload.dims["k"]
        if depth > terms:
            idle = torch.randperm(depth, generator=generator, device=device)[terms:]
            found["A"][:, idle] = 0
        return SecondInputs(found, is_exact=True)

    def flops(self, workload: Workload) -> int:
        """Of one rank."""
        return 2 * workload.dims["m"] * workload.dims["n"] * workload.dims["k"]

    def min_bytes(self, workload: Workload) -> int:
        """Of one rank, without what it sends."""
        sizes = {**self.operands(workload), **self.outputs(workload)}
        return sum(map(math.prod, sizes.values())) * DTYPE_BYTES[workload.dtype]

    def max_relative_error(self, workload: Workload) -> float:
        """Two to four times the error of rounding C once, and each sum of products of ranks once more.

        The roundings of the products of all ranks together are as large as one of C; the sum of j of them has
        the share sqrt(j / world) of the magnitude of C.
        """
        once = {"bfloat16": 4e-3, "float16": 6e-4}[workload.dtype]
        world = workload.dims[WORLD]
        roundings = 1 + sum(j / world for j in range(2, world + 1)) if self.summed else 1.0
        return once * math.sqrt(roundings)

    def vendor_part(self, workload: Workload, tensors: Tensors) -> Callable[[], object]:
        import torch

        names = self.vendor_operands
        a, b, c = (tensors[name] for name in names)
        return lambda: torch.matmul(a, b, out=c)

    @property
    def vendor_operands(self) -> tuple[str, str, str]:
        """Names of the operands and of the result of the vendor's product."""
        return "A", "B", "product"


class RankProductTemplate(KernelTemplate):
    """Kernels of a product of several ranks. Of each, `sequential` is a way.

    That is the kernel of `product` and the library's collective, as the vendor's libraries have it.
    """

    operator: RankProduct
    target_kinds = ("cuda",)
    kind_reasons = dict.fromkeys(("hip", "cpu"), "its ranks wait for each other by instructions of PTX")
    dtypes = ("bfloat16", "float16")
    static_reasons: ClassVar[Mapping[str, str]] = {
        "m": "tiles are divided among the ranks when the kernel is built",
        "n": "rows of B and C are n elements apart, and the copies need rows that start at whole 16 bytes",
        "k": "rows of A are k elements apart, and the copies need rows that start at whole 16 bytes",
        WORLD: "the tensors of all ranks are arguments of the kernel",
    }
    numbers = (RANK,)
    product: ClassVar[KernelTemplate] = MatmulGpu()

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, tuple[tuple[int, ...], str]]:
        if config["algorithm"] != SEQUENTIAL:
            return {}
        alone = product_workload(workload, workload.dims["m"])
        whole = self.operator.vendor_scratch(workload)
        return {**whole, **self.product.scratch(alone, product_config(config))}

    def collective(self, workload: Workload, config: Config) -> Collective | None:
        return self.operator.vendor_collective(workload) if config["algorithm"] == SEQUENTIAL else None


def exact_sums(inputs: Sequence[Tensors], rows: slice) -> torch.Tensor:
    """These rows of the sum of all ranks' products, in float32, on the device of the first rank."""
    home = inputs[0]["A"].device
    with exact_products():
        total = None
        for one in inputs:
            part = (one["A"][rows].float() @ one["B"].float()).to(home)
            total = part if total is None else total.add_(part)
    assert total is not None
    return total


def layers(shapes: Mapping[str, tuple[int, int, int]]) -> dict[str, Mapping[str, Value]]:
    """Published shapes by name, from (m, n, k)."""
    return {name: {"m": m, "n": n, "k": k} for name, (m, n, k) in shapes.items()}


def default_of_ways(
    space: SearchSpace,
    workload: Workload,
    target: Target,
    way: Mapping[str, Value] | None,
    product: KernelTemplate,
) -> Config | None:
    """A config with large tiles that go to ranks; the default of the product where that is not legal.

    Args:
        space: of all ways.
        workload: of the operator.
        target: the target.
        way: parameters of the way that tiles go to ranks; None: the product's default.
        product: the template of the product of one device.
    """
    if way is not None:
        large: dict[str, Value] = {
            **{p.name: p.default for p in space.parameters if p.default is not None},
            **{"block_m": 128, "block_n": 256, "block_k": 64, "num_stages": 4},
            **{"threads": 256, "policy": "full_row", "epilogue": "shared", "swizzle": 8},
            **{"persistent": target.int("core.count"), "schedule": "overlapped"},
            **way,
        }
        wanted = space.config(large)
        if wanted in space:
            return wanted
    one = product_workload(workload, workload.dims["m"])
    alone = product.default_config(one, target.device_target)
    return None if alone is None else space.closest(space.config({"algorithm": SEQUENTIAL, **alone}))
