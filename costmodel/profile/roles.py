"""Books of the roles of one kernel: who runs which phases, and what each role is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...profile import Role, Space
from .ledger import Ledger
from .registers import LiveRanges


@dataclass
class RoleBook:
    """Phases of one range of threads, in program order; the range may be entered several times."""

    number: int
    threads: int
    ledgers: list[Ledger] = field(default_factory=list)
    registers_limit: int | None = None

    @property
    def is_whole_block(self) -> bool:
        return self.number == 0

    @property
    def is_empty(self) -> bool:
        return all(ledger.is_empty for ledger in self.ledgers)

    @property
    def has_matrix_work(self) -> bool:
        return any(ledger.matrix for ledger in self.ledgers)

    @property
    def computes(self) -> bool:
        return self.has_matrix_work or any(ledger.counts.get("vector_ops") for ledger in self.ledgers)

    @property
    def fetches(self) -> bool:
        """It copies global memory to shared memory, and stores nothing there."""
        accesses = [a for ledger in self.ledgers for a in ledger.accesses if a.space is Space.GLOBAL]
        return any(a.asynchronous and not a.write for a in accesses) and not any(a.write for a in accesses)


def roles_of(books: Sequence[RoleBook], live: LiveRanges, local_bytes: Mapping[int, float]) -> tuple[Role, ...]:
    return tuple(
        Role(
            name=_name(book, books),
            threads=book.threads,
            phases=tuple(ledger.phase() for ledger in book.ledgers if not ledger.is_empty),
            registers_limit=book.registers_limit,
            local_registers=live.peak_registers(book.number, local_bytes),
        )
        for book in books
        if not book.is_empty
    )


def _name(book: RoleBook, books: Sequence[RoleBook]) -> str:
    """A role that only fetches for others is a producer, even where it computes what to fetch."""
    if book.is_whole_block:
        return "all"
    if not book.computes:
        return "producer"
    others = [b for b in books if b is not book and not b.is_whole_block]
    served = any(b.has_matrix_work or (b.registers_limit or 0) > (book.registers_limit or 0) for b in others)
    return "producer" if served and book.fetches and not book.has_matrix_work else "consumer"
