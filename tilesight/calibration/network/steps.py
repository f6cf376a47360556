"""The steps of a calibration: what every rank times, in the same order.

A rate comes from two steps of different sizes, so that whatever does not grow with the bytes drops out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...target.network import COLLECTIVES, MECHANISMS

SLICE_BYTES = 16 << 10  # of a block in one round, as in network_probes.cu
FEW_BLOCKS = 2  # that do not fill the link: the rate of a core is half of theirs
FEW_ROUNDS, LONG_ROUNDS = (64, 512), (2, 64)  # short and long, of few blocks and of all
COPIED_BYTES = (8 << 20, 32 << 20)
FLAG_ROUNDS = (100, 2100)
CURVE_POWERS = range(14, 29)  # sizes of collectives: 16 KiB to 256 MiB
OCCUPIED = (8, 20)  # cores that push beside a product
SAMPLES, FEW_SAMPLES = 15, 7


class Kind(Enum):
    """What a step times."""

    MOVE = "bytes moved by a kernel"
    COPY = "bytes moved by the copy engines"
    FLAG = "flags passed to and fro"
    BARRIER = "barriers of all ranks"
    LIBRARY = "a collective of the vendor's library"
    PRODUCT = "a matrix product while other cores are occupied"


@dataclass(frozen=True, slots=True)
class NetworkStep:
    """One thing that all ranks time at the same moment.

    Attributes:
        title: What is shown as progress. After a fault the further steps of this title are left out.
        kind: What is timed.
        name: The mechanism or the collective; of a product whether the occupied cores `push` or `idle`.
        blocks: Blocks that move bytes, or that occupy a core each beside a product.
        rounds: Slices of each block; flags; barriers.
        size_bytes: Of the whole tensor of a collective, or that a copy moves to each peer.
        peers: Peers that a rank exchanges bytes with at once.
        samples: How often it is timed.
    """

    title: str
    kind: Kind
    name: str = ""
    blocks: int = 0
    rounds: int = 0
    size_bytes: int = 0
    peers: int = 1
    samples: int = SAMPLES

    @property
    def moved_bytes(self) -> int:
        """Bytes that each rank sends or fetches."""
        return (
            self.size_bytes * self.peers
            if self.kind is Kind.COPY
            else self.blocks * self.rounds * SLICE_BYTES
        )


@dataclass(frozen=True, slots=True)
class Times:
    """What one rank found in one step.

    Attributes:
        us: Times of the samples.
        pushed_gb_per_s: Of each sample, what the cores beside a product pushed.
        library: Name and version of the vendor's library, before the first step.
    """

    us: tuple[float, ...] = ()
    pushed_gb_per_s: tuple[float, ...] = ()
    library: str = ""


def joined(first: tuple[Times, ...], further: tuple[Times, ...]) -> tuple[Times, ...]:
    """The samples of all ranks in one step, with further ones."""
    return tuple(
        Times(one.us + other.us, one.pushed_gb_per_s + other.pushed_gb_per_s, one.library)
        for one, other in zip(first, further, strict=True)
    )


def plan(cores: int, world: int, has_bulk_copies: bool) -> list[NetworkStep]:
    """The steps for `world` devices of `cores` cores."""
    others = world - 1
    found = [
        *(NetworkStep("flags", Kind.FLAG, rounds=rounds) for rounds in FLAG_ROUNDS),
        *(NetworkStep("barriers", Kind.BARRIER, rounds=rounds) for rounds in FLAG_ROUNDS),
    ]
    for name, words in MECHANISMS.items():
        if name == "copy_engine" or (name.startswith("tma") and not has_bulk_copies):
            continue
        # rounds=0: what a kernel takes that moves nothing
        shapes = [(FEW_BLOCKS, rounds, 1) for rounds in FEW_ROUNDS]
        for peers in dict.fromkeys((1, others)):
            shapes += [(cores, rounds, peers) for rounds in (0, *LONG_ROUNDS)]
        found += [
            NetworkStep(words, Kind.MOVE, name, blocks, rounds, peers=peers)
            for blocks, rounds, peers in shapes
        ]
    found += [
        NetworkStep(MECHANISMS["copy_engine"], Kind.COPY, "copy_engine", size_bytes=size, peers=peers)
        for peers in dict.fromkeys((1, others))
        for size in COPIED_BYTES
    ]
    for name in COLLECTIVES:
        for power in CURVE_POWERS:
            samples = SAMPLES if power < 26 else FEW_SAMPLES
            title = f"{name} of the vendor's library"
            found.append(NetworkStep(title, Kind.LIBRARY, name, size_bytes=1 << power, samples=samples))
    beside = [(blocks, name) for blocks in OCCUPIED if blocks <= cores // 4 for name in ("idle", "push")]
    for blocks, name in [(0, "idle"), *beside]:
        found.append(
            NetworkStep(
                "a product beside pushes", Kind.PRODUCT, name, blocks, peers=others, samples=FEW_SAMPLES
            )
        )
    return found
