"""Search space of all_to_all_grouped_matmul: that of a rank's grouped products, and the ways of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..problem.config import Value
from ..problem.space import Config, Constraint, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from . import grouped_matmul
from .grouped_matmul import is_ahead
from .rank_products import product_config
from .ways import PUSH, SEQUENTIAL, with_ways

WAYS: Mapping[str, str] = {
    SEQUENTIAL: "the library's all-gather of all rows before the products, and its reduce-scatter after them",
    PUSH: "kernels store rows at the ranks of their experts, and sums at the ranks of their tokens",
}


def of_second(config: Config) -> Config:
    """The config of the second product. Its tiles have as many columns as both halves of the first's have."""
    return Config({**product_config(config), "block_n": 2 * config.int("block_n")})


class _SecondValues(Mapping[str, Value]):
    """The values of `of_second`. Those of the first product are read when they are asked for."""

    __slots__ = ("_first",)

    def __init__(self, first: Config) -> None:
        self._first = first

    def __getitem__(self, name: str) -> Value:
        return 2 * self._first.int(name) if name == "block_n" else self._first[name]

    def __iter__(self) -> Iterator[str]:
        return iter(product_config(self._first))

    def __len__(self) -> int:
        return len(product_config(self._first))


class _SecondConfig(Config):
    """`of_second`, by which an enumeration sees which values of the first product a rule reads."""

    __slots__ = ()

    def __init__(self, first: Config) -> None:
        self._values = _SecondValues(first)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))


def space(first: Workload, second: Workload, target: Target) -> SearchSpace:
    """The search space on `target`.

    Args:
        first: the first product, of gates and values, with as many rows as a rank has on average.
        second: the second product.
        target: the target.
    """
    alone, last = (grouped_matmul.space(product, target) for product in (first, second))
    return with_ways(alone, WAYS, target, (_without_table(), *_fits_both(last)))


def _without_table() -> Constraint:
    """TileLang's pipeline across tiles has a table with room for the tiles of all rows that may come."""

    def violation(config: Config) -> str | None:
        persistent = config.int("persistent")
        if not persistent or is_ahead(config):
            return None
        return (
            f"persistent={persistent} with schedule=serial has a table of the tiles of all rows that may "
            "come: take schedule=overlapped, or persistent=0"
        )

    return Constraint("table of tiles", violation)


def _fits_both(last: SearchSpace) -> Iterator[Constraint]:
    """The second product has the schedule of the first one."""
    wide = next(parameter for parameter in last.parameters if parameter.name == "block_n")

    def violation(config: Config) -> str | None:
        columns = 2 * config.int("block_n")
        if columns not in wide.values:
            return (
                f"block_n={config['block_n']} is one half of {columns} columns of the second product, which "
                f"has {', '.join(map(str, wide.values))}: take block_n=64 or 128"
            )
        return None

    yield Constraint("second product", violation)
    yield from (_of_second(rule, wide.values) for rule in last.constraints if not rule.is_waste)


def _of_second(rule: Constraint, columns: Sequence[Value]) -> Constraint:
    """A rule of the second product, for configs of the first one with tiles of so many columns."""

    def violation(config: Config) -> str | None:
        if 2 * config.int("block_n") not in columns:
            return None  # another rule has the reason
        reason = rule.violation(_SecondConfig(config))
        return None if reason is None else f"the second product: {reason}"

    return Constraint("second product", violation)
