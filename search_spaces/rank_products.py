"""What search spaces of products of several ranks share: parameters and rules of tiles that go to ranks.

`sequential` is the product of one device with all its schedules, and the library's collective. Of the other
ways each block stays and walks over tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..dtypes import DTYPE_BYTES
from ..problem.group_operator import WORLD
from ..problem.space import Config, Constraint, Parameter, SearchSpace, Value
from ..problem.workload import Workload
from ..target.spec import Target
from . import matmul
from .matrix_unit import is_hopper
from .ways import SEQUENTIAL, SpaceOfWays, own_values, within_reach

LAST, SPREAD = "last", "spread"
ORDERS = (LAST, SPREAD)
# rules of the product alone that tiles for ranks do not have: they stay on their cores in any case
_OF_ONE_DEVICE = ("persistent blocks", "block_m within m", "grid")
_ALIGNED = 16  # bytes at which rows begin that TMA copies
FEWEST_TILES = 16  # for which tiles go to ranks
SUMMERS = (0, 8, 16)  # fewer do not keep up with the product (experiments/groups)
SUMS = Parameter(
    "summers",
    SUMMERS,
    "blocks that add tiles of all ranks meanwhile; 0: a kernel of its own adds all at the end",
    default=0,
)
ROWS_OF_FUSED = 128  # of tiles: two warpgroups of computing threads, one above the other


def product_workload(workload: Workload, m: int) -> Workload:
    """The product of one rank, of `m` rows, as a workload of matmul."""
    dims = {"m": m, "n": workload.dims["n"], "k": workload.dims["k"]}
    return Workload("matmul", dims, workload.dtype)


def product_config(config: Config) -> Config:
    """A config of `sequential`, which leaves out parameters of other ways, as one of the product alone."""
    return Config({name: value for name, value in config.items() if name != "algorithm"})


def sums_in_turns(world: int) -> Constraint:
    """Tiles that are added beside the product come in the same order from all ranks."""

    def violation(config: Config) -> str | None:
        summers, panel = config.int("summers", 0), config.int("swizzle")
        if not summers:
            return None
        if config.str("order", ORDERS[0]) != SPREAD:
            return (
                f"summers={summers} would wait for the tiles of the own rank, which are computed at the end "
                f"with order={LAST}: take order={SPREAD} or summers=0"
            )
        if panel % world:
            return (
                f"swizzle={panel} walks over rows of some of {world} ranks together, and summers={summers} "
                f"add tiles in the order in which all ranks have computed them: take swizzle=0 or summers=0"
            )
        return None

    return Constraint("sums in turns", violation)


def sums_meanwhile(workload: Workload) -> Constraint:
    """Tiles are added beside the product if their block computes a further one."""
    dims = workload.dims
    rows, world, columns = dims["m"] // dims[WORLD], dims[WORLD], dims["n"]

    def violation(config: Config) -> str | None:
        summers, blocks = config.int("summers", 0), config.int("persistent", 0)
        if not summers or not blocks:
            return None
        tiles = world * -(-rows // config.int("block_m")) * -(-columns // config.int("block_n"))
        if tiles > blocks - summers:
            return None
        return f"summers={summers} have nothing to add before all {tiles} tiles are computed: take summers=0"

    return Constraint("sums meanwhile", violation, is_waste=True)


def space_of_ways(
    product: Workload,
    target: Target,
    ways: Mapping[str, str],
    rules: Sequence[Constraint] = (),
    fewer: Mapping[str, Mapping[str, tuple[Value, ...]]] = MappingProxyType({}),
    further: Sequence[Parameter] = (),
) -> SearchSpace:
    """The space of all ways.

    Args:
        product: the product of one rank (`product_workload`).
        target: the target.
        ways: the ways beside `sequential`, with their meaning.
        rules: further rules.
        fewer: by way and parameter the only values of that way, where others give the same kernel.
        further: parameters of single ways, which `fewer` names. Elsewhere they have their default.
    """
    alone = matmul.space(product, target)
    own = {parameter.name: parameter for parameter in alone.parameters}
    reach = within_reach(target)
    if reach:
        return _space_of_hosts(alone, ways, reach)
    fused = tuple(ways) if _can_fuse(product, target) else ()
    # of tiles for ranks: blocks stay, and copy ahead of the next tile
    fixed: dict[str, Value] = {name: p.default for name, p in own.items() if p.default is not None}
    fixed |= {"persistent": target.int("core.count"), "schedule": "overlapped"}
    fixed |= {"epilogue": "shared", "policy": "full_row"}
    meanings = "; ".join(["the product, then the library's collective", *(ways[way] for way in fused)])
    order = Parameter(
        "order",
        ORDERS if fused else ORDERS[:1],
        "tiles of the own rank at the end, or tiles of all ranks in turns",
        default=ORDERS[0],
    )
    parameters = (
        Parameter("algorithm", (SEQUENTIAL, *fused), meanings),
        *(_widened(p, fixed.get(p.name)) if fused else p for p in own.values()),
        order,
        *(p if fused else replace(p, values=(p.default,)) for p in further if p.default is not None),
    )

    def of_ranks(config: Config) -> str | None:
        """Tiles that go to ranks are copied ahead, and computed by two warpgroups."""
        if config["algorithm"] == SEQUENTIAL:
            return None
        if config.int("num_stages") < matmul.LEAST_AHEAD:
            return f"num_stages={config['num_stages']} copies too late: take num_stages={matmul.LEAST_AHEAD}"
        if config.int("block_m") < ROWS_OF_FUSED:
            return f"block_m={config['block_m']} has no rows for 2 warpgroups: take {ROWS_OF_FUSED} or more"
        return None

    every = {p.name: p.values for p in parameters}
    of_fused = {name: (value,) for name, value in fixed.items()}
    plain: dict[str, tuple[Value, ...]] = {p.name: (p.default,) for p in further if p.default is not None}
    of_ways = {
        SEQUENTIAL: {**{p.name: p.values for p in own.values()}, order.name: order.values[:1], **plain},
        **{way: {**every, **of_fused, **plain, **fewer.get(way, {})} for way in fused},
    }
    constraints = (
        *(own_values(p, of_ways, "products") for p in parameters[1:]),
        Constraint("tiles for ranks", of_ranks),
        *rules,
        *(_adapted(constraint) for constraint in alone.constraints),
    )
    return SpaceOfWays(
        parameters, constraints, [{**values, "algorithm": (way,)} for way, values in of_ways.items()]
    )


def _space_of_hosts(
    alone: SearchSpace, ways: Mapping[str, str], reach: tuple[Constraint, ...]
) -> SearchSpace:
    """The space of devices that tiles cannot reach: the product of one, then the library's collective."""
    algorithm = Parameter(
        "algorithm",
        (SEQUENTIAL, *ways),
        "the product, then the library's collective; of one host also tiles that go to ranks",
    )
    order = Parameter("order", (LAST,), "tiles of the own rank at the end", default=LAST)

    values = {p.name: p.values for p in (*alone.parameters, order)}
    return SpaceOfWays(
        (algorithm, *alone.parameters, order),
        (*reach, *alone.constraints),
        [{**values, algorithm.name: (way,)} for way in algorithm.values],
    )


def _can_fuse(product: Workload, target: Target) -> bool:
    """Whether tiles can go to ranks: TMA copies whole rows, and there are tiles for more than a few cores."""
    m, n = product.dims["m"], product.dims["n"]
    aligned = all(product.dims[dim] * DTYPE_BYTES[product.dtype] % _ALIGNED == 0 for dim in ("n", "k"))
    tiles = -(-m // ROWS_OF_FUSED) * -(-n // ROWS_OF_FUSED)
    return is_hopper(target) and aligned and tiles >= FEWEST_TILES


def _widened(parameter: Parameter, value: Value | None) -> Parameter:
    """A parameter with one more value."""
    if value is None or value in parameter.values:
        return parameter
    return replace(parameter, values=(*parameter.values, value))


def _adapted(constraint: Constraint) -> Constraint:
    """A rule of matmul's space, for the ways that it holds for."""
    of_all = constraint.name not in _OF_ONE_DEVICE

    def violation(config: Config) -> str | None:
        if not of_all and config["algorithm"] != SEQUENTIAL:
            return None
        return constraint.violation(config)

    return Constraint(constraint.name, violation, constraint.is_waste)


def rows_within(name: str, rows: int, way: str | None = None) -> Constraint:
    """Tiles that go to ranks are no higher than what they cover.

    Args:
        name: of what has these rows, for messages.
        rows: the rows that they may cover together.
        way: the way whose tiles they are; None: all but `sequential`.
    """
    least = next(
        (tile for tile in matmul.GPU_TILES if tile >= max(rows, ROWS_OF_FUSED)), max(matmul.GPU_TILES)
    )

    def violation(config: Config) -> str | None:
        is_meant = config["algorithm"] != SEQUENTIAL if way is None else config["algorithm"] == way
        if not is_meant or config.int("block_m") <= least:
            return None
        return f"block_m={config['block_m']} is wasted on the {rows} rows of {name}: {least} covers them"

    return Constraint("rows within shard", violation, is_waste=True)
