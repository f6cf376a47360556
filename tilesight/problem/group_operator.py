"""Operators that several devices compute together, each with its own part of the data.

Kernels reach the devices of one host. Devices of several hosts are predicted only, with the library's
collectives.

Words: the world is the number of devices, a rank is the index of one, a peer is another rank. A shared tensor
is one of every rank that the kernels of all ranks can reach. A kernel takes the shared tensors of all ranks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ..errors import WorkloadError
from .assignments import parse_assignments
from .config import Value
from .operator import Operator, Tensors
from .rounding import SecondInputs
from .workload import Workload

if TYPE_CHECKING:
    import torch

    from ..target.spec import Target
    from .template import Collective

WORLD = "world"
SEEDS = 64  # ranks that draw from one seed, at most
MOST_RANKS = 8  # that kernels reach: the tensors of all ranks are arguments of a kernel, one by one
# device functions: all ranks wait for each other; a block has sent a chunk of rows; a warp waits for chunks
MEET, ANNOUNCE, AWAIT = "meet_ranks", "announce_chunk", "await_chunks"
# a thread has sent a tile or a chunk; a block waits for a tile of all ranks
ANNOUNCE_TILE, AWAIT_TILE = "announce_tile", "await_tile"
# a block has sent its part of a result to its owner, which waits for those of all ranks: of a tile, or all
ANNOUNCE_RESULT, AWAIT_RESULTS, AWAIT_ALL = "announce_result", "await_results", "await_all"


class GroupOperator(Operator):
    """An operator of several devices, which run its kernel together.

    Its last dimension is `world`. The target decides it, so shapes need not state it. `inputs`, `outputs`,
    `flops`, `min_bytes` and the outputs of kernels are those of one rank; an operator says which of its other
    dimensions are of one rank and which of all.

    Attributes:
        shared: names of the shared tensors, among inputs and outputs. Among the arguments of a kernel `c`
            stands as `c_0`, `c_1`, ..., those of all ranks.
        vendor_name: of the library of `vendor_part` on a GPU.
        divided: dimensions of the published shapes of which each rank has an equal part. A published shape
            is a layer of a model, whole; a workload has the size of one rank.
    """

    communicates: ClassVar[bool] = True
    shared: ClassVar[tuple[str, ...]] = ()
    divided: ClassVar[tuple[str, ...]] = ()
    vendor_name: ClassVar[str] = "cuBLAS"

    @property
    def stated_dims(self) -> tuple[str, ...]:
        return tuple(dim for dim in self.dims if dim != WORLD)

    @abstractmethod
    def rank_inputs(self, workload: Workload, rank: int, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Random inputs of one rank, as `inputs`. Those of other ranks have other values."""

    @abstractmethod
    def group_reference(self, workload: Workload, inputs: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
        """The right outputs of each rank, in float32 or better, on the devices of its inputs.

        Args:
            workload: what is computed.
            inputs: those of each rank. They may lie on different devices.
        """

    def group_magnitude(self, workload: Workload, inputs: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
        """What `magnitude` gives, for each rank. Empty mappings where the reference's is to be taken."""
        return [{} for _ in inputs]

    @abstractmethod
    def vendor_collective(self, workload: Workload) -> Collective:
        """The collective of the vendor's library before or after `vendor_part`, one after the other.

        If it is between two parts, `vendor_finish` is the second. It reads and writes inputs, outputs and
        `vendor_scratch`. Its `others` may stand on the other side of the part.
        """

    @abstractmethod
    def vendor_part(self, workload: Workload, tensors: Tensors) -> Callable[[], object]:
        """The vendor's library on one rank, without the collective.

        Args:
            workload: what is computed.
            tensors: inputs, outputs and `vendor_scratch` of the rank by name. The call writes to them.
        """

    def vendor_of_rank(self, workload: Workload, rank: int, tensors: Tensors) -> Callable[[], object]:
        """As `vendor_part`, where that depends on the rank."""
        return self.vendor_part(workload, tensors)

    def vendor_finish(self, workload: Workload, rank: int, tensors: Tensors) -> Callable[[], object] | None:
        """What follows a collective that is between two parts, on one rank."""
        return None

    def vendor_scratch(self, workload: Workload) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of the tensors between `vendor_part` and the collective, by name."""
        return {}

    def rank_second_inputs(
        self, workload: Workload, rank: int, device: str, seed: int
    ) -> SecondInputs | None:
        """What `second_inputs` gives, for one rank. On all ranks they are exact, or on none."""
        return SecondInputs(self.rank_inputs(workload, rank, device, seed))

    def second_inputs(self, workload: Workload, device: str, seed: int) -> SecondInputs | None:
        """Those of rank 0."""
        return self.rank_second_inputs(workload, 0, device, seed)

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """None on one device: see `vendor_part` and `vendor_collective`."""
        return {}

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Those of rank 0."""
        return self.rank_inputs(workload, 0, device, seed)

    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Not that of one rank: see `group_reference`."""
        raise NotImplementedError(f"{self.name} is computed by several ranks: see group_reference")

    def workload(self, shape: str, dtype: str | None = None) -> Workload:
        """As of every operator. A shape that is no published one states the world as well.

        Raises:
            UnknownNameError: no shape, dimension or attribute has that name.
            WorkloadError: a value is wrong, or a dimension or the world is missing.
        """
        if WORLD not in parse_world(shape):
            raise WorkloadError(
                f"{self.name} runs on several devices: name a target of several, like h100x2, or state the "
                f"world: --shape ...,{WORLD}=2"
            )
        return super().workload(shape, dtype)

    def workload_on(self, target: Target, shape: str, dtype: str | None = None) -> Workload:
        """The workload of `shape` on the devices of `target`.

        Raises:
            UnknownNameError: no shape, dimension or attribute has that name.
            WorkloadError: as `workload`; the target is one device; the shape states another world.
        """
        return self.workload_of_world(target.world, shape, dtype, where=f"target {target.name}")

    def default_workloads_on(self, target: Target, dtype: str | None = None) -> list[Workload]:
        return [self.workload_on(target, name, dtype) for name in self.default_names]

    def workload_of_world(
        self, world: int, shape: str, dtype: str | None = None, where: str = "the call"
    ) -> Workload:
        """The workload of `shape` on `world` devices. `where` names in messages what has so many."""
        if world < 2:
            raise WorkloadError(
                f"{self.name} runs on several devices, and {where} is one: name a target of several, like "
                "h100x2"
            )
        stated = parse_world(shape)
        if stated.get(WORLD, str(world)) != str(world):
            raise WorkloadError(
                f"{self.name}: the shape states {WORLD}={stated[WORLD]}, and {where} has {world} devices; "
                f"leave {WORLD} out"
            )
        if "=" in shape:
            return super().workload(shape if WORLD in stated else f"{shape},{WORLD}={world}", dtype)
        by_folded = {name.lower(): name for name in self.named}
        label = by_folded.get(shape.lower())
        if label is None:
            return super().workload(shape, dtype)  # raises
        parts = [f"{name}={_text(value)}" for name, value in self.of_one_rank(label, world).items()]
        return replace(super().workload(",".join([*parts, f"{WORLD}={world}"]), dtype), name=label)

    def validate(self, workload: Workload) -> None:
        """As of every operator; the world is at least 2."""
        if workload.dims[WORLD] < 2:
            raise WorkloadError(f"{self.name}: {WORLD}={workload.dims[WORLD]} must be at least 2")

    def check_reach(self, workload: Workload) -> None:
        """Raise `WorkloadError` if kernels do not reach all ranks: for operators with kernels in any way."""
        if (world := workload.dims[WORLD]) > MOST_RANKS:
            raise WorkloadError(
                f"{self.name}: {WORLD}={world} is more than the {MOST_RANKS} devices of one host that its "
                "kernels can reach"
            )

    def of_one_rank(self, name: str, world: int) -> dict[str, Value]:
        """Dimensions and attributes of a published shape, those of `divided` for one rank of `world`.

        Raises:
            WorkloadError: such a dimension cannot be divided by the world.
        """
        found = dict(self.named[name])
        for dim in self.divided:
            size = int(found[dim])
            if size % world:
                raise WorkloadError(
                    f"{self.name} {name}: its whole {dim}={size} cannot be divided among {world} devices"
                )
            found[dim] = size // world
        return found


def parse_world(shape: str) -> Mapping[str, str]:
    """The assignments of a shape; of a published name none."""
    return parse_assignments(shape, "shape") if "=" in shape else {}


def of_ranks(name: str, world: int) -> tuple[str, ...]:
    """Names of a shared tensor of all ranks, as a kernel's function has them."""
    return tuple(of_rank(name, rank) for rank in range(world))


def of_rank(name: str, rank: int) -> str:
    """Name of a shared tensor of one rank, as a kernel's function has it."""
    return f"{name}_{rank}"


def argument_names(
    operator: GroupOperator, workload: Workload, shared_scratch: Iterable[str], scratch: Iterable[str]
) -> tuple[tuple[str, int | None], ...]:
    """The tensors that a kernel takes, in order: each with its rank if it is shared, else None (its own).

    Args:
        operator: what the kernel computes.
        workload: its workload.
        shared_scratch: names of the kernel's shared scratch (`KernelTemplate.shared_scratch`).
        scratch: names of its other scratch (`KernelTemplate.scratch`).
    """
    world = workload.dims[WORLD]
    own = list(operator.tensor_axes(workload.attrs))  # inputs, then outputs
    placed = [(name, name in operator.shared) for name in own]
    placed += [(name, True) for name in shared_scratch] + [(name, False) for name in scratch]
    return tuple((name, rank) for name, shared in placed for rank in (range(world) if shared else (None,)))


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
