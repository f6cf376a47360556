"""What search spaces of products of several ranks share: the way, and the rules of tiles that go to ranks.

One space has all ways to compute an operator. `sequential` is the product of one device with all its
schedules, and the library's collective. Of the other ways each block stays and walks over tiles. They reach
the devices of one host only, so of a pod all but `sequential` are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..dtypes import DTYPE_BYTES
from ..problem.group_operator import MOST_RANKS, WORLD
from ..problem.rejections import Rejected
from ..problem.space import Config, Constraint, Parameter, SearchSpace, Value
from ..problem.workload import Workload
from ..target.spec import Target
from . import matmul
from .matrix_unit import is_hopper

SEQUENTIAL = "sequential"
LAST, SPREAD = "last", "spread"
ORDERS = (LAST, SPREAD)
# rules of the product alone that tiles for ranks do not have: they stay on their cores in any case
_OF_ONE_DEVICE = ("persistent blocks", "block_m within m", "grid")
_ALIGNED = 16  # bytes at which rows begin that TMA copies
ANOTHER_WAY = "way"  # rule: a way has its own values
WITHIN_REACH = "one host"  # rule: a kernel reaches the devices of its host
LEAST_CORES = 72  # for kernels with blocks that wait: these are resident, and others run beside them
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


class SpaceOfWays(SearchSpace):
    """A space whose ways have different parameters.

    All combinations of all values would be many, of which next to none is legal. So the legal ones are looked
    for among the values that each way may have. `constraints` have rules for the others.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        constraints: Sequence[Constraint],
        of_ways: Sequence[Mapping[str, tuple[Value, ...]]],
    ) -> None:
        """`of_ways`: values of the parameters that a way may have, in the order of the ways."""
        super().__init__(parameters, constraints)
        self._of_ways = of_ways

    def _enumerate(self) -> tuple[list[tuple[int, ...]], Rejected]:
        points: list[tuple[int, ...]] = []
        rejected = Rejected()
        left = self.size
        for values in self._of_ways:
            part = SearchSpace(
                [Parameter(p.name, values[p.name], default=p.default) for p in self.parameters],
                self.constraints,
            )
            for config in part.configs():
                found = [(p, p.of(config)) for p in self.parameters]
                points.append(
                    tuple(next(i for i, v in enumerate(p.values) if v == value) for p, value in found)
                )
            of_part = part.rejected()
            for name, count in of_part.counts.items():
                rejected.add(name, count, of_part.examples[name])
            left -= part.size
        if left:
            rejected.add(ANOTHER_WAY, left, self._with_a_value_of_another_way())
        return points, rejected

    def _with_a_value_of_another_way(self) -> str:
        """The reason given for a config that has a value of another way."""
        for values in self._of_ways:
            own = {p.name: values[p.name][0] for p in self.parameters}
            for parameter in self.parameters:
                for value in parameter.values:
                    config = self.config({**own, parameter.name: value})
                    for broken in self.violations(config)[:1]:
                        if broken.constraint == ANOTHER_WAY:
                            return broken.reason
        raise AssertionError("no rule refuses what no way has")


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


def with_ways(
    alone: SearchSpace, ways: Mapping[str, str], target: Target, rules: Sequence[Constraint] = ()
) -> SearchSpace:
    """The space of one rank's kernel, and the ways in which ranks exchange what it takes or leaves.

    Args:
        alone: the space of the kernel.
        ways: `sequential` and others, with their meaning.
        target: the target.
        rules: further rules.
    """
    some = tuple(ways) if target.int("core.count") >= LEAST_CORES else (SEQUENTIAL,)
    algorithm = Parameter("algorithm", some, "; ".join(ways[way] for way in some))
    return SearchSpace((algorithm, *alone.parameters), (*within_reach(target), *rules, *alone.constraints))


def within_reach(target: Target) -> tuple[Constraint, ...]:
    """The rule that only `sequential` is legal, on a target of which a kernel does not reach all devices."""
    beyond = _out_of_reach(target)

    def violation(config: Config) -> str | None:
        way = config.str("algorithm")
        return None if way == SEQUENTIAL else f"algorithm={way} {beyond}: take algorithm={SEQUENTIAL}"

    return (Constraint(WITHIN_REACH, violation),) if beyond else ()


def _out_of_reach(target: Target) -> str | None:
    """Why a kernel cannot store to all ranks; None if it can."""
    level = target.unreached
    if level is not None:
        return (
            f"stores at addresses of peers, which kernels have within 1 host, and level '{level.name}' "
            f"of target {target.name} is {level.devices} of them"
        )
    if target.world > MOST_RANKS:
        return f"takes the tensors of {MOST_RANKS} ranks at most, and target {target.name} has {target.world}"
    return None


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


def own_values(
    parameter: Parameter, of_ways: Mapping[str, Mapping[str, tuple[Value, ...]]], kernels: str
) -> Constraint:
    """A way has its own values of a parameter. One rule for each, so that it reads no others.

    Args:
        parameter: the parameter.
        of_ways: its values, and those of others, by way.
        kernels: what the kernels of one device compute, for messages.
    """

    def violation(config: Config) -> str | None:
        way, value = config.str("algorithm"), parameter.of(config)
        values = of_ways[way][parameter.name]
        if value in values:
            return None
        is_alone = way != SEQUENTIAL and value in of_ways[SEQUENTIAL][parameter.name]
        what = f"is of {kernels} of 1 device"
        if not is_alone:
            others = [other for other, known in of_ways.items() if value in known[parameter.name]]
            ways = "1 other way" if len(others) == 1 else f"{len(others)} other ways"
            what = f"is of {ways}, algorithm={' or '.join(others)}"
        elif parameter.name == "persistent":
            what = (
                "has a block a tile, and blocks that wait for ranks hold their cores, so all must be resident"
            )
        return (
            f"{parameter.name}={value} {what}: take {parameter.name}={str(values[0]).lower()} with "
            f"algorithm={way}"
        )

    return Constraint(ANOTHER_WAY, violation)


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
