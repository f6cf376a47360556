"""Shape classes: workloads for which a config lowers to the same IR but for numbers.

Tiles cut a dimension without a rest or with one, and alignment decides which copies can be used. Both follow from the
greatest common divisor of the dimension and what all tiles divide. Dimensions of a tile or less keep their value, since
loops and grid axes of one disappear from the IR. A kernel with open dimensions has one IR for all their values: they are
free whatever their size, and nothing depends on how tiles cut them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .template import KernelTemplate, Scale
from .workload import Workload

PROBE_SIZE = 1700  # elements along a tiled dimension: enough for deep pipelines, little enough for edges to show
LEAST_PRIME = 7  # tiles are products of 2, 3 and 5


@dataclass(frozen=True)
class ShapeClass:
    """The class of `workload` for one template, whose kernels take the `open` dimensions at run time."""

    template: KernelTemplate
    workload: Workload
    open: tuple[str, ...] = ()

    @cached_property
    def free(self) -> Mapping[str, Scale]:
        """Dimensions that may take another value within the class."""
        dims = self.workload.dims
        return {dim: scale for dim, scale in self.template.scales.items() if dim in self.open or dims[dim] > max(scale.values)}

    @cached_property
    def divisors(self) -> Mapping[str, int]:
        """What all members of the class have in common with the tiles, by free dimension."""
        common = {dim: math.gcd(self.workload.dims[dim], math.lcm(*scale.values)) for dim, scale in self.free.items()}
        # of what tiles of no parameter cut, e.g. chunks, rules know only whole ones
        return {dim: 1 if dim in self.open and self.free[dim].tiles else divisor for dim, divisor in common.items()}

    @cached_property
    def key(self) -> str:
        """Canonical, e.g. `matmul(m~256,n~256,k~128;dtype=bfloat16)`."""
        parts = [f"{d}~{self.divisors[d]}" if d in self.free else f"{d}={v}" for d, v in self.workload.dims.items()]
        attrs = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in sorted(self.workload.attrs.items())]
        code = f"{self.workload.operator}({','.join(parts)};{','.join([*attrs, f'dtype={self.workload.dtype}'])})"
        return f"{code}|open {','.join(self.open)}" if self.open else code

    def probe(self, number: int) -> Workload:
        """A member of the class whose free dimensions are the divisor times primes, others for each `number`.

        What a number of a profile depends on shows in these primes.
        """
        dims = dict(self.workload.dims)
        taken: set[int] = set()
        for position, (dim, divisor) in enumerate(self.divisors.items()):
            tiled = max(self.free[dim].values) > 1
            least = max(LEAST_PRIME, -(-PROBE_SIZE // divisor)) if tiled else 2
            # an order of its own for each probe: ratios between probes differ from dimension to dimension
            wanted = (number * 3 + position * 2 + number * position) % 7 if tiled else (number + 2 * position) % 5
            prime = _prime(least, wanted)
            while prime in taken:
                prime = _prime(prime + 1, 0)
            taken.add(prime)
            dims[dim] = divisor * prime
        return Workload(self.workload.operator, dims, self.workload.dtype, self.workload.attrs)


def _prime(least: int, skip: int) -> int:
    """The prime after `skip` others that are at least `least`."""
    number = least
    while True:
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            if skip == 0:
                return number
            skip -= 1
        number += 1
