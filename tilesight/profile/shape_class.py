"""Shape classes: workloads for which a config lowers to the same IR up to numbers.

Whether tiles divide a dimension, and which copies its alignment allows, follows from the greatest common
divisor of the dimension and the least common multiple of all tile sizes. Dimensions of at most one tile keep
their value, since loops and grid axes of one disappear from the IR. A kernel with dynamic dimensions has one
IR for all their values, so these are free at any size, and divisibility by tiles does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..problem.template import KernelTemplate, Scale
from ..problem.workload import Workload

PROBE_SIZE = (
    1700  # elements along a tiled dimension: enough for deep pipelines, few enough for edges to matter
)
MIN_PRIME = 7  # tiles are products of 2, 3 and 5
# Configs deal the tiles of a dimension to parts (split_k) or to the blocks of a cluster, and kernels that add
# parts have tiles of their own. So sizes of probes are divisible by more than the tiles, as most workloads.
PARTS = (12, 4, 3, 2, 1)
MOST_ELEMENTS = 2**31  # of a matrix: larger ones are indexed by 64 bits


@dataclass(frozen=True)
class ShapeClass:
    """The shape class of `workload` for a template whose kernels take `dynamic` dimensions at run time."""

    template: KernelTemplate
    workload: Workload
    dynamic: tuple[str, ...] = ()

    @cached_property
    def free(self) -> Mapping[str, Scale]:
        """Dimensions that may take another value within the class."""
        dims = self.workload.dims
        return {
            dim: scale
            for dim, scale in self.template.scales.items()
            if dim in self.dynamic or dims[dim] > max(scale.values)
        }

    @cached_property
    def divisors(self) -> Mapping[str, int]:
        """By free dimension: the divisor of the tile sizes that all members of the class share."""
        common = {
            dim: math.gcd(self.workload.dims[dim], math.lcm(*scale.values))
            for dim, scale in self.free.items()
        }
        # scaling laws handle only whole tiles of fixed sizes, such as chunks, also in dynamic dimensions
        return {
            dim: 1 if dim in self.dynamic and self.free[dim].tiles else divisor
            for dim, divisor in common.items()
        }

    @cached_property
    def key(self) -> str:
        """Canonical name, for example `matmul(m~256,n~256,k~128;dtype=bfloat16)`."""
        parts = [
            f"{d}~{self.divisors[d]}" if d in self.free else f"{d}={v}" for d, v in self.workload.dims.items()
        ]
        attrs = [
            f"{k}={str(v).lower() if isinstance(v, bool) else v}"
            for k, v in sorted(self.workload.attrs.items())
        ]
        attrs.append(f"dtype={self.workload.dtype}")
        code = f"{self.workload.operator}({','.join(parts)};{','.join(attrs)})"
        return f"{code}|open {','.join(self.dynamic)}" if self.dynamic else code

    def probe(self, number: int) -> Workload:
        """A member of the class with free dimensions of divisor times prime, other primes for each `number`.

        The primes show which dimensions a number of a profile depends on.
        """
        return self._probe(number, self._most_parts)

    @cached_property
    def _most_parts(self) -> int:
        """The most parts with which the two largest dimensions of the first probes span no larger matrix."""
        for most in PARTS:
            probes = (self._probe(number, most).dims.values() for number in range(3))
            if all(math.prod(sorted(sizes)[-2:]) < MOST_ELEMENTS for sizes in probes):
                return most
        return 1

    def _probe(self, number: int, most_parts: int) -> Workload:
        dims = dict(self.workload.dims)
        taken: set[int] = set()
        for position, (dim, divisor) in enumerate(self.divisors.items()):
            tiled = max(self.free[dim].values) > 1
            whole = divisor * self._parts(dim, most_parts) if tiled else divisor
            least = max(MIN_PRIME, -(-PROBE_SIZE // whole)) if tiled else 2
            # each probe has another order, so that ratios between probes differ from dimension to dimension
            wanted = (
                (number * 3 + position * 2 + number * position) % 7 if tiled else (number + 2 * position) % 5
            )
            prime = _prime(least, wanted)
            while prime in taken:
                prime = _prime(prime + 1, 0)
            taken.add(prime)
            dims[dim] = whole * prime
        return Workload(self.workload.operator, dims, self.workload.dtype, self.workload.attrs)

    def _parts(self, dim: str, most: int) -> int:
        """A number of parts, so that multiples of it and of the divisor stay in the class."""
        if dim in self.dynamic:  # the code is the same at all sizes
            return 1
        divisor, tiles = self.divisors[dim], math.lcm(*self.free[dim].values)
        return next(parts for parts in PARTS if parts <= most and math.gcd(divisor * parts, tiles) == divisor)


def _prime(least: int, skip: int) -> int:
    """The prime at position `skip` among those that are at least `least`."""
    number = least
    while True:
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            if skip == 0:
                return number
            skip -= 1
        number += 1
